"""The whole broker in the simulator: seeds of every run, and proof that it finds planted bugs."""

from __future__ import annotations

import pytest

from tests.simulation.broker.mutants import CI, MUTANTS, hunt, planted
from tests.simulation.broker.scenario import PROFILES
from tests.simulation.broker.world import BrokerWorld
from tests.simulation.run import main, quiet, run_seed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_five_hundred_seeds_of_the_broker_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """G1 to G6, G8, G9: replica, log, queue machine, clients and dead letters together."""
    arguments = ["--world", "broker", "--seeds", "500", "--processes", "2"]
    assert main(arguments) == 0, capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_two_of_three_forget_the_third_does_not_lose_in_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """G8, beyond what is promised: what is known to be committed stays and is told of."""
    assert main(["--world", "beyond", "--seeds", "20"]) == 0, capsys.readouterr().out


@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_each_profile_does_what_it_is_for(profile: str) -> None:
    world = run_seed(7, world="broker", profile=profile)
    assert isinstance(world, BrokerWorld)
    assert world.oracle.confirmed
    assert any(ledger.settled for ledger in world.oracle.ledgers.values())


@pytest.mark.parametrize("seed", [2, 5, 11])
def test_two_runs_of_a_seed_are_equal(seed: int) -> None:
    first = run_seed(seed, world="broker")
    second = run_seed(seed, world="broker")
    assert first.digest == second.digest
    assert first.event_count == second.event_count


def test_a_failing_seed_is_named_with_the_way_to_replay_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with planted("settle-forgotten"):
        arguments = ["--world", "broker", "--profile", "fair", "--seeds", "1"]
        assert main(arguments) == 1
    out = capsys.readouterr().out
    assert "failed seeds: 1" in out
    assert "--world broker --profile fair --trace --seed 1" in out


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", sorted(CI))
def test_simulator_finds_planted_bug(name: str) -> None:
    """design/replication.md §5; the others are hunted by `make sim-nightly`."""
    with quiet():
        assert hunt(name) is not None, f"{name} survived {MUTANTS[name][2]} seeds"
