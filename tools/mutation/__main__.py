"""`make mutation MUTANTS=N SEED=S`: would our tests notice?

Prints progress, a table by file, and every survivor that explained.txt does not explain.  Exits
with 1 when fewer than the wanted share of mutants is killed or explained.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from tools.mutation.changes import Change, Explanation, read_explanations
from tools.mutation.rooms import ROOMS, Room
from tools.mutation.runs import Mutant, RoomRun

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = Path(__file__).with_name("explained.txt")
#: Per cent of the mutants that are not equivalent (issue: at least 90).
WANTED_PERCENT = 90.0


def main(arguments: Sequence[str] | None = None, rooms: Sequence[Room] = ROOMS) -> int:
    """Run; return the exit code."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("--mutants", type=int, default=400, help="sample so many; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", default=",".join(room.name for room in rooms))
    parser.add_argument("--only", default="", help="only files whose path contains one of these")
    parser.add_argument("--again", type=Path, help="only what this earlier output left alive")
    parser.add_argument("--quick", action="store_true", help="without the thorough tests")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--explained", type=Path, default=EXPLAINED)
    options = parser.parse_args(arguments)
    chosen = [room for room in rooms if room.name in options.rooms.split(",")]
    with tempfile.TemporaryDirectory(prefix="brokerd-mutation-") as folder:
        runs = [
            RoomRun(options.root, Path(folder) / room.name, room, options.jobs, options.only)
            for room in chosen
        ]
        generated = {run.room.name: run.generate() for run in runs}
        pool = [
            (room, name, change)
            for room, changes in generated.items()
            for name, change in sorted(changes.items())
        ]
        say(f"{len(pool)} mutants in {', '.join(generated)}; wording and invariants left out")
        if options.again is not None:
            alive = read_alive(options.again)
            pool = [chosen for chosen in pool if chosen[2] in alive]
        if 0 < options.mutants < len(pool):
            pool = random.Random(options.seed).sample(pool, options.mutants)
            say(f"sample of {len(pool)}, seed {options.seed}")
        wanted: dict[str, dict[str, Change]] = defaultdict(dict)
        for room_name, name, change in pool:
            wanted[room_name][name] = change
        mutants = [
            mutant
            for run in runs
            for mutant in run.run(wanted[run.room.name], say, is_thorough=not options.quick)
        ]
    return report(mutants, read_explanations(options.explained))


def read_alive(path: Path) -> set[Change]:
    """Return what an earlier run's output named as alive."""
    found = re.findall(
        r"^(?:survived|no test): (\S+) (\S+)\n- (.*)\n\+ (.*)$", path.read_text(), re.M
    )
    return {Change(*fields) for fields in found}


def say(line: str) -> None:
    """Show progress."""
    print(line, flush=True)


def report(mutants: Sequence[Mutant], explained: Sequence[Explanation]) -> int:
    """Print what became of them; return the exit code."""
    by_file: dict[str, Counter[str]] = defaultdict(Counter)
    left: list[Mutant] = []
    for mutant in mutants:
        verdict = mutant.verdict
        if verdict in ("survived", "no test"):
            if any(explanation.fits(mutant.change) for explanation in explained):
                verdict = "explained"
            else:
                left.append(mutant)
        by_file[mutant.change.file][verdict] += 1
    say(
        "\nfile                               mutants  killed  timed out  explained  survived     %"
    )
    total: Counter[str] = Counter()
    for file, counts in sorted(by_file.items()):
        say(row(file, counts))
        total += counts
    say(row("all", total))
    for mutant in sorted(left, key=lambda mutant: mutant.name):
        say(f"\n{mutant.verdict}: {mutant.change}")
    return 0 if share(total) >= WANTED_PERCENT else 1


def row(title: str, counts: Counter[str]) -> str:
    """Return a line of the table."""
    alive = counts["survived"] + counts["no test"]
    return (
        f"{title:<34}{counts.total():>7}{counts['killed']:>8}{counts['timed out']:>11}"
        f"{counts['explained']:>11}{alive:>10}{share(counts):>6.1f}"
    )


def share(counts: Counter[str]) -> float:
    """Return the killed per cent of all that can be killed."""
    killable = counts.total() - counts["explained"]
    return 100.0 * (counts["killed"] + counts["timed out"]) / killable if killable else 100.0


if __name__ == "__main__":
    sys.exit(main())
