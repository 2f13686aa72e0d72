"""What three members answer when the one is gone on which classic queues live, as a table.

For brokerd and RabbitMQ with the same acts: docs/reliability.md shows what came of it.  The queues
are declared at the first member, which is then killed; clients at the others ask in the same
instant, and again when it has been away for a while; at last it comes back.  No test: it judges
nothing.  RABBITMQ_BIN: the folder of the programs of another RabbitMQ than Debian's.

    python -m tests.chaos.home_down --broker brokerd rabbitmq
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from tests.chaos import brokers, network
from tests.chaos.cluster import Node, start_all
from tests.integration.home_down_rig import CONSUMED, KINDS, OPERATIONS, QUORUM

#: An answer that takes longer is none; RabbitMQ 4 takes 80 s for some.
PATIENCE_S = 100.0
#: Slower answers are shown with the seconds that they took.
AT_ONCE_S = 2.0
#: 25 MiB.
FLOOD_COUNT, FLOOD_BODY = 400, bytes(65_536)
Act = Callable[[Any, str], Any]


def _publish(mandatory: bool) -> Act:
    def act(channel: Any, queue: str) -> str:
        channel.confirm_delivery()
        try:
            channel.basic_publish("", queue, b"x", mandatory=mandatory)
        except pika.exceptions.UnroutableError:
            return "returned, ack"
        except pika.exceptions.NackError as refused:
            return "returned, nack" if refused.messages else "nack"
        return "ack"

    return act


def _declare(kind: str) -> Act:
    return lambda channel, queue: channel.queue_declare(queue, **KINDS[kind])


def acts(kind: str) -> Mapping[str, Act]:
    """Return what is asked of queues of a kind, each of one of its own."""
    return {
        "declare": _declare(kind),
        **OPERATIONS,
        "delete": lambda channel, queue: channel.queue_delete(queue),
        "publish": _publish(False),
        "publish, mandatory": _publish(True),
    }


def connect(node: Node) -> pika.BlockingConnection:
    """Connect as guest, patiently."""
    host, port = node.address
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, heartbeat=0, blocked_connection_timeout=PATIENCE_S)
    )


def told(node: Node, act: Act, queue: str, texts: set[str]) -> str:
    """Return what a member answers, in few words; what it says in many goes to `texts`."""
    began = time.monotonic()
    try:
        connection = connect(node)
        found = act(connection.channel(), queue)
        said = found if isinstance(found, str) else "ok"
        connection.close()
    except pika.exceptions.ChannelClosedByBroker as closed:
        said = str(closed.reply_code)
        texts.add(f"{said}: {closed.reply_text.replace(queue, 'QUEUE')}")
    except pika.exceptions.ConnectionClosedByBroker as closed:
        said = f"{closed.reply_code}, connection closed"
        texts.add(f"{said}: {closed.reply_text}")
    except (pika.exceptions.AMQPError, OSError) as error:
        said = type(error).__name__
    seconds = time.monotonic() - began
    return said if seconds < AT_ONCE_S else f"{said} ({seconds:.0f} s)"


def _answer(asked: Future[str], deadline: float) -> str:
    try:
        return asked.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        return f"no answer in {PATIENCE_S:.0f} s"


class Run:
    """One broker's run.  State: its members, the owner of the queues, and the texts it was told."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.home, *self.others = nodes
        self.texts: set[str] = set()
        self.owner = connect(self.home)
        # Not a `with` block: threads that never hear an answer would hold it up.
        self._pool = ThreadPoolExecutor(200)

    def declare(self) -> None:
        """Declare a queue of each kind for each act, now and later, at the first member."""
        channel = self.owner.channel()
        for kind in KINDS:
            names = [f"{kind}.{act}.{when}" for act in acts(kind) for when in ("early", "late")]
            for name in [*names, f"{kind}.kept", f"{kind}.fan"]:
                channel.queue_declare(name, **KINDS[kind])
                if kind == CONSUMED:
                    channel.basic_consume(name, lambda *_: None)
        channel.exchange_declare("fan", "fanout", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "durable.kept", b"x", pika.BasicProperties(delivery_mode=2))
        elsewhere = connect(self.others[0])
        there = elsewhere.channel()
        there.queue_declare("quorum", durable=True, arguments=QUORUM)
        there.queue_bind("quorum", "fan")
        for kind in KINDS:
            channel.queue_bind(f"{kind}.fan", "fan")
        elsewhere.close()

    def ask(self, when: str) -> dict[str, dict[str, str]]:
        """Ask everything at once, at the other members by turns; return kind, act, answer."""
        asked = {
            kind: {
                name: self._pool.submit(
                    told,
                    self.others[number % len(self.others)],
                    act,
                    f"{kind}.{name}.{when}",
                    self.texts,
                )
                for number, (name, act) in enumerate(acts(kind).items())
            }
            for kind in KINDS
        }
        deadline = time.monotonic() + PATIENCE_S
        return {
            kind: {name: _answer(future, deadline) for name, future in row.items()}
            for kind, row in asked.items()
        }

    def flood(self) -> str:
        """Publish past the queues that are down; return what the quorum queue beside them got."""

        def publish() -> str:
            began = time.monotonic()
            connection = connect(self.others[0])
            channel = connection.channel()
            for _ in range(FLOOD_COUNT):
                channel.basic_publish("fan", "", FLOOD_BODY)
            count = 0
            while count < FLOOD_COUNT and time.monotonic() < began + PATIENCE_S:
                count = channel.queue_declare("quorum", passive=True).method.message_count
                connection.process_data_events(0.1)
            connection.close()
            return f"{count} of {FLOOD_COUNT} in {time.monotonic() - began:.1f} s"

        return _answer(self._pool.submit(publish), time.monotonic() + PATIENCE_S)

    def after_return(self) -> dict[str, str]:
        """Return what the others say of the queues that were left alone, by kind."""

        def count(channel: Any, queue: str) -> str:
            found = channel.queue_declare(queue, passive=True)
            return f"there, {found.method.message_count} messages"

        asked = {
            kind: self._pool.submit(told, self.others[0], count, f"{kind}.kept", self.texts)
            for kind in KINDS
        }
        deadline = time.monotonic() + PATIENCE_S
        return {kind: _answer(future, deadline) for kind, future in asked.items()}

    def close(self) -> None:
        """Give up those that still wait."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            self.owner.close()


def one(broker: str, away_s: float, how: str) -> str:
    """Run the acts against one broker; return its table as Markdown."""
    with (
        tempfile.TemporaryDirectory(prefix="home-down-") as folder,
        network.namespaces(3) as net,
        brokers.cluster(broker, Path(folder), net, 3) as cluster,
    ):
        start_all(cluster.nodes)
        run = Run(cluster.nodes)
        try:
            version = run.owner._impl.server_properties["version"]
            run.declare()
            began = time.monotonic()
            run.home.kill() if how == "kill" else run.home.stop()
            early = run.ask("early")
            while (rest := away_s - (time.monotonic() - began)) > 0:
                threading.Event().wait(rest)
            late = run.ask("late")
            flood = run.flood()
            start_all(cluster.nodes)
            returned = run.after_return()
        finally:
            run.close()
    lines = [f"### {broker} {version}, {how}", ""]
    lines += ["| queue | " + " | ".join(acts("durable")) + " | after the return |"]
    lines += ["|---" * (len(acts("durable")) + 2) + "|"]
    for when, answers in (("at once", early), (f"{away_s:.0f} s later", late)):
        for kind, row in answers.items():
            cells = " | ".join(row.values())
            lines.append(f"| {kind}, {when} | {cells} | {returned[kind]} |")
    lines += ["", f"A quorum queue beside them: {flood}.", "", *sorted(run.texts), ""]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print a table for each broker."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--broker", nargs="+", choices=list(brokers.MADE), default=["brokerd"])
    parser.add_argument("--away-seconds", type=float, default=15.0)
    parser.add_argument("--how", choices=["kill", "stop"], default="kill")
    options = parser.parse_args(arguments)
    # An ordinary end, so that namespaces and processes go.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for broker in options.broker:
        print(one(broker, options.away_seconds, options.how), flush=True)
    # Threads that wait for ever must not hold the end up.
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
