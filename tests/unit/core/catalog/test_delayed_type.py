"""Exchanges of type x-delayed-message: what they keep, how they route, and their queue."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.amqp.integers import Long
from brokerd.core.catalog import catalog_checks, delayed_type, names, policy
from brokerd.core.catalog.refusals import Refused
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.catalog_driver import VHOST, CatalogDriver

QUEUE = {"type": "quorum", "durable": True, "auto_delete": False, "arguments": {}, "settings": {}}
ARGUMENTS = {"x-delayed-type": "direct"}


def catalog_with(auto_delete: bool = False, **arguments: Any) -> CatalogDriver:
    """Return a catalog with exchange d, as topology.py makes it, and queue q bound to it by k."""
    catalog = CatalogDriver()
    catalog.put("queue", "amq.delayed.d", QUEUE, uid=8, members=["n1"])
    spec = {
        "type": delayed_type.TYPE,
        "durable": True,
        "auto_delete": auto_delete,
        "internal": False,
        "arguments": ARGUMENTS | arguments,
        "settings": {},
    }
    assert catalog.put("exchange", "d", spec)["code"] == "OK"
    catalog.put("queue", "q", QUEUE, uid=9, members=["n1"])
    catalog.put("binding", "", bound("d", "queue", "q"))
    return catalog


def bound(source: str, kind: str, destination: str, key: str = "k") -> dict[str, Any]:
    return {
        "source": source,
        "destination_kind": kind,
        "destination": destination,
        "routing_key": key,
        "arguments": {},
    }


@pytest.mark.parametrize(
    ("value", "said", "kept_ms"),
    [
        (5, 5, 5),
        (Long(5), 5, 5),
        ("5", 5, 5),
        ("+5", 5, 5),
        ("-5", -5, 0),
        (5.9, 5, 5),
        (-5, -5, 0),
        (0, 0, 0),
        (2**32 - 1, 2**32 - 1, 2**32 - 1),
        (2**32, 2**32, 0),
        ("9" * 300, int("9" * 20), 0),
        (float("inf"), None, 0),
        (float("nan"), None, 0),
        (1e300, None, 0),
        ("soon", None, 0),
        ("", None, 0),
        ("١", None, 0),
        (True, None, 0),
        (None, None, 0),
        ([5], None, 0),
    ],
)
def test_a_delay_is_a_number_of_milliseconds(value: object, said: int | None, kept_ms: int) -> None:
    assert delayed_type.said_ms({"x-delay": value}) == said
    assert delayed_type.delay_ms({"x-delay": value}) == kept_ms


@pytest.mark.parametrize(
    ("headers", "key", "is_cancel", "is_kept"),
    [
        ({"x-delay-key": "k", "x-delay": 5}, "k", False, True),
        ({"x-delay-key": "k", "x-delay": -1}, "k", True, True),
        ({"x-delay-key": "k", "x-delay": -2}, "k", False, False),
        ({"x-delay-key": "k"}, "k", False, False),
        ({"x-delay": -1}, None, False, False),
        ({"x-delay-key": "", "x-delay": -1}, None, False, False),
        ({"x-delay-key": 5, "x-delay": -1}, None, False, False),
        ({"x-delay-key": "ä" * 128, "x-delay": -1}, None, False, False),
        ({"x-delay-key": "ä" * 127, "x-delay": "-1"}, "ä" * 127, True, True),
    ],
)
def test_a_key_names_what_waits(
    headers: dict[str, Any], key: str | None, is_cancel: bool, is_kept: bool
) -> None:
    assert delayed_type.key_of(headers) == key
    assert delayed_type.cancels(headers) is is_cancel
    assert delayed_type.goes_to_queue(headers) is is_kept


def test_what_says_no_delay_has_none() -> None:
    assert delayed_type.said_ms({}) == 0


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("d", {}, "'x-delayed-type' must be an existing exchange type"),
        ("d", {"x-delayed-type": 1}, "'x-delayed-type' must be an existing exchange type"),
        ("d", {"x-delayed-type": "odd"}, "'x-delayed-type' must be an existing exchange type"),
        ("d", {"x-delayed-type": delayed_type.TYPE}, "must be an existing exchange type"),
        ("d", {"x-delayed-type": "x-consistent-hash", "hash-header": 1}, "hash-header"),
        ("d" * 244, ARGUMENTS, "at most 243 bytes"),
    ],
)
def test_a_declaration_says_how_it_routes(name: str, arguments: dict[str, Any], said: str) -> None:
    catalog = CatalogDriver()
    refused = catalog.exchange(name, delayed_type.TYPE, arguments=arguments)
    assert isinstance(refused, Refused)
    assert said in refused.text


def test_what_is_delayed_goes_to_its_queue_and_all_else_by_its_type() -> None:
    catalog = catalog_with()
    route = catalog.router.route
    assert route(VHOST, "d", "k").needs_headers
    kept = route(VHOST, "d", "k", {"x-delay": 5})
    assert ([queue.name for queue in kept.queues], kept.delays) == (["amq.delayed.d"], True)
    assert kept.with_queues(kept.queues).delays
    for headers in ({}, {"x-delay": -5}, {"x-delay": 2**32}):
        found = route(VHOST, "d", "k", headers)
        assert ([queue.name for queue in found.queues], found.delays) == (["q"], False)
    # Whether it has a route is asked when it is due.
    assert route(VHOST, "d", "nowhere", {"x-delay": 5}).queues == kept.queues


def test_a_message_delays_behind_another_exchange() -> None:
    catalog = catalog_with()
    catalog.exchange("e", "fanout")
    catalog.put("binding", "", bound("e", "exchange", "d"))
    found = catalog.router.route(VHOST, "e", "k", {"x-delay": 5})
    assert [queue.name for queue in found.queues] == ["amq.delayed.d"]


def test_a_binding_is_checked_by_the_type_that_it_routes_by() -> None:
    catalog = catalog_with(**{"x-delayed-type": "x-consistent-hash"})
    reply = catalog.put("binding", "", bound("d", "queue", "q", "no weight"))
    assert "is its weight" in reply["text"]


def test_its_queue_cannot_be_bound_or_used_and_has_no_policy() -> None:
    catalog = catalog_with()
    assert catalog.router.route(VHOST, "", "amq.delayed.d").queues == ()
    reply = catalog.put("binding", "", bound("amq.direct", "queue", "amq.delayed.d"))
    assert reply["code"] == "NOT_FOUND"
    for permission in ("configure", "write"):
        refused = catalog.access.check(permission, "queue", "amq.delayed.d")
        assert refused is not None
        assert "is kept by exchange 'd'" in refused.text
    assert catalog.access.check("read", "queue", "amq.delayed.d") is None
    spec = {"pattern": ".*", "definition": {"max-length": 1}, "priority": 0, "apply-to": "all"}
    catalog.put("policy", "all", spec)
    queue = catalog.view.queue(VHOST, "amq.delayed.d")
    assert queue is not None
    assert policy.queue_policies(catalog.view, queue).policy is None
    options = policy.effective_queue_options(catalog.view, queue, catalog.profile)
    expected = QueueOptions(
        queue_type="quorum", dead_letter_exchange="d", at_least_once=True, holds_delayed=True
    )
    assert options == expected == policy.first_queue_options(queue)
    other = catalog.view.queue(VHOST, "q")
    assert other is not None
    assert policy.first_queue_options(other) == QueueOptions(queue_type="quorum")


def test_its_queue_counts_in_no_limit_of_the_vhost() -> None:
    catalog = catalog_with()
    catalog.put("vhost", "/", {"limits": {"max-queues": 1}}, vhost="")
    refused = catalog_checks.check_new_queue(catalog.view, VHOST, "p", QUEUE)
    assert refused is not None
    assert catalog_checks.check_new_queue(catalog.view, VHOST, "amq.delayed.p", QUEUE) is None
    catalog.delete("queue", "q")
    assert catalog_checks.check_new_queue(catalog.view, VHOST, "p", QUEUE) is None


def test_its_queue_goes_with_it() -> None:
    catalog = catalog_with()
    catalog.delete("exchange", "d")
    assert ("-", "queue", "amq.delayed.d") in catalog.changed()
    assert catalog.view.queue(VHOST, "amq.delayed.d") is None


def test_its_queue_goes_with_an_exchange_that_loses_its_last_binding() -> None:
    catalog = catalog_with(auto_delete=True)
    catalog.delete("queue", "q")
    assert catalog.view.exchange(VHOST, "d") is None
    assert catalog.view.queue(VHOST, "amq.delayed.d") is None


def test_an_exchange_without_its_queue_can_be_deleted() -> None:
    catalog = catalog_with()
    catalog.delete("queue", "amq.delayed.d")
    assert catalog.router.route(VHOST, "d", "k", {"x-delay": 5}).queues == ()
    catalog.delete("exchange", "d")
    assert catalog.view.exchange(VHOST, "d") is None


def test_names_of_the_queue_and_its_exchange() -> None:
    assert names.exchange_of(names.delayed_queue("d")) == "d"
    assert not names.is_delayed_queue("delayed")
