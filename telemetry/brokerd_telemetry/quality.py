"""How complete an hour is: what members told, and what must be missing.

design/telemetry.md §8.18, §10.

Each member writes one `node` row per interval, so time without one is loss.  A boot that ended
without saying so (SIGKILL) took up to an interval of its counts with it: that hour is not complete
on that member (design/telemetry.md §13.14).  Members name each other, so that one of which there is
no row, though others saw that it was up, is known to be missing (ADR 78).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet

from brokerd_telemetry import ingest, verify
from brokerd_telemetry.columns import reported
from brokerd_telemetry.schema import GRACE_US, HOUR_US, hour_of, hour_start_us

if TYPE_CHECKING:
    from brokerd_telemetry.sinks import Live
    from brokerd_telemetry.verify import Segment

#: Silent intervals after which a boot is taken for dead, while others go on.
SILENT_INTERVALS = 3
#: Of a boot whose segments do not say so.
INTERVAL_US = 10_000_000
SILENT_US_MIN = 60_000_000
#: What a member is called of which nothing is known but that it must be there.
UNKNOWN_MEMBER = "?"

Span = tuple[int, int]


@dataclass(slots=True)
class NodeHour:
    """What one member told of one hour in one boot; boot "": nothing, and it was there."""

    cluster: str
    node: str
    boot: str
    hour_us: int
    first_us: int
    last_us: int
    told_us: int
    rows: int
    gap_rows: int
    has_ended: bool
    #: Members of the largest group of a queue, and whether it names those of its cluster.
    group: int = 0
    knows_peers: bool = False
    #: By how much its clock was off at the most (behind: negative).
    ahead_ms: int = 0
    behind_ms: int = 0
    #: By how much it is at least ahead, which is all that is known; its rows were moved so far.
    lead_us: int = 0
    missing_us: int = 0
    #: From when to when others saw it up and there is no row of it.
    silent: list[Span] = field(default_factory=list)
    was_killed: bool = False
    #: It is up and has telemetry switched off, as the others say.
    is_off: bool = False
    #: By how much its clock is ahead of that of the job's machine, where that is much.
    job_skew_s: float | None = None

    @property
    def why(self) -> str:
        """Return in words what of its hour is not known; "" if nothing."""
        if self.node == UNKNOWN_MEMBER:
            return f"nothing is known of some of at least {self.group} members"
        if self.is_off:
            return f"{self.node} has telemetry switched off"
        found = [f"silent {_clock(begin)}-{_clock(end)}" for begin, end in self.silent]
        if self.was_killed:
            found.append("was killed and its last interval is lost")
        if self.lead_us:
            found.append(f"clock {self.lead_us / 1e6:,.0f} s or more ahead")
        if self.gap_rows:
            found.append(f"{self.gap_rows:,} rows lost")
        if not found and self.completeness < 1.0:
            found.append(f"{self.missing_us / 1e6:,.0f} s not told")
        return f"{self.node} {', '.join(found)}" if found else ""

    @property
    def skew_s(self) -> float:
        """Return by how much its clock was off at the most, in seconds; ahead of others: more than
        0.
        """
        known_ms = self.ahead_ms if self.ahead_ms >= -self.behind_ms else self.behind_ms
        return known_ms / 1000 if known_ms else self.lead_us / 1e6

    @property
    def completeness(self) -> float:
        """Return the share of its time that was told, less the share of rows that got lost."""
        whole = self.told_us + self.missing_us
        by_time = self.told_us / whole if whole else 0.0
        rows = self.rows + self.gap_rows
        return by_time * (self.rows / rows if rows else 1.0)


#: Of each cluster and hour, when other members saw each one up; None: they never did.
Peers = dict[tuple[str, int], dict[str, Span | None]]
#: Cluster, hour and name of members of which others say that their telemetry is switched off.
Off = set[tuple[str, int, str]]
#: By cluster ("": any) and member, by how many seconds its clock is ahead of the job's machine.
Clocks = Mapping[tuple[str, str], float]


def observe(live: Live, hours: Iterable[str]) -> tuple[list[NodeHour], Peers, Off]:
    """Return one line per member, boot and hour of silver's rows, who was seen up, and whose
    telemetry is switched off.

    The driver does it: of each file four columns, as many a second as two tasks would read in the
    time that a task of Spark takes to begin.
    """
    found: dict[tuple[str, str, str, int], NodeHour] = {}
    seen: Peers = {}
    off: Off = set()
    for hour in hours:
        hour_us = hour_start_us(hour)
        for entry in live.entries("silver", [hour]):
            kind = ingest.kind_of(entry["path"])
            (path,) = live.here([entry["path"]])
            rows = _columns(path, reported.columns(kind))
            if kind == "node":
                names = _note_peers(seen.setdefault((entry["cluster"], hour_us), {}), rows)
                off |= {(entry["cluster"], hour_us, name) for name in names}
            for line in reported.of(rows, kind).to_pylist():
                own = NodeHour(cluster=entry["cluster"], hour_us=hour_us, **line)
                key = (own.cluster, own.node, own.boot, hour_us)
                found[key] = own if key not in found else _both(found[key], own)
    return list(found.values()), seen, off


def _columns(path: str, names: list[str]) -> pyarrow.Table:
    """Return columns of a file; one of an earlier version may lack some."""
    with pyarrow.parquet.ParquetFile(path) as file:
        rows = file.read(names)
    whole = ingest.whole_schema()
    for name in names:
        if name not in rows.column_names:
            nothing = pyarrow.nulls(len(rows), whole.field(name).type)
            rows = rows.append_column(whole.field(name), nothing)
    return rows


def _note_peers(seen: dict[str, Span | None], rows: pyarrow.Table) -> list[str]:
    """Note when rows of members saw others up; return whose telemetry is switched off."""
    for line in reported.peers(rows).to_pylist():
        before = seen.setdefault(line["peer"], None)
        if line["from_us"] is not None:
            span = (line["from_us"], line["until_us"])
            seen[line["peer"]] = span if before is None else _joined(before, span)
    return reported.switched_off(rows)


def _joined(one: Span, other: Span) -> Span:
    return min(one[0], other[0]), max(one[1], other[1])


def _both(one: NodeHour, other: NodeHour) -> NodeHour:
    return replace(
        one,
        first_us=min(one.first_us, other.first_us),
        last_us=max(one.last_us, other.last_us),
        told_us=one.told_us + other.told_us,
        rows=one.rows + other.rows,
        gap_rows=one.gap_rows + other.gap_rows,
        has_ended=one.has_ended or other.has_ended,
        group=max(one.group, other.group),
        knows_peers=one.knows_peers or other.knows_peers,
        ahead_ms=max(one.ahead_ms, other.ahead_ms),
        behind_ms=min(one.behind_ms, other.behind_ms),
    )


def note_boots(
    boots: dict[str, dict[str, Any]],
    hours: Iterable[NodeHour],
    fresh: Iterable[Segment],
    leads_us: Mapping[str, int] | None = None,
) -> None:
    """Bring what the ledger knows of each boot up to date.  leads_us: of ingest.leads_us."""
    for hour in hours:
        boot = boots.setdefault(
            hour.boot,
            {"cluster": hour.cluster, "node": hour.node, "first_us": hour.first_us, "last_us": 0},
        )
        boot["first_us"] = min(boot["first_us"], hour.first_us)
        boot["last_us"] = max(boot["last_us"], hour.last_us)
        boot["has_ended"] = boot.get("has_ended", False) or hour.has_ended
    for segment in fresh:
        if segment.boot in boots:
            boots[segment.boot]["interval_us"] = segment.interval_us
            if segment.is_recovered:
                boots[segment.boot]["was_killed"] = True
    for name, lead_us in (leads_us or {}).items():
        if name in boots:
            boots[name]["lead_us"] = max(boots[name].get("lead_us", 0), lead_us)


def note_lost_rows(hours: Iterable[NodeHour], segments: Iterable[Mapping[str, Any]]) -> None:
    """Count rows whose numbers are between those of segments that are known, and which none has: a
    member knows of what it dropped, not of what was lost on the way.
    """
    boots = {hour.boot for hour in hours}
    windows: dict[tuple[str, str], list[tuple[int, int, str]]] = {}
    for entry in segments:
        if entry["boot"] in boots:
            own = windows.setdefault((entry["boot"], entry["stream"]), [])
            own.append((entry["seq0"], entry["seq1"], entry["hour"]))
    lost: dict[tuple[str, int], int] = {}
    for (boot, _), own in windows.items():
        own.sort()
        reached = own[0][0] - 1
        for low, high, hour in own:
            if low > reached + 1:
                key = (boot, hour_start_us(hour))
                lost[key] = lost.get(key, 0) + low - reached - 1
            reached = max(reached, high)
    for line in hours:
        line.gap_rows = max(line.gap_rows, lost.get((line.boot, line.hour_us), 0))


def judge(
    hours: list[NodeHour],
    boots: Mapping[str, Mapping[str, Any]],
    peers: Peers,
    off: Collection[tuple[str, int, str]] = (),
) -> None:
    """Set `missing_us`: holes between node rows, the last interval of a killed boot, and when
    others saw a member of which there is no row; for one without any, add a line.

    off: of observe.
    """
    latest: dict[str, int] = {}
    newest: dict[tuple[str, str], int] = {}
    for boot in boots.values():
        cluster, node = boot["cluster"], boot["node"]
        latest[cluster] = max(latest.get(cluster, 0), boot["last_us"])
        newest[cluster, node] = max(newest.get((cluster, node), 0), boot["first_us"])
    for hour in hours:
        boot = boots[hour.boot]
        hour.lead_us = boot.get("lead_us", 0)
        interval_us = boot.get("interval_us", INTERVAL_US)
        # Rows that began in the hour before reach in; a hole is only what exceeds an interval.
        hole_us = hour.last_us - hour.first_us - hour.told_us
        hour.missing_us = hole_us if hole_us > interval_us else 0
        was_followed = newest[hour.cluster, hour.node] > boot["last_us"]
        silence_us = max(SILENT_INTERVALS * interval_us, SILENT_US_MIN)
        is_silent = latest[hour.cluster] - boot["last_us"] > silence_us
        ended_badly = not boot.get("has_ended") and (
            boot.get("was_killed") or was_followed or is_silent
        )
        if ended_badly and hour.last_us >= boot["last_us"]:
            hour.was_killed = True
            hour.missing_us += interval_us
    by_hour: dict[tuple[str, int], list[NodeHour]] = {}
    for hour in hours:
        by_hour.setdefault((hour.cluster, hour.hour_us), []).append(hour)
    for key, own in by_hour.items():
        absent = _unseen(key, own, boots, peers.get(key, {}))
        for hour in absent:
            hour.is_off = (*key, hour.node) in off
        hours += absent


def _unseen(
    key: tuple[str, int],
    own: list[NodeHour],
    boots: Mapping[str, Mapping[str, Any]],
    peers: Mapping[str, Span | None],
) -> list[NodeHour]:
    """Note when members of an hour were silent; return a line for each that told nothing."""
    boots_of: dict[str, list[NodeHour]] = {}
    for hour in own:
        boots_of.setdefault(hour.node, []).append(hour)
    absent = []
    for node, span in sorted(peers.items()):
        if span is None:
            continue
        if node not in boots_of:
            absent.append(_absent(key, node, span))
            continue
        _note_silence(sorted(boots_of[node], key=lambda hour: hour.last_us), boots, span)
    group = max(hour.group for hour in own)
    if not any(hour.knows_peers for hour in own) and group > len(boots_of):
        # Members of an earlier version do not name each other.
        span = (min(hour.first_us for hour in own), max(hour.last_us for hour in own))
        absent.append(replace(_absent(key, UNKNOWN_MEMBER, span), group=group))
    return absent


def _absent(key: tuple[str, int], node: str, span: Span) -> NodeHour:
    return NodeHour(
        key[0], node, "", key[1], *span, told_us=0, rows=0, gap_rows=0, has_ended=False,
        missing_us=max(span[1] - span[0], 1), silent=[span],
    )  # fmt: skip


def _note_silence(
    reported: list[NodeHour], boots: Mapping[str, Mapping[str, Any]], span: Span
) -> None:
    """reported: a member's lines of an hour, in order.  span: when others saw it up."""
    first, last = reported[0], reported[-1]
    interval_us = boots[last.boot].get("interval_us", INTERVAL_US)
    # Members do not write at the same moment, and what is near a border is slack in the books.
    grace_us = max(2 * interval_us, GRACE_US)
    begin_us = min(hour.first_us for hour in reported)
    # One that began in this hour told nothing before because there was nothing.
    if begin_us - span[0] > grace_us and boots[first.boot]["first_us"] < begin_us:
        first.silent.append((span[0], begin_us))
        first.missing_us += begin_us - span[0]
    if span[1] - last.last_us > grace_us and not last.has_ended:
        last.silent.append((last.last_us, span[1]))
        last.missing_us += span[1] - last.last_us
        # What is silent and up was not killed, as far as others know.
        if last.was_killed and not boots[last.boot].get("was_killed"):
            last.was_killed = False
            last.missing_us -= interval_us


def _clock(time_us: int) -> str:
    return f"{datetime.fromtimestamp(time_us / 1e6, UTC):%H:%M}"


def coverage(hours: list[NodeHour]) -> list[dict[str, Any]]:
    """Return one line per cluster and hour: how complete it is, from when to when it was told."""
    lines: dict[tuple[str, int], list[NodeHour]] = {}
    for hour in hours:
        lines.setdefault((hour.cluster, hour.hour_us), []).append(hour)
    result = []
    for (cluster, hour_us), members in sorted(lines.items()):
        by_node: dict[str, list[float]] = {}
        for member in members:
            by_node.setdefault(member.node, []).append(member.completeness)
        seen = [member for member in members if member.boot]
        first = max(min(member.first_us for member in seen), hour_us)
        last = max(member.last_us for member in seen)
        result.append(
            {
                "cluster": cluster,
                "hour_us": hour_us,
                "completeness": min(min(values) for values in by_node.values()),
                "seconds": max((min(last, hour_us + HOUR_US) - first) / 1e6, 0.0),
                "start_us": first,
                "end_us": min(last, hour_us + HOUR_US),
                "unseen": "; ".join(sorted({each.why for each in members} - {""})),
            }
        )
    return result


def _by_name(paths: Iterable[str]) -> Counter[tuple[str, str]]:
    """Count segments by the boot and hour that their names have."""
    named = filter(None, map(verify.SEGMENT_PATH.fullmatch, paths))
    return Counter((match["boot"], f"{match['dt']}T{match['hh']}") for match in named)


def note_clocks(hours: list[NodeHour], clocks: Clocks) -> None:
    """Note in the newest hour of each member how far its clock was off when it was asked."""
    newest: dict[tuple[str, str], NodeHour] = {}
    for hour in hours:
        key = hour.cluster, hour.node
        if key not in newest or newest[key].last_us < hour.last_us:
            newest[key] = hour
    for (cluster, node), hour in newest.items():
        hour.job_skew_s = clocks.get((cluster, node), clocks.get(("", node)))


def table(
    hours: list[NodeHour],
    segments: Iterable[Mapping[str, Any]],
    bad_rows: Mapping[tuple[str, str, int], int],
    not_taken: Mapping[str, Iterable[str]],
) -> list[dict[str, Any]]:
    """Return data_quality_1h: one line per member, boot and hour.

    segments: all that are known, as the ledger has them.  not_taken: by column, paths of those that
    are not.  Each counts in the hour of its name.
    """
    taken: Counter[tuple[str, str]] = Counter()
    overlapping: Counter[tuple[str, str]] = Counter()
    for entry in segments:
        key = entry["boot"], entry["hour"]
        taken[key] += 1
        overlapping[key] += entry["first_seq"] - entry["seq0"]
    others = {name: _by_name(paths) for name, paths in not_taken.items()}

    def key_of(hour: NodeHour) -> tuple[str, str]:
        return hour.boot, hour_of(hour.hour_us)

    return [
        {
            "cluster": hour.cluster,
            "hour_us": hour.hour_us,
            "node": hour.node,
            "boot": hour.boot,
            "rows": hour.rows,
            "gap_rows": hour.gap_rows,
            "bad_rows": bad_rows.get((hour.cluster, hour.node, hour.hour_us), 0),
            "segments": taken[key_of(hour)],
            **{name: count[key_of(hour)] for name, count in others.items()},
            "rows_overlapping": overlapping[key_of(hour)],
            "missing_s": hour.missing_us / 1e6,
            "has_ended": hour.has_ended,
            "completeness": hour.completeness,
            "why": hour.why,
            "skew_s": hour.skew_s,
            "job_skew_s": hour.job_skew_s,
            "is_off": hour.is_off,
        }
        for hour in sorted(hours, key=lambda item: (item.hour_us, item.node, item.first_us))
    ]
