"""Quorum queues (spec chapter 8): what they refuse, delivery limits, order of what comes back.

One member each; what needs three is tested in tests/integration.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.compat import steps
from tests.compat.letters import DLX, dead_queue, death, letter, put
from tests.compat.servers import Server, expect
from tests.integration.members import eventually

Action = Callable[[Any], Any]
QUORUM = {"x-queue-type": "quorum"}


def declare(c: Any, name: str = "q", /, **settings: Any) -> Any:
    """Declare a quorum queue with other properties than it has."""
    arguments = QUORUM | settings.pop("arguments", {})
    return c.queue_declare(name, **({"durable": True} | settings), arguments=arguments)


#: What is done, and how it is refused; V is the vhost.
REFUSED: dict[str, tuple[Action, str, int, str]] = {
    "transient": (
        lambda c: declare(c, durable=False), "channel", 406,
        "PRECONDITION_FAILED - invalid property 'non-durable' for queue 'q' in vhost 'V'",
    ),
    "exclusive": (
        lambda c: declare(c, exclusive=True), "channel", 406,
        "PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue 'q' in vhost 'V'",
    ),
    "auto-delete": (
        lambda c: declare(c, auto_delete=True), "channel", 406,
        "PRECONDITION_FAILED - invalid property 'auto-delete' for queue 'q' in vhost 'V'",
    ),
    "without a name": (
        lambda c: declare(c, ""), "channel", 406,
        "PRECONDITION_FAILED - Cannot declare a server-named queue for type rabbit_quorum_queue",
    ),
    "priorities": (
        lambda c: declare(c, arguments={"x-max-priority": 5}), "channel", 406,
        "PRECONDITION_FAILED - invalid arg 'x-max-priority' for queue 'q' in vhost 'V' of queue "
        "type rabbit_quorum_queue",
    ),
    "lazy mode": (
        lambda c: declare(c, arguments={"x-queue-mode": "lazy"}), "channel", 406,
        "PRECONDITION_FAILED - invalid arg 'x-queue-mode' for queue 'q' in vhost 'V' of queue "
        "type rabbit_quorum_queue",
    ),
    "a delivery limit on a classic queue": (
        lambda c: steps.queue(c, "q", x_delivery_limit=5), "channel", 406,
        "PRECONDITION_FAILED - invalid arg 'x-delivery-limit' for queue 'q' in vhost 'V' of queue "
        "type rabbit_classic_queue",
    ),
    "a strategy on a classic queue": (
        lambda c: steps.queue(
            c, "q", x_dead_letter_exchange="", x_dead_letter_strategy="at-least-once"
        ), "channel", 406,
        "PRECONDITION_FAILED - invalid arg 'x-dead-letter-strategy' for queue 'q' in vhost 'V' of "
        "queue type rabbit_classic_queue",
    ),
    "a group size on a classic queue": (
        lambda c: steps.queue(c, "q", x_quorum_initial_group_size=3), "channel", 406,
        "PRECONDITION_FAILED - invalid arg 'x-quorum-initial-group-size' for queue 'q' in vhost "
        "'V' of queue type rabbit_classic_queue",
    ),
    "a group size of 0": (
        lambda c: declare(c, arguments={"x-quorum-initial-group-size": 0}), "channel", 406,
        "PRECONDITION_FAILED - invalid arg 'x-quorum-initial-group-size' for queue 'q' in vhost "
        "'V': {value_zero,0}",
    ),
    "an unknown strategy": (
        lambda c: declare(
            c, arguments={"x-dead-letter-exchange": "", "x-dead-letter-strategy": "sometimes"}
        ), "channel", 406,
        "PRECONDITION_FAILED - invalid arg 'x-dead-letter-strategy' for queue 'q' in vhost 'V': "
        "invalid_dlx_strategy",
    ),
    "a classic queue again as quorum": (
        lambda c: (steps.queue(c, "q"), steps.quorum(c, "q")), "channel", 406,
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost 'V': "
        "received the value 'quorum' of type 'longstr' but current is none",
    ),
    "a quorum queue again as classic": (
        lambda c: (steps.quorum(c, "q"), steps.queue(c, "q")), "channel", 406,
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost 'V': "
        "received none but current is the value 'quorum' of type 'longstr'",
    ),
    "quorum again as classic by argument": (
        lambda c: (steps.quorum(c, "q"), steps.queue(c, "q", x_queue_type="classic")),
        "channel", 406,
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost 'V': "
        "received 'classic' but current is 'quorum'",
    ),
    "classic by argument again as quorum": (
        lambda c: (steps.queue(c, "q", x_queue_type="classic"), steps.quorum(c, "q")),
        "channel", 406,
        "PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue 'q' in vhost 'V': "
        "received 'quorum' but current is 'classic'",
    ),
    "another delivery limit": (
        lambda c: (steps.quorum(c, "q", x_delivery_limit=1), steps.quorum(c, "q")),
        "channel", 406,
        "PRECONDITION_FAILED - inequivalent arg 'x-delivery-limit' for queue 'q' in vhost 'V': "
        "received none but current is the value '1' of type 'signedint'",
    ),
    "delete if unused": (
        lambda c: (steps.quorum(c, "q"), c.queue_delete("q", if_unused=True)), "connection", 540,
        "NOT_IMPLEMENTED - cannot delete queue 'q' in vhost 'V'. queue.delete operations with "
        "if-unused flag set are not supported by quorum queues",
    ),
    "delete if empty": (
        lambda c: (steps.quorum(c, "q"), c.queue_delete("q", if_empty=True)), "connection", 540,
        "NOT_IMPLEMENTED - cannot delete queue 'q' in vhost 'V'. queue.delete operations with "
        "if-empty flag set are not supported by quorum queues",
    ),
    "consume with a shared prefetch": (
        lambda c: (
            steps.quorum(c, "q"), c.basic_qos(prefetch_count=5, global_qos=True),
            c.basic_consume("q", lambda *_: None),
        ), "connection", 540,
        "NOT_IMPLEMENTED - queue 'q' in vhost 'V' does not support global qos",
    ),
    "get with a single active consumer": (
        lambda c: (steps.quorum(c, "q", x_single_active_consumer=True), c.basic_get("q")),
        "channel", 405,
        "RESOURCE_LOCKED - cannot obtain access to locked queue 'q' in vhost 'V'. basic.get "
        "operations are not supported by quorum queues with single active consumer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_quorum_queues_refuse(vhost: str, channel: Any, case: str) -> None:
    """R-QQ-1, R-QQ-2, R-QQ-20, R-QQ-27, R-Q-5, R-Q-6, R-Q-12, R-QOS-3, R-DL-11, R-ALO-2,
    R-ERR-6, 35, 39, 40, 44.
    """
    action, scope, code, text = REFUSED[case]
    assert steps.refused(channel, action) == (scope, code, text.replace("V", vhost))


def test_arguments_that_are_taken(channel: Any) -> None:
    """R-QQ-3: those that have no effect on one member as well."""
    arguments: dict[str, Any] = {
        "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": "k",
        "x-dead-letter-strategy": "at-least-once",
        "x-delivery-limit": 3,
        "x-expires": 60_000,
        "x-max-in-memory-bytes": 10,
        "x-max-in-memory-length": 10,
        "x-max-length": 10,
        "x-max-length-bytes": 1000,
        "x-message-ttl": 60_000,
        "x-overflow": "reject-publish",
        "x-queue-leader-locator": "balanced",
        "x-quorum-initial-group-size": 1,
        "x-single-active-consumer": True,
        "x-unknown-to-all": "whatever",
    }
    for _ in range(2):
        assert declare(channel, arguments=arguments).method.message_count == 0


def test_the_exclusive_flag_of_a_consumer_is_ignored(connection: Any) -> None:
    """R-CS-2, R-QQ-13."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q")
    one = steps.consumed(connection.channel(), "q", 0, exclusive=True, auto_ack=True)
    two = steps.consumed(connection.channel(), "q", 0, exclusive=True, auto_ack=True)
    for _ in range(4):
        put(channel, "q")

    def all_came() -> bool:
        connection.process_data_events(0.05)
        return len(one) + len(two) == 4

    eventually(all_came, "four deliveries", steps.SECONDS)
    assert one
    assert two


# --- delivery limits --------------------------------------------------------------------------

RETURNS: dict[str, Callable[[Any, Any], Any]] = {
    "nack": lambda channel, tag: channel.basic_nack(tag),
    "reject": lambda channel, tag: channel.basic_reject(tag),
    "recover": lambda channel, tag: channel.basic_recover(requeue=True),
    "channel close": lambda channel, tag: channel.close(),
}


@pytest.mark.parametrize("limit", [0, 1, 2])
@pytest.mark.parametrize("how", RETURNS)
def test_every_return_counts(server: Server, connection: Any, how: str, limit: int) -> None:
    """R-DL-1, R-DL-2, R-DL-3: limit N is N + 1 deliveries; then it dies of delivery_limit."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.quorum(channel, "q", x_delivery_limit=limit, **{DLX: "dlx"})
    put(channel, "q")
    for delivery in range(limit + 1):
        taker = connection.channel()
        method, properties, _ = steps.unacked(taker, "q")
        assert method.redelivered == (delivery > 0)
        assert steps.spoken(properties) == {"x-delivery-count": delivery}
        RETURNS[how](taker, method.delivery_tag)
    _, _, headers = letter(channel)
    assert headers["x-death"] == [death("q", "delivery_limit", "", ["q"])]
    assert steps.is_empty(channel, "q")


def test_without_a_dead_letter_exchange_it_is_dropped(connection: Any) -> None:
    """R-DL-3, R-DLX-9."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_delivery_limit=1)
    put(channel, "q")
    for _ in range(2):
        channel.basic_nack(steps.unacked(channel, "q")[0].delivery_tag)
    steps.wait_ready(channel, "q", 0)


@pytest.mark.parametrize("arguments", [{}, {"x_delivery_limit": 5}], ids=["no limit", "limit"])
def test_the_count_on_deliveries(
    server: Server, connection: Any, arguments: dict[str, Any]
) -> None:
    """R-DL-4, R-DL-5: beside the client's headers, with a limit and without."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", **arguments)
    put(channel, "q", headers={"h": 1})
    taker = connection.channel()
    received = steps.consumed(taker, "q", 1)
    for delivery in (1, 2):
        taker.basic_nack(received[-1][0].delivery_tag)
        steps.wait_received(taker, received, delivery + 1)
    first, *others = [steps.spoken(properties) for _, properties, _ in received]
    assert first == {"h": 1}
    assert others == [{"h": 1, "x-delivery-count": 1}, {"h": 1, "x-delivery-count": 2}]
    assert [method.redelivered for method, _, _ in received] == [False, True, True]


def test_a_client_cannot_bring_a_count(connection: Any) -> None:
    """R-DL-2, R-DLX-25: its header is its own."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_delivery_limit=1)
    put(channel, "q", headers={"x-delivery-count": 7})
    received = steps.consumed(connection.channel(), "q", 1)
    assert steps.spoken(received[0][1]) == {"x-delivery-count": 7}


@pytest.mark.parametrize(("argument", "policy", "limit"), [(None, 1, 1), (1, 5, 1), (5, 1, 1)])
def test_the_smaller_delivery_limit_of_argument_and_policy(
    server: Server, vhost: str, connection: Any, argument: int | None, policy: int, limit: int
) -> None:
    """R-DL-1, R-DL-8, R-POL-6."""
    server.admin.set_policy(vhost, "limit", "^q$", {"delivery-limit": policy}, "queues")
    channel = steps.confirming(connection)
    arguments = {} if argument is None else {"x_delivery_limit": argument}
    steps.quorum(channel, "q", **arguments)
    put(channel, "q")
    for _ in range(limit + 1):
        channel.basic_nack(steps.unacked(channel, "q")[0].delivery_tag)
    steps.wait_ready(channel, "q", 0)


# --- order ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "order"),
    [({}, "3 4 1 2"), ({"x_delivery_limit": 9}, "1 2 3 4")],
    ids=["no limit: to the back", "limit: to the front"],
)
def test_where_returned_messages_go(connection: Any, arguments: dict[str, Any], order: str) -> None:
    """R-QQ-14, R-DL-7."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", **arguments)
    for i in range(1, 5):
        put(channel, "q", f"{i}")
    for _ in range(2):
        tag = steps.unacked(channel, "q")[0].delivery_tag
    channel.basic_nack(tag, multiple=True)
    steps.wait_ready(channel, "q", 4)
    assert b" ".join(steps.drain(channel, "q")).decode() == order


def test_returned_messages_come_in_the_order_of_their_return(connection: Any) -> None:
    """R-QQ-14: not in that of their publishing."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_delivery_limit=9)
    for i in range(1, 5):
        put(channel, "q", f"{i}")
    tags = [steps.unacked(channel, "q")[0].delivery_tag for _ in range(3)]
    for tag in (tags[2], tags[0], tags[1]):
        channel.basic_nack(tag)
    steps.wait_ready(channel, "q", 4)
    assert steps.drain(channel, "q") == [b"3", b"1", b"2", b"4"]


def test_transient_messages_are_kept_as_they_are(connection: Any) -> None:
    """R-QQ-1, R-QQ-7: confirmed as any; the delivery mode is the client's."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q")
    put(channel, "q", "t", delivery_mode=1)
    put(channel, "q", "p", delivery_mode=2)
    put(channel, "q", "n")
    came = [steps.take(channel, "q")[1].delivery_mode for _ in range(3)]
    assert came == [1, 2, None]


def test_purge_and_delete_count_what_is_ready(connection: Any) -> None:
    """R-QQ-19, R-Q-12, R-Q-13: the unacknowledged stay."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q")
    for i in range(4):
        put(channel, "q", f"{i}")
    tag = steps.unacked(channel, "q")[0].delivery_tag
    assert channel.queue_purge("q").method.message_count == 3
    channel.basic_nack(tag)
    steps.wait_ready(channel, "q", 1)
    assert channel.queue_delete("q").method.message_count == 1


def test_a_single_active_consumer_hands_over(connection: Any) -> None:
    """R-CS-7: the next in order when the first goes, with what that one held."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_single_active_consumer=True)
    one, two = connection.channel(), connection.channel()
    first, second = steps.consumed(one, "q", 0), steps.consumed(two, "q", 0)
    put(channel, "q", "1")
    steps.wait_received(one, first, 1)
    assert second == []
    one.close()
    steps.wait_received(two, second, 1)
    assert second[0][0].redelivered


def test_prefetch_limits_what_is_unacknowledged(connection: Any) -> None:
    """R-QQ-12, R-QOS-4."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q")
    for i in range(5):
        put(channel, "q", f"{i}")
    taker = connection.channel()
    taker.basic_qos(prefetch_count=2)
    received = steps.consumed(taker, "q", 2)
    assert steps.ready(channel, "q") == 3
    taker.basic_ack(received[1][0].delivery_tag, multiple=True)
    steps.wait_received(taker, received, 4)
    assert [body for _, _, body in received] == [b"0", b"1", b"2", b"3"]


def test_an_overfull_queue_refuses_and_takes_again(connection: Any) -> None:
    """R-LEN-7: some more than the limit get in; below 80 % of it all do."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_max_length=10, x_overflow="reject-publish")
    fates = [steps.publish(channel, "", "q", f"{i}") for i in range(14)]
    # Told to stop by what was one too many; a slow machine may let in one more.
    assert fates == sorted(fates)
    assert fates.count("ack") in (11, 12)

    def takes_again() -> bool:
        steps.take(channel, "q")
        return steps.publish(channel, "", "q", "more") == "ack"

    eventually(takes_again, "room", steps.SECONDS)
    assert steps.ready(channel, "q") <= 9


def test_a_dead_letter_and_the_count_of_its_queue(server: Server, connection: Any) -> None:
    """R-DL-9, R-DLX-35: on the way to another quorum queue."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "second", x_delivery_limit=1)
    more = {DLX: "", "x_dead_letter_routing_key": "second"}
    steps.quorum(channel, "first", x_delivery_limit=2, **more)
    put(channel, "first")
    for _ in range(3):
        channel.basic_nack(steps.unacked(channel, "first")[0].delivery_tag)
    method, _, _ = steps.unacked(channel, "second")
    assert not method.redelivered
    channel.basic_nack(method.delivery_tag)
    # Before 4.0 the count begins anew.
    steps.wait_ready(channel, "second", 1)


def test_returned_together_they_die_in_order(connection: Any) -> None:
    """R-DL-3, R-DLX-20."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.quorum(channel, "q", x_delivery_limit=0, **{DLX: "dlx"})
    for i in range(4):
        put(channel, "q", f"{i}")
    for _ in range(4):
        steps.unacked(channel, "q")
    channel.basic_nack(0, multiple=True)
    steps.wait_ready(channel, dead, 4)
    assert steps.drain(channel, dead) == [b"0", b"1", b"2", b"3"]


def test_the_limit_kills_before_the_time_to_live(connection: Any) -> None:
    """R-DL-3, R-TTL-1: of what is over both when it comes back."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.quorum(channel, "q", x_message_ttl=2500, x_delivery_limit=0, **{DLX: "dlx"})
    put(channel, "q")
    tag = steps.unacked(channel, "q")[0].delivery_tag
    steps.pause_ms(2600)
    channel.basic_nack(tag)
    assert letter(channel)[2]["x-death"] == [death("q", "delivery_limit", "", ["q"])]


@pytest.mark.parametrize("how", RETURNS)
def test_without_a_limit_it_comes_back_for_ever(connection: Any, how: str) -> None:
    """R-DL-1, R-DL-2: 3.10 has none by default, and counts every return all the same."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q")
    put(channel, "q")
    for returns in range(30):
        taker = connection.channel()
        method, properties, _ = steps.unacked(taker, "q")
        assert steps.spoken(properties) == {"x-delivery-count": returns}
        RETURNS[how](taker, method.delivery_tag)
    steps.wait_ready(channel, "q", 1)


def test_a_negative_limit(server: Server, connection: Any) -> None:
    """R-DL-1."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q", x_delivery_limit=-1)
    put(channel, "q")
    channel.basic_nack(steps.unacked(channel, "q")[0].delivery_tag)
    left = expect(server, rabbitmq=0, brokerd=1, difference="D-109")
    steps.pause_ms(0 if left else 200)
    steps.wait_ready(channel, "q", left)


def test_a_policy_limits_what_is_in_the_queue(server: Server, vhost: str, connection: Any) -> None:
    """R-DL-8, R-POL-5."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "q")
    server.admin.set_policy(vhost, "limit", "^q$", {"delivery-limit": 1}, "queues")

    def ends() -> bool:
        put(channel, "q")
        for _ in range(2):
            channel.basic_nack(steps.unacked(channel, "q")[0].delivery_tag)
        steps.pause_ms(50)
        is_ended = steps.is_empty(channel, "q")
        channel.queue_purge("q")
        return is_ended

    eventually(ends, "the policy's limit", steps.SECONDS)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_full_quorum_queue_takes_dead_letters(connection: Any, kind: str) -> None:
    """R-DLX-17, R-QQ-26: nobody tells the queue that dies to stop."""
    channel = steps.confirming(connection)
    steps.quorum(channel, "full", x_max_length=1, x_overflow="reject-publish")
    more = {DLX: "", "x_dead_letter_routing_key": "full"}
    steps.queue(channel, "q", x_queue_type=kind, **more)
    for i in range(5):
        put(channel, "q", f"{i}")
        channel.basic_reject(steps.unacked(channel, "q")[0].delivery_tag, requeue=False)
    steps.wait_ready(channel, "full", 5)


def test_at_least_once_to_a_full_classic_queue(connection: Any) -> None:
    """R-ALO-6, R-ALO-12: the others wait."""
    channel = steps.confirming(connection)
    steps.queue(channel, "full", x_max_length=1, x_overflow="reject-publish")
    steps.quorum(
        channel, "q", x_overflow="reject-publish", x_dead_letter_strategy="at-least-once",
        x_dead_letter_routing_key="full", **{DLX: ""},
    )  # fmt: skip
    for i in range(3):
        put(channel, "q", f"{i}")
        channel.basic_reject(steps.unacked(channel, "q")[0].delivery_tag, requeue=False)
    steps.wait_ready(channel, "full", 1)
    steps.pause_ms(100)
    assert steps.drain(channel, "full") == [b"0"]


#: Does the queue have a delivery limit; what a consumer with prefetch 2 gets that returns the
#: first two of four one after the other, then acknowledges.
LOOPS = {
    False: ["0", "1", "2", "3", "0*", "1*"],
    True: ["0", "1", "0*", "1*", "2", "3"],
}


@pytest.mark.parametrize("has_limit", LOOPS)
def test_what_a_consumer_gets_that_returns(connection: Any, has_limit: bool) -> None:
    """R-QQ-14, R-DL-7, R-DL-5."""
    channel, taker = steps.confirming(connection), connection.channel()
    steps.quorum(channel, "q", **({"x_delivery_limit": 5} if has_limit else {}))
    for i in range(4):
        put(channel, "q", f"{i}")
    taker.basic_qos(prefetch_count=2)
    received = steps.consumed(taker, "q", 2)
    for tag, count in ((1, 3), (2, 4)):
        taker.basic_nack(tag)
        steps.wait_received(taker, received, count)
    taker.basic_ack(0, multiple=True)
    steps.wait_received(taker, received, 6)
    assert [body.decode() + "*" * m.redelivered for m, _, body in received] == LOOPS[has_limit]


@pytest.mark.parametrize("limit", [{}, {"x_delivery_limit": 5}], ids=["no limit", "limit"])
def test_a_channel_that_closes_gives_back_to_the_front(
    connection: Any, limit: dict[str, Any]
) -> None:
    """R-ACK-12, R-QQ-14: with a limit and without."""
    channel, taker = steps.confirming(connection), connection.channel()
    steps.quorum(channel, "q", **limit)
    for i in range(6):
        put(channel, "q", f"{i}")
    taker.basic_qos(prefetch_count=3)
    steps.consumed(taker, "q", 3)
    taker.close()
    steps.wait_ready(channel, "q", 6)
    assert steps.drain(channel, "q") == [b"0", b"1", b"2", b"3", b"4", b"5"]
