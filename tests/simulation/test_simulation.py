"""A few seeds of the simulator on every run, and proof that it finds planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import BUDGETS, MUTANTS, hunt, planted
from tests.simulation.run import main, run_seed
from tests.simulation.world import World


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_thousand_seeds_of_the_core_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """G1, G9 and the properties of the Raft thesis, figure 3.2."""
    assert main(["--seeds", "2000", "--processes", "2"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_two_runs_of_a_seed_are_equal(seed: int) -> None:
    first, second = run_seed(seed), run_seed(seed)
    assert isinstance(first, World)
    assert first.digest == second.digest
    assert first.event_count == second.event_count
    assert first.checkers.acknowledged


def test_replicas_at_rest_are_folded_and_go_on() -> None:
    """ADR 61: node.py compares what comes back with what went."""
    world = run_seed(18)
    assert isinstance(world, World)
    assert world.folds > 50


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
    assert hunt(name) is not None, f"{name} survived {BUDGETS[name][1]} seeds"
