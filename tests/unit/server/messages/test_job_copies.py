"""What a job sends of a message, and where: addresses, headers, and why some stay."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.amqp import properties
from brokerd.amqp.properties import BasicProperties
from brokerd.core import annotations
from brokerd.core.annotations import Annotations, Death
from brokerd.core.catalog import delayed_type, names
from brokerd.core.message import Content
from brokerd.core.triage.jobs import JobKind, JobOrder, To
from brokerd.server.messages import job_copies
from brokerd.server.messages.job_copies import Copies, Way
from brokerd.server.messages.message_view import StoredMessage
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.messages import fakes

QUEUE = {"type": "quorum", "durable": True, "auto_delete": False, "arguments": {}, "settings": {}}
DEATHS = [
    Death("w", "rejected", 1, 7, "shop", ["order.new", "copy"], None),
    Death("first", "expired", 1, 5, "", ["first"], "060"),
]


def dead(headers: dict[str, Any] | None = None, **fields: Any) -> Content:
    table = {"x-death": [{"queue": "w"}], "x-first-death-queue": "first", "mine": 1}
    raw = BasicProperties(headers=table | (headers or {}), priority=3).encode()
    known = {"deaths": DEATHS, "first_death": ("expired", "first", ""), "delivery_count": 4}
    kept = annotations.encode(Annotations(**(known | {"priority": 3} | fields)))
    return (("dx", "dead"), raw, b"body", kept)


@pytest.fixture
def catalog() -> CatalogDriver:
    made = CatalogDriver()
    for name in ("dlq", "first", "w", "other"):
        made.queue(name)
    made.exchange("shop")
    made.bind("shop", "w", "order.new")
    made.bind("shop", "other", "copy")
    return made


def way(catalog: CatalogDriver, content: Content, number: int = 5, **order: Any) -> Way | str:
    routing = fakes.Routing(catalog)
    source = catalog.view.queue("/", "dlq")
    assert source is not None
    fields = {"kind": JobKind.REDRIVE, "vhost": "/", "queue": "dlq"} | order
    copies = Copies(routing, catalog.view, source, JobOrder(**fields), 3)
    return copies.way(StoredMessage(content, number), content, "0a")


def sent(found: Way | str) -> tuple[Any, Any, Annotations]:
    assert isinstance(found, Way), found
    route, header, body, raw = found.content
    assert body == b"body"
    return route, properties.headers(header), annotations.decode(raw)


def test_a_redrive_begins_anew_and_keeps_the_history_apart(catalog: CatalogDriver) -> None:
    found = way(catalog, dead())
    route, headers, known = sent(found)
    assert route == ("", "first")
    assert set(headers) == {"mine", "x-redrive-history", "x-redrive-id"}
    [moved] = headers["x-redrive-history"]
    assert set(moved) == {"x-death", "x-first-death-queue"}
    assert headers["x-redrive-id"].endswith(":5")
    assert (known.deaths, known.first_death, known.delivery_count) == ([], None, 0)
    assert known.priority == 3
    assert isinstance(found, Way)
    assert [queue.name for queue in found.targets] == ["first"]


def test_history_that_is_kept_goes_on_counting(catalog: CatalogDriver) -> None:
    _, headers, known = sent(way(catalog, dead(), keeps_history=True))
    assert "x-death" in headers
    assert "x-redrive-history" not in headers
    assert (known.deaths, known.delivery_count) == (DEATHS, 0)


def test_histories_are_bounded_the_newest_first(catalog: CatalogDriver) -> None:
    earlier = [{"n": number} for number in range(job_copies.HISTORY_MAX)]
    _, headers, _ = sent(way(catalog, dead({"x-redrive-history": earlier})))
    found = headers["x-redrive-history"]
    assert len(found) == job_copies.HISTORY_MAX
    assert "x-death" in found[0]
    assert found[1:] == earlier[:-1]
    _, headers, _ = sent(way(catalog, dead({"x-redrive-history": "forged"})))
    assert len(headers["x-redrive-history"]) == 1


def test_the_first_expiration_comes_back_if_asked_for(catalog: CatalogDriver) -> None:
    found = way(catalog, dead(), restores_expiration=True)
    assert isinstance(found, Way)
    assert properties.expiration(found.content[1]) == "060"
    assert sent(found)[2].ttl_ms == 60
    none = way(catalog, dead(deaths=DEATHS[:1], first_death=("rejected", "w", "shop")))
    assert isinstance(none, Way)
    assert not properties.has_expiration(none.content[1])


def test_republishing_goes_by_the_first_exchange_and_all_keys(catalog: CatalogDriver) -> None:
    content = dead(deaths=DEATHS[:1], first_death=("rejected", "w", "shop"))
    found = way(catalog, content, to=To.REPUBLISH)
    assert isinstance(found, Way)
    assert found.content[0] == ("shop", "order.new")
    assert {queue.name for queue in found.targets} == {"w", "other"}


def test_a_moved_message_goes_as_it_is(catalog: CatalogDriver) -> None:
    content = dead()
    found = way(catalog, content, kind=JobKind.MOVE, to=To.QUEUE, target="other")
    assert isinstance(found, Way)
    assert found.content == (("", "other"), *content[1:])
    keyed = way(catalog, content, kind=JobKind.MOVE, to=To.EXCHANGE, target="shop")
    assert keyed == job_copies.NO_ROUTE
    keyed = way(
        catalog, content, kind=JobKind.MOVE, to=To.EXCHANGE, target="shop", routing_key="copy"
    )
    assert isinstance(keyed, Way)
    assert [queue.name for queue in keyed.targets] == ["other"]


FRAMEWORK = BasicProperties(headers={"NServiceBus.FailedQ": "w"}).encode()
FORGED = BasicProperties(headers={"x-death": [{"queue": "w", "exchange": "shop"}]}).encode()
PLAIN: Content = (("", "dlq"), b"\x00\x00", b"body", b"")


@pytest.mark.parametrize("to", [To.ORIGIN, To.REPUBLISH])
def test_what_only_headers_tell_is_used_if_they_are_trusted(catalog: CatalogDriver, to: To) -> None:
    content: Content = (("", "dlq"), FRAMEWORK, b"body", b"")
    assert way(catalog, content, to=to) == "only headers tell of it"
    assert way(catalog, PLAIN, to=to) == "no history"
    if to is To.ORIGIN:
        assert sent(way(catalog, content, trusts_headers=True))[0] == ("", "w")
    else:
        forged: Content = (("", "dlq"), FORGED, b"body", b"")
        assert way(catalog, forged, to=to, trusts_headers=True) == job_copies.NO_ROUTE


def test_what_has_no_target_stays_and_says_why(catalog: CatalogDriver) -> None:
    gone = dead(first_death=("rejected", "gone", ""))
    assert way(catalog, gone) == job_copies.ORIGIN_GONE
    circle = dead(first_death=("rejected", "dlq", ""))
    assert way(catalog, circle) == job_copies.IS_HERE
    nowhere = dead(deaths=DEATHS[:1], first_death=("rejected", "w", "gone"))
    assert way(catalog, nowhere, to=To.REPUBLISH) == job_copies.NO_EXCHANGE


@pytest.mark.parametrize("guard", ["canary", "stop_after_deaths"])
def test_what_would_be_delayed_stays_where_its_death_is_to_be_seen(
    catalog: CatalogDriver, guard: str
) -> None:
    """Also behind a binding: the order's own target may be of another type."""
    catalog.put("queue", names.delayed_queue("later"), QUEUE, uid=8, members=["n1"])
    catalog.exchange("later", delayed_type.TYPE, arguments={delayed_type.DELAYED_TYPE: "fanout"})
    catalog.bind("later", "w")
    catalog.exchange("front", "fanout")
    catalog.bind("front", "later", kind="exchange")
    to = {"to": To.EXCHANGE, "target": "front"}
    assert way(catalog, dead({"x-delay": 5}), **to, **{guard: 1}) == job_copies.DELAYS
    assert isinstance(way(catalog, dead({"x-delay": 5}), **to), Way)
    assert isinstance(way(catalog, dead(), **to, **{guard: 1}), Way)


def test_a_copy_says_to_its_queue_which_message_of_which_job_it_is(catalog: CatalogDriver) -> None:
    """Its annotations do; what is moved, or dies, is nobody's copy any more."""
    found = way(catalog, dead())
    assert isinstance(found, Way)
    source = catalog.view.queue("/", "dlq")
    assert source is not None
    assert sent(found)[2].redriven == (source.uid, 3, 5, "0a")
    moved = way(catalog, found.content, kind=JobKind.MOVE, to=To.QUEUE, target="other")
    assert sent(moved)[2].redriven is None
    assert sent(moved)[2].priority == 3
    plain = dead()
    moved = way(catalog, plain, kind=JobKind.MOVE, to=To.QUEUE, target="other")
    assert isinstance(moved, Way)
    assert moved.content[3] == plain[3]
