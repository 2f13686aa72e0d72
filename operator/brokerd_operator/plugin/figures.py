"""What `kubectl brokerd top` shows of two looks at a cluster: rates, order, bounded rows. PURE.

Rows come from the members as JSON; the clock comes in as a number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brokerd_operator.plugin.health import number, part, text

Row = Mapping[str, object]

ROWS_MAX = 200
MEMBERS_MAX = 32
#: A queue's counters: published to it, delivered from it, acknowledged.
COUNTERS = ("enq", "dlv", "ack")


@dataclass(frozen=True, slots=True)
class Look:
    """Rows as the members gave them, and when, in seconds."""

    at_s: float
    queues: Sequence[Row]
    members: Sequence[Row]


@dataclass(frozen=True, slots=True)
class QueueLine:
    """One queue; rates a second, None while they are not known."""

    vhost: str
    name: str
    type: str
    state: str
    leader: str
    messages: int
    ready: int
    unacknowledged: int
    consumers: int
    rates: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class MemberLine:
    """One member as another sees it."""

    name: str
    state: str
    leaders: int
    replicas: int
    memory_used: int
    memory_limit: int
    disk_free: int
    alarms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Screen:
    """What is shown."""

    queues: tuple[QueueLine, ...]
    members: tuple[MemberLine, ...]
    queues_total: int
    messages_total: int
    #: Published, delivered and acknowledged a second, of all queues.
    rates_total: tuple[float | None, ...]


def screen(before: Look | None, now: Look, rows: int) -> Screen:
    """The busiest queues and all members."""
    past = {_identity(row): row for row in before.queues} if before else {}
    seconds = now.at_s - before.at_s if before else 0.0
    lines = [_queue(row, past.get(_identity(row)), seconds) for row in now.queues]
    lines.sort(key=lambda line: (-line.messages, -sum(filter(None, line.rates)), line.name))
    totals = [[line.rates[index] for line in lines] for index in range(len(COUNTERS))]
    return Screen(
        queues=tuple(lines[: min(rows, ROWS_MAX)]),
        members=tuple(_member(row) for row in now.members[:MEMBERS_MAX]),
        queues_total=len(lines),
        messages_total=sum(line.messages for line in lines),
        rates_total=tuple(_sum(column, before is not None) for column in totals),
    )


def _sum(rates: Sequence[float | None], is_known: bool) -> float | None:
    return sum(rate for rate in rates if rate is not None) if is_known else None


def _identity(row: Row) -> tuple[object, ...]:
    # The uid too: a queue that was made anew counts from nothing.
    return row.get("vhost"), row.get("name"), row.get("uid")


def _queue(row: Row, past: Row | None, seconds: float) -> QueueLine:
    return QueueLine(
        vhost=text(row, "vhost"),
        name=text(row, "name"),
        type=text(row, "type"),
        state=text(row, "state") or "unknown",
        leader=text(row, "leader"),
        messages=number(row, "messages"),
        ready=number(row, "messages_ready"),
        unacknowledged=number(row, "messages_unacknowledged"),
        consumers=number(row, "consumers"),
        rates=tuple(_rate(name, row, past, seconds) for name in COUNTERS),
    )


def _rate(counter: str, row: Row, past: Row | None, seconds: float) -> float | None:
    if past is None or seconds <= 0 or not (part(row, "counters") and part(past, "counters")):
        return None
    difference = number(part(row, "counters"), counter) - number(part(past, "counters"), counter)
    # Below nothing: another replica answered, which may be some commands behind.
    return max(0, difference) / seconds


def _member(row: Row) -> MemberLine:
    state = text(row, "state") or "running"
    alarms = row.get("alarms")
    return MemberLine(
        name=text(row, "name"),
        state=state if row.get("running") is True else "down",
        leaders=number(row, "leaders"),
        replicas=number(row, "replicas"),
        memory_used=number(row, "memory_used"),
        memory_limit=number(row, "memory_limit"),
        disk_free=number(row, "disk_free"),
        alarms=tuple(str(alarm) for alarm in alarms) if isinstance(alarms, list) else (),
    )
