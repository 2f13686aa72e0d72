"""Planted bugs of the log, the queue machine, memberships and the rooms around them.

As in ../mutants.py: one function is wrong while the context manager is open, and a simulator that
does not notice has a blind spot (design/replication.md §5).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.driver import Driver
from brokerd.cluster.groups.replica_health import ReplicaHealth
from brokerd.core.queue import effects, queue_machine, queue_snapshot
from brokerd.core.queue.client_sessions import Senders
from brokerd.core.queue.consumers import Consumer
from brokerd.core.queue.enqueuers import Channels
from brokerd.core.queue.queue_commands import Kind
from brokerd.core.queue.queue_jobs import Job
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.queue_state import QueueState
from brokerd.raft import membership
from brokerd.raft.following import Following
from brokerd.raft.messages import Configuration, Message
from brokerd.raft.node import RaftNode
from brokerd.server.messages.dead_letter_publisher import Missing, Worker
from brokerd.server.messages.job_sending import Sending
from brokerd.server.queues import leaders
from brokerd.server.queues.deliveries import DeliveryHub
from brokerd.server.queues.leaders import QueueLeaders
from brokerd.server.queues.stream import ChannelStream
from brokerd.server.queues.turn import Batch
from brokerd.server.queues.turn_settlements import TurnSettlements
from brokerd.storage import records, recovery, scan
from brokerd.storage.disk import Disk
from brokerd.storage.group_log import GroupLog
from brokerd.storage.promises import Promise, Promises
from brokerd.storage.writer import GroupWrite, LogWriter
from tests.simulation.broker.beyond import BeyondWorld
from tests.simulation.broker.disk import SimDisk
from tests.simulation.broker.world import BrokerWorld

#: Whose attribute (or key), which, and what stands there instead.
Plant = tuple[Any, Any, Any]


# ---- the log ------------------------------------------------------------------------------------


def _no_sync(disk: Disk, descriptor: int) -> None:
    """The writer reports what only the kernel holds."""


def _never_damage(*_: Any) -> None:
    """Recovery passes over what it cannot read, silently."""


def _always_torn(scanner: Any, start: int, end: int) -> bool:
    return True


_write = LogWriter.write


def _write_without_hard_state(writer: LogWriter, writes: Sequence[GroupWrite]) -> None:
    kept = [write.hard_state for write in writes]
    for write in writes:
        write.hard_state = None
    _write(writer, writes)
    for write, hard_state in zip(writes, kept, strict=True):
        write.hard_state = hard_state


_set_live = GroupLog.set_live


def _live_without_the_first(log: GroupLog, live: Any) -> Any:
    ranges = list(live or ())
    return _set_live(log, [(ranges[0][0] + 1, ranges[0][1]), *ranges[1:]] if ranges else live)


_snapshot = GroupLog.snapshot


def _snapshot_without_live(log: GroupLog) -> Any:
    snapshot = _snapshot(log)
    if snapshot is not None:
        snapshot.live = []
    return snapshot


def _no_directory_sync(disk: SimDisk, path: object) -> None:
    """Creations and renames are left to the kernel's leisure."""


# ---- the queue machine --------------------------------------------------------------------------


def _expect_anything(channels: Channels, channel: int) -> int:
    """Every batch counts as new: duplicates are enqueued again."""
    return _last_first[0]


_last_first = [1]
_enqueue = queue_machine._HANDLERS[Kind.ENQUEUE]


def _enqueue_twice(machine: QueueMachine, meta: Any, command: Any) -> bytes:
    _last_first[0] = command.head.first_sequence or 1
    return _enqueue(machine, meta, command)


def _never_seen(senders: Senders, command: Any, plain: bytes) -> None:
    """Every return, consumer and channel's end counts as new, whenever it comes."""


_take_all = QueueState._take_all


def _forget_taken(state: QueueState, consumer: Any) -> Any:
    """What a dead consumer held is gone."""
    for span in _take_all(state, consumer):
        state.store.release(span)
        state.counters["ack"] += span.end - span.first
    return []


_encode = queue_snapshot.encode


def _encode_without_held(state: QueueState) -> bytes:
    """The snapshot counts what is checked out as ready no more, and as held by nobody."""
    kept = [(consumer, consumer.held) for consumer in state.consumers.rows()]
    for consumer, held in kept:
        consumer.held = type(held)()
    try:
        return _encode(state)
    finally:
        for consumer, held in kept:
            consumer.held = held


_put_back = QueueState._put_back


def _reset_counts(state: QueueState, spans: list[Any], counts: bool, asked: bool = False) -> None:
    for span in spans:
        span.delivery_count = 0
    _put_back(state, spans, counts, asked)


def _no_limit(state: QueueState, spans: list[Any], counts: bool, asked: bool = False) -> None:
    options, state.options = state.options, dataclasses.replace(state.options, delivery_limit=None)
    try:
        _put_back(state, spans, counts, asked)
    finally:
        state.options = options


def _capacity_by_prefetch(consumer: Consumer) -> int:
    """A consumer's credit is not looked at."""
    return consumer.prefetch - consumer.held.count


def _count_all(state: QueueState, consumers: list[Consumer], written: Any) -> None:
    """All that a channel held when it ended comes back counted, written or not."""


def _settle_nothing(machine: QueueMachine, meta: Any, command: Any) -> bytes:
    """A settlement is answered and forgotten."""
    return b""


_update_options = queue_machine._HANDLERS[Kind.UPDATE_OPTIONS]
_job_settle = queue_machine._HANDLERS[Kind.JOB_SETTLE]
_may_take = Job.may_take


def _drop_what_jobs_hold(machine: QueueMachine, meta: Any, command: Any) -> bytes:
    """The first command of a new leader takes what a job has in hand for nobody's."""
    if machine.job is not None:
        for span in machine.job.let_go([(0, 1 << 62)]):
            machine.counters["purged"] += span.end - span.first
            machine.store.release(span)
    return _update_options(machine, meta, command)


def _settle_and_keep(machine: QueueMachine, meta: Any, command: Any) -> bytes:
    """What has been sent on is ready once more, behind the job's back."""
    job = machine.job
    if job is not None and job.id == command.id:
        machine._back_from_job(job.let_go(command.gone))
    return _job_settle(machine, meta, command)


def _forget_copies(machine: QueueMachine, meta: Any, command: Any) -> bytes:
    """A new leader knows nothing of the copies that came under the last one."""
    machine.watched = None
    return _update_options(machine, meta, command)


def _without_end(job: Job, ranges: Any) -> Any:
    """What came after the job's start is taken, too."""
    end, job.end = job.end, 1 << 62
    try:
        return _may_take(job, [(low, high + 2) for low, high in ranges])
    finally:
        job.end = end


# ---- beside the leader --------------------------------------------------------------------------


async def _settle_before_confirms(worker: Worker, missing: list[Missing]) -> None:
    """Letters count as confirmed when they are sent."""
    task = asyncio.get_running_loop().create_task(_send(worker, missing))
    for letter, _, targets in missing:
        letter.confirmed.update(target.uid for target in targets)
    del task


_send = Worker._send


_send_copies = Sending._send


def _done_when_sent(sending: Sending, pending: Any, way: Any, targets: Any) -> None:
    """A job does not wait for its targets."""
    _send_copies(sending, pending, way, targets)
    if sending._pending.pop(pending.run.first, None) is not None:
        sending._done(pending.run.first, pending.group)


def _deliver_at_once(leaders: QueueLeaders, uid: int, term: int, effect: Any) -> None:
    leaders._unsure.pop(uid, None)
    _deliver(leaders, uid, term, effect)


_deliver = QueueLeaders._deliver


def _propose_last(
    driver: Driver, command: bytes, done: Any, now_ms: int, *, first: bool, is_lazy: bool
) -> None:
    """Options wait behind what clients sent, and are refused where leadership is handed over."""
    _propose(driver, command, done, now_ms, is_lazy=is_lazy)


_propose = Driver.propose


def _resume_with_nothing(hub: DeliveryHub, uid: int) -> None:
    """Consumers do not ask for what got lost with the old leader."""
    for consumer in list(hub._by_group.get(uid, {}).values()):
        hub._resume(uid, consumer.id, [(0, 1 << 62)], lambda _: None)


# ---- the order of a channel's operations --------------------------------------------------------


def _end_at_once(stream: ChannelStream, uids: Iterable[int], has_only_published: bool) -> None:
    """Queues hear of the end while commands of the channel may still go again."""
    for uid in uids:
        stream._tell(uid, has_only_published)


_take_numbers = ChannelStream.take_numbers


def _take_the_same_numbers(stream: ChannelStream, uid: int, batch: Batch) -> None:
    """The next batch has the numbers of this one."""
    _take_numbers(stream, uid, batch)
    stream._sequences[uid] = batch.first_sequence


# ---- members ------------------------------------------------------------------------------------


def _any_change(current: Configuration, wanted: Configuration) -> str | None:
    return None


def _compare_at_once(_: ReplicaHealth, __: replica_health.Progressed) -> replica_health.Action:
    """A damaged replica counts as refilled as soon as it is looked at."""
    return replica_health.Action.COMPARE_LIVE


def _pass_over(_: ReplicaHealth, __: replica_health.Event) -> None:
    """What happened makes no difference."""


def _whole_by_a_snapshot(replica: ReplicaHealth, _: replica_health.SnapshotInstalled) -> None:
    """A snapshot makes good whatever was lost, however old it is."""
    replica.losses = replica_health.NONE


_propose_configuration = RaftNode.propose_configuration


def _two_changes(node: RaftNode, configuration: Configuration) -> int | str:
    """A change does not wait for the one before it."""
    committed = node.log.committed
    try:
        node.log.committed = node.log.last
        return _propose_configuration(node, configuration)
    finally:
        node.log.committed = committed


# ---- disks that lie -----------------------------------------------------------------------------


def _no_mark(*_: Any) -> None:
    """What a segment's head says of what was synced is not looked at."""


def _whatever(*_: Any) -> None:
    """A missing mark means nothing, or a copied file is as good as the original."""


def _never_behind(promises: Promises, promise: Promise) -> bool:
    return False


def _never_contradicts(following: Following, message: Message) -> bool:
    """What is known here to be committed gives way to what any leader says."""
    return False


#: Name -> what is replaced, the profile in which it shows soonest ("beyond": beyond.py), and how
#: many seeds it may take.
MUTANTS: dict[str, tuple[list[Plant], str, int]] = {
    "log-acknowledges-before-sync": ([(SimDisk, "data_sync", _no_sync)], "power", 10),
    "log-passes-over-damage": ([(recovery, "_damage", _never_damage)], "decay", 60),
    "log-cuts-damage-off": ([(scan._Scanner, "_is_torn", _always_torn)], "decay", 60),
    "log-loses-hard-state": ([(LogWriter, "write", _write_without_hard_state)], "power", 60),
    "log-collects-live-entries": ([(GroupLog, "set_live", _live_without_the_first)], "lag", 20),
    "snapshot-without-live-entries": (
        [(GroupLog, "snapshot", _snapshot_without_live)],
        "lag",
        60,
    ),
    "directory-not-synced": ([(SimDisk, "sync_directory", _no_directory_sync)], "power", 20),
    "duplicates-accepted": (
        [
            (Channels, "expected", _expect_anything),
            (queue_machine._HANDLERS, Kind.ENQUEUE, _enqueue_twice),
        ],
        "order",
        40,
    ),
    "repeats-applied": ([(Senders, "answer", _never_seen)], "answers", 30),
    "settle-forgotten": ([(queue_machine._HANDLERS, Kind.SETTLE, _settle_nothing)], "fair", 5),
    "held-not-in-snapshot": ([(queue_snapshot, "encode", _encode_without_held)], "decay", 20),
    "dead-consumers-messages-lost": ([(QueueState, "_take_all", _forget_taken)], "consumers", 20),
    "delivery-count-reset": ([(QueueState, "_put_back", _reset_counts)], "answers", 100),
    "delivery-limit-ignored": ([(QueueState, "_put_back", _no_limit)], "answers", 40),
    "reserves-beyond-credit": ([(Consumer, "capacity", _capacity_by_prefetch)], "credit", 5),
    "unwritten-counts": ([(QueueState, "_give_back_unwritten", _count_all)], "credit", 10),
    "letter-settled-before-confirm": (
        [(Worker, "_send", _settle_before_confirms)],
        "consumers",
        20,
    ),
    "job-settled-before-confirm": ([(Sending, "_send", _done_when_sent)], "jobs", 20),
    "held-by-job-dropped": (
        [(queue_machine._HANDLERS, Kind.UPDATE_OPTIONS, _drop_what_jobs_hold)],
        "jobs",
        20,
    ),
    "moved-twice": ([(queue_machine._HANDLERS, Kind.JOB_SETTLE, _settle_and_keep)], "jobs", 20),
    "job-beyond-its-end": ([(Job, "may_take", _without_end)], "jobs", 20),
    "outcomes-forgotten": (
        [(queue_machine._HANDLERS, Kind.UPDATE_OPTIONS, _forget_copies)],
        "jobs",
        20,
    ),
    "new-leader-delivers-at-once": (
        [(leaders._EFFECTS, effects.Deliver, _deliver_at_once)],
        "order",
        60,
    ),
    "options-among-the-rest": ([(Driver, "propose", _propose_last)], "order", 60),
    "consumers-do-not-resume": (
        [(DeliveryHub, "leader_changed", _resume_with_nothing)],
        "order",
        60,
    ),
    "channel-end-overtakes": ([(ChannelStream, "_end", _end_at_once)], "answers", 100),
    "numbers-used-again": ([(ChannelStream, "take_numbers", _take_the_same_numbers)], "fair", 5),
    "settlements-overtaken": ([(TurnSettlements, "send", _whatever)], "answers", 100),
    "two-members-at-once": ([(membership, "fault_of_change", _any_change)], "members", 80),
    "changes-do-not-wait": ([(RaftNode, "propose_configuration", _two_changes)], "members", 200),
    "damaged-member-votes": (
        [(ReplicaHealth._HANDLERS, replica_health.LogOpened, _pass_over)],
        "decay",
        100,
    ),
    "zeroed-tail-is-torn": (
        [(records, "decode_sync_mark", _no_mark), (scan._Scanner, "_judge_mark", _whatever)],
        "lies",
        60,
    ),
    "missing-mark-passes": ([(scan._Scanner, "_judge_mark", _whatever)], "lies", 100),
    "copied-directory-votes": ([(recovery, "_look_for_copy", _whatever)], "lies", 100),
    "older-directory-votes": ([(Promises, "is_behind", _never_behind)], "lies", 60),
    "damaged-member-trusted-early": (
        [(ReplicaHealth._HANDLERS, replica_health.Progressed, _compare_at_once)],
        "decay",
        100,
    ),
    "whole-by-any-snapshot": (
        [(ReplicaHealth._HANDLERS, replica_health.SnapshotInstalled, _whole_by_a_snapshot)],
        "decay",
        200,
    ),
    "committed-gives-way": ([(Following, "_contradicts", _never_contradicts)], "beyond", 20),
    "put-back-member-votes": (
        [(ReplicaHealth._HANDLERS, replica_health.FellBehind, _pass_over)],
        "lies",
        100,
    ),
}
#: The ones of every run: those that are found soon.
CI = {
    "log-acknowledges-before-sync",
    "log-collects-live-entries",
    "settle-forgotten",
    "held-not-in-snapshot",
    "dead-consumers-messages-lost",
    "letter-settled-before-confirm",
    "job-settled-before-confirm",
    "held-by-job-dropped",
    "moved-twice",
    "job-beyond-its-end",
    "outcomes-forgotten",
    "delivery-count-reset",
    "reserves-beyond-credit",
    "unwritten-counts",
    "repeats-applied",
    "options-among-the-rest",
    "committed-gives-way",
}


def hunt(name: str) -> tuple[int, str] | None:
    """Return how many seeds it took to find a planted bug, and how it showed; None: missed.

    A seed that fails without the bug as well has found something else, and does not count.
    """
    mutant = MUTANTS[name]
    return hunt_in(BeyondWorld if mutant[1] == "beyond" else BrokerWorld, mutant)


def hunt_in(
    world: type[BrokerWorld], mutant: tuple[list[Plant], str, int]
) -> tuple[int, str] | None:
    """See hunt."""
    plants, profile, budget = mutant
    for seed in range(1, budget + 1):
        with planted_all(plants):
            failure = _failure(world, seed, profile)
        if failure is not None and _failure(world, seed, profile) is None:
            return seed, failure
    return None


def _failure(world: type[BrokerWorld], seed: int, profile: str) -> str | None:
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        world(seed, profile=profile).run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logging.disable(disabled)
    return None


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug for the length of a with-block."""
    with planted_all(MUTANTS[name][0]):
        yield


@contextmanager
def planted_all(plants: list[Plant]) -> Iterator[None]:
    """Plant these."""
    undo: list[Callable[[], None]] = []
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        for owner, attribute, replacement in plants:
            undo.append(_replace(owner, attribute, replacement))
        yield
    finally:
        for step in reversed(undo):
            step()
        logging.disable(disabled)


def _replace(owner: Any, attribute: Any, replacement: Any) -> Callable[[], None]:
    if isinstance(owner, dict):
        before = owner[attribute]
        owner[attribute] = replacement
        return lambda: owner.__setitem__(attribute, before)
    is_own = attribute in vars(owner)
    before = getattr(owner, attribute)
    setattr(owner, attribute, replacement)
    return lambda: setattr(owner, attribute, before) if is_own else delattr(owner, attribute)
