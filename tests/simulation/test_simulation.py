"""A few seeds of the simulator on every run, and proof that it finds planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.run import main, run_seed
from tests.simulation.world import World

#: Mutant -> the profile in which it shows soonest, and how many seeds it may take.
BUDGETS = {
    "too-small-quorum": ("mixed", 5),
    "acknowledgement-before-sync": ("mixed", 10),
    "vote-not-persisted": ("duels", 400),
    "leader-counts-own-unsynced": ("duels", 10),
    "commits-old-terms": ("figure-8", 200),
    "unclamped-heartbeat-commit": ("figure-8", 40),
    "no-previous-term-check": ("figure-8", 40),
    "blind-truncation": ("duels", 60),
    "overtaken-writes-trusted": ("duels", 250),
    "votes-for-anyone": ("figure-8", 40),
}


@pytest.mark.parametrize("first", range(1, 61, 10))
def test_ten_seeds_pass(first: int) -> None:
    """G1, G9 and the properties of the Raft thesis, figure 3.2."""
    for seed in range(first, first + 10):
        run_seed(seed)


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_two_runs_of_a_seed_are_equal(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert first.digest == second.digest
    assert first.event_count == second.event_count
    assert first.checkers.acknowledged


def test_command_line_counts_and_names_failures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--first-seed", "5"]) == 0
    assert capsys.readouterr().out.endswith("2 passed, 0 failed\n")
    with planted("too-small-quorum"):
        assert main(["--seeds", "3"]) == 1
    out = capsys.readouterr().out
    assert "failed seeds: 1" in out
    assert "3 failed" in out


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_simulator_finds_planted_bug(name: str) -> None:
    """design/replication.md §5: a simulator that misses one of these has a blind spot."""
    profile, budget = BUDGETS[name]
    with planted(name):
        for seed in range(1, budget + 1):
            try:
                World(seed, profile=profile).run()
            except Exception:
                return
    pytest.fail(f"{name} survived {budget} seeds")
