"""Rows of the queues that this member leads (design/telemetry.md §6.5, kind `queue`).

A queue's counters are replicated state: they count each message exactly once and survive SIGKILL
and changes of leader.  A row therefore carries all of them, cumulative since the queue's birth, as
`c_<name>`; the job adds up their differences.  The deltas beside them are for readers of single
rows, and tell the job whether the first row it knows of a queue begins at the queue's birth
(delta == cumulative).  Most of the sixty numbers are 0 most of the time and are left out: writing
and reading them again was a third of what a row costs.  Pure; called by the server at each
interval.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from brokerd.core.interner import Interner
from brokerd.core.queue import queue_state

Row: TypeAlias = dict[str, Any]

#: A quiet queue says so every five minutes (design/telemetry.md §6.1).
HEARTBEAT_US = 300_000_000

_GAUGES = (
    "ready", "unacked", "ready_bytes", "unacked_bytes", "consumers", "prefetch_sum", "dl_pending",
)  # fmt: skip
#: Each counter and its name since the queue's birth.
_COUNTERS = tuple((name, f"c_{name}") for name in queue_state.COUNTERS)
#: A row without one of these is none, for the job; all other numbers are 0 where they are not told.
_ALWAYS = ("ready", "unacked", "c_enq", "c_ack")


class QueueRecord(Protocol):
    """What is read of core's Queue."""

    uid: int
    vhost: str
    name: str
    type: str


class Options(Protocol):
    """What is read of core's QueueOptions."""

    @property
    def dead_letter_exchange(self) -> str | None: ...

    @property
    def at_least_once(self) -> bool: ...

    @property
    def delivery_limit(self) -> int | None: ...

    @property
    def max_length(self) -> int | None: ...

    @property
    def max_length_bytes(self) -> int | None: ...

    @property
    def message_ttl_ms(self) -> int | None: ...

    @property
    def overflow(self) -> str: ...


class GroupState(Protocol):
    """What is read of cluster's GroupStatus."""

    @property
    def term(self) -> int: ...

    @property
    def lag(self) -> Mapping[Any, int]: ...


class _Seen:
    """What the last row of a queue said; counters in the order of COUNTERS."""

    __slots__ = ("at_us", "counters", "said", "term")

    def __init__(self, term: int, counters: tuple[int, ...]) -> None:
        self.term = term
        self.counters = counters
        self.said: tuple[object, ...] = ()
        self.at_us = 0


class QueueRows:
    """Remembers the last row of each queue it was asked about, the longest told first."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._born_before: set[int] = set()
        #: What idle queues have in common is kept once.
        self._interned: Interner[tuple[Any, ...]] = Interner()

    def known(self, uids: Iterable[int]) -> None:
        """Say which queues exist when this member starts: their earlier counts are unknown."""
        self._born_before = set(uids)

    def forget(self, uid: int) -> None:
        """The queue is led elsewhere now; it is known that this member told of it."""
        self._seen.pop(uid, None)

    def forget_deleted(self, uids: Collection[int]) -> None:
        """Forget for good all queues but these."""
        # Only then one of them is deleted for certain: most times there is nothing to look for.
        if len(self._born_before) > len(uids):
            self._born_before = {uid for uid in self._born_before if uid in uids}

    def due(self, now_us: int) -> list[int]:
        """Return the queues that have said nothing for so long that they are to say so."""
        due = []
        for uid, seen in self._seen.items():
            if _is_recent(seen, now_us):
                break
            due.append(uid)
        return due

    def rows(
        self,
        queue: QueueRecord,
        overview: Mapping[str, Any],
        options: Options,
        status: GroupState,
        since_us: int,
        now_us: int,
    ) -> list[Row]:
        """Return the queue's row; none if nothing changed and no heartbeat is due."""
        counters: Mapping[str, int] = overview["counters"]
        deltas = self._deltas(queue.uid, status, counters)
        seen = self._seen[queue.uid]
        # Delayed messages (R-QQ-24) are still in the queue: the books count them with the ready.
        here = {**overview, "ready": overview["ready"] + overview.get("delayed", 0)}
        gauges = tuple(here[name] for name in _GAUGES)
        limits = (options.max_length, options.max_length_bytes, options.message_ttl_ms,
                  options.delivery_limit, options.overflow, options.dead_letter_exchange,
                  options.at_least_once, len(status.lag))  # fmt: skip
        # Ages grow by themselves and change nothing (design/telemetry.md §13.8).
        said = (gauges, limits)
        is_quiet = said == seen.said and not deltas
        if is_quiet and _is_recent(seen, now_us):
            return []
        seen.said, seen.at_us = self._interned.intern(said), now_us
        self._seen[queue.uid] = self._seen.pop(queue.uid)
        row: Row = {
            "k": "queue", "t0": since_us, "t1": now_us,
            "vhost": queue.vhost, "queue": queue.name, "qtype": queue.type,
            "grp": queue.uid, "term": status.term, "members": len(status.lag) + 1,
            "max_len": options.max_length, "max_bytes": options.max_length_bytes,
            "ttl_ms": options.message_ttl_ms, "delivery_limit": options.delivery_limit,
            "overflow": options.overflow, "dlx": options.dead_letter_exchange,
            "strategy": "at-least-once" if options.at_least_once else "at-most-once",
            **dict.fromkeys(_ALWAYS, 0),
        }  # fmt: skip
        ages = (
            ("head_age_ms", _age_ms(overview["head_enqueued_ms"], now_us)),
            ("dl_pending_age_ms", _age_ms(overview["dl_pending_since_ms"], now_us)),
        )
        whole = ((told, counters[name]) for name, told in _COUNTERS)
        numbers = (*zip(_GAUGES, gauges, strict=True), *ages, *whole)
        row.update((name, value) for name, value in numbers if value)
        row.update(deltas)
        if is_quiet:
            row["hb"] = True
        return [row]

    def last_row(
        self,
        queue: QueueRecord,
        overview: Mapping[str, Any],
        options: Options,
        status: GroupState,
        since_us: int,
        now_us: int,
        is_expired: bool,
        messages: int,
    ) -> Row:
        """Return the row of a queue that is gone: nothing is in it any more, and it says how many
        messages went with it (`deleted`, or `expired_queue`, of which `purged` and `orphaned`
        count each too).
        """
        counters = dict(overview["counters"])
        # One that went with its vhost has not counted them itself.
        counters["purged"] += overview["ready"] + overview.get("delayed", 0)
        counters["orphaned"] += overview["unacked"]
        counters["dl_lost"] += overview["dl_pending"]
        empty = dict.fromkeys((*_GAUGES, "delayed"), 0)
        none = {"head_enqueued_ms": None, "dl_pending_since_ms": None}
        seen = self._seen.get(queue.uid)
        if seen is not None:
            # It has something to say, whatever it said last.
            seen.said = ()
        gone = {**overview, **empty, **none, "counters": counters}
        (row,) = self.rows(queue, gone, options, status, since_us, now_us)
        self.forget(queue.uid)
        return row | {"expired_queue" if is_expired else "deleted": messages}

    def _deltas(self, uid: int, status: GroupState, counters: Mapping[str, int]) -> dict[str, int]:
        """Return what was counted since the last row of this member's term as leader, without
        counters that stand still.

        A term that is new here means that others may have led in between: what they reported is
        not reported again.  A queue born since this member started is reported from its birth on.
        """
        seen = self._seen.get(uid)
        now = tuple([counters[name] for name in queue_state.COUNTERS])
        if seen is None:
            base = now if uid in self._born_before else (0,) * len(now)
            self._born_before.add(uid)
        elif seen.term != status.term:
            base = now
        else:
            base = seen.counters
        if seen is None or seen.term != status.term:
            self._seen[uid] = _Seen(status.term, self._interned.intern(now))
        elif now != base:
            seen.counters = now
        if now == base:
            return {}
        both = zip(queue_state.COUNTERS, now, base, strict=True)
        return {name: after - before for name, after, before in both if after != before}


def _is_recent(seen: _Seen, now_us: int) -> bool:
    """Say whether a row was told a short while ago; one of the future is of a clock put back."""
    return 0 <= now_us - seen.at_us < HEARTBEAT_US


def _age_ms(since_ms: int | None, now_us: int) -> int:
    return 0 if since_ms is None else max(0, now_us // 1000 - since_ms)
