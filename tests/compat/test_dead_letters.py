"""Dead letter exchanges (spec chapter 7): who dies, where it goes, what it says when it arrives.

Whole x-death tables are compared, field by field but for the times, which no two runs share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.compat import steps
from tests.compat.letters import DLX, KEY, dead_queue, death, first, letter, put, reject
from tests.compat.servers import Server, expect
from tests.integration.members import eventually

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


# --- reasons ----------------------------------------------------------------------------------

Kill = Callable[[Any], Any]
#: Arguments of queue `q`, properties of the message, what is done to it, the reason of its death.
DEATHS: dict[str, tuple[dict[str, Any], dict[str, Any], Kill, str]] = {
    "reject": ({}, {}, lambda c: reject(c, "q"), "rejected"),
    "nack": (
        {}, {},
        lambda c: c.basic_nack(steps.unacked(c, "q")[0].delivery_tag, requeue=False), "rejected",
    ),
    "nack of all": (
        {}, {},
        lambda c: (steps.unacked(c, "q"), c.basic_nack(0, multiple=True, requeue=False)),
        "rejected",
    ),
    "expiration": ({}, {"expiration": "20"}, lambda c: None, "expired"),
    "queue's time to live": ({"x_message_ttl": 20}, {}, lambda c: None, "expired"),
    "drop-head": ({"x_max_length": 1}, {}, lambda c: put(c, "q", "next"), "maxlen"),
}  # fmt: skip


@KINDS
@pytest.mark.parametrize("case", DEATHS)
def test_what_a_first_death_writes(connection: Any, case: str, kind: str) -> None:
    """R-DLX-2, 11, 14, 21, 22, 23: the whole headers table, nothing else in it."""
    arguments, properties, kill, reason = DEATHS[case]
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.bound(
        channel, "amq.direct", "key", name="q", x_queue_type=kind, **{DLX: "dlx"}, **arguments
    )
    steps.publish(channel, "amq.direct", "key", "m", headers={"h": 1}, **properties)
    kill(channel)
    expiration = properties.get("expiration")
    more = {} if expiration is None else {"original_expiration": expiration}
    assert letter(channel) == (
        "dlx",
        "key",
        {
            "h": 1,
            "x-death": [death("q", reason, "amq.direct", ["key"], **more)],
            **first(reason, "q", "amq.direct"),
        },
    )


def test_too_many_deliveries_are_a_death(connection: Any) -> None:
    """R-DLX-2, R-DL-3: reason delivery_limit."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.quorum(channel, "q", x_delivery_limit=1, **{DLX: "dlx"})
    put(channel, "q")
    for _ in range(2):
        channel.basic_nack(steps.unacked(channel, "q")[0].delivery_tag)
    exchange, key, headers = letter(channel)
    assert (exchange, key) == ("dlx", "q")
    assert headers["x-death"] == [death("q", "delivery_limit", "", ["q"])]


def test_a_refused_message_is_a_death_where_asked_for(connection: Any) -> None:
    """R-LEN-4, R-DLX-22."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.queue(channel, "q", x_max_length=0, x_overflow="reject-publish-dlx", **{DLX: "dlx"})
    assert steps.publish(channel, "", "q", headers={"CC": ["q"]}, expiration="5000") == "nack"
    entry = death("q", "maxlen", "", ["q", "q"], original_expiration="5000")
    assert letter(channel)[2]["x-death"] == [entry]


#: What is done to a queue with a message; none of it kills.
HARMLESS: dict[str, Kill] = {
    "purge": lambda c: c.queue_purge("q"),
    "delete": lambda c: c.queue_delete("q"),
    "ack": lambda c: c.basic_ack(steps.unacked(c, "q")[0].delivery_tag),
    "requeue": lambda c: c.basic_nack(steps.unacked(c, "q")[0].delivery_tag),
    "recover": lambda c: (steps.unacked(c, "q"), c.basic_recover(requeue=True)),
    "auto-ack": lambda c: steps.take(c, "q"),
}


@KINDS
@pytest.mark.parametrize("case", HARMLESS)
def test_what_is_no_death(connection: Any, case: str, kind: str) -> None:
    """R-DLX-3."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "q", x_queue_type=kind, **{DLX: "dlx"})
    put(channel, "q")
    HARMLESS[case](channel)
    # Whatever died had been sent on before the death of another queue's message.
    steps.queue(channel, "other", **{DLX: "dlx"})
    put(channel, "other", "other")
    reject(channel, "other")
    assert steps.take(channel, dead)[2] == b"other"
    assert steps.is_empty(channel, dead)


def test_the_end_of_a_channel_or_of_an_auto_delete_queue_is_no_death(connection: Any) -> None:
    """R-DLX-3, R-ACK-12."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    channel.queue_declare("q", auto_delete=True, arguments={"x-dead-letter-exchange": "dlx"})
    put(channel, "q")
    taker = connection.channel()
    steps.consumed(taker, "q", 1)
    taker.close()
    steps.wait_gone(connection, "queue", "q")
    assert steps.is_empty(channel, dead)


# --- where it goes ----------------------------------------------------------------------------


@KINDS
def test_without_an_exchange_the_letter_is_lost_silently(connection: Any, kind: str) -> None:
    """R-DLX-4, R-DLX-18: missing, or there but with no binding; made later, later ones arrive."""
    channel = steps.confirming(connection)
    steps.queue(channel, "q", x_queue_type=kind, **{DLX: "later"})
    put(channel, "q", "1")
    reject(channel, "q")
    steps.wait_ready(channel, "q", 0)
    steps.exchange(channel, "later", "fanout")
    put(channel, "q", "2")
    reject(channel, "q")
    # The third follows the second through the same queue.
    put(channel, "q", "3")
    method = steps.unacked(channel, "q")[0]
    dead = steps.bound(channel, "later", "")
    channel.basic_reject(method.delivery_tag, requeue=False)
    came = {steps.take(channel, dead)[2]}
    assert came <= {b"2", b"3"}


@KINDS
@pytest.mark.parametrize(
    ("key", "target", "delivered"), [(None, "q2", "q2"), ("chosen", "chosen", "chosen")]
)
def test_the_default_exchange_as_dead_letter_exchange(
    connection: Any, kind: str, key: str | None, target: str, delivered: str
) -> None:
    """R-DLX-6: by queue name, with the queue's key or the message's own."""
    channel = steps.confirming(connection)
    steps.queue(channel, target)
    more = {} if key is None else {KEY: key}
    steps.bound(channel, "amq.fanout", "", name="q", x_queue_type=kind, **{DLX: ""}, **more)
    assert steps.publish(channel, "amq.fanout", "q2") == "ack"
    reject(channel, "q")
    exchange, routing_key, headers = letter(channel, target)
    assert (exchange, routing_key) == ("", delivered)
    assert headers["x-death"] == [death("q", "rejected", "amq.fanout", ["q2"])]


def test_an_internal_exchange_and_one_behind_it(connection: Any) -> None:
    """R-DLX-7: exchange-to-exchange bindings are followed; the name is the first one's."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "inside", "topic", internal=True)
    channel.exchange_bind("amq.fanout", "inside", "a.*")
    steps.bound(channel, "amq.fanout", "", name="dead")
    steps.bound(channel, "amq.direct", "a.b", name="q", **{DLX: "inside"})
    assert steps.publish(channel, "amq.direct", "a.b") == "ack"
    reject(channel, "q")
    assert letter(channel)[:2] == ("inside", "a.b")


def test_bindings_with_x_see_the_headers_of_a_death(connection: Any) -> None:
    """R-RT-H7."""
    channel = steps.confirming(connection)
    names = [steps.queue(channel, name) for name in ("rejected", "expired")]
    for name in names:
        arguments = {"x-match": "all-with-x", "x-first-death-reason": name}
        channel.queue_bind(name, "amq.headers", "", arguments)
    steps.queue(channel, "q", **{DLX: "amq.headers"})
    put(channel, "q", "1")
    reject(channel, "q")
    put(channel, "q", "2", expiration="1")
    assert [steps.take(channel, name)[2] for name in names] == [b"1", b"2"]


#: Headers of the message, dead letter key of the queue, queues of direct exchange `dlx` reached.
KEYS: dict[str, tuple[dict[str, Any], str | None, set[str]]] = {
    "own key": ({}, None, {"rk"}),
    "chosen key": ({}, "chosen", {"chosen"}),
    "CC and BCC": ({"CC": ["cc"], "BCC": ["bcc"]}, None, {"rk", "cc", "bcc"}),
    "chosen key for CC and BCC": ({"CC": ["cc"], "BCC": ["bcc"]}, "chosen", {"chosen"}),
}


@KINDS
@pytest.mark.parametrize("case", KEYS)
def test_keys_of_a_dead_letter(connection: Any, case: str, kind: str) -> None:
    """R-DLX-10, 11, 12, 13: CC stays unless another key was chosen; BCC is never shown."""
    headers, chosen, reached = KEYS[case]
    channel = steps.confirming(connection)
    steps.exchange(channel, "dlx")
    targets = [steps.bound(channel, "dlx", key, name=key) for key in ("rk", "cc", "bcc", "chosen")]
    more = {} if chosen is None else {KEY: chosen}
    steps.bound(channel, "amq.direct", "rk", name="q", x_queue_type=kind, **{DLX: "dlx"}, **more)
    assert steps.publish(channel, "amq.direct", "rk", headers=headers) == "ack"
    reject(channel, "q")
    for target in targets:
        if target in reached:
            exchange, key, came = letter(channel, target)
            assert (exchange, key) == ("dlx", chosen or "rk")
            assert came.get("CC") == (None if chosen else headers.get("CC"))
            assert "BCC" not in came
            keys = ["rk", *headers.get("CC", [])]
            assert came["x-death"] == [death("q", "rejected", "amq.direct", keys)]
    assert [steps.ready(channel, target) for target in targets] == [0, 0, 0, 0]


def test_several_targets_each_get_one(connection: Any) -> None:
    """R-RT-2, R-DLX-15."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "dlx", "fanout")
    names = [steps.bound(channel, "dlx", "a", "b", name=f"d{i}") for i in range(3)]
    steps.queue(channel, "q", **{DLX: "dlx"})
    put(channel, "q")
    reject(channel, "q")
    assert [letter(channel, name)[2]["x-death"][0]["count"] for name in names] == [1, 1, 1]
    assert [steps.ready(channel, name) for name in names] == [0, 0, 0]


# --- the message ------------------------------------------------------------------------------


@KINDS
def test_properties_survive_death(connection: Any, kind: str) -> None:
    """R-DLX-14, R-DLX-15: all but the expiration."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "q", x_queue_type=kind, **{DLX: "dlx"})
    properties = {
        "content_type": "text/plain",
        "content_encoding": "none",
        "delivery_mode": 1,
        "priority": 4,
        "correlation_id": "c",
        "reply_to": "r",
        "message_id": "m",
        "timestamp": 1_600_000_000,
        "type": "t",
        "user_id": "guest",
        "app_id": "a",
        "cluster_id": "cl",
    }
    put(channel, "q", "body", expiration="70000", **properties)
    reject(channel, "q")
    method, came, body = steps.take(channel, dead)
    assert body == b"body"
    assert not method.redelivered
    headers = steps.spoken(came)
    assert headers["x-death"][0]["original-expiration"] == "70000"
    kept = {key: value for key, value in vars(came).items() if value is not None}
    del kept["headers"]
    assert kept == properties


@pytest.mark.parametrize("count", [2, 5])
def test_rejected_together_they_arrive_in_order(connection: Any, count: int) -> None:
    """R-DLX-20."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "q", **{DLX: "dlx"})
    for i in range(count):
        put(channel, "q", f"{i}")
    for _ in range(count):
        steps.unacked(channel, "q")
    channel.basic_nack(0, multiple=True, requeue=False)
    steps.wait_ready(channel, dead, count)
    assert steps.drain(channel, dead) == [f"{i}".encode() for i in range(count)]


def test_expired_together_they_arrive_in_order(connection: Any) -> None:
    """R-DLX-20: a live head holds them up."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "q", **{DLX: "dlx"})
    put(channel, "q", "0", expiration="300")
    for i in range(1, 4):
        put(channel, "q", f"{i}", expiration="1")
    steps.wait_ready(channel, dead, 4)
    assert steps.drain(channel, dead) == [b"0", b"1", b"2", b"3"]


def test_a_full_target_loses_the_letter(connection: Any) -> None:
    """R-DLX-17: a classic target that refuses."""
    channel = steps.confirming(connection)
    witness = dead_queue(channel)
    dead = steps.queue(channel, "full", x_max_length=1, x_overflow="reject-publish")
    channel.queue_bind(dead, "dlx")
    steps.queue(channel, "q", **{DLX: "dlx"})
    for body in ("1", "2"):
        put(channel, "q", body)
        reject(channel, "q")
    # What is taken from the other makes room for what has not been refused yet.
    steps.wait_ready(channel, witness, 2)
    assert steps.drain(channel, dead) == [b"1"]


def test_bodies_of_any_size_die(connection: Any) -> None:
    """R-DLX-15: several frames, and none."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "q", **{DLX: "dlx"})
    for body in ("x" * 400_000, ""):
        put(channel, "q", body)
        reject(channel, "q")
        assert steps.take(channel, dead)[2] == body.encode()


@pytest.mark.parametrize(
    ("headers", "keys"),
    [
        ({"CC": [], "BCC": []}, []),
        ({"CC": ["q", "z", "z"], "BCC": ["b"]}, ["q", "z", "z"]),
        ({"CC": ["z", 5, True]}, ["z"]),
        ({"cc": ["z"]}, []),
    ],
    ids=str,
)
def test_keys_that_x_death_names(connection: Any, headers: dict[str, Any], keys: list[str]) -> None:
    """R-DLX-22: the key and CC as they were sent, twice if twice; not BCC."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.queue(channel, "q", **{DLX: "dlx"})
    put(channel, "q", headers=headers)
    reject(channel, "q")
    assert letter(channel)[2]["x-death"] == [death("q", "rejected", "", ["q", *keys])]


def test_the_expiration_as_it_is_kept(server: Server, connection: Any) -> None:
    """R-DLX-22."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.queue(channel, "q", **{DLX: "dlx"})
    put(channel, "q", expiration="0060000")
    reject(channel, "q")
    original = expect(server, rabbitmq="0060000", brokerd="60000", difference="D-105")
    assert letter(channel)[2]["x-death"][0]["original-expiration"] == original


def test_settled_one_by_one_they_arrive_in_that_order(connection: Any) -> None:
    """R-DLX-20."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "q", **{DLX: "dlx"})
    for i in range(4):
        put(channel, "q", f"{i}")
    tags = [steps.unacked(channel, "q")[0].delivery_tag for _ in range(4)]
    for i in (2, 0, 3, 1):
        channel.basic_reject(tags[i], requeue=False)
    steps.wait_ready(channel, dead, 4)
    assert steps.drain(channel, dead) == [b"2", b"0", b"3", b"1"]


def test_a_topic_exchange_takes_all_keys_of_a_letter(connection: Any) -> None:
    """R-DLX-10, R-RT-2: one copy where two keys match."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "topic", "topic")
    both = steps.bound(channel, "topic", "a.#", "b.#", name="both")
    last = steps.bound(channel, "topic", "*.z", name="last")
    steps.queue(channel, "q", **{DLX: "topic"})
    assert steps.publish(channel, "", "a.y", headers={"CC": ["q", "b.z"]}) == "ack"
    reject(channel, "q")
    assert [letter(channel, name)[:2] for name in (both, last)] == [("topic", "a.y")] * 2
    assert [steps.ready(channel, name) for name in (both, last)] == [0, 0]


def test_the_end_of_an_exclusive_queue_is_no_death(
    server: Server, vhost: str, connection: Any
) -> None:
    """R-DLX-3, R-Q-9."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    with server.connected(vhost) as owner:
        arguments = {"x-dead-letter-exchange": "dlx"}
        owner.channel().queue_declare("mine", exclusive=True, arguments=arguments)
        put(channel, "mine")
    steps.wait_gone(connection, "queue", "mine")
    assert steps.is_empty(channel, dead)


# --- who sets it ------------------------------------------------------------------------------

POLICY = {"dead-letter-exchange": "amq.fanout", "dead-letter-routing-key": "from-policy"}


@KINDS
@pytest.mark.parametrize(
    ("arguments", "exchange", "key"),
    [
        ({}, "amq.fanout", "from-policy"),
        ({DLX: "dlx"}, "dlx", "from-policy"),
        ({DLX: "dlx", KEY: "from-argument"}, "dlx", "from-argument"),
    ],
    ids=["policy", "exchange by argument", "both by argument"],
)
def test_each_setting_is_the_argument_s_or_the_policy_s(
    server: Server, vhost: str, connection: Any,
    kind: str, arguments: dict[str, Any], exchange: str, key: str,
) -> None:  # fmt: skip
    """R-DLX-1."""
    channel = steps.confirming(connection)
    server.admin.set_policy(vhost, "dl", "^q$", POLICY, "queues")
    dead = dead_queue(channel)
    channel.queue_bind(dead, "amq.fanout", "")
    steps.queue(channel, "q", x_queue_type=kind, **arguments)
    put(channel, "q")
    reject(channel, "q")
    assert letter(channel)[:2] == (exchange, key)


def test_a_policy_changes_later_deaths(server: Server, vhost: str, connection: Any) -> None:
    """R-DLX-8, R-DLX-9, R-POL-5: messages that are in the queue already, too."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "q")
    for i in range(20):
        put(channel, "q", f"{i}")
    reject(channel, "q")
    server.admin.set_policy(vhost, "dl", "^q$", {"dead-letter-exchange": "dlx"}, "queues")

    def arrives() -> bool:
        reject(channel, "q")
        steps.pause_ms(50)
        return steps.ready(channel, dead) > 0

    eventually(arrives, "a dead letter", steps.SECONDS)
    assert steps.take(channel, dead)[2] != b"0"


#: configure, write, read of a user who declares queue `q` with DLX `dlx`; what is missing.
RIGHTS = {
    "enough": ("^q$", "^dlx$", "^q$", ""),
    "no configure": ("^dlx$", "^dlx$", "^q$", "access to queue 'q' in vhost 'V'"),
    "no read": ("^q$", "^dlx$", "^dlx$", "access to queue 'q' in vhost 'V'"),
    "no write": ("^q$", "^q$", "^q$", "access to exchange 'dlx' in vhost 'V'"),
}


@pytest.mark.parametrize("case", RIGHTS)
def test_rights_to_name_a_dead_letter_exchange(server: Server, vhost: str, case: str) -> None:
    """R-DLX-5, R-DLX-16: when the queue is made; not again, and not when something dies."""
    configure, write, read, missing = RIGHTS[case]
    server.admin.add_user(vhost, vhost)
    server.admin.set_permissions(vhost, vhost, configure, write, read)
    with server.connected(vhost, user=vhost) as connection:
        channel = connection.channel()

        def declare(channel: Any) -> None:
            steps.queue(channel, "q", **{DLX: "dlx"})

        if missing:
            scope, code, text = steps.refused(channel, declare)
            assert (scope, code) == ("channel", 403)
            assert text.endswith(f"{missing.replace('V', vhost)} refused for user '{vhost}'")
        else:
            declare(channel)
            server.admin.set_permissions(vhost, vhost, "^q$", "^amq.default$", "^q$")
            connection.close()
            with server.connected(vhost) as guest:
                dead_queue(guest.channel())
            with server.connected(vhost, user=vhost) as later:
                channel = steps.confirming(later)
                declare(channel)
                put(channel, "q")
                reject(channel, "q")
                steps.wait_ready(channel, "q", 0)
            with server.connected(vhost) as guest:
                assert letter(guest.channel())[:2] == ("dlx", "q")
    server.admin.delete_user(vhost)


# --- at least once ----------------------------------------------------------------------------

AT_LEAST_ONCE: dict[str, Any] = {
    "x_overflow": "reject-publish",
    "x_dead_letter_strategy": "at-least-once",
}


def test_at_least_once_arrives_with_the_same_headers(connection: Any) -> None:
    """R-ALO-1, R-ALO-4, R-ALO-11."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.bound(
        channel, "amq.direct", "k", name="q", x_queue_type="quorum",
        **{DLX: "dlx", KEY: "chosen"}, **AT_LEAST_ONCE,
    )  # fmt: skip
    steps.publish(channel, "amq.direct", "k", expiration="9000", headers={"CC": ["c"], "h": "v"})
    reject(channel, "q")
    entry = death("q", "rejected", "amq.direct", ["k", "c"], original_expiration="9000")
    headers = {"h": "v", "x-death": [entry], **first("rejected", "q", "amq.direct")}
    assert letter(channel) == ("dlx", "chosen", headers)


def test_at_least_once_keeps_a_cycle_and_what_has_no_route(connection: Any) -> None:
    """R-ALO-3, R-ALO-6, R-ALO-8: neither ready nor dropped; counted against the limit."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_max_length=1, **{DLX: "nowhere"}, **AT_LEAST_ONCE)
    put(channel, "q")
    reject(channel, "q")
    steps.wait_ready(channel, "q", 0)
    fates = [steps.publish(channel, "", "q") for _ in range(4)]
    assert fates[-1] == "nack"


def test_at_least_once_needs_a_refusing_queue(connection: Any) -> None:
    """R-ALO-1: with drop-head it is at most once, and nothing waits."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_dead_letter_strategy="at-least-once", **{DLX: "nowhere"})
    put(channel, "q", "1")
    reject(channel, "q")
    # Behind the reject: its letter finds no exchange.
    assert channel.basic_get("q")[2] is None
    steps.exchange(channel, "nowhere", "fanout")
    dead = steps.bound(channel, "nowhere", "")
    put(channel, "q", "2")
    reject(channel, "q")
    assert steps.take(channel, dead)[2] == b"2"


def test_at_least_once_reaches_every_target(connection: Any) -> None:
    """R-ALO-4, R-ALO-5: more than one batch of the worker, to a classic and a quorum queue."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    second = steps.quorum(channel, "second")
    channel.queue_bind(second, "dlx", "")
    steps.quorum(channel, "q", **{DLX: "dlx"}, **AT_LEAST_ONCE)
    for i in range(40):
        put(channel, "q", f"{i}")
    for _ in range(40):
        steps.unacked(channel, "q")
    channel.basic_nack(0, multiple=True, requeue=False)
    for name in (dead, second):
        steps.wait_ready(channel, name, 40)
        # Not in order from one batch to the next (R-ALO-10).
        assert set(steps.drain(channel, name)) == {f"{i}".encode() for i in range(40)}


def test_at_least_once_by_policy(server: Server, vhost: str, connection: Any) -> None:
    """R-ALO-1, R-POL-6."""
    definition = {
        "dead-letter-exchange": "nowhere",
        "dead-letter-strategy": "at-least-once",
        "overflow": "reject-publish",
        "max-length": 1,
    }
    server.admin.set_policy(vhost, "p", "^q$", definition, "queues")
    channel = steps.confirming(connection)
    steps.quorum(channel, "q")
    put(channel, "q")
    reject(channel, "q")
    steps.wait_ready(channel, "q", 0)
    # The letter waits, and counts.
    assert [steps.publish(channel, "", "q") for _ in range(4)][-1] == "nack"


def test_purging_with_letters_waiting(server: Server, connection: Any) -> None:
    """R-QQ-19, R-Q-13."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", **{DLX: "nowhere"}, **AT_LEAST_ONCE)
    for _ in range(3):
        put(channel, "q")
    reject(channel, "q")
    steps.wait_ready(channel, "q", 2)
    count = expect(server, rabbitmq=2, brokerd=3, difference="D-108")
    assert channel.queue_purge("q").method.message_count == count
