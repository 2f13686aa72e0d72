"""The queue machine's state as bytes and back: what a snapshot of the raft group carries.

Layout: version byte, u32 size of a JSON part, JSON part; then, as rows of i64, the entries and the
ready spans (there may be a million of each); then the size columns of the entries whose messages
differ in size, in the order of the entries, as they stood in the enqueue commands; then the columns
of packed entries (ready_spans.py), which stand in for a row of an entry and one of a span each;
last what is known of redriven copies (watched_copies.py).
Message bodies are not in it: the snapshot goes along with the live log entries
(design/replication.md §2.8).  Only `queue_machine.py` uses it.
"""

from __future__ import annotations

import json
import struct
import sys
from array import array
from dataclasses import asdict
from typing import Any

from brokerd.core.queue import certificates, watched_copies
from brokerd.core.queue.certificates import Certificate, Client
from brokerd.core.queue.consumers import Consumer
from brokerd.core.queue.dead_letters import DeadSpan
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.enqueuers import EnqueuerKey
from brokerd.core.queue.queue_jobs import Job, Receipt
from brokerd.core.queue.queue_state import QueueState
from brokerd.core.queue.queue_store import Block, Entry, Place, Span, Store
from brokerd.core.queue_options import QueueOptions, kept

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
#: Array codes and bytes per number of a block's columns, in the order of its constructor.
_BLOCK_COLUMNS = (("q", 8), ("q", 8), ("q", 8), ("q", 8), ("I", 4), ("I", 4))


def encode(state: QueueState) -> bytes:
    """Return the whole replicated state."""
    blobs: list[bytes] = []
    entries: list[int] = []
    for _, entry in sorted(state.store.entries.items()):
        columns = entry.columns or ()
        blobs += columns
        entries += (entry.index, entry.first, entry.enqueued_ms, entry.count, entry.size)
        entries.append(len(columns))
    spans: list[int] = []
    packed: list[bytes] = []
    #: Level, how many rows of spans come before it, and how many entries it has.
    blocks: list[tuple[int, int, int]] = []
    for place, level, item in state.store.items():
        if isinstance(item, Block):
            blocks.append((level, len(spans) // _SPAN_WIDTH, len(item)))
            packed += (_little(column).tobytes() for column in item.columns())
            continue
        spans += (_NONE if place is None else place, item.entry.index, item.first, item.end)
        spans.append(_NONE if item.expires_ms is None else item.expires_ms)
        spans += (level, item.standing, item.delivery_count)
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
        "delayed": [[_row(span), *at] for span, *at in state.delayed.rows()],
        "timeout_check_ms": state.timeout_check_ms,
        "refusing": state.refusing,
        "waiting": [_letter_row(letter) for letter in state.letters.waiting or ()],
        "taken_term": state.letters.taken_term,
        "letters_order": state.letters.next_order,
        "enqueuers": list(state.enqueuers.rows()),
        "senders": list(state.senders.rows()),
        "next_number": state.next_number,
        "clock_ms": state.clock_ms,
        "last_used_ms": state.last_used_ms,
        "suspected": state.suspected,
        "deleted": state.deleted,
        "more_to_deliver": state.more_to_deliver,
        "doubtful_end": state.doubtful_end,
        "blocks": blocks,
        "job": None if state.job is None else _job_row(state.job),
        "last_job_id": state.last_job_id,
        "receipts": state.receipts,
    }
    watched = b""
    if state.watched is not None:
        fields["watched"], watched = state.watched.snapshot()
        fields["watched_bytes"] = len(watched)
    text = json.dumps(fields, separators=(",", ":")).encode()
    numbers = struct.pack(f"<{len(entries) + len(spans)}q", *entries, *spans)
    return b"".join((_HEAD.pack(VERSION, len(text)), text, numbers, *blobs, *packed, watched))


def decode_into(state: QueueState, data: bytes) -> None:
    """Fill a fresh state; raise ValueError for another version."""
    version, size = _HEAD.unpack_from(data)
    if version != VERSION:
        raise ValueError(f"queue snapshot version {version} is not known")
    at = _HEAD.size + size
    fields: dict[str, Any] = json.loads(data[_HEAD.size : at])
    state.options = kept(QueueOptions(**fields["options"]))
    state.counters.update(fields["counters"])
    _restore_messages(state, fields, memoryview(data)[at:])
    entries = state.store.entries
    _restore_consumers(state, fields)
    letters = state.letters
    for name in ("taken", "waiting"):
        for row, reason, time_ms, order, *given in fields[name]:
            span, certificate = _span(entries, row), _certificate(given)
            letter = DeadSpan(span, reason, time_ms, order, certificate)
            letters.restore(letter, name == "taken")
    for row in fields["senders"]:
        state.senders.restore(*row)
    for row, *at in fields["delayed"]:
        state.delayed.add(_span(entries, row), *at)
    state.timeout_check_ms = fields["timeout_check_ms"]
    state.refusing = fields["refusing"]
    state.doubtful_end = fields["doubtful_end"]
    # Snapshots of before there were jobs have none of these.
    state.last_job_id = fields.get("last_job_id", 0)
    state.receipts = tuple([Receipt(number, text) for number, text in fields.get("receipts", ())])
    if (job := fields.get("job")) is not None:
        state.job = _job(entries, job)
    if (watched := fields.get("watched")) is not None:
        end = len(data) - fields["watched_bytes"]
        state.watched = watched_copies.restored(watched, data[end:])
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


def _restore_messages(state: QueueState, fields: dict[str, Any], data: memoryview) -> None:
    store = state.store
    middle = 8 * _ENTRY_WIDTH * fields["entries"]
    end = middle + 8 * _SPAN_WIDTH * fields["spans"]
    at = _restore_entries(store, data, middle, end)
    entries = store.entries
    items: list[tuple[Place | None, int, Span | Block]] = []
    for row in struct.iter_unpack(f"<{_SPAN_WIDTH}q", data[middle:end]):
        place, index, first, last, expires_ms, level, standing, delivery_count = row
        expiry = None if expires_ms == _NONE else expires_ms
        entry = entries[index]
        entry.live += last - first
        span = Span(
            entry, first, last, expiry, level, max(0, standing), delivery_count, 0, standing < 0
        )
        items.append((None if place == _NONE else Place(place), level, span))
    blocks = fields["blocks"]
    if not blocks:
        for place_of_span, _, item in items:
            assert isinstance(item, Span)
            store.add(item, place_of_span)
        return
    merged: list[tuple[Place | None, int, Span | Block]] = []
    done = 0
    for level, before, count in blocks:
        merged += items[done:before]
        done = before
        columns = []
        for code, width in _BLOCK_COLUMNS:
            column = array(code)
            column.frombytes(data[at : at + width * count])
            columns.append(_little(column))
            at += width * count
        merged.append((None, level, Block(*columns)))
    store.restore(merged + items[done:])


def _restore_entries(store: Store, data: memoryview, rows_end: int, blobs_start: int) -> int:
    """Restore the entries that are not packed; return where their sizes end."""
    at = blobs_start
    for row in struct.iter_unpack(f"<{_ENTRY_WIDTH}q", data[:rows_end]):
        index, first, enqueued_ms, count, size, width = row
        if not (0 <= count <= ENTRY_MESSAGES_MAX and 0 <= width <= COLUMNS_MAX):
            raise ValueError(f"an entry of {count} messages in {width} columns")
        if width:
            columns = [
                bytes(data[at + 4 * count * i : at + 4 * count * (i + 1)]) for i in range(width)
            ]
            at += 4 * count * width
            entry = Entry(index, first, enqueued_ms, count, columns)
        else:
            entry = Entry.of_equal_sizes(index, first, enqueued_ms, count, size)
        store.add_entry(entry)
    return at


def _little(column: array[int]) -> array[int]:
    """Turn a column between the machine's byte order and the format's."""
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column


def _restore_consumers(state: QueueState, fields: dict[str, Any]) -> None:
    consumers: list[Consumer] = []
    for row in fields["consumers"]:
        consumer = Consumer(ConsumerId(*row["id"]))
        for name in _CONSUMER_FIELDS:
            setattr(consumer, name, row[name])
        consumer.client = _client(row.get("client"))
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
    *("prefetch", "no_ack", "exclusive", "priority", "user", "order", "registered", "suspected"),
    *("timeout_ms", "credit"),
)  # fmt: skip


def _consumer_row(consumer: Consumer) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(consumer, name) for name in _CONSUMER_FIELDS}
    row["id"] = consumer.id
    if consumer.client is not None:
        row["client"] = consumer.client
    row["held"] = [_row(span) for span in consumer.held]
    return row


def _row(span: Span) -> list[int | None]:
    return [
        span.entry.index,
        span.first,
        span.end,
        span.expires_ms,
        span.level,
        span.standing,
        span.delivery_count,
        span.taken_ms,
        span.since_ms,
    ]


def _span(entries: dict[int, Entry], row: list[Any]) -> Span:
    entry = entries[row[0]]
    entry.live += row[2] - row[1]
    # Rows of before there were certificates end with `taken_ms`.
    _, first, end, expires_ms, level, standing, delivery_count, taken_ms, *since = row
    return Span(
        entry,
        first,
        end,
        expires_ms,
        level,
        max(0, standing),
        delivery_count,
        taken_ms,
        is_late=standing < 0,
        since_ms=since[0] if since else 0,
    )


def _letter_row(letter: DeadSpan) -> list[Any]:
    row = [_row(letter.span), letter.reason, letter.time_ms, letter.order]
    return row if letter.certificate is None else [*row, *letter.certificate]


def _certificate(row: list[Any]) -> Certificate | None:
    """Return what `_letter_row` has written at its end; None: nothing."""
    return Certificate(_client(row[0]), *row[1:]) if row else None


def _client(row: list[str] | None) -> Client | None:
    return None if row is None else certificates.client(*row)


_JOB_FIELDS = ("id", "order", "user", "started_ms", "end")


def _job_row(job: Job) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(job, name) for name in _JOB_FIELDS}
    row |= {"stopped_by": job.stopped_by, "progress": job.progress, "gone": job.gone}
    row["waits"] = [(number, *wait) for number, wait in sorted(job.waits.items())]
    return row | {"held": [_row(span) for span in job.held]}


def _job(entries: dict[int, Entry], row: dict[str, Any]) -> Job:
    job = Job(*[row[name] for name in _JOB_FIELDS])
    job.stopped_by = row["stopped_by"]
    job.progress = row["progress"]
    job.gone = row["gone"]
    job.hold(_span(entries, held) for held in row["held"])
    # Snapshots of before jobs took what waits have none of these.
    for number, due_ms, key in row.get("waits", ()):
        job.restore_wait(number, due_ms, key)
    return job
