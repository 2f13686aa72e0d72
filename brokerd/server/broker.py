"""The broker of one member: what sessions, services and workers share.

Holds the node's view of the catalog, its groups and its registers, and realises what the machines
ask for (HostEvents).  AMQP is not known here, sockets neither.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from brokerd.cluster import deliveries as delivery_codec
from brokerd.cluster.errors import GroupGone, GroupUnavailable
from brokerd.cluster.group_client import GroupClient, ReplyStatus
from brokerd.cluster.host import Host
from brokerd.config import BrokerConfig
from brokerd.core import (
    alarms,
    catalog_checks,
    catalog_commands,
    effects,
    features,
    once,
    queue_commands,
    queue_membership,
)
from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations
from brokerd.core.catalog import CatalogMachine
from brokerd.core.catalog_objects import ConnectionId, Queue
from brokerd.core.effects import ConsumerId
from brokerd.core.message import Content
from brokerd.core.profiles import Profile
from brokerd.core.queue import QueueMachine
from brokerd.core.queue_commands import QueueOptions
from brokerd.core.refusals import Refused
from brokerd.core.router import Router, RouteResult
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server import auth, leadership, quorum_calls
from brokerd.server.alarm_monitor import AlarmMonitor
from brokerd.server.catalog_members import CatalogMembers
from brokerd.server.catalog_writer import CatalogWriter, Unavailable
from brokerd.server.connections import Connections
from brokerd.server.delivery import DeliveryHub, Got
from brokerd.server.dlx_worker import DeadLetterer
from brokerd.server.group_membership import GroupMembership
from brokerd.server.joining import Joining
from brokerd.server.member_calls import MemberCalls
from brokerd.server.message_views import BodyCaches, MessageViews
from brokerd.server.queue_leaders import QueueLeaders
from brokerd.server.refill import Refill
from brokerd.server.repeated_warnings import RepeatedWarnings
from brokerd.server.reply_to import Replies
from brokerd.server.shared_counts import SharedCounts
from brokerd.server.timers import DeadlineWheel
from brokerd.server.tracing import Tracer
from brokerd.server.variables import Variables
from brokerd.telemetry.counters import Counters

log = logging.getLogger(__name__)


class Federation(Protocol):
    """The federation supervisor as listings see it."""

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per link of this member."""
        ...


class Doors(Protocol):
    """What stop_app closes and start_app opens, as the Admin service sees it (doors.py)."""

    is_open: bool

    async def pause(self, reason: str = ...) -> int:
        """Send AMQP clients away and stop listening; return how many there were."""
        ...

    async def resume(self) -> None:
        """Listen again."""
        ...


class Broker:
    """One member's broker.

    `topology_revision` changes with the catalog: cached checks and routes are kept with it.
    """

    def __init__(
        self,
        config: BrokerConfig,
        profile: Profile,
        incarnation: int,
        checker: auth.PasswordChecker,
    ) -> None:
        self.config = config
        self.profile = profile
        self.node = config.node_name
        self.incarnation = incarnation
        self.checker = checker
        self.catalog = CatalogMachine(profile)
        #: This member's view of the catalog; what `catalog` applies shows here.
        self.view = self.catalog.state
        self.router = Router(self.view)
        self.wheel = DeadlineWheel()
        self.connections = Connections(config.limits)
        self.counters = Counters(self.clock_ms, lambda: time.monotonic_ns() // 1000)
        self.alarms = alarms.AlarmSet()
        self.topology_revision = 1
        self.random = random.Random()
        self.watchers: set[asyncio.Queue[effects.TopologyChanged]] = set()
        #: Called (by the federation supervisor, say) after the catalog changed here.
        self.topology_listeners: list[Callable[[effects.TopologyChanged], None]] = []
        self.host: Host
        self.catalog_writer: CatalogWriter
        self.groups: GroupClient
        self.deliveries = DeliveryHub(self._resume)
        self.replies = Replies(self)
        self.shared_counts = SharedCounts(self)
        self.connections.changed = self.shared_counts.changed
        self.leaders = QueueLeaders(self)
        self.membership = GroupMembership(self)
        self.topology_listeners.append(self.membership.topology_changed)
        self.calls = MemberCalls(self)
        quorum_calls.serve(self)
        self.dead_letterer = DeadLetterer(self)
        self.tracer = Tracer(self)
        self.variables = Variables(config)
        #: These three are set at the start (app.py).
        self.doors: Doors | None = None
        self.federation: Federation | None = None
        self.monitor: AlarmMonitor | None = None
        self.stopping = asyncio.Event()
        self.failure: BaseException | None = None
        #: Set when this member learns that it is none any more (joining.py).
        self.removed: Exception | None = None
        self.joining: Joining | None = None
        self.refill = Refill(self)
        self.catalog_members = CatalogMembers(self)
        self._last_uid = 0
        self._queues: dict[int, Queue] = {}
        self._views = MessageViews(self._entry_data)
        self.caches = BodyCaches(self._views)
        self._warnings = RepeatedWarnings()
        self._tasks: set[asyncio.Task[None]] = set()

    def attach(self, host: Host, groups: GroupClient) -> None:
        """Complete the broker: host and broker know each other."""
        self.host = host
        self.groups = groups
        self.catalog_writer = CatalogWriter(host, groups, self.view, self.config.limits)

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

    def blocking_reason(self) -> str:
        """Return the text of connection.blocked, "" when no alarm is on anywhere (R-ALM-1, -5)."""
        return self.alarms.reason()

    def set_alarms(self, node: str, on: frozenset[str]) -> None:
        """A member's alarms, as it says or as its death has it (R-ALM-1, R-MEM-12)."""
        before = self.alarms.on(node)
        if not self.alarms.set_node(node, on):
            return
        for line in alarms.transition_lines(node, before, self.alarms.on(node), self.alarms.on()):
            log.warning("%s", line)
        reason = self.blocking_reason()
        for connection in self.connections.all():
            connection.alarms_changed(reason)

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
        return await self.catalog_writer.write(operation)

    def _catalog_effects(self, changes: Sequence[Any]) -> None:
        self.topology_revision += 1
        looked: set[tuple[str, str]] = set()
        for change in changes:
            if isinstance(change, effects.TopologyChanged):
                self._tell_watchers(change)
                if change.kind in ("policy", "operator_policy"):
                    # Each has all queues of its vhost looked at: once for all of one command.
                    if (change.kind, change.vhost) in looked:
                        continue
                    looked.add((change.kind, change.vhost))
                self._topology_changed(change)
        self.dead_letterer.topology_changed()
        self.catalog_writer.applied()

    def _topology_changed(self, change: effects.TopologyChanged) -> None:
        if change.kind == "queue":
            self._queue_changed(change)
        elif change.kind in ("policy", "operator_policy"):
            self.leaders.update_vhost(change.vhost)
        elif change.kind == "member":
            self.members_changed()
        if change.kind == "vhost" and change.deleted:
            self.connections.vhost_deleted(change.name)
        for listener in self.topology_listeners:
            listener(change)

    def _tell_watchers(self, change: effects.TopologyChanged) -> None:
        for watcher in self.watchers:
            # One that does not keep up starts again with a list.
            if not watcher.full():
                watcher.put_nowait(change)

    def members_changed(self) -> None:
        """Dial the members that the catalog names."""
        members = self.view.members()
        if not members:
            return
        addresses = {NodeId(name): address for name, address in members.items()}
        if self.joining is not None:
            addresses = self.joining.to_dial(members)
        self.groups.set_members(CATALOG_GROUP, addresses)
        self.spawn(self.host.set_peers(addresses))
        self.catalog_members.wake()

    def load_topology(self) -> None:
        """Open what the catalog says after a start or an installed snapshot."""
        known = set(self._queues)
        for queue in self.view.queues():
            known.discard(queue.uid)
            self._open(queue)
        for uid in known:
            self._close(uid)
        # A catalog that is not whole may not know them any more.
        if not self.host.status_of(CATALOG_GROUP).is_damaged:
            # Queues that were deleted, and groups that let go of this member, while it was away.
            self.host.forget_logs(())
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
            self.dead_letterer.topology_changed()
            self.catalog_writer.applied()

        asyncio.get_running_loop().call_soon(reload)

    def _queue_changed(self, change: effects.TopologyChanged) -> None:
        queue = self.view.queue(change.vhost, change.name)
        if change.deleted or queue is None or queue.uid != change.uid:
            self._close(change.uid)
        if not change.deleted and queue is not None:
            self._open(queue)
            if self.leads(queue.uid):
                self.leaders.update_options(queue.uid)

    def _open(self, queue: Queue) -> None:
        uid, membership = queue.uid, queue.membership
        self._queues[uid] = queue
        members = [NodeId(name) for name in queue.members]
        self.groups.set_members(uid, members)
        log_uid = queue_membership.log_uid(uid, membership, self.node)
        driver = self.host.driver_of(uid)
        if driver is not None and (self.node not in members or driver.log_uid != log_uid):
            self._close_replica(uid)
        if self.node in members and not self.host.has_group(uid):
            # Once the members have changed, only a log or a leader can say who they are.
            first = members if membership.is_founding else []
            # A queue never changes its type, so the machine knows it before its leader tells the
            # rest, which may come behind the first messages (QueueLeaders.propose).
            machine = QueueMachine(queue.name, QueueOptions(queue_type=queue.type))
            volatile = not queue.durable
            self.host.open_group(uid, first, machine, volatile=volatile, log_uid=log_uid)
            self.refill.opened(uid, len(members))
            if members[0] == self.node:
                # The first member is the leader that the locator chose (R-QQ-5).
                self.host.transfer_leadership(uid, NodeId(self.node))

    def _close_replica(self, uid: int) -> None:
        """The queue goes on without this member, whose clients go on with the queue."""
        self.leaders.replica_closed(uid)
        self.dead_letterer.stop(uid)
        self.host.close_group(uid, forget=True)
        self.deliveries.leader_changed(uid)

    def _close(self, uid: int) -> None:
        self._queues.pop(uid, None)
        self.leaders.forget(uid)
        self.dead_letterer.stop(uid)
        if self.host.has_group(uid):
            self.host.close_group(uid, forget=True)
        self.groups.forget(uid)
        self.deliveries.group_gone(uid)

    # ---- queues -----------------------------------------------------------------------------

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a group."""
        return self._queues.get(uid)

    def queue_uids(self) -> list[int]:
        """Return the uids of all queues known here."""
        return list(self._queues)

    def led_queues(self, uids: Sequence[int]) -> list[tuple[Queue, QueueMachine]]:
        """Return those of these queues whose leader is here, with their state."""
        result = []
        for uid in uids:
            queue = self._queues.get(uid)
            if queue is not None and uid in self.leaders.led and self.host.has_group(uid):
                result.append((queue, self.machine(uid)))
        return result

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        machine = self.host.machine_of(uid)
        assert isinstance(machine, QueueMachine)
        return machine

    def send_to_queue(
        self, uid: int, command: bytes, done: Callable[[ReplyStatus, bytes], None] | None = None
    ) -> None:
        """Send a command to a queue's leader, in order with the earlier ones of this node."""
        is_once = uid != CATALOG_GROUP and once.is_once(command)
        self.groups.send(uid, command, done or _ignore, is_once)

    async def ask_queue(self, uid: int, command: bytes) -> bytes:
        """Send a command and wait for its reply; GroupGone when the queue is deleted meanwhile."""
        timeout_s = self.config.limits.operation_timeout_ms / 1000
        try:
            return await self.groups.request(uid, command, timeout_s, once.is_once(command))
        except GroupUnavailable as error:
            raise Unavailable(str(error)) from error

    async def get_message(self, uid: int, holder: ConsumerId, no_ack: bool) -> Got | Refused | None:
        """basic.get: one message, None when there is none (R-CS-8)."""
        try:
            raw = await self.ask_queue(uid, queue_commands.encode_get(holder, no_ack))
        except GroupGone:
            return None
        head, _, payload = raw.partition(b"\n")
        fields = queue_commands.decode_reply(head)
        if "refused" in fields:
            return Refused(fields["refused"], fields["text"])
        if fields["run"] is None:
            return None
        run = queue_commands.run_of(fields["run"])
        if payload:
            content = delivery_codec.decode(payload)[1][0][1][0]
        else:
            found = self.contents_if_here(uid, run)
            if found is None:
                return None
            content = found[0]
        return Got(run, content, fields["ready"])

    def complete_reply(self, uid: int, command: bytes, reply: bytes) -> bytes:
        """Before a reply goes to another node: basic.get brings its message along."""
        if uid == CATALOG_GROUP or once.kind_of(command) != queue_commands.Kind.GET:
            return reply
        fields = queue_commands.decode_reply(reply)
        if not fields.get("run"):
            return reply
        run = queue_commands.run_of(fields["run"])
        found = self.contents_if_here(uid, run)
        if found is None:
            # Asked again after its answer was lost: what was settled by handing it out may be gone.
            return queue_commands.encode_get_reply(None, fields["ready"])
        nobody = ConsumerId("", 0, 0, "")
        return reply + b"\n" + delivery_codec.encode(nobody, [(run, found)])

    def annotate(self, kept: Annotations) -> bytes:
        """Return a message's annotations in the form that all members can read."""
        is_packed = features.PACKED_ANNOTATIONS in self.view.enabled_features
        return message_annotations.encode(kept, packed=is_packed)

    transferable, hand_over = leadership.transferable, leadership.hand_over

    def link_rows(self) -> list[dict[str, Any]]:
        """Return the federation links of this member, for listings and telemetry."""
        return self.federation.rows() if self.federation is not None else []

    def _resume(self, uid: int, command: bytes, done: Callable[[bool], None]) -> None:
        def answered(status: ReplyStatus, reply: bytes) -> None:
            # The consumers of a deleted queue are ended by its deletion.
            gone = status is ReplyStatus.OK and "refused" in queue_commands.decode_reply(reply)
            done(not gone or not self.groups.knows(uid))

        self.groups.send(uid, command, answered, once=True)

    def _entry_data(self, uid: int, index: int) -> bytes | None:
        return self.host.entry_data(uid, index) if self.host.has_group(uid) else None

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        return uid in self.leaders.led

    def contents(self, uid: int, run: effects.Run) -> list[Content]:
        """Return a run's messages: from the log's cache, or read back from disk."""
        found = self.contents_if_here(uid, run)
        if found is None:
            raise AssertionError(f"group {uid}: entry {run.entry} is live but not in the log")
        return found

    def contents_if_here(self, uid: int, run: effects.Run) -> list[Content] | None:
        """Return a run's messages, None where this member has them no more."""
        return self._views.contents(uid, run)

    # ---- HostEvents -------------------------------------------------------------------------

    def realise(self, uid: int, term: int, todo: list[Any]) -> None:
        """Do what a machine asked for."""
        if uid == CATALOG_GROUP:
            self._catalog_effects(todo)
        else:
            self.leaders.realise(uid, term, todo)

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        """A group has a (new) leader, or none for now."""
        if uid != CATALOG_GROUP:
            self.leaders.leader_changed(uid, leader, term, is_local)

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """A member is heard again, or suspected."""
        log.info("member %s is %s", node, "up" if up else "not heard any more")
        if not up:
            self.set_alarms(node, frozenset())
        self.leaders.node_changed(node, incarnation, up)
        if up:
            self.membership.wake_all()
        self.shared_counts.node_changed(node, up)

    def deliveries_lost(self, node: NodeId) -> None:
        """What was sent to a member may be lost."""
        self.leaders.deliveries_lost(node)

    def delivered(self, sender: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """A leader elsewhere sent something for one of our consumers."""
        if kind == delivery_codec.DeliveryKind.MESSAGES:
            self.leaders.received(uid, term, payload)
        elif kind == delivery_codec.DeliveryKind.SYNC:
            self.spawn(self.catalog_writer.sync(sender, *delivery_codec.decode_sync(payload)))
        elif kind == delivery_codec.DeliveryKind.SYNCED:
            self.catalog_writer.synced(sender, delivery_codec.decode_sync(payload)[0])
        elif kind == delivery_codec.DeliveryKind.CANCELLED:
            consumer, cause = delivery_codec.decode_cancelled(payload)
            self.deliveries.cancelled(consumer, cause)
        elif kind == delivery_codec.DeliveryKind.REPLY:
            self.replies.received(sender, payload)
        elif kind == delivery_codec.DeliveryKind.REPLY_TAKEN:
            self.replies.answered(payload)
        elif kind == delivery_codec.DeliveryKind.COUNTS:
            self.shared_counts.received(sender, payload)
        elif kind in (delivery_codec.DeliveryKind.CALL, delivery_codec.DeliveryKind.ANSWER):
            self.calls.received(sender, kind, payload)

    def liveness_received(
        self,
        node: NodeId,
        on: Sequence[str],
        memory_used: int,
        memory_limit: int,
        disk_free: int,
    ) -> None:
        """Another member's alarms hold here too (R-ALM-1)."""
        self.connections.member_figures[node] = (memory_used, memory_limit, disk_free, list(on))
        self.set_alarms(node, frozenset(on))

    def failed(self, error: BaseException) -> None:
        """The disk failed: nothing can be promised any more, the process ends."""
        self.failure = error
        self.stopping.set()

    # ---- routing that found nothing ---------------------------------------------------------

    def unroutable(self, vhost: str, exchange: str, result: RouteResult) -> None:
        """Warn of a missing alternate exchange, once a minute for each (R-AE-4)."""
        if result.ae_missing is None or not self.profile.ae_warn_missing:
            return
        source, alternate = result.ae_missing
        self.warn(
            f"alternate exchange '{alternate}' in vhost '{vhost}' of exchange '{source}' "
            f"in vhost '{vhost}' does not exist"
        )

    def warn(self, text: str) -> None:
        """Log a warning, the same one at most once a minute."""
        self._warnings.warn(text, time.monotonic())


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """The command needs no answer."""
