"""Inline SVG for the report: bars and lines, drawn from numbers, coloured by the page's CSS.

No scripts, no fonts, no addresses: the report must be readable in a mail and in ten years.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

WIDTH = 640
POINTS_MAX = 240


def sparkline(values: Sequence[float], label: str, width: int = 160, height: int = 34) -> str:
    """Return a small filled line of a series; a line at the bottom when it is all zero."""
    values = thinned(values)
    if not values:
        return ""
    top = max(max(values), 1.0)
    step = (width - 4) / max(len(values) - 1, 1)
    points = [
        f"{2 + index * step:.1f},{height - 3 - value / top * (height - 8):.1f}"
        for index, value in enumerate(values)
    ]
    if len(points) == 1:
        points.append(f"{width - 2},{points[0].split(',')[1]}")
    area = f"2,{height - 2} " + " ".join(points) + f" {points[-1].split(',')[0]},{height - 2}"
    filled = f'<polygon points="{area}"/>' if any(values) else ""
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}">{filled}'
        f'<polyline points="{" ".join(points)}"/></svg>'
    )


def lines(series: Sequence[tuple[str, Sequence[float]]], labels: tuple[str, str], unit: str) -> str:
    """Return a chart of up to four series over the same time; labels: of its two ends."""
    height, left, bottom = 190, 58, 24
    series = [(name, thinned(values)) for name, values in series[:4]]
    top = nice_top(max((max(values, default=0) for _, values in series), default=0))
    inner_width, inner_height = WIDTH - left - 8, height - bottom - 12
    parts = []
    for share in (0, 0.5, 1):
        y = 8 + inner_height * (1 - share)
        parts.append(
            f'<line class="grid" x1="{left}" y1="{y:.1f}" x2="{WIDTH - 8}" y2="{y:.1f}"/>'
            f'<text class="axis" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">'
            f"{short(top * share)}</text>"
        )
    for index, (name, values) in enumerate(series):
        step = inner_width / max(len(values) - 1, 1)
        points = " ".join(
            f"{left + at * step:.1f},{8 + inner_height * (1 - value / top):.1f}"
            for at, value in enumerate(values)
        )
        if len(values) == 1:
            points += f" {WIDTH - 8},{points.split(',')[1]}"
        parts.append(f'<polyline class="s{index}" points="{points}"><title>{escape(name)}</title>'
                     "</polyline>")  # fmt: skip
    parts.append(
        f'<text class="axis" x="{left}" y="{height - 6}">{escape(labels[0])}</text>'
        f'<text class="axis" x="{WIDTH - 8}" y="{height - 6}" text-anchor="end">'
        f"{escape(labels[1])}</text>"
    )
    legend = "".join(
        f'<span class="key"><i class="b{index}"></i>{escape(name)}</span>'
        for index, (name, _) in enumerate(series)
    )
    return (
        f'<figure><figcaption>{legend}<span class="unit">{escape(unit)}</span></figcaption>'
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img">{"".join(parts)}</svg>'
        "</figure>"
    )


def flow(rows: Sequence[dict[str, Any]], columns: Sequence[str], names: Sequence[str]) -> str:
    """Return a chart of counts per second from flow_10s: in bins that are as fine as there is room
    for, and no finer than what the members told; nothing without rows.
    """
    if not rows:
        return ""
    starts = [row["window_start"].timestamp() for row in rows]
    first, last = min(starts), max(starts)
    step_s = max(10.0, *(row["step_s"] or 0.0 for row in rows))
    bin_s = step_s * max(1, math.ceil((last - first + step_s) / step_s / POINTS_MAX))
    bins = int((last - first) // bin_s) + 1
    series = [[0.0] * bins for _ in columns]
    for start, row in zip(starts, rows, strict=True):
        at = int((start - first) // bin_s)
        for values, column in zip(series, columns, strict=True):
            values[at] += row[column] / bin_s
    ends = (
        f"{datetime.fromtimestamp(first, UTC):%Y-%m-%d %H:%M:%S}",
        f"{datetime.fromtimestamp(last + step_s, UTC):%H:%M:%S} UTC",
    )
    return lines(list(zip(names, series, strict=True)), ends, "messages/s")


def bar(share: float, kind: str = "b0") -> str:
    """Return a bar that fills a share of its cell."""
    width = max(0.0, min(share, 1.0)) * 100
    return f'<span class="bar"><i class="{kind}" style="width:{width:.1f}%"></i></span>'


def thinned(values: Sequence[float]) -> list[float]:
    """Return at most POINTS_MAX points, each the highest of those it stands for."""
    if len(values) <= POINTS_MAX:
        return list(values)
    size = -(-len(values) // POINTS_MAX)
    return [max(values[at : at + size]) for at in range(0, len(values), size)]


def nice_top(value: float) -> float:
    """Return a round number that is not below a value: 1, 2 or 5 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 1.0
    while power * 10 <= value:
        power *= 10
    while power > value:
        power /= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)


def short(value: float) -> str:
    """Return a number in at most five characters: 12.3k, 4.5M."""
    for limit, sign in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{sign}"
    return f"{value:.3g}"
