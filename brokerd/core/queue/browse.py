"""Which messages of a queue a look at it finds, and where the next look goes on.

A walk over the machine's state that changes nothing: no number, no count, no cache.  It goes in
delivery order: what consumers hold, what is ready (what came back before all others, then each
priority, highest first), what waits for a delayed retry.  A place names the next message and the
part of the queue it stands in, so it pins nothing: where that message has gone, the walk goes on
with what was behind it.  Bodies, clocks and rights are the caller's (server/queues/browsing.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import merge
from itertools import islice
from typing import NamedTuple, TypeAlias

from brokerd.core.queue.consumers import Consumer
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.core.queue.queue_state import QueueState
from brokerd.core.queue.queue_store import Span
from brokerd.core.queue.ready_spans import Block, ReadySpans

READY, UNACKED, DELAYED, ALL = "ready", "unacked", "delayed", "all"
STATES = (READY, UNACKED, DELAYED, ALL)


class Stage(IntEnum):
    """The parts of a queue, in delivery order; back and fresh are parts of each priority."""

    UNACKED = 0
    #: Came back, and is served before all priorities.
    RETURNS = 1
    #: Came back to where it was.
    BACK = 2
    FRESH = 3
    DELAYED = 4


_STATE_OF = {Stage.UNACKED: UNACKED, Stage.DELAYED: DELAYED}


class Place(NamedTuple):
    """The message that is looked at next."""

    stage: int
    #: Its priority, 0 outside of BACK and FRESH.
    level: int
    number: int
    #: How often it had come back (Span.standing): a message that came back since stands elsewhere.
    standing: int


@dataclass(slots=True)
class Wanted:
    """What a look is for."""

    state: str = READY
    #: The wall clock: what has expired by then is not shown, though it may still be there.
    now_ms: int = 0
    #: Messages with a lower number, and those that came earlier, are passed over.
    first_number: int = 0
    first_ms: int = 0


@dataclass(slots=True)
class Browsed:
    """One message as the queue knows it."""

    number: int
    #: Where a look begins with it.
    place: Place
    state: str
    #: Of one message.
    run: Run
    enqueued_ms: int
    expires_ms: int | None
    #: Bytes of all that is stored of it.
    size_bytes: int
    #: Who holds it; tag "": somebody who got it by basic.get.
    consumer: ConsumerId | None = None
    #: When a delayed one is ready again.
    due_ms: int | None = None


@dataclass(slots=True)
class Walked:
    """What a walk found; `place` is None at the end of the queue."""

    found: list[Browsed]
    place: Place | None


#: A span, its first message that is meant, who holds it, when it is ready again.
_Seen: TypeAlias = tuple[Span, int, ConsumerId | None, int | None]


def walk(
    machine: QueueState, wanted: Wanted, place: Place | None, count: int, spans_max: int
) -> Walked:
    """Return up to `count` messages from a place on; None: from the head.

    spans_max: spans that are looked at, at least 1; with it a walk ends early, at a place.
    """
    now_ms = max(wanted.now_ms, machine.clock_ms)
    found: list[Browsed] = []
    spans = 0
    for stage, level in _parts(machine, wanted.state):
        start = None
        if place is not None:
            if _order(stage, level) < _order(place.stage, place.level):
                continue
            start = place if (stage, level) == (place.stage, place.level) else None
        for seen in _forward(machine, wanted, stage, level, start):
            span, first = seen[0], max(seen[1], wanted.first_number)
            if spans == spans_max:
                return Walked(found, Place(stage, level, seen[1], span.standing))
            spans += 1
            if not _is_hidden(span, stage, wanted, now_ms):
                room = count - len(found)
                end = min(span.end, first + room)
                found += [_browsed(seen, stage, level, number) for number in range(first, end)]
                if end < span.end:
                    return Walked(found, Place(stage, level, end, span.standing))
    return Walked(found, None)


def tail(machine: QueueState, wanted: Wanted, count: int, spans_max: int) -> Place | None:
    """Return the place behind which, at most `count` messages of the look are left; None: the head.

    spans_max: spans that are looked at; with it fewer are left.
    """
    now_ms = max(wanted.now_ms, machine.clock_ms)
    place = None
    spans = 0
    for stage, level in reversed(_parts(machine, wanted.state)):
        for span in _backward(machine, stage, level):
            if not _is_hidden(span, stage, wanted, now_ms):
                first = max(span.first, span.end - count)
                count -= span.end - first
                place = Place(stage, level, first, span.standing)
            spans += 1
            if not count or spans == spans_max:
                return place
    return place


def _is_hidden(span: Span, stage: int, wanted: Wanted, now_ms: int) -> bool:
    if span.end <= wanted.first_number or span.entry.enqueued_ms < wanted.first_ms:
        return True
    # What is held or delayed expires when it is ready again.
    is_ready = stage not in _STATE_OF
    return is_ready and span.expires_ms is not None and span.expires_ms <= now_ms


def _browsed(seen: _Seen, stage: Stage, level: int, number: int) -> Browsed:
    span, _, consumer, due_ms = seen
    entry = span.entry
    position = number - entry.first
    return Browsed(
        number=number,
        place=Place(stage, level, number, span.standing),
        state=_STATE_OF.get(stage, READY),
        run=Run(number, 1, entry.index, position, span.acquired_count, span.delivery_count),
        enqueued_ms=entry.enqueued_ms,
        expires_ms=span.expires_ms,
        size_bytes=entry.size_of(number),
        consumer=consumer,
        due_ms=due_ms,
    )


# ---- the parts of a queue -----------------------------------------------------------------------


def _order(stage: int, level: int) -> tuple[int, int, int]:
    """Return what parts are sorted by: those of one priority stand together."""
    return (min(stage, Stage.BACK), -level, stage) if stage < Stage.DELAYED else (stage, 0, stage)


def _parts(machine: QueueState, state: str) -> list[tuple[Stage, int]]:
    parts: list[tuple[Stage, int]] = []
    if state in (UNACKED, ALL):
        parts.append((Stage.UNACKED, 0))
    if state in (READY, ALL):
        parts.append((Stage.RETURNS, 0))
        for level, _ in machine.store.level_counts():
            parts += ((Stage.BACK, level), (Stage.FRESH, level))
    if state in (DELAYED, ALL):
        parts.append((Stage.DELAYED, 0))
    return parts


def _forward(
    machine: QueueState, wanted: Wanted, stage: Stage, level: int, place: Place | None
) -> Iterator[_Seen]:
    """Yield the spans of a part from a place on."""
    low = 0 if place is None else place.number
    if stage is Stage.UNACKED:
        low = max(low, wanted.first_number)
        held = [_held(consumer, low) for consumer in machine.consumers.rows()]
        yield from merge(*held, key=_first)
    elif stage is Stage.BACK:
        for span in machine.store.back(level).starting_at(low):
            yield span, max(span.first, low), None, None
    elif stage is Stage.FRESH:
        yield from _fresh(machine.store.fresh(level), wanted, place)
    else:
        yield from _from_place(machine, stage, place)


def _held(consumer: Consumer, low: int) -> Iterator[_Seen]:
    for span in consumer.held.starting_at(low):
        yield span, max(span.first, low), consumer.id, None


def _first(seen: _Seen) -> int:
    return seen[1]


def _from_place(machine: QueueState, stage: Stage, place: Place | None) -> Iterator[_Seen]:
    """Yield spans of a part that loses its first ones only: without the place all are behind it."""
    start, first = 0, -1
    if place is not None:
        for at, (_, span) in enumerate(_waiting(machine, stage)):
            if _is_at(span, place):
                start, first = at, place.number
                break
    for due_ms, span in islice(_waiting(machine, stage), start, None):
        yield span, max(span.first, first), None, due_ms
        first = -1


def _waiting(machine: QueueState, stage: Stage) -> Iterator[tuple[int | None, Span]]:
    if stage is Stage.DELAYED:
        yield from machine.delayed.in_order()
        return
    for span in machine.store.returned():
        yield None, span


def _is_at(span: Span, place: Place) -> bool:
    is_same = span.standing == place.standing
    return is_same and span.first <= place.number < span.end


def _fresh(fresh: ReadySpans, wanted: Wanted, place: Place | None) -> Iterator[_Seen]:
    """Yield spans of messages that came in order, and of those that came back behind them."""
    start = fresh.find_from(wanted.first_number, wanted.first_ms)
    number, standing = -1, 0
    if place is not None:
        number, standing = place.number, place.standing
        start = max(start, fresh.find(number, standing))
    is_first = True
    for item in fresh.items_from(start):
        for span in item.spans(fresh.level) if isinstance(item, Block) else (item,):
            first = span.first
            if not standing and not span.standing:
                # They rise, so that what is lower was before the place.
                if span.end <= number:
                    continue
                first = max(first, number)
            elif is_first and place is not None and _is_at(span, place):
                first = number
            is_first = False
            yield span, first, None, None


def _backward(machine: QueueState, stage: Stage, level: int) -> Iterator[Span]:
    if stage is Stage.UNACKED:
        held = [consumer.held.backward() for consumer in machine.consumers.rows()]
        yield from merge(*held, key=_start, reverse=True)
    elif stage is Stage.RETURNS:
        yield from reversed(machine.store.returned())
    elif stage is Stage.BACK:
        yield from machine.store.back(level).backward()
    elif stage is Stage.FRESH:
        for item in machine.store.fresh(level).items_backward():
            if isinstance(item, Block):
                yield from reversed(list(item.spans(level)))
            else:
                yield item
    else:
        yield from reversed([span for _, span in machine.delayed.in_order()])


def _start(span: Span) -> int:
    return span.first
