"""Run many seeds: python -m tests.simulation.run --seeds 2000 [--world broker] [--processes 2].

One seed with every event: --seed N --trace.  Planted bugs: --mutants all (or ci, or names).
Prints progress, `N passed, M failed` and how to replay what failed; exits with 1 then.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from brokerd.server.loop import chunks
from tests.simulation import mutants
from tests.simulation.broker import mutants as broker_mutants
from tests.simulation.broker.beyond import BeyondWorld
from tests.simulation.broker.world import BrokerWorld
from tests.simulation.cluster import mutants as cluster_mutants
from tests.simulation.cluster.world import ClusterWorld
from tests.simulation.world import World

WORLDS: dict[str, Callable[..., World | BrokerWorld]] = {
    "core": World,
    "broker": BrokerWorld,
    "beyond": BeyondWorld,
    "cluster": ClusterWorld,
}
#: The machine that this runs on is shared: more workers would only be in the way.
PROCESSES_MAX = 2
PROGRESS_S = 15.0


@contextmanager
def quiet() -> Iterator[None]:
    """What the rooms log while things go wrong on purpose is of no use.  And no walk rests: when it
    would depends on how fast this machine is.
    """
    before, turn_s = logging.root.manager.disable, chunks.TURN_S
    logging.disable(logging.CRITICAL)
    chunks.TURN_S = math.inf
    try:
        yield
    finally:
        chunks.TURN_S = turn_s
        logging.disable(before)


def run_seed(
    seed: int, *, world: str = "core", profile: str | None = None, is_traced: bool = False
) -> World | BrokerWorld:
    """Run one seed; raise what broke."""
    with quiet():
        simulated = WORLDS[world](seed, print if is_traced else None, profile)
        simulated.run()
    return simulated


def _failure_of(job: tuple[str, int, str | None, bool]) -> tuple[int, str | None]:
    """Return the seed, and what broke or None."""
    world, seed, profile, is_traced = job
    try:
        simulated = run_seed(seed, world=world, profile=profile, is_traced=is_traced)
    except AssertionError as error:
        if is_traced:
            traceback.print_exc()
        return seed, f"{type(error).__name__}: {error}"
    except Exception as error:  # whatever breaks, the seed must be named
        if is_traced:
            traceback.print_exc()
        return seed, f"broke: {type(error).__name__}: {error}"
    if is_traced:
        print(f"seed {seed}: ok, {simulated.event_count} events, digest {simulated.digest}")
    return seed, None


def _all(
    world: str, seeds: Iterable[int], profile: str | None, processes: int
) -> Iterator[tuple[int, str | None]]:
    jobs = ((world, seed, profile, False) for seed in seeds)
    if processes == 1:
        yield from map(_failure_of, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_failure_of, jobs, chunksize=5)


def _run_seeds(arguments: argparse.Namespace) -> int:
    first, count = arguments.first_seed, arguments.seeds
    started = reported = time.monotonic()
    failed: list[int] = []
    done = 0
    seeds = range(first, first + count)
    results = _all(arguments.world, seeds, arguments.profile, arguments.processes)
    for done, (seed, failure) in enumerate(results, 1):
        if failure is not None:
            failed.append(seed)
            print(f"seed {seed}: {failure}", flush=True)
        now = time.monotonic()
        if arguments.minutes and now - started >= 60 * arguments.minutes:
            break
        if now - reported >= PROGRESS_S and done < count:
            reported = now
            rate = done / (now - started)
            left_s = (count - done) / rate
            print(f"{done} seeds, {rate:.1f}/s, about {left_s:.0f} s left", flush=True)
    last = f"up to {first + count - 1}" if done == count else f"{done} of them, time was up,"
    print(f"{arguments.world}: seeds from {first} on, {last} in {time.monotonic() - started:.0f} s")
    print(f"{done - len(failed)} passed, {len(failed)} failed")
    if failed:
        extra = f" --profile {arguments.profile}" if arguments.profile else ""
        replay = f"python -m tests.simulation.run --world {arguments.world}{extra} --trace --seed"
        print("failed seeds:", *sorted(failed))
        print(f"replay: {replay} {min(failed)}")
    return 1 if failed else 0


def _run_mutants(wanted: str) -> int:
    """Return 1 if a planted bug is missed: then the simulator has a blind spot."""
    every = [(mutants, name) for name in mutants.MUTANTS]
    every += [(broker_mutants, name) for name in broker_mutants.MUTANTS]
    every += [(cluster_mutants, name) for name in cluster_mutants.MUTANTS]
    soon = mutants.CI | broker_mutants.CI | cluster_mutants.CI
    chosen = {"all": {name for _, name in every}, "ci": soon}.get(wanted, set(wanted.split(",")))
    missed = []
    for room, name in every:
        if name not in chosen:
            continue
        started = time.monotonic()
        found = room.hunt(name)
        took = f"{time.monotonic() - started:.1f} s"
        verdict = "MISSED" if found is None else f"found by seed number {found[0]}: {found[1]}"
        print(f"{name} ({took}): {verdict}", flush=True)
        if found is None:
            missed.append(name)
    print(f"{len(chosen) - len(missed)} found, {len(missed)} missed")
    return 1 if missed else 0


def main(argv: list[str] | None = None) -> int:
    """Run the seeds that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--world", choices=sorted(WORLDS), default="core")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--profile", help="this kind of scenario instead of a drawn one")
    parser.add_argument("--processes", type=int, choices=range(1, PROCESSES_MAX + 1), default=1)
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--seed", type=int, help="run just this one")
    parser.add_argument("--trace", action="store_true", help="print every event")
    parser.add_argument("--mutants", help="hunt planted bugs instead: all, ci, or names")
    arguments = parser.parse_args(argv)
    if arguments.mutants:
        return _run_mutants(arguments.mutants)
    if arguments.seed is None:
        return _run_seeds(arguments)
    job = (arguments.world, arguments.seed, arguments.profile, arguments.trace)
    seed, failure = _failure_of(job)
    if failure is not None:
        print(f"seed {seed}: {failure}")
    return 0 if failure is None else 1


if __name__ == "__main__":
    sys.exit(main())
