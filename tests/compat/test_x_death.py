"""The history of dead letters (spec chapters 7.1.3 and 7.1.4): several deaths, cycles."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from tests.compat import steps
from tests.compat.letters import DLX, KEY, dead_queue, death, first, letter, put, reject
from tests.compat.servers import Server, expect
from tests.integration.members import eventually

KINDS = pytest.mark.parametrize("kind", ["classic", "quorum"])


# --- several deaths ---------------------------------------------------------------------------


@KINDS
def test_golden_vector(connection: Any, kind: str) -> None:
    """R-DLX-27, R-TEST-2: work and pause queue, three deliveries, every field of every entry."""
    channel = steps.confirming(connection)
    steps.exchange(channel, "dx")
    steps.bound(channel, "dx", "work", name="w", x_queue_type=kind, **{DLX: "dx", KEY: "retry"})
    steps.bound(
        channel, "dx", "retry", name="p", x_queue_type=kind, x_message_ttl=50,
        **{DLX: "dx", KEY: "work"},
    )  # fmt: skip
    put(channel, "w", expiration="60000", headers={"CC": ["cc1"], "BCC": ["b1"]})
    times = []
    for delivery in (1, 2, 3):
        method, properties, _ = steps.unacked(channel, "w")
        headers = steps.spoken(properties)
        # Not part of the history; which queue types add it is another case.
        headers.pop("x-delivery-count", None)
        if delivery == 1:
            assert (method.exchange, method.routing_key, headers) == ("", "w", {"CC": ["cc1"]})
        else:
            times.append([entry["time"] for entry in headers["x-death"]])
            headers["x-death"] = steps.deaths(properties)
            assert (method.exchange, method.routing_key) == ("dx", "work")
            assert headers == {
                "x-death": [
                    death("p", "expired", "dx", ["retry"], count=delivery - 1),
                    death(
                        "w", "rejected", "", ["w", "cc1"],
                        count=delivery - 1, original_expiration="60000",
                    ),
                ],
                **first("rejected", "w", ""),
            }  # fmt: skip
        assert properties.expiration == ("60000" if delivery == 1 else None)
        channel.basic_reject(method.delivery_tag, requeue=False)
    assert times[0] == times[1]


def test_two_reasons_of_one_queue_are_two_entries(server: Server, connection: Any) -> None:
    """R-DLX-21, R-DLX-23: newest first; the first death stays."""
    channel = steps.confirming(connection)
    steps.queue(channel, "back", **{DLX: "", KEY: "q"})
    steps.queue(channel, "q", x_message_ttl=900, **{DLX: "", KEY: "back"})
    put(channel, "q")
    for _ in range(2):
        reject(channel, "q")
        reject(channel, "back")
    # Now it expires in q, and waits in back.
    _, _, headers = letter(channel, "back")
    newest, *older = headers["x-death"]
    assert newest == death("q", "expired", "", ["q"])
    by_back = death("back", "rejected", "", ["back"], count=2)
    by_q = death("q", "rejected", "", ["q"], count=2)
    # 3.10 turns the older entries round with every death.
    order = expect(server, rabbitmq=[by_q, by_back], brokerd=[by_back, by_q], difference="D-102")
    assert older == order
    assert headers["x-first-death-reason"] == "rejected"


def test_a_reject_loop_runs_on(connection: Any) -> None:
    """R-DLX-30."""
    channel = steps.confirming(connection)
    steps.queue(channel, "q", **{DLX: ""})
    put(channel, "q")
    for _ in range(3):
        reject(channel, "q")
    _, _, headers = letter(channel, "q")
    assert headers["x-death"] == [death("q", "rejected", "", ["q"], count=3)]


# --- cycles -----------------------------------------------------------------------------------


@KINDS
def test_a_queue_that_expires_to_itself_drops(connection: Any, kind: str) -> None:
    """R-DLX-28, R-DLX-31, R-DLX-29: at the first death; the other target gets it."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.bound(channel, "dlx", "", name="q", x_queue_type=kind, x_message_ttl=30, **{DLX: "dlx"})
    put(channel, "q")
    assert letter(channel)[2]["x-death"] == [death("q", "expired", "", ["q"])]
    steps.pause_ms(100)
    assert (steps.ready(channel, "q"), steps.ready(channel, dead)) == (0, 0)


def test_an_automatic_cycle_of_two_ends(connection: Any) -> None:
    """R-DLX-28: dropped when it is about to enter the first queue again."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.bound(channel, "dlx", "", name="w", x_message_ttl=30, **{DLX: "", KEY: "p"})
    steps.queue(channel, "p", x_message_ttl=30, **{DLX: "dlx"})
    put(channel, "w")
    _, _, headers = letter(channel)
    assert headers["x-death"] == [
        death("p", "expired", "", ["p"]),
        death("w", "expired", "", ["w"]),
    ]
    steps.pause_ms(150)
    assert [steps.ready(channel, name) for name in ("w", "p", "dead")] == [0, 0, 0]


def test_a_rejection_keeps_the_cycle_going_once(server: Server, connection: Any) -> None:
    """R-DLX-28: w rejects, p expires; then it is in w again, and may expire there only once."""
    channel = steps.confirming(connection)
    # Long enough to be taken out twice in time on a machine that is busy.
    steps.queue(channel, "w", x_message_ttl=2500, **{DLX: "", KEY: "p"})
    steps.queue(channel, "p", x_message_ttl=30, **{DLX: "", KEY: "w"})
    put(channel, "w")
    reject(channel, "w")
    method, properties, _ = steps.unacked(channel, "w")
    assert [entry["reason"] for entry in steps.deaths(properties)] == ["expired", "rejected"]
    channel.basic_nack(method.delivery_tag)
    # Expires in w, then in p without a rejection since: the end.
    eventually(lambda: steps.ready(channel, "w") == 0, "w is empty", steps.SECONDS)
    # 3.10 looks at a list that it has turned round, finds the old rejection and goes on for ever.
    left = expect(server, rabbitmq=1, brokerd=0, difference="D-103")

    def seen() -> int:
        # Looked at often: it may just be on its way.
        return max(steps.ready(channel, name) for _ in range(10) for name in ("w", "p"))

    eventually(lambda: seen() == left, "one that goes round, or none", steps.SECONDS)
    steps.pause_ms(300)
    assert seen() == left


def test_a_cycle_of_full_queues_ends(connection: Any) -> None:
    """R-DLX-28: maxlen is automatic, too."""
    channel = steps.confirming(connection)
    steps.queue(channel, "a", x_max_length=1, **{DLX: "", KEY: "b"})
    steps.queue(channel, "b", x_max_length=1, **{DLX: "", KEY: "a"})
    for i in range(3):
        put(channel, "a", f"{i}")
    # 2 pushed 1 into b, 1 pushed 0 out of b; 0 may not enter a again.
    eventually(lambda: steps.ready(channel, "b") == 1, "1 in b", steps.SECONDS)
    steps.pause_ms(100)
    assert [steps.drain(channel, name) for name in ("a", "b")] == [[b"2"], [b"1"]]


# --- x-death that a client sends --------------------------------------------------------------

ENTRY: dict[str, Any] = {
    "count": 3,
    "reason": "rejected",
    "queue": "q",
    "time": datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC),
    "exchange": "somewhere",
    "routing-keys": ["sent"],
    "original-expiration": "7",
}


def rejected_with(channel: Any, sent: Any, **more: Any) -> dict[str, Any]:
    """Publish with an x-death of the client's and reject; return the headers of the letter."""
    dead_queue(channel)
    steps.queue(channel, "q", **{DLX: "dlx"})
    put(channel, "q", headers={"x-death": sent, **more})
    reject(channel, "q")
    return steps.spoken(steps.take(channel, "dead")[1])


def test_the_count_of_a_client_s_entry_goes_on(connection: Any) -> None:
    """R-DLX-24: a message that is published again with what it had has one history."""
    headers = rejected_with(steps.confirming(connection), [ENTRY], h=1)
    assert headers == {"x-death": [ENTRY | {"count": 4}], "h": 1}


def test_an_entry_of_another_queue_stays_behind(connection: Any) -> None:
    """R-DLX-24, R-DLX-23: no first death is written, for there was one; what says so is kept."""
    other = ENTRY | {"queue": "other"}
    sent = {"x-first-death-queue": "other", "x-first-death-reason": "rejected"}
    headers = rejected_with(steps.confirming(connection), [other], **sent)
    [own, old] = headers.pop("x-death")
    assert own.pop("time")
    assert (own, old) == (death("q", "rejected", "", ["q"]), other)
    assert headers == sent


@pytest.mark.parametrize("sent", ["text", 5, None, []], ids=str)
def test_an_x_death_without_entries_is_written_anew(connection: Any, sent: Any) -> None:
    """R-DLX-24: nor does this one get the headers of a first death."""
    headers = rejected_with(steps.confirming(connection), sent)
    [own] = headers.pop("x-death")
    assert own.pop("time")
    assert own == death("q", "rejected", "", ["q"])
    assert headers == {}


@pytest.mark.parametrize("reason", ["expired", "rejected"])
def test_entries_of_before_there_was_a_count_are_counted(connection: Any, reason: str) -> None:
    """R-DLX-24: one for each death; the pair that dies now goes on from there."""
    sent = [ENTRY | {"queue": "q", "reason": reason} for _ in range(3)]
    for entry in sent:
        del entry["count"]
    headers = rejected_with(steps.confirming(connection), sent)
    counts = {(e["queue"], e["reason"]): e["count"] for e in headers["x-death"]}
    if reason == "expired":
        assert counts == {("q", "rejected"): 1, ("q", "expired"): 3}
    else:
        assert counts == {("q", "rejected"): 4}


def test_entries_with_fields_missing_and_fields_of_its_own(server: Server, connection: Any) -> None:
    """R-DLX-24, R-DLX-22."""
    sent = {"queue": "other", "reason": "expired", "note": "mine"}
    headers = rejected_with(steps.confirming(connection), [sent])
    full = {
        "count": 1,
        "queue": "other",
        "reason": "expired",
        "time": datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC),
        "exchange": "",
        "routing-keys": [],
    }
    assert headers["x-death"][1] == expect(server, rabbitmq=sent, brokerd=full, difference="D-104")


def test_a_client_s_history_ends_a_cycle(connection: Any) -> None:
    """R-DLX-24, R-DLX-28: it says that the message expired here before."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.bound(channel, "dlx", "", name="target")
    steps.queue(channel, "q", **{DLX: "dlx"})
    sent = [ENTRY | {"queue": "target", "reason": "expired"}]
    put(channel, "q", expiration="1", headers={"x-death": sent})
    reasons = [entry["reason"] for entry in steps.spoken(steps.take(channel, "dead")[1])["x-death"]]
    assert reasons == ["expired", "expired"]
    steps.pause_ms(50)
    assert steps.is_empty(channel, "target")


# --- queues whose letters come back to them ---------------------------------------------------


def test_a_full_queue_does_not_push_into_itself(connection: Any) -> None:
    """R-DLX-28, R-LEN-2."""
    channel = steps.confirming(connection)
    steps.queue(channel, "q", x_max_length=1, **{DLX: ""})
    for i in range(3):
        put(channel, "q", f"{i}")
    assert steps.drain(channel, "q") == [b"2"]


def test_a_full_queue_does_not_refuse_into_itself(connection: Any) -> None:
    """R-DLX-28, R-LEN-4."""
    channel = steps.confirming(connection)
    steps.queue(channel, "q", x_max_length=1, x_overflow="reject-publish-dlx", **{DLX: ""})
    assert [steps.publish(channel, "", "q", f"{i}") for i in range(3)] == ["ack", "nack", "nack"]
    assert steps.drain(channel, "q") == [b"0"]


def test_too_many_deliveries_are_automatic(connection: Any) -> None:
    """R-DLX-34."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.quorum(channel, "q", x_delivery_limit=0, **{DLX: "dlx"})
    channel.queue_bind("q", "dlx", "")
    put(channel, "q")
    channel.basic_nack(steps.unacked(channel, "q")[0].delivery_tag)
    assert letter(channel)[2]["x-death"] == [death("q", "delivery_limit", "", ["q"])]
    steps.pause_ms(50)
    assert (steps.ready(channel, "q"), steps.ready(channel, dead)) == (0, 0)


def test_a_chain_of_pauses_keeps_the_order(connection: Any) -> None:
    """R-DLX-20."""
    channel = steps.confirming(connection)
    dead = dead_queue(channel)
    steps.queue(channel, "two", x_message_ttl=20, **{DLX: "dlx"})
    steps.queue(channel, "one", x_message_ttl=20, **{DLX: "", KEY: "two"})
    for i in range(10):
        put(channel, "one", f"{i}")
    steps.wait_ready(channel, dead, 10)
    assert steps.drain(channel, dead) == [f"{i}".encode() for i in range(10)]


def test_x_death_names_the_exchange_of_the_publish(connection: Any) -> None:
    """R-DLX-22, R-AE-5: not the alternate that the message came by."""
    channel = steps.confirming(connection)
    dead_queue(channel)
    steps.exchange(channel, "x", alternate="amq.fanout")
    steps.bound(channel, "amq.fanout", "", name="q", **{DLX: "dlx"})
    assert steps.publish(channel, "x", "k") == "ack"
    reject(channel, "q")
    assert letter(channel)[2]["x-death"] == [death("q", "rejected", "x", ["k"])]


def test_letters_go_to_a_waiting_consumer(connection: Any) -> None:
    """R-DLX-11, R-DLX-20, R-ACK-8: in order, and not as redelivered."""
    channel, taker = steps.confirming(connection), connection.channel()
    received = steps.consumed(taker, dead_queue(channel), 0, auto_ack=True)
    steps.queue(channel, "q", **{DLX: "dlx"})
    for i in range(3):
        put(channel, "q", f"{i}")
    for _ in range(3):
        steps.unacked(channel, "q")
    channel.basic_nack(0, multiple=True, requeue=False)
    steps.wait_received(taker, received, 3)
    assert [(body, method.redelivered, method.exchange) for method, _, body in received] == [
        (f"{i}".encode(), False, "dlx") for i in range(3)
    ]
