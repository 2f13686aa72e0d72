"""The broker of one member: what sessions, services and workers share.

Holds the node's view of the catalog, its groups and its registers.  What the host tells goes
through member_events.py; which queues are here queue_groups.py knows.  AMQP is not known here,
sockets neither.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.cluster.peer.certificate_files import CertificateFiles
from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.config import BrokerConfig
from brokerd.core.catalog import (
    catalog_checks,
    catalog_commands,
    catalog_effects,
)
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import ConnectionId
from brokerd.core.profiles import Profile
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.access.connections import Connections
from brokerd.server.access.login_records import LoginRecords
from brokerd.server.access.password_checker import PasswordChecker
from brokerd.server.access.revocation import Revocation
from brokerd.server.access.shared_counts import SharedCounts
from brokerd.server.alarm_monitor import AlarmMonitor
from brokerd.server.amqp.connection import ClientConnection
from brokerd.server.catalog import sealed_parameters
from brokerd.server.catalog.catalog_writer import CatalogWriter, Unavailable
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.cluster_alarms import ClusterAlarms
from brokerd.server.grpc.ports import Endpoints
from brokerd.server.member_events import MemberEvents, Rooms
from brokerd.server.member_queues import MemberQueues
from brokerd.server.members import leadership, quorum_calls
from brokerd.server.members.catalog_members import CatalogMembers
from brokerd.server.members.group_membership import GroupMembership
from brokerd.server.members.joining import Joining
from brokerd.server.members.kept_aside import KeptAside
from brokerd.server.members.member_calls import MemberCalls
from brokerd.server.members.refill import Refill
from brokerd.server.members.stuck_queues import StuckQueues
from brokerd.server.messages.delivery import DeliveryHub
from brokerd.server.messages.dlx_worker import DeadLetterer
from brokerd.server.messages.queue_leaders import CatalogOptions, QueueLeaders
from brokerd.server.messages.reply_to import Replies
from brokerd.server.messages.routing import MemberRouting
from brokerd.server.messages.tracing import Tracer
from brokerd.server.messages.unfinished import Unfinished
from brokerd.server.queue_groups import Listeners, QueueGroups
from brokerd.server.timers import DeadlineWheel
from brokerd.server.variables import Variables
from brokerd.telemetry.counters import Counters

log = logging.getLogger(__name__)


class Federation(Protocol):
    """The federation supervisor as listings see it."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per link of this member."""
        ...


class Broker:
    """One member's broker.

    `topology_revision` changes with the catalog: cached checks and routes are kept with it.
    """

    #: These three are set at the start (app.py).
    doors: Endpoints | None = None
    federation: Federation | None = None
    monitor: AlarmMonitor | None = None
    #: Set when this member learns that it is none any more (joining.py).
    removed: Exception | None = None

    def __init__(
        self,
        config: BrokerConfig,
        profile: Profile,
        checker: PasswordChecker,
        host: Host,
        groups: GroupClient,
        keyring: Keyring,
        rng: random.Random,
    ) -> None:
        """keyring: under which secrets go into the log.  rng: of host and groups, too."""
        self.config = config
        self.profile = profile
        self.node = config.node_name
        self.incarnation = host.incarnation
        self.host = host
        self.groups = groups
        self.keyring = keyring
        self.checker = checker
        self.logins = LoginRecords()
        #: Of the listeners for clients; whoever listens with TLS adds its own.
        self.certificate_files: list[CertificateFiles[ssl.SSLContext]] = []
        self.catalog = CatalogMachine(profile)
        #: This member's view of the catalog; what `catalog` applies shows here.
        self.view = self.catalog.state
        self.wheel = DeadlineWheel()
        self.connections: Connections[ClientConnection] = Connections(config.limits)
        self.counters = Counters(self.clock_ms, lambda: time.monotonic_ns() // 1000)
        self.routing = MemberRouting(self.view, profile, self.counters)
        self.cluster_alarms = ClusterAlarms(self.connections.all)
        self.alarms = self.cluster_alarms.all
        self.blocking_reason = self.cluster_alarms.reason
        self.set_alarms = self.cluster_alarms.set
        self.topology_revision = 1
        self.random = rng
        self.watchers: set[asyncio.Queue[catalog_effects.TopologyChanged]] = set()
        #: Called (by the federation supervisor, say) after the catalog changed here.
        self.topology_listeners: list[Callable[[catalog_effects.TopologyChanged], None]] = []
        self._last_uid = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._build_rooms(host, groups)
        self.queue_groups = self._queue_groups()
        #: For the host.
        self.events = MemberEvents(self._rooms())

    def _build_rooms(self, host: Host, groups: GroupClient) -> None:
        config, checker = self.config, self.checker
        self.catalog_writer = CatalogWriter(host, groups, self.view, config.limits)
        self.variables = Variables(config)
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        queues = self.queues = MemberQueues(host, groups, config.limits.operation_timeout_ms)
        # For those who need objects of the catalog and queues together.
        self.queue_of, self.queue_uids = queues.queue_of, queues.queue_uids
        self.machine = queues.machine
        self.leads, self.ask_queue = queues.leads, queues.ask_queue
        self.send_to_queue, self.contents_if_here = queues.send_to_queue, queues.contents_if_here
        self.unfinished = Unfinished()
        self.deliveries = DeliveryHub(queues.resume)
        self.shared_counts = SharedCounts(self.node, self.view, self.connections.counts, host)
        self.connections.changed = self.shared_counts.changed
        self.membership = GroupMembership(self, self.spawn, self.stopping.is_set)
        self.revocation = Revocation(self.connections.guests)
        self.topology_listeners += [self.membership.topology_changed, checker.topology_changed]
        self.calls = MemberCalls(host, self.spawn)
        self.kept_aside = KeptAside(self, host, groups, self.calls, self.spawn)
        self.stuck = StuckQueues(self, self.deliveries, groups)
        self.refill = Refill(config.data_dir, host, host.refilling, queues.nudge, self.spawn)
        self.catalog_members = CatalogMembers(self, host, self.hand_over)
        self.joining = Joining(self, host)
        self.replies = Replies(self, host, self.view)
        self.tracer = Tracer(self.view, self.routing.router, self)
        self.dead_letterer = DeadLetterer(queues, self.routing, self, self.spawn)
        options = CatalogOptions(self.view, self.profile, config.queues, self.routing.warn)
        self.leaders = QueueLeaders(
            *(self, queues, host, self.deliveries, self.dead_letterer, options),
            *(self.membership.wake, self.write_later, queues.led),
        )
        quorum_calls.serve(self.calls, host, self.leaders.led, self.membership.stuck)

    def _queue_groups(self) -> QueueGroups:
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
        queues = self.queues
        return QueueGroups(self.host, self.groups, self.view, queues.records, queues.led, listeners)

    def _rooms(self) -> Rooms:
        writer, replies, calls, kinds = self.catalog_writer, self.replies, self.calls, DeliveryKind

        def sync(sender: NodeId, _uid: int, _term: int, payload: bytes) -> None:
            self.spawn(writer.sync(sender, *delivery_codec.decode_sync(payload)))

        def synced(sender: NodeId, _uid: int, _term: int, payload: bytes) -> None:
            writer.synced(sender, delivery_codec.decode_sync(payload)[0])

        def cancelled(_sender: NodeId, _uid: int, _term: int, payload: bytes) -> None:
            self.deliveries.cancelled(*delivery_codec.decode_cancelled(payload))

        def heard_again(_node: NodeId, up: bool) -> None:
            if up:
                self.membership.wake_all()

        return Rooms(
            leaders=self.leaders,
            stuck=self.stuck,
            alarms=self.cluster_alarms,
            catalog=self._catalog_effects,
            node_changed=(heard_again, self.shared_counts.node_changed),
            figures=self.connections.member_figures,
            complete=self.queues.complete_reply,
            failed=self.failed,
            received={
                kinds.MESSAGES: lambda _, uid, term, data: self.leaders.received(uid, term, data),
                kinds.SYNC: sync,
                kinds.SYNCED: synced,
                kinds.CANCELLED: cancelled,
                kinds.REPLY: lambda sender, _, __, data: replies.received(sender, data),
                kinds.REPLY_TAKEN: lambda _, __, ___, data: replies.answered(data),
                kinds.COUNTS: lambda sender, _, __, data: self.shared_counts.received(sender, data),
                kinds.CALL: lambda sender, _, __, data: calls.received(sender, kinds.CALL, data),
                kinds.ANSWER: lambda sender, _, __, data: calls.received(
                    sender, kinds.ANSWER, data
                ),
            },
        )

    # ---- small services ---------------------------------------------------------------------

    @staticmethod
    def clock_ms() -> int:
        """Return the wall clock in milliseconds."""
        return int(time.time() * 1000)

    def next_uid(self) -> int:
        """Return a number that is unique within this incarnation (channels, connections)."""
        self._last_uid += 1
        return self._last_uid

    def new_group_uid(self) -> int:
        """Return a random 63-bit uid for a new group; small ones are reserved."""
        return self.random.randrange(1 << 16, 1 << 63)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that ends with the broker; its failure is logged."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background task failed", exc_info=error)

    def close(self) -> None:
        """End what the broker runs by itself."""
        for task in self._tasks:
            task.cancel()
        self.membership.close()
        self.wheel.close()

    # ---- access -----------------------------------------------------------------------------

    def connection_id(self, uid: int) -> ConnectionId:
        """Return the cluster-wide id of a connection of this node."""
        return ConnectionId(self.node, self.incarnation, uid)

    def exclusive_queues_end(self, connection_uid: int) -> asyncio.Task[None]:
        """A connection ended: its exclusive queues go (R-Q-9); done when they are gone."""
        # Even if none is known here yet: a declare may be on its way, in order before this.
        operation = catalog_commands.connection_closed(self.connection_id(connection_uid))
        return self.spawn(self._write_quietly(operation))

    def write_later(self, operation: dict[str, Any]) -> None:
        """Have a catalog operation written whose answer nobody waits for."""
        self.spawn(self._write_quietly(operation))

    async def _write_quietly(self, operation: dict[str, Any]) -> None:
        try:
            await self.write(operation)
        except Unavailable:
            log.warning("%s: no majority; it is done when the node starts again", operation["do"])

    # ---- the catalog ------------------------------------------------------------------------

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Propose one catalog operation; return its reply once all members that are up have it."""
        catalog_checks.judge(operation, self.profile, self.view)
        sealed_parameters.seal(operation, self.view, self.keyring)
        return await self.catalog_writer.write(operation)

    def _catalog_effects(self, changes: Sequence[Any]) -> None:
        self.topology_revision += 1
        looked: set[tuple[str, str]] = set()
        for change in changes:
            if isinstance(change, catalog_effects.TopologyChanged):
                self._tell_watchers(change)
                if change.kind in ("policy", "operator_policy"):
                    # Each has all queues of its vhost looked at: once for all of one command.
                    if (change.kind, change.vhost) in looked:
                        continue
                    looked.add((change.kind, change.vhost))
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
        if change.kind == "vhost" and change.deleted:
            self.connections.vhost_deleted(change.name)
        for listener in self.topology_listeners:
            listener(change)

    def _tell_watchers(self, change: catalog_effects.TopologyChanged) -> None:
        for watcher in self.watchers:
            # One that does not keep up starts again with a list.
            if not watcher.full():
                watcher.put_nowait(change)

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
        self.topology_revision += 1
        self.tracer.load()
        self.members_changed()

    def _catalog_restored(self) -> None:
        """This member was far behind: its leader's snapshot says what is, not what changed."""

        def reload() -> None:
            self.load_topology()
            for uid in list(self.leaders.led):
                self.leaders.update_options(uid)
            self.membership.wake_all()
            self.revocation.all_changed()
            self.catalog_writer.applied()

        asyncio.get_running_loop().call_soon(reload)

    # ---- queues -----------------------------------------------------------------------------

    transferable, hand_over = leadership.transferable, leadership.hand_over

    def link_rows(self) -> list[dict[str, Any]]:
        """Return the federation links of this member, for listings and telemetry."""
        return self.federation.rows() if self.federation is not None else []

    def failed(self, error: BaseException) -> None:
        """The disk failed: nothing can be promised any more, the process ends."""
        self.failure = error
        self.stopping.set()
