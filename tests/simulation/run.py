"""Run many seeds: python -m tests.simulation.run --seeds 2000 --first-seed 1 (or --seed N --trace).

Prints progress and `N passed, M failed`; exits with 1 and the seeds if a property was broken.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback

from tests.simulation.world import World


def run_seed(seed: int, *, is_traced: bool = False) -> World:
    """Run one seed; raise what broke."""
    world = World(seed, print if is_traced else None)
    world.run()
    return world


def _run_one(seed: int, *, is_traced: bool) -> bool:
    try:
        world = run_seed(seed, is_traced=is_traced)
    except AssertionError as error:
        print(f"seed {seed}: {type(error).__name__}: {error}")
        if is_traced:
            traceback.print_exc()
        return False
    except Exception:  # whatever breaks, the seed must be named
        print(f"seed {seed}: broke")
        traceback.print_exc()
        return False
    if is_traced:
        acknowledged = len(world.checkers.acknowledged)
        print(f"seed {seed}: ok, {world.event_count} events, {acknowledged} acknowledged")
        print(f"digest {world.digest}")
    return True


def main(argv: list[str] | None = None) -> int:
    """Run the seeds that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seed", type=int, help="run just this one")
    parser.add_argument("--trace", action="store_true", help="print every event")
    arguments = parser.parse_args(argv)
    if arguments.seed is not None:
        return 0 if _run_one(arguments.seed, is_traced=arguments.trace) else 1
    failed = []
    started = time.monotonic()
    last = arguments.first_seed + arguments.seeds
    for seed in range(arguments.first_seed, last):
        if not _run_one(seed, is_traced=arguments.trace):
            failed.append(seed)
        done = seed - arguments.first_seed + 1
        if done % 100 == 0 and done < arguments.seeds:
            print(f"{done} seeds, {time.monotonic() - started:.0f} s", flush=True)
    print(f"{arguments.seeds - len(failed)} passed, {len(failed)} failed")
    if failed:
        print("failed seeds:", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
