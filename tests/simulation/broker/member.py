"""One simulated broker process: the real host, log, group client, publishers and deliveries.

What is simulated: the disk, the network, the clock, the writer's thread.  What is left out: AMQP,
the catalog, routing.  `SimBroker` is what the rooms of cluster and server see of a member.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd.cluster.config import ClientConfig
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.core.profiles import profile
from brokerd.core.queue import effects
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.messages import HardState, NodeId
from brokerd.server.messages.dead_letter_publisher import Addressed, Pending, Worker
from brokerd.server.queues.bodies import MessageViews
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.deliveries import DeliveryHub
from brokerd.server.queues.leaders import QueueLeaders
from brokerd.server.queues.turn import Turn
from brokerd.storage.errors import CorruptLog, DamagedEntry
from brokerd.storage.wal import WriteAheadLog
from brokerd.telemetry.counters import Counters
from tests.simulation.broker.disk import SimDisk
from tests.simulation.broker.jobs import SimJobs
from tests.simulation.broker.kernel import MemberLoop
from tests.simulation.broker.machine import WatchedQueue
from tests.simulation.broker.streams import SimTransport
from tests.simulation.broker.writes import SimWriteQueue

if TYPE_CHECKING:
    from tests.simulation.broker.world import BrokerWorld


#: Of all queues of the simulation, as far as anybody looks.
SPEC = {"type": "quorum", "durable": True, "auto_delete": False, "arguments": {}, "settings": {}}


class SimOptions:
    """Options come from the scenario instead of catalog and policies."""

    def __init__(self, world: BrokerWorld) -> None:
        self._world = world

    def of(self, queue: Queue) -> QueueOptions:
        """See queue_leaders.Options."""
        return self._world.queues[queue.uid].options

    def warn_of(self, queue: Queue) -> None:
        """See queue_leaders.Options."""


class SimLetters:
    """The workers of one member (server/messages/dead_letter_publisher.py: DeadLetterPublisher)."""

    def __init__(self, broker: SimBroker) -> None:
        self._broker = broker
        self._workers: dict[int, Worker] = {}

    def wake(self, uid: int) -> None:
        """See DeadLetterPublisher."""
        worker = self._workers.get(uid)
        if worker is None:
            broker = self._broker
            worker = self._workers[uid] = Worker(
                uid,
                broker,
                broker.queue_client,
                broker.next_uid(),
                broker,
                partial(self._addressed, uid),
            )
            broker.spawn(worker.run())
        worker.wake()

    def _addressed(self, uid: int, letter: Pending, options: QueueOptions) -> Addressed:
        """To the scenario's targets instead of through the router."""
        world = self._broker.world
        (_, header, body, notes) = self._broker.contents(uid, letter.run)[0]
        result = RouteResult(None)
        targets = map(self._broker.queue_of, world.queues[uid].targets)
        result.queues = tuple(queue for queue in targets if queue is not None)
        content = (("dlx", "dead"), header, body, notes)
        return Addressed("/", result, content, result.queues)

    def stop(self, uid: int) -> None:
        """See DeadLetterPublisher."""
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.stop()

    def publish(self, uid: int, effect: effects.DeadLetter) -> None:
        """No queue of the simulation dead-letters at most once."""
        raise AssertionError(f"queue {uid} drops messages: {effect}")

    def given_up(self, uid: int, effect: effects.GivenUp) -> None:
        """Nobody counts kinds of messages here."""

    def dropped(self, uid: int, effect: effects.Dropped) -> None:
        """Nobody counts what purges and ends take here."""

    def reroute(self, uid: int, effect: effects.Reroute) -> None:
        """No queue of the simulation has an alternate exchange."""
        raise AssertionError(f"queue {uid} sends messages on: {effect}")


class SimBroker:
    """The broker of one process life, as host, leaders, hub and workers see it."""

    def __init__(self, member: SimMember, host: Host) -> None:
        self.world = member.world
        self.node = member.id
        self.incarnation = member.incarnation
        self._member = member
        self._last_uid = 0
        #: Of letters; nobody looks at them.
        self.counters = Counters(lambda: 0, lambda: 0)
        self.profile = profile()
        self.host = host
        self.groups = GroupClient(
            self.host,
            member.rng,
            ClientConfig(retry_max_ms=200, inflight_commands=member.world.scenario.window),
            incarnation=member.incarnation,
        )
        turn = Turn(
            *(self.groups, self.node, self.incarnation, self._before_flush, self._is_joining),
            clock=member.loop.time,
        )
        self.queue_client = QueueClient(turn, 600.0)
        self.deliveries = DeliveryHub(self.queue_client.resume)
        self.leaders = QueueLeaders(
            identity=self,
            queues=self,
            replicas=self.host,
            deliveries=self.deliveries,
            dead_letters=SimLetters(self),
            jobs=SimJobs(self),
            options=SimOptions(self.world),
            wake_members=lambda uid: None,
            write_later=self._write_later,
            led={},
        )
        self._views = MessageViews(self.entry_data)
        for queue in self.world.queues.values():
            self.groups.set_members(queue.uid, [NodeId(node) for node in queue.members])

    def _before_flush(self, callback: Callable[[], None]) -> None:
        """A turn of the loop takes as long as the scenario says."""
        turn_ms = self.world.scenario.turn_ms
        self._member.loop.call_later(turn_ms / 1000, self.host.before_flush, callback)

    def _is_joining(self) -> bool:
        return self.world.scenario.turn_ms > 0

    # ---- what the rooms ask for -----------------------------------------------------------------

    def next_uid(self) -> int:
        """See Broker."""
        self._last_uid += 1
        return self._last_uid

    def spawn(self, work: Any) -> None:
        """See Broker."""
        self._member.loop.create_task(work)

    def warn(self, text: str) -> None:
        """See Broker."""
        self.world.record("warn", self.node, text)

    def queue_of(self, uid: int) -> Queue | None:
        """See Broker."""
        queue = self.world.queues.get(uid)
        return None if queue is None else Queue(queue.vhost, queue.name, SPEC, uid, queue.members)

    def machine(self, uid: int) -> QueueMachine:
        """See Broker."""
        machine = self.host.machine_of(uid)
        assert isinstance(machine, QueueMachine)
        return machine

    def messages_of(self, uid: int) -> int:
        """See Broker: nobody counts what goes with a queue here."""
        return 0

    def leads(self, uid: int) -> bool:
        """See Broker."""
        return uid in self.leaders.led

    def contents(self, uid: int, run: effects.Run) -> list[Content]:
        """See Broker."""
        found = self._views.contents(uid, run)
        self.world.oracle.require(
            found is not None or self._member.is_victim,
            f"{self.node}: entry {run.entry} of queue {uid} is live but not in the log",
        )
        if found is None:
            raise AssertionError(f"entry {run.entry} is gone")
        return found

    def entry_data(self, uid: int, index: int) -> bytes | None:
        """See job_worker.Queues."""
        return self.host.entry_data(uid, index)

    def _write_later(self, operation: dict[str, Any]) -> None:
        raise AssertionError(f"no queue of the simulation ends: {operation}")

    # ---- HostEvents -----------------------------------------------------------------------------

    def realise(self, uid: int, term: int, todo: list[Any]) -> None:
        """See HostEvents."""
        try:
            self.leaders.realise(uid, term, todo)
        except Exception as error:
            # The driver would log it and go on.
            if not self._member.is_victim:
                self.world.kernel.failure = error
            raise

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        """See HostEvents."""
        world = self.world
        world.record("leader", self.node, uid, leader, term, is_local)
        if is_local:
            world.oracle.on_leader(self.node, uid, term, self._member.is_damaged(uid))
        self.leaders.leader_changed(uid, leader, term, is_local)

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        """See HostEvents."""
        self.world.record("node", self.node, node, incarnation, up)
        self.leaders.node_changed(node, incarnation, up)

    def deliveries_lost(self, node: NodeId) -> None:
        """See HostEvents."""
        self.leaders.deliveries_lost(node)

    def delivered(self, sender: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """See HostEvents."""
        if kind == delivery_codec.DeliveryKind.MESSAGES:
            self.leaders.received(uid, term, payload)
        else:
            self.deliveries.cancelled(*delivery_codec.decode_cancelled(payload))

    def complete_reply(self, uid: int, command: bytes, reply: bytes) -> bytes:
        """See HostEvents."""
        return reply

    def liveness_received(self, *_: Any) -> None:
        """See HostEvents."""

    def failed(self, error: BaseException) -> None:
        """See HostEvents."""
        self._member.world.disk_failed(self._member, error)


class SimMember:
    """A member with its disk; `broker` is None while its process is down."""

    #: What its groups run on.
    host_type: type[Host] = Host

    def __init__(self, world: BrokerWorld, node: NodeId, root: Path) -> None:
        self.world = world
        self.id = node
        self.directory = root / node
        self.disk = SimDisk(trash=root / f"{node}.trash", salts=world.salts)
        self.directory.mkdir()
        self.disk.trash.mkdir()
        self.rng = random.Random(world.rng.getrandbits(64))
        self.incarnation = 0
        self.loop = MemberLoop(world.kernel)
        self.loop.is_dead = True
        self.wal: WriteAheadLog | None = None
        self.broker: SimBroker | None = None
        self.is_slow = False
        #: The disk does not answer.
        self.is_stalled = False
        #: It is no member of the cluster now.
        self.is_out = False
        #: Damage may happen here and nowhere else: only a majority's disks must survive (G1).
        self.is_victim = False
        self.skew_ms = 0
        #: Groups that were opened here.
        self.uids: set[int] = set()
        self._writes: SimWriteQueue | None = None
        #: By group, what others were told is on this disk: the snapshot's index, the entries behind
        #: it (index: term), the hard state.
        self._promised: dict[int, tuple[int, dict[int, int | None], HardState]] = {}
        #: The same of a directory that was put back and does not show it.
        self._unnoticed: dict[int, tuple[int, dict[int, int | None], HardState]] = {}
        #: By damaged group: what must be here again before it counts as whole.
        self._owed: dict[int, int] = {}

    @property
    def is_up(self) -> bool:
        """Tell whether the process runs."""
        return self.broker is not None

    @property
    def host(self) -> Host:
        """Return the host of the running process."""
        assert self.broker is not None
        return self.broker.host

    def is_damaged(self, uid: int) -> bool:
        """Tell whether the log lost something of a group and was not refilled since."""
        return self.wal is not None and self.wal.log(self.log_of(uid)).damaged

    def log_of(self, uid: int) -> int:
        """Return what the log calls a group that is open here."""
        driver = self.host.driver_of(uid) if self.is_up else None
        return uid if driver is None else driver.log_uid

    def on_vote(self, uid: int) -> None:
        """A vote leaves: whoever gets it has said before what it remembers of this log."""
        require = self.world.oracle.require
        require(not self.is_damaged(uid), f"damaged {self.id} votes in queue {uid} (G8)")
        log_uid = self.log_of(uid)
        if log_uid in self._unnoticed:
            found = self.host.driver_of(uid).replica.last_index
            wanted = self._committed(log_uid, *self._unnoticed[log_uid][:2])
            require(
                found >= wanted,
                f"{self.id} votes in queue {uid} with {found} entries of an older directory, "
                f"{wanted} were committed here (G8)",
            )

    def enter(self, function: Any, *arguments: Any) -> None:
        """Call a function on the member's loop, soon."""
        if self.is_up:
            self.loop.call_soon(function, *arguments)

    def _clock_ms(self) -> int:
        return 1_000_000 + self.world.kernel.now_ms + self.skew_ms

    def _sync_ms(self) -> float:
        slow_ms = 150.0 if self.is_slow else 0.0
        return 0.2 + self.rng.random() * self.world.scenario.sync_ms_max + slow_ms

    def stall(self, is_stalled: bool) -> None:
        """The disk does not answer from now on, or does again."""
        self.is_stalled = is_stalled
        if self._writes is not None and self.is_up:
            with self.loop.entered():
                self._writes.stall(is_stalled)

    def stall_for(self, for_ms: int) -> None:
        """The disk does not answer for so long."""
        self.world.record("stall", self.id, for_ms)
        self.stall(True)
        self.world.kernel.after(for_ms, self.stall, False)

    def mend_disk(self) -> None:
        """The disk works as it should."""
        self.is_slow = False
        self.stall(False)
        self.disk.repair()

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Recover the log and run; a log that cannot be used leaves the member down."""
        if self.is_up:
            return
        self.incarnation += 1
        self.disk.repair()
        self.loop = MemberLoop(self.world.kernel)
        notes: list[str] = []
        try:
            self.wal = WriteAheadLog.open(
                self.directory, self.world.wal_config(self.id), notes.append, disk=self.disk
            )
        except CorruptLog as error:
            self.world.oracle.require(self.is_victim, f"{self.id} cannot start: {error}")
            self.world.record("corrupt", self.id)
            return
        self.world.record("start", self.id, self.incarnation, len(notes))
        damaged = [uid for uid in self.wal.groups() if self.wal.log(uid).damaged]
        self.world.oracle.require(
            not damaged or self.is_victim, f"{self.id} takes a torn write for damage: {notes}"
        )
        self._look_for_broken_promises(self.wal)
        with self.loop.entered():
            host = self._new_host(self.wal)
            self.broker = self._begin(host)
            host._ticked_ms = host.now_ms()
            host._tick()
        self.world.wires.started(self.id)
        self.world.on_started(self)

    def _begin(self, host: Host) -> Any:
        """Build the rooms of a new process, and open what is here."""
        self.broker = broker = SimBroker(self, host)
        host.serve(broker)
        for uid in sorted(self.uids):
            self.open_group(uid)
        others = [node for node in self.world.members if node != self.id]
        host.liveness.set_nodes(others, host.now_ms())
        return broker

    def admits(self, node: NodeId) -> bool:
        """Tell whether streams with another member may stand."""
        return True

    @property
    def takes_clients(self) -> bool:
        """Tell whether clients can connect."""
        return self.is_up

    def _look_for_broken_promises(self, wal: WriteAheadLog) -> None:
        """White box: what was on disk is there, or known to be damaged (G8)."""
        require = self.world.oracle.require
        for uid, (base, terms, promised) in self._promised.items():
            if not self._is_kept(uid, wal):
                continue
            log = wal.log(uid)
            where = f"{self.id}, queue {uid}"
            wanted = self._committed(uid, base, terms)
            if log.damaged:
                self._owed[uid] = max(wanted, self._owed.get(uid, 0))
                continue
            require(log.last_index() >= wanted, f"{where}: silently lost committed entry {wanted}")
            found = log.hard_state
            is_same = found.term > promised.term or (
                found.term == promised.term and promised.vote in (None, found.vote)
            )
            require(is_same, f"{where}: was {promised}, is {found} after a restart")

    def _is_kept(self, log_uid: int, wal: WriteAheadLog) -> bool:
        """Tell whether what was promised of a group still binds this member."""
        return True

    def _committed(self, uid: int, base: int, terms: dict[int, int | None]) -> int:
        """Return the last entry that was on disk and is the group's for ever.

        What was not committed may have been overwritten by a write under way; others may have
        committed something else there since.
        """
        applied = self.world.oracle.ledgers[self.world.group_of(uid)].applied
        return max([base, *(at for at, term in terms.items() if applied.get(at, (0,))[0] == term)])

    def _look_at_refilled(self, wal: WriteAheadLog) -> None:
        """White box: a log that counts as whole again holds what was lost."""
        if self._unnoticed and wal.regressions.places():
            for uid, (base, terms, _) in self._unnoticed.items():
                self._owed[uid] = self._committed(uid, base, terms)
            self._unnoticed = {}
        known = set(wal.groups())
        for uid, wanted in list(self._owed.items()):
            # An older directory may not know a group, or be one that was being filled; it is looked
            # at when it is opened, and when it has its vote.
            driver = self.host.driver_of(self.world.group_of(uid))
            may_vote = driver is not None and driver.log_uid == uid and driver.health.may_vote
            if may_vote and uid in known and not wal.log(uid).damaged:
                del self._owed[uid]
                found = wal.log(uid).last_index()
                self.world.oracle.require(
                    found >= wanted,
                    f"{self.id}: queue {uid} counts as refilled up to {found}, {wanted} was "
                    "committed here before (G8)",
                )

    def look_at_live_entries(self) -> None:
        """White box: the log here holds every message that the machine here refers to.

        Not of a machine that has something to catch up with: what was settled may be gone.
        """
        assert self.wal is not None
        self._look_at_refilled(self.wal)
        for uid in sorted(self.uids):
            driver = self.host.driver_of(uid)
            if driver is None or driver.error is not None or self.is_damaged(uid):
                continue
            if driver.replica.applied_index < max(
                self.world.oracle.ledgers[uid].applied, default=0
            ):
                continue
            for low, high in driver.machine.live_indexes():
                for index in range(low, high):
                    try:
                        data = driver.entry_data(index)
                    except DamagedEntry:
                        data = None
                    self.world.oracle.require(
                        data is not None,
                        f"{self.id}: entry {index} of queue {uid} is live, its log has it not",
                    )

    def _new_host(self, wal: WriteAheadLog) -> Host:
        queues: list[SimWriteQueue] = []

        def new_queue(*arguments: Any) -> SimWriteQueue:
            queue = SimWriteQueue(*arguments, loop=self.loop, sync_ms=self._sync_ms)
            queue.stall(self.is_stalled)
            queues.append(queue)
            return queue

        host = self.host_type(
            self.id,
            self.incarnation,
            wal,
            self.world.host_config,
            self.rng,
            self._clock_ms,
            new_queue=new_queue,
        )
        host.transport = SimTransport(self.id, self.world.wires, host, self.on_vote)
        self._writes = queues[0]
        return host

    def open_group(self, uid: int) -> None:
        """Start the replica here: a founder knows the first members, others wait to be added."""
        queue = self.world.queues[uid]
        self.uids.add(uid)
        founders: Sequence[NodeId] = [NodeId(node) for node in queue.founders]
        machine = WatchedQueue(self.world.oracle, self.id, uid)
        with self.loop.entered():
            self.host.open_group(uid, founders if self.id in queue.founders else [], machine)

    def forget_unnoticed(self) -> None:
        """The directory is an older one, and recovery cannot see it: what was promised is owed from
        the moment on in which the member hears of it, and what was owed already is so again.
        """
        self._unnoticed, self._promised = self._promised, {}
        for uid, wanted in self._owed.items():
            base, terms, state = self._unnoticed.get(uid, (0, {}, HardState()))
            self._unnoticed[uid] = (max(base, wanted), terms, state)
        self._owed = {}

    def crash(self, *, cuts_power: bool = True) -> None:
        """The process stops at once, and the machine under it."""
        if self.broker is None:
            return
        self.world.record("crash", self.id, self.incarnation)
        assert self.wal is not None
        assert self._writes is not None
        logs = [(uid, self.wal.log(uid)) for uid in self.wal.groups()]
        self._promised = {
            uid: (
                log.first_index() - 1,
                {at: log.term(at) for at in range(log.first_index(), log.last_index() + 1)},
                log.hard_state,
            )
            for uid, log in logs
        }
        self.broker = None
        with self.loop.entered():
            self._writes.crash(self.disk, self.rng)
        self.loop.kill()
        self.wal.close()
        self.wal = None
        if cuts_power:
            self.disk.cut_power(self.rng)
        self.world.wires.ended(self.id)
