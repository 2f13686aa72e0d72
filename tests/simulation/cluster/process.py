"""One life of a member: what composition.build makes, started as server/start.py starts it.

All of brokerd/server is here but its fronts: AMQP, gRPC, HTTP, telemetry, alarms, federation.
Simulated are the disk, the network, the clock, and the question to other nodes whether they know
this one; failures of tasks and effects end the run instead of being logged.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from brokerd.cluster.config import ClientConfig
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.config import ConfigError
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server import composition, start
from brokerd.server.access.password_checker import PasswordChecker
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.catalog.member_objects import MemberObjects
from brokerd.server.composition import Dependencies
from brokerd.server.member_events import MemberEvents
from brokerd.storage.wal import WriteAheadLog

if TYPE_CHECKING:
    from tests.simulation.cluster.member import ClusterMember

#: The cheapest that there is: nobody logs in.
SCRYPT_LOG2_N = 10


class WatchedEvents:
    """HostEvents: a member's, that let a failure end the run, where the driver would log it."""

    def __init__(self, events: MemberEvents, member: ClusterMember) -> None:
        self._events = events
        self._member = member
        self.deliveries_lost = events.deliveries_lost
        self.delivered = events.delivered
        self.complete_reply = events.complete_reply
        self.liveness_received = events.liveness_received
        self.failed = events.failed

    def realise(self, uid: int, term: int, effects: list[Any]) -> None:
        """See HostEvents."""
        try:
            self._events.realise(uid, term, effects)
        except Exception as error:
            if not self._member.is_victim:
                self._member.world.kernel.failure = error
            raise

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        """See HostEvents."""
        member = self._member
        member.world.record("leader", member.id, uid, leader, term, is_local)
        if is_local:
            member.world.oracle.on_leader(member.id, uid, term, member.is_damaged(uid))
        self._events.leader_changed(uid, leader, term, is_local)

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """See HostEvents."""
        self._member.world.record("node", self._member.id, node, incarnation, up)
        self._events.node_changed(node, incarnation, up)


@dataclass(slots=True, frozen=True)
class SimObjects(MemberObjects):
    """What a front door makes and deletes objects with; the world says which uid a queue gets."""

    process: Process

    def new_group_uid(self) -> int:
        """Return the uid that the world has for the queue that is being made."""
        return self.process.world.uid_of_next_queue

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """See MemberObjects."""
        return await self.process.write(operation)


class Process:
    """The member, and what world and clients ask of it; `is_serving` once clients may come."""

    def __init__(self, member: ClusterMember, host: Host, wal: WriteAheadLog) -> None:
        world = self.world = member.world
        self.member = member
        self.host = host
        self._wal = wal
        self.groups = GroupClient(
            host,
            member.rng,
            ClientConfig(retry_max_ms=200, inflight_commands=world.scenario.window),
            incarnation=member.incarnation,
        )
        given = Dependencies(
            config=member.config,
            profile=world.profile,
            wal=wal,
            host=host,
            groups=self.groups,
            checker=PasswordChecker(SCRYPT_LOG2_N),
            keyring=Keyring([]),
            rng=member.rng,
            ask=world.questions.ask,
            task_ended=self._task_ended,
        )
        built = self.built = composition.build(given)
        base = built.base
        self.node, self.incarnation = host.node, host.incarnation
        self.next_uid = base.process.next_uid
        self.queue_client = base.queue_client
        self.spawn = base.tasks.spawn
        self.view = base.catalog.view
        self.queues = base.queues
        self.leaders = built.messages.leaders
        self.deliveries = built.messages.deliveries
        self.cluster = built.members.cluster
        self.membership = built.members.membership
        self.joining = built.members.joining
        parts = {
            field.name: getattr(built.messages.objects, field.name)
            for field in fields(MemberObjects)
        }
        self.objects = SimObjects(**parts, process=self)
        host.serve(WatchedEvents(built.events, member))

    @property
    def is_serving(self) -> bool:
        """Tell whether clients may come."""
        return self.built.base.lifecycle.has_started

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a queue, as this member sees it."""
        return self.queues.queue_of(uid)

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Propose an operation; return the catalog's reply."""
        kernel = self.world.kernel
        asked_ms = kernel.now_ms
        reply = await self.built.base.catalog.write(operation)
        self.world.on_written(self, reply, kernel.now_ms - asked_ms)
        return reply

    def _task_ended(self, error: BaseException | None) -> None:
        if error is not None and self.world.kernel.failure is None:
            self.world.kernel.failure = error

    async def run(self) -> None:
        """Come to serve, as app.py does it but for listeners; then until the member is to stop."""
        lifecycle = self.built.base.lifecycle
        self.spawn(self._end())
        await start.open_catalog(self.built, self._wal)
        try:
            await start.join(self.built)
        except ConfigError as error:
            lifecycle.removed(error)
            return
        lifecycle.has_started = True
        self.joining.dial_members()
        self.world.record("serving", self.node, self.incarnation)
        self.world.on_serving(self.member)

    async def _end(self) -> None:
        lifecycle = self.built.base.lifecycle
        await lifecycle.stopping.wait()
        if lifecycle.failure is not None:
            self.world.disk_failed(self.member, lifecycle.failure)
        else:
            self.world.process_ended(self.member, lifecycle.removal)
