"""What a queue did in a minute, where it is not the same queue, leader or term throughout."""

from __future__ import annotations

from typing import Any

import pyarrow
import pytest
from brokerd_telemetry import schema
from brokerd_telemetry.columns import deltas, last_rows, windows

from tests.telemetry import fleet

BEGIN_US = fleet.BEGIN_US


def row(group: int, term: int, node: str, second: int, ready: int, **more: Any) -> dict[str, Any]:
    """A row of a queue q that took `ready` messages and gave none."""
    t0 = BEGIN_US + second * 1_000_000
    counters = {**dict.fromkeys(schema.QUEUE_COUNTERS, 0), "enq": ready}
    gauges = {**dict.fromkeys(schema.QUEUE_GAUGES, 0), "ready": ready}
    return {
        "k": "queue", "cluster": "c", "node": node, "vhost": "/", "queue": "q", "qtype": "quorum",
        "strategy": "at-most-once", "grp": group, "term": term, "seq": second,
        "t0": t0, "t1": t0 + 10_000_000,
        **counters, **{f"c_{name}": count for name, count in counters.items()}, **gauges, **more,
    }  # fmt: skip


def made(
    reported: list[dict[str, Any]], carry: list[dict[str, Any]] | None = None
) -> windows.Windows:
    """What rows tell, of which the hour of BEGIN_US is covered."""
    rows, before = (pyarrow.Table.from_pylist(own, deltas.ROWS) for own in (reported, carry or []))
    own = deltas.in_order(rows, before)
    return windows.of(deltas.of(own, BEGIN_US, BEGIN_US + fleet.HOUR_US), "c")


@pytest.mark.parametrize("later", [8, 3, (1 << 62) + 7])
def test_the_later_queue_of_a_name_and_the_later_leader_have_the_last_word(later: int) -> None:
    """Numbers of groups are drawn: the later one's may be less."""
    found = made([
        # The first has seen many terms; who is declared anew begins with few.
        row(7, 9, "n0", 0, 5),
        row(7, 10, "n1", 10, 6, dlx="dead"),
        row(later, 1, "n2", 20, 2, qtype="classic", c_enq=3),
        # Heard of late: a term before that of the row above.
        row(later, 0, "n0", 30, 1, qtype="classic"),
    ])  # fmt: skip
    for table in (found.minutes, found.hours):
        [span] = table.to_pylist()
        assert (span["ready_last"], span["qtype"], span["leaders"], span["rows"]) == (
            2, "classic", 3, 4,
        )  # fmt: skip
        # 5, 1 more, and of the second queue 1 and 2 more.
        assert (span["ready_max"], span["d_enq"], span["grp"], span["dlx"]) == (6, 9, later, None)
        assert (span["start_depth"], span["t0"]) == (0, BEGIN_US)
    # By the ten seconds in which they came; the minute's last twenty seconds had no row.
    [minute] = found.minutes.to_pylist()
    assert [minute[f"enq_{n}"] for n in schema.FLOWS] == [5, 1, 2, 1, None, None]
    assert {
        (group["grp"], group["node"], group["ready_last"], group["dlx"], group["leaders"])
        for group in found.groups.to_pylist()
    } == {(7, "n1", 6, "dead", None), (later, "n2", 2, None, None)}


def test_a_step_begins_with_the_last_row_of_the_hour_before() -> None:
    before = row(7, 9, "n0", -10, 5, c_enq=100, c_ack=95)
    [span] = made([row(7, 9, "n0", 20, 8, c_enq=110, c_ack=102)], [before]).hours.to_pylist()
    assert (span["d_enq"], span["d_ack"], span["start_depth"], span["is_unknown_max"]) == (
        10, 7, 5, False,
    )  # fmt: skip
    # Twenty seconds that nobody told of had the level of the row before.
    assert (span["told_us"], span["ready_us"]) == (30_000_000, 20e6 * 5 + 10e6 * 8)
    assert (span["rows"], span["enq"], span["in_us"]) == (1, 8, BEGIN_US + 30_000_000)


def test_what_is_known_of_a_queue_only_since_then_is_deduced() -> None:
    """Its member began to tell when it had counted for long; and one that lost its data."""
    [span] = made([
        row(7, 9, "n0", 0, 5, c_enq=1000, c_ack=995, enq=3, ack=1),
        row(7, 9, "n0", 10, 2, c_enq=2, enq=2),
    ]).hours.to_pylist()  # fmt: skip
    assert (span["start_depth"], span["is_unknown_max"]) == (5 - 3 + 1, True)
    assert (span["d_enq"], span["d_ack"], span["first_us"]) == (3 + 2, 1, BEGIN_US)


def test_counters_beyond_all_sense_and_fields_that_nobody_sent_stop_nothing() -> None:
    huge = (1 << 63) - 1
    odd = row(huge, huge, "n0", 0, huge, unacked=huge, ready_bytes=huge, c_enq=huge, consumers=huge)
    old = {name: value for name, value in row(8, 1, "n1", 0, 1).items() if "default" not in name}
    found = made([odd, old | {"queue": "old", "strategy": None}])
    assert sorted(span["queue"] for span in found.hours.to_pylist()) == ["old", "q"]
    [mine] = [span for span in found.groups.to_pylist() if span["queue"] == "old"]
    assert (mine["d_default_limit_drop"], mine["at_least_once"], mine["ttl_ms_last"]) == (
        0, None, None,
    )  # fmt: skip


def test_the_next_hour_begins_with_the_last_rows_of_all_before() -> None:
    reported = [row(7, 9, "n0", 0, 5), row(7, 10, "n1", 10, 6), row(8, 1, "n2", 20, 2)]
    carried = [row(7, 11, "n0", -30, 1), row(9, 1, "n0", -9000, 3)]
    rows, before = (pyarrow.Table.from_pylist(own, deltas.ROWS) for own in (reported, carried))
    own = deltas.in_order(rows, before)
    found = deltas.last(own, BEGIN_US - 3_600_000_000).to_pylist()
    # A later term has the last word, even if its leader's clock is behind.
    assert [(last["grp"], last["node"], last["ready"]) for last in found] == [
        (7, "n0", 1), (8, "n2", 2),
    ]  # fmt: skip
    assert deltas.last(own, BEGIN_US + 25_000_000).column("grp").to_pylist() == [8]


def test_of_no_rows_there_are_no_spans() -> None:
    found = made([])
    for table in (found.minutes, found.quarters, found.hours, found.groups, found.flows):
        assert table.schema == windows.SCHEMA
        assert not table.num_rows


def carried(reported: list[dict[str, Any]], before: pyarrow.Table | None = None) -> pyarrow.Table:
    """The last rows of an hour that begins with some."""
    before = last_rows.ROWS.empty_table() if before is None else before
    own = deltas.in_order(
        pyarrow.Table.from_pylist(reported, deltas.ROWS), before.select(deltas.ROWS.names)
    )
    groups = windows.of(deltas.of(own, BEGIN_US, BEGIN_US + fleet.HOUR_US), "c").groups
    return last_rows.of(own, groups, before, BEGIN_US - fleet.HOUR_US)


def test_the_last_row_of_each_group_is_carried_with_when_something_happened() -> None:
    reported = [row(7, 9, "n0", 0, 5), row(7, 10, "n1", 10, 6, dlx="dead"), row(8, 1, "n2", 20, 2)]
    first = carried(reported)
    names = ("grp", "node", "ready", "dlx")
    assert [tuple(last[name] for name in names) for last in first.to_pylist()] == [
        (7, "n1", 6, "dead"), (8, "n2", 2, None),
    ]  # fmt: skip
    # One of them goes on, the other says nothing: both are carried, and since when they are known.
    later = carried([row(7, 10, "n1", 3600, 6, c_enq=100)], first)
    known = {last["grp"]: last for last in later.to_pylist()}
    for grp, at_s in ((7, 0), (8, 20)):
        assert known[grp]["first_us"] == BEGIN_US + at_s * 1_000_000
    assert known[7]["in_us"] > first.to_pylist()[0]["t1"]
    assert known[8] == first.to_pylist()[1]
    table = last_rows.table(later, "c", BEGIN_US)
    assert table.schema == last_rows.SCHEMA
    # What an earlier version's job wrote has no first_us.
    old = [{name: line[name] for name in deltas.CARRIED} for line in first.to_pylist()]
    again = carried([], pyarrow.Table.from_pylist(old, last_rows.ROWS)).to_pylist()
    assert [(last["grp"], last["first_us"], last["in_us"]) for last in again] == [
        (7, reported[1]["t0"], None), (8, reported[2]["t0"], None),
    ]  # fmt: skip


def test_quarters_and_flows_add_up_to_what_minutes_have() -> None:
    reported = [row(7, 1, "n0", second, second, c_enq=second * 3) for second in range(0, 3600, 10)]
    reported += [
        row(8, 1, "n1", second, 0, queue="other", c_enq=second) for second in range(0, 3600, 10)
    ]
    found = made(reported)
    for table in (found.quarters, found.flows):
        assert table.schema == windows.SCHEMA
        assert sum(table["d_enq"].to_pylist()) == sum(found.minutes["d_enq"].to_pylist())
    assert len(found.quarters) == 2 * 4
    assert {line["ready_last"] for line in found.quarters.to_pylist() if line["queue"] == "q"} == {
        890, 1790, 2690, 3590,
    }  # fmt: skip
    assert len(found.flows) == 60
    assert found.flows["queue"].null_count == 60
    assert found.flows["enq_1"].to_pylist()[5] == 30 + 10
