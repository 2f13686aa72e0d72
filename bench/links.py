"""One link beside RabbitMQ's own: federated exchange, federated queue, shovel; plain and over TLS.

    python -m bench.links [--rounds N] [--links exchange,queue,…] [--upstream rabbitmq|brokerd]

One upstream broker; brokerd and RabbitMQ are its two downstreams, one node each, in turns.  Before
each run the downstream is stopped (SIGSTOP), the upstream is given COUNT messages, and the clock
runs from SIGCONT until the last one is downstream: so it is the link that is measured and no
publisher.  CPU is the downstream's, which holds on a busy machine where rates do not.  Beside it,
on a plain line: what a consumer in C takes from such a queue upstream, with the prefetch that links
have and an acknowledgement for each hundred messages, and throws away.  No link can be faster.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pika

from bench import load_programs, processes
from bench.brokerd_nodes import PORTS, BrokerdCluster
from bench.processes import BenchError
from bench.rabbitmq import RabbitCluster

#: Less takes a fast link so short a time that its start is a tenth of it.
COUNT = 200_000
WARM_UP_COUNT = 5_000
#: A link that moves nothing for so long has failed.
STALL_S = 60.0
#: What was to be done before a run is over: acknowledgements upstream, figures of a node's own.
SETTLE_S = 0.5
LOOK_S = 0.01
TARGET = 3.0
CONSUMER_PREFETCH = 1000
FEW = 20
LINK_PREFETCH, ACK_EVERY = 1000, 100
#: What the queue is that an exchange's link has upstream.
LINK_QUEUE = "classic"
QUORUM: Mapping[str, str] = {"queue-type": "quorum"}
#: Brokers that take the same commands from `rabbitmqctl` and `brokerctl`.
Downstream = BrokerdCluster | RabbitCluster


@dataclass(slots=True, frozen=True)
class Kind:
    """A way from upstream to downstream."""

    key: str
    title: str
    way: str
    #: Of a consumer downstream, which federated queues need; 0: none.
    prefetch: int = 0
    #: Of the messages of a run: RabbitMQ's own link takes a minute for more.
    share: float = 1.0
    #: Of a brokerd's upstream, beyond the defaults.
    settings: Mapping[str, str] = field(default_factory=dict)


KINDS = (
    Kind("exchange", "federated exchange", "exchange"),
    # What RabbitMQ 3.10.8 has no setting for: beside its link as it is.
    Kind("exchange-quorum", "the same, `queue-type: quorum`", "exchange", settings=QUORUM),
    Kind("queue", "federated queue, consumer's prefetch 1,000", "queue", CONSUMER_PREFETCH, 0.15),
    Kind("queue-few", f"federated queue, consumer's prefetch {FEW}", "queue", FEW),
    Kind("shovel", "shovel to a queue", "shovel"),
)


@dataclass(slots=True)
class Figures:
    """Of one kind of link at one downstream."""

    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)


def declare(port: int, *, queue: str, kind: str, exchange: str = "") -> None:
    """Make a durable queue, and an exchange that it is bound to."""
    with channel_of(port) as channel:
        channel.queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        if exchange:
            channel.exchange_declare(exchange, "fanout", durable=True)
            channel.queue_bind(queue, exchange)


@contextmanager
def channel_of(port: int) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
    parameters = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0)
    connection = pika.BlockingConnection(parameters)
    try:
        yield connection.channel()
    finally:
        connection.close()


def set_link(node: Downstream, kind: Kind, name: str, uri: str) -> None:
    """Have the downstream make the link; ack mode on-confirm and prefetch 1,000, the defaults."""
    if kind.way == "shovel":
        value = {"src-uri": uri, "src-queue": name, "dest-uri": "amqp://", "dest-queue": name}
        value |= {"src-protocol": "amqp091", "dest-protocol": "amqp091"}
        node.control("set_parameter", "shovel", name, json.dumps(value))
        return
    value = {"uri": uri, "reconnect-delay": 1}
    if isinstance(node, BrokerdCluster):
        value |= kind.settings
    node.control("set_parameter", "federation-upstream", name, json.dumps(value))
    definition = json.dumps({"federation-upstream": name})
    node.control("set_policy", "--apply-to", f"{kind.way}s", name, f"^{name}$", definition)


def arrived(channel: pika.adapters.blocking_connection.BlockingChannel, queue: str) -> int:
    count: int = channel.queue_declare(queue, passive=True).method.message_count
    return count


def wait_arrived(node: Downstream, queue: str, count: int) -> None:
    """Wait until `count` messages are ready downstream."""
    with channel_of(node.amqp_ports[0]) as channel:
        seen, changed = 0, time.monotonic()
        while seen < count:
            now = arrived(channel, queue)
            if now != seen:
                seen, changed = now, time.monotonic()
            elif time.monotonic() - changed > STALL_S:
                raise BenchError(f"{node.title}: {queue}: {seen} of {count} messages came")
            time.sleep(LOOK_S)


def stop(node: Downstream) -> None:
    for pid in node.pids():
        os.kill(pid, signal.SIGSTOP)


def go_on(node: Downstream) -> None:
    for pid in node.pids():
        os.kill(pid, signal.SIGCONT)


class Bench:
    """One upstream and the two downstreams, with a link of each kind at both."""

    def __init__(self, upstream: Downstream, uri: str, queue_type: str) -> None:
        self._upstream = upstream
        self._uri = uri
        self._type = queue_type

    def make(self, node: Downstream, side: str, kind: Kind) -> None:
        """Both ends and the link; a first load shows that it moves messages."""
        name = self.name(side, kind)
        is_exchange = kind.way == "exchange"
        for broker, wants in ((self._upstream, not is_exchange), (node, True)):
            port = broker.amqp_ports[0]
            if wants:
                exchange = name if is_exchange else ""
                declare(port, queue=name, kind=self._type, exchange=exchange)
            else:
                with channel_of(port) as channel:
                    channel.exchange_declare(name, "fanout", durable=True)
        set_link(node, kind, name, self._uri)
        if is_exchange:
            self._wait_bound(node, name)
        self.run(node, side, kind, WARM_UP_COUNT)

    def _wait_bound(self, node: Downstream, name: str) -> None:
        """Publish one message after the other until one has come; then none is left."""
        deadline = time.monotonic() + STALL_S
        with channel_of(self._upstream.amqp_ports[0]) as up, channel_of(node.amqp_ports[0]) as down:
            while not arrived(down, name):
                if time.monotonic() > deadline:
                    raise BenchError(f"{node.title}: the link {name} moves nothing")
                up.basic_publish(name, "", b"first")
                time.sleep(0.2)
            time.sleep(SETTLE_S)
            down.queue_purge(name)

    @staticmethod
    def name(side: str, kind: Kind) -> str:
        return f"{side}-{kind.key}"

    def run(self, node: Downstream, side: str, kind: Kind, count: int) -> tuple[float, float]:
        """Return messages per second and microseconds of the downstream's CPU per message."""
        name, port = self.name(side, kind), node.amqp_ports[0]
        time.sleep(SETTLE_S)
        with ExitStack() as stack:
            taken = None
            if kind.prefetch:
                taking = {"prefetch": kind.prefetch, "count": count, "timeout": 120}
                taken = stack.enter_context(
                    load_programs.amqpload_running(
                        "consume", port, queue=name, no_declare=True, **taking
                    )
                )
                time.sleep(SETTLE_S)
            stop(node)
            try:
                where = {"exchange": name} if kind.way == "exchange" else {"queue": name}
                load_programs.run_amqpload(
                    "publish", self._upstream.amqp_ports[0], count=count, no_declare=True, **where
                )
                cpu = processes.cpu_seconds(node.pids())
                began = time.monotonic()
            finally:
                go_on(node)
            if taken is not None:
                taken()
            else:
                wait_arrived(node, name, count)
            took = time.monotonic() - began
            used = processes.cpu_seconds(node.pids()) - cpu
        if not kind.prefetch:
            with channel_of(port) as channel:
                channel.queue_purge(name)
        return count / took, used * 1e6 / count

    def bare(self, queue_type: str, count: int) -> float:
        """Return the messages a second that a consumer takes which does nothing with them."""
        name, port = f"bare-{queue_type}", self._upstream.amqp_ports[0]
        load_programs.run_amqpload("publish", port, queue=name, type=queue_type, count=count)
        time.sleep(SETTLE_S)
        taking = {"prefetch": LINK_PREFETCH, "ack": f"multiple:{ACK_EVERY}", "no_declare": True}
        rate: float = load_programs.run_amqpload(
            "consume", port, queue=name, count=count, **taking
        )["rate"]
        return rate


@contextmanager
def upstream_of(which: str, folder: Path, *, tls: bool) -> Iterator[tuple[Downstream, str]]:
    """The broker that all links consume from, and its URI for them."""
    query, scheme = "heartbeat=0", "amqp"
    settings, environment = "", {}
    (tls_port,) = processes.free_ports(1)
    if tls:
        authority, certificate, key = certificates(folder)
        scheme = "amqps"
        query += f"&cacertfile={authority}&verify=verify_peer&server_name_indication=localhost"
        settings = (
            f"listeners.ssl.1 = 127.0.0.1:{tls_port}\nssl_options.cacertfile = {authority}\n"
            f"ssl_options.certfile = {certificate}\nssl_options.keyfile = {key}\n"
        )
        environment = {
            "BROKERD_TLS_CERT_FILE": str(certificate),
            "BROKERD_TLS_KEY_FILE": str(key),
        }
    broker: Downstream
    if which == "rabbitmq":
        broker = RabbitCluster(1, settings=settings)
    else:
        broker = BrokerdCluster(1, environment={"BROKERD_CLUSTER_NAME": "upstream"} | environment)
    broker.start()
    try:
        port = broker.amqp_ports[0]
        if tls:
            is_rabbit = which == "rabbitmq"
            port = tls_port if is_rabbit else port - PORTS["amqp"] + 5671
        if which == "rabbitmq":
            broker.control("set_cluster_name", "upstream")
        yield broker, f"{scheme}://guest:guest@localhost:{port}/%2f?{query}"
    finally:
        broker.stop()


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority, and what it has signed for localhost, made by openssl."""
    authority, authority_key = folder / "ca.pem", folder / "ca-key.pem"
    certificate, key, request = folder / "cert.pem", folder / "key.pem", folder / "request.pem"
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    new = ["-newkey", "rsa:2048", "-nodes"]
    for command in (
        ["req", "-x509", *new, "-keyout", authority_key, "-out", authority, "-subj", "/CN=bench"],
        ["req", *new, "-keyout", key, "-out", request, "-subj", "/CN=localhost"],
        [
            *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", authority_key),
            *("-CAcreateserial", "-out", certificate, "-extfile", extensions, "-days", "2"),
        ],
    ):
        processes.run_tool(["openssl", *map(str, command)])
    return authority, certificate, key


def cell(values: list[float]) -> str:
    if not values:
        return "-"
    return f"**{statistics.median(values):,.0f}** ({min(values):,.0f}-{max(values):,.0f})"


def ratio(over: list[float], under: list[float]) -> float:
    return statistics.median(over) / statistics.median(under)


def row(kind: Kind, line: str, ours: Figures, theirs: Figures, bare: list[float]) -> str:
    if not ours.rates or not theirs.rates:
        return f"| {kind.title} | {line} | failed |"
    faster = ratio(ours.rates, theirs.rates)
    cells = [
        kind.title,
        line,
        *(cell(values) for values in (ours.rates, theirs.rates)),
        f"{faster:.2f} {'met' if faster >= TARGET else 'missed'}",
        cell(bare),
        *(cell(values) for values in (ours.cpu_us, theirs.cpu_us)),
        f"{ratio(theirs.cpu_us, ours.cpu_us):.2f}",
    ]
    return f"| {' | '.join(cells)} |"


HEADS = (
    *("link", "line", "brokerd, msg/s", "RabbitMQ, msg/s", "ratio", "a bare consumer, msg/s"),
    *("brokerd, CPU µs", "RabbitMQ, CPU µs", "ratio"),
)


def measure(args: argparse.Namespace, line: str, kinds: list[Kind]) -> list[str]:
    """All rounds over one kind of line; returns the table's rows."""
    figures = {(side, kind.key): Figures() for side in ("brokerd", "rabbitmq") for kind in kinds}
    bare: dict[str, list[float]] = {queue_type: [] for queue_type in {args.type, LINK_QUEUE}}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-links-")))
        upstream, uri = stack.enter_context(upstream_of(args.upstream, folder, tls=line == "TLS"))
        bench = Bench(upstream, uri, args.type)
        nodes: dict[str, Downstream] = {
            "brokerd": BrokerdCluster(1, environment={"BROKERD_CLUSTER_NAME": "downstream"}),
            "rabbitmq": RabbitCluster(1, plugins="rabbitmq_federation,rabbitmq_shovel"),
        }
        for node in nodes.values():
            node.start()
            stack.callback(node.stop)
        nodes["rabbitmq"].control("set_cluster_name", "downstream-rabbitmq")
        for side, node in nodes.items():
            for kind in kinds:
                bench.make(node, side, kind)
        for number in range(args.rounds):
            for kind in kinds:
                for side in sorted(nodes, reverse=bool(number % 2)):
                    count = int(args.count * kind.share)
                    rate, cpu_us = bench.run(nodes[side], side, kind, count)
                    said = f"{rate:,.0f} msg/s, {cpu_us:.0f} µs of CPU"
                    print(f"{line}, {kind.key}, {side}: {said}", flush=True)
                    figures[side, kind.key].rates.append(rate)
                    figures[side, kind.key].cpu_us.append(cpu_us)
            for queue_type in bare if line == "plain" else ():
                rate = bench.bare(queue_type, args.count)
                print(f"{line}, bare consumer, {queue_type}: {rate:,.0f} msg/s", flush=True)
                bare[queue_type].append(rate)
    return [
        row(
            kind,
            line,
            figures["brokerd", kind.key],
            figures["rabbitmq", kind.key],
            bare[LINK_QUEUE if kind.key == "exchange" else args.type],
        )
        for kind in kinds
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--count", type=int, default=COUNT, help="messages of one run")
    parser.add_argument("--links", default=",".join(kind.key for kind in KINDS))
    parser.add_argument("--lines", default="plain,TLS")
    parser.add_argument("--type", default="quorum", choices=("quorum", "classic"), help="of queues")
    parser.add_argument("--upstream", default="rabbitmq", choices=("rabbitmq", "brokerd"))
    parser.add_argument("--out", type=Path, help="write the table to this file as well")
    args = parser.parse_args()
    processes.end_with_sigterm()
    kinds = [kind for kind in KINDS if kind.key in args.links.split(",")]
    lines = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    for line in args.lines.split(","):
        lines += measure(args, line, kinds)
    text = "\n".join([*lines, ""])
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
