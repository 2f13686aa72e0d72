"""The default delivery limit: what counts against it, and what is told of messages dropped for it.

Against a limit that somebody set every return counts (test_queue_settlement.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands, catalog_effects, policy
from brokerd.core.profiles import profile
from brokerd.core.queue import effects, queue_commands
from brokerd.core.queue.queue_commands import ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.core.queue_driver import QueueDriver, content, numbers

QUORUM = {"x-queue-type": "quorum"}


def queue(limit: int = 2, **options: Any) -> QueueDriver:
    """Return a queue with the default limit, that holds one message."""
    default: dict[str, Any] = {
        "queue_type": "quorum",
        "delivery_limit": limit,
        "delivery_count_mode": "failures",
        "delivery_limit_is_default": True,
    }
    return QueueDriver(**default | options)


def dropped(q: QueueDriver) -> tuple[int, int]:
    return q.count("over_limit"), q.count("default_limit_drop")


# ---- what counts ------------------------------------------------------------------------------


def asked(cause: ReturnCause) -> Callable[[QueueDriver], Any]:
    return lambda q: q.requeue((0, 1), cause=cause)


def timed_out(q: QueueDriver) -> None:
    """The consumer held the message for too long."""
    q.tick(1_100)


def lost_node(q: QueueDriver) -> None:
    """The consumer's node stayed away."""
    q.send(queue_commands.encode_node_down("n1"))
    q.tick(60_000)
    q.send(queue_commands.encode_node_up("n1", 7))


def restarted_node(q: QueueDriver) -> None:
    q.send(queue_commands.encode_node_up("n1", 8))


GIVEN_BACK: dict[str, Callable[[QueueDriver], Any]] = {
    "nack": asked(ReturnCause.NACK),
    "recover": asked(ReturnCause.RECOVER),
    "consumer timeout": timed_out,
    "node away": lost_node,
}
FAILED: dict[str, Callable[[QueueDriver], Any]] = {
    "channel end": lambda q: q.channel_down(1),
    "node restarted": restarted_node,
    "reject": asked(ReturnCause.REJECT),
}


@pytest.mark.parametrize("how", GIVEN_BACK)
def test_a_message_that_consumers_give_back_is_not_dropped(how: str) -> None:
    """R-DL-2 (4.3), R-DL-6: handed out for the thirtieth time, it is there."""
    q = queue(consumer_timeout_ms=1_000 if how == "consumer timeout" else None)
    q.fill(1)
    for returns in range(30):
        q.consume(prefetch=1)
        (span,) = next(c.held for c in q.machine.consumers.rows() if c.held.count)
        assert (span.acquired_count, span.delivery_count) == (returns, 0)
        GIVEN_BACK[how](q)
    assert dropped(q) == (0, 0)
    assert q.ready + q.unacked == 1


@pytest.mark.parametrize("how", FAILED)
def test_a_message_with_which_consumers_fail_comes_to_an_end(how: str) -> None:
    """R-DL-2 (4.3), R-DL-3: limit 2 is three deliveries."""
    q = queue()
    q.fill(1)
    for failures in range(3):
        assert dropped(q) == (0, 0)
        q.consume(prefetch=1)
        assert q.unacked == 1, f"after {failures} failures"
        FAILED[how](q)
    assert dropped(q) == (1, 1)
    assert q.ready + q.unacked == 0


def test_what_is_given_back_in_between_does_not_forgive_and_does_not_count() -> None:
    """R-DL-2, G5."""
    q = queue()
    q.fill(1)
    for _ in range(2):
        for how in ("channel end", "nack", "nack"):
            q.consume(prefetch=1)
            (GIVEN_BACK | FAILED)[how](q)
    assert dropped(q) == (0, 0)
    q.consume(prefetch=1)
    q.channel_down(1)
    assert dropped(q) == (1, 1)


def test_what_a_message_brought_along_does_not_end_it() -> None:
    """R-DL-9 is for limits that somebody set: who looks at a dead letter must not lose it."""
    q = queue()
    q.publish(content(delivery_count=21))
    q.consume(prefetch=1)
    q.requeue((0, 1))
    assert dropped(q) == (0, 0)
    for _ in range(2):
        assert q.unacked == 1
        q.channel_down(1)
        q.consume(prefetch=1)
    # It has come back three times here by now.  Its count goes on from what it brought (R-DLX-35).
    assert dropped(q) == (1, 1)
    set_by_somebody = queue(delivery_count_mode="3.x", delivery_limit_is_default=False)
    set_by_somebody.publish(content(delivery_count=21))
    set_by_somebody.consume(prefetch=1)
    set_by_somebody.requeue((0, 1))
    assert dropped(set_by_somebody) == (1, 0)


def test_a_limit_that_somebody_sets_later_counts_every_return_from_then_on() -> None:
    """R-DL-8, G5: the count goes on from where it is."""
    q = queue(limit=20)
    q.fill(1)
    q.consume(prefetch=1)
    for _ in range(5):
        q.requeue((0, 1))
    q.configure(queue_type="quorum", delivery_limit=2, delivery_count_mode="3.x")
    for returns in range(3):
        assert q.unacked == 1, f"after {returns} returns"
        q.requeue((0, 1))
    assert dropped(q) == (1, 0)


def test_a_message_over_the_default_is_not_dropped_when_a_higher_limit_goes() -> None:
    q = queue(limit=50, delivery_count_mode="3.x", delivery_limit_is_default=False)
    q.fill(1)
    q.consume(prefetch=1)
    for _ in range(40):
        q.requeue((0, 1))
    q.configure(**asdict(queue(limit=20).options))
    q.requeue((0, 1))
    assert (dropped(q), q.unacked) == ((0, 0), 1)
    q.channel_down(1)
    assert dropped(q) == (1, 1)


def test_a_rejected_message_takes_its_failure_along() -> None:
    """R-DL-2 (4.3), R-DLX-35."""
    q = queue(dead_letter_exchange="dlx")
    q.fill(1)
    q.consume()
    (letter,) = q.discard((0, 1), cause=ReturnCause.REJECT).effects
    assert isinstance(letter, effects.DeadLetter)
    assert [run.delivery_count for run in letter.runs] == [1]


# ---- what is counted of it ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (2, 2)),
        ({"delivery_count_mode": "4.3"}, (2, 2)),
        ({"delivery_count_mode": "4.0"}, (2, 2)),
        ({"alternate_exchange": "alt"}, (2, 2)),
        ({"dead_letter_exchange": "dlx"}, (2, 0)),
        ({"delivery_limit_is_default": False}, (2, 0)),
        ({"delivery_limit_is_default": False, "delivery_count_mode": "3.x"}, (2, 0)),
    ],
)
def test_what_the_default_limit_drops_is_counted(
    options: dict[str, Any], expected: tuple[int, int]
) -> None:
    q = queue(limit=0, **options)
    q.fill(2)
    q.consume(prefetch=2)
    q.channel_down(1)
    assert dropped(q) == expected


def test_what_the_queue_drops_otherwise_is_not_counted_with_it() -> None:
    q = queue(limit=0, max_length=1)
    q.fill(3)
    q.consume(prefetch=1)
    q.discard((2, 3))
    assert (q.count("maxlen_drop"), q.count("rejected"), dropped(q)) == (2, 1, (0, 0))


# ---- bytes -------------------------------------------------------------------------------------


def test_options_are_the_same_in_a_log_and_a_snapshot() -> None:
    plain = QueueOptions(queue_type="quorum", delivery_limit=20, delivery_count_mode="4.3")
    default = QueueOptions(queue_type="quorum", delivery_limit=20, delivery_limit_is_default=True)
    kept = QueueOptions("quorum", letters_exchange="a", letters_routing_key="")
    for options in (plain, default, kept):
        copy = QueueMachine()
        copy.restore(QueueMachine(options).snapshot())
        assert copy.options == options
        q = QueueDriver()
        assert q.reply(queue_commands.encode_update_options(options))["ok"]
        assert q.machine.options == options


# ---- who set it --------------------------------------------------------------------------------


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def counted(
    catalog: CatalogDriver, name: str = "q", chosen: str = "brokerd", **switches: Any
) -> tuple[int | None, str, bool]:
    found = catalog.found(name)
    options = policy.effective_queue_options(catalog.view, found, profile(chosen, **switches))
    return options.delivery_limit, options.delivery_count_mode, options.delivery_limit_is_default


def put_policy(catalog: CatalogDriver, kind: str, definition: dict[str, Any]) -> None:
    spec = {"pattern": ".*", "definition": definition, "apply-to": "queues", "priority": 0}
    assert catalog.put(kind, "p", spec)["code"] == "OK"


@pytest.mark.parametrize("setter", ["argument", "setting", "policy", "operator_policy"])
@pytest.mark.parametrize("limit", [5, 20, 0, -1])
def test_against_a_limit_that_somebody_set_every_return_counts(
    catalog: CatalogDriver, setter: str, limit: int
) -> None:
    """R-DL-1, R-DL-2; the value of the default may be set as well as any other."""
    spec: dict[str, Any] = {"type": "quorum", "arguments": dict(QUORUM)}
    if setter == "argument":
        spec["arguments"]["x-delivery-limit"] = limit
    elif setter == "setting":
        spec["settings"] = {"delivery-limit": limit}
    assert catalog.put("queue", "q", spec, uid=5, members=["n1"])["code"] == "OK"
    if setter in ("policy", "operator_policy"):
        put_policy(catalog, setter, {"delivery-limit": limit})
    # R-DL-7: without one, in this mode, what comes back is served first.
    for chosen, mode in (("brokerd", "3.x"), ("rabbitmq-4.3", "4.3")):
        expected = (None, "failures", False) if limit < 0 else (limit, mode, False)
        assert counted(catalog, chosen=chosen) == expected


@pytest.mark.parametrize(
    ("chosen", "switches", "expected"),
    [
        ("brokerd", {}, (20, "failures", True)),
        ("mrg", {}, (20, "failures", True)),
        ("brokerd", {"quorum_default_delivery_limit": 7}, (7, "failures", True)),
        ("brokerd", {"quorum_default_delivery_limit": None}, (None, "3.x", False)),
        # Whoever asks for what a version of RabbitMQ does gets that.
        ("brokerd", {"quorum_delivery_count_mode": "4.0"}, (20, "4.0", True)),
        ("rabbitmq-4.3", {}, (20, "4.3", True)),
        ("rabbitmq-3.13", {}, (None, "3.x", False)),
        ("rabbitmq-3.10", {}, (None, "3.x", False)),
        ("reference", {}, (None, "3.x", False)),
        ("reference+mrg", {}, (None, "3.x", False)),
    ],
)
def test_against_the_default_limit_failures_count(
    catalog: CatalogDriver, chosen: str, switches: dict[str, Any], expected: Any
) -> None:
    """R-DL-1, R-DL-2."""
    catalog.queue("q", arguments=QUORUM)
    put_policy(catalog, "policy", {"max-length": 9})
    assert counted(catalog, chosen=chosen, **switches) == expected


def test_a_limit_that_somebody_takes_away_again_is_the_default_again(
    catalog: CatalogDriver,
) -> None:
    catalog.queue("q", arguments=QUORUM)
    put_policy(catalog, "policy", {"delivery-limit": 3})
    assert counted(catalog) == (3, "3.x", False)
    catalog.do(catalog_commands.delete("policy", "/", "p", cause="admin"))
    assert counted(catalog) == (20, "failures", True)


def test_classic_queues_have_no_default_limit(catalog: CatalogDriver) -> None:
    """R-DL-11."""
    catalog.queue("c")
    assert counted(catalog, "c") == (None, "3.x", False)


def test_every_member_hears_that_the_flag_is_enabled() -> None:
    """What depends on a flag is made anew (catalog_effects.py)."""
    catalog = CatalogDriver()
    catalog.do(catalog_commands.put("member", "", "n1", {"peer_address": "n1:5690"}, cause="admin"))
    catalog.do(catalog_commands.node_started("n1", 1, ["next"]))
    name = "next"
    catalog.do(catalog_commands.enable_features([name]))
    assert catalog.effects == [catalog_effects.FeaturesEnabled([name])]
    catalog.do(catalog_commands.enable_features([name]))
    assert catalog.effects == []


def test_the_run_of_a_message_that_was_given_back_says_no_failure() -> None:
    """R-DL-4: x-acquired-count rises, x-delivery-count does not."""
    q = queue()
    q.fill(1)
    q.consume(prefetch=1)
    (deliver,) = q.requeue((0, 1)).effects
    assert isinstance(deliver, effects.Deliver)
    assert numbers(deliver.runs) == [0]
    assert [(run.acquired_count, run.delivery_count) for run in deliver.runs] == [(1, 0)]


def test_where_returns_go_without_a_limit(catalog: CatalogDriver) -> None:
    """R-DL-7."""
    put_policy(catalog, "policy", {"delivery-limit": -1})
    spec: dict[str, Any] = {"type": "quorum", "arguments": dict(QUORUM)}
    assert catalog.put("queue", "q", spec, uid=5, members=["n1"])["code"] == "OK"
    assert counted(catalog, chosen="rabbitmq-3.10") == (None, "3.x", False)
    assert counted(catalog) == (None, "failures", False)
