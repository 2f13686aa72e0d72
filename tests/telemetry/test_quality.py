"""How complete an hour is: boots, silence, holes, and what crosses its border."""

from __future__ import annotations

import pytest
from brokerd_telemetry import quality
from brokerd_telemetry.quality import NodeHour

from tests.telemetry import fleet

HOUR = fleet.HOUR_US


def hour(node: str = "n", boot: str = "b", last_us: int = HOUR, **more: object) -> NodeHour:
    fields = {"told_us": last_us, "rows": 100, "gap_rows": 0, "has_ended": False, **more}
    return NodeHour("c", node, boot, 0, 0, last_us, **fields)  # type: ignore[arg-type]


def judged(*hours: NodeHour) -> list[NodeHour]:
    boots: dict[str, dict[str, object]] = {}
    quality.note_boots(boots, hours, [])
    quality.judge(list(hours), boots)
    return list(hours)


def test_an_hour_that_was_told_from_end_to_end_is_complete() -> None:
    assert judged(hour())[0].completeness == 1.0


def test_a_boot_without_an_end_that_another_follows_lost_an_interval() -> None:
    """design/telemetry.md §13.14: a SIGKILL takes the running interval's counts with it."""
    killed = hour(boot="one", last_us=1_000_000_000)
    after = hour(boot="two", last_us=3_000_000_000)
    after.first_us = 1_200_000_000
    after.told_us = 1_800_000_000
    judged(killed, after)
    assert killed.missing_us == 10_000_000
    assert killed.completeness < 1.0
    assert after.completeness == 1.0


def test_a_boot_that_ended_cleanly_lost_nothing() -> None:
    ended = hour(boot="one", last_us=1_000_000_000, has_ended=True)
    after = hour(boot="two", last_us=3_000_000_000)
    after.first_us, after.told_us = 1_200_000_000, 1_800_000_000
    judged(ended, after)
    assert ended.completeness == 1.0


def test_a_member_that_fell_silent_while_others_go_on_is_not_complete() -> None:
    silent = hour("dead", "one", last_us=1_000_000_000)
    judged(silent, hour("alive", "two"))
    assert silent.completeness < 1.0


def test_holes_and_lost_rows_lower_completeness() -> None:
    assert judged(hour(told_us=HOUR - 360_000_000))[0].completeness == pytest.approx(0.9)
    assert judged(hour(gap_rows=100))[0].completeness == pytest.approx(0.5)


def test_an_hour_is_covered_from_its_first_row_to_its_last() -> None:
    begun = hour()
    begun.first_us = 600_000_000
    (line,) = quality.coverage([begun, hour("other", "c", last_us=HOUR + 5)])
    assert (line["start_us"], line["end_us"], line["seconds"]) == (0, HOUR, 3600.0)
    (line,) = quality.coverage([begun])
    assert (line["start_us"], line["end_us"], line["seconds"]) == (600_000_000, HOUR, 3000.0)
