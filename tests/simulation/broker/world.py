"""The whole broker simulated: members with their real log, several queues, clients, and a nemesis.

A seed decides everything.  After `chaos_ms` everything is healed: service must resume within 5 s
(G9), and then consumers must be able to empty every queue, so that the oracle can say what became
of each confirmed message (G1).  The core alone, on a worse network, is simulated in ../world.py.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from brokerd.cluster.config import HostConfig
from brokerd.cluster.groups.host import Host
from brokerd.core.queue import browse
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.config import RaftConfig
from brokerd.raft.messages import Configuration, NodeId
from brokerd.storage import records
from brokerd.storage.config import SEGMENT_BYTES_MIN
from brokerd.storage.errors import StorageError
from brokerd.storage.wal import WalConfig
from tests.simulation.broker.clients import SimConsumer, SimPublisher
from tests.simulation.broker.disk import flip_bit
from tests.simulation.broker.jobs import START_MS, keep_moving
from tests.simulation.broker.kernel import Kernel
from tests.simulation.broker.lies import Lies
from tests.simulation.broker.member import SimMember
from tests.simulation.broker.oracle import Ledger, Oracle
from tests.simulation.broker.queues import SimQueue, with_letters
from tests.simulation.broker.scenario import Scenario
from tests.simulation.broker.streams import Wires
from tests.simulation.network import PARTITIONS, FakeNetwork, NetworkFaults

RESUME_MS = 5_000
#: With publishers silent, consumers must have emptied every queue so soon after that.
DRAIN_MS = 40_000


#: All messages are looked at so often, in pages of so many.
BROWSE_MS, BROWSE_PAGE = 400, 7


class BrokerWorld:
    """One simulated cluster.  `trace` gets a line per event."""

    def __init__(
        self, seed: int, trace: Callable[[str], None] | None = None, profile: str | None = None
    ) -> None:
        self.rng = random.Random(seed)
        #: What is random in the members' logs; `run` seeds it.
        self.salts = random.Random()
        self.scenario = self._new_scenario(profile)
        self.kernel = Kernel()
        self.oracle = Oracle()
        self.is_open = self.is_publishing = self.is_chaotic = True
        self.resume_ms = RESUME_MS
        self._trace = trace
        self._digest = hashlib.blake2b(digest_size=16)
        scenario = self.scenario
        self.wires = Wires(self.kernel, self.rng, scenario.delay_ms_max)
        #: Draws the cuts; of its network only `blocked` is used.
        self._cuts = FakeNetwork(self.rng, NetworkFaults())
        self._cuts.blocked = self.wires.blocked
        # Drawn apart, so that seeds of profiles stand for the same worlds as before.
        scenario.credit |= profile is None and random.Random(f"credit {seed}").random() < 0.3
        self.oracle.knows_writes = scenario.credit
        self.host_config = HostConfig(
            raft=RaftConfig(
                snapshot_entries=scenario.snapshot_entries,
                snapshot_resend_ticks=20,
                append_entries_max=self.rng.choice((1, 1024)),
                inflight_max=self.rng.choice((4, 64)),
                # Drawn apart, so that seeds stand for the same worlds as before.
                apply_entries_min=random.Random(f"manners {seed}").choice((1, 4, 32)),
            ),
            rested_max=random.Random(f"folds {seed}").choice((0, 0, 1, 1_000)),
            collect_interval_ms=400,
        )
        self._cache_bytes = self.rng.choice((0, 4_000, 1 << 20))
        names = [NodeId(f"n{i}") for i in range(scenario.node_count)]
        # Drawn apart as well.
        has_default = random.Random(f"default limit {seed}").random() < 0.5
        self.queues = self._new_queues(names, has_default)
        #: The queue that jobs empty.
        self.parked = min(self.queues) if scenario.jobs else None
        if self.parked is not None:
            self.queues[self.parked].targets = (max(self.queues),)
        self.open_queues = [queue for queue in self.queues.values() if queue.name != "dead"]
        self.oracle.ledgers = {
            queue.uid: Ledger(targets=queue.targets) for queue in self.queues.values()
        }
        self.members: dict[NodeId, SimMember] = {}
        self._names = names
        self.victim = self.rng.choice(names)
        self.lies = Lies(self, seed, always=profile == "lies", never=profile == "fair")
        self.publishers = [SimPublisher(self, f"p{i}") for i in range(scenario.publisher_count)]
        self.consumers = [
            SimConsumer(self, f"c{queue.uid}{i}", queue.uid)
            for queue in self.queues.values()
            if queue.uid != self.parked
            for i in range(self.rng.choice((1, 2)))
        ]

    def _new_scenario(self, profile: str | None) -> Scenario:
        return Scenario.of_seed(self.rng, profile)

    def _new_queues(self, names: list[NodeId], has_default_limit: bool) -> dict[int, SimQueue]:
        scenario = self.scenario
        queues: dict[int, SimQueue] = {}
        dead_uid = 100
        count = scenario.queue_count + scenario.dead_letters
        for number in range(count):
            founders = [str(name) for name in sorted(self.rng.sample(names, 3))]
            options = QueueOptions(queue_type="quorum", disconnected_timeout_ms=2_000)
            is_dead = scenario.dead_letters and number == count - 1
            uid = dead_uid if is_dead else number + 10
            has_letters = scenario.dead_letters and number == 0
            if has_letters:
                mode = self.rng.choice(("3.x", "4.0", "4.3"))
                is_default = mode == "4.3" and has_default_limit
                options = with_letters(options, scenario.delivery_limit, mode, is_default)
            queue = SimQueue(uid, "dead" if is_dead else f"q{uid}", founders, options)
            queue.members = list(founders)
            if has_letters:
                queue.targets = (dead_uid,)
            queues[uid] = queue
        return queues

    def wal_config(self, node: NodeId) -> WalConfig:
        """Return settings that make the log rotate, recycle and rewrite all the time."""
        return WalConfig(
            node_id=node,
            segment_bytes=SEGMENT_BYTES_MIN,
            in_background=False,
            recycled_segments_max=1,
            cache_bytes=self._cache_bytes,
        )

    def may_consume(self, uid: int) -> bool:
        """Tell whether a queue's consumers may come."""
        return True

    def group_of(self, log_uid: int) -> int:
        """Return the group of a log."""
        return log_uid

    # ---- record ---------------------------------------------------------------------------------

    def record(self, what: str, *details: object) -> None:
        """Add to the hash that two runs must share, and to the trace."""
        line = f"{self.kernel.now_us} {what} {details}"
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    @property
    def digest(self) -> str:
        """Hash of everything recorded."""
        return self._digest.hexdigest()

    @property
    def event_count(self) -> int:
        """How much happened."""
        return self.kernel.event_count

    def strikes(self, chance: float) -> bool:
        """Draw whether something with this chance happens now."""
        return chance > 0.0 and self.rng.random() < chance

    # ---- what members and clients report --------------------------------------------------------

    def on_confirmed(self, publisher: SimPublisher, uid: int, body: bytes) -> None:
        """A publisher was told that its message is safe."""
        self.record("confirm", publisher.name, uid, body[:16])
        self.oracle.confirmed.add((uid, body))
        publisher.confirmed_at_ms = self.kernel.now_ms
        if self.is_chaotic and self.strikes(self.scenario.crash_after_confirm):
            victims = [member for member in self.members.values() if member.is_up]
            self.kernel.after(0, self._crash, self.rng.choice(victims))

    def on_delivered(self, consumer: SimConsumer, numbers: list[int]) -> None:
        """A consumer got messages."""
        self.record("deliver", consumer.name, consumer.uid, numbers)

    def disk_failed(self, member: SimMember, error: BaseException) -> None:
        """A member's log failed: its process ends, and is started again when the disk is well."""
        self.record("disk failed", member.id)
        self.kernel.after(0, self._crash, member)

    def on_started(self, member: SimMember) -> None:
        """White box: what is in a queue is readable in a majority of its members' logs."""
        for queue in self.queues.values():
            if not self.scenario.membership:
                self._look_into_logs(queue)

    def _look_into_logs(self, queue: SimQueue) -> None:
        ledger = self.oracle.ledgers[queue.uid]
        alive = self.oracle.unsettled(queue.uid)
        for index in alive[:4] + alive[4:][-12:]:
            wanted = ledger.entries[index]
            holding = doubtful = 0
            for name in queue.members:
                member = self.members[NodeId(name)]
                if member.wal is None:
                    doubtful += 1
                elif _holds(member, queue.uid, index, wanted):
                    holding += 1
                elif member.is_victim:
                    doubtful += 1
            self.oracle.require(
                holding + doubtful > len(queue.members) // 2,
                f"entry {index} of queue {queue.uid} is readable in {holding} of "
                f"{len(queue.members)} logs (G1)",
            )

    # ---- what goes wrong ------------------------------------------------------------------------

    def _nemesis(self) -> None:
        if not self.is_chaotic:
            return
        choices = self._faults()
        if choices:
            self.rng.choice(choices)()
        self._look_at_live_entries()
        self.kernel.after(self.rng.randrange(50, 700), self._nemesis)

    def _faults(self) -> list[Callable[[], None]]:
        """Return what may go wrong next."""
        scenario = self.scenario
        choices: list[Callable[[], None]] = []
        if scenario.partitions:
            choices += [self._partition, self._partition, self._mend]
        if scenario.crashes:
            choices += [self._crash_one] * 2
        if scenario.breaks:
            choices.append(self._break_stream)
        if scenario.mutes:
            choices += [self._mute] * 2
        if scenario.slow_disks:
            choices.append(self._toggle_disk)
        if scenario.disk_errors:
            choices.append(self._fail_disk)
        choices += [self._stall_disk] * 2 * scenario.disk_stalls
        if scenario.bit_flips:
            choices.append(self._decay)
        if scenario.transfers:
            choices.append(self._transfer)
        if scenario.membership:
            choices += [self._change_members] * 3
        if scenario.clock_jumps:
            choices.append(self._jump)
        return choices

    def _partition(self) -> None:
        kind = self.rng.choice(sorted(PARTITIONS))
        self._cuts.partition(self._names, kind)
        self.record("partition", kind, sorted(self.wires.blocked))

    def _mend(self) -> None:
        self.record("mend")
        self.wires.blocked.clear()

    def _crash(self, member: SimMember, down_ms: int | None = None) -> None:
        if not member.is_up:
            return
        member.crash()
        if down_ms is None:
            down_ms = self.rng.choice((50, 300, 1_500))
        self.start_later(member, down_ms)

    def start_later(self, member: SimMember, down_ms: int) -> None:
        """Start a member again, and have its clients come back."""
        self.kernel.after(down_ms, member.start)
        for client in [*self.publishers, *self.consumers]:
            if client.home is member:
                self.kernel.after(self.rng.randrange(300), client.attach)

    def _crash_one(self) -> None:
        members = [member for member in self.members.values() if member.is_up]
        if not members:
            return
        leaders = [member for member in members if member.broker and member.broker.leaders.led]
        if self.strikes(0.1):
            # The whole rack.
            for member in members:
                self._crash(member)
            return
        self._crash(self.rng.choice(leaders if leaders and self.strikes(0.6) else members))

    def _break_stream(self) -> None:
        sender, to = self.rng.sample(self._names, 2)
        self.record("break", sender, to)
        self.wires.break_off(sender, to)

    def _mute(self) -> None:
        """What a leader says to a member with clients gets lost, their commands do not."""
        leaders = [
            member.id
            for member in self.members.values()
            if member.broker and member.broker.leaders.led
        ]
        sender = self.rng.choice(leaders or self._names)
        clients = [*self.publishers, *self.consumers]
        homes = [client.home.id for client in clients if client.home is not None]
        others = [name for name in homes or self._names if name != sender]
        if not others:
            return
        to = self.rng.choice(others)
        for_ms, is_told = self.rng.randrange(50, 1_200), self.strikes(0.3)
        self.record("mute", sender, to, for_ms, is_told)
        self.wires.mute(sender, to, for_ms, is_told=is_told)

    def _toggle_disk(self) -> None:
        member = self.members[self.rng.choice(self._names)]
        member.is_slow = not member.is_slow

    def _stall_disk(self) -> None:
        self.members[self.rng.choice(self._names)].stall_for(self.rng.choice((100, 900, 2_500)))

    def _fail_disk(self) -> None:
        member = self.members[self.rng.choice(self._names)]
        faults = member.disk.faults
        kind = self.rng.choice(("write", "sync", "full"))
        self.record("disk", member.id, kind)
        if kind == "write":
            faults.write_fails_at = self.rng.randrange(1, 6)
        elif kind == "sync":
            faults.sync_fails_at = self.rng.randrange(1, 6)
        else:
            faults.space_bytes = self.rng.randrange(3_000)

    def may_damage(self) -> bool:
        """Tell whether the victim's disk may lose something: a majority of the others' is whole."""
        return True

    def _decay(self) -> None:
        """One bit of the victim's disk flips while its process is down."""
        member = self.members[self.victim]
        if not self.may_damage():
            return
        if member.is_up:
            self._crash(member)
        member.is_victim = True
        where = flip_bit(member.directory, self.rng, records.SEGMENT_DATA_START)
        self.record("flip", member.id, where)

    def _transfer(self) -> None:
        queue = self.rng.choice(list(self.queues.values()))
        leader = self._leader(queue.uid)
        if leader is not None:
            to = NodeId(self.rng.choice(queue.members))
            self.record("transfer", queue.uid, leader.id, to)
            leader.host.transfer_leadership(queue.uid, to)
            if self.scenario.crashes and to != leader.id and self.strikes(0.3):
                # In vain: what the leader is to propose meanwhile is refused, such as this death.
                self._crash(self.members[to], self.rng.choice((50, 300)))

    def _jump(self) -> None:
        member = self.members[self.rng.choice(self._names)]
        member.skew_ms = self.rng.randrange(-5_000, 5_000)
        self.record("jump", member.id, member.skew_ms)

    def _leader(self, uid: int) -> SimMember | None:
        leading = [
            (driver.term, member.id)
            for member in self.members.values()
            if member.broker is not None
            and (driver := member.host.driver_of(uid)) is not None
            and driver.is_leader
        ]
        return self.members[max(leading)[1]] if leading else None

    def _change_members(self) -> None:
        """Have one who believes to lead change its members, perhaps several times at once."""
        queue = self.rng.choice(list(self.queues.values()))
        leading = [
            member
            for member in self.members.values()
            if member.broker is not None and queue.uid in member.broker.leaders.led
        ]
        if leading:
            leader = self.rng.choice(leading)
            for number in range(self.rng.choice((1, 1, 3))):
                self.kernel.after(15 * number, self._change_member, queue, leader)

    def _change_member(self, queue: SimQueue, leader: SimMember) -> None:
        """Add as learner, promote who has caught up, or take one out while three are left."""
        driver = leader.host.driver_of(queue.uid) if leader.is_up else None
        if driver is None or not driver.is_leader:
            return
        changes = [at for at, _ in driver.replica._node._history._items]
        self.oracle.require(
            sum(at > driver.replica.commit_index for at in changes) < 2,
            f"{leader.id} has two changes of queue {queue.uid} under way (Raft thesis §4.1)",
        )
        current = driver.replica.configuration
        if self.strikes(0.2):
            self._change_two(queue, leader, current)
            return
        voters, learners = set(current.voters), set(current.learners)
        outside = [name for name in self._names if name not in voters | learners]
        for learner in sorted(learners):
            if (driver.replica.match_of(learner) or 0) >= driver.replica.commit_index:
                learners.discard(learner)
                voters.add(learner)
                break
        else:
            if outside:
                newcomer = self.rng.choice(outside)
                member = self.members[newcomer]
                if not member.is_up:
                    return
                if not member.host.has_group(queue.uid):
                    member.open_group(queue.uid)
                learners.add(newcomer)
                queue.members = sorted({*queue.members, newcomer})
            elif len(voters) > 3:
                voters.discard(self.rng.choice(sorted(voters)))
        wanted = Configuration(tuple(sorted(voters)), tuple(sorted(learners)))
        if wanted == current:
            return
        self.record("change", queue.uid, leader.id, wanted.voters, wanted.learners)
        with leader.loop.entered():
            leader.host.change_members(queue.uid, wanted, _nothing)
        for member in self.members.values():
            if member.broker is not None:
                member.broker.groups.set_members(
                    queue.uid, [NodeId(name) for name in queue.members]
                )

    def _change_two(self, queue: SimQueue, leader: SimMember, current: Configuration) -> None:
        """Ask for what must be refused: majorities before and after might not meet."""
        voters = list(current.voters)
        voters.remove(self.rng.choice(voters))
        outside = [name for name in self._names if name not in (*current.voters, *current.learners)]
        if outside:
            voters.append(self.rng.choice(outside))
        elif len(voters) > 1:
            voters.remove(self.rng.choice(voters))
        else:
            return

        def done(is_accepted: bool, _reply: bytes, _leader: NodeId | None) -> None:
            self.oracle.require(
                not is_accepted,
                f"{leader.id} changed two members of queue {queue.uid} at once (Raft thesis §4.1)",
            )

        wanted = Configuration(tuple(sorted(voters)), current.learners)
        with leader.loop.entered():
            leader.host.change_members(queue.uid, wanted, done)

    def _look_at_live_entries(self) -> None:
        for member in self.members.values():
            if member.is_up:
                member.look_at_live_entries()

    def _browse(self) -> None:
        """Look at all messages everywhere: nothing changes, all that the books have is found, and
        a leader can read each of them.
        """
        for member in self.members.values():
            if member.is_up and member.broker is not None:
                for uid in self.queues:
                    self._browse_replica(member, uid)
        if self.is_chaotic:
            self.kernel.after(BROWSE_MS, self._browse)

    def _browse_replica(self, member: SimMember, uid: int) -> None:
        driver = member.host.driver_of(uid)
        # Not by the host's `machine_of`, which has what is committed applied: a look from outside.
        machine = None if driver is None or driver.error is not None else driver.machine
        if not isinstance(machine, QueueMachine) or machine.deleted is not None:
            return
        before = machine.snapshot()
        wanted = browse.Wanted(browse.ALL)
        numbers: list[int] = []
        place = None
        while True:
            walked = browse.walk(machine, wanted, place, BROWSE_PAGE, BROWSE_PAGE)
            numbers += [each.number for each in walked.found]
            if driver is not None and driver.is_leader:
                for each in walked.found:
                    data = driver.entry_data(each.run.entry)
                    self.oracle.require(data is not None, f"{member.id}: browsed, and not there")
            place = walked.place
            if place is None:
                break
        browse.tail(machine, wanted, BROWSE_PAGE, BROWSE_PAGE)
        self.oracle.require(machine.snapshot() == before, f"{member.id}: browsing changes {uid}")
        held = machine.store.ready + machine.unacked + machine.delayed.count
        is_expiring = machine.store.expiring > 0
        is_whole = len(numbers) == held or (is_expiring and len(numbers) < held)
        self.oracle.require(
            is_whole and len(set(numbers)) == len(numbers),
            f"{member.id}: {len(numbers)} messages of {held} browsed in {uid}",
        )

    def _heal(self) -> None:
        self.record("heal")
        self.is_chaotic = False
        self.wires.blocked.clear()
        self.wires.muted.clear()
        for member in self.members.values():
            member.mend_disk()
            member.start()

    # ---- running --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the whole scenario; raise Violation if a property breaks."""
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        root = Path(tempfile.mkdtemp(prefix="brokerd-sim-", dir=base))
        self.salts.seed(self.rng.getrandbits(32))
        try:
            self._run(root)
        finally:
            for member in self.members.values():
                member.loop.kill()
                if member.wal is not None:
                    member.wal.close()
            self.kernel.outside.kill()
            shutil.rmtree(root)

    def _first_fault_ms(self) -> int:
        return 500

    def _populate(self, root: Path) -> None:
        """Make the members and have them start, and the clients come."""
        for node in self._names:
            self.members[node] = SimMember(self, node, root)
            self.wires.add(node, self.members[node])
        for node, member in self.members.items():
            member.uids = {uid for uid, queue in self.queues.items() if node in queue.founders}
            self.kernel.after(self.rng.randrange(100), member.start)
        for client in [*self.publishers, *self.consumers]:
            self.kernel.after(100 + self.rng.randrange(500), client.attach)

    def _run(self, root: Path) -> None:
        self._populate(root)
        heal_ms = self.scenario.chaos_ms
        self.kernel.after(self._first_fault_ms(), self._nemesis)
        self.lies.schedule(heal_ms, root)
        self.kernel.after(heal_ms, self._heal)
        self.kernel.after(BROWSE_MS, self._browse)
        if self.parked is not None:
            self.kernel.after(START_MS, keep_moving, self)
        self._run_until(heal_ms)
        while self.kernel.now_ms < heal_ms + self.resume_ms and any(
            publisher.confirmed_at_ms <= heal_ms for publisher in self.publishers
        ):
            self._run_until(self.kernel.now_ms + 100)
        for publisher in self.publishers:
            self.oracle.require(
                publisher.confirmed_at_ms > heal_ms,
                f"{publisher.name} got no confirm within {self.resume_ms} ms after heal (G9)",
            )
        self.is_publishing = False
        self._look_at_live_entries()
        self._drain()
        self._examine()
        self.oracle.on_end()
        self._compare_replicas()

    def _run_until(self, end_ms: int) -> None:
        self.kernel.run_until(end_ms)
        for member in self.members.values():
            self._look_for_stopped(member)
        if self.oracle.violation is not None:
            raise self.oracle.violation

    def _look_for_stopped(self, member: SimMember) -> None:
        if member.broker is None:
            return
        for uid in member.uids:
            driver = member.host.driver_of(uid)
            error = None if driver is None else driver.error
            if error is not None and not (member.is_victim and isinstance(error, StorageError)):
                raise error

    def _drain(self) -> None:
        obstacle = None
        end_ms = self.kernel.now_ms + DRAIN_MS
        while self.kernel.now_ms < end_ms:
            self._run_until(self.kernel.now_ms + 500)
            before, obstacle = obstacle, self._obstacle()
            if obstacle is None:
                return
            if obstacle != before:
                # A slow consumer may take minutes for what the faults have piled up.
                end_ms = self.kernel.now_ms + DRAIN_MS
        self.oracle.require(False, f"after {DRAIN_MS} ms of rest: {obstacle}")

    def _examine(self) -> None:
        """All is at rest: see what else must hold."""
        for uid in self.queues:
            leader = self._leader(uid)
            assert leader is not None
            self.oracle.judge_outcomes(uid, leader.host.machine_of(uid))

    def _obstacle(self) -> str | None:
        """Return what is still in a queue, or who lags behind; None: all is at rest."""
        for uid, queue in self.queues.items():
            leader = self._leader(uid)
            if leader is None:
                return f"queue {uid} has no leader"
            host: Host = leader.host
            machine: Any = host.machine_of(uid)
            driver = host.driver_of(uid)
            assert driver is not None
            left = (machine.store.ready, machine.unacked, machine.letters.count)
            if machine.query_job() is not None:
                return f"a job of queue {uid} is under way: {left}"
            if any(left) and (self.may_consume(uid) or any(left[1:])):
                return f"queue {uid} holds ready, unacked, letters: {left}"
            wanted = driver.replica.applied_index
            if wanted < max(self.oracle.ledgers[uid].applied, default=0):
                # Of a new term nothing is committed yet: its machine may be as it was long ago.
                return f"{leader.id} leads queue {uid} and has not applied all of it"
            for name in driver.replica.configuration.voters:
                member = self.members[name]
                if member.broker is None or not member.host.has_group(uid):
                    if not member.is_victim:
                        return f"{name} is not up in queue {queue.uid}"
                    continue
                replica = member.host.driver_of(uid)
                assert replica is not None
                if replica.error is None and replica.replica.applied_index != wanted:
                    return f"{name} has not applied {wanted} of queue {uid}"
                if not replica.health.may_vote:
                    return f"{name} is still damaged in queue {uid}"
        return None

    def _compare_replicas(self) -> None:
        """All replicas, at rest, are equal byte by byte (checked by WatchedQueue.snapshot)."""
        for member in self.members.values():
            if member.broker is None:
                continue
            for uid in sorted(member.uids):
                driver = member.host.driver_of(uid)
                if driver is not None and driver.error is None:
                    driver.machine.snapshot()
                    driver.machine.check_invariants()


def _holds(member: SimMember, uid: int, index: int, checksum: int) -> bool:
    assert member.wal is not None
    try:
        data = member.wal.log(uid).entry_data(index)
    except StorageError:
        return False
    return data is not None and crc32(data[8:]) == checksum


def _nothing(_accepted: bool, _reply: bytes, _leader: NodeId | None) -> None:
    """A refused change is tried again by chance."""
