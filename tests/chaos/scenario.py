"""One chaos run: a cluster, a load, a fault again and again, then the drain and the verdict.

The same for every broker.  `run` prints the rows; `test_chaos` runs a short one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brokerd.amqp import methods
from brokerd.amqp.values import Table
from tests.chaos import brokers, logs, network, shim
from tests.chaos.checker import Verdict, judge, missing
from tests.chaos.cluster import Cluster, ClusterError, Node, World, start_all
from tests.chaos.faults import FAULTS, DiskFull, Fault
from tests.chaos.history import FaultSpan, History
from tests.chaos.load import (
    LOST,
    Address,
    Consumer,
    Publisher,
    connect,
    ready_messages,
    wait_until,
)

Say = Callable[[str], None]

#: One queue per leader, so that a fault of any member hits some leader.
WORK_QUEUES = 3
PUBLISHERS_PER_QUEUE = 2
#: Messages per second and publisher: two cores carry all members and the clients.
RATE = 60.0
WARM_UP_S = 5.0
#: After the last heal, before the publishers stop: G9 promises 5 s.
COOL_DOWN_S = 8.0
#: Longer than anything a broker waits for: brokerd gives the messages of a suspected member back
#: after 60 s, RabbitMQ's dead letter worker publishes again after 180 s without a confirm.
DRAIN_S = 240.0
SETUP_S = 60.0
#: So long consumers rest before the logs are read, so that there is something in them.
PILE_UP_S = 3.0
#: A member that has lost its log is refilled within this time.
REFILL_S = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run."""

    broker: str
    fault: str
    nodes: int
    seconds: float
    seed: int
    #: Messages per second of each of the six publishers.
    rate: float = RATE


@dataclass(slots=True)
class Result:
    """What came of it."""

    plan: Plan
    title: str
    faults: int
    ended_by_itself: int
    verdict: Verdict
    notes: list[str]

    def row(self) -> dict[str, object]:
        """Return the figures as one flat object."""
        verdict = self.verdict
        return {
            **dataclasses.asdict(self.plan),
            "title": self.title,
            "faults": self.faults,
            "attempted": verdict.attempted,
            "confirmed": verdict.confirmed,
            "received": verdict.received,
            "dead_lettered": verdict.dead_lettered,
            "lost": len(verdict.lost),
            "unburied": len(verdict.unburied),
            "unexpected": len(verdict.unexpected),
            "duplicates": verdict.duplicates,
            "unflagged": len(verdict.unflagged),
            "out_of_order": len(verdict.out_of_order),
            "left": len(verdict.left),
            "looked_for": verdict.looked_for,
            "scarce": len(verdict.scarce),
            "gap_max_s": round(verdict.gap_max_s, 1),
            "resume_max_s": round(verdict.resume_max_s, 1),
            "ended_by_itself": self.ended_by_itself,
            "violations": verdict.violations,
            "notes": self.notes,
        }


def declare(node: Node, queues: Sequence[str], dead: str, replicas: int) -> None:
    """Declare the queues of the load at this member, which leads them then."""
    quorum: Table = {"x-queue-type": "quorum", "x-quorum-initial-group-size": replicas}
    burying: Table = quorum | {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": dead,
        "x-dead-letter-strategy": "at-least-once",
        "x-overflow": "reject-publish",
    }
    client = connect(node.address, 20.0)
    for queue in queues:
        arguments = quorum if queue == dead else burying
        client.send(1, methods.QueueDeclare(0, queue, durable=True, arguments=arguments))
        client.expect(methods.QueueDeclareOk)
    client.close()


class Load:
    """The clients of a run.  State: threads, and the history they write."""

    def __init__(
        self,
        addresses: list[Address],
        work: list[str],
        history: History,
        first_publisher: int = 0,
        rate: float = RATE,
    ) -> None:
        self.history = history
        self.work = work
        self.queues = [*work, history.dead_queue]
        self.publishers = [
            Publisher(
                first_publisher + i,
                work[i % len(work)],
                rate,
                addresses,
                i + i // len(work) + 1,
                history,
            )
            for i in range(len(work) * PUBLISHERS_PER_QUEUE)
        ]
        self._addresses = addresses
        self.consumers = self._new_consumers()

    def _new_consumers(self) -> list[Consumer]:
        # One of a queue's two consumers stays where it is as long as its connection lives.
        return [
            Consumer(queue, self._addresses, turn + i, self.history, is_restless=turn == 0)
            for i, queue in enumerate(self.queues)
            for turn in (0, 1)
        ]

    def start(self) -> None:
        self.history.began_s = time.monotonic()
        for worker in (*self.consumers, *self.publishers):
            worker.start()

    def flows(self, since_s: float) -> bool:
        """Tell whether every work queue has confirmed something since then."""
        return all(self.history.latest.get(queue, 0.0) > since_s for queue in self.work)

    def stop_publishing(self) -> None:
        # Asked for again it ended when it ended.
        self.history.ended_s = self.history.ended_s or time.monotonic()
        for publisher in self.publishers:
            publisher.stopped.set()
        for publisher in self.publishers:
            publisher.join(30)

    def drain(self) -> None:
        """Wait until all is received and the queues are empty; the history says what is left."""

        def everything_came() -> bool:
            if missing(self.history):
                return False
            latest = max((delivery.at_s for delivery in self.history.deliveries[-50:]), default=0.0)
            return time.monotonic() - latest > 2.0

        wait_until(everything_came, DRAIN_S, 1.0)
        self.stop_consuming()

        def nothing_left() -> bool:
            self.history.left = {
                queue: [ready_messages(address, queue) for address in self._addresses]
                for queue in self.queues
            }
            return all(count == 0 for counts in self.history.left.values() for count in counts)

        wait_until(nothing_left, 60.0, 1.0)

    def stop_consuming(self) -> None:
        for consumer in self.consumers:
            consumer.stopped.set()
        for consumer in self.consumers:
            consumer.join(30)

    def consume_again(self) -> None:
        """New consumers, after `stop_consuming`."""
        self.consumers = self._new_consumers()
        for consumer in self.consumers:
            consumer.start()

    def stop(self) -> None:
        """End all threads, whatever happened."""
        for worker in (*self.publishers, *self.consumers):
            worker.stopped.set()


@contextlib.contextmanager
def made_cluster(broker: str, count: int, fault: Fault, folder: Path) -> Iterator[Cluster]:
    """Make what the fault needs and start the cluster; raises NoNamespaces or NoShim."""
    with contextlib.ExitStack() as stack:
        needs_namespaces = fault.needs_namespaces or fault.needs_root or broker != "brokerd"
        try:
            net: network.Network = stack.enter_context(network.namespaces(count))
        except network.NoNamespaces:
            if needs_namespaces:
                raise
            net = network.Loopback(count)
        library = shim.build(folder) if fault.needs_shim else None
        cluster = stack.enter_context(brokers.cluster(broker, folder, net, count, library))
        if isinstance(fault, DiskFull):
            for node in cluster.nodes:
                fault.mount(node)
                # Before the processes end: a lazy unmount waits for them.
                stack.callback(fault.unmount, node)
        start_all(cluster.nodes)
        yield cluster


def declare_all(cluster: Cluster, history: History) -> list[str]:
    """Spread the leaders of the work queues over the members; return the work queues."""
    work = [f"work-{i}" for i in range(WORK_QUEUES)]
    count = len(cluster.nodes)
    for i, queue in enumerate([*work, history.dead_queue]):

        def declared(node: Node = cluster.nodes[i % count], queue: str = queue) -> bool:
            try:
                declare(node, [queue], history.dead_queue, count)
            except LOST:
                return False
            return True

        if not wait_until(declared, SETUP_S, 0.5):
            raise ClusterError(f"{queue} could not be declared")
    return work


def run(plan: Plan, say: Say, keep: Path | None = None) -> Result:
    """Run it; the folder with logs and data is kept in `keep` if something is wrong."""
    fault = FAULTS[plan.fault]()
    history = History()
    world: World | None = None
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        with made_cluster(plan.broker, plan.nodes, fault, folder) as cluster:
            work = declare_all(cluster, history)
            say(f"{cluster.title}, {plan.nodes} members: ready")
            world = World(cluster, random.Random(plan.seed), [*work, history.dead_queue])
            load = Load([node.address for node in cluster.nodes], work, history, rate=plan.rate)
            load.start()
            try:
                _strike_again_and_again(plan, fault, world, load, say)
                if plan.broker == "brokerd" and not history.broken:
                    patience_s = REFILL_S if fault.costs_a_log else 0.0
                    look_into_logs(cluster.nodes, load, folder, patience_s)
                load.stop_publishing()
                say(f"{len(history.confirmed):,} confirmed; draining")
                load.drain()
            finally:
                load.stop()
                history.ended_s = history.ended_s or time.monotonic()
            verdict = judge(history)
            ended = sum(node.ended_by_itself for node in cluster.nodes)
        if verdict.violations and keep is not None:
            _keep(folder, keep, plan, history)
    return Result(plan, cluster.title, len(history.faults), ended, verdict, world.notes)


def _strike_again_and_again(plan: Plan, fault: Fault, world: World, load: Load, say: Say) -> None:
    history = load.history
    if not wait_until(lambda: load.flows(history.began_s), SETUP_S):
        raise ClusterError("no confirm before the first fault")
    wait_until(lambda: False, WARM_UP_S)
    deadline = time.monotonic() + plan.seconds - WARM_UP_S
    try:
        while time.monotonic() < deadline or not history.faults:
            begin_s = time.monotonic()
            what = fault.begin(world)
            wait_until(lambda: False, fault.lasts_s - (time.monotonic() - begin_s))
            fault.end(world)
            try:
                start_all(world.nodes)
            finally:
                history.faults.append(FaultSpan(what, begin_s, time.monotonic()))
            say(
                f"{len(history.faults):3d}. {plan.fault} {what}: "
                f"{len(history.confirmed):,} confirmed"
            )
            wait_until(lambda: False, fault.calm_s)
    except ClusterError as error:
        history.broken.append(str(error))
        say(str(error))
    # What was begun is undone in any case.
    with contextlib.suppress(AttributeError, OSError):
        fault.end(world)
    healed_s = time.monotonic()
    if not history.broken and not wait_until(lambda: load.flows(healed_s), 60.0):
        history.broken.append("a queue confirms nothing 60 s after the last heal")
    wait_until(lambda: False, COOL_DOWN_S - fault.calm_s)


def look_into_logs(nodes: list[Node], load: Load, folder: Path, patience_s: float) -> None:
    """Let messages pile up; each that is confirmed must be readable in a majority of logs.

    Publishers are stopped by that, consumers go on.  For brokerd, whose logs can be read.
    """
    history = load.history
    load.stop_consuming()
    wait_until(lambda: False, PILE_UP_S)
    load.stop_publishing()
    received = {delivery.key for delivery in history.deliveries}
    wanted = [key for key in history.confirmed if key not in received]
    history.looked_for = len(wanted)

    def is_everywhere() -> bool:
        with tempfile.TemporaryDirectory(dir=folder) as name:
            history.scarce = logs.scarce(wanted, logs.copy_all(nodes, Path(name)))
        return not history.scarce

    wait_until(is_everywhere, patience_s, 5.0)
    load.consume_again()


def _keep(folder: Path, keep: Path, plan: Plan, history: History) -> None:
    """Copy logs, data and history: the only trace of what went wrong."""
    keep.mkdir(parents=True, exist_ok=True)
    lines = [
        *(("attempted", *key, queue) for key, queue in history.attempted.items()),
        *(("confirmed", *key, at_s) for key, at_s in history.confirmed.items()),
        *(("delivery", *delivery) for delivery in history.deliveries),
        *(("fault", *span) for span in history.faults),
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    target = keep / f"{plan.broker}-{plan.fault}-{plan.nodes}-{plan.seed}.tar.gz"
    subprocess.run(["tar", "czf", str(target), "-C", str(folder), "."], check=False)
