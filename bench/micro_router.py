"""Nanoseconds per routing look-up, and per bind, as bindings grow (design/hot-path.md rule 3 and
Scale).

Cached look-ups must not depend on the number of bindings; uncached direct and topic look-ups must
not grow with bindings that do not match; a bind must not grow with what is bound already.
Run: python -m bench.micro_router
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.router import Router

QUEUES = 100


@dataclass(slots=True)
class Meta:
    """A command's circumstances."""

    index: int
    term: int = 1
    now_ms: int = 0


class Topology:
    """A catalog with one exchange that has many bindings to a hundred queues."""

    def __init__(self, exchange_type: str, bindings: int) -> None:
        self.machine = CatalogMachine()
        self.router = Router(self.machine.state)
        self.index = 0
        self.exchange_type = exchange_type
        self._do(catalog_commands.bootstrap("id", "bench"))
        self._put("exchange", "x", {"type": exchange_type})
        for number in range(QUEUES):
            self._put("queue", f"q{number}", {"type": "classic"}, uid=number + 1, members=["n"])
        self.binds_ns = [self._bind(number) for number in range(bindings)]

    def _do(self, operation: dict[str, object]) -> None:
        self.index += 1
        outcome = self.machine.apply(Meta(self.index), catalog_commands.encode(operation))
        assert catalog_commands.decode_reply(outcome.reply)["code"] == "OK", outcome.reply

    def _put(self, kind: str, name: str, spec: dict[str, object], **more: object) -> None:
        self._do(catalog_commands.put(kind, "/", name, spec, cause="amqp:u", **more))  # type: ignore[arg-type]

    def _bind(self, number: int) -> int:
        key = f"region.{number}.order"
        if self.exchange_type == "topic" and number % 3:
            key = f"region.{number}.{'*' if number % 3 == 1 else '#'}"
        spec: dict[str, object] = {
            "source": "x",
            "destination": f"q{number % QUEUES}",
            "routing_key": key,
        }
        operation = catalog_commands.put("binding", "/", "", spec, cause="amqp:u", declare=True)
        command = catalog_commands.encode(operation)
        self.index += 1
        start = time.perf_counter_ns()
        self.machine.apply(Meta(self.index), command)
        return time.perf_counter_ns() - start


def per_call_ns(call: Callable[[], object], calls: int, rounds: int) -> float:
    """Return the median over rounds of the mean over calls."""
    samples = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call()
        samples.append((time.perf_counter_ns() - start) / calls)
    return statistics.median(samples)


def measure(exchange_type: str, bindings: int, calls: int, rounds: int) -> None:
    """Print one row."""
    topology = Topology(exchange_type, bindings)
    route = topology.router.route
    find = topology.router._find
    state = topology.machine.state.vhosts["/"]
    key = f"region.{bindings - 1}.order"
    cached = per_call_ns(lambda: route("/", "x", key), calls, rounds)
    slow_calls = max(
        1, min(calls // 10, 20_000_000 // (bindings if exchange_type == "fanout" else 1))
    )
    uncached = per_call_ns(lambda: find(state, "x", (key,), None), min(slow_calls, 2_000), rounds)
    tenth = max(1, bindings // 10)
    early = statistics.median(topology.binds_ns[:tenth]) / 1000
    late = statistics.median(topology.binds_ns[-tenth:]) / 1000
    reached = len(find(state, "x", (key,), None).queues)
    print(
        f"{exchange_type:8} {bindings:>8} {reached:>8} {cached:>10.0f} {uncached:>12.0f} "
        f"{early:>12.1f} {late:>11.1f}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bindings", type=int, nargs="+", default=[10, 1_000, 100_000])
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("exchange bindings  reached  cached ns  uncached ns  bind us, first, and last tenth")
    for exchange_type in ("direct", "topic", "fanout"):
        for bindings in options.bindings:
            measure(exchange_type, bindings, options.calls, options.rounds)


if __name__ == "__main__":
    main()
