"""Host: all groups of a node, one flush for all of them.

Inputs are appended per group; one `call_soon` flush handles every group that has some: replicas
run, their writes go to the writer thread as one batch, their messages leave as one frame per peer
(hot-path.md rule 1: batches form by what is there when the previous flush ends)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mypy_extensions import mypyc_attr

from brokerd.cluster.config import HostConfig
from brokerd.cluster.errors import SnapshotUnreadable
from brokerd.cluster.groups import (
    flush_calls,
    group_clock,
    host_events,
    replica_health,
    write_queue,
)
from brokerd.cluster.groups.cleaning import Cleaning
from brokerd.cluster.groups.deadlines import Deadlines
from brokerd.cluster.groups.driver import Done, Driver
from brokerd.cluster.groups.folded_groups import FoldedGroups
from brokerd.cluster.groups.host_events import ClientEvents, GroupStatus, HostEvents, Progress
from brokerd.cluster.groups.hosted import HostedGroups
from brokerd.cluster.groups.inbox import Inbox
from brokerd.cluster.groups.keeping import Keeper
from brokerd.cluster.groups.late_work import LateWork
from brokerd.cluster.groups.leader_transfer import LeaderTransfer
from brokerd.cluster.groups.liveness import Liveness
from brokerd.cluster.groups.member_index import MemberIndex
from brokerd.cluster.groups.own_liveness import OwnLiveness
from brokerd.cluster.groups.peer_logs import PeerLogs
from brokerd.cluster.groups.refilling import Refilling
from brokerd.cluster.groups.volatile import SNAPSHOT_BYTES_MAX, VolatileStore
from brokerd.cluster.peer import peer_service, transport
from brokerd.raft import log_reading, messages
from brokerd.raft.actions import InstallSnapshot, SaveSnapshot
from brokerd.raft.inputs import Input, NodeGone, PeerUnreachable, TransferLeadership
from brokerd.raft.machine import Machine
from brokerd.raft.messages import Configuration, Entry, HardState, Message, NodeId
from brokerd.raft.storage import LogStorage
from brokerd.storage.aside import AsideFiles
from brokerd.storage.wal import GroupWrite, WriteAheadLog

logger = logging.getLogger(__name__)

#: So many groups run in one turn of the event loop (ADR 17).
GROUPS_PER_TURN = 256


@mypyc_attr(allow_interpreted_subclasses=True)
class Host:
    """Groups, peers and the clock of one node.  Create it within a running event loop.

    State: the drivers, and by what they are found: with inputs, in need of the clock, by member.
    In one piece: the one face of all groups; what can stand by itself has classes of its own.
    """

    def __init__(
        self,
        node: NodeId,
        incarnation: int,
        wal: WriteAheadLog,
        config: HostConfig,
        rng: random.Random,
        clock_ms: Callable[[], int] = group_clock.wall_clock_ms,
        aside: AsideFiles | None = None,
        new_queue: write_queue.NewQueue = write_queue.WriteQueue,
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.config = config
        self.events: HostEvents
        self.clients: list[ClientEvents] = []
        self.liveness = Liveness(config.suspicion_ms, config.refused_ms)
        self.transport = transport.between(node, incarnation, config, self, rng)
        self.own = OwnLiveness(self)
        self.port = 0  # Where peers reach this node, once started.
        self._wal = wal
        self._rng = rng
        self._clock_ms = clock_ms
        self._loop = asyncio.get_running_loop()
        self._queue = new_queue(wal, self._written, self._disk_failed)
        self._groups = HostedGroups(node, wal, config, rng, self)
        self.keeper = Keeper(node, wal, self._queue, aside, clock_ms)
        self.leader_transfer = LeaderTransfer(self)
        self.refilling = Refilling(self, wal, self._queue, self.leader_transfer.renew)
        self.peer_logs = PeerLogs(self, wal, self._queue, self.liveness, self.refilling)
        self._inbox = Inbox(self, self._groups, wal, self._queue, self.refilling, self.peer_logs)
        self._memory = VolatileStore(self.wake)
        small_bytes = min(config.raft.snapshot_bytes, SNAPSHOT_BYTES_MAX)
        self._volatile_raft = replace(config.raft, snapshot_bytes=small_bytes)
        self._service: peer_service.PeerService | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._dirty: list[Driver] = []
        self._is_flush_scheduled = self._has_failed = False
        #: How often some group had something to do.
        self.runs_total = 0
        self._calls = flush_calls.FlushCalls(self._loop)
        self._group_clock = self._groups.clock
        self._deadlines = Deadlines(self._groups.awake, config.raft.tick_ms, clock_ms, self)
        self._late_work, self._members = LateWork(self.wake), MemberIndex()
        self._cleaning = Cleaning(wal, self._queue, config.collect_groups_max, self.watch())
        self._ticked_ms = self._heartbeat_at_ms = self._collect_at_ms = 0
        self._peers_lock = asyncio.Lock()

    # ---- life -----------------------------------------------------------------------------------

    async def start(
        self, peers: Mapping[NodeId, str], bind: str, describe: peer_service.Describe | None = None
    ) -> None:
        """Listen on `bind` ("host:port", port 0 for any; several separated by commas) and dial;
        answer nodes that start and ask by `describe`.  OSError: an address cannot be bound."""
        tls = self.transport.tls
        service = self._service = peer_service.PeerService(
            self.node, self.incarnation, self.config, self.is_peer, self._inbox, tls, describe
        )
        self._inbox.spool.throttle = service.hold_reading
        for address in bind.split(","):
            self.port = service.bind(address.strip())
        self._ticked_ms = self.now_ms()
        await self.set_peers(peers)
        service.start()
        self._tick()

    async def set_peers(self, peers: Mapping[NodeId, str]) -> None:
        """Talk to these nodes (this one may be among them) and to no others."""
        others = {node: address for node, address in peers.items() if node != self.node}
        # Ending a stream takes a moment; the last call wins.
        async with self._peers_lock:
            for node, incarnation in self.liveness.set_nodes(others, self.now_ms()):
                self._lost(node, incarnation)
            await self.transport.set_peers(others)

    async def stop(self) -> None:
        """End streams, clock and writer thread.  The log stays open: its owner closes it."""
        if self._timer is not None:
            self._timer.cancel()
        self._late_work.end(self.flush_all)
        self._deadlines.end()
        self._has_failed = True
        await self.transport.close()
        if self._service is not None:
            await self._service.close()
        await self._queue.close()
        self._groups.end()

    def now_ms(self) -> int:
        """Return the monotonic clock of liveness."""
        return int(self._loop.time() * 1000)

    def serve(self, events: HostEvents) -> None:
        """Tell `events` what happens here; before the start, and before any group is open."""
        self.events = events

    def listen(self, client: ClientEvents) -> None:
        """Tell `client` about replies, leaders and nodes from now on."""
        self.clients.append(client)

    # ---- groups ---------------------------------------------------------------------------------

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
        """Start this node's replica of a group.

        members: the group's first voters, the same on all; they count only while the log here knows
        none.  Empty: not known now, and a node that is not one (is_first) votes when it caught up.
        log_uid: what the log calls the group, 0: its uid; one that comes back needs another log.
        volatile: in memory only.  is_made_now: all that were there before it are open here."""
        if uid in self._groups:
            raise ValueError(f"group {uid:x} is open")
        configuration = messages.configuration_of(tuple(sorted(members)))
        if volatile and configuration.voters != (self.node,):
            raise ValueError("a volatile group has one member, this node")
        log: LogStorage
        log = self._memory.open(uid, configuration) if volatile else self._wal.log(log_uid or uid)
        raft = self._volatile_raft if volatile else self.config.raft
        contradiction = None if volatile else self.keeper.contradiction_of(log_uid or uid)
        driver = self._groups.new(
            uid=uid,
            log_uid=log_uid or uid,
            configuration=configuration if configuration.voters else None,
            machine=machine,
            log=log,
            raft=raft,
            is_volatile=volatile,
            contradiction=contradiction,
        )
        voters = driver.replica.configuration.voters
        if not volatile:
            is_new = not log.initial_state()[1].voters
            self.peer_logs.opens(driver, is_new=is_new and is_made_now)
            if configuration.voters and is_new:
                self._queue.add_group(driver.log_uid, configuration)
            elif not (voters or is_first):
                driver.learn(replica_health.RegressionSuspected())
            self.keeper.opened(driver)
        self._groups.add(driver)
        self._group_clock.active[uid] = None
        self._members.update(driver)
        if voters == (self.node,) and driver.health.may_vote:
            # No other member to wait for.
            driver.inputs.append(TransferLeadership(self.node))
        driver.inputs += self._inbox.early_messages(uid)
        self.wake(driver)

    def close_group(self, uid: int, *, forget: bool) -> None:
        """Stop a replica; what waits is answered as not accepted.  forget: remove its log too."""
        closed = self._groups.close(uid)
        if closed is not None:
            self._group_clock.remove(uid)
            self._members.remove(uid, closed.members)
        if closed is not None and closed.is_volatile:
            self._memory.close(uid)
        elif forget:
            self._queue.remove_group(uid if closed is None else closed.log_uid)
            self.schedule_flush()

    def keep_orphan(self, uid: int) -> None:
        """Put all aside that a group holds which the cluster's catalog does not know any more."""
        if (driver := self._groups.get(uid)) is not None:
            self.keeper.keep_orphan(driver)

    def forget_logs(self, kept: Collection[int]) -> None:
        """Remove what the log holds of groups that are neither open nor among `kept`."""
        self._cleaning.forget(self._groups.log_uids().union(kept))
        self.schedule_flush()

    def read_alone(self, uid: int, machine: Machine) -> bool:
        """Have a machine see what the log holds of a group whose one member is this node; False if
        that is nothing.  DamagedEntry, CorruptLog."""
        driver = self._groups.awake.get(uid)
        if driver is not None and driver.error is not None:
            # A look would meet what has stopped the replica.
            return False
        if not self._wal.has_log(uid) or self._wal.is_removed(uid):
            return False
        log = self._wal.log(uid)
        if log.initial_state()[1].voters != (self.node,):
            return False
        log_reading.apply_all(log, machine)
        return True

    def has_group(self, uid: int) -> bool:
        """Tell whether a replica runs here."""
        return uid in self._groups

    def groups(self) -> list[int]:
        """Return the uids of all replicas here."""
        return self._groups.uids()

    def drivers(self) -> list[Driver]:
        """Return the drivers of all replicas here, for this room; folded ones are made again."""
        return self._groups.all()

    @property
    def folded(self) -> FoldedGroups:
        """Return the groups that stand still and are a few bytes each."""
        return self._groups.folded

    def position_for(self, node: NodeId) -> bytes:
        """TransportEvents: what is known of this log and of the node's."""
        return self.peer_logs.said_to(node)

    @property
    def active_count(self) -> int:
        """How many groups are ticked."""
        return len(self._group_clock.active)

    def watch(self, *, folds: bool = False) -> group_clock.Moved:
        """Return what tells which groups have moved, from now on; folds: or take less memory."""
        return self._group_clock.watch(folds=folds)

    def driver_of(self, uid: int) -> Driver | None:
        """Return the driver, for this room."""
        return self._groups.get(uid)

    def machine_of(self, uid: int) -> Machine:
        """Return a group's machine, to be looked at now; KeyError if it is not here."""
        return self._groups.folded.machine_of(uid) or self._caught_up(uid).machine

    def leader_of(self, uid: int) -> NodeId | None:
        """Return the leader as the replica here knows it."""
        return self._groups.leader_of(uid)

    def term_of(self, uid: int) -> int | None:
        """Return the newest term that the replica here knows; None: there is none."""
        return self._groups.term_of(uid)

    def status_of(self, uid: int) -> GroupStatus:
        """Return a group's state; KeyError if it is not here."""
        folded = self._groups.folded.status_of(uid)
        return folded or host_events.status_of(self._caught_up(uid), self.node)

    def progress_of(self, uid: int) -> Progress:
        """Return how far a group is; KeyError if it is not here."""
        return self._groups.folded.progress_of(uid) or host_events.progress_of(self._caught_up(uid))

    def _caught_up(self, uid: int) -> Driver:
        """Return a replica that has applied all that is known here to be committed."""
        driver = self._groups.awake[uid]
        try:
            driver.catch_up()
        except Exception as error:
            self.stop_replica(driver, error)
        return driver

    def entry_data(self, uid: int, index: int) -> bytes | None:
        """Return the command of a live entry, without its time stamp; None if it is gone."""
        driver = self._groups.get(uid)
        return None if driver is None else driver.entry_data(index)

    def propose(
        self, uid: int, command: bytes, done: Done, *, first: bool = False, is_lazy: bool = False
    ) -> None:
        """Propose to the replica here; `first`: before those that wait (driver.py).

        done(accepted, reply, leader): applied, or refused by `leader`, here: overloaded, too large.
        """
        driver = self._groups.get(uid)
        if driver is None or driver.error is not None:
            self._loop.call_soon(done, False, b"", None)
            return
        driver.propose(command, done, self._clock_ms(), first=first, is_lazy=is_lazy)
        self.wake(driver)

    def transfer_leadership(self, uid: int, to: NodeId) -> None:
        """Hand leadership over; to this node itself: stand for election now."""
        if (driver := self._groups.get(uid)) is not None and driver.health.may_vote:
            self._put(driver, TransferLeadership(to))

    def change_members(self, uid: int, configuration: Configuration, done: Done) -> None:
        """Ask for a configuration that differs by one member; a refusal's reply says why."""
        driver = self._groups.get(uid)
        if driver is None or driver.error is not None:
            self._loop.call_soon(done, False, b"no replica here", None)
            return
        driver.change_members(configuration, done)
        self.wake(driver)

    # ---- nodes ----------------------------------------------------------------------------------

    def alive(self) -> set[NodeId]:
        """Return the nodes that are up, this one included."""
        return self.liveness.up() | {self.node}

    def silent_ms(self, node: NodeId) -> int:
        """Return for how long a suspected node has not been heard; 0 for one that is up."""
        return self.liveness.silent_ms(node, self.now_ms())

    def is_peer(self, node: NodeId) -> bool:
        """Tell whether a node is one of the peers."""
        return self.liveness.knows(node)

    def is_stalled(self, node: NodeId) -> bool:
        """Tell whether a node is up, this one perhaps, and its disk does not answer (ADR 68)."""
        return self.liveness.is_stalled(node)

    def in_flight_s(self) -> float:
        """Return for how long the disk here has not answered the call that it is at; 0: none."""
        return self._queue.in_flight_s()

    def send_request(self, node: NodeId, request_id: int, uid: int, command: bytes) -> bool:
        """Send a command to another node's replica; False: not connected or no room."""
        is_sent = self.transport.send_request(node, request_id, uid, command)
        self.schedule_flush()
        return is_sent

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """Send to a consumer's node, this one included."""
        if node == self.node:
            self._loop.call_soon(self.events.delivered, node, uid, term, kind, payload)
        else:
            self.transport.send_delivery(node, uid, term, kind, payload)
            self.schedule_flush()

    def peer_connected(self, node: NodeId) -> None:
        """TransportEvents: what was sent before may be lost, so leaders probe."""
        self.transport.introduce(node)
        self.liveness.connected(node)
        self._put_all(node, PeerUnreachable(node), leaders_only=True)
        self.events.deliveries_lost(node)
        for client in self.clients:
            client.peer_connected(node)

    def peer_lost(self, node: NodeId) -> None:
        """TransportEvents: our stream broke."""
        self._put_all(node, PeerUnreachable(node))
        self.events.deliveries_lost(node)
        for client in self.clients:
            client.peer_lost(node)

    def peer_refused(self, node: NodeId) -> None:
        """TransportEvents: no process listens there."""
        self.liveness.refused(node, self.now_ms())

    def messages_dropped(self, node: NodeId, uids: set[int]) -> None:
        """TransportEvents: the outbox was full for a while."""
        for driver in filter(None, map(self._groups.get, uids)):
            self._put(driver, PeerUnreachable(node))

    def snapshot_unreadable(self, error: SnapshotUnreadable) -> None:
        """TransportEvents: what this replica holds is damaged; the group goes on elsewhere."""
        if (driver := self._groups.get(error.uid)) is not None and driver.error is None:
            self.stop_replica(driver, error)

    def node_heard(self, node: NodeId, incarnation: int | None = None) -> None:
        """A frame came (incarnation None), or a stream began."""
        is_new = self.liveness.heard(node, self.now_ms())
        if incarnation is not None:
            self.liveness.set_incarnation(node, incarnation)
        elif not is_new:
            return
        if is_new:
            # What was not waited for while it was down is to be sent now.
            for uid in self._groups.led_with(self._members.groups_with(node)):
                self._group_clock.active[uid] = None
        self.events.node_changed(node, self.liveness.incarnation(node), True)

    def _lost(self, node: NodeId, incarnation: int) -> None:
        """A node is suspected."""
        logger.warning("node is suspected node=%s", node)
        # Whatever the stream still holds is worthless after a split of the network; dial anew.
        self.transport.break_off(node)
        self._put_all(node, PeerUnreachable(node))
        if self.liveness.refuses(node):
            self._put_all(node, NodeGone(node))
        for client in self.clients:
            client.peer_lost(node)
        self.events.node_changed(node, incarnation, False)

    def _put_all(self, node: NodeId, event: Input, *, leaders_only: bool = False) -> None:
        uids = self._members.groups_with(node)
        self._queue_up(self._groups.put_all(uids, node, event, leaders_only=leaders_only))
        self.schedule_flush()

    # ---- the flush ------------------------------------------------------------------------------

    def _put(self, driver: Driver, event: Input) -> None:
        driver.inputs.append(event)
        self.wake(driver)

    def wake(self, driver: Driver) -> None:
        """The driver has inputs: it takes part in the next flush."""
        self._queue_up((driver,))
        self.schedule_flush()

    def _queue_up(self, drivers: Iterable[Driver]) -> None:
        for driver in drivers:
            if not driver.is_queued:
                driver.is_queued = True
                self._dirty.append(driver)

    def schedule_flush(self) -> None:
        """Something was sent or is to be written."""
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Run drivers with inputs once, of many the first; hand over what they write and send."""
        # What those propose who are called before takes part in this one.
        self._is_flush_scheduled = True
        self._calls.begin()
        self._is_flush_scheduled = False
        if self._calls.is_any_before:
            self.schedule_flush()
        if self._groups.is_any_waiting:
            self._groups.wake_waiting()
            self.schedule_flush()
        dirty, self._dirty = self._dirty, []
        self.runs_total += bool(dirty)
        if len(dirty) > GROUPS_PER_TURN:
            # Others are heard in between, and hear that this node lives.
            self._dirty = dirty[GROUPS_PER_TURN:]
            del dirty[GROUPS_PER_TURN:]
            self.schedule_flush()
        for driver in dirty:
            driver.is_queued = False
            if driver.is_closed or driver.error is not None or self._has_failed:
                driver.inputs.clear()
                continue
            try:
                driver.run()
                if not driver.health.may_vote:
                    self.refilling.handled(driver)
            except Exception as error:
                self.stop_replica(driver, error)
        at_end = self._calls.take()
        # Frames first: the leader's own write runs beside the followers' (Raft thesis §10.2.1), and
        # the writer thread wakes when this thread has little left to do.
        self.transport.flush()
        flush_calls.call_all(at_end)
        self._queue.hand_over()
        # No command waits for this.
        for driver in dirty:
            if not driver.is_closed and driver.error is None:
                self._group_clock.active[driver.uid] = None
                self._deadlines.note(driver)
                if driver.replica.is_behind:
                    self._late_work.add(driver)
                if driver.replica.configuration is not driver.configuration:
                    self._members.update(driver)

    def flush_all(self) -> None:
        """Run every driver that has inputs now."""
        for _ in range(0, len(self._dirty), GROUPS_PER_TURN):
            self.flush()

    def before_flush(self, callback: Callable[[], None]) -> None:
        """Call at the beginning of the next flush, which takes what is proposed then."""
        self._calls.before(callback)
        self.schedule_flush()

    def call_after_flush(self, callback: Callable[[], None]) -> None:
        """Call once all groups of the flush under way have run, in order; or else soon.

        What many groups have for one client leaves with one write, in the same turn of the loop.
        """
        self._calls.after(callback)

    def stop_replica(self, driver: Driver, error: Exception) -> None:
        """A broken invariant stops this replica and nothing else; the group goes on elsewhere."""
        logger.critical("replica stopped group=%x", driver.uid, exc_info=error)
        driver.error = error
        self._group_clock.remove(driver.uid)
        driver.close()
        if driver.is_leader:
            self.leader_transfer.stopped(driver)
        driver.leader, driver.is_leader = None, False
        # Later, since this may be within a step of somebody who listens.
        self._loop.call_soon(self.role_changed, driver)

    # ---- ports of the drivers -------------------------------------------------------------------

    def persist(
        self, driver: Driver, token: int, hard_state: HardState | None, entries: list[Entry]
    ) -> None:
        """See driver.Ports."""
        if driver.is_volatile:
            self._memory.persist(driver, token, hard_state, entries)
            return
        size = sum([len(entry.data) for entry in entries])
        self._queue.add_write(driver, token, GroupWrite(driver.log_uid, hard_state, entries), size)

    def send(self, uid: int, message: Message) -> None:
        """See driver.Ports."""
        self.transport.send_raft(message.to, uid, message)

    def realise(self, driver: Driver, term: int, effects: list[Any]) -> None:
        """See driver.Ports."""
        self.events.realise(driver.uid, term, effects)

    def save_snapshot(self, driver: Driver, action: SaveSnapshot) -> None:
        """See driver.Ports."""
        if driver.is_volatile:
            self._memory.save_snapshot(driver, action)
            return
        self._queue.add_save(driver, action.snapshot, action.live_indexes)

    def install_snapshot(self, driver: Driver, action: InstallSnapshot) -> None:
        """See driver.Ports."""
        step = write_queue.InstallStep(driver, action.token, action.snapshot, action.hard_state)
        self._queue.add(step)

    def role_changed(self, driver: Driver) -> None:
        """See driver.Ports."""
        uid, leader = driver.uid, driver.leader
        for client in self.clients:
            client.leader_changed(uid, leader)
        self.events.leader_changed(uid, leader, driver.term, driver.is_leader)

    # ---- disk -----------------------------------------------------------------------------------

    def _written(self, drivers: list[Driver]) -> None:
        self._queue_up(drivers)
        # At once rather than with the next flush: acknowledgements wait for this.
        self.flush()

    def _disk_failed(self, error: BaseException) -> None:
        if self._has_failed:
            return
        self._has_failed = True
        logger.critical("the log failed, this process must end: %s", error)
        self.events.failed(error)

    # ---- the clock ------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Tick the groups that need it; look after nodes, heartbeats and cleaning."""
        tick_ms, now_ms = self.config.raft.tick_ms, self.now_ms()
        self._timer = self._loop.call_later(tick_ms / 1000, self._tick)
        if self._has_failed:
            return
        for node in self.liveness.check(now_ms, tick_ms):
            self._lost(node, self.liveness.incarnation(node))
        clock, clock_ms = self._group_clock, self._clock_ms()
        # Since the groups that are due now had their last tick.
        since_ms = self._ticked_ms - (clock.round_ticks - 1) * tick_ms
        heard = {node for node in self.liveness.up() if self.liveness.heard_since(node, since_ms)}
        due = clock.due(self._groups.awake, self.liveness.suspected(), self.stop_replica)
        self._queue_up(driver for driver in due if group_clock.tick(driver, heard, clock_ms))
        self._deadlines.look()
        self.peer_logs.tick(now_ms)
        self._ticked_ms = now_ms
        if now_ms >= self._heartbeat_at_ms:
            self._heartbeat_at_ms = now_ms + self.config.heartbeat_ms
            self.transport.send_heartbeats()
        if now_ms >= self._collect_at_ms:
            self._collect_at_ms = now_ms + self.config.collect_interval_ms
            self._inbox.expire()
            self.leader_transfer.remind()
            self.refilling.lacking()
            self.keeper.look_again(self.refilling.without_vote())
            self.peer_logs.look()
            self._cleaning.collect(self._groups.awake)
            self._memory.clean()
        self.flush()
