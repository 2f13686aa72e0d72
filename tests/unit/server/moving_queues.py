"""A member's queues for tests: they come, move, settle, are led elsewhere, lose disks and go.

`walked` and its like look at every machine, as whoever keeps nothing does; `asked` says which
machines were read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from brokerd.cluster.groups.group_clock import Moved
from brokerd.cluster.groups.host_events import Progress
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue.queue_summary import FIGURES
from brokerd.raft.messages import NodeId
from brokerd.server.queues.table import AT, GROUP_COLUMNS, QueueTable
from tests.unit.core.queue_driver import QueueDriver
from tests.unit.server.members.fakes import SPEC

N0 = NodeId("n0")


@dataclass
class Replica:
    """A queue's replica here."""

    queue: QueueDriver
    is_leader: bool = False
    is_damaged: bool = False
    leader: NodeId | None = N0
    #: Committed and not applied.
    lag: int = 0

    def progress(self) -> Progress:
        index, term = self.queue.index, self.queue.term
        return Progress(
            self.leader, self.is_leader, term, index + self.lag, index, index + self.lag + 1, 0,
            self.is_damaged,
        )  # fmt: skip


class MovingQueues:
    """A member's groups and queues as QueueTable needs them, and what a test does to them."""

    def __init__(self) -> None:
        self.replicas: dict[int, Replica] = {}
        self.records: dict[int, Queue] = {}
        self.led: dict[int, int] = {}
        self.active: dict[int, None] = {}
        #: Whoever watches: nobody before somebody asks.
        self.watchers: list[Moved] = []
        self.asked: list[int] = []
        self.table = QueueTable(self, self, self.without_vote)

    # ---- what the table looks at ---------------------------------------------------------------

    def groups(self) -> list[int]:
        return list(self.replicas)

    def has_group(self, uid: int) -> bool:
        return uid in self.replicas

    def leader_of(self, uid: int) -> NodeId | None:
        found = self.replicas.get(uid)
        return None if found is None else found.leader

    def leads(self, uid: int) -> bool:
        return uid in self.led

    def progress_of(self, uid: int) -> Progress:
        return self.replicas[uid].progress()

    def watch(self) -> Moved:
        self.watchers.append(Moved(self.active))
        return self.watchers[-1]

    def queue_of(self, uid: int) -> Queue | None:
        return self.records.get(uid)

    def queue_uids(self) -> list[int]:
        return list(self.records)

    def summary(self, uid: int) -> bytes:
        self.asked.append(uid)
        return self.replicas[uid].queue.machine.summary()

    def without_vote(self) -> list[int]:
        return [uid for uid, replica in self.replicas.items() if replica.is_damaged]

    # ---- what happens ---------------------------------------------------------------------------

    def declare(self, uid: int, vhost: str = "/", *, is_led: bool = True, **options: Any) -> None:
        self.records[uid] = Queue(vhost, f"q{uid}", SPEC, uid, ["n0"])
        self.replicas[uid] = Replica(QueueDriver(**options))
        self.active[uid] = None
        if is_led:
            self.lead(uid)

    def publish(self, uid: int, *bodies: bytes) -> None:
        self.replicas[uid].queue.publish(*bodies or (b"body",))
        self.active[uid] = None

    def lead(self, uid: int) -> None:
        self.replicas[uid].is_leader, self.replicas[uid].leader = True, N0
        self.replicas[uid].queue.term += 1
        self.led[uid] = self.replicas[uid].queue.term
        self.active[uid] = None

    def follow(self, uid: int) -> None:
        self.replicas[uid].is_leader = False
        self.led.pop(uid, None)
        self.active[uid] = None

    def lose(self, uid: int) -> None:
        """Nobody leads it any more."""
        self.follow(uid)
        self.replicas[uid].leader = None

    def delete(self, uid: int) -> None:
        self.records.pop(uid)
        self.leave(uid)

    def leave(self, uid: int) -> None:
        """The queue goes on without a replica here."""
        self.led.pop(uid, None)
        del self.replicas[uid]
        self.active.pop(uid, None)
        self.note(uid)

    def settle(self) -> None:
        for uid in list(self.active):
            del self.active[uid]
            self.note(uid)

    def note(self, uid: int) -> None:
        for moved in self.watchers:
            moved.note(uid)

    # ---- what a walk over all of them finds -----------------------------------------------------

    def of_queue(self, uid: int) -> dict[str, int]:
        machine = self.replicas[uid].queue.machine
        found = machine.overview()
        head, used = found["head_enqueued_ms"], machine.last_used_ms
        limit = machine.options.delivery_limit
        return {
            **{name: found[name] for name in FIGURES if name in found},
            **found["counters"],
            "messages": found["ready"] + found["unacked"] + found["dl_pending"],
            "delivery_limit": -1 if limit is None else limit,
            "memory_bytes": machine.memory_bytes(),
            "returned": found["ready"] - sum(count for _, count in machine.store.level_counts()),
            "publishers": len(machine.enqueuers),
            "due_ms": -1,
            "priorities": len(machine.store.level_counts()),
            "head_ms": -1 if head is None else head,
            "used_ms": -1 if used is None else used,
            "is_unattended": int(found["ready"] > 0 and not found["consumers"]),
        }

    def walked_groups(self) -> dict[str, int]:
        sums: Counter[str] = Counter(dict.fromkeys(GROUP_COLUMNS, 0))
        for replica in self.replicas.values():
            found = replica.progress()._asdict()
            sums.update({name: int(found[name]) for name in GROUP_COLUMNS})
        return {**sums, "here": len(self.replicas)}

    def walked_leaderless(self) -> list[int]:
        return sorted(uid for uid, replica in self.replicas.items() if replica.leader is None)

    def walked_led(self) -> dict[tuple[str, str], int]:
        """By vhost and figure."""
        sums: Counter[tuple[str, str]] = Counter()
        for uid in self.led:
            vhost = self.records[uid].vhost
            sums[vhost, "queues"] += 1
            for name, value in self.of_queue(uid).items():
                sums[vhost, name] += value
        return dict(sums)

    async def added_led(self) -> dict[tuple[str, str], int]:
        """The same, from the table."""
        sums: Counter[tuple[str, str]] = Counter()
        for vhost, of in (await self.table.sums_led()).items():
            sums.update({(vhost, name): of.values[AT[name]] for name in FIGURES})
            sums[vhost, "queues"] = of.queues
        return dict(sums)

    def kept(self, uid: int) -> dict[str, int] | None:
        """What stands in a queue's row."""
        row = self.table.row_of(uid)
        return None if row is None else {name: row[AT[name]] for name in FIGURES}
