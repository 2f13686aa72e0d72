"""A made-up cluster for tests of the job: queues that count as brokerd's do, told in segments.

The rows come from brokerd's own QueueRows, Counters and segment files, so that what the job reads
is what a member writes.  All times start at BEGIN; nothing reads a clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd.amqp.properties import BasicProperties
from brokerd.core.catalog import catalog_objects
from brokerd.core.catalog.catalog_objects import Exchange
from brokerd.core.catalog.router import RouteResult
from brokerd.core.queue.queue_state import COUNTERS, REMOVALS
from brokerd.core.queue_options import QueueOptions
from brokerd.telemetry import segment_files
from brokerd.telemetry.counters import Counters
from brokerd.telemetry.poison_rows import LOOKS_A_MINUTE
from brokerd.telemetry.queue_rows import QueueRows
from brokerd.telemetry.topology_rows import Look, TopologyRows
from tests.unit.core.catalog_driver import VHOST, CatalogDriver

#: 2026-11-20T14:00:00Z, as in design/telemetry.md §14.1.
BEGIN_US = 1_795_183_200_000_000
INTERVAL_US = 10_000_000
HOUR_US = 3_600_000_000
#: The step in whose interval a fleet's policies change.
CHANGED_AT = 5


@dataclass
class GroupState:
    """A queue's group, as far as rows tell of it."""

    term: int
    lag: dict[str, int]
    applied: int = 0


@dataclass
class Queue:
    """A queue's replicated state, as far as telemetry sees it."""

    uid: int
    name: str
    vhost: str = "/"
    type: str = "quorum"
    dlx: str | None = "dead"
    at_least_once: bool = False
    counters: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTERS, 0))
    ready: int = 0
    unacked: int = 0
    pending: int = 0
    consumers: int = 1
    #: How old its oldest message is.
    head_age_ms: int = 40
    #: How old its oldest letter is that waits for its target.
    letter_age_ms: int | None = None
    max_length: int | None = None

    def overview(self, now_us: int) -> dict[str, Any]:
        """Return what QueueMachine.overview returns."""
        return {
            "counters": dict(self.counters),
            "ready": self.ready,
            "unacked": self.unacked,
            "ready_bytes": self.ready * 100,
            "unacked_bytes": self.unacked * 100,
            "head_enqueued_ms": now_us // 1000 - self.head_age_ms if self.ready else None,
            "consumers": self.consumers,
            "prefetch_sum": 10,
            "dl_pending": self.pending,
            "dl_pending_since_ms": (
                None if self.letter_age_ms is None else now_us // 1000 - self.letter_age_ms
            ),
        }

    def options(self) -> QueueOptions:
        """Return its settings."""
        return QueueOptions(
            dead_letter_exchange=self.dlx,
            at_least_once=self.at_least_once,
            delivery_limit=3,
            max_length=self.max_length,
        )

    def live(self, rng: random.Random, enqueued: int) -> None:
        """Let an interval pass, keeping the books of QueueState.check_invariants."""
        count = self.counters
        count["enq"] += enqueued
        count["enq_bytes"] += enqueued * 100
        self.ready += enqueued
        taken = rng.randint(0, self.ready)
        self.ready -= taken
        self.unacked += taken
        count["dlv"] += taken
        for name in ("ack", "rejected", "over_limit"):
            gone = rng.randint(0, self.unacked)
            if name != "ack":
                gone //= 10
                if self.dlx:
                    count["dl_out"] += gone
                    self.pending += gone if self.at_least_once else 0
                elif name == "over_limit":
                    count["default_limit_drop"] += gone
            count[name] += gone
            self.unacked -= gone
        settled = rng.randint(0, self.pending)
        count["dl_confirmed"] += settled
        self.pending -= settled
        assert count["enq"] - count["ack"] - sum(count[n] for n in REMOVALS) == (
            self.ready + self.unacked
        )


class Node:
    """One member in one boot: counters, queue rows, and the segments it has written."""

    def __init__(self, directory: Path, cluster: str, name: str, boot: int, known: list[int]):
        self.directory = directory
        self.identity = segment_files.Identity(cluster, name, f"{boot:032x}", "test")
        self.now_us = BEGIN_US
        self.counters = Counters(lambda: self.now_us // 1000, lambda: self.now_us)
        self.queue_rows = QueueRows()
        #: Queues that were led at the last interval.
        self._led: set[int] = set()
        self.queue_rows.known(known)
        #: What is declared, where this member leads the catalog.
        self.declared: CatalogDriver | None = None
        self.topology = TopologyRows()
        self.rows: dict[str, list[dict[str, Any]]] = {"sample": [], "event": []}
        self.seq = {"sample": 0, "event": 0}
        self.number = {"sample": 0, "event": 0}
        #: Bytes by part of its memory.
        self.parts: dict[str, int] = {}
        #: What else its own row says.
        self.figures: dict[str, int] = {}
        #: The other members that it sees up; None: of a version that does not tell.
        self.peers: list[str] | None = []
        #: Of those, which have telemetry switched off.
        self.peers_off: list[str] | None = None
        #: By how much its clock is ahead, as it knows from the others.
        self.skew_ms = 0
        self.tells_skew = True

    def boot_event(self, at_us: int, state: str) -> None:
        """Say that the boot begins or ends."""
        self.rows["event"].append({"k": "boot", "t0": at_us, "t1": at_us, "state": state})

    def end(self, queue: Queue, term: int, t0_us: int, t1_us: int, is_expired: bool) -> None:
        """Tell of a queue that is gone with all that is in it."""
        left = queue.ready + queue.unacked
        status = GroupState(term, {"a": 0, "b": 0})
        row = self.queue_rows.last_row(
            queue, queue.overview(t1_us), queue.options(), status, t0_us, t1_us, is_expired, left
        )
        self._led.discard(queue.uid)
        self.rows["sample"].append(row)

    def collect(self, t0_us: int, t1_us: int, led: list[Queue], *terms: int) -> None:
        """Take the rows of an interval, as telemetry_hooks does; terms: one per queue."""
        rows = self.counters.take(t0_us, t1_us)
        row: dict[str, Any] = {"k": "node", "t0": t0_us, "t1": t1_us, "conns": 1}
        row["leaders"] = len(led)
        row |= self.figures
        row["peers"] = self.peers
        row["peers_off"] = self.peers_off
        # Older members do not say where their memory goes.
        rows.append(row | {"mem_parts": dict(self.parts)} if self.parts else row)
        uids = {queue.uid for queue in led}
        for uid in self._led - uids:
            self.queue_rows.forget(uid)
        self._led = uids
        for queue, term in zip(led, terms, strict=True):
            status = GroupState(term, {"a": 0, "b": 0})
            rows += self.queue_rows.rows(
                queue, queue.overview(t1_us), queue.options(), status, t0_us, t1_us
            )
        if self.declared is not None:
            self.topology.look_at(_look(self.declared), t0_us)
            rows += self.topology.rows(t0_us, t1_us)
        self.rows["sample"] += rows
        self.rows["event"] += self.counters.take_events(t0_us, t1_us)

    def seal(self, opened_us: int) -> list[Path]:
        """Write what was collected as sealed segments."""
        paths = []
        for stream, rows in self.rows.items():
            if not rows:
                continue
            segment = segment_files.open_segment(
                self.directory, self.identity, stream, self.number[stream], opened_us,
                INTERVAL_US // 1000,
            )  # fmt: skip
            first = self.seq[stream]
            lines = [
                segment_files.encode({"v": 1, "seq": first + offset, **self._by_its_clock(row)})
                for offset, row in enumerate(rows)
            ]
            segment.write(lines, first, first + len(rows) - 1)
            path = segment_files.seal(self.directory, self.identity, segment)
            assert path is not None
            paths.append(path)
            self.seq[stream] += len(rows)
            self.number[stream] += 1
            self.rows[stream] = []
        return paths

    def _by_its_clock(self, row: dict[str, Any]) -> dict[str, Any]:
        if not self.skew_ms:
            return row
        times = {name: row[name] + self.skew_ms * 1000 for name in ("t0", "t1")}
        return row | times | ({"skew_ms": self.skew_ms} if self.tells_skew else {})


def _look(catalog: CatalogDriver) -> Look:
    look = Look(catalog.view)
    for topology in catalog.view.vhosts.values():
        for record in (*topology.exchanges.values(), *topology.queues.values()):
            look.add(record)
    return look


def declare() -> CatalogDriver:
    """Return what is declared in a fleet: policies that win, lose and fit nothing, exchanges that
    are used, idle, bound and not.
    """
    catalog = CatalogDriver()
    for number in range(5):
        limit = {"x-max-length": 1_000_000} if number == 4 else {}
        catalog.queue(f"q{number}", arguments={"x-queue-type": "quorum", **limit})
    catalog.queue("temporary")
    for name in ("x", "early", "quiet", "gone", "unbound", "inner", "backup"):
        catalog.exchange(name)
    catalog.exchange("caught", arguments={"alternate-exchange": "backup"})
    for name in ("x", "early", "quiet", "backup"):
        catalog.bind(name, "q0")
    catalog.bind("x", "inner", kind="exchange")
    put_policy(catalog, "all", {"max-length": 2_000_000, "delivery-limit": 3}, "^q", 2)
    put_policy(catalog, "low", {"max-length": 5}, "^q[01]$", 1)
    put_policy(catalog, "nothing", {"max-length": 5}, "^nothing$", 9)
    put_policy(catalog, "gone", {"max-length": 5}, "^temporary$", 0)
    put_policy(catalog, "cap", {"expires": 9_000_000}, "^q1$", 0, kind="operator_policy")
    return catalog


def put_policy(
    catalog: CatalogDriver,
    name: str,
    definition: dict[str, Any],
    pattern: str,
    priority: int,
    kind: str = "policy",
) -> None:
    """Make or change a policy for queues."""
    spec = {"pattern": pattern, "definition": definition, "priority": priority,
            "apply-to": "queues"}  # fmt: skip
    assert catalog.put(kind, name, spec)["code"] == "OK"


def change(catalog: CatalogDriver) -> None:
    """Let a policy and an exchange go, another policy that nobody needs and a queue come."""
    catalog.delete("policy", "gone", vhost=VHOST)
    catalog.delete("exchange", "gone", vhost=VHOST)
    catalog.bind("quiet", "q1")
    put_policy(catalog, "late", {"max-length": 7}, "^q2$", -1)


def route(*queues: str, hops: int = 0, missing: bool = False, cycle: bool = False) -> RouteResult:
    """Return what router.route returns."""
    shared = {"durable": True, "auto_delete": False, "arguments": {}, "settings": {}}
    result = RouteResult(Exchange("/", "x", {"type": "topic", "internal": False, **shared}))
    result.queues = tuple(
        catalog_objects.Queue("/", name, {"type": "quorum", **shared}, uid, [])
        for uid, name in enumerate(queues)
    )
    result.alternates = tuple(("x", "ae") for _ in range(hops))
    result.ae_missing = ("x", "gone") if missing else None
    result.ae_cycle = cycle
    return result


def content(key: str, size: int = 100) -> tuple[tuple[str, str], bytes, bytes, bytes]:
    """Return a published content."""
    return (("x", key), b"", b"x" * size, b"")


@dataclass
class Truth:
    """What really happened, to compare tables with."""

    queues: list[Queue]
    published: int = 0
    unroutable: int = 0


def make(
    directory: Path, seed: int, hours: int = 2, steps_per_hour: int = 8, kill: bool = True
) -> Truth:
    """Write a fleet's segments: three members, leaders that move, one that is killed on the way.

    The killed member's last interval is never told, as after SIGKILL.
    """
    rng, odd = random.Random(seed), random.Random(-seed)
    queues = [Queue(100 + i, f"q{i}", at_least_once=i == 0, dlx="dead" if i < 3 else None,
                    max_length=1_000_000 if i == 4 else None) for i in range(5)]  # fmt: skip
    truth = Truth(queues)
    nodes = [Node(directory, "test/fleet", f"n{i}", seed * 10 + i + 1, []) for i in range(3)]
    for node in nodes:
        node.boot_event(BEGIN_US, "start")
    catalog = nodes[2].declared = declare()
    leader, term = dict.fromkeys(range(5), 0), dict.fromkeys(range(5), 1)
    step_us = HOUR_US // steps_per_hour
    killed_at = hours * steps_per_hour // 2 if kill else -1
    for step in range(hours * steps_per_hour):
        t0_us = BEGIN_US + step * step_us
        t1_us = t0_us + step_us
        if step == killed_at:
            # n0 dies: nobody tells this interval of its queues; n1 leads on, in a new term.
            for queue in queues:
                queue.live(rng, rng.randint(0, 50))
            for index in range(5):
                if leader[index] == 0:
                    leader[index], term[index] = 1, term[index] + 1
            nodes[0].seal(t0_us)
            nodes[0] = Node(directory, "test/fleet", "n0", seed * 10 + 7, [q.uid for q in queues])
            nodes[0].boot_event(t1_us, "start")
        if step == 0:
            # Of the broker's own, which no user is billed for.
            nodes[0].counters.internal_published("/", "early", route(), 1, 100)
        if step == CHANGED_AT:
            change(catalog)
        _publish(nodes, rng, queues, truth)
        for number, node in enumerate(nodes):
            if step == killed_at and number == 0:
                node.now_us = t1_us
                continue
            # What happens within an interval is of its hour.
            node.now_us = t1_us - 1_000_000
            _suffer(node, odd)
            if number == 1:
                _give_up(node, step)
            node.now_us = t1_us
            _see_others(node, number, step == killed_at)
            led = [index for index in range(5) if leader[index] == number]
            node.collect(t0_us, t1_us, [queues[i] for i in led], *(term[i] for i in led))
        if rng.random() < 0.3:
            index = rng.randrange(5)
            leader[index], term[index] = rng.randrange(3), term[index] + 1
        if (step + 1) % steps_per_hour == 0:
            for node in nodes:
                node.seal(t0_us)
    for node in nodes:
        node.boot_event(BEGIN_US + hours * HOUR_US - 1, "end")
        node.seal(BEGIN_US + hours * HOUR_US - 1)
    return truth


def _see_others(node: Node, number: int, is_first_down: bool) -> None:
    """Let a member see which others are up."""
    down = 0 if is_first_down else number
    node.peers = [f"n{other}" for other in range(3) if other not in (number, down)]


def _suffer(node: Node, odd: random.Random) -> None:
    """Let memory and disk of a member be somehow, and a client be blocked now and then."""
    node.figures = {
        "rss": odd.randint(1 << 28, 1 << 30), "mem_limit": 2 << 30, "wm_bytes": 1 << 30,
        "disk_free": odd.randint(1 << 33, 1 << 34), "disk_limit": 1 << 30,
    }  # fmt: skip
    for number in range(odd.randint(0, 2)):
        cause = odd.choice(("memory", "disk"))
        blocked_ms = odd.randint(1, 400_000)
        node.counters.throttle("/", "web", f"c{number}", "read_stop", blocked_ms, cause)


def _give_up(node: Node, step: int) -> None:
    """Let the member that makes the letters tell of two kinds of messages, one of them often."""
    header = BasicProperties(content_type="text/plain").encode()
    for number in range(2 + step % 3):
        node.counters.poison.given_up("/", "q1", 4 + step, "k", header, "routed")
        node.counters.poison.given_up("/", "q1", 4, f"k{number}", b"", "dlx_missing")
    for _ in range(step % 2 * LOOKS_A_MINUTE):
        node.counters.poison.given_up("/", "q2", 4, "k", header, "routed")
        node.counters.poison.given_up("/", "q2", 4, "k", header, "routed")


def _publish(nodes: list[Node], rng: random.Random, queues: list[Queue], truth: Truth) -> None:
    for queue in queues:
        count = rng.randint(0, 40)
        queue.live(rng, count)
        node = rng.choice(nodes)
        contents = [content("k")] * count
        clock = node.counters.confirm_clock("/", "web")
        if contents:
            node.counters.published("/", "web", "x", route(queue.name), contents)
            clock.published(1, count, "x")
            node.now_us += rng.randint(100, 90_000)
            clock.confirmed([(count, True)], [])
        truth.published += count
    node = rng.choice(nodes)
    for result in (route("q0", hops=2), route(), route(missing=True), route(cycle=True)):
        count = rng.randint(0, 3)
        contents = [content(f"odd.{rng.randint(0, 3)}") for _ in range(count)]
        if contents:
            node.counters.published("/", "web", "x", result, contents, mandatory=True)
        truth.published += count
        truth.unroutable += 0 if result.queues else count
