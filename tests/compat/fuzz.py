"""The differential fuzzer: random legal AMQP sequences to two servers.

`python -m tests.compat.fuzz --sequences 1000 --first-seed 1` starts RabbitMQ 3.10.8 and brokerd
with the profile rabbitmq-3.10, plays the sequence of each seed on both and compares every frame
that comes back.  A difference that stays when the sequence is played again is shortened and
printed.  Exits with 1 if one of them is not explained by docs/compatibility.md.

With `--reference brokerd` both are brokerd (a metamorphic run): a lone member in plain Python, and
`--members` of them, compiled, with the clients spread over them.
Nothing explains a difference then.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from brokerd import compiled
from brokerd.amqp.properties import BasicProperties
from tests.compat import fuzz_compare
from tests.compat.brokerd_server import ENVIRONMENT
from tests.compat.fuzz_compare import Difference, Servers
from tests.compat.fuzz_sequences import Step, sequence
from tests.integration.members import cluster
from tests.rabbitmq_node import rabbit_node

FORM = compiled.VARIABLE

#: RabbitMQ 3.10 refuses it, brokerd does not (D-62).
ODD_PROPERTIES = BasicProperties(delivery_mode=3)
#: A difference must come again each time; what does not was the machine being busy.
REPEATS = 3


@contextlib.contextmanager
def rabbitmq_and_brokerd(folder: Path) -> Iterator[Servers]:
    """Start RabbitMQ and one brokerd member."""
    (folder / "brokerd").mkdir()
    with (
        rabbit_node(folder / "rabbitmq") as node,
        cluster(folder / "brokerd", 1, **ENVIRONMENT) as [member],
    ):
        yield Servers((node.amqp_port,), (member.amqp_port,))


@contextlib.contextmanager
def two_clusters(folder: Path, size: int, form: str = "1") -> Iterator[Servers]:
    """Start a lone member in plain Python, and a cluster of `size`; form: "1" for compiled."""
    (folder / "one").mkdir()
    (folder / "many").mkdir()
    plain, other = ENVIRONMENT | {FORM: "0"}, ENVIRONMENT | {FORM: form}
    with (
        cluster(folder / "one", 1, **plain) as [lone],
        cluster(folder / "many", size, **other) as members,
    ):
        ports = tuple(member.amqp_port for member in members)
        yield Servers((lone.amqp_port,), ports, are_alike=True)


def difference_of(steps: list[Step], servers: Servers) -> Difference | None:
    """Return a difference that comes each time the sequence is played."""
    found = None
    for _ in range(1 + REPEATS):
        found = fuzz_compare.play(steps, servers)
        if found is None:
            return None
    return found


def report(seed: int, steps: list[Step], servers: Servers) -> None:
    """Print the shortest sequence that shows the difference."""
    shorter, found = fuzz_compare.shrink(steps, servers)
    print(f"seed {seed}: {len(steps)} steps, {len(shorter)} show the difference:")
    for number, step in enumerate(shorter):
        print(f"  {number:3} {step}")
    if found is None:
        print("  (it did not come again while shrinking)")
    else:
        print(found.text())
    sys.stdout.flush()


def run(seeds: range, servers: Servers, shrink: bool, failures_max: int) -> Counter[str]:
    """Play the sequences; return how many agreed, were explained or differ."""
    outcomes: Counter[str] = Counter()
    began = time.monotonic()
    for seed in seeds:
        steps = sequence(seed)
        found = fuzz_compare.play(steps, servers)
        if found is not None and not found.explanation:
            first = found
            found = difference_of(steps, servers)
            if found is None:
                outcomes["only once"] += 1
                print(f"seed {seed}: only once: {first.text()}", flush=True)
                continue
        if found is None:
            outcomes["equal"] += 1
        elif found.explanation:
            outcomes[f"explained by {found.explanation}"] += 1
        else:
            outcomes["different"] += 1
            if shrink:
                report(seed, steps, servers)
            else:
                print(f"seed {seed}: {found.text()}", flush=True)
            if outcomes["different"] >= failures_max:
                break
        if seed % 100 == 0:
            print(f"seed {seed}: {time.monotonic() - began:.0f} s {dict(outcomes)}", flush=True)
    return outcomes


def main() -> None:
    """Parse the command line, run, tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat.fuzz", description=__doc__)
    parser.add_argument("--sequences", type=int, default=1000, help="how many seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--no-shrink", action="store_true", help="print differences as they come")
    parser.add_argument("--failures", type=int, default=20, help="stop after so many")
    parser.add_argument("--reference", choices=("rabbitmq", "brokerd"), default="rabbitmq")
    parser.add_argument("--members", type=int, default=3, help="beside a reference brokerd")
    given = parser.parse_args()
    # Ended from outside, it ends its servers too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    seeds = range(given.first_seed, given.first_seed + given.sequences)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        servers = stack.enter_context(
            two_clusters(folder, given.members)
            if given.reference == "brokerd"
            else rabbitmq_and_brokerd(folder)
        )
        began = time.monotonic()
        outcomes = run(seeds, servers, not given.no_shrink, given.failures)
    seconds = time.monotonic() - began
    summary = ", ".join(f"{count} {name}" for name, count in sorted(outcomes.items()))
    print(f"fuzz: {sum(outcomes.values())} sequences in {seconds:.0f} s: {summary}")
    sys.exit(1 if outcomes["different"] else 0)


if __name__ == "__main__":
    main()
