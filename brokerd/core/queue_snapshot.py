"""The queue machine's state as bytes and back: what a snapshot of the raft group carries.

Layout: version byte, u32 size of a JSON part, JSON part; then, as rows of i64, the entries and the
ready spans (there may be a million of each); then the size columns of the entries whose messages
differ in size, in the order of the entries, as they stood in the enqueue commands.
Message bodies are not in it: the snapshot goes along with the live log entries
(replication.md §2.8).  Only `queue.py` uses it.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict
from typing import Any

from brokerd.core.consumers import Consumer
from brokerd.core.dead_letters import Letter
from brokerd.core.effects import ConsumerId
from brokerd.core.enqueuers import EnqueuerKey
from brokerd.core.queue_commands import QueueOptions
from brokerd.core.queue_state import QueueState
from brokerd.core.queue_store import Entry, Place, Span

VERSION = 1

_HEAD = struct.Struct("<BI")

#: Numbers per row, and what stands for None in them.
_ENTRY_WIDTH = 6
_SPAN_WIDTH = 8
_NONE = -1
#: Messages of one entry: an enqueue command of the largest size with empty messages has fewer.
ENTRY_MESSAGES_MAX = 1 << 25
#: Sizes of headers, bodies and annotations.
COLUMNS_MAX = 3


def encode(state: QueueState) -> bytes:
    """Return the whole replicated state."""
    blobs: list[bytes] = []
    entries: list[int] = []
    for entry in state.store.entries.values():
        columns = entry.columns or ()
        blobs += columns
        entries += (entry.index, entry.first, entry.enqueued_ms, entry.count, entry.size)
        entries.append(len(columns))
    spans: list[int] = []
    for place, span in state.store.lanes():
        spans += (_NONE if place is None else place, span.entry.index, span.first, span.end)
        spans.append(_NONE if span.expires_ms is None else span.expires_ms)
        spans += (span.level, span.acquired_count, span.delivery_count)
    consumers = state.consumers
    active = consumers.active
    fields: dict[str, Any] = {
        "options": asdict(state.options),
        "counters": state.counters,
        "entries": len(entries) // _ENTRY_WIDTH,
        "spans": len(spans) // _SPAN_WIDTH,
        "consumers": [_consumer_row(consumer) for consumer in consumers.rows()],
        "queues": consumers.service_queues(),
        "active": active.id if active is not None else None,
        "draining": consumers.draining,
        "next_order": consumers.next_order,
        "taken": [_letter_row(letter) for letter in state.letters.taken],
        "delayed": [[_row(span), due_ms] for due_ms, span in state.delayed],
        "timeout_check_ms": state.timeout_check_ms,
        "refusing": state.refusing,
        "waiting": [_letter_row(letter) for letter in state.letters.waiting],
        "taken_term": state.letters.taken_term,
        "letters_order": state.letters.next_order,
        "enqueuers": list(state.enqueuers.rows()),
        "next_number": state.next_number,
        "clock_ms": state.clock_ms,
        "last_used_ms": state.last_used_ms,
        "suspected": state.suspected,
        "deleted": state.deleted,
        "more_to_deliver": state.more_to_deliver,
    }
    text = json.dumps(fields, separators=(",", ":")).encode()
    numbers = struct.pack(f"<{len(entries) + len(spans)}q", *entries, *spans)
    return b"".join((_HEAD.pack(VERSION, len(text)), text, numbers, *blobs))


def decode_into(state: QueueState, data: bytes) -> None:
    """Fill a fresh state; raise ValueError for another version."""
    version, size = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"queue snapshot version {version} is not known")
    at = _HEAD.size + size
    fields: dict[str, Any] = json.loads(data[_HEAD.size : at])
    state.options = QueueOptions(**fields["options"])
    state.counters.update(fields["counters"])
    _restore_messages(state, fields["entries"], fields["spans"], data[at:])
    entries = state.store.entries
    _restore_consumers(state, fields)
    letters = state.letters
    for name in ("taken", "waiting"):
        for row, reason, time_ms, order in fields[name]:
            letters.restore(Letter(_span(entries, row), reason, time_ms, order), name == "taken")
    # The next three are not in what the first version wrote.
    for row, due_ms in fields.get("delayed", ()):
        state.delayed.add(_span(entries, row), due_ms)
    state.timeout_check_ms = fields.get("timeout_check_ms")
    state.refusing = fields.get("refusing", False)
    letters.taken_term = fields["taken_term"]
    letters.next_order = fields["letters_order"]
    for key, next_sequence, refused in fields["enqueuers"]:
        ranges = [(low, high) for low, high in refused]
        state.enqueuers.restore(EnqueuerKey(*key), next_sequence, ranges)
    state.next_number = fields["next_number"]
    state.clock_ms = fields["clock_ms"]
    state.last_used_ms = fields["last_used_ms"]
    state.suspected = fields["suspected"]
    state.deleted = fields["deleted"]
    state.more_to_deliver = fields["more_to_deliver"]


def _restore_messages(state: QueueState, entry_count: int, span_count: int, data: bytes) -> None:
    entries = state.store.entries
    middle = 8 * _ENTRY_WIDTH * entry_count
    at = middle + 8 * _SPAN_WIDTH * span_count
    rows = struct.iter_unpack(f"<{_ENTRY_WIDTH}q", data[:middle])
    for index, first, enqueued_ms, count, size, width in rows:
        if not (0 <= count <= ENTRY_MESSAGES_MAX and 0 <= width <= COLUMNS_MAX):
            raise ValueError(f"an entry of {count} messages in {width} columns")
        columns = [data[at + 4 * count * i : at + 4 * count * (i + 1)] for i in range(width)]
        at += 4 * count * width
        if not columns:
            columns = [size.to_bytes(4, "little") * count]
        entries[index] = Entry(index, first, enqueued_ms, count, columns)
    spans = data[middle : middle + 8 * _SPAN_WIDTH * span_count]
    for row in struct.iter_unpack(f"<{_SPAN_WIDTH}q", spans):
        place, index, first, end, expires_ms, level, acquired_count, delivery_count = row
        expiry = None if expires_ms == _NONE else expires_ms
        entry = entries[index]
        entry.live += end - first
        span = Span(entry, first, end, expiry, level, acquired_count, delivery_count)
        state.store.add(span, None if place == _NONE else Place(place))


def _restore_consumers(state: QueueState, fields: dict[str, Any]) -> None:
    consumers: list[Consumer] = []
    for row in fields["consumers"]:
        consumer = Consumer(ConsumerId(*row["id"]))
        for name in _CONSUMER_FIELDS:
            setattr(consumer, name, row[name])
        consumer.timeout_ms = row.get("timeout_ms")
        for held in row["held"]:
            span = _span(state.store.entries, held)
            consumer.held.add(span)
            state.unacked += span.end - span.first
            state.unacked_bytes += span.size_bytes()
        consumers.append(consumer)
    options = state.options
    state.consumers.configure(options.single_active_consumer, options.queue_type == "quorum")
    active = fields["active"]
    state.consumers.restore(
        consumers,
        [[ConsumerId(*consumer) for consumer in queue] for queue in fields["queues"]],
        None if active is None else ConsumerId(*active),
        fields["draining"],
        fields["next_order"],
    )


_CONSUMER_FIELDS = (
    "prefetch", "no_ack", "exclusive", "priority", "user", "order", "registered", "suspected",
)  # fmt: skip


def _consumer_row(consumer: Consumer) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(consumer, name) for name in _CONSUMER_FIELDS}
    row["timeout_ms"] = consumer.timeout_ms
    row["id"] = consumer.id
    row["held"] = [_row(span) for span in consumer.held]
    return row


def _row(span: Span) -> list[int | None]:
    return [
        span.entry.index,
        span.first,
        span.end,
        span.expires_ms,
        span.level,
        span.acquired_count,
        span.delivery_count,
        span.taken_ms,
    ]


def _span(entries: dict[int, Entry], row: list[Any]) -> Span:
    entry = entries[row[0]]
    entry.live += row[2] - row[1]
    return Span(entry, *row[1:])


def _letter_row(letter: Letter) -> list[Any]:
    return [_row(letter.span), letter.reason, letter.time_ms, letter.order]
