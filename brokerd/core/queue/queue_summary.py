"""What a walk over all queues reads of each, as bytes: lists, metrics and sums need no more.

Kept beside what a folded queue is made again of (ADR 61), so that ten thousand are listed without
one of them being made.  In this process only: numbers in the machine's byte order, one for each of
FIGURES, then two for each priority that has ready messages, then the tag of the consumer that is
active alone (R-CS-7).  Made by `QueueMachine.summary`, read into server/queues/table.py.
"""

from __future__ import annotations

import struct

from brokerd.core.queue.queue_state import COUNTERS, QueueState

#: `messages`: ready, unacked and dl_pending together; `is_unattended`: 1 if some are ready and no
#: consumer is there; `memory_bytes`: beside the bodies; `head_ms`: when the message that is served
#: next was enqueued; `used_ms`: end of the last use; `returned`: ready, have come back, and are
#: served before all priorities; `publishers`: channels that have sent to it; `due_ms`: when the
#: first of those that wait is due, or was, if an exchange keeps them here and has not handed it on;
#: `priorities`: those that have ready messages; the rest as in a queue's overview and books.
FIGURES = (
    *(
        "messages",
        "ready",
        "unacked",
        "dl_pending",
        "dl_old_terms",
        "ready_bytes",
        "unacked_bytes",
        "consumers",
    ),
    *("is_unattended", "delivery_limit", "memory_bytes", "head_ms", "used_ms", "delayed"),
    *("returned", "publishers", "due_ms", "priorities"),
    *COUNTERS,
)
#: Of a limit that is not set, and of a time that there is not.
UNKNOWN = -1
#: Stands for any larger limit, which no message reaches.
NUMBER_MAX = 2**63 - 1

_NUMBERS = struct.Struct(f"{len(FIGURES)}q")
_FIRST = struct.Struct("q")
_PRIORITIES_AT = 8 * FIGURES.index("priorities")
_DELAYED_AT = 8 * FIGURES.index("delayed")
#: A priority, and how many messages are ready in it.
_LEVEL = struct.Struct("qq")
#: Bytes of the numbers.
SIZE = _NUMBERS.size


def encode(state: QueueState) -> bytes:
    """Return a queue's summary as it is."""
    store, options, used_ms = state.store, state.options, state.last_used_ms
    head, limit = store.head(), options.delivery_limit
    # What a job holds is told with what consumers do, as in the overview.
    ready, unacked, letters = store.ready, state.unacked + state.held_by_job, state.letters.count
    consumers, counters = state.consumers.registered, state.counters
    levels, due_ms = store.level_counts(), state.first_due_ms()
    numbers = _NUMBERS.pack(
        ready + unacked + letters,
        ready,
        unacked,
        letters,
        state.letters_of_old,
        store.ready_bytes,
        state.unacked_bytes + state.bytes_held_by_job,
        consumers,
        1 if ready and not consumers else 0,
        UNKNOWN if limit is None else min(limit, NUMBER_MAX),
        store.memory_bytes(),
        UNKNOWN if head is None else head.entry.enqueued_ms,
        UNKNOWN if used_ms is None else used_ms,
        state.delayed.count,
        ready - sum(count for _, count in levels),
        len(state.enqueuers),
        UNKNOWN if due_ms is None else due_ms,
        len(levels),
        *[counters[name] for name in COUNTERS],
    )
    for level in levels:
        numbers += _LEVEL.pack(*level)
    active = state.consumers.active if options.single_active_consumer else None
    if active is None:
        return numbers
    return numbers + active.id.tag.encode("utf-8", "surrogateescape")


def messages_of(summary: bytes) -> int:
    """Return how many messages are in the queue, delayed ones and waiting letters included."""
    (messages,) = _FIRST.unpack_from(summary)
    (delayed,) = _FIRST.unpack_from(summary, _DELAYED_AT)
    return int(messages + delayed)


def levels_of(summary: bytes) -> tuple[tuple[int, int], ...]:
    """Return how many messages are ready in each priority that has some, highest first."""
    return tuple(_LEVEL.iter_unpack(summary[SIZE : _end_of_levels(summary)]))


def single_of(summary: bytes) -> str | None:
    """Return the tag of the consumer that is active alone; none is empty."""
    return summary[_end_of_levels(summary) :].decode("utf-8", "surrogateescape") or None


def _end_of_levels(summary: bytes) -> int:
    (priorities,) = _FIRST.unpack_from(summary, _PRIORITIES_AT)
    return SIZE + _LEVEL.size * int(priorities)
