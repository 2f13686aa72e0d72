"""The first lines of the report: is all well, and what became of what clients published.  PURE."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

from brokerd_telemetry.columns.report_sums import Book
from brokerd_telemetry.schema import hour_of

Row = dict[str, Any]

#: Gaps that the first line names; of the rest, only the number.
UNSEEN_SHOWN = 4
#: Of quality.NodeHour.why, where silence is all.
_SILENCE = re.compile(r".* silent (\d\d:\d\d)-(\d\d:\d\d)")
#: Of a client's message without a route, what the client did not ask to be told of (mandatory).
_UNTOLD = ("dropped", "ae_missing", "ae_cycle")


@dataclass(slots=True, frozen=True)
class Fates:
    """Messages of clients.  What queues count is copies: one message can be many, or none."""

    published: int
    #: To consumers and by gets, each message once for each queue; without redeliveries.
    delivered: int
    returned: int
    #: As dead letters on their way: they were confirmed, and are gone.
    lost: int
    #: By a limit, a TTL or a rejection without a dead letter exchange: as somebody has set it.
    dropped: int
    #: Without a route and without `mandatory`: as the publisher has asked for.
    unroutable: int = 0
    #: With queues that were deleted or expired.
    gone: int = 0
    purged: int = 0
    #: By the counts of queues, which are whole where those of members are not.
    acknowledged: int = 0


def fates(
    usage: Iterable[Row],
    unroutable: Iterable[Row],
    letters: Iterable[Row],
    gone: int = 0,
    purged: int = 0,
    acknowledged: int = 0,
) -> Fates:
    """Add up usage_1h, unroutable_1h and deadletter_1h of the same hours.  gone: messages that went
    with their queues.
    """
    usage, letters = list(usage), list(letters)
    by_outcome: dict[str, int] = {}
    for row in unroutable:
        # Rows by key are of clients only.
        if row["outcome"] != "all":
            by_outcome[row["outcome"]] = by_outcome.get(row["outcome"], 0) + row["n"]
    return Fates(
        published=sum(row["in"] for row in usage),
        delivered=sum(row["out"] - row["redlv"] for row in usage),
        returned=by_outcome.get("returned", 0),
        lost=sum(row["lost"] for row in letters),
        dropped=sum(row["n"] for row in letters if row["outcome"] == "dropped_no_dlx"),
        unroutable=sum(by_outcome.get(name, 0) for name in _UNTOLD),
        gone=gone,
        purged=purged,
        acknowledged=acknowledged,
    )


def added(several: Iterable[Fates]) -> Fates:
    """Return the fates of several clusters' messages together."""
    total = [0] * len(fields(Fates))
    for one in several:
        total = [
            before + getattr(one, field.name)
            for before, field in zip(total, fields(one), strict=True)
        ]
    return Fates(*total)


def tiles(found: Iterable[tuple[str, str, str]]) -> str:
    """Return figures side by side: what it is, the figure, and good, warn or bad."""
    cells = "".join(
        f'<div class="tile {kind}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value, kind in found
    )
    return f'<div class="tiles">{cells}</div>'


def head(
    clusters: str, hours: list[str], findings: list[Row], found: Fates, books: Collection[Book],
    quality: list[Row], unseen: str = "", unreported: int = 0, until_us: int = 0,
) -> str:  # fmt: skip
    """Return the page's header.  unseen: what it could not see, in words; untold: of in_words;
    until_us: when the newest row ends.
    """
    raised = [item for item in findings if item["status"] == "RAISED"]
    unbalanced = sum(book.unbalanced for book in books)
    judged = sum(book.judged for book in books)
    completeness = complete(quality)
    # Of what was not seen whole nothing is known to be good.
    least, good = ("≥ ", "") if unseen else ("", "good")
    figures = [
        ("published by clients", f"{least}{found.published:,}", ""),
        ("delivered", f"{least}{found.delivered:,}", ""),
        (
            "unroutable, dropped",
            f"{least}{found.unroutable:,}",
            "warn" if found.unroutable else good,
        ),
        ("lost", f"{least}{found.lost:,}", "bad" if found.lost else good),
        ("findings raised", str(len(raised)), "bad" if raised else good),
        (
            "books",
            f"{judged:,} balance" if not unbalanced else f"{unbalanced} do not balance",
            "bad" if unbalanced else good,
        ),
        ("completeness", f"{completeness:.1%}", good if completeness >= 0.95 else "warn"),
    ]
    span = f"{hours[0].replace('T', ' ')}:00 – {_end(hours[-1], until_us)} UTC" if hours else ""
    verdict = _verdict(raised, unbalanced, found, completeness, bool(unseen))
    not_seen = f'<p class="verdict warn">? {escape(unseen)}</p>' if unseen else ""
    return (
        f"<header><h1>{escape(clusters)}</h1>{not_seen}{verdict}"
        f"<p>{escape(in_words(found, bool(unseen), unreported))}</p><p>{escape(span)}</p>"
        f"{tiles(figures)}</header>"
    )


def _end(hour: str, until_us: int) -> str:
    """Return when a period ends whose last hour may still go on."""
    if hour_of(until_us) == hour:
        return f"{datetime.fromtimestamp(until_us / 1e6, UTC):%Y-%m-%d %H:%M}"
    return f"{hour.replace('T', ' ')}:59"


def complete(quality: Iterable[Row]) -> float:
    """Return how much of the least complete hour was told, its members together; of
    data_quality_1h.
    """
    members: dict[tuple[str, Any], dict[str, float]] = {}
    for row in quality:
        own = members.setdefault((row["cluster"], row["window_start"]), {})
        own[row["node"]] = min(own.get(row["node"], 1.0), row["completeness"])
    return min((sum(own.values()) / len(own) for own in members.values()), default=1.0)


def unseen(quality: Iterable[Row], absent: Mapping[str, str]) -> str:
    """Return what the tables do not know, "" if nothing.

    quality: rows of data_quality_1h.  absent: members that the last run asked in vain, and why.
    """
    found = [f"{name} did not answer ({why})" for name, why in sorted(absent.items())]
    found += _whys(quality)
    if not found:
        return ""
    more = len(found) - UNSEEN_SHOWN
    rest = f"; and {more:,} more, see below" if more > 0 else ""
    return f"Not all was seen: {'; '.join(found[:UNSEEN_SHOWN])}{rest}."


def _whys(quality: Iterable[Row]) -> list[str]:
    """Return why hours of members are not known whole; silence from hour to hour is one span."""
    found: set[str] = set()
    windows: list[tuple[str, datetime, datetime]] = []
    for row in sorted(quality, key=lambda row: (row["node"], row["window_start"])):
        why = row.get("why") or ""
        silence = _SILENCE.fullmatch(why)
        if silence is None:
            found.add(why)
            continue
        begin, end = (_near(row["window_start"], clock) for clock in silence.groups())
        if windows and windows[-1][0] == row["node"] and windows[-1][2] == begin:
            begin = windows.pop()[1]
        windows.append((row["node"], begin, end))
    for node, begin, end in windows:
        day = "" if end - begin < timedelta(days=1) else "%m-%d "
        found.add(f"{node} silent {begin:{day}%H:%M}-{end:{day}%H:%M}")
    return sorted(found - {""})


def _near(hour: datetime, clock: str) -> datetime:
    """Return when a clock shows this around an hour."""
    at = hour.replace(hour=int(clock[:2]), minute=int(clock[3:]))
    return at + timedelta(days=round((hour - at) / timedelta(days=1)))


def _verdict(
    raised: list[Row], unbalanced: int, found: Fates, completeness: float, is_partial: bool
) -> str:
    """Return in one line whether all is well."""
    worst = [item for item in raised if item["severity"] in ("critical", "warning")]
    if not (worst or unbalanced or found.lost):
        text = "All is well."
        if is_partial or completeness < 0.95:
            text = f"Nothing is wrong in the {completeness:.1%} that was told."
        return f'<p class="verdict good">✓ {escape(text)}</p>'
    critical = sum(item["severity"] == "critical" for item in worst)
    parts = [f"{critical} critical"] if critical else []
    if len(worst) > critical:
        parts.append(f"{len(worst) - critical} to look at")
    if found.lost:
        parts.append(f"{found.lost:,} messages lost")
    if unbalanced:
        parts.append("the books do not balance")
    kind = "bad" if critical or found.lost or unbalanced else "warn"
    link = '<a href="#findings">what it is</a>'
    return f'<p class="verdict {kind}">! {escape(", ".join(parts))}: {link}</p>'


def in_words(found: Fates, is_partial: bool = False, unreported: int = 0) -> str:
    """Return the first line.  is_partial: not all was seen.  unreported: copies that queues took
    beyond those that exchanges report.
    """
    rest = [
        f"{count:,} {what}"
        for count, what in (
            (found.returned, "were given back for want of a route"),
            (found.unroutable, "were unroutable and dropped, not being mandatory"),
            (found.dropped, "were dropped by a limit, a TTL or a rejection"),
            (found.gone, "went with queues that were deleted or expired"),
            (found.purged, "were purged"),
            (found.lost, "were lost"),
        )
        if count
    ]
    least = "at least " if is_partial else ""
    more = acked = ""
    if is_partial and unreported:
        more = f" (queues took {unreported:,} more copies than are known to have come)"
    if is_partial and found.acknowledged > found.delivered:
        acked = f" ({found.acknowledged:,} were acknowledged)"
    text = (
        f"Clients published {least}{found.published:,} messages{more}, {least}"
        f"{found.delivered:,} were delivered{acked}"
    )
    if not found.lost:
        rest.append("none is known to be lost" if is_partial else "none was lost")
    return f"{text}, {', '.join(rest)}."
