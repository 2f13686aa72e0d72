"""Made-up clusters that suffer, each with a ledger of its own that the job never sees.

A world is a cluster of three members for two hours, told in intervals of two minutes: queues change
their leaders, members are killed, fall silent, or lose segments.  Whatever happens to what is told,
the broker counts right, so that nothing may be said against it; unless a bug is planted, which must
be found.  Nothing reads a clock.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd.telemetry.counters import EXCHANGE_COUNTERS
from tests.telemetry import fleet

STEP_US = 120_000_000
STEPS = 60
MEMBERS = ("n0", "n1", "n2")
#: By how much a member's clock is ahead, which the others tell it.
SKEWS_MS = {"ahead": 300_000, "behind": -3_600_000, "ahead-untold": 300_000}
#: What may happen to a world; "" is nothing.
TROUBLES = ("", "kill", "gone", "not-asked", "off", "silent", "late", "lost-segment", "half-copied",
            *SKEWS_MS)  # fmt: skip
#: Troubles that come together, of which each seed takes one pair.
PAIRS = (
    "kill+ahead", "kill+late", "gone+kill", "gone+silent", "gone+behind", "late+lost-segment",
    "not-asked+ahead", "silent+half-copied", "kill+lost-segment", "gone+late",
)  # fmt: skip
#: Bugs that counters may have.
BUGS = (
    "copies-more", "copies-fewer", "ack-twice", "ack-missing", "reject-missing", "depth-less",
    "outcome-missing", "outcome-twice", "letter-twice", "letter-lost", "purge-twice",
)  # fmt: skip
#: Bugs that no equation of the books can see; docs/concepts/telemetry.md says so.
BLIND = ("confirm-twice", "delivered-twice", "publish-unseen")
#: What a queue tells more (or less) than is so, by bug.
LIES = {
    "copies-fewer": {"enq": 50, "ack": 50},
    "ack-twice": {"ack": 1},
    "ack-missing": {"ack": -1},
    "reject-missing": {"rejected": -1},
    # A message of which nothing tells is not there any more.
    "depth-less": {"ready": -1},
    "letter-twice": {"dl_confirmed": 1},
}


@dataclass
class Queue(fleet.Queue):
    """A queue whose counters may tell what is not so."""

    lies: dict[str, int] = field(default_factory=dict)

    def lie(self, **more: int) -> None:
        """Tell so much more than is so, from now on."""
        self.lies = {name: self.lies.get(name, 0) + count for name, count in more.items()}

    def overview(self, now_us: int) -> dict[str, Any]:
        """Return what is told."""
        reported = super().overview(now_us)
        for name, more in self.lies.items():
            (reported if name in reported else reported["counters"])[name] += more
        return reported


@dataclass
class World:
    """One cluster.  State: its members' files, and what really happened."""

    raw: Path
    seed: int
    trouble: str = ""
    bug: str = ""
    published: int = 0
    #: Messages that went with their queues, by their names.
    gone: dict[str, int] = field(default_factory=dict)
    nodes: dict[str, fleet.Node] = field(default_factory=dict)
    queues: list[Queue] = field(default_factory=list)
    leaders: dict[int, tuple[str, int]] = field(default_factory=dict)

    @property
    def cluster(self) -> str:
        """Return its name."""
        return f"world/{self.trouble or 'calm'}-{self.bug or 'sound'}-{self.seed}"

    def has(self, *troubles: str) -> bool:
        """Say whether one of these troubles is among its own."""
        return not set(self.trouble.split("+")).isdisjoint(troubles)

    def play(self) -> None:
        """Let two hours pass, and write what was told of them."""
        self.rng = random.Random(f"{self.seed} {self.trouble} {self.bug}")
        self.boots = 0
        self.skews_ms: dict[str, int] = {}
        for name in MEMBERS:
            self._start(name, fleet.BEGIN_US)
        for uid in range(3):
            self._declare(100 + uid, f"q{uid}")
        victim = self.rng.choice(MEMBERS)
        when = self.rng.randrange(10, STEPS - 10)
        self.off = [victim] if self.has("off") else None
        self.skews_ms = {victim: sum(ms for name, ms in SKEWS_MS.items() if self.has(name))}
        self._set_clock(victim)
        for step in range(STEPS):
            self._step(step, victim if step == when else "")
            if self.has("silent") and step == when:
                self._seal(victim, step)
            if step % 10 == 9:
                for name in MEMBERS:
                    if not self._is_unasked(name, victim, step, when):
                        self._seal(name, step)
        for name in MEMBERS:
            if not self._is_unasked(name, victim, STEPS, when):
                self.nodes[name].boot_event(fleet.BEGIN_US + STEPS * STEP_US - 1, "end")
                self._seal(name, STEPS - 1)
        self._hurt(victim)

    def _is_unasked(self, name: str, victim: str, step: int, when: int) -> bool:
        """Say whether nobody has a member's rows: it was never asked, or not since then, or an
        hour late.
        """
        if name != victim:
            return False
        return self.has("not-asked", "off") or (
            step > when and (self.has("silent") or (self.has("late") and step < STEPS))
        )

    def _hurt(self, victim: str) -> None:
        """Let a segment of the victim be lost on the way, or be there in part."""
        below = self.raw / "raw" / "v1" / f"cluster={self.cluster.replace('/', '+')}"
        files = sorted((below / f"node={victim}").rglob("sample.*.gz"))
        if self.has("lost-segment"):
            files[len(files) // 2].unlink()
        elif self.has("half-copied"):
            file = files[len(files) // 2]
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])

    def _start(self, name: str, at_us: int) -> None:
        self.boots += 1
        known = [queue.uid for queue in self.queues]
        boot = (self.seed << 16 | hash_of(self.cluster)) * 64 + self.boots
        self.nodes[name] = fleet.Node(self.raw, self.cluster, name, boot, known)
        self._set_clock(name)
        self.nodes[name].boot_event(at_us, "start")

    def _set_clock(self, name: str) -> None:
        """Let a clock be off: another boot of a member does not put it right."""
        self.nodes[name].skew_ms = self.skews_ms.get(name, 0)
        self.nodes[name].tells_skew = not self.has("ahead-untold")

    def _seal(self, name: str, step: int) -> None:
        self.nodes[name].seal(fleet.BEGIN_US + step * STEP_US)

    def _declare(self, uid: int, name: str) -> None:
        # With letters that must arrive, and without any.
        has_letters = uid % 3 == 1
        dlx = "dead" if has_letters else None
        self.queues.append(Queue(uid, name, dlx=dlx, at_least_once=has_letters))
        self.leaders[uid] = (self.rng.choice(MEMBERS), 1)

    def _step(self, step: int, struck: str) -> None:
        t0_us = fleet.BEGIN_US + step * STEP_US
        t1_us = t0_us + STEP_US
        killed = struck if self.has("kill") else ""
        for node in self.nodes.values():
            node.now_us = t0_us + STEP_US // 2
        if self.has("gone") or self.bug == "purge-twice":
            self._come_and_go(step, t0_us, t1_us)
        for queue in self.queues:
            count = self.rng.randint(0, 40)
            self._publish(queue, count)
            queue.live(self.rng, count)
            self._err(queue)
        if killed:
            for uid, (leader, term) in self.leaders.items():
                if leader == killed:
                    others = [name for name in MEMBERS if name != killed]
                    self.leaders[uid] = (self.rng.choice(others), term + 1)
        elif self.has("kill") and self.rng.random() < 0.02:
            uid = self.rng.choice(list(self.leaders))
            self.leaders[uid] = (self.rng.choice(MEMBERS), self.leaders[uid][1] + 1)
        for name, node in self.nodes.items():
            if name == killed:
                continue
            node.now_us = t1_us
            node.peers = [other for other in MEMBERS if other not in (name, killed)]
            led = [queue for queue in self.queues if self.leaders[queue.uid][0] == name]
            node.peers_off = self.off
            node.collect(t0_us, t1_us, led, *(self.leaders[queue.uid][1] for queue in led))
        if killed:
            self._seal(killed, step)
            self._start(killed, t1_us)

    def _come_and_go(self, step: int, t0_us: int, t1_us: int) -> None:
        """Let a queue come and end within an interval, and sometimes one that was there end."""
        brief = Queue(1000 + step, f"brief{step}", dlx=None)
        self._publish(brief, 12)
        brief.live(self.rng, 12)
        if self.bug == "purge-twice" and step % 5 == 0:
            brief.lie(purged=1)
        leader = self.rng.choice(MEMBERS)
        ends = [(brief, leader, 1)]
        if step % 20 == 15:
            queue = self.queues.pop(0)
            ends.append((queue, *self.leaders.pop(queue.uid)))
            self._declare(200 + step, f"later{step}" if step < 30 else queue.name)
        for queue, name, term in ends:
            self.gone[queue.name] = queue.ready + queue.unacked
            self.nodes[name].end(queue, term, t0_us, t1_us, is_expired=step % 2 == 0)

    def _publish(self, queue: fleet.Queue, count: int) -> None:
        name = self.rng.choice(MEMBERS)
        contents = [fleet.content("k")] * count
        if contents:
            self.nodes[name].counters.published("/", "web", "x", fleet.route(queue.name), contents)
        self.published += count

    def _err(self, queue: Queue) -> None:
        """Let a counter be wrong, now and then."""
        if not self.bug or self.rng.random() > 0.2:
            return
        lies = LIES.get(self.bug)
        if lies is not None:
            queue.lie(**lies)
            return
        counters = self.nodes[MEMBERS[0]].counters
        route = fleet.route(queue.name)
        if self.bug == "copies-more":
            counters.published("/", "web", "x", route, [fleet.content("k")] * 50)
        elif self.bug == "letter-lost" and queue.pending:
            queue.pending -= 1
        elif self.bug.startswith("outcome"):
            tally = counters._tally(counters._exchanges, ("/", "x"), EXCHANGE_COUNTERS)
            tally.counts["in" if self.bug == "outcome-missing" else "dropped"] += 1
        elif self.bug == "confirm-twice":
            counters.confirmed("/", "web", 2, 0)
        elif self.bug == "delivered-twice":
            counters.delivered("/", "web", 2, 200)
        elif self.bug == "publish-unseen":
            self.published += 1


def hash_of(text: str) -> int:
    """Return a small number that is the same in each process."""
    return sum(ord(each) * (at + 1) for at, each in enumerate(text)) & 0xFFFF


#: Each trouble, and each bug.
KINDS = [*((trouble, "") for trouble in TROUBLES), ("pair", ""), *(("", bug) for bug in BUGS)]


def of_kind(raw: Path, seed: int, trouble: str, bug: str) -> World:
    """Return a world; "pair" is the seed's."""
    trouble = PAIRS[seed % len(PAIRS)] if trouble == "pair" else trouble
    return World(raw, seed, trouble, bug)


def make(raw: Path, seeds: range) -> list[World]:
    """Play worlds with each trouble and each bug, but for one that is only known to be wrong when
    its rows are read at once.
    """
    worlds = [of_kind(raw, seed, trouble, bug) for seed in seeds for trouble, bug in KINDS
              if trouble != "ahead-untold"]  # fmt: skip
    for world in worlds:
        world.play()
    return worlds
