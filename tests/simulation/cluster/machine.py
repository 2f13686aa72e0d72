"""The real catalog, and the host that opens the groups, watched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from zlib import crc32

from brokerd.cluster.groups.host import Host
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.machine import Meta, Outcome
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.machine import Machine
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from tests.simulation.broker.machine import WatchedQueue
from tests.simulation.broker.oracle import Oracle

if TYPE_CHECKING:
    from tests.simulation.cluster.member import ClusterMember


class WatchedCatalog:
    """A raft.machine.Machine: a member's CatalogMachine, that tells the oracle what it does."""

    # As CatalogMachine's, which are no values where it is compiled.
    realise_everywhere = True
    may_lose_last = False

    def __init__(self, machine: CatalogMachine, oracle: Oracle, node: NodeId) -> None:
        self._machine = machine
        self._oracle = oracle
        self._node = node
        self._applied_index = 0
        self.became_leader = machine.became_leader
        self.live_indexes = machine.live_indexes
        self.factory = machine.factory
        self.next_deadline_ms = machine.next_deadline_ms
        self.tick_command = machine.tick_command
        self.overview = machine.overview
        self.check_invariants = machine.check_invariants

    def apply(self, meta: Meta, command: bytes) -> Outcome:
        """See Machine: every member comes to the same."""
        outcome = self._machine.apply(meta, command)
        self._applied_index = meta.index
        revision = self._machine.state.revision
        found = (meta.term, crc32(command), crc32(outcome.reply), revision)
        known = self._oracle.ledgers[CATALOG_GROUP].applied.setdefault(meta.index, found)
        self._oracle.require(
            known == found,
            f"catalogs differ: {self._node} at {meta.index}: {found}, before it was {known}",
        )
        return outcome

    def snapshot(self) -> bytes:
        """See Machine."""
        data = self._machine.snapshot()
        if self._applied_index:
            self._oracle.on_snapshot(self._node, CATALOG_GROUP, self._applied_index, data)
        return data

    def restore(self, data: bytes) -> None:
        """See Machine."""
        self._machine.restore(data)
        self._applied_index = 0
        self._oracle.require(
            self._machine.snapshot() == data,
            f"{self._node}: a snapshot does not bring the catalog back",
        )


class WatchedHost(Host):
    """A Host whose catalog and queues tell the oracle what they do; it notes which log is whose."""

    member: ClusterMember

    def open_group(
        self,
        uid: int,
        members: Sequence[NodeId],
        machine: Machine,
        *,
        volatile: bool = False,
        log_uid: int = 0,
        is_made_now: bool = False,
        is_first: bool = False,
    ) -> None:
        """See Host."""
        world = self.member.world
        world.record("open", self.node, uid, log_uid, members)
        world.logs[log_uid or uid] = uid
        if isinstance(machine, QueueMachine):
            machine = WatchedQueue(world.oracle, self.node, uid, machine.options)
        elif isinstance(machine, CatalogMachine):
            machine = WatchedCatalog(machine, world.oracle, self.node)
        super().open_group(
            *(uid, members, machine),
            volatile=volatile,
            log_uid=log_uid,
            is_made_now=is_made_now,
            is_first=is_first,
        )
        self.member.uids.add(uid)
        self._loop.call_soon(self.member.look_at_opened, uid)

    def close_group(self, uid: int, *, forget: bool) -> None:
        """See Host: what is removed on purpose is promised no more."""
        self.member.world.record("close", self.node, uid, forget)
        if forget:
            self.member.let_go(self.member.log_of(uid))
        self.member.uids.discard(uid)
        super().close_group(uid, forget=forget)

    def flush(self) -> None:
        """See Host: nobody looks through all drivers for those without a vote."""
        super().flush()
        awake = self._groups.awake.values()
        damaged = {driver for driver in awake if not driver.health.may_vote}
        assert damaged == set(self.refilling.without_vote())

    def forget_logs(self, kept: Any) -> None:
        """See Host."""
        for log_uid in self.member.logs_here() - self._groups.log_uids() - set(kept):
            self.member.let_go(log_uid)
        super().forget_logs(kept)
