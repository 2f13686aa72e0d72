"""A member whose processes find their cluster by themselves: it comes, goes, loses its disk."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.cluster.groups.host import Host
from brokerd.config import BrokerConfig
from brokerd.raft.messages import HardState, NodeId
from brokerd.server.members import cluster_file
from brokerd.storage.wal import WriteAheadLog
from tests.simulation.broker.member import SimMember
from tests.simulation.cluster.machine import WatchedHost
from tests.simulation.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.world import ClusterWorld

PEER_PORT = 5690
#: As much longer than the slowest write of a disk that answers as in earnest.
STALL_MS, STALL_LEADERS_MS = 500, 800


#: See SimMember: what others were told is on a disk.
Promised: TypeAlias = tuple[int, dict[int, int | None], HardState]


def address_of(node: str) -> str:
    """Return where the others reach a member."""
    return f"{node}:{PEER_PORT}"


class ClusterMember(SimMember):
    """See SimMember.  `broker` is a Process."""

    world: ClusterWorld
    broker: Process | None
    host_type = WatchedHost

    def __init__(self, world: ClusterWorld, node: NodeId, root: Path) -> None:
        super().__init__(world, node, root)
        self.data_dir = root / f"{node}.data"
        self.data_dir.mkdir()
        founders = ",".join(f"{name}={address_of(name)}" for name in world.founders)
        self.config = BrokerConfig.model_validate(
            {
                "node": {"name": node, "data_dir": str(self.data_dir), **world.places.of(node)},
                "cluster": {
                    "members": founders,
                    "address": address_of(node),
                    "secret": "of the simulation",
                },
                # Nobody logs in.
                "auth": {"create_guest": False},
                "queues": {"disconnected_timeout_ms": 2_000},
                "storage": {
                    "stall_ms": STALL_MS if world.scenario.disk_stalls else 0,
                    "stall_leaders_ms": STALL_LEADERS_MS,
                },
            }
        )
        #: What earlier disks of this member acknowledged, by log: until its group lets go of it, no
        #: vote may leave that does not know it (G8).
        self._lost: dict[int, Promised] = {}
        #: It was taken out of the cluster once, and may hear of it late.
        self.was_removed = False
        #: It has let clients in with this disk.
        self.has_served = False

    # ---- as the world sees it -------------------------------------------------------------------

    @property
    def takes_clients(self) -> bool:
        """See SimMember."""
        process = self.broker
        return (
            process is not None
            and process.is_serving
            and all(process.queues.queue_of(uid) is not None for uid in self.world.first_queues)
        )

    def admits(self, node: NodeId) -> bool:
        """See SimMember."""
        return self.is_up and self.host.is_peer(node)

    @property
    def is_refilling(self) -> bool:
        """Tell whether the member would be suspected when it starts again."""
        return cluster_file.load(self.data_dir).is_refilling

    @property
    def is_filled(self) -> bool:
        """Tell whether the disk holds what the cluster promised: it is none that is new."""
        return self.has_served and not self.is_refilling

    @property
    def has_lost_something(self) -> bool:
        """Tell whether an earlier disk of this member acknowledged what this one may not hold."""
        return bool(self._lost)

    # ---- life -----------------------------------------------------------------------------------

    def _new_host(self, wal: WriteAheadLog) -> Host:
        host = super()._new_host(wal)
        host.member = self
        return host

    def _begin(self, host: Host) -> Any:
        assert self.wal is not None
        self.uids = set()
        self.broker = process = Process(self, host, self.wal)
        process.spawn(process.run())
        return process

    def start(self) -> None:
        """See SimMember; not while it is out."""
        if not self.is_out:
            super().start()

    def lose_disk(self) -> None:
        """The process has ended and the disk is gone: the next one finds an empty directory."""
        self.is_victim = True
        self._lost = _joined(self._lost, self._promised)
        self._promised = {}
        self.empty_disk()

    def forget_unnoticed(self) -> None:
        """See SimMember: a directory of before its disk was lost comes without the suspicions that
        the new one had.
        """
        super().forget_unnoticed()
        self._unnoticed = _joined(self._lost, self._unnoticed)
        self._lost = {}

    def empty_disk(self) -> None:
        """Remove all files."""
        self._unnoticed, self._owed = {}, {}
        self.has_served = False
        self.disk.forget()
        for directory in (self.directory, self.data_dir):
            shutil.rmtree(directory)
            directory.mkdir()

    def leave(self) -> None:
        """The cluster has let go of this member: nothing binds it any more."""
        self._lost, self._promised = {}, {}

    # ---- white box ------------------------------------------------------------------------------

    def logs_here(self) -> set[int]:
        """Return the groups that the log knows."""
        return set() if self.wal is None else set(self.wal.groups())

    def let_go(self, log_uid: int) -> None:
        """A log is removed on purpose."""
        for known in (self._lost, self._owed, self._promised, self._unnoticed):
            known.pop(log_uid, None)

    def _is_kept(self, log_uid: int, wal: WriteAheadLog) -> bool:
        # The removal of a log may have reached the disk and nobody else.
        return log_uid in wal.groups() and log_uid in self.world.logs

    def on_vote(self, uid: int) -> None:
        """See SimMember."""
        super().on_vote(uid)
        self._look_at_lost(uid, "votes")

    def look_at_live_entries(self) -> None:
        """See SimMember."""
        super().look_at_live_entries()
        for uid in sorted(self.uids):
            driver = self.host.driver_of(uid)
            if driver is not None and driver.error is None and driver.health.may_vote:
                self._look_at_lost(uid, "may vote")

    def look_at_opened(self, uid: int) -> None:
        """A group was opened, and what suspects it has done so."""
        driver = self.host.driver_of(uid) if self.is_up else None
        if driver is not None and driver.error is None and driver.health.may_vote:
            self._look_at_lost(uid, "may vote from its start on")

    def _look_at_lost(self, uid: int, what: str) -> None:
        log_uid = self.log_of(uid)
        if log_uid not in self._lost:
            return
        wanted = self._committed(log_uid, *self._lost[log_uid][:2])
        found = self.host.driver_of(uid).replica.last_index
        self.world.oracle.require(
            found >= wanted,
            f"{self.id} {what} in group {uid} with {found} entries, an earlier disk of its held "
            f"{wanted} that were committed (G8)",
        )
        if found >= wanted and self.host.driver_of(uid).health.may_vote:
            del self._lost[log_uid]


def _joined(earlier: dict[int, Promised], later: dict[int, Promised]) -> dict[int, Promised]:
    """Return what a member is bound to by two of its disks."""
    found = dict(earlier)
    for log_uid, (base, terms, state) in later.items():
        known = earlier.get(log_uid, (0, {}, state))
        found[log_uid] = (max(base, known[0]), known[1] | terms, state)
    return found
