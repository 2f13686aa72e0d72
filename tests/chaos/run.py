"""Chaos runs from the command line, with a row per run and a table at the end.

python -m tests.chaos.run --broker brokerd --fault kill --nodes 3 --seconds 180 --seed 1
python -m tests.chaos.run --matrix --seconds 180      the 32 configurations of every night
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from tests.chaos import brokers, network, shim
from tests.chaos.cluster import ClusterError
from tests.chaos.faults import FAULTS, MATRIX
from tests.chaos.scenario import RATE, Plan, run
from tests.integration.members import REPOSITORY

COLUMNS = {
    "title": "broker",
    "fault": "fault",
    "nodes": "members",
    "seconds": "s",
    "seed": "seed",
    "commit": "commit",
    "faults": "faults",
    "confirmed": "confirmed",
    "lost": "lost",
    "unburied": "not dead-lettered",
    "unexpected": "invented",
    "duplicates": "duplicates",
    "unflagged": "unflagged",
    "out_of_order": "out of order",
    "left": "not empty",
    "looked_for": "looked for in logs",
    "scarce": "in no majority",
    "gap_max_s": "longest gap s",
    "resume_max_s": "after heal s",
    "ended_by_itself": "ended by itself",
}


def table(rows: Iterable[dict[str, object]]) -> str:
    """Return the rows as a Markdown table, violations by name in the last column."""
    lines = ["| " + " | ".join([*COLUMNS.values(), "result"]) + " |"]
    lines.append("|" + "---|" * (len(COLUMNS) + 1))
    for row in rows:
        wrong = row.get("violations")
        result = (
            "**" + "; ".join(map(str, wrong)) + "**" if isinstance(wrong, list) and wrong else "ok"
        )
        cells = [_shown(row.get(key, "")) for key in COLUMNS]
        lines.append("| " + " | ".join([*cells, str(row.get("error") or result)]) + " |")
    return "\n".join(lines)


def _shown(value: object) -> str:
    return (
        f"{value:,}"
        if isinstance(value, int)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def commit() -> str:
    """Return the short name of the checked out commit, "-" where there is no git."""
    words = ["git", "-C", str(REPOSITORY), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "-"


def one(plan: Plan, keep: Path | None) -> dict[str, object]:
    """Run one configuration; what cannot be run here says why in its row."""
    # Now: another may be checked out before the run is over.
    which = commit()
    say(f"{plan.broker} {plan.fault} nodes={plan.nodes} seconds={plan.seconds:g} seed={plan.seed}")
    try:
        row = run(plan, say, keep).row()
    except (network.NoNamespaces, shim.NoShim, ClusterError) as error:
        shown = {"broker": plan.broker, "fault": plan.fault, "nodes": plan.nodes}
        row = {**shown, "title": plan.broker, "error": f"not run: {error}"}
    row["commit"] = which
    print(json.dumps(row), flush=True)
    return row


def plans(options: argparse.Namespace) -> list[Plan]:
    """Return what the options ask for."""
    faults = list(MATRIX) if options.matrix else options.fault
    sizes = [3, 5] if options.matrix and not options.nodes else options.nodes or [3]
    return [
        Plan(broker, fault, nodes, options.seconds, options.seed + number, options.rate)
        for number, (fault, nodes, broker) in enumerate(
            (fault, nodes, broker)
            for nodes in sizes
            for fault in faults
            for broker in options.broker
        )
    ]


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if nothing was violated and everything ran."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--broker", nargs="+", choices=list(brokers.MADE), default=["brokerd"])
    parser.add_argument("--fault", nargs="+", choices=list(FAULTS), default=["kill"])
    parser.add_argument("--matrix", action="store_true", help="all families")
    parser.add_argument("--nodes", nargs="+", type=int, choices=[3, 5])
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=RATE, help="per publisher and second")
    parser.add_argument("--keep", type=Path, help="folder for logs and data of violations")
    options = parser.parse_args(arguments)
    missing = [broker for broker in options.broker if not brokers.is_installed(broker)]
    if missing:
        parser.error("not installed: rabbitmq-server (apt-get install rabbitmq-server)")
    # An ordinary end, so that namespaces, mounts and processes go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = [one(plan, options.keep) for plan in plans(options)]
    print(table(rows), flush=True)
    return 1 if any(row.get("violations") or row.get("error") for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
