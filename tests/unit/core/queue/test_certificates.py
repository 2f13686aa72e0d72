"""Who had a message when it died: what the queue machine says about it (ADR 88)."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from brokerd.core.machine import Outcome
from brokerd.core.queue import certificates, effects, queue_commands
from brokerd.core.queue.certificates import (
    NAME_CHARACTERS_MAX,
    REASON_BYTES_MAX,
    Certificate,
    Client,
    Details,
)
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import QueueDriver, check_total, consumer, dead, numbers

WORKER = Client("billing-7", "pika", "1.3.2")
REASONED = Details("no such customer")


def naming(queue_type: str = "quorum", **options: Any) -> QueueDriver:
    """Return a queue that says who had what dies."""
    options = {"dead_letter_exchange": "dlx", "names_consumers": True} | options
    return QueueDriver(queue_type=queue_type, **options)


def said(outcome: Outcome) -> list[tuple[Certificate | None, list[int]]]:
    """Return certificate and numbers of each DeadLetter effect."""
    return [
        (effect.certificate, numbers(effect.runs))
        for effect in outcome.effects
        if isinstance(effect, effects.DeadLetter)
    ]


def restored(q: QueueDriver) -> None:
    """Go on with a machine that has read the snapshot."""
    data = q.machine.snapshot()
    q.machine = QueueMachine(QueueOptions())
    q.machine.restore(data)
    q.machine.check_invariants()
    assert q.machine.snapshot() == data


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_a_rejected_message_says_who_had_it_and_for_how_long(queue_type: str) -> None:
    """ADR 88"""
    q = naming(queue_type)
    q.consume(prefetch=2, client=WORKER)
    q.fill(2)
    q.now_ms += 340
    outcome = q.discard((0, 1), details=REASONED)
    assert said(outcome) == [
        (Certificate(WORKER, "c", 340, "rejected", "no such customer"), [0]),
    ]
    q.now_ms += 1
    assert said(q.discard((1, 2))) == [(Certificate(WORKER, "c", 341, "rejected", ""), [1])]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
@pytest.mark.parametrize(
    "options", [{"names_consumers": False}, {"dead_letter_exchange": None}], ids=str
)
def test_nothing_is_kept_where_nothing_is_said(queue_type: str, options: dict[str, Any]) -> None:
    """ADR 88: profiles of RabbitMQ, and queues without a dead letter exchange: messages of one
    entry stay one span, whenever they were taken.
    """
    q = naming(queue_type, **options)
    q.fill(4)
    for prefetch in (2, 4):
        q.now_ms += 10
        q.consume(prefetch=prefetch, client=WORKER)
    (holder,) = q.machine.consumers.rows()
    assert [(span.first, span.end, span.since_ms) for span in holder.held] == [(0, 4, 0)]
    outcome = q.discard((0, 4))
    assert [certificate for certificate, _ in said(outcome)] == [None] * len(dead(outcome))


def test_what_was_taken_before_there_was_an_exchange_has_been_held_for_an_unknown_time() -> None:
    """ADR 88, R-DLX-8"""
    q = naming(dead_letter_exchange=None)
    q.consume(prefetch=1, client=WORKER)
    q.fill(1)
    q.configure(queue_type="quorum", dead_letter_exchange="dlx", names_consumers=True)
    assert said(q.discard((0, 1))) == [(Certificate(WORKER, "c", None, "rejected", ""), [0])]


@pytest.mark.parametrize("queue_type", ["classic", "quorum"])
def test_letters_of_one_command_keep_their_order_whatever_is_said_of_them(queue_type: str) -> None:
    """R-DLX-20, ADR 88: equal ones in a row are one group."""
    q = naming(queue_type)
    q.consume(prefetch=2, client=WORKER)
    q.fill(4)
    q.now_ms += 10
    q.settle((1, 2))
    q.now_ms += 10
    q.settle((0, 1))
    # 2 and 3 were taken at different times; 4 and 5 come together.
    q.consume(prefetch=4, client=WORKER)
    q.fill(2)
    held = [
        (certificate and certificate.held_ms, of) for certificate, of in said(q.discard((2, 6)))
    ]
    assert held == [(10, [2]), (0, [3, 4, 5])]


def test_a_message_that_comes_back_begins_anew() -> None:
    """ADR 88: for how long the last consumer had it counts, by its own name."""
    q = naming()
    q.consume("a", prefetch=1, client=WORKER)
    q.fill(1)
    q.now_ms += 500
    q.requeue((0, 1), who=consumer("a"))
    q.send(queue_commands.encode_cancel(consumer("a")))
    q.discard((0, 1), who=consumer("a"), cause=ReturnCause.REJECT)
    q.consume("b", prefetch=2)
    q.fill(1)
    q.now_ms += 7
    outcome = q.discard((1, 2), who=consumer("b"))
    assert said(outcome) == [(Certificate(None, "b", 7, "rejected", ""), [1])]


def limited(**options: Any) -> QueueDriver:
    return naming(delivery_limit=0, delivery_count_mode="4.3", **options)


def test_the_delivery_limit_says_who_had_it_last_and_why() -> None:
    """ADR 88, R-DL-3"""
    q = limited()
    q.consume(prefetch=1, client=WORKER)
    q.fill(1)
    q.now_ms += 9
    outcome = q.requeue((0, 1), cause=ReturnCause.REJECT, details=REASONED)
    assert dead(outcome) == [("delivery_limit", [0])]
    assert said(outcome) == [(Certificate(WORKER, "c", 9, "requeued", REASONED.reason), [0])]


def test_a_lost_channel_says_whose_it_was_also_of_what_it_got() -> None:
    """ADR 88, R-DL-2: only the getter has no checkout that says who it is."""
    q = limited()
    q.consume(prefetch=1, client=WORKER)
    q.fill(2)
    assert q.get()["run"][0] == 1
    q.now_ms += 3
    getter = Client("getter", "", "")
    command = queue_commands.encode_channel_down("n1", 7, 1, {"c": [(0, 1)], "": [(1, 2)]}, getter)
    assert said(q.send(command)) == [
        (Certificate(WORKER, "c", 3, "closed", ""), [0]),
        (Certificate(getter, "", 3, "closed", ""), [1]),
    ]


@pytest.mark.parametrize("is_restart", [True, False])
def test_a_lost_member_says_so(is_restart: bool) -> None:
    """ADR 88, R-QQ-16"""
    q = naming(delivery_limit=0, disconnected_timeout_ms=100)
    q.consume(prefetch=1, client=WORKER)
    q.fill(1)
    q.now_ms += 1
    if is_restart:
        outcome = q.send(queue_commands.encode_node_up("n1", 8))
        held_ms = 1
    else:
        q.send(queue_commands.encode_node_down("n1"))
        outcome = q.tick(100)
        held_ms = 101
    assert said(outcome) == [(Certificate(WORKER, "c", held_ms, "lost", ""), [0])]


def test_a_consumer_that_is_too_slow_says_so() -> None:
    """ADR 88, R-QQ-22: the time is exact, though the timeout is not."""
    q = naming(delivery_limit=0, consumer_timeout_ms=6_400)
    q.now_ms = 1_001
    q.consume(prefetch=1, client=WORKER)
    q.fill(1)
    outcome = q.tick(6_499)
    assert said(outcome) == [(Certificate(WORKER, "c", 6_499, "timed out", ""), [0])]


def test_what_no_client_was_sent_returns_without_a_word() -> None:
    """ADR 88, ADR 69"""
    q = limited()
    q.consume(prefetch=2, client=WORKER)
    q.fill(2)
    q.now_ms += 5
    q.requeue((0, 1), cause=ReturnCause.UNWRITTEN)
    q.channel_down(written={})
    assert [span.since_ms for span in q.machine.store] == [0]
    assert q.ready == 2


def test_what_expires_or_is_dropped_in_the_queue_has_no_consumer() -> None:
    """ADR 88"""
    q = naming("classic", max_length=1, message_ttl_ms=10)
    outcome = q.fill(2)
    assert said(outcome) == [(None, [0])]
    assert said(q.tick(10)) == [(None, [1])]


def at_least_once() -> QueueDriver:
    return naming(at_least_once=True, overflow="reject-publish")


def test_letters_that_wait_keep_it_in_parts_and_through_snapshots() -> None:
    """ADR 88, R-ALO-3"""
    q = at_least_once()
    q.consume(prefetch=4, client=WORKER)
    q.fill(4)
    q.now_ms += 20
    q.discard((0, 3), details=REASONED)
    q.send(queue_commands.encode_dead_letters_checkout(1))
    restored(q)
    told = Certificate(WORKER, "c", 20, "rejected", REASONED.reason)
    assert [(letter.certificate, letter.first) for letter in q.machine.letters] == [
        (told, 0),
        (told, 1),
    ]
    (taken,) = q.machine.query_letters_taken()
    assert taken.certificate == told
    # The consumer is known, too, with the time at which it took the rest.
    q.now_ms += 5
    q.discard((3, 4))
    assert [letter.certificate for letter in q.machine.letters][-1] == Certificate(
        WORKER, "c", 25, "rejected", ""
    )


def old_snapshot(q: QueueDriver) -> bytes:
    """Return a snapshot of before there were certificates."""
    raw = q.machine.snapshot()
    (size,) = struct.unpack_from("<I", raw, 1)
    fields = json.loads(raw[5 : 5 + size])
    del fields["options"]["names_consumers"]
    for row in fields["consumers"]:
        del row["client"]
        row["held"] = [held[:8] for held in row["held"]]
    for name in ("taken", "waiting"):
        fields[name] = [[row[0][:8], *row[1:4]] for row in fields[name]]
    text = json.dumps(fields, separators=(",", ":")).encode()
    return struct.pack("<BI", raw[0], len(text)) + text + raw[5 + size :]


def test_a_snapshot_of_before_is_read() -> None:
    """ADR 88"""
    q = at_least_once()
    q.consume(prefetch=2, client=WORKER)
    q.fill(2)
    q.discard((0, 1))
    data = old_snapshot(q)
    q.machine = QueueMachine(QueueOptions())
    q.machine.restore(data)
    q.machine.check_invariants()
    assert [letter.certificate for letter in q.machine.letters] == [None]
    assert (q.unacked, q.machine.options.names_consumers) == (1, False)


@pytest.mark.parametrize("kind", [Kind.RETURN, Kind.DISCARD])
def test_commands_with_details_are_total(kind: Kind) -> None:
    """A client's words harm nothing, damaged or not."""
    details = Details("why", Client("a", "b", "c"))
    plain = queue_commands.encode_ranges(kind, consumer(""), [(0, 1)], ReturnCause.REJECT)
    whole = queue_commands.encode_ranges(kind, consumer(""), [(0, 1)], ReturnCause.REJECT, details)
    assert whole.startswith(plain)
    for size in range(len(plain) + 1, len(whole)):
        answer = queue_commands.decode_reply(QueueDriver().send(whole[:size]).reply)
        assert answer["refused"] == 400
    several = queue_commands.encode_ranges(kind, consumer(), [(0, 1), (3, 5)], 0, details)
    assert queue_commands.decode_details(several) == ["why", ["a", "b", "c"]]
    for at in range(len(whole)):
        for bit in range(8):
            q = QueueDriver()
            bad = bytearray(whole)
            bad[at] ^= 1 << bit
            q.send(bytes(bad))


def test_damaged_ends_of_channels_are_refused() -> None:
    """As above."""
    whole = queue_commands.encode_channel_down("n1", 7, 1, {}, WORKER)
    check_total(whole)
    bad = whole.replace(b'"pika"', b"12")
    assert queue_commands.decode_reply(QueueDriver().send(bad).reply)["refused"] == 400


HOSTILE = "\x1b[31m\u202e\udce9\n" + "x" * 1_000


def test_what_a_client_says_of_itself_is_bounded_and_harmless() -> None:
    """SEC-44: escape sequences, what is no Unicode, and any length."""
    found = certificates.client(HOSTILE, "", "1")
    assert found.connection.startswith("\ufffd[31m\ufffd\ufffd\ufffdxxx")
    assert len(found.connection) == NAME_CHARACTERS_MAX
    assert (found.product, found.version) == ("", "1")


def test_a_reason_is_cut_between_characters() -> None:
    """ADR 88"""
    reason = certificates.plain_reason("a" + "\u00e9" * 1_000)
    assert reason == "a" + "\u00e9" * ((REASON_BYTES_MAX - 1) // 2)
    assert certificates.plain_reason(HOSTILE).isprintable()


def test_a_queue_does_not_believe_that_a_member_has_cut_it() -> None:
    """ADR 88: what is in a log is bounded, whoever wrote it."""
    q = naming()
    q.consume(prefetch=1, client=Client(HOSTILE, "p" * 999, "v"))
    q.fill(1)
    ((certificate, _),) = said(q.discard((0, 1), details=Details(HOSTILE)))
    assert certificate is not None
    assert certificate.client is not None
    assert len(certificate.client.connection) == len(certificate.client.product) == 255
    assert len(certificate.reason.encode()) <= REASON_BYTES_MAX
