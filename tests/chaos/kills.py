"""kill -9 of one of three real members, again and again, under load: the same cluster goes on.

    python -m tests.chaos.kills --rounds 500 --seed 1

Each round kills a member at a random moment, leaves it away for a random while, starts it and waits
for it.  After every CHECK_EVERY rounds the publishers stop, the members' logs are looked into (of
brokerd), everything is drained and judged; so it is at the end.  kill -9 loses nothing that was
written: lost unsynced writes are the simulator's.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import brokers
from tests.chaos.checker import Verdict, judge
from tests.chaos.cluster import Cluster, ClusterError, start_all
from tests.chaos.faults import Kill
from tests.chaos.history import FaultSpan, History
from tests.chaos.load import wait_until
from tests.chaos.scenario import Load, declare_all, look_into_logs, made_cluster

CHECK_EVERY = 50
#: A round waits so long for confirms of every queue before and after its kill.
FLOW_S = 60.0


@dataclass(slots=True)
class Totals:
    """What all checks together have shown."""

    rounds: int = 0
    confirmed: int = 0
    lost: int = 0
    unburied: int = 0
    unexpected: int = 0
    duplicates: int = 0
    unflagged: int = 0
    out_of_order: int = 0
    looked_for: int = 0
    scarce: int = 0
    gap_max_s: float = 0.0

    def add(self, verdict: Verdict) -> None:
        self.confirmed += verdict.confirmed
        self.lost += len(verdict.lost)
        self.unburied += len(verdict.unburied)
        self.unexpected += len(verdict.unexpected)
        self.duplicates += verdict.duplicates
        self.unflagged += len(verdict.unflagged)
        self.out_of_order += len(verdict.out_of_order)
        self.looked_for += verdict.looked_for
        self.scarce += len(verdict.scarce)
        self.gap_max_s = round(max(self.gap_max_s, verdict.gap_max_s), 1)


def kill_once(cluster: Cluster, load: Load, chance: random.Random) -> FaultSpan:
    """One round; raises ClusterError if a queue stands still or the member does not come back."""
    began_s = time.monotonic()
    if not wait_until(lambda: load.flows(began_s), FLOW_S):
        raise ClusterError("a queue confirms nothing while all members are up")
    wait_until(lambda: False, chance.uniform(0, 0.7))
    node = chance.choice(cluster.nodes)
    killed_s = time.monotonic()
    node.kill()
    if chance.random() < 0.5:
        # Long enough for the others to suspect it and to elect; else it is back before.
        wait_until(lambda: False, chance.uniform(0, 2.5))
    start_all(cluster.nodes)
    return FaultSpan(node.name, killed_s, time.monotonic())


def check(
    cluster: Cluster,
    work: list[str],
    done: int,
    rounds: int,
    chance: random.Random,
    folder: Path | None,
) -> Verdict:
    """Load the cluster, kill so many times, look into the logs (in `folder`), drain, judge."""
    history = History()
    # Names of its own: what a check before has left behind would be unexpected now.
    load = Load([node.address for node in cluster.nodes], work, history, done * 100)
    load.start()
    try:
        try:
            for _ in range(rounds):
                history.faults.append(kill_once(cluster, load, chance))
        except ClusterError as error:
            history.broken.append(str(error))
        healed_s = time.monotonic()
        wait_until(lambda: load.flows(healed_s), FLOW_S)
        if folder is not None and not history.broken:
            look_into_logs(cluster.nodes, load, folder, 0.0)
        load.stop_publishing()
        load.drain()
    finally:
        load.stop()
    return judge(history)


def run(
    broker: str, rounds: int, seed: int, say: Callable[[str], None]
) -> tuple[Totals, list[str]]:
    """Return the totals and the violations; stops at the first check that finds any."""
    chance = random.Random(seed)
    totals = Totals()
    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="kills-") as name,
        made_cluster(broker, 3, Kill(), folder := Path(name)) as cluster,
    ):
        readable = folder if broker == "brokerd" else None
        work = declare_all(cluster, History())
        while totals.rounds < rounds:
            step = min(CHECK_EVERY, rounds - totals.rounds)
            verdict = check(cluster, work, totals.rounds, step, chance, readable)
            totals.rounds += step
            totals.add(verdict)
            per_round_s = (time.monotonic() - began_s) / totals.rounds
            say(
                f"{totals.rounds}/{rounds} kills, {totals.confirmed:,} confirmed, "
                f"{totals.lost} lost, {totals.duplicates:,} duplicates, "
                f"{per_round_s * (rounds - totals.rounds) / 60:.0f} min left"
            )
            if verdict.violations:
                return totals, verdict.violations
    return totals, []


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if nothing was violated."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--broker", choices=list(brokers.MADE), default="brokerd")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))

    def say(line: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)

    totals, violations = run(options.broker, options.rounds, options.seed, say)
    figures = {name: getattr(totals, name) for name in Totals.__slots__}
    row = {"broker": options.broker, "seed": options.seed, **figures, "violations": violations}
    print(json.dumps(row), flush=True)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
