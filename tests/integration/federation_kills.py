"""Kills both brokers of a pair that is linked in every way, again and again, and counts messages.

`make federation-kills ROUNDS=N`.  Upstream a program publishes all the time; what it got confirmed
must have come downstream in the end, once or more often with the ack mode on-confirm.  Nobody
settles anything downstream before the end, so that duplicates are the links' own.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pika

from tests.integration.bad_line import Quality, line_to
from tests.integration.federated_queue_rig import federate_queue, wait_queue_link
from tests.integration.federation_rig import Admin, admin, amqp, uri
from tests.integration.members import Member, cluster, eventually, select_nothing

#: A kill comes at a moment of this span, so that it falls into connecting, too.
KILL_SECONDS_MAX = 2.0
#: So long without a new message, with all links running, nothing comes any more: while something is
#: missing, and once all is there.
MISSING_SECONDS = 90.0
QUIET_SECONDS = 10.0
PERSISTENT = pika.BasicProperties(delivery_mode=2)
RECONNECT_S = 0.2
CONFIRMED_MODE = "on-confirm"


@dataclass
class Lane:
    """One way from upstream to downstream; queue, exchange and definition have its name."""

    kind: str
    ack_mode: str
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

    def make(self, up: Member, down: Member, client: Admin, source_port: int) -> None:
        """Declare both ends, and the link between them, which dials source_port."""
        name, options = self.name, {"ack_mode": self.ack_mode, "reconnect_delay": RECONNECT_S}
        with amqp(up.amqp_port) as upstream, amqp(down.amqp_port) as downstream:
            downstream.queue_declare(name, durable=True)
            if self.kind == "exchange":
                for channel in (upstream, downstream):
                    channel.exchange_declare(name, "fanout", durable=True)
                downstream.queue_bind(name, name)
            else:
                upstream.queue_declare(name, durable=True)
        if self.kind == "exchange":
            client.federate(name, uri(source_port), f"^{name}$", **options)
        elif self.kind == "queue":
            federate_queue(client, name, uri(source_port), f"^{name}$", **options)
        else:
            value = {"src-uri": uri(source_port), "src-queue": name, "dest-uri": "amqp://"}
            value |= {"dest-queue": name, "ack-mode": self.ack_mode}
            value |= {"reconnect-delay": RECONNECT_S}
            client.put("parameter", f"shovel/{name}", {"value": value})

    def wait_running(self, client: Admin) -> None:
        """Wait until its link runs."""
        if self.kind == "exchange":
            client.wait_link(self.name)
        elif self.kind == "queue":
            wait_queue_link(client, self.name)
        else:
            eventually(lambda: self._shovel_runs(client), f"{self.name} runs")

    def _shovel_runs(self, client: Admin) -> bool:
        rows = client.rows("shovels")
        return any(row["upstream"] == self.name and row["status"] == "running" for row in rows)

    def publish(self, channel: object) -> None:
        """Publish the next number and wait for its confirm; raises as pika does."""
        number, self.next_number = self.next_number, self.next_number + 1
        exchange, key = (self.name, "") if self.kind == "exchange" else ("", self.name)
        channel.basic_publish(exchange, key, b"%d" % number, PERSISTENT)  # type: ignore[attr-defined]
        self.confirmed.add(number)


@contextlib.contextmanager
def busy(up: Member, down: Member, lanes: list[Lane]) -> Iterator[None]:
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


def collect(down: Member, lanes: list[Lane]) -> None:
    """Take all that comes until nothing does."""
    by_tag = {lane.name: lane for lane in lanes}
    last = 0.0

    def take(_channel: object, method: object, _properties: object, body: bytes) -> None:
        nonlocal last
        last = time.monotonic()
        by_tag[method.consumer_tag].got[int(body)] += 1  # type: ignore[attr-defined]

    with amqp(down.amqp_port) as channel:
        for lane in lanes:
            channel.basic_consume(lane.name, take, auto_ack=True, consumer_tag=lane.name)
        # What came meanwhile waits in pika, and may be much.
        last = time.monotonic()
        is_all = False
        while time.monotonic() - last < (QUIET_SECONDS if is_all else MISSING_SECONDS):
            channel.connection.process_data_events(0.2)
            is_all = is_all or not any(lane.lost for lane in lanes if lane.must_keep)


def run(
    folder: Path,
    rounds: int,
    seed: int,
    quality: Quality | None = None,
    limit_s: float = math.inf,
) -> tuple[int, list[Lane]]:
    """Kill the one or the other so many times; return how often, and what was counted.

    quality: of the line between the two; None: loopback.  limit_s: no kill begins after that.
    """
    ends = time.monotonic() + limit_s
    kills = 0
    generator = random.Random(seed)
    modes = (CONFIRMED_MODE, "on-publish")
    lanes = [Lane(kind, mode) for kind in ("exchange", "queue", "shovel") for mode in modes]
    for name in ("up", "down"):
        (folder / name).mkdir()
    with (
        cluster(folder / "up", 1, BROKERD_CLUSTER_NAME="up") as (up,),
        cluster(folder / "down", 1, BROKERD_CLUSTER_NAME="down") as (down,),
        line_to(up.amqp_port, quality, seed) as source_port,
    ):
        with admin(down) as client:
            for lane in lanes:
                lane.make(up, down, client, source_port)
            for lane in lanes:
                lane.wait_running(client)
        with busy(up, down, lanes):
            while kills < rounds and time.monotonic() < ends:
                victim = (up, down)[kills % 2]
                select_nothing(generator.uniform(0, KILL_SECONDS_MAX))
                victim.kill()
                victim.start()
                victim.wait_ready()
                kills += 1
                print(f"{kills} of {rounds} kills", file=sys.stderr, flush=True)
        with admin(down) as client:
            for lane in lanes:
                lane.wait_running(client)
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
        )
    line = f", {quality}" if is_bad else ""
    print(f"{kills} kills, seed {arguments.seed}{line}")
    print("| link | ack mode | confirmed | lost | duplicates |\n|---|---|---|---|---|")
    for lane in lanes:
        figures = f"{len(lane.confirmed)} | {lane.lost} | {lane.duplicates}"
        print(f"| {lane.kind} | {lane.ack_mode} | {figures} |")
    return int(any(lane.lost for lane in lanes if lane.must_keep))


if __name__ == "__main__":
    sys.exit(main())
