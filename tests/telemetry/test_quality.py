"""How complete an hour is: boots, silence, holes, and what crosses its border."""

from __future__ import annotations

import pyarrow
import pytest
from brokerd_telemetry import quality, rules
from brokerd_telemetry.columns import reported
from brokerd_telemetry.quality import NodeHour
from brokerd_telemetry.rules import Facts

from tests.telemetry import fleet

HOUR = fleet.HOUR_US


def hour(node: str = "n", boot: str = "b", last_us: int = HOUR, **more: object) -> NodeHour:
    fields = {"told_us": last_us, "rows": 100, "gap_rows": 0, "has_ended": False, **more}
    return NodeHour("c", node, boot, 0, 0, last_us, **fields)  # type: ignore[arg-type]


def judged(*hours: NodeHour, peers: dict[str, quality.Span | None] | None = None) -> list[NodeHour]:
    boots: dict[str, dict[str, object]] = {}
    quality.note_boots(boots, hours, [])
    found = list(hours)
    quality.judge(found, boots, {("c", 0): peers or {}})
    return found


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
    assert killed.why == "n was killed and its last interval is lost"
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


def test_a_member_that_was_up_and_of_which_there_is_no_row_is_missing() -> None:
    """Two of three members were asked: the third counts, by name, with the time that is missing."""
    up = (240_000_000, 540_000_000)
    *_, absent = judged(hour(knows_peers=True), hour("m", "c"), peers={"m": (0, HOUR), "o": up})
    assert (absent.node, absent.rows, absent.completeness) == ("o", 0, 0.0)
    assert (absent.missing_us, absent.why) == (300_000_000, "o silent 00:04-00:09")
    (line,) = quality.coverage([hour(), hour("m", "c"), absent])
    assert (line["completeness"], line["unseen"]) == (0.0, absent.why)
    assert (line["start_us"], line["end_us"]) == (0, HOUR)


def test_a_member_whose_telemetry_is_switched_off_is_said_to_be_so() -> None:
    """Hour after hour in the same words, so that it is named once."""
    found, boots = [hour(knows_peers=True)], dict[str, dict[str, object]]()
    quality.note_boots(boots, found, [])
    peers = {("c", 0): {"m": (0, HOUR), "o": (0, HOUR)}}
    quality.judge(found, boots, peers, {("c", 0, "o"), ("c", 0, "n")})
    told_of, *absent = found
    assert (told_of.why, told_of.is_off) == ("", False)
    whys = [each.why for each in absent]
    assert whys == ["m silent 00:00-01:00", "o has telemetry switched off"]
    off = quality.table(absent, [], {}, {})[1]
    assert (off["is_off"], off["completeness"]) == (True, 0.0)
    assert not list(rules.BY_ID["TELE-LOSS"].check(off, Facts()))
    (hit,) = rules.BY_ID["TELE-OFF"].check(off, Facts())
    assert (hit.name, rules.BY_ID["TELE-OFF"].severity) == ("o", "info")


def test_segments_count_in_the_hour_of_their_names_whichever_run_took_them() -> None:
    def path(boot: str, number: int) -> str:
        hh = f"cluster=c/node=n/dt=1970-01-01/hh=0{number}"
        return f"{hh}/sample.{boot}.00000{number}.0-9.10.jsonl.gz"

    entries = [
        {"boot": boot, "hour": "1970-01-01T00", "seq0": 0, "first_seq": first}
        for boot, first in (("b", 0), ("b", 4), ("a", 1))
    ]
    others = {
        "segments_quarantined": [path("b", 0), path("b", 1), path("a", 0), "odd"],
        "segments_duplicate": [path("a", 0)],
    }
    rows = quality.table([hour(), hour(boot="a")], entries, {}, others)
    columns = ("boot", "segments", "rows_overlapping", *others)
    assert [tuple(row[name] for name in columns) for row in rows] == [
        ("b", 2, 4, 1, 0),
        ("a", 1, 1, 1, 1),
    ]


def test_the_newest_hour_says_how_far_a_clock_is_off_the_jobs() -> None:
    old, new, other = hour(), hour(last_us=HOUR + 5), hour("m", "c")
    quality.note_clocks([old, new, other], {("c", "n"): -300.0, ("d", "m"): 9.0})
    assert [each.job_skew_s for each in (old, new, other)] == [None, -300.0, None]
    (row,) = quality.table([new], [], {}, {})
    (hit,) = rules.BY_ID["TELE-CLOCK"].check(row, Facts())
    assert (hit.value, hit.threshold) == (-300.0, 5.0)
    assert "300 s behind that of the machine of the job" in hit.message
    quality.note_clocks([other], {("", "m"): 9.0})
    assert other.job_skew_s == 9.0


def test_a_member_that_was_down_is_not_missing() -> None:
    assert len(judged(hour(knows_peers=True), peers={"o": None})) == 1


def test_a_member_that_stopped_answering_is_silent_from_then_on() -> None:
    """Rows that members write at different moments of an interval are no silence."""
    found = hour("m", "c", last_us=HOUR // 2)
    other = hour(last_us=HOUR // 2 + 20_000_000)
    judged(other, found, peers={"m": (0, HOUR // 2 + 20_000_000)})
    assert (found.why, other.why) == ("", "")
    judged(hour(), found, peers={"m": (0, HOUR)})
    assert found.why == "m silent 00:30-01:00"
    assert found.completeness == pytest.approx(0.5)


def test_a_member_that_ended_or_began_is_not_silent_before_and_after() -> None:
    ended = hour("m", "c", last_us=HOUR // 2, has_ended=True)
    begun = hour("o", "d")
    begun.first_us, begun.told_us = HOUR // 2, HOUR // 2
    whole = hour(last_us=HOUR // 2 + 50_000_000)
    judged(whole, ended, begun, peers={"m": (0, HOUR), "o": (0, HOUR)})
    assert [each.why for each in (ended, begun)] == ["", ""]


def test_members_of_an_earlier_version_are_missing_by_number() -> None:
    *_, absent = judged(hour(group=3), hour("m", "c", group=3))
    assert absent.why == "nothing is known of some of at least 3 members"
    assert absent.completeness == 0.0
    assert len(judged(hour(group=3, knows_peers=True))) == 1
    assert len(judged(hour(group=1))) == 1


def test_rows_name_when_each_peer_was_up() -> None:
    names = pyarrow.list_(pyarrow.string())
    rows = pyarrow.table(
        {
            "t0": [10, 20, 30],
            "t1": [20, 30, 40],
            "peers": pyarrow.array([["b", "c"], ["b"], None], names),
            "peers_down": pyarrow.array([["d"], ["c"], None], names),
        }
    )
    found = {
        line["peer"]: (line["from_us"], line["until_us"])
        for line in reported.peers(rows).to_pylist()
    }
    assert found == {"b": (10, 30), "c": (10, 20), "d": (None, None)}
    off = pyarrow.array([["c"], None, ["c"]], names)
    assert reported.switched_off(rows.append_column("peers_off", off)) == ["c"]


def test_rows_that_no_segment_has_are_lost_though_no_member_says_so() -> None:
    """Numbers tell: 10 to 89 are nowhere; what an earlier segment lacks before its first may have
    been forgotten, and events have numbers of their own.
    """

    def segment(seq0: int, seq1: int, **more: object) -> dict[str, object]:
        fields = {"boot": "b", "stream": "sample", "hour": "1970-01-01T00"}
        return {**fields, "seq0": seq0, "seq1": seq1, **more}

    told_of, dropped = hour(), hour("m", "c", gap_rows=5)
    others = [segment(7, 8, stream="event"), segment(0, 50, boot="d")]
    segments = [
        segment(100, 110),
        segment(5, 9),
        *others,
        segment(90, 109),
        segment(0, 1, boot="c"),
    ]
    quality.note_lost_rows([told_of, dropped], segments)
    assert (told_of.gap_rows, dropped.gap_rows) == (80, 5)
    assert judged(told_of)[0].why == "n 80 rows lost"
