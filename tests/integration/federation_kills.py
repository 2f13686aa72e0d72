"""Kills both brokers of a pair that is linked in every way, again and again, and counts messages.

`make federation-kills ROUNDS=N UPSTREAM=brokerd|rabbitmq DOWNSTREAM=brokerd|rabbitmq`.  Upstream a
program publishes all the time; what it got confirmed must have come downstream in the end, once or
more often with the ack mode on-confirm.  Nobody settles anything downstream before the end, so that
duplicates are the links' own.  The links are the downstream broker's; each has settings of its own,
and another seed gives it the next ones of all that there are.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pika

from tests.integration.bad_line import Quality, line_to
from tests.integration.federation_rig import admin, amqp, uri
from tests.integration.members import Member, cluster, eventually, select_nothing
from tests.rabbitmq_node import LINKS, RabbitNode, rabbit_node

#: A kill comes at a moment of this span, so that it falls into connecting, too.
KILL_SECONDS_MAX = 2.0
#: So long without a new message, with all links running, nothing comes any more: while something is
#: missing, and once all is there.
MISSING_SECONDS = 90.0
QUIET_SECONDS = 10.0
#: A federation link leaves the user's name out, unless it is told to trust it.
PERSISTENT = pika.BasicProperties(delivery_mode=2, user_id="guest")
CONFIRMED_MODE = "on-confirm"
MODES = (CONFIRMED_MODE, "on-publish", "no-ack")
KINDS = ("exchange", "queue", "shovel")
#: What a queue at the upstream may lose is not to be lost here: nothing is away for so long.
LONG_MS = 600_000
#: What upstreams and shovels may say, besides how they acknowledge.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "prefetch-count": (1000, 1, 20),
    "reconnect-delay": (1, 2),
    "max-hops": (1, 4),
    "trust-user-id": (False, True),
    "message-ttl": (None, LONG_MS),
    "expires": (None, LONG_MS),
    "queue-type": ("classic", "quorum"),
}
#: Between lanes; a prime, so that lanes of one ack mode do not always have the same settings.
TURN_STEP = 41
#: What a shovel knows of these, and calls otherwise.
SHOVEL_SETTINGS = {"prefetch-count": "src-prefetch-count", "reconnect-delay": "reconnect-delay"}
BROKERS = ("brokerd", "rabbitmq")
Broker = Member | RabbitNode


def settings_of(turn: int) -> dict[str, Any]:
    """Return the settings of this turn: as many turns as there are combinations have them all."""
    found = {}
    for name, values in SETTINGS.items():
        turn, at = divmod(turn, len(values))
        found[name] = values[at]
    return found


@dataclass
class Lane:
    """One way from upstream to downstream; queue, exchange and definition have its name."""

    kind: str
    ack_mode: str
    settings: dict[str, Any] = field(default_factory=dict)
    next_number: int = 0
    confirmed: set[int] = field(default_factory=set)
    got: Counter[int] = field(default_factory=Counter)

    @property
    def name(self) -> str:
        """Return what its objects are called."""
        return f"{self.kind}-{self.ack_mode}"

    @property
    def must_keep(self) -> bool:
        """Say whether its ack mode promises that nothing is lost."""
        return self.ack_mode == CONFIRMED_MODE

    @property
    def lost(self) -> int:
        """Return how many were confirmed upstream and never came."""
        return len(self.confirmed - self.got.keys())

    @property
    def duplicates(self) -> int:
        """Return how many came once too often."""
        return self.got.total() - len(self.got)

    def arguments(self, node: Broker) -> dict[str, Any]:
        """Return the arguments of its queue at this end."""
        found = {"x-queue-type": self.settings["queue-type"]}
        if found["x-queue-type"] == "quorum" and isinstance(node, Member):
            # Each kill counts as a delivery of what a client held, and many come.
            found["x-delivery-limit"] = -1
        return found

    def declare(self, up: Broker, down: Broker) -> None:
        """Declare both ends."""
        name = self.name
        with amqp(up.amqp_port) as upstream, amqp(down.amqp_port) as downstream:
            downstream.queue_declare(name, durable=True, arguments=self.arguments(down))
            if self.kind == "exchange":
                for channel in (upstream, downstream):
                    channel.exchange_declare(name, "fanout", durable=True)
                downstream.queue_bind(name, name)
            else:
                upstream.queue_declare(name, durable=True, arguments=self.arguments(up))

    def definition(self, source_port: int, own_uri: str) -> tuple[str, dict[str, Any]]:
        """Return the kind of parameter that makes the link, and its value."""
        value = {"ack-mode": self.ack_mode}
        given = {key: item for key, item in self.settings.items() if item is not None}
        if self.kind == "shovel":
            value |= {SHOVEL_SETTINGS[key]: given[key] for key in SHOVEL_SETTINGS}
            value |= {"src-uri": uri(source_port), "src-queue": self.name}
            return "shovel", value | {"dest-uri": own_uri, "dest-queue": self.name}
        if self.kind == "queue":
            # What stands for the exchange's queue upstream is not a federated queue's.
            given = {key: given[key] for key in ("prefetch-count", "reconnect-delay")}
        return "federation-upstream", value | given | {"uri": uri(source_port)}

    def publish(self, channel: Any) -> None:
        """Publish the next number and wait for its confirm; raises as pika does."""
        number, self.next_number = self.next_number, self.next_number + 1
        exchange, key = (self.name, "") if self.kind == "exchange" else ("", self.name)
        channel.basic_publish(exchange, key, b"%d" % number, PERSISTENT)
        self.confirmed.add(number)


def link(node: Broker, lanes: list[Lane], source_port: int) -> None:
    """Have the downstream make its links, and wait until they run."""
    for lane in lanes:
        parameter, value = lane.definition(source_port, "amqp://")
        policy = {"federation-upstream": lane.name}
        applies, pattern = f"{lane.kind}s", f"^{lane.name}$"
        if isinstance(node, RabbitNode):
            # 3.10 does not know it.
            value.pop("queue-type", None)
            if parameter == "shovel":
                value |= {"src-protocol": "amqp091", "dest-protocol": "amqp091"}
            node.control("set_parameter", parameter, lane.name, json.dumps(value))
            if parameter != "shovel":
                words = ("--apply-to", applies, lane.name, pattern, json.dumps(policy))
                node.control("set_policy", *words)
            continue
        with admin(node) as client:
            client.put("parameter", f"{parameter}/{lane.name}", {"value": value})
            if parameter != "shovel":
                spec = {"pattern": pattern, "apply-to": applies, "definition": policy}
                client.put("policy", lane.name, spec)
    wait_links(node, lanes)


def wait_links(node: Broker, lanes: list[Lane]) -> None:
    """Wait until the links of all lanes run."""
    wanted = {lane.name for lane in lanes}
    eventually(lambda: running(node) >= wanted, f"links of {sorted(wanted)}", 180)


def running(node: Broker) -> set[str]:
    """Return the names of the links that run."""
    if isinstance(node, RabbitNode):
        rows = json.loads(node.control("federation_status", "--formatter", "json"))
        found = {row["upstream"] for row in rows if row["status"] == "running"}
        rows = json.loads(node.control("shovel_status", "--formatter", "json"))
        return found | {row["name"] for row in rows if row["state"] == "running"}
    with admin(node) as client:
        rows = client.rows("links") + client.rows("shovels")
    return {row["upstream"] for row in rows if row["status"] == "running"}


@contextlib.contextmanager
def busy(up: Broker, down: Broker, lanes: list[Lane]) -> Iterator[None]:
    """Publish upstream within, and have consumers downstream, without which no queue asks."""
    is_over = threading.Event()

    def publish() -> None:
        while not is_over.is_set():
            with contextlib.suppress(pika.exceptions.AMQPError, OSError), amqp(up.amqp_port) as to:
                while not is_over.is_set():
                    for lane in lanes:
                        lane.publish(to)
            is_over.wait(0.05)

    def hold() -> None:
        """Take and never settle: what is held is there again when the connection is lost."""
        while not is_over.is_set():
            with (
                contextlib.suppress(pika.exceptions.AMQPError, OSError),
                amqp(down.amqp_port) as to,
            ):
                for lane in lanes:
                    if lane.kind == "queue":
                        to.basic_consume(lane.name, lambda *_: None)
                while not is_over.is_set():
                    to.connection.process_data_events(0.1)
            is_over.wait(0.05)

    threads = [threading.Thread(target=publish), threading.Thread(target=hold)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def collect(down: Broker, lanes: list[Lane]) -> None:
    """Take all that comes until nothing does."""
    by_tag = {lane.name: lane for lane in lanes}
    last = 0.0

    def take(_channel: object, method: Any, _properties: object, body: bytes) -> None:
        nonlocal last
        last = time.monotonic()
        by_tag[method.consumer_tag].got[int(body)] += 1

    with amqp(down.amqp_port) as channel:
        for lane in lanes:
            channel.basic_consume(lane.name, take, auto_ack=True, consumer_tag=lane.name)
        # What came meanwhile waits in pika, and may be much.
        last = time.monotonic()
        is_all = False
        while time.monotonic() - last < (QUIET_SECONDS if is_all else MISSING_SECONDS):
            channel.connection.process_data_events(0.2)
            is_all = is_all or not any(lane.lost for lane in lanes if lane.must_keep)


@contextlib.contextmanager
def broker(kind: str, folder: Path, name: str) -> Iterator[Broker]:
    """Run one end."""
    if kind == "rabbitmq":
        with rabbit_node(folder / name, LINKS) as node:
            # Its port answers before all of it runs.
            node.control("await_startup")
            node.control("set_cluster_name", name)
            yield node
        return
    (folder / name).mkdir()
    with cluster(folder / name, 1, BROKERD_CLUSTER_NAME=name) as (member,):
        yield member


def run(
    folder: Path,
    rounds: int,
    seed: int,
    quality: Quality | None = None,
    limit_s: float = math.inf,
    ends: tuple[str, str] = ("brokerd", "brokerd"),
) -> tuple[int, list[Lane]]:
    """Kill the one or the other so many times; return how often, and what was counted.

    quality: of the line between the two; None: loopback.  limit_s: no kill begins after that.
    ends: which brokers, upstream and downstream.
    """
    stops = time.monotonic() + limit_s
    kills = 0
    generator = random.Random(seed)
    kinds = [(kind, mode) for kind in KINDS for mode in MODES]
    turns = count(seed, TURN_STEP)
    lanes = [Lane(kind, mode, settings_of(next(turns))) for kind, mode in kinds]
    if ends[1] == "rabbitmq":
        for lane in lanes:
            if lane.kind == "queue":
                # RabbitMQ 3.10.8 starts no links of federated quorum queues when it starts.
                lane.settings["queue-type"] = "classic"
    with (
        broker(ends[0], folder, "up") as up,
        broker(ends[1], folder, "down") as down,
        line_to(up.amqp_port, quality, seed) as source_port,
    ):
        for lane in lanes:
            lane.declare(up, down)
        link(down, lanes, source_port)
        with busy(up, down, lanes):
            while kills < rounds and time.monotonic() < stops:
                victim = (up, down)[kills % 2]
                select_nothing(generator.uniform(0, KILL_SECONDS_MAX))
                victim.kill()
                victim.start()
                victim.wait_ready()
                kills += 1
                print(f"{kills} of {rounds} kills", file=sys.stderr, flush=True)
        wait_links(down, lanes)
        collect(down, lanes)
    return kills, lanes


def main() -> int:
    """Print a table; the status says whether on-confirm lost anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--delay-ms", type=float, default=0, help="of the line, one way")
    parser.add_argument("--loss", type=float, default=0, help="share of segments sent again")
    parser.add_argument("--cut-every-s", type=float, default=0, help="mean, 0: the line holds")
    parser.add_argument("--minutes", type=float, default=math.inf, help="then no more kills")
    parser.add_argument("--upstream", choices=BROKERS, default="brokerd")
    parser.add_argument("--downstream", choices=BROKERS, default="brokerd")
    arguments = parser.parse_args()
    quality = Quality(arguments.delay_ms / 1000, arguments.loss, arguments.cut_every_s)
    is_bad = quality != Quality()
    with tempfile.TemporaryDirectory() as folder:
        kills, lanes = run(
            Path(folder),
            arguments.rounds,
            arguments.seed,
            quality if is_bad else None,
            arguments.minutes * 60,
            (arguments.upstream, arguments.downstream),
        )
    line = f", {quality}" if is_bad else ""
    ends = f"{arguments.upstream} to {arguments.downstream}"
    print(f"{ends}: {kills} kills, seed {arguments.seed}{line}")
    print("| link | ack mode | settings | confirmed | lost | duplicates |\n" + "|---" * 6 + "|")
    for lane in lanes:
        figures = f"{len(lane.confirmed)} | {lane.lost} | {lane.duplicates}"
        settings = ", ".join(f"{name} {value}" for name, value in lane.settings.items() if value)
        print(f"| {lane.kind} | {lane.ack_mode} | {settings} | {figures} |")
    return int(any(lane.lost for lane in lanes if lane.must_keep))


if __name__ == "__main__":
    sys.exit(main())
