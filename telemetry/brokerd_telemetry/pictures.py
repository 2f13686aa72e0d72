"""Pictures of the report: bands on one time line, depth against limit, flows of letters.  PURE.

Plain SVG from rows of tables, coloured by the page's CSS; names that came from outside are escaped.
A picture that would show nothing is the empty string.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from html import escape
from typing import Any

from brokerd_telemetry import charts

Row = dict[str, Any]

WIDTH = 760
#: Names stand left of bands.
LEFT = 190
ROWS_MAX = 24
#: Spans of one row; more cannot be told apart.
SPANS_MAX = 400
DEPTHS_MAX = 6
#: Flows of dead letters drawn apart, the largest; the others are one.
FLOWS_MAX = 14
LINK_WINDOW_S = 300.0
HOUR_S = 3600.0
#: What is full later than that is no picture of today.
HORIZON_S = 48 * HOUR_S
_NAME_CHARS = 26


@dataclass(slots=True)
class TimelineRow:
    """One line of bands: (from, to in seconds since 1970, kind, words)."""

    name: str
    spans: list[tuple[float, float, str, str]] = field(default_factory=list)


def timeline_rows(
    episodes: Iterable[Row], blocked: Iterable[Row], links: Iterable[Row]
) -> list[TimelineRow]:
    """Return memory alarms by member, blocked clients by user and links by state, the first that
    have most to say: what is bad comes before links that run.
    """
    found: dict[str, TimelineRow] = {}

    def add(name: str, start_s: float, end_s: float, kind: str, words: str) -> None:
        found.setdefault(name, TimelineRow(name)).spans.append((start_s, end_s, kind, words))

    for row in episodes:
        add(f"memory of {row['node']}", row["start_us"] / 1e6, row["end_us"] / 1e6, "bad",
            f"memory alarm for {row['duration_s']:.0f} s")  # fmt: skip
    for row in blocked:
        for span in row["spans"] or ():
            words = f"{span['conn']} for {span['blocked_ms'] / 1000:.1f} s, {row['cause']}"
            name = f"blocked: {row['user']}"
            add(name, span["start_us"] / 1e6, span["end_us"] / 1e6, "warn", words)
    for row in links:
        start_s = row["window_start"].timestamp()
        kind, words = _link_state(row)
        add(f"link {row['link']}", start_s, start_s + LINK_WINDOW_S, kind, words)
    ordered = sorted(found.values(), key=lambda row: (not _is_troubled(row), row.name))
    return ordered[:ROWS_MAX]


def _is_troubled(row: TimelineRow) -> bool:
    return any(kind != "good" for _, _, kind, _ in row.spans)


def _link_state(row: Row) -> tuple[str, str]:
    state = row["state_last"] or "unknown"
    if row["is_stuck"] or state in ("error", "stopped"):
        why = f": {row['err_last']}" if row["err_last"] else ""
        return "bad", f"{'stuck, ' if row['is_stuck'] else ''}{state}{why}"
    if (row["running_pct"] or 0) < 99:
        return "warn", f"running {row['running_pct'] or 0:.0f} % of the time"
    return "good", "running"


def bands(found: Sequence[TimelineRow], start_s: float, end_s: float) -> str:
    """Return the rows over one time axis."""
    if not found or end_s <= start_s:
        return ""
    step, top = 24, 6
    height = top + step * len(found) + 24
    inner = WIDTH - LEFT - 8

    def x(at_s: float) -> float:
        return LEFT + inner * min(max((at_s - start_s) / (end_s - start_s), 0.0), 1.0)

    parts = []
    for number, row in enumerate(found):
        y = top + number * step
        parts.append(
            f'<text class="axis" x="{LEFT - 10}" y="{y + 15}" text-anchor="end">'
            f"{_short(row.name)}<title>{escape(row.name)}</title></text>"
            f'<rect class="timeline-row" x="{LEFT}" y="{y + 3}"'
            f' width="{inner}" height="16" rx="3"/>'
        )
        for since_s, until_s, kind, words in _joined(row.spans):
            left, right = x(since_s), x(until_s)
            parts.append(
                f'<rect class="{kind}" x="{left:.1f}" y="{y + 3}" '
                f'width="{max(right - left, 2):.1f}" height="16" rx="2">'
                f"<title>{escape(row.name)}, {_clock(since_s)} to {_clock(until_s)}: "
                f"{escape(words)}</title></rect>"
            )
    for share in (0, 0.25, 0.5, 0.75, 1):
        at_s = start_s + (end_s - start_s) * share
        anchor = "start" if share == 0 else "end" if share == 1 else "middle"
        parts.append(
            f'<text class="axis" x="{x(at_s):.1f}" y="{height - 6}" text-anchor="{anchor}">'
            f"{datetime.fromtimestamp(at_s, UTC):%m-%d %H:%M}</text>"
        )
    legend = (("bad", "alarm, stuck or down"), ("warn", "blocked, or not always running"),
              ("good", "running"))  # fmt: skip
    return _figure(legend, "bands", height, "what stood still, over time", parts)


def _joined(spans: Iterable[tuple[float, float, str, str]]) -> list[tuple[float, float, str, str]]:
    """Return spans in order, neighbours that say the same as one."""
    joined: list[tuple[float, float, str, str]] = []
    for since_s, until_s, kind, words in sorted(spans):
        if joined and joined[-1][1] >= since_s and joined[-1][2:] == (kind, words):
            joined[-1] = (joined[-1][0], max(joined[-1][1], until_s), kind, words)
        else:
            joined.append((since_s, until_s, kind, words))
    return joined[:SPANS_MAX]


def depths(
    minutes: Callable[[Collection[str]], Iterable[Row]], forecasts: Iterable[Row], until_s: float
) -> str:
    """Return, of the queues that will be full soonest, depth against limit and what is forecast.

    minutes: gives the minutes of queues of some names.  until_s: the end of the last hour; what was
    forecast earlier has come or not.
    """
    due = [
        row
        for row in forecasts
        if row["window_start"].timestamp() + HOUR_S == until_s and row["ttf_s"] < HORIZON_S
    ]
    due = sorted(due, key=lambda row: row["ttf_s"])[:DEPTHS_MAX]
    wanted = {(row["cluster"], row["vhost"], row["queue"]): row for row in due}
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in minutes({row["queue"] for row in due}) if due else ():
        key = (row["cluster"], row["vhost"], row["queue"])
        if key in wanted:
            points.setdefault(key, []).append((row["window_start"].timestamp(), row["ready_last"]))
    return "".join(_depth(row, sorted(points.get(key, []))) for key, row in wanted.items())


def _depth(row: Row, points: list[tuple[float, float]]) -> str:
    if not points:
        return ""
    height, left, bottom = 150, 58, 22
    start_s, now_s = points[0][0], points[-1][0]
    # As much of what is to come as of what was, so that both have a shape.
    ahead_s = min(float(row["ttf_hi_s"]), max(now_s - start_s, 600.0))
    limit, level = float(row["max_len"]), float(row["level"])
    top = charts.nice_top(max(limit, level, *(depth for _, depth in points)) * 1.05)
    inner, tall = WIDTH - left - 8, height - bottom - 10

    def x(at_s: float) -> float:
        return left + inner * (at_s - start_s) / max(now_s + ahead_s - start_s, 1.0)

    def y(depth: float) -> float:
        return 8 + tall * (1 - min(depth / top, 1.0))

    def then(ttf_s: float) -> str:
        # Where the limit is reached, or how far it is by the end of the picture.
        share = min(ahead_s / ttf_s, 1.0) if ttf_s else 1.0
        return f"{x(now_s + ttf_s * share):.1f},{y(level + (limit - level) * share):.1f}"

    now = f"{x(now_s):.1f},{y(level):.1f}"
    line = " ".join(f"{x(at_s):.1f},{y(depth):.1f}" for at_s, depth in _thinned(points))
    low, likely, high = (then(row[name]) for name in ("ttf_lo_s", "ttf_s", "ttf_hi_s"))
    words = f"{row['queue']} in {row['vhost']}: full in {_span(row['ttf_s'])}"
    parts = [
        f'<line class="grid" x1="{left}" y1="{y(0):.1f}" x2="{WIDTH - 8}" y2="{y(0):.1f}"/>',
        f'<line class="limit" x1="{left}" y1="{y(limit):.1f}" x2="{WIDTH - 8}" '
        f'y2="{y(limit):.1f}"/>',
        f'<text class="axis" x="{left - 8}" y="{y(limit) + 4:.1f}" text-anchor="end">'
        f"{charts.short(limit)}</text>",
        f'<text class="axis" x="{left - 8}" y="{y(0):.1f}" text-anchor="end">0</text>',
        f'<polygon class="cone" points="{now} {low} {high}"/>',
        f'<polyline class="s0" points="{line} {now}"/>',
        f'<polyline class="s0 ahead" points="{now} {likely}"/>',
        f'<text class="axis" x="{left}" y="{height - 6}">{_clock(start_s)}</text>',
        f'<text class="axis" x="{min(x(now_s), WIDTH - 90):.1f}" y="{height - 6}" '
        f'text-anchor="middle">{_clock(now_s)}</text>',
        f'<text class="axis" x="{WIDTH - 8}" y="{height - 6}" text-anchor="end">'
        f"{_clock(now_s + ahead_s)}</text>",
    ]
    legend = (("b0", escape(words)), ("limit", "limit"))
    return _figure(legend, "chart", height, words, parts)


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most charts.POINTS_MAX of the points, each the deepest of those it stands for."""
    size = -(-len(points) // charts.POINTS_MAX)
    return [max(points[at : at + size], key=_depth_of) for at in range(0, len(points), size)]


def _depth_of(point: tuple[float, float]) -> float:
    return point[1]


Flow = tuple[str, str, str]


def flows(letters: Iterable[Row], graph: Iterable[Row]) -> dict[Flow, int]:
    """Return messages by (queue, reason, where they went): a queue, or what became of them."""
    found: dict[Flow, int] = {}
    told: set[tuple[str, str]] = set()
    for row in graph:
        key = (row["queue"], row["reason"], f"→ {row['target']}")
        found[key] = found.get(key, 0) + row["n"]
        told.add(key[:2])
    for row in letters:
        # Of what was routed the graph says to where, unless the letters wait for their target.
        if row["outcome"] == "routed" and (row["queue"], row["reason"]) in told:
            continue
        where = f"→ exchange {row['dlx']}" if row["outcome"] == "routed" else row["outcome"]
        flow = (row["queue"], row["reason"], where)
        found[flow] = found.get(flow, 0) + row["n"]
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ordered[:FLOWS_MAX])
    if rest := sum(n for _, n in ordered[FLOWS_MAX:]):
        kept["others", "others", "others"] = rest
    return kept


def sankey(found: dict[Flow, int]) -> str:
    """Return flows of dead letters from queue over reason to where they went."""
    if not found:
        return ""
    bar, gap, top = 12, 10, 22
    totals: list[dict[str, int]] = [{}, {}, {}]
    for flow, n in found.items():
        for column, name in zip(totals, flow, strict=True):
            column[name] = column.get(name, 0) + n
    whole = max(sum(found.values()), 1)
    tall = 90.0 + 16 * max(len(column) for column in totals)
    # Each column has the same height for its messages, and a gap between its names.
    height = top + tall + gap * max(len(column) for column in totals)
    columns_x = (150.0, WIDTH / 2 - bar / 2, WIDTH - 190.0)
    places: list[dict[str, tuple[float, float]]] = []
    parts = []
    for number, (title, column) in enumerate(
        zip(("queue", "reason", "went to"), totals, strict=True)
    ):
        at, place = float(top), {}
        anchor = "end" if number == 0 else "start"
        text_x = columns_x[number] + (-8 if number == 0 else bar + 8)
        parts.append(f'<text class="axis" x="{text_x:.1f}" y="12" text-anchor="{anchor}">'
                     f"{title}</text>")  # fmt: skip
        for name, n in sorted(column.items(), key=lambda item: (-item[1], item[0])):
            size = max(tall * n / whole, 2.0)
            place[name] = (at, size)
            kind = _fate(name) if number == 2 else f"c{number}"
            parts.append(
                f'<rect class="{kind}" x="{columns_x[number]:.1f}" y="{at:.1f}" width="{bar}" '
                f'height="{size:.1f}" rx="2"><title>{escape(name)}: {n:,}</title></rect>'
                f'<text class="axis" x="{text_x:.1f}" y="{at + size / 2 + 4:.1f}" '
                f'text-anchor="{anchor}">{_short(name)} {charts.short(n)}</text>'
            )
            at += size + gap
        places.append(place)
    parts[:0] = _ribbons(found, places, columns_x, bar, tall / whole)
    words = "dead letters by queue, reason and where they went"
    legend = (("good", "kept by a queue"), ("warn", "dropped as set"), ("bad", "lost"))
    return _figure(legend, "sankey", round(height), words, parts)


def _ribbons(
    found: dict[Flow, int],
    places: list[dict[str, tuple[float, float]]],
    columns_x: tuple[float, float, float],
    bar: float,
    scale: float,
) -> list[str]:
    used: list[dict[str, float]] = [{}, {}, {}, {}]
    parts = []
    for flow, n in sorted(found.items(), key=lambda item: (-item[1], item[0])):
        size = max(n * scale, 1.0)
        for step in (0, 1):
            ends = []
            for side in (0, 1):
                column, name = step + side, flow[step + side]
                taken = used[step * 2 + side]
                ends.append(places[column][name][0] + taken.get(name, 0.0))
                taken[name] = taken.get(name, 0.0) + n * scale
            x0, x1 = columns_x[step] + bar, columns_x[step + 1]
            half, (y0, y1) = (x0 + x1) / 2, ends
            parts.append(
                f'<path class="{_fate(flow[2])}" d="M{x0:.1f} {y0:.1f}C{half:.1f} {y0:.1f} '
                f"{half:.1f} {y1:.1f} {x1:.1f} {y1:.1f}V{y1 + size:.1f}C{half:.1f} "
                f'{y1 + size:.1f} {half:.1f} {y0 + size:.1f} {x0:.1f} {y0 + size:.1f}Z">'
                f"<title>{escape(' · '.join(flow))}: {n:,}</title></path>"
            )
    return parts


def _fate(name: str) -> str:
    """Return the colour of where letters went: kept, dropped on purpose, lost, or several."""
    if name.startswith("→") or name == "pending":
        return "good"
    if name == "others":
        return "other"
    return "warn" if name == "dropped_no_dlx" else "bad"


def _figure(
    legend: Iterable[tuple[str, str]], kind: str, height: int, words: str, parts: Sequence[str]
) -> str:
    """Return a figure; legend: (colour, text, escaped already)."""
    keys = "".join(
        f'<span class="key"><i class="{name}"></i>{text}</span>' for name, text in legend
    )
    return (
        f'<figure><figcaption>{keys}</figcaption><div class="scroll wide" tabindex="0">'
        f'<svg class="{kind}" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(words)}">{"".join(parts)}</svg></div></figure>'
    )


def _short(name: str) -> str:
    return escape(name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 1] + "…")


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 2 * HOUR_S else f"{seconds / HOUR_S:.1f} h"


def _clock(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%H:%M}"
