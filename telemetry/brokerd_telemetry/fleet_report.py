"""The page of a run over several clusters: a line each, the worst first, and their own pages.

Each cluster's own report stands beside it in `clusters/`, as it would be without the others; this
page says which of them to open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from brokerd_telemetry import charts, page, report, report_head, sinks
from brokerd_telemetry.columns import report_sums
from brokerd_telemetry.schema import HOUR_US, hour_start_us

if TYPE_CHECKING:
    from brokerd_telemetry.sinks import Live

Row = dict[str, Any]

#: Clusters that have a line; tables and findings have all.
CLUSTERS_SHOWN = 1_000
#: A cluster whose members told nothing for so long, while others did, is silent.
SILENT_US = 2 * HOUR_US


@dataclass(slots=True, frozen=True)
class Line:
    """One cluster."""

    cluster: str
    critical: int
    warnings: int
    fates: report_head.Fates
    judged: int
    unbalanced: int
    completeness: float
    as_of_us: int
    #: Published by clients, by hour.
    hourly: tuple[int, ...]

    @property
    def rank(self) -> tuple[int, ...]:
        """Return what puts the worst first."""
        return (-self.unbalanced, -self.critical, -self.fates.lost, -self.warnings)


def folder_of(cluster: str) -> str:
    """Return the directory of a cluster's page."""
    return f"clusters/{sinks.encoded(cluster)}"


def line(live: Live, cluster: str, findings: list[Row], hours_shown: int) -> Line:
    """Return what the page says of a cluster."""
    hours = live.hours("silver")[-hours_shown:]
    usage = live.rows("usage_1h", hours)
    books = report_sums.books(live.columns("audit_1h", hours, report.AUDIT)).values()
    published = {hour_start_us(hour): 0 for hour in hours}
    for row in usage:
        published[int(row["window_start"].timestamp()) * 1_000_000] += row["in"]
    severities = [item["severity"] for item in findings if item["status"] == "RAISED"]
    quality = live.rows("data_quality_1h", hours)
    queues = report_sums.queues(live.columns("queue_1h", hours, report.QUEUES))
    return Line(
        cluster=cluster,
        critical=severities.count("critical"),
        warnings=severities.count("warning"),
        fates=report_head.fates(
            usage,
            live.rows("unroutable_1h", hours),
            live.rows("deadletter_1h", hours),
            report_sums.gone(queues),
            report_sums.purged(queues),
            report_sums.acknowledged(queues),
        ),
        judged=sum(book.judged for book in books),
        unbalanced=sum(book.unbalanced for book in books),
        completeness=report_head.complete(quality),
        as_of_us=live.manifest.as_of_us([cluster]),
        hourly=tuple(published[at] for at in sorted(published)),
    )


def render(lines: list[Line], findings: list[Row], failed: Mapping[str, str], run_id: str) -> bytes:
    """Return the page; failed: sources that could not be asked, and why."""
    raised = [item for item in findings if item["status"] == "RAISED"]
    sections = [
        ("clusters", "Clusters", _clusters(lines, failed)),
        ("findings", "Findings", _findings(raised)),
    ]
    return page.document(f"{len(lines)} clusters", _head(lines, failed), sections, run_id)


def _head(lines: list[Line], failed: Mapping[str, str]) -> str:
    ill = sum(1 for item in lines if item.rank < (0, 0, 0, 0))
    quiet = len(_silent(lines)) + len(failed)
    total = report_head.added(item.fates for item in lines)
    unbalanced = sum(item.unbalanced for item in lines)
    worst = min((item.completeness for item in lines), default=1.0)
    tiles = [
        ("clusters", f"{len(lines):,}", ""),
        ("to look at", f"{ill:,}", "bad" if ill else "good"),
        ("silent or not reached", f"{quiet:,}", "warn" if quiet else "good"),
        ("published by clients", charts.short(total.published), ""),
        ("delivered", charts.short(total.delivered), ""),
        ("lost", f"{total.lost:,}", "bad" if total.lost else "good"),
        ("books that do not balance", f"{unbalanced:,}", "bad" if unbalanced else "good"),
        ("least complete", f"{worst:.1%}", "good" if worst >= 0.95 else "warn"),
    ]
    text, kind = "✓ All is well.", "good"
    if ill:
        verb = "needs" if ill == 1 else "need"
        text, kind = f"! {ill:,} of {len(lines):,} clusters {verb} a look.", "bad"
    elif quiet:
        text, kind = "Nothing is wrong where anything was told.", "warn"
    return (
        f"<header><h1>{len(lines):,} clusters</h1>"
        f'<p class="verdict {kind}">{escape(text)}</p>'
        f"<p>{escape(report_head.in_words(total, worst < 1.0))}</p>"
        f"{report_head.tiles(tiles)}</header>"
    )


def _silent(lines: list[Line]) -> set[str]:
    newest = max((item.as_of_us for item in lines), default=0)
    return {item.cluster for item in lines if item.as_of_us < newest - SILENT_US}


def _clusters(lines: list[Line], failed: Mapping[str, str]) -> str:
    silent = _silent(lines)
    top = max((max(item.hourly, default=0) for item in lines), default=0)
    rows = [
        (
            f'<a href="{quote(folder_of(item.cluster))}/report.html">{escape(item.cluster)}</a>',
            _state(item, silent),
            f"{item.critical:,}" if item.critical else "",
            f"{item.warnings:,}" if item.warnings else "",
            f"{item.fates.published:,}", f"{item.fates.delivered:,}",
            f"{item.fates.lost:,}" if item.fates.lost else "",
            f"{item.unbalanced:,} of {item.judged:,}" if item.unbalanced else "balance",
            f"{item.completeness:.1%}",
            f"{datetime.fromtimestamp(item.as_of_us / 1e6, UTC):%m-%d %H:%M}",
            charts.sparkline(item.hourly, f"published by hour in {item.cluster}") if top else "",
        )
        for item in sorted(lines, key=lambda item: (*item.rank, item.cluster))
    ]  # fmt: skip
    heads = ("cluster", "", "critical", "warnings", "published", "delivered", "lost", "books",
             "complete", "told until", "published, by hour")  # fmt: skip
    reported = "".join(
        f'<p class="more">{escape(name)} could not be asked: {escape(why)}</p>'
        for name, why in sorted(failed.items())
    )
    return reported + page.table(
        heads, rows, raw=(0, 1, 10), right=(2, 3, 4, 5, 6, 7, 8, 9), shown=CLUSTERS_SHOWN
    )


def _state(item: Line, silent: set[str]) -> str:
    if item.unbalanced or item.critical or item.fates.lost:
        return page.badge("look at it", "bad")
    if item.cluster in silent:
        return page.badge("silent", "bad")
    return page.badge("warnings", "dim") if item.warnings else page.badge("well", "good")


def _findings(raised: list[Row]) -> str:
    if not raised:
        return page.nothing("Nothing is raised now.")
    cards = "".join(
        f'<p class="more">{escape(item["cluster"])}</p>{report.card(item)}'
        for item in raised[: page.ROWS_SHOWN]
    )
    more = len(raised) - page.ROWS_SHOWN
    return cards + (f'<p class="more">and {more:,} more in the table</p>' if more > 0 else "")
