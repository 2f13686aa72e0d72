"""Declares, bindings and routes while the home member of a classic queue is down."""

from __future__ import annotations

from brokerd.core.catalog import declare, down_homes
from brokerd.core.catalog.catalog_objects import Queue
from tests.unit.core.catalog_driver import OTHER, OWN, VHOST, CatalogDriver, is_refused

MISSING = "no queue 'q' in vhost '/'"


def lost(catalog: CatalogDriver, name: str = "q") -> Queue:
    """Have a queue go down with its home member."""
    queue = catalog.found(name)
    catalog.view.down_homes.absent.add(queue.uid)
    catalog.view.homes_changed()
    return queue


def test_a_queue_that_went_with_its_home_is_declared_anew_whoever_owned_it() -> None:
    """R-Q-9: not 405 for as long as the member is away."""
    catalog = CatalogDriver()
    catalog.queue("q", exclusive=True, connection=OTHER)
    assert catalog.queue("q", exclusive=True, connection=OWN).code == 405
    lost(catalog)
    plan = declare.declare_queue(
        catalog.view,
        catalog.profile,
        catalog.access,
        "q",
        exclusive=True,
        connection=OWN,
        generated_name="",
    )
    assert isinstance(plan, declare.Create)


def test_all_else_about_it_is_answered_as_if_it_were_not_there() -> None:
    """R-ERR-2."""
    catalog = CatalogDriver()
    catalog.queue("q", durable=False)
    lost(catalog)
    is_refused(catalog.queue("q", passive=True), 404, MISSING)
    is_refused(catalog.bind("amq.direct", "q"), 404, MISSING)
    is_refused(declare.use_queue(catalog.view, catalog.access, "q", OWN), 404, MISSING)
    deleted = declare.delete_queue(
        catalog.view,
        catalog.profile,
        catalog.access,
        "q",
        if_unused=False,
        if_empty=False,
        connection=OWN,
    )
    assert deleted == declare.Exists(None)
    catalog.view.down_homes.forget(catalog.found("q").uid)
    assert catalog.queue("q", durable=False, passive=True) == declare.Exists(catalog.found("q"))


def test_routes_leave_it_out_and_go_over_the_alternate_exchange() -> None:
    """R-AE-1: the others of a fanout get their copy; with none left the alternate is asked."""
    catalog = CatalogDriver()
    catalog.queue("q", durable=False)
    catalog.queue("other")
    catalog.queue("spare")
    catalog.exchange("rest", "fanout")
    catalog.bind("rest", "spare")
    catalog.exchange("x", "direct", arguments={"alternate-exchange": "rest"})
    catalog.exchange("hop", "fanout")
    catalog.bind("x", "hop", "both", kind="exchange")
    catalog.bind("hop", "other")
    catalog.bind("x", "q", "one")
    catalog.bind("x", "q", "both")
    assert catalog.routed("x", "one") == ["q"]
    lost(catalog)
    assert catalog.routed("x", "one") == ["spare"]
    assert catalog.routed("x", "both") == ["other"]
    assert catalog.routed("", "q") == []
    assert catalog.routed("", "other") == ["other"]


def test_a_route_says_when_each_of_its_queues_refuses() -> None:
    """R-PUB-7: such a mandatory message comes back."""
    catalog = CatalogDriver()
    catalog.queue("q")
    catalog.queue("other")
    catalog.bind("amq.fanout", "q")
    catalog.bind("amq.fanout", "other")
    down = catalog.view.down_homes
    assert not catalog.route("", "q").is_refused_by_all(down)
    down.refusing.add(catalog.found("q").uid)
    assert [down.has(catalog.found(name).uid) for name in ("q", "other")] == [True, False]
    assert catalog.route("", "q").is_refused_by_all(down)
    assert not catalog.route("amq.fanout").is_refused_by_all(down)


def test_what_outlives_its_home() -> None:
    """R-Q-10: the home's end cancels the consumers of a durable auto-delete queue."""
    catalog = CatalogDriver()
    catalog.queue("durable")
    catalog.queue("transient", durable=False)
    catalog.queue("exclusive", exclusive=True)
    catalog.queue("auto", auto_delete=True)
    kept = {
        name: [down_homes.outlives_home(catalog.found(name), has) for has in (False, True)]
        for name in ("durable", "transient", "exclusive", "auto")
    }
    assert kept == {
        "durable": [True, True],
        "transient": [False, False],
        "exclusive": [False, False],
        "auto": [True, False],
    }


def test_a_quorum_queue_has_no_home_even_with_one_replica() -> None:
    catalog = CatalogDriver()
    catalog.queue("q", arguments={"x-queue-type": "quorum"})
    catalog.queue("c")
    assert [down_homes.has_home(catalog.found(name)) for name in ("q", "c")] == [False, True]


def test_a_snapshot_leaves_alone_what_this_member_sees() -> None:
    catalog = CatalogDriver()
    catalog.queue("q")
    uid = lost(catalog).uid
    catalog.machine.restore(catalog.machine.snapshot())
    assert catalog.view.down_homes.absent == {uid}
    assert catalog.view.usable_queue(VHOST, "q") is None
    assert catalog.view.usable_queue("nowhere", "q") is None
