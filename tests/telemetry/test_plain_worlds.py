"""Many worlds without Spark (plain_books.py): what was not seen accuses nobody, and what is wrong
is found.  `make telemetry-worlds` makes 2,000 of them; test_worlds.py has some through Spark.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.telemetry import fleet, plain_books, worlds

#: Each kind at least once.
SEEDS = range(max(1, int(os.environ.get("WORLDS", "0")) // len(worlds.KINDS)))
#: When the segments are read.
NOW_US = fleet.BEGIN_US + worlds.STEPS * worlds.STEP_US


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worlds end with their tests: nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def played(
    tmp_path: Path, seed: int, trouble: str, bug: str
) -> tuple[worlds.World, plain_books.Books]:
    world = worlds.of_kind(tmp_path, seed, trouble, bug)
    world.play()
    return world, plain_books.audit(tmp_path, NOW_US)


@pytest.mark.parametrize(("trouble", "bug"), worlds.KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_world_is_accused_if_and_only_if_a_counter_is_wrong(
    tmp_path: Path, seed: int, trouble: str, bug: str
) -> None:
    world, books = played(tmp_path, seed, trouble, bug)
    assert books.accuses == bool(bug), books.residuals
    if not trouble:
        assert None not in books.residuals.values()
    is_partial = world.has(
        *("not-asked", "off", "silent", "lost-segment", "half-copied", "kill", "ahead-untold")
    )
    assert any(books.unseen.values()) == is_partial


@pytest.mark.parametrize("pair", worlds.PAIRS)
def test_troubles_that_come_together_accuse_nobody(tmp_path: Path, pair: str) -> None:
    _, books = played(tmp_path, 1, pair, "")
    assert not books.accuses, books.residuals


@pytest.mark.parametrize("bug", ["ack-twice", "depth-less", "outcome-missing", "letter-lost"])
@pytest.mark.parametrize("trouble", ["kill", "silent", "ahead", "gone"])
def test_what_queues_and_exchanges_count_wrong_is_found_in_any_trouble(
    tmp_path: Path, trouble: str, bug: str
) -> None:
    """Queues and exchanges are judged always: each of their rows is whole."""
    assert played(tmp_path, 2, trouble, bug)[1].accuses


@pytest.mark.parametrize("bug", worlds.BLIND)
def test_what_no_equation_holds_is_not_found(tmp_path: Path, bug: str) -> None:
    """As the documents say; who adds an equation moves its bug to BUGS."""
    assert not played(tmp_path, 1, "", bug)[1].accuses


@pytest.mark.parametrize("trouble", ["ahead", "behind", "ahead-untold"])
def test_no_row_of_a_member_with_a_wrong_clock_is_lost(tmp_path: Path, trouble: str) -> None:
    _, books = played(tmp_path, 1, trouble, "")
    assert books.bad_rows == 0
    hours = {fleet.BEGIN_US + hour * fleet.HOUR_US for hour in range(2)}
    reported = {(node.node, node.hour_us) for node in books.nodes if node.boot}
    assert reported == {(name, hour_us) for name in worlds.MEMBERS for hour_us in hours}
    expected_s = worlds.SKEWS_MS[trouble] / 1000
    assert {node.skew_s for node in books.nodes} == {0.0, expected_s}


def test_a_member_whose_telemetry_is_off_is_named_alike_in_each_hour(tmp_path: Path) -> None:
    world, books = played(tmp_path, 1, "off", "")
    (name,) = world.off or ()
    assert set(books.unseen.values()) == {f"{name} has telemetry switched off"}


def test_what_went_with_queues_has_a_fate(tmp_path: Path) -> None:
    """Also of queues that lived for less than an interval; one that is gone is not carried on."""
    world, books = played(tmp_path, 1, "gone", "")
    gone: dict[str, int] = {}
    for row in books.queues:
        went = (row["deleted"] or 0) + (row["expired_queue"] or 0)
        gone[row["queue"]] = gone.get(row["queue"], 0) + went
    assert {name: n for name, n in gone.items() if n} == {
        name: n for name, n in world.gone.items() if n
    }
    brief = [row for row in books.queues if row["queue"].startswith("brief")]
    assert [row["d_enq"] for row in brief] == [12] * worlds.STEPS
    assert all(row["is_gone_last"] and not row["ready_last"] for row in brief)
