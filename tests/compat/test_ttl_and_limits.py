"""Time to live and length limits (spec chapters 6.2 and 6.3): what expires, what is dropped, what
is refused, and what a policy changes about it.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.compat import steps
from tests.compat.servers import Server, expect
from tests.integration.members import eventually

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


def dead_letter_queue(channel: Any) -> str:
    """Return a queue behind fanout exchange `dlx`."""
    return steps.bound(channel, steps.exchange(channel, "dlx", "fanout"), "", name="dead")


def fill(channel: Any, name: str, *contents: str, **properties: Any) -> list[str]:
    """Publish to a queue, one after the other; return what became of them."""
    return [steps.publish(channel, "", name, body, **properties) for body in contents]


def reasons(taken: steps.Taken) -> list[str]:
    return [death["reason"] for death in steps.deaths(taken[1])]


# --- time to live -----------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    ("of_queue", "of_message"), [(30, None), (None, "30"), (60_000, "30"), (30, "60000")]
)
def test_the_shorter_time_to_live_counts(
    connection: Any, kind: str, of_queue: int | None, of_message: str | None
) -> None:
    """R-TTL-1, R-TTL-3, R-TTL-5: of queue and message; dead letters say so."""
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    limits = {} if of_queue is None else {"x_message_ttl": of_queue}
    name = steps.queue(channel, "q", x_queue_type=kind, x_dead_letter_exchange="dlx", **limits)
    fill(channel, name, "a", "b", expiration=of_message)
    letters = [steps.take(channel, dead) for _ in range(2)]
    assert [(body, reasons((m, p, body))) for m, p, body in letters] == [
        (b"a", ["expired"]),
        (b"b", ["expired"]),
    ]
    assert steps.is_empty(channel, name)


@KINDS
def test_without_a_dead_letter_exchange_it_is_gone(connection: Any, kind: str) -> None:
    """R-TTL-5, R-DLX-9."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_queue_type=kind)
    fill(channel, name, "a", "b", expiration="20")
    steps.wait_ready(channel, name, 0)


def test_what_expires_behind_a_live_head_is_counted_but_not_delivered(connection: Any) -> None:
    """R-TTL-2."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q")
    fill(channel, name, "lives")
    fill(channel, name, "dies", expiration="1")
    fill(channel, name, "lives too")
    steps.pause_ms(100)
    assert steps.ready(channel, name) == 3
    assert steps.drain(channel, name) == [b"lives", b"lives too"]


@KINDS
def test_a_requeued_message_keeps_its_moment(connection: Any, kind: str) -> None:
    """R-TTL-1, R-TTL-5: it does not expire in hand, and at once when it is back."""
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    name = steps.queue(channel, "q", x_queue_type=kind, x_dead_letter_exchange="dlx")
    # Long enough to be taken in time on a machine that is busy.
    fill(channel, name, "m", expiration="2500")
    method = steps.unacked(channel, name)[0]
    steps.pause_ms(2600)
    assert steps.is_empty(channel, dead)
    channel.basic_nack(method.delivery_tag)
    assert reasons(steps.take(channel, dead)) == ["expired"]
    assert steps.is_empty(channel, name)


@pytest.mark.parametrize("where", ["queue", "message"])
@KINDS
def test_time_to_live_zero_without_a_consumer(connection: Any, kind: str, where: str) -> None:
    """R-TTL-6."""
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    limits = {"x_message_ttl": 0} if where == "queue" else {}
    name = steps.queue(channel, "q", x_queue_type=kind, x_dead_letter_exchange="dlx", **limits)
    fate = fill(channel, name, "m", **({} if limits else {"expiration": "0"}))
    assert fate == ["ack"]
    assert reasons(steps.take(channel, dead)) == ["expired"]
    assert steps.is_empty(channel, name)


def test_time_to_live_zero_with_a_consumer(connection: Any) -> None:
    """R-TTL-6, R-CS-10: with prefetch 1 the first of three is delivered."""
    channel, taker = steps.confirming(connection), connection.channel()
    dead = dead_letter_queue(channel)
    name = steps.queue(channel, "q", x_message_ttl=0, x_dead_letter_exchange="dlx")
    taker.basic_qos(prefetch_count=1)
    received = steps.consumed(taker, name, 0)
    fill(channel, name, "1", "2", "3")
    steps.wait_received(taker, received, 1)
    assert [steps.take(channel, dead)[2] for _ in range(2)] == [b"2", b"3"]
    assert [body for _, _, body in received] == [b"1"]


@KINDS
def test_the_expiration_is_delivered_as_it_was_sent(connection: Any, kind: str) -> None:
    """R-TTL-9."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_queue_type=kind, x_message_ttl=50_000)
    fill(channel, name, "m", expiration="060000")
    assert steps.take(channel, name)[1].expiration == "060000"


def test_a_policy_gives_later_messages_a_time_to_live(
    server: Server, vhost: str, connection: Any
) -> None:
    """R-TTL-7, R-POL-5: what came before keeps its own."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q")
    fill(channel, name, "before")
    method = steps.unacked(channel, name)[0]
    server.admin.set_policy(vhost, "ttl", "^q$", {"message-ttl": 1}, "queues")

    def expires() -> bool:
        fill(channel, name, "after")
        steps.pause_ms(50)
        # One that came before the policy did would stay for ever.
        return not channel.queue_purge(name).method.message_count

    eventually(expires, "the policy's time to live", steps.SECONDS)
    channel.basic_nack(method.delivery_tag)
    steps.pause_ms(50)
    assert steps.drain(channel, name) == [b"before"]


@pytest.mark.parametrize(("argument", "policy"), [(60_000, 20), (20, 60_000)])
def test_the_shorter_of_argument_and_policy(
    server: Server, vhost: str, connection: Any, argument: int, policy: int
) -> None:
    """R-TTL-1, R-POL-6."""
    server.admin.set_policy(vhost, "ttl", "^q$", {"message-ttl": policy}, "queues")
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_message_ttl=argument)
    fill(channel, name, "m")
    steps.wait_ready(channel, name, 0)


def test_a_queue_expires_without_its_messages_dying(connection: Any) -> None:
    """R-Q-11, R-TTL-8, R-DLX-3: unused for so long; a consumer is use."""
    channel, taker = steps.confirming(connection), connection.channel()
    dead = dead_letter_queue(channel)
    # Long enough for the consumer to be there in time on a machine that is busy.
    name = steps.queue(channel, "q", x_expires=1500, x_dead_letter_exchange="dlx")
    steps.consumed(taker, name, 0, consumer_tag="c")
    fill(channel, name, "m")
    steps.pause_ms(1800)
    assert steps.is_there(connection, "queue", name)
    taker.basic_cancel("c")
    steps.wait_gone_untouched(connection, name, 1800)
    fill(channel, dead, "next")
    assert steps.drain(channel, dead) == [b"next"]


def test_a_policy_lets_a_queue_expire(server: Server, vhost: str, connection: Any) -> None:
    """R-Q-11, R-POL-6: the shorter of argument and policy."""
    server.admin.set_policy(vhost, "expires", "^q$", {"expires": 100}, "queues")
    steps.queue(connection.channel(), "q", x_expires=60_000)
    steps.wait_gone_untouched(connection, "q", 300)


# --- length -----------------------------------------------------------------------------------


@KINDS
def test_the_oldest_are_dropped(connection: Any, kind: str) -> None:
    """R-LEN-1, R-LEN-2, R-PC-5, R-DLX-2: all acknowledged; dead letters of reason maxlen."""
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    name = steps.queue(
        channel, "q", x_queue_type=kind, x_max_length=2, x_dead_letter_exchange="dlx"
    )
    assert fill(channel, name, "1", "2", "3", "4") == ["ack"] * 4
    letters = [steps.take(channel, dead) for _ in range(2)]
    assert [(letter[2], reasons(letter)) for letter in letters] == [
        (b"1", ["maxlen"]),
        (b"2", ["maxlen"]),
    ]
    assert steps.drain(channel, name) == [b"3", b"4"]


@KINDS
def test_bytes_are_limited(connection: Any, kind: str) -> None:
    """R-LEN-1: bodies count."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_queue_type=kind, x_max_length_bytes=2500)
    contents = [letter * 1000 for letter in "abcd"]
    assert fill(channel, name, *contents) == ["ack"] * 4
    assert [body[:1] for body in steps.drain(channel, name)] == [b"c", b"d"]


@pytest.mark.parametrize(
    ("count", "size", "left"), [(3, 10, ["c", "d"]), (2, 100, ["c", "d"]), (1, 4, ["d"])]
)
def test_the_first_limit_that_is_hit_counts(
    connection: Any, count: int, size: int, left: list[str]
) -> None:
    """R-LEN-1: bodies of four bytes against both limits."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_length=count, x_max_length_bytes=size)
    fill(channel, name, *(letter * 4 for letter in "abcd"))
    assert [body[:1].decode() for body in steps.drain(channel, name)] == left


def test_one_message_larger_than_the_limit_of_bytes_goes(connection: Any) -> None:
    """R-LEN-1, R-LEN-2."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_length_bytes=3)
    assert fill(channel, name, "four", "abc", "", "five5") == ["ack"] * 4
    assert steps.drain(channel, name) == []
    fill(channel, name, "", "", "abc")
    assert steps.drain(channel, name) == [b"", b"", b"abc"]


@KINDS
def test_unacknowledged_messages_do_not_count(connection: Any, kind: str) -> None:
    """R-LEN-1, R-LEN-11: back in the queue they do, and the head goes."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_queue_type=kind, x_max_length=1)
    fill(channel, name, "1")
    method = steps.unacked(channel, name)[0]
    fill(channel, name, "2")
    assert steps.ready(channel, name) == 1
    channel.basic_nack(method.delivery_tag)
    steps.wait_ready(channel, name, 1)
    assert len(steps.drain(channel, name)) == 1


def test_the_requeued_head_is_dropped(connection: Any) -> None:
    """R-LEN-11: on a classic queue it is the oldest."""
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    name = steps.queue(channel, "q", x_max_length=1, x_dead_letter_exchange="dlx")
    fill(channel, name, "1")
    method = steps.unacked(channel, name)[0]
    fill(channel, name, "2")
    channel.basic_nack(method.delivery_tag)
    assert steps.take(channel, dead)[2] == b"1"
    assert steps.drain(channel, name) == [b"2"]


def test_a_full_queue_refuses(connection: Any) -> None:
    """R-LEN-3, R-PC-3: not dead-lettered; the other queue keeps its copy; room makes it accept."""
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    name = steps.bound(
        channel, "amq.fanout", "", name="q",
        x_max_length=2, x_overflow="reject-publish", x_dead_letter_exchange="dlx",
    )  # fmt: skip
    other = steps.bound(channel, "amq.fanout", "")
    fates = [steps.publish(channel, "amq.fanout", "", f"{i}") for i in range(4)]
    assert fates == ["ack", "ack", "nack", "nack"]
    assert len(steps.drain(channel, other)) == 4
    steps.take(channel, name)
    assert steps.publish(channel, "amq.fanout", "", "5") == "ack"
    assert steps.drain(channel, name) == [b"1", b"5"]
    assert steps.is_empty(channel, dead)


def test_a_full_queue_drops_what_nobody_wants_confirmed(connection: Any) -> None:
    """R-LEN-3: no error."""
    channel = connection.channel()
    name = steps.queue(channel, "q", x_max_length=1, x_overflow="reject-publish")
    for body in (b"1", b"2", b"3"):
        channel.basic_publish("", name, body)
    steps.wait_ready(channel, name, 1)
    assert steps.drain(channel, name) == [b"1"]


def test_a_full_queue_refuses_to_its_dead_letter_exchange(connection: Any) -> None:
    """R-LEN-4: the new message dies, of maxlen."""
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    name = steps.queue(
        channel, "q",
        x_max_length=1, x_overflow="reject-publish-dlx", x_dead_letter_exchange="dlx",
    )  # fmt: skip
    assert fill(channel, name, "1", "2") == ["ack", "nack"]
    letter = steps.take(channel, dead)
    assert (letter[2], reasons(letter)) == (b"2", ["maxlen"])
    assert steps.drain(channel, name) == [b"1"]


def test_a_quorum_queue_drops_where_it_should_refuse_to_its_exchange(connection: Any) -> None:
    """R-LEN-4: reject-publish-dlx is accepted and is drop-head."""
    channel = steps.confirming(connection)
    name = steps.quorum(channel, "q", x_max_length=1, x_overflow="reject-publish-dlx")
    assert fill(channel, name, "1", "2") == ["ack", "ack"]
    assert steps.drain(channel, name) == [b"2"]


@pytest.mark.parametrize("limit", ["x_max_length", "x_max_length_bytes"])
def test_limit_zero(connection: Any, limit: str) -> None:
    """R-LEN-5, R-TEST-8: nothing is kept; a consumer that is ready gets it."""
    channel = steps.confirming(connection)
    taker = connection.channel()
    dead = dead_letter_queue(channel)
    limits: dict[str, Any] = {limit: 0}
    name = steps.queue(channel, "q", x_dead_letter_exchange="dlx", **limits)
    assert fill(channel, name, "dropped") == ["ack"]
    assert steps.take(channel, dead)[2] == b"dropped"
    received = steps.consumed(taker, name, 0, auto_ack=True)
    assert fill(channel, name, "taken") == ["ack"]
    steps.wait_received(taker, received, 1)
    assert received[0][2] == b"taken"


def test_a_refusing_limit_zero_refuses_all(connection: Any) -> None:
    """R-LEN-3: before anybody is asked whether he takes it."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_length=0, x_overflow="reject-publish")
    steps.consumed(connection.channel(), name, 0, auto_ack=True)
    assert fill(channel, name, "1", "2") == ["nack", "nack"]


@KINDS
def test_a_policy_that_lowers_the_limit_trims(
    server: Server, vhost: str, connection: Any, kind: str
) -> None:
    """R-LEN-10, R-POL-5."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_queue_type=kind, x_max_length=4)
    fill(channel, name, "1", "2", "3", "4")
    server.admin.set_policy(vhost, "max", "^q$", {"max-length": 2}, "queues")
    steps.wait_ready(channel, name, 2)
    assert steps.drain(channel, name) == [b"3", b"4"]


@pytest.mark.parametrize(("argument", "policy"), [(2, 5), (5, 2)])
@KINDS
def test_the_smaller_of_argument_and_policy(
    server: Server, vhost: str, connection: Any, kind: str, argument: int, policy: int
) -> None:
    """R-LEN-1, R-POL-6."""
    server.admin.set_policy(vhost, "max", "^q$", {"max-length": policy}, "queues")
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_queue_type=kind, x_max_length=argument)
    fill(channel, name, "1", "2", "3")
    assert steps.drain(channel, name) == [b"2", b"3"]


@pytest.mark.parametrize(
    ("kind", "argument", "policy", "is_refused"),
    [
        ("classic", "drop-head", "reject-publish", False),
        ("classic", "reject-publish", "drop-head", True),
        ("quorum", "drop-head", "reject-publish", True),
        ("quorum", "reject-publish", "drop-head", False),
    ],
)
def test_whose_overflow_counts(
    server: Server, vhost: str, connection: Any,
    kind: str, argument: str, policy: str, is_refused: bool,
) -> None:  # fmt: skip
    """R-LEN-6: the argument's on classic queues, the policy's on quorum queues."""
    server.admin.set_policy(vhost, "overflow", "^q$", {"overflow": policy}, "queues")
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_queue_type=kind, x_max_length=1, x_overflow=argument)
    fates = fill(channel, name, "1", "2", "3", "4", "5")
    assert ("nack" in fates) is is_refused
    assert (steps.drain(channel, name)[0] == b"1") is is_refused


REQUEUED: dict[str, tuple[dict[str, Any], list[bytes], list[bytes]]] = {
    "classic": ({}, [b"0", b"1"], [b"2", b"3"]),
    "quorum": ({"x_queue_type": "quorum"}, [b"2", b"3"], [b"0", b"1"]),
    "quorum with a delivery limit": (
        {"x_queue_type": "quorum", "x_delivery_limit": 9},
        [b"0", b"1"],
        [b"2", b"3"],
    ),
}


@pytest.mark.parametrize("case", REQUEUED)
def test_requeued_above_the_limit(connection: Any, case: str) -> None:
    """R-LEN-11, R-LEN-9, R-QQ-14: the head goes, which is where the queue puts what comes back."""
    arguments, dropped, kept = REQUEUED[case]
    channel = steps.confirming(connection)
    dead = dead_letter_queue(channel)
    name = steps.queue(channel, "q", x_max_length=2, x_dead_letter_exchange="dlx", **arguments)
    fill(channel, name, "0", "1")
    for _ in range(2):
        steps.unacked(channel, name)
    fill(channel, name, "2", "3")
    channel.basic_nack(0, multiple=True)
    steps.wait_ready(channel, dead, 2)
    assert (steps.drain(channel, dead), steps.drain(channel, name)) == (dropped, kept)


def test_requeued_above_a_refusing_limit(connection: Any) -> None:
    """R-LEN-11, R-LEN-3: what comes back is never refused; the next publish is."""
    channel = steps.confirming(connection)
    name = steps.queue(channel, "q", x_max_length=2, x_overflow="reject-publish")
    fill(channel, name, "0", "1")
    for _ in range(2):
        steps.unacked(channel, name)
    fill(channel, name, "2", "3")
    channel.basic_nack(0, multiple=True)
    steps.wait_ready(channel, name, 4)
    assert fill(channel, name, "4") == ["nack"]
    assert steps.drain(channel, name) == [b"0", b"1", b"2", b"3"]


def test_a_busy_consumer_leaves_the_newest(connection: Any) -> None:
    """R-LEN-1, R-LEN-2: what it holds does not count."""
    channel, taker = steps.confirming(connection), connection.channel()
    name = steps.queue(channel, "q", x_max_length=2)
    taker.basic_qos(prefetch_count=2)
    received = steps.consumed(taker, name, 0)
    fill(channel, name, "0", "1")
    steps.wait_received(taker, received, 2)
    fill(channel, name, "2", "3", "4", "5")
    taker.basic_ack(0, multiple=True)
    steps.wait_received(taker, received, 4)
    assert [body for _, _, body in received] == [b"0", b"1", b"4", b"5"]


@KINDS
def test_a_refusing_policy_goes(server: Server, vhost: str, connection: Any, kind: str) -> None:
    """R-POL-5, R-LEN-7: a full queue without a limit takes messages again."""
    channel = steps.confirming(connection)
    definition = {"max-length": 1, "overflow": "reject-publish"}
    server.admin.set_policy(vhost, "full", "^q$", definition, "queues")
    name = steps.queue(channel, "q", x_queue_type=kind)
    assert fill(channel, name, "1", "2", "3", "4")[2:] == ["nack", "nack"]
    server.admin.clear_policy(vhost, "full")
    if kind == "classic":
        eventually(lambda: fill(channel, name, "5") == ["ack"], "room", steps.SECONDS)
    else:
        # 3.10 tells the channels of a quorum queue to go on when messages leave it only.
        steps.pause_ms(300)
        fate = expect(server, rabbitmq=["nack"], brokerd=["ack"], difference="D-107")
        assert fill(channel, name, "5") == fate


def test_time_to_live_zero_of_what_comes_back(connection: Any) -> None:
    """R-TTL-1, R-TTL-6: delivered because somebody was there, dead when it is returned."""
    channel, taker = steps.confirming(connection), connection.channel()
    dead = dead_letter_queue(channel)
    name = steps.queue(channel, "q", x_message_ttl=0, x_dead_letter_exchange="dlx")
    received = steps.consumed(taker, name, 0)
    fill(channel, name, "0", "1", "2")
    steps.wait_received(taker, received, 3)
    taker.basic_nack(0, multiple=True)
    steps.wait_ready(channel, dead, 3)
    assert steps.drain(channel, dead) == [b"0", b"1", b"2"]


LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "ten years": ({"x-message-ttl": 315_360_000_000, "x-expires": 315_360_000_000}, ""),
    "more than ten years": ({"x-message-ttl": 315_360_000_001}, "{value_too_large,315360000001}"),
    "a queue of more": ({"x-expires": 315_360_000_001}, "{value_too_large,315360000001}"),
    "as many as 64 bits": ({"x-max-length": 2**62, "x-max-length-bytes": 2**62}, ""),
    "a negative length": ({"x-max-length": -1}, "{value_negative,-1}"),
    "negative bytes": ({"x-max-length-bytes": -1}, "{value_negative,-1}"),
    "a boolean": ({"x-message-ttl": True}, "expected integer, got bool"),
}


@KINDS
@pytest.mark.parametrize("case", LIMITS)
def test_values_of_limits(channel: Any, case: str, kind: str) -> None:
    """R-Q-6, R-TEST-8, R-TTL-1, R-LEN-1."""
    arguments, text = LIMITS[case]
    table = arguments | {"x-queue-type": kind}
    if not text:
        channel.queue_declare("q", durable=True, arguments=table)
        return
    scope, code, said = steps.refused(
        channel, lambda c: c.queue_declare("q", durable=True, arguments=table)
    )
    assert (scope, code) == ("channel", 406)
    assert text in said


# --- quorum queues ----------------------------------------------------------------------------


def test_what_bytes_of_a_quorum_queue_are(server: Server, connection: Any) -> None:
    """R-LEN-1: bodies of 40 under a limit of 100, with headers of 200."""
    channel = steps.confirming(connection)
    name = steps.quorum(channel, "q", x_max_length_bytes=100)
    fill(channel, name, *("x" * 40 for _ in range(3)), headers={"h": "y" * 200})
    left = expect(server, rabbitmq=2, brokerd=0, difference="D-113")
    assert len(steps.drain(channel, name)) == left


def test_a_quorum_queue_without_room(connection: Any) -> None:
    """R-LEN-5, R-LEN-2: what no consumer takes at once is dropped."""
    channel, taker = steps.confirming(connection), connection.channel()
    dead = dead_letter_queue(channel)
    name = steps.quorum(channel, "q", x_max_length=0, x_dead_letter_exchange="dlx")
    fill(channel, name, "1")
    assert steps.take(channel, dead)[2] == b"1"
    received = steps.consumed(taker, name, 0)
    fill(channel, name, "2")
    steps.wait_received(taker, received, 1)
    assert steps.is_empty(channel, dead)


def test_a_refusing_quorum_queue_stops_every_channel(connection: Any) -> None:
    """R-LEN-7, R-LEN-3: the second one as soon as it publishes."""
    one, two = steps.confirming(connection), steps.confirming(connection)
    name = steps.quorum(one, "q", x_max_length=2, x_overflow="reject-publish")
    fates = fill(one, name, *"abcdef")
    assert fates == sorted(fates)
    assert fates.count("ack") in (3, 4)
    assert "nack" in fill(two, name, *"abc")


def test_time_to_live_zero_on_a_quorum_queue_with_a_consumer(connection: Any) -> None:
    """R-TTL-6: it is delivered in the moment in which it comes."""
    channel, taker = steps.confirming(connection), connection.channel()
    dead = dead_letter_queue(channel)
    name = steps.quorum(channel, "q", x_dead_letter_exchange="dlx")
    received = steps.consumed(taker, name, 0)
    fill(channel, name, "m", expiration="0")
    steps.wait_received(taker, received, 1)
    assert steps.is_empty(channel, dead)
