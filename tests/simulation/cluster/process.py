"""One life of a member: the rooms of brokerd/server, built as server/broker.py builds them.

Real are catalog, joining, members of groups and of the catalog, refill, repair, placement, leaders,
dead letters, questions between members.  Left out: AMQP, gRPC, logins, federation, telemetry, what
is kept aside.  The order of a start is that of server/app.py.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from brokerd.cluster.config import ClientConfig
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.config import ConfigError
from brokerd.core.catalog import catalog_checks, catalog_commands, catalog_effects, features
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog import member_states
from brokerd.server.catalog.catalog_writer import CatalogWriter, Unavailable
from brokerd.server.member_events import MemberEvents, Rooms
from brokerd.server.member_queues import MemberQueues
from brokerd.server.members import leadership, quorum_calls, repair
from brokerd.server.members.catalog_members import CatalogMembers
from brokerd.server.members.group_membership import GroupMembership
from brokerd.server.members.joining import Joining
from brokerd.server.members.member_calls import MemberCalls
from brokerd.server.members.refill import Refill
from brokerd.server.members.stuck_queues import StuckQueues
from brokerd.server.messages.delivery import DeliveryHub
from brokerd.server.messages.dlx_worker import DeadLetterer
from brokerd.server.messages.queue_leaders import CatalogOptions, QueueLeaders
from brokerd.server.messages.routing import MemberRouting
from brokerd.server.queue_groups import Listeners, QueueGroups
from brokerd.telemetry.counters import Counters
from tests.simulation.cluster.machine import WatchedCatalog

if TYPE_CHECKING:
    from tests.simulation.cluster.member import ClusterMember

log = logging.getLogger(__name__)

POLL_S = 0.1


class NoAlarms:
    """Nobody runs out of memory here."""

    def set(self, node: str, on: frozenset[str]) -> None:
        """See member_events.Alarms."""


class WatchedEvents(MemberEvents):
    """MemberEvents that let a failure end the run, where the driver would log it and go on."""

    def __init__(self, rooms: Rooms, member: ClusterMember) -> None:
        super().__init__(rooms)
        self._member = member

    def realise(self, uid: int, term: int, effects: list[Any]) -> None:
        """See HostEvents."""
        try:
            super().realise(uid, term, effects)
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
        super().leader_changed(uid, leader, term, is_local)

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """See HostEvents."""
        self._member.world.record("node", self._member.id, node, incarnation, up)
        super().node_changed(node, incarnation, up)


class Process:
    """What the rooms are given, and the rooms; `is_serving` once clients may come."""

    def __init__(self, member: ClusterMember, host: Host) -> None:
        world = self.world = member.world
        self.member = member
        self.config = member.config
        self.profile = world.profile
        self.node = member.id
        self.incarnation = member.incarnation
        self.host = host
        self.random = member.rng
        self.groups = GroupClient(
            host,
            member.rng,
            ClientConfig(retry_max_ms=200, inflight_commands=world.scenario.window),
            incarnation=member.incarnation,
        )
        self.catalog = WatchedCatalog(self.profile, world.oracle, member.id)
        self.view = self.catalog.state
        self.stopping = asyncio.Event()
        self.removed: Exception | None = None
        self.failure: BaseException | None = None
        self.doors: object | None = None
        self._last_uid = 0
        self._build()
        self.events = WatchedEvents(self._rooms(), member)

    def _build(self) -> None:
        host, groups, config = self.host, self.groups, self.config
        self.catalog_writer = CatalogWriter(host, groups, self.view, config.limits)
        queues = self.queues = MemberQueues(host, groups, config.limits.operation_timeout_ms)
        self.queue_of, self.queue_uids = queues.queue_of, queues.queue_uids
        self.leads, self.ask_queue = queues.leads, queues.ask_queue
        self.deliveries = DeliveryHub(queues.resume)
        counters = Counters(self.world.clock_ms, lambda: self.world.kernel.now_us)
        self.routing = MemberRouting(self.view, self.profile, counters)
        self.membership = GroupMembership(self, self.spawn, self.stopping.is_set)
        self.calls = MemberCalls(host, self.spawn)
        self.stuck = StuckQueues(self, self.deliveries, groups)
        self.refill = Refill(self.member.data_dir, host, host.refilling, queues.nudge, self.spawn)
        self.catalog_members = CatalogMembers(self, host, self.hand_over)
        self.joining = Joining(self, host, self.world.ask)
        self.dead_letterer = DeadLetterer(queues, self.routing, self, self.spawn)
        options = CatalogOptions(self.view, self.profile, config.queues, self.warn)
        self.leaders = QueueLeaders(
            *(self, queues, host, self.deliveries, self.dead_letterer, options),
            *(self.membership.wake, self.write_later, queues.led),
        )
        quorum_calls.serve(self.calls, host, self.leaders.led, self.membership.stuck)
        leaders, letters, hub = self.leaders, self.dead_letterer, self.deliveries
        listeners = Listeners(
            opened=self.refill.opened,
            leaving=(leaders.replica_closed, letters.stop),
            left=(hub.leader_changed,),
            ending=(leaders.forget, self.stuck.forget, letters.stop),
            ended=(hub.group_gone,),
            changed=leaders.update_options,
            loaded=letters.topology_changed,
        )
        self.queue_groups = QueueGroups(
            host, groups, self.view, queues.records, queues.led, listeners
        )

    def _rooms(self) -> Rooms:
        writer, calls, kinds = self.catalog_writer, self.calls, DeliveryKind

        def sync(sender: NodeId, _uid: int, _term: int, payload: bytes) -> None:
            self.spawn(writer.sync(sender, *delivery_codec.decode_sync(payload)))

        def synced(sender: NodeId, _uid: int, _term: int, payload: bytes) -> None:
            writer.synced(sender, delivery_codec.decode_sync(payload)[0])

        def cancelled(_sender: NodeId, _uid: int, _term: int, payload: bytes) -> None:
            self.deliveries.cancelled(*delivery_codec.decode_cancelled(payload))

        def heard_again(_node: NodeId, up: bool) -> None:
            if up:
                self.membership.wake_all()

        def called(kind: int) -> Callable[[NodeId, int, int, bytes], None]:
            return lambda sender, _uid, _term, payload: calls.received(sender, kind, payload)

        return Rooms(
            leaders=self.leaders,
            stuck=self.stuck,
            alarms=NoAlarms(),
            catalog=self._catalog_effects,
            node_changed=(heard_again,),
            figures={},
            complete=self.queues.complete_reply,
            failed=lambda error: self.world.disk_failed(self.member, error),
            received={
                kinds.MESSAGES: lambda _, uid, term, data: self.leaders.received(uid, term, data),
                kinds.SYNC: sync,
                kinds.SYNCED: synced,
                kinds.CANCELLED: cancelled,
                kinds.CALL: called(kinds.CALL),
                kinds.ANSWER: called(kinds.ANSWER),
            },
        )

    # ---- small services -------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Tell whether clients may come."""
        return self.doors is not None

    def next_uid(self) -> int:
        """Return a number that is unique within this life."""
        self._last_uid += 1
        return self._last_uid

    def new_group_uid(self) -> int:
        """Return the uid that the world has for the queue that is being made."""
        return self.world.uid_of_next_queue

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task; its failure ends the run."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.world.kernel.failure is None:
            self.world.kernel.failure = error

    def warn(self, text: str) -> None:
        """Something odd about a queue's options."""
        self.world.record("warn", self.node, text)

    # ---- the catalog ----------------------------------------------------------------------------

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """See ports.Catalog."""
        catalog_checks.judge(operation, self.profile, self.view)
        reply = await self.catalog_writer.write(operation)
        self.world.on_written(self, reply)
        return reply

    def write_later(self, operation: dict[str, Any]) -> None:
        """Have a catalog operation written whose answer nobody waits for."""
        self.spawn(self._write_quietly(operation))

    async def _write_quietly(self, operation: dict[str, Any]) -> None:
        try:
            await self.write(operation)
        except Unavailable:
            log.warning("%s: no majority", operation["do"])

    def _catalog_effects(self, changes: Sequence[Any]) -> None:
        for change in changes:
            if isinstance(change, catalog_effects.TopologyChanged):
                self._topology_changed(change)
            elif isinstance(change, catalog_effects.FeaturesEnabled):
                self.leaders.update_vhost(None)
        self.dead_letterer.topology_changed()
        self.catalog_writer.applied()

    def _topology_changed(self, change: catalog_effects.TopologyChanged) -> None:
        if change.kind == "queue":
            self.queue_groups.topology_changed(change)
        elif change.kind in ("policy", "operator_policy"):
            self.leaders.update_vhost(change.vhost)
        elif change.kind == "member":
            self.members_changed()
        self.membership.topology_changed(change)

    def members_changed(self) -> None:
        """Dial the members that the catalog names."""
        members = self.view.members()
        if not members:
            return
        addresses = self.joining.to_dial(members)
        self.groups.set_members(CATALOG_GROUP, addresses)
        self.spawn(self.host.set_peers(addresses))
        self.catalog_members.wake()

    def load_topology(self) -> None:
        """Open what the catalog says after a start or an installed snapshot."""
        self.queue_groups.load()
        self.catalog.on_restored = self._catalog_restored
        self.members_changed()

    def _catalog_restored(self) -> None:
        def reload() -> None:
            self.load_topology()
            for uid in list(self.leaders.led):
                self.leaders.update_options(uid)
            self.membership.wake_all()
            self.catalog_writer.applied()

        asyncio.get_running_loop().call_soon(reload)

    transferable, hand_over = leadership.transferable, leadership.hand_over

    # ---- a life ---------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Find the cluster, wait for the catalog, open the queues, let clients in; then until the
        member is to stop.
        """
        known = self.member.wal.log(CATALOG_GROUP)
        await self.joining.open_if_data(bool(known.initial_state()[1].voters or known.last_index()))
        self.spawn(self._end())
        try:
            await self.joining.settle()
            self.spawn(self.catalog_members.run())
            while not (self.view.cluster_id or self.joining.may_found):  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            await self._introduce()
        except ConfigError as error:
            self.removed = error
            self.stopping.set()
            return
        self.load_topology()
        await self.refill.started()
        broken = repair.Repair(self, self.host, self.host.refilling.lacking, self.spawn)
        self.spawn(repair.watch(broken))
        self.spawn(self.stuck.run())
        self.joining.watch()
        self.doors = self
        self.members_changed()
        self.world.record("serving", self.node, self.incarnation)
        self.world.on_serving(self.member)

    async def _introduce(self) -> None:
        """Write the first objects of a new cluster, and what this start changes of an old one."""
        while True:
            try:
                if not self.view.cluster_id:
                    name = f"cluster of {self.node}.{self.incarnation}"
                    bootstrap = catalog_commands.bootstrap(name, "sim", features=features.names())
                    await self.write(bootstrap)
                started = catalog_commands.node_started(
                    self.node, self.incarnation, features.names()
                )
                await self.write(started)
                operations = self.joining.first_records()
                if member_states.state_of(self.view, self.node) == member_states.MAINTENANCE:
                    setting = catalog_commands.member_state(self.node)
                    operations.append(catalog_commands.set_setting(setting, None))
                if operations:
                    await self.write({"do": "batch", "operations": operations})
                return
            except Unavailable:
                self.world.record("no majority", self.node)

    async def _end(self) -> None:
        await self.stopping.wait()
        self.world.process_ended(self.member, self.removed)
