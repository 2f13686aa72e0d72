"""What one member counts of exchanges, users, confirms and events, and the rows it makes of it.

Rows are those of design/telemetry.md §6.5 and 6.6.  Each message is counted at one place: where it
enters an exchange (`published`, `internal_published`), by exactly one outcome.  Queues count
themselves in their replicated state; `queue_rows.py` reads that.  Pure: the clocks are passed in;
segments and threads are `segments.py`'s.  Called by the server per batch, never per message.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

from brokerd.telemetry.client_totals import AMQP, GRPC, ClientTotals
from brokerd.telemetry.histograms import Histogram
from brokerd.telemetry.poison_rows import PoisonRows
from brokerd.telemetry.queue_rows import QueueRows as QueueRows
from brokerd.telemetry.top_keys import TopKeys

Row: TypeAlias = dict[str, Any]
Content: TypeAlias = tuple[tuple[str, str], bytes, bytes, bytes]

#: A quiet entity says so every five minutes; silence beyond that is loss (design/telemetry.md
#: §6.1).
HEARTBEAT_US = 300_000_000
#: What has been silent for an hour is forgotten; it may be deleted.
FORGET_US = 3_600_000_000
#: Entities counted apart; those beyond are one entity named OVERFLOW.
ENTITIES_MAX = 100_000
OVERFLOW = "~overflow"
#: Runs of unconfirmed publishes whose time of entry a channel keeps.
RUNS_MAX = 65_536
#: Queues that one dead letter row names; letters that fan out wider make no ring by themselves.
TARGETS_MAX = 8
#: Events kept until the next interval.
EVENTS_MAX = 10_000

_BODY = itemgetter(2)

EXCHANGE_COUNTERS = (
    "in", "in_bytes", "routed", "copies", "ae_routed", "ae_missing", "ae_cycle", "returned",
    "dropped", "confirmed", "nacked", "internal_in", "internal_in_bytes",
)  # fmt: skip
PRINCIPAL_COUNTERS = (
    "in", "in_bytes", "out", "out_bytes", "confirmed", "nacked", "redlv", "blocked_ms",
)  # fmt: skip


class Routed(Protocol):
    """What the counters read of core's RouteResult."""

    @property
    def queues(self) -> Sequence[object]: ...

    @property
    def alternates(self) -> Sequence[tuple[str, str]]: ...

    @property
    def ae_missing(self) -> tuple[str, str] | None: ...

    @property
    def ae_cycle(self) -> bool: ...


class _Tally:
    """Counts of one entity since the last row; `active_us` is when it last wrote a row."""

    __slots__ = ("active_us", "counts", "hops", "quiet_since_us")

    def __init__(self, names: Sequence[str]) -> None:
        self.counts = dict.fromkeys(names, 0)
        self.hops = [0, 0, 0, 0]
        self.active_us = 0
        self.quiet_since_us = 0


class ConfirmClock:
    """One channel in confirm mode: counts exactly, and times, what is confirmed.

    Invariant: every number below `_low` is decided; `_singles` are the decided ones above.
    """

    __slots__ = ("_counters", "_firsts", "_low", "_runs", "_singles", "_totals", "_user", "_vhost")

    def __init__(
        self, counters: Counters, vhost: str, user: str, totals: ClientTotals | None = None
    ) -> None:
        """totals: of the channel's protocol; AMQP by default."""
        self._counters = counters
        self._totals = totals or counters.totals[AMQP]
        self._vhost = vhost
        self._user = user
        self._low = 1
        self._singles: set[int] = set()
        self._firsts: list[int] = []
        #: (number after the run's last, time of entry, exchange), one per item of `_firsts`.
        self._runs: list[tuple[int, int, str]] = []

    def published(self, first: int, count: int, exchange: str) -> None:
        """A run of publishes has been numbered."""
        if len(self._firsts) < RUNS_MAX:
            self._firsts.append(first)
            self._runs.append((first + count, self._counters.clock_us(), exchange))

    def confirmed(self, acks: Sequence[tuple[int, bool]], nacks: Sequence[int]) -> None:
        """These acks and nacks go out now."""
        now_us = self._counters.clock_us()
        acked: dict[str, list[tuple[int, int]]] = {}
        count = 0
        for tag, multiple in acks:
            # Whatever is below the border of a "multiple" and not decided yet is meant (R-PC-8).
            low = self._low if multiple else tag
            count += self._decide(low, tag, acked)
        self._totals.confirmed += count
        refused: dict[str, list[tuple[int, int]]] = {}
        for tag in nacks:
            self._decide(tag, tag, refused)
        self._counters.tally_confirms(self._vhost, self._user, count, len(nacks), now_us, acked)
        for exchange, runs in refused.items():
            self._counters.tally_nacks(self._vhost, exchange, sum(run[1] for run in runs))
        self._forget()

    def _decide(self, low: int, high: int, into: dict[str, list[tuple[int, int]]]) -> int:
        """Mark [low, high] decided; note (time of entry, count) by exchange; return the count."""
        decided = 0
        at = max(0, bisect_right(self._firsts, low) - 1)
        singles = self._singles
        number = low
        while number <= high:
            if at < len(self._runs) and self._firsts[at] <= number:
                end, entry_us, exchange = self._runs[at]
                end = min(end, high + 1)
                at += 1
            else:
                # Publishes beyond RUNS_MAX, up to the next run that has a time.
                end = min([high + 1, *self._firsts[at : at + 1]])
                entry_us, exchange = -1, ""
            if end <= number:
                continue
            count = end - number
            if singles:
                count -= sum(1 for single in singles if number <= single < end)
            if count and entry_us >= 0:
                into.setdefault(exchange, []).append((entry_us, count))
            decided += count
            number = end
        if low == self._low:
            self._low = high + 1
            if singles:
                self._singles = {single for single in singles if single > high}
                while self._low in self._singles:
                    self._singles.discard(self._low)
                    self._low += 1
        else:
            singles.update(range(low, high + 1))
        return decided

    def _forget(self) -> None:
        """Drop the runs that are decided to their end."""
        done = 0
        while done < len(self._runs) and self._runs[done][0] <= self._low:
            done += 1
        if done:
            del self._runs[:done], self._firsts[:done]


class Counters:
    """All counters of one member that are not a queue's; rows come out by `take`."""

    def __init__(
        self, clock_ms: Callable[[], int], clock_us: Callable[[], int] | None = None
    ) -> None:
        self._clock_ms = clock_ms
        #: Of latencies; any clock that does not go back.
        self.clock_us: Callable[[], int] = clock_us or (lambda: clock_ms() * 1000)
        #: Since the member's start, by protocol.
        self.totals = {AMQP: ClientTotals(), GRPC: ClientTotals()}
        self._exchanges: dict[tuple[str, str], _Tally] = {}
        self._principals: dict[tuple[str, str], _Tally] = {}
        self._confirms: dict[tuple[str, str, str], Histogram] = {}
        self._unroutable: dict[tuple[str, str, str, str], TopKeys] = {}
        self._letters: dict[tuple[str | tuple[str, ...], ...], list[int]] = {}
        #: What was given up for a delivery limit.
        self.poison = PoisonRows(clock_ms)
        self._events: list[Row] = []
        #: Events that did not fit; told in the next gap event.
        self._events_dropped = 0

    # ---- publishes --------------------------------------------------------------------------

    def published(
        self,
        vhost: str,
        user: str,
        exchange: str,
        result: Routed,
        contents: Sequence[Content],
        mandatory: bool = False,
        totals: ClientTotals | None = None,
        replies: int = 0,
    ) -> None:
        """Count a run of client publishes that share one route.

        totals: of the client's protocol; AMQP by default.  replies: how many of the route's targets
        are channels that await a reply (R-DRT-3); no queue counts what they get.
        """
        count = len(contents)
        copies = len(result.queues) - replies
        sizes = list(map(len, map(_BODY, contents)))
        size_bytes = sum(sizes)
        (totals or self.totals[AMQP]).published(sizes, size_bytes, len(result.queues), mandatory)
        tally = self._tally(self._exchanges, (vhost, exchange), EXCHANGE_COUNTERS)
        counts = tally.counts
        counts["in"] += count
        counts["in_bytes"] += size_bytes
        if result.queues and not result.alternates:
            counts["routed"] += count
            counts["copies"] += count * copies
        else:
            outcome = self._outcome(tally, result, count, copies, mandatory)
            for content in contents:
                self._unrouted(vhost, exchange, content[0][1], user, outcome)
        principal = self._tally(self._principals, (vhost, user), PRINCIPAL_COUNTERS).counts
        principal["in"] += count
        principal["in_bytes"] += size_bytes

    def internal_published(
        self,
        vhost: str,
        exchange: str,
        result: Routed,
        n: int,
        size_bytes: int,
        copies_each: int | None = None,
    ) -> None:
        """Count what the broker itself publishes: dead letters, federation.

        copies_each: queues that really take it, where fewer than the route has (R-DLX cycles).
        """
        tally = self._tally(self._exchanges, (vhost, exchange), EXCHANGE_COUNTERS)
        tally.counts["internal_in"] += n
        tally.counts["internal_in_bytes"] += size_bytes
        each = len(result.queues) if copies_each is None else copies_each
        if result.queues and not result.alternates:
            tally.counts["routed"] += n
            tally.counts["copies"] += n * each
        else:
            self._outcome(tally, result, n, each, False)

    @staticmethod
    def _outcome(tally: _Tally, result: Routed, count: int, copies: int, mandatory: bool) -> str:
        """Count what did not go straight to queues by exactly one outcome (design/telemetry.md
        §13.10).

        Where several apply, the cause comes before its effect: a message that meets an alternate
        exchange cycle or a missing one counts there even when it is returned as well.
        """
        if result.queues:
            tally.hops[min(len(result.alternates), 4) - 1] += count
            tally.counts["copies"] += count * copies
            name = "ae_routed"
        elif result.ae_cycle:
            name = "ae_cycle"
        elif result.ae_missing is not None:
            name = "ae_missing"
        else:
            name = "returned" if mandatory else "dropped"
        tally.counts[name] += count
        return name

    def _unrouted(
        self, vhost: str, exchange: str, routing_key: str, user: str, outcome: str
    ) -> None:
        key = (vhost, exchange, user, "ae" if outcome == "ae_routed" else outcome)
        top = self._unroutable.get(key)
        if top is None:
            if len(self._unroutable) >= ENTITIES_MAX:
                return
            top = self._unroutable[key] = TopKeys()
        top.add(routing_key)

    # ---- confirms and deliveries -------------------------------------------------------------

    def confirm_clock(
        self, vhost: str, user: str, totals: ClientTotals | None = None
    ) -> ConfirmClock:
        """Return what counts and times the confirms of one channel."""
        return ConfirmClock(self, vhost, user, totals)

    def confirmed(
        self, vhost: str, user: str, acks: Sequence[object] | int, nacks: Sequence[object] | int
    ) -> None:
        """Count confirms without their times: numbers, or one item per message."""
        acked = acks if isinstance(acks, int) else len(acks)
        refused = nacks if isinstance(nacks, int) else len(nacks)
        self.tally_confirms(vhost, user, acked, refused, 0, {})

    def tally_confirms(
        self,
        vhost: str,
        user: str,
        acked: int,
        refused: int,
        now_us: int,
        runs: dict[str, list[tuple[int, int]]],
    ) -> None:
        """Add acks by exchange: (time of entry, count)."""
        principal = self._tally(self._principals, (vhost, user), PRINCIPAL_COUNTERS).counts
        principal["confirmed"] += acked
        principal["nacked"] += refused
        for exchange, entries in runs.items():
            key = (vhost, exchange, user)
            histogram = self._confirms.get(key)
            if histogram is None:
                histogram = self._confirms[key] = Histogram()
            tally = self._tally(self._exchanges, (vhost, exchange), EXCHANGE_COUNTERS)
            for entry_us, count in entries:
                histogram.add(now_us - entry_us, count)
                tally.counts["confirmed"] += count

    def tally_nacks(self, vhost: str, exchange: str, count: int) -> None:
        """Add refusals of an exchange's publishes."""
        tally = self._tally(self._exchanges, (vhost, exchange), EXCHANGE_COUNTERS)
        tally.counts["nacked"] += count

    def delivered(
        self, vhost: str, user: str, n: int, size_bytes: int, redelivered: int = 0
    ) -> None:
        """Count deliveries to a user's consumers and gets."""
        principal = self._tally(self._principals, (vhost, user), PRINCIPAL_COUNTERS).counts
        principal["out"] += n
        principal["out_bytes"] += size_bytes
        principal["redlv"] += redelivered

    # ---- events -----------------------------------------------------------------------------

    def dead_lettered(
        self,
        vhost: str,
        queue: str,
        reason: str,
        dlx: str,
        routing_key: str,
        strategy: str,
        outcome: str,
        n: int,
        size_bytes: int,
        targets: Sequence[str] = (),
    ) -> None:
        """Count what became of dead letters (event `dl`).  targets: the queues that got them."""
        named = tuple(targets[:TARGETS_MAX])
        key = (vhost, queue, reason, dlx, routing_key, strategy, outcome, named)
        if key not in self._letters and len(self._letters) >= ENTITIES_MAX:
            return
        entry = self._letters.setdefault(key, [0, 0])
        entry[0] += n
        entry[1] += size_bytes

    def blocked(self, vhost: str, user: str, blocked_ms: int) -> None:
        """Add time that a user's connection was blocked."""
        principal = self._tally(self._principals, (vhost, user), PRINCIPAL_COUNTERS).counts
        principal["blocked_ms"] += blocked_ms

    def throttle(
        self,
        vhost: str,
        user: str,
        connection: str,
        mode: str,
        blocked_ms: int,
        cause: str,
    ) -> None:
        """A client was unblocked, or has ended (event `throttle`), after so long.

        Nothing is reported before: the job, too, reports an episode when it has ended.
        """
        self.blocked(vhost, user, blocked_ms)
        self._event(
            {
                "k": "throttle", "vhost": vhost, "user": user, "conn": connection, "mode": mode,
                "blocked_ms": blocked_ms, "cause": cause,
            }
        )  # fmt: skip

    def alarm(self, state_from: int, state_to: int, used_bytes: int, limit_bytes: int) -> None:
        """The memory watermark was crossed: 0 ok, 1 high, 2 critical (event `wm`)."""
        self._event(
            {
                "k": "wm", "from": state_from, "to": state_to, "rss": used_bytes,
                "wm_bytes": limit_bytes,
            }
        )  # fmt: skip

    def changed(self, kind: str, **fields: str | int | bool | None) -> None:
        """Note any other state change: leader, link, policy, boot."""
        self._event({"k": kind, **fields})

    def _event(self, row: Row) -> None:
        if len(self._events) >= EVENTS_MAX:
            self._events_dropped += 1
            return
        at_us = self._clock_ms() * 1000
        self._events.append({**row, "t0": at_us, "t1": at_us})

    # ---- rows -------------------------------------------------------------------------------

    def take(self, t0_us: int, t1_us: int) -> list[Row]:
        """Return the rows of the stream `sample` for an interval, counted since the last take."""
        times = {"t0": t0_us, "t1": t1_us}
        rows: list[Row] = []
        for (vhost, exchange), tally, quiet in self._due(self._exchanges, t1_us):
            row = {"k": "exchange", **times, "vhost": vhost, "exchange": exchange, **tally.counts}
            row["ae_hops"] = tally.hops
            rows.append(row | {"hb": True} if quiet else row)
            tally.hops = [0, 0, 0, 0]
            tally.counts = dict.fromkeys(EXCHANGE_COUNTERS, 0)
        for (vhost, user), tally, quiet in self._due(self._principals, t1_us):
            row = {"k": "principal", **times, "vhost": vhost, "user": user, **tally.counts}
            rows.append(row | {"hb": True} if quiet else row)
            tally.counts = dict.fromkeys(PRINCIPAL_COUNTERS, 0)
        confirms, self._confirms = self._confirms, {}
        rows += [
            {
                "k": "confirm", **times, "vhost": vhost, "exchange": exchange, "user": user,
                "n": histogram.count, "total": histogram.row(),
            }
            for (vhost, exchange, user), histogram in confirms.items()
        ]  # fmt: skip
        return rows

    def take_events(self, t0_us: int, t1_us: int) -> list[Row]:
        """Return the rows of the stream `event` since the last take."""
        rows, self._events = self._events, []
        unroutable, self._unroutable = self._unroutable, {}
        for (vhost, exchange, user, outcome), top in unroutable.items():
            rows += [
                {
                    "k": "unr", "t0": t0_us, "t1": t1_us, "vhost": vhost, "exchange": exchange,
                    "user": user, "outcome": outcome, "rk": key, "n": n, "err": error,
                }
                for key, n, error in top.rows()
            ]  # fmt: skip
        letters, self._letters = self._letters, {}
        names = ("vhost", "queue", "reason", "dlx", "dlrk", "strategy", "outcome", "targets")
        for parts, (n, size_bytes) in letters.items():
            row: Row = {"k": "dl", "t0": t0_us, "t1": t1_us, "n": n, "bytes": size_bytes}
            rows.append(row | dict(zip(names, parts, strict=True)))
        rows += self.poison.take(t0_us, t1_us)
        if self._events_dropped:
            lost, self._events_dropped = self._events_dropped, 0
            rows.append({"k": "gap", "t0": t0_us, "t1": t1_us, "cause": "events_max", "rows": lost})
        return rows

    @staticmethod
    def _due(
        tallies: dict[tuple[str, str], _Tally], now_us: int
    ) -> list[tuple[tuple[str, str], _Tally, bool]]:
        """Return what has something to say, and the quiet whose heartbeat is due."""
        due = []
        for key, tally in list(tallies.items()):
            if any(tally.counts.values()):
                tally.active_us = tally.quiet_since_us = now_us
                due.append((key, tally, False))
            elif now_us - tally.quiet_since_us >= FORGET_US:
                del tallies[key]
            elif now_us - tally.active_us >= HEARTBEAT_US:
                tally.active_us = now_us
                due.append((key, tally, True))
        return due

    @staticmethod
    def _tally(
        tallies: dict[tuple[str, str], _Tally], key: tuple[str, str], names: Sequence[str]
    ) -> _Tally:
        tally = tallies.get(key)
        if tally is None:
            if len(tallies) >= ENTITIES_MAX:
                key = (key[0], OVERFLOW)
                found = tallies.get(key)
                if found is not None:
                    return found
            tally = tallies[key] = _Tally(names)
        return tally
