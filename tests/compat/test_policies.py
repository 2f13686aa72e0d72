"""Policies and operator policies (spec chapter 9): which one applies, what it changes, and when.

What each key does is tested with its subject; here it is who wins.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat import steps
from tests.compat.letters import DLX, put
from tests.compat.servers import Differs, Server, expect, expected
from tests.integration.members import eventually


def limit_of(connection: Any, name: str, kind: str = "classic") -> int:
    """Return how many messages a queue keeps, 9 for no limit; empties it before and after."""
    channel = steps.confirming(connection)
    steps.queue(channel, name, x_queue_type=kind)
    channel.queue_purge(name)
    for i in range(9):
        put(channel, name, f"{i}")
    count = steps.ready(channel, name)
    channel.queue_purge(name)
    channel.close()
    return count


def wait_limit(connection: Any, name: str, limit: int, kind: str = "classic") -> None:
    """Wait until a queue that exists keeps so many messages."""
    eventually(
        lambda: limit_of(connection, name, kind) == limit, f"{limit} in {name}", steps.SECONDS
    )


@pytest.mark.parametrize(
    ("pattern", "is_matched"),
    [
        ("q", True),
        ("^q", False),
        ("^my", True),
        ("q$", False),
        ("my-queue", True),
        ("MY", False),
        ("(?i)MY", True),
        ("^(?!my)", False),
        (".*", True),
        ("^my.{6}$", True),
        ("", True),
    ],
)
def test_patterns(
    server: Server, vhost: str, connection: Any, pattern: str, is_matched: bool
) -> None:
    """R-POL-2: PCRE, not anchored."""
    server.admin.set_policy(vhost, "p", pattern, {"max-length": 2}, "queues")
    assert limit_of(connection, "my-queue") == (2 if is_matched else 9)


def test_the_highest_priority_wins_alone(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-3, R-POL-5: policies are not merged; when one goes the next takes its place."""
    server.admin.set_policy(vhost, "low", "^q$", {"max-length": 3, "message-ttl": 0}, "queues", 1)
    server.admin.set_policy(vhost, "high", "^q$", {"max-length": 5}, "queues", 7)
    server.admin.set_policy(vhost, "mid", "^q$", {"max-length": 4}, "queues", 3)
    assert limit_of(connection, "q") == 5
    server.admin.clear_policy(vhost, "high")
    wait_limit(connection, "q", 4)
    server.admin.set_policy(vhost, "low", "^q$", {"max-length": 2}, "queues", 9)
    wait_limit(connection, "q", 2)
    server.admin.clear_policy(vhost, "low")
    server.admin.clear_policy(vhost, "mid")
    wait_limit(connection, "q", 9)


def test_negative_priorities(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-12."""
    server.admin.set_policy(vhost, "a", "^q$", {"max-length": 3}, "queues", -1)
    server.admin.set_policy(vhost, "b", "^q$", {"max-length": 4}, "queues", -5)
    assert limit_of(connection, "q") == 3


@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize(
    ("apply_to", "is_matched"), [("all", True), ("queues", True), ("exchanges", False)]
)
def test_apply_to_queues(
    server: Server, vhost: str, connection: Any, apply_to: str, is_matched: bool, kind: str
) -> None:
    """R-POL-1."""
    server.admin.set_policy(vhost, "p", "^q$", {"max-length": 2}, apply_to)
    assert limit_of(connection, "q", kind) == (2 if is_matched else 9)


@pytest.mark.parametrize(
    ("apply_to", "is_matched"), [("all", True), ("queues", False), ("exchanges", True)]
)
def test_apply_to_exchanges(
    server: Server, vhost: str, connection: Any, apply_to: str, is_matched: bool
) -> None:
    """R-POL-1, R-POL-10: of a policy for queues no exchange takes anything."""
    definition = {"alternate-exchange": "amq.fanout"}
    server.admin.set_policy(vhost, "p", "^x$", definition, apply_to)
    channel = steps.confirming(connection)
    steps.exchange(channel, "x")
    steps.bound(channel, "amq.fanout", "")
    fate = steps.publish(channel, "x", "k", mandatory=True)
    assert fate == ("ack" if is_matched else "returned")


def test_a_policy_with_keys_of_queues_hides_one_for_exchanges(
    server: Server, vhost: str, connection: Any
) -> None:
    """R-POL-10: with apply-to all."""
    server.admin.set_policy(vhost, "ae", "^x$", {"alternate-exchange": "amq.fanout"}, "all", 1)
    server.admin.set_policy(vhost, "len", "^x$", {"max-length": 5}, "all", 2)
    channel = steps.confirming(connection)
    steps.exchange(channel, "x")
    steps.bound(channel, "amq.fanout", "")
    assert steps.publish(channel, "x", "k", mandatory=True) == "returned"


def test_policies_are_of_one_vhost(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-2."""
    other = f"{vhost}-other"
    server.admin.add_vhost(other)
    server.admin.set_policy(other, "p", ".*", {"max-length": 2})
    assert limit_of(connection, "q") == 9
    server.admin.delete_vhost(other)


def test_generated_names_are_matched(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-2: exclusive queues, too."""
    server.admin.set_policy(vhost, "p", "^amq.gen", {"max-length": 2}, "queues")
    channel = steps.confirming(connection)
    name = channel.queue_declare("", exclusive=True).method.queue
    for i in range(4):
        put(channel, name, f"{i}")
    assert steps.drain(channel, name) == [b"2", b"3"]


def test_a_definition_changes_at_once(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-5: a policy of the same name replaces the other."""
    server.admin.set_policy(vhost, "p", "^q$", {"max-length": 2}, "queues")
    assert limit_of(connection, "q") == 2
    server.admin.set_policy(vhost, "p", "^q$", {"max-length": 6}, "queues")
    wait_limit(connection, "q", 6)
    server.admin.set_policy(vhost, "p", "^other$", {"max-length": 6}, "queues")
    wait_limit(connection, "q", 9)


@pytest.mark.parametrize(
    ("definition", "apply_to"),
    [
        ({"no-such-key": 1}, "all"),
        ({"max-length": "5"}, "all"),
        ({"max-length": -1}, "all"),
        ({"message-ttl": -1}, "all"),
        ({"expires": 0}, "all"),
        ({"overflow": "elsewhere"}, "all"),
        ({"dead-letter-exchange": 1}, "all"),
        ({"dead-letter-strategy": "sometimes"}, "all"),
        ({"alternate-exchange": 1}, "all"),
        ({"max-length": 5, "no-such-key": 1}, "all"),
        ({"max-priority": 5}, "all"),
        ({}, "all"),
        ({"max-length": 5}, "everything"),
    ],
    ids=str,
)
def test_policies_that_are_refused(
    server: Server, vhost: str, connection: Any, definition: dict[str, Any], apply_to: str
) -> None:
    """R-POL-1, R-POL-12, O-5: whole."""
    with pytest.raises(AssertionError):
        server.admin.set_policy(vhost, "p", "^q$", definition, apply_to)
    assert limit_of(connection, "q") == 9


@pytest.mark.parametrize("pattern", ["(", "[a", "*"])
def test_patterns_that_are_refused(server: Server, vhost: str, pattern: str) -> None:
    """R-POL-2."""
    with pytest.raises(AssertionError):
        server.admin.set_policy(vhost, "p", pattern, {"max-length": 5})


# --- operator policies ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("user", "operator", "limit"), [(3, 5, 3), (5, 3, 3), (None, 3, 3), (3, None, 3)]
)
def test_the_smaller_of_user_and_operator(
    server: Server, vhost: str, connection: Any, user: int | None, operator: int | None, limit: int
) -> None:
    """R-POL-8."""
    if user is not None:
        server.admin.set_policy(vhost, "p", "^q$", {"max-length": user}, "queues")
    if operator is not None:
        definition = {"max-length": operator}
        server.admin.set_policy(vhost, "op", "^q$", definition, "queues", operator=True)
    assert limit_of(connection, "q") == limit


def test_operator_and_user_keys_come_together(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-8: keys of one only are taken as they are; the priorities do not meet."""
    definition = {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "dead"}
    server.admin.set_policy(vhost, "p", "^q$", definition, "queues", 9)
    server.admin.set_policy(vhost, "op", "^q$", {"max-length": 1}, "queues", 1, operator=True)
    channel = steps.confirming(connection)
    dead = steps.bound(channel, "amq.fanout", "")
    steps.queue(channel, "q")
    for i in range(3):
        put(channel, "q", f"{i}")
    steps.wait_ready(channel, dead, 2)
    came = [(m.routing_key, steps.deaths(p)) for m, p, _ in steps.drained(channel, dead)]
    assert [(key, entries[0]["reason"]) for key, entries in came] == [("dead", "maxlen")] * 2


def test_an_operator_policy_bounds_an_argument(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-6, R-POL-8: the argument may be less, not more."""
    server.admin.set_policy(vhost, "op", "^q", {"max-length": 3}, "queues", operator=True)
    channel = steps.confirming(connection)
    for name, limit, kept in (("q1", 2, 2), ("q2", 8, 3)):
        steps.queue(channel, name, x_max_length=limit)
        for i in range(5):
            put(channel, name, f"{i}")
        assert steps.ready(channel, name) == kept


def test_clearing_an_operator_policy(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-5."""
    server.admin.set_policy(vhost, "op", "^q$", {"max-length": 3}, "queues", operator=True)
    assert limit_of(connection, "q") == 3
    server.admin.clear_policy(vhost, "op", operator=True)
    wait_limit(connection, "q", 9)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("dead-letter-exchange", "x"),
        ("dead-letter-routing-key", "k"),
        ("dead-letter-strategy", "at-least-once"),
        ("alternate-exchange", "x"),
        ("federation-upstream", "up"),
        ("queue-mode", "lazy"),
    ],
)
def test_keys_that_no_operator_sets(server: Server, vhost: str, key: str, value: str) -> None:
    """R-POL-7."""
    with pytest.raises(AssertionError):
        server.admin.set_policy(vhost, "op", "^q$", {key: value}, "queues", operator=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expires", 60_000),
        ("message-ttl", 60_000),
        ("max-length", 5),
        ("max-length-bytes", 5),
        ("max-in-memory-length", 5),
        ("max-in-memory-bytes", 5),
        ("delivery-limit", 5),
    ],
)
def test_keys_that_an_operator_sets(server: Server, vhost: str, key: str, value: int) -> None:
    """R-POL-7."""
    server.admin.set_policy(vhost, "op", "^q$", {key: value}, "queues", operator=True)


# --- policies and queue types -----------------------------------------------------------------


def test_a_delivery_limit_on_a_classic_queue(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-9: the whole policy does not apply, a lower one does."""
    server.admin.set_policy(vhost, "low", "^q", {"max-length": 5}, "queues", 1)
    definition = {"max-length": 2, "delivery-limit": 3}
    server.admin.set_policy(vhost, "high", "^q", definition, "queues", 2)
    print(
        server.name, limit_of(connection, "q-classic"), limit_of(connection, "q-quorum", "quorum")
    )
    assert limit_of(connection, "q-quorum", "quorum") == 2
    assert limit_of(connection, "q-classic") == 5


def test_the_dead_letter_settings_of_argument_and_policy(
    server: Server, vhost: str, connection: Any
) -> None:
    """R-POL-6, R-DLX-1: an argument wins, of a policy that comes later as well."""
    channel = steps.confirming(connection)
    first, second = steps.bound(channel, "amq.fanout", ""), steps.bound(channel, "amq.topic", "#")
    steps.queue(channel, "q", x_max_length=0, **{DLX: "amq.fanout"})
    server.admin.set_policy(vhost, "p", "^q$", {"dead-letter-exchange": "amq.topic"}, "queues")
    for i in range(3):
        put(channel, "q", f"{i}")
    steps.wait_ready(channel, first, 3)
    assert steps.is_empty(channel, second)


def test_the_listing_names_the_policies(server: Server, vhost: str, connection: Any) -> None:
    """R-POL-1, R-POL-3."""
    admin = server.admin
    admin.set_policy(vhost, "p1", "^q$", {"max-length": 5}, "queues", 1)
    admin.set_policy(vhost, "p2", "^q$", {"max-length": 5}, "queues", 2)
    admin.set_policy(vhost, "op", "^q$", {"max-length": 5}, "queues", operator=True)
    steps.queue(connection.channel(), "q")

    def named() -> tuple[Any, Any] | None:
        row = admin.queues(vhost).get("q", {})
        found = (row.get("policy"), row.get("operator_policy"))
        return found if found == ("p2", "op") else None

    eventually(named, "both policies in the listing", steps.SECONDS)


# --- keys of other versions -------------------------------------------------------------------

#: Key and value; whether it is taken from a user and from an operator.
KEYS: dict[str, tuple[Any, tuple[bool, bool] | Differs[tuple[bool, bool]]]] = {
    "alternate-exchange": ("", (True, False)),
    "dead-letter-exchange": ("", (True, False)),
    "dead-letter-routing-key": ("k", (True, False)),
    "expires": (1, (True, True)),
    "max-in-memory-length": (5, (True, True)),
    "max-length": (0, (True, True)),
    "message-ttl": (0, (True, True)),
    "queue-leader-locator": ("balanced", (True, False)),
    "queue-mode": ("lazy", (True, False)),
    "ha-params": (1, (False, False)),
    "overflow": ("drop-head", Differs((True, False), (True, True), "D-110")),
    "delivery-limit": (-1, Differs((False, False), (True, True), "D-110")),
    "consumer-timeout": (60_000, Differs((False, False), (True, False), "D-110")),
    "target-group-size": (3, Differs((False, False), (True, True), "D-110")),
    "ha-mode": ("all", Differs((True, False), (False, False), "D-111")),
    "queue-master-locator": ("random", Differs((True, False), (False, False), "D-111")),
    "queue-version": (1, Differs((True, False), (True, True), "D-110")),
}


@pytest.mark.parametrize("key", KEYS)
def test_keys_that_are_known(server: Server, vhost: str, key: str) -> None:
    """R-POL-1, R-POL-7, R-POL-12."""
    value, answer = KEYS[key]
    taken = []
    for operator in (False, True):
        try:
            server.admin.set_policy(vhost, "p", "^q$", {key: value}, "queues", operator=operator)
        except AssertionError:
            taken.append(False)
        else:
            taken.append(True)
    assert tuple(taken) == expected(server, answer)


@pytest.mark.parametrize(
    ("name", "pattern"), [("with spaces", "q"), ("n\u00f6n", "q"), ("p", r"(a{2,3}\d)+\p{L}$")]
)
def test_names_and_patterns_of_any_letters(
    server: Server, vhost: str, name: str, pattern: str
) -> None:
    """R-POL-1, R-POL-2."""
    server.admin.set_policy(vhost, name, pattern, {"max-length": 1})
    server.admin.clear_policy(vhost, name)


def test_the_length_of_a_pattern(server: Server, vhost: str) -> None:
    """R-POL-2."""
    server.admin.set_policy(vhost, "p", "q" * 1024, {"max-length": 1})
    try:
        server.admin.set_policy(vhost, "p", "q" * 1025, {"max-length": 1})
    except AssertionError:
        is_taken = False
    else:
        is_taken = True
    assert is_taken is expect(server, rabbitmq=True, brokerd=False, difference="D-112")
