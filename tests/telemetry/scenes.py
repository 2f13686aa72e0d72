"""Incidents as they happen, for test_incidents.py: each in a vhost of its own, or in a cluster.

A scene plays once per step of ten minutes; `is_on` says whether its incident goes on.  What queues
and exchanges count agrees with each other, as with real members: the books are judged, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd.federation.link_rows import LinkRows
from tests.telemetry import fleet

STEP_US = 600_000_000
STEPS_PER_HOUR = 6
HOURS = 6
#: The hours that incidents last for.
ON = range(1, 3)
MINUTE_US = 60_000_000


@dataclass
class Stage:
    """One member, and the queues and links of all scenes that play there."""

    node: fleet.Node
    vhost: str = ""
    t0_us: int = fleet.BEGIN_US
    queues: dict[tuple[str, str], fleet.Queue] = field(default_factory=dict)
    links: LinkRows = field(default_factory=LinkRows)
    #: Links and shovels by minute of the step.
    reported: list[list[dict[str, Any]]] = field(default_factory=lambda: [[] for _ in range(10)])
    figures: dict[str, int] = field(default_factory=dict)
    is_silent: bool = False

    def queue(self, name: str, **settings: Any) -> fleet.Queue:
        """Return a queue of the scene's vhost, made when first asked for."""
        key = (self.vhost, name)
        if key not in self.queues:
            settings = {"dlx": None, **settings}
            uid = 100 + len(self.queues)
            self.queues[key] = fleet.Queue(uid, name, vhost=self.vhost, **settings)
        return self.queues[key]

    def publish(self, queue: fleet.Queue, n: int) -> None:
        """Clients publish to a queue."""
        contents = [fleet.content("k")] * n
        self.node.counters.published(self.vhost, "web", "x", fleet.route(queue.name), contents)
        self._enter(queue, n)

    def _enter(self, queue: fleet.Queue, n: int) -> None:
        queue.counters["enq"] += n
        queue.ready += n

    def consume(self, queue: fleet.Queue, n: int, fate: str = "ack") -> None:
        """Consumers take messages, and settle them or not (fate "")."""
        queue.ready -= n
        queue.counters["dlv"] += n
        if fate:
            queue.counters[fate] += n
        else:
            queue.unacked += n

    def work(self, name: str = "work", n: int = 100) -> fleet.Queue:
        """What comes is done at once."""
        queue = self.queue(name)
        self.publish(queue, n)
        self.consume(queue, n)
        return queue

    def letters(
        self, queue: fleet.Queue, n: int, reason: str, outcome: str, target: fleet.Queue | None
    ) -> None:
        """Dead letters that consumers or limits have made find their target, or none."""
        counters = self.node.counters
        queue.counters["dl_out"] += n
        to = [] if target is None else [target.name]
        counters.dead_lettered(
            self.vhost, queue.name, reason, queue.dlx or "", "", "at-most-once", outcome, n, n, to
        )
        if outcome != "dlx_missing":
            copies = fleet.route(*to) if target is not None else fleet.route()
            counters.internal_published(self.vhost, queue.dlx or "", copies, n, n)
        if target is not None:
            self._enter(target, n)

    def link(self, minutes: range, **row: Any) -> None:
        """Say how a link is in these minutes of the step."""
        base = {"id": f"{self.vhost}:l", "vhost": self.vhost, "uri": "amqp://there",
                "status": "running", "error": "", "type": "exchange", "upstream": "up",
                "exchange": "x", "queue": "", "backlog": 0, "backlog_age_ms": 3000}  # fmt: skip
        for minute in minutes:
            self.reported[minute].append(base | row)

    def count(self, name: str, n: int) -> int:
        """Add to a figure of a link of the scene."""
        key = f"{self.vhost} {name}"
        self.figures[key] = self.figures.get(key, 0) + n
        return self.figures[key]

    def end_step(self) -> None:
        """Take all rows of the step."""
        t1_us = self.t0_us + STEP_US
        self.node.now_us = t1_us
        for minute, links in enumerate(self.reported):
            at_us = self.t0_us + minute * MINUTE_US
            self.node.rows["sample"] += self.links.rows(links, at_us, at_us + MINUTE_US)
            links.clear()
        if self.is_silent:
            self.node.counters.take(self.t0_us, t1_us)
        else:
            queues = list(self.queues.values())
            self.node.collect(self.t0_us, t1_us, queues, *[1] * len(queues))
        self.is_silent = False
        self.t0_us = t1_us


Scene = Callable[[Stage, bool], None]
ALL = range(10)


def poison(stage: Stage, is_on: bool) -> None:
    queue, target = stage.queue("q", dlx="dlx"), stage.queue("dead")
    stage.work()
    if is_on:
        stage.publish(queue, 5)
        stage.consume(queue, 5, "over_limit")
        stage.letters(queue, 5, "delivery_limit", "routed", target)


def default_limit(stage: Stage, is_on: bool) -> None:
    queue = stage.queue("q")
    if is_on:
        stage.publish(queue, 5)
        stage.consume(queue, 5, "over_limit")
        queue.counters["default_limit_drop"] += 5


def _lost(outcome: str) -> Scene:
    def scene(stage: Stage, is_on: bool) -> None:
        queue = stage.queue("q", dlx="dlx")
        stage.work()
        if is_on:
            stage.publish(queue, 50)
            stage.consume(queue, 50, "rejected")
            stage.letters(queue, 50, "rejected", outcome, None)

    return scene


def _ring(rounds: int) -> Scene:
    def scene(stage: Stage, is_on: bool) -> None:
        one, two = stage.queue("a", dlx="dlx"), stage.queue("b", dlx="dlx")
        if is_on:
            stage.publish(one, 20)
            for _ in range(rounds):
                stage.consume(one, 20, "rejected")
                stage.letters(one, 20, "rejected", "routed", two)
                stage.consume(two, 20, "expired")
                stage.letters(two, 20, "expired", "routed", one)
            stage.consume(one, 20)

    return scene


def _astray(n: int, mandatory: bool = False, **route: bool) -> Scene:
    def scene(stage: Stage, is_on: bool) -> None:
        stage.work()
        if is_on:
            contents = [fleet.content("odd")] * n
            counters = stage.node.counters
            counters.published(stage.vhost, "web", "y", fleet.route(**route), contents, mandatory)

    return scene


def parking_lot(stage: Stage, is_on: bool) -> None:
    """Somebody looked into it and took some out once; nobody consumes, as always."""
    queue, target = stage.queue("q", dlx="dlx"), stage.queue("dead")
    target.consumers = 0
    stage.publish(queue, 10)
    stage.consume(queue, 10, "rejected")
    stage.letters(queue, 10, "rejected", "routed", target)
    target.head_age_ms = 3_000_000
    if stage.t0_us == fleet.BEGIN_US:
        stage.consume(target, 3)


def consumers_gone(stage: Stage, is_on: bool) -> None:
    queue = stage.queue("q")
    stage.publish(queue, 10)
    queue.consumers = 0 if is_on else 1
    queue.head_age_ms = queue.head_age_ms + STEP_US // 1000 if is_on else 40
    if not is_on:
        stage.consume(queue, queue.ready)


def never_read(stage: Stage, is_on: bool) -> None:
    queue = stage.queue("q")
    queue.consumers = 0
    if is_on:
        stage.publish(queue, 10)
        queue.head_age_ms += STEP_US // 1000
    elif queue.ready:
        queue.counters["purged"] += queue.ready
        queue.ready = 0


def slow_but_alive(stage: Stage, _: bool) -> None:
    queue = stage.queue("q")
    queue.head_age_ms += STEP_US // 1000
    stage.publish(queue, 50)
    stage.consume(queue, 20)


def _filling(limit: int) -> Scene:
    """It grows by 60 messages in ten minutes while it is on, and is worked off then."""

    def scene(stage: Stage, is_on: bool) -> None:
        queue = stage.queue("q", max_length=limit)
        stage.publish(queue, 100)
        stage.consume(queue, 40 if is_on else queue.ready)

    return scene


def burst(stage: Stage, _: bool) -> None:
    """All that an hour brings comes in its first ten minutes: no trend."""
    queue = stage.queue("q", max_length=200)
    if stage.t0_us % fleet.HOUR_US == 0:
        stage.publish(queue, 100)
    stage.consume(queue, queue.ready // 6)


def hung(stage: Stage, is_on: bool) -> None:
    queue = stage.queue("q")
    stage.publish(queue, 10)
    if is_on:
        if not queue.unacked:
            stage.consume(queue, 5, "")
    else:
        stage.consume(queue, queue.ready)
        queue.counters["ack"] += queue.unacked
        queue.unacked = 0


def stuck_link(stage: Stage, is_on: bool) -> None:
    """RabbitMQ #17429."""
    came = stage.count("in", 0 if is_on else 10)
    stage.link(ALL, **{"in": came}, backlog=700 if is_on else 0)


def silent_upstream(stage: Stage, is_on: bool) -> None:
    """It stands still: nothing is known to wait there, and the link says that it runs."""
    came = stage.count("in", 0 if is_on else 10)
    stage.link(ALL, **{"in": came}, backlog=0, backlog_age_ms=400_000 if is_on else 3000)


def down_link(stage: Stage, is_on: bool) -> None:
    """As the issue has it: 13 minutes."""
    came = stage.count("in", 0 if is_on else 10)
    state = "error" if is_on else "running"
    stage.link(ALL, **{"in": came}, status=state, error="connection refused")


def short_break(stage: Stage, is_on: bool) -> None:
    state = "starting" if is_on else "running"
    stage.link(range(3), **{"in": stage.count("in", 10)}, status=state)
    stage.link(range(3, 10), **{"in": stage.count("in", 10)})


def federated_queue(stage: Stage, _: bool) -> None:
    stage.link(ALL, exchange="", queue="q", type="queue", backlog=50)


def idle_link(stage: Stage, _: bool) -> None:
    stage.link(ALL)


def few_hops(stage: Stage, is_on: bool) -> None:
    came = stage.count("in", 10)
    stage.link(ALL, **{"in": came}, drop_maxhops=stage.count("hops", 5 if is_on else 0))


def ring_of_links(stage: Stage, is_on: bool) -> None:
    n = 5 if is_on else 0
    hops, loops = stage.count("hops", n), stage.count("loops", n)
    stage.link(ALL, **{"in": stage.count("in", 10)}, drop_maxhops=hops, drop_loop=loops)


def down_shovel(stage: Stage, is_on: bool) -> None:
    state = "error" if is_on else "running"
    stage.link(ALL, type="shovel", upstream="s", status=state, error="no such queue", backlog=None)


def _confirms(wait_us: int) -> Scene:
    def scene(stage: Stage, is_on: bool) -> None:
        clock = stage.node.counters.confirm_clock(stage.vhost, "web")
        clock.published(1, 200, "x")
        stage.node.now_us += wait_us if is_on else 900
        clock.confirmed([(200, True)], [])

    return scene


def stuck_letters(stage: Stage, is_on: bool) -> None:
    queue = stage.queue("q", dlx="dlx", at_least_once=True)
    if is_on:
        stage.publish(queue, 4)
        stage.consume(queue, 4, "rejected")
        queue.counters["dl_out"] += 4
        queue.pending += 4
        queue.letter_age_ms = 1_200_000
    elif queue.pending:
        queue.counters["dl_confirmed"] += queue.pending
        queue.pending, queue.letter_age_ms = 0, None


def letters_of_old(stage: Stage, is_on: bool) -> None:
    """Letters wait, then the policy that has them wait is deleted (ADR 67)."""
    stuck_letters(stage, is_on)
    queue = stage.queue("q")
    queue.dlx, queue.at_least_once = (None, False) if is_on else ("dlx", True)


def _alarm(seconds: int) -> Scene:
    def scene(stage: Stage, is_on: bool) -> None:
        if is_on:
            counters = stage.node.counters
            counters.alarm(0, 1, 30, 20)
            stage.node.now_us += seconds * 1_000_000
            counters.alarm(1, 0, 10, 20)

    return scene


def miscount(stage: Stage, is_on: bool) -> None:
    """A queue that says once an hour that it acknowledged one message more than it did."""
    queue = stage.work()
    if is_on:
        queue.counters["ack"] += 1
        queue.counters["dlv"] += 1


def lost_copies(stage: Stage, is_on: bool) -> None:
    """An exchange says that it made more copies than queues got, beyond what can be under way."""
    stage.work()
    if is_on:
        contents = [fleet.content("k")] * 500
        stage.node.counters.published(stage.vhost, "web", "x", fleet.route("work"), contents)


def stalled(stage: Stage, is_on: bool) -> None:
    stage.node.figures = {"rss": 1, "mem_limit": 9, "stalled_ms": 6000 if is_on else 0}


def killed(stage: Stage, is_on: bool) -> None:
    stage.is_silent = is_on and stage.t0_us % fleet.HOUR_US == 2 * STEP_US


def unreadable(stage: Stage, is_on: bool) -> None:
    if is_on:
        stage.node.rows["sample"] += [{"k": "unheard-of", "t0": stage.t0_us, "t1": stage.t0_us}]


def busy(stage: Stage, _: bool) -> None:
    """Much goes on over every border of an hour, some of it not in its queue yet."""
    queue = stage.work(n=5000)
    late = stage.count("late", 0)
    stage._enter(queue, late)
    stage.consume(queue, late)
    stage.figures[f"{stage.vhost} late"] = 40
    contents = [fleet.content("k")] * 40
    stage.node.counters.published(stage.vhost, "web", "x", fleet.route("work"), contents)


#: Name -> scene, what it must raise, a piece of the advice.  Those with `~` have a cluster of their
#: own, as they are about a member.
INCIDENTS: dict[str, tuple[Scene, set[tuple[str, str]], str]] = {
    "poison": (poison, {("POISON", "q")}, "dead letters of this queue"),
    "default-limit": (default_limit, {("LIMIT-DROP", "q"), ("POISON", "q")}, ""),
    "dlx-missing": (_lost("dlx_missing"), {("DL-LOST", "q")}, "create the exchange 'dlx'"),
    "dlx-unbound": (_lost("unroutable"), {("DL-LOST", "q")}, "bind a queue to the exchange 'dlx'"),
    "dlx-cycle-cut": (_lost("cycle_dropped"), {("DL-LOST", "q")}, "send them elsewhere"),
    "dlx-ring": (_ring(46), {("DLX-CYCLE", "a"), ("DLX-CYCLE", "b")}, "break the ring"),
    "retries": (_ring(3), set(), ""),
    "ae-missing": (_astray(50, missing=True), {("AE-MISSING", "y")}, "create the exchange"),
    "ae-ring": (_astray(50, cycle=True), {("AE-CYCLE", "y")}, "break the ring"),
    "unroutable": (_astray(50, mandatory=True), {("UNR-DROP", "y")}, "bind a queue"),
    "a-few-unroutable": (_astray(1), set(), ""),
    "parking-lot": (parking_lot, set(), ""),
    "consumers-gone": (consumers_gone, {("Q-STOPPED", "q")}, "start a consumer"),
    "never-read": (never_read, {("Q-UNREAD", "q")}, "start a consumer"),
    "slow": (slow_but_alive, set(), ""),
    "filling": (_filling(600), {("Q-FULL-1H", "q")}, "add consumers"),
    "filling-slowly": (_filling(4000), {("Q-FULL-24H", "q")}, "add consumers"),
    "far-from-full": (_filling(100_000), set(), ""),
    "burst": (burst, set(), ""),
    "hung": (hung, {("Q-STALLED", "q")}, "settle none"),
    "stuck-link": (stuck_link, {("FED-STUCK", "stuck-link:l")}, "its upstream"),
    "silent-upstream": (silent_upstream, {("FED-STUCK", "silent-upstream:l")}, "its upstream"),
    "down-link": (down_link, {("FED-STUCK", "down-link:l")}, "its upstream"),
    "link-restarts": (short_break, set(), ""),
    "idle-link": (idle_link, set(), ""),
    "federated-queue": (federated_queue, set(), ""),
    "few-hops": (few_hops, {("FED-HOPS", "few-hops:l")}, "max-hops"),
    "ring-of-links": (ring_of_links, set(), ""),
    "down-shovel": (down_shovel, {("SHOVEL-DOWN", "s")}, "both ends"),
    "slow-confirms": (_confirms(250_000), {("CONF-SLO", "x")}, "disk and network"),
    "fast-confirms": (_confirms(900), set(), ""),
    "stuck-letters": (stuck_letters, {("DL-STUCK", "q")}, "target queue"),
    "letters-of-old": (letters_of_old, {("DL-STUCK", "q")}, "purge_queue q --dead-letters"),
    "busy": (busy, set(), ""),
    "miscount": (miscount, {("BOOKS", "work")}, "bug of the broker"),
    "lost-copies": (lost_copies, {("BOOKS", "lost-copies")}, "bug of the broker"),
    "~alarm": (_alarm(30), {("MEM-EPISODE", "n0")}, "more memory"),
    "~short-alarm": (_alarm(5), set(), ""),
    "~disk-stalled": (stalled, {("DISK-STALLED", "n0")}, "volume"),
    "~killed": (killed, {("TELE-LOSS", "n0")}, "killed"),
    "~unreadable": (unreadable, {("TELE-BAD", "n0")}, "quarantine/rows"),
}


def play(raw: Path) -> None:
    """Write the segments of all scenes: HOURS hours, the incidents in those of ON."""
    names = ["", *(name for name in INCIDENTS if name.startswith("~"))]
    for number, cluster in enumerate(names):
        own = [name for name in INCIDENTS if name == cluster or not (cluster or name[0] == "~")]
        node = fleet.Node(raw, f"test/{cluster.strip('~') or 'all'}", "n0", 0xE0 + number, [])
        stage = Stage(node)
        node.boot_event(fleet.BEGIN_US, "start")
        for step in range(HOURS * STEPS_PER_HOUR):
            for name in own:
                stage.vhost = name.strip("~")
                node.now_us = stage.t0_us + 1000
                INCIDENTS[name][0](stage, step // STEPS_PER_HOUR in ON)
            stage.end_step()
            if step % STEPS_PER_HOUR == STEPS_PER_HOUR - 1:
                if step == HOURS * STEPS_PER_HOUR - 1:
                    node.boot_event(stage.t0_us - 1, "end")
                node.seal(stage.t0_us - STEP_US)
