"""Commands of a queue as bytes: batches read back, and bytes that are none."""

from __future__ import annotations

import sys

import pytest

from brokerd.core.message import Content, Range
from brokerd.core.queue import enqueue_commands, queue_commands, queue_decoders, settling_gets
from brokerd.core.queue.enqueue_commands import EnqueueView
from brokerd.core.queue.queue_commands import Kind
from tests.unit.core.queue_driver import QueueDriver, consumer, content

ROUTES: tuple[tuple[str, str], ...] = (("", "q"), ("ex", "k\udcff"))


def messages(count: int, annotated: bool) -> list[Content]:
    return [
        (ROUTES[i % 2], b"h" * i, b"b" * (2 * i), b"{}" if annotated and i % 3 == 0 else b"")
        for i in range(count)
    ]


@pytest.mark.parametrize("annotated", [True, False])
def test_a_batch_can_be_read_back_from_any_place(annotated: bool) -> None:
    """What `contents` slices is what was encoded, for each start and count."""
    batch = messages(7, annotated)
    view = EnqueueView(enqueue_commands.encode_enqueue("n1", 7, 3, 5, batch))
    assert (view.node, view.incarnation, view.channel, view.first_sequence) == ("n1", 7, 3, 5)
    for start in range(7):
        for count in range(1, 8 - start):
            assert view.contents(start, count) == batch[start : start + count]
    single = [batch[0]]
    assert (
        EnqueueView(enqueue_commands.encode_enqueue("n", 1, 1, 1, single)).contents(0, 1) == single
    )


def test_other_bytes_are_no_batch() -> None:
    command = enqueue_commands.encode_enqueue("n1", 7, 3, 5, messages(1, False))
    with pytest.raises(ValueError, match="not an enqueue command of version 1"):
        EnqueueView(bytes((9,)) + command[1:])


@pytest.mark.parametrize("raw", [b"[]", b"5", b"null", b'"x"', b'{"deaths":5}', b'{"deaths":[5]}'])
def test_a_batch_with_other_annotations_is_refused(raw: bytes) -> None:
    """SEC-44: a committed command that made a machine raise would stop its group everywhere."""
    q = QueueDriver()
    batch = [(*content()[:3], raw)]
    reply = q.send(enqueue_commands.encode_enqueue("n1", 7, 1, 0, batch)).reply
    assert b"malformed queue command" in reply
    assert q.machine.store.ready == 0


def test_sizes_are_little_endian_on_any_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [(5).to_bytes(4, "little") + (6).to_bytes(4, "little")]
    assert enqueue_commands.total_size(columns) == 11
    monkeypatch.setattr(sys, "byteorder", "big")
    assert enqueue_commands.total_size(columns) == (5 << 24) + (6 << 24)


def test_the_answer_to_a_get_is_what_any_reader_of_json_finds_in_it() -> None:
    run = queue_commands.Run(7, 1, 2, 300, 0, 1)
    answer = queue_commands.encode_get_reply(run, 12)
    assert queue_commands.decode_reply(answer) == {"run": list(run), "ready": 12}
    assert queue_commands.decode_get_reply(answer) == (run, 12)


def test_a_get_that_brought_nothing_is_left_to_the_general_reader() -> None:
    nothing = queue_commands.encode_get_reply(None, 0)
    assert queue_commands.decode_reply(nothing) == {"run": None, "ready": 0}
    assert queue_commands.decode_get_reply(nothing) is None
    assert queue_commands.decode_get_reply(b'{"refused":405,"text":"x"}') is None


@pytest.mark.parametrize(
    "ranges", [[(1, 2)], [(0, 1), (5, 1 << 63)], [(n, n + 1) for n in range(64)]]
)
def test_a_get_says_what_it_settles_first(ranges: list[Range]) -> None:
    get = queue_commands.encode_get(consumer(), True)
    settling = settling_gets.encode(get, ranges)
    assert settling_gets.decode(settling) == (get, ranges)
    assert settling_gets.decode(get) == (get, [])
    kind, command = queue_decoders.decode(settling)
    assert (kind, command.consumer, command.no_ack) == (Kind.GET, consumer(), True)
    assert command.ranges == ranges
    assert queue_decoders.decode(get)[1].ranges == []


def test_a_get_that_is_cut_or_settles_what_is_no_range_is_refused() -> None:
    get = settling_gets.encode(queue_commands.encode_get(consumer(), True), [(3, 2)])
    for broken in (get, get[:12], get[:2], get[:2] + b"\x01" + get[2:]):
        with pytest.raises(queue_decoders.MALFORMED):
            queue_decoders.decode(broken)
