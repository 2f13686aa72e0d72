"""The first line of the report: what clients published, what was delivered, what was lost."""

from __future__ import annotations

from typing import Any

from brokerd_telemetry import report_head


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
    )  # fmt: skip
    assert (found.published, found.delivered) == (4246, 4100)
    assert (found.returned, found.dropped, found.unroutable, found.lost) == (30, 8, 20, 6)
    assert report_head.in_words(found) == (
        "Clients published 4,246 messages, 4,100 were delivered, 30 were given back for want of a "
        "route, 20 were unroutable and dropped, not being mandatory, 8 were dropped by a limit, a "
        "TTL or a rejection, 6 were lost."
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
