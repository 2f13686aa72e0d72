"""What a confirm takes here at the least: four programs in C and nothing but the system calls.

    python -m bench.floor [--count N] [--rounds N] [--directory DIR]

A client with one message in flight, a leader and two followers, 1 KiB, a write and a sync each, an
answer of one follower: bench/load/floor/floor.c.  The rest of what a broker takes is its own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.processes import BenchError

SOURCE = Path(__file__).parent / "load" / "floor" / "floor.c"
TIMEOUT_S = 300


def compiled(folder: Path) -> Path:
    """Return the compiled program."""
    if not shutil.which("gcc"):
        raise BenchError("gcc is missing: apt-get install gcc libc6-dev")
    binary = folder / "floor"
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-std=gnu11"]
    done = subprocess.run(
        [*command, "-o", str(binary), str(SOURCE)], text=True, capture_output=True
    )
    if done.returncode:
        raise BenchError(f"{SOURCE.name} does not compile: {done.stderr}")
    return binary


def measure(binary: Path, directory: Path | None, count: int) -> dict[str, float]:
    """Return p50_us, p99_us and cpu_us of one run, whose logs lie in this directory."""
    with tempfile.TemporaryDirectory(prefix="bench-floor-", dir=directory) as logs:
        done = subprocess.run(
            [str(binary), logs, str(count)], text=True, capture_output=True, timeout=TIMEOUT_S
        )
    if done.returncode:
        raise BenchError(f"floor: {done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the logs lie (default: TMPDIR)")
    args = parser.parse_args()
    print("| round | p50, µs | p99, µs | CPU of leader and followers, µs |\n|---|---|---|---|")
    rounds = []
    with tempfile.TemporaryDirectory(prefix="bench-floor-") as folder:
        binary = compiled(Path(folder))
        for number in range(1, args.rounds + 1):
            found = measure(binary, args.directory, args.count)
            rounds.append(found)
            cells = (f"{found[name]:.0f}" for name in ("p50_us", "p99_us", "cpu_us"))
            print(f"| {number} | {' | '.join(cells)} |", flush=True)
    medians = (statistics.median(each[name] for each in rounds) for name in rounds[0])
    print(f"| **median** | {' | '.join(f'**{value:.0f}**' for value in medians)} |")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BenchError as error:
        sys.exit(f"bench.floor: {error}")
