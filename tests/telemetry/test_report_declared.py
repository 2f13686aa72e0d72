"""The report's sections on what is declared."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from brokerd_telemetry import report_declared

NOW = datetime(2026, 11, 20, 15, tzinfo=UTC)


def policy(name: str, state: str, **fields: Any) -> dict[str, Any]:
    counts: dict[str, Any] = {"matched_by": [], "won_by": [], "overridden": None, "lost_to": None}
    return {
        "window_start": NOW, "vhost": "/", "policy": name, "policy_kind": "policy", "state": state,
        "apply_to": "queues", "priority": 1, **counts, **fields,
    }  # fmt: skip


def objects(kind: str, count: int, without: int) -> dict[str, Any]:
    return {
        "window_start": NOW, "vhost": "/", "policy": None, "object_kind": kind, "objects": count,
        "without_policy": without,
    }  # fmt: skip


def test_policies_of_no_use_come_first_and_names_are_escaped() -> None:
    page = report_declared.policies(
        [
            policy("a", "wins", won_by=[{"key": "quorum", "value": 1200}],
                   overridden=[{"key": "max-length", "value": 3}]),
            policy("<b>", "matches_nothing"),
            policy("c", "shadowed", policy_kind="operator_policy", lost_to="a"),
            policy("earlier", "wins", window_start=NOW.replace(hour=14)),
            objects("classic", 7, 2),
        ]
    )  # fmt: skip
    assert page.index("&lt;b&gt;") < page.index("operator policy") < page.index("1,200 quorum")
    for text in ("matches nothing", "never wins", "3 max-length", "classic queues"):
        assert text in page
    assert "<b>" not in page
    assert "earlier" not in page, "of an hour before"


def test_where_nobody_told_it_says_so() -> None:
    """Members of earlier versions do not tell what is declared."""
    assert "It is not known" in report_declared.policies([])
    assert "No policy." in report_declared.policies([objects("classic", 1, 1)])


def test_exchanges_that_are_idle_longest_come_first() -> None:
    reported = {"window_start": NOW, "vhost": "/", "xtype": "topic", "bindings": 0}
    page = report_declared.exchanges(
        [
            {**reported, "exchange": "inner", "is_unbound": True, "idle_in_s": None},
            {**reported, "exchange": "<x>", "is_unbound": False, "idle_in_s": 7200.0},
            {**reported, "exchange": "old", "is_unbound": True, "idle_in_s": 15 * 86_400.0},
        ]
    )
    assert page.index("15.0 days") < page.index("&lt;x&gt;") < page.index("others lead to it")
    assert page.count("leads nowhere") == 2
    assert "No exchange" in report_declared.exchanges([])
