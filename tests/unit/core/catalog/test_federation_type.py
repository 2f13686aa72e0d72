"""Exchanges of the type x-federation-upstream: declared by links of others, filtering by hops."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import exchange_types, federation_type
from brokerd.core.catalog.router import Router
from tests.unit.core.catalog_driver import CatalogDriver

KIND = federation_type.TYPE
ARGUMENTS = {"x-max-hops": 2, "x-downstream-name": "down", "x-downstream-vhost": "v"}
SPEC = {"type": KIND, "durable": True, "auto_delete": True, "internal": True}


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def hop(cluster: str, vhost: str = "v") -> dict[str, str]:
    return {"cluster-name": cluster, "vhost": vhost, "uri": "amqp://x"}


def test_a_link_declares_one(catalog: CatalogDriver) -> None:
    """R-FX-4: in batches as well."""
    created = catalog.exchange("x A", KIND, arguments=ARGUMENTS)
    assert created.spec["type"] == KIND
    assert catalog.put("exchange", "x B", SPEC | {"arguments": ARGUMENTS})["code"] == "OK"
    assert KIND in exchange_types.TYPES


@pytest.mark.parametrize("argument", sorted(ARGUMENTS))
def test_it_says_for_whom_it_is_and_how_far_messages_may_go(
    catalog: CatalogDriver, argument: str
) -> None:
    """R-FX-4: with RabbitMQ's texts."""
    without = {name: value for name, value in ARGUMENTS.items() if name != argument}
    refused = catalog.exchange("x A", KIND, arguments=without)
    assert (refused.code, refused.text) == (406, f"Argument {argument} missing")
    for value in (None, True, 1.5, [], {}):
        refused = catalog.exchange("x A", KIND, arguments=ARGUMENTS | {argument: value})
        assert refused.code == 406
        assert f"Argument {argument} must be of type long" in refused.text
        spec = SPEC | {"arguments": ARGUMENTS | {argument: value}}
        assert catalog.put("exchange", "x A", spec)["code"] == "REFUSED"


@pytest.mark.parametrize(
    ("received", "is_taken"),
    [
        (None, True),
        ("text", True),
        ([], True),
        ([hop("other")], True),
        ([hop("down", "elsewhere")], True),
        (["down"], True),
        ([hop("down")], False),
        ([hop("other"), hop("down")], False),
        ([hop("one"), hop("two")], False),
    ],
)
def test_it_takes_no_message_that_was_there_or_has_come_too_far(
    catalog: CatalogDriver, received: Any, is_taken: bool
) -> None:
    """R-FX-12."""
    catalog.put("exchange", "up", {"type": "topic"})
    catalog.put("exchange", "x A", SPEC | {"arguments": ARGUMENTS})
    for name in ("fed", "own", "rest"):
        catalog.put("queue", name, {"type": "classic"}, uid=70_000 + len(name), members=["n"])
    catalog.put(
        "binding",
        "",
        {"source": "up", "destination": "x A", "destination_kind": "exchange", "routing_key": "#"},
    )
    catalog.put("binding", "", {"source": "x A", "destination": "fed"})
    catalog.put("binding", "", {"source": "up", "destination": "own", "routing_key": "k"})
    router = Router(catalog.view)

    def queues(headers: dict[str, Any] | None, *extra: str) -> set[str]:
        found = router.route("/", "up", "k", headers, extra)
        assert not found.needs_headers
        return {queue.name for queue in found.queues}

    # Twice: from the cache, too.  A message without headers needs no look at them.
    for _ in range(2):
        assert queues(None) == {"fed", "own"}
        assert queues({}) == {"fed", "own"}
        assert queues({"a": 1}) == {"fed", "own"}
        wanted = {"fed", "own"} if is_taken else {"own"}
        assert queues({"x-received-from": received}) == wanted
        assert queues({"x-received-from": received}, "cc") == wanted
