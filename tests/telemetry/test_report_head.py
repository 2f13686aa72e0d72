"""The first line of the report: what clients published, what was delivered, what was lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from brokerd_telemetry import report_head


def at(hour: int) -> datetime:
    return datetime(2026, 11, 20, tzinfo=UTC) + timedelta(hours=hour)


def usage(user: str, **counts: int) -> dict[str, Any]:
    return {"user": user, "in": 0, "out": 0, "redlv": 0, **counts}


def unroutable(outcome: str, n: int) -> dict[str, Any]:
    return {"outcome": outcome, "n": n}


def letters(outcome: str, n: int, lost: int) -> dict[str, Any]:
    return {"outcome": outcome, "n": n, "lost": lost}


def test_messages_are_counted_once_and_not_by_copies() -> None:
    """4,246 were published and 15,533 copies enqueued: clients care for the former."""
    found = report_head.fates(
        [usage("web", **{"in": 4246}), usage("app", out=4300, redlv=200), usage("")],
        [unroutable("all", 90), unroutable("ae", 40), unroutable("returned", 30),
         unroutable("dropped", 15), unroutable("ae_missing", 5)],
        [letters("routed", 500, 0), letters("dropped_no_dlx", 8, 0), letters("dlx_missing", 6, 6)],
        purged=9,
    )  # fmt: skip
    assert (found.published, found.delivered) == (4246, 4100)
    assert (found.returned, found.dropped, found.unroutable, found.lost) == (30, 8, 20, 6)
    assert report_head.in_words(found) == (
        "Clients published 4,246 messages, 4,100 were delivered, 30 were given back for want of a "
        "route, 20 were unroutable and dropped, not being mandatory, 8 were dropped by a limit, a "
        "TTL or a rejection, 9 were purged, 6 were lost."
    )


def test_what_was_unroutable_by_the_publishers_own_doing_is_not_lost() -> None:
    found = report_head.fates([usage("web", **{"in": 3})], [unroutable("dropped", 3)], [])
    page = report_head.head("c", ["2026-11-20T14"], [], found, [], [])
    assert "All is well." in page
    assert "3 were unroutable and dropped, not being mandatory, none was lost." in page


def test_where_nothing_is_lost_it_says_so() -> None:
    found = report_head.fates([usage("web", **{"in": 3}, out=3)], [], [])
    assert report_head.in_words(found).endswith("3 were delivered, none was lost.")
    page = report_head.head("c", ["2026-11-20T14"], [], found, [], [])
    assert "2026-11-20 14:00 – 2026-11-20 14:59 UTC" in page


def test_totals_of_what_was_not_seen_whole_are_the_least() -> None:
    found = report_head.fates([usage("web", **{"in": 3498}, out=3)], [], [], 7, acknowledged=5)
    assert "acknowledged" not in report_head.in_words(found)
    assert report_head.in_words(found, is_partial=True, unreported=300) == (
        "Clients published at least 3,498 messages (queues took 300 more copies than are known to "
        "have come), at least 3 were delivered (5 were acknowledged), 7 went with "
        "queues that were deleted or expired, none is known to be lost."
    )
    whole = {"cluster": "c", "window_start": at(21), "completeness": 1.0, "why": ""}
    silent = whole | {"node": "n2", "completeness": 0.0, "why": "n2 silent 21:04-21:09"}
    quality = [whole | {"node": "n0"}, whole | {"node": "n1"}, silent]
    unseen = report_head.unseen(quality, {"n2": "no answer"})
    assert unseen == "Not all was seen: n2 did not answer (no answer); n2 silent 21:04-21:09."
    page = report_head.head("c", ["2026-11-20T14"], [], found, [], quality, unseen)
    assert page.index(unseen) < page.index("Nothing is wrong in the 66.7% that was told.")
    assert "<b>≥ 3,498</b>" in page
    assert "All is well." not in page
    # What was not seen is not known to be good.
    assert '<div class="tile "><b>≥ 0</b><span>lost</span></div>' in page
    assert 'class="tile good"' not in page


def test_silence_from_hour_to_hour_is_one_span() -> None:
    def row(node: str, hour: int, silence: str) -> dict[str, Any]:
        return {"node": node, "window_start": at(hour), "why": f"{node} {silence}".strip()}

    quality = [
        row("n1", 23, "silent 23:10-00:00"), row("n1", 24, "silent 00:00-00:30"),
        row("n2", 22, "silent 22:00-22:10"), row("n2", 23, "silent 23:00-23:10"),
        row("n2", 24, "silent 00:00-00:10, was killed and its last interval is lost"),
    ]  # fmt: skip
    assert report_head.unseen(quality, {}) == (
        "Not all was seen: n1 silent 23:10-00:30; n2 silent 00:00-00:10, was killed and its last "
        "interval is lost; n2 silent 22:00-22:10; n2 silent 23:00-23:10."
    )
    day = [row("n1", 14 + n, f"silent {(14 + n) % 24}:00-{(15 + n) % 24:02}:00") for n in range(10)]
    day += [row("n1", 24 + n, f"silent {n:02}:00-{n + 1:02}:00") for n in range(14)]
    assert report_head.unseen(day, {}) == ("Not all was seen: n1 silent 11-20 14:00-11-21 14:00.")


def test_a_period_ends_when_the_newest_row_does() -> None:
    found = report_head.fates([], [], [])
    until_us = 1_795_183_200_000_000 + 9 * 60_000_000
    page = report_head.head("c", ["2026-11-20T14"], [], found, [], [], until_us=until_us)
    assert "2026-11-20 14:00 – 2026-11-20 14:09 UTC" in page
