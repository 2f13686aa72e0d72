"""More disks lie than the promises allow: two of three members are put back to one older state.

What only the third one holds is lost to the other two, who elect a leader and go on.  What must
hold all the same is that nothing committed is overwritten in silence: the third one, up again,
keeps what it knows to be committed and says so.  The copies know of the term in which they were
made: two that are put back to before an election may elect in that same term again, and then no
comparison of terms tells one history from the other.  For run.py and mutants.py.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from brokerd.core.machine import Meta
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.messages import NodeId
from tests.simulation.broker.member import SimMember
from tests.simulation.broker.oracle import Before, Oracle
from tests.simulation.broker.scenario import Scenario
from tests.simulation.broker.world import BrokerWorld

#: How long what is lost later is published, and how long the two go on without the third one.
CALM_MS, LOST_MS, GOES_ON_MS = 500, 600, 500
#: The third one must have heard of the others' leader so soon.
HEARS_MS = 5_000


class PastOracle(Oracle):
    """Of what it knew before nothing binds the two any more; it says what it is told to require."""

    def before(self, machine: QueueMachine, uid: int, index: int, command: bytes) -> Before | None:
        """See Oracle."""
        return None

    def after(
        self,
        node: NodeId,
        machine: QueueMachine,
        uid: int,
        meta: Meta,
        command: bytes,
        reply: bytes,
        todo: Sequence[Any],
        before: Before | None,
    ) -> None:
        """See Oracle."""

    def on_leader(self, node: NodeId, uid: int, term: int, is_damaged: bool) -> None:
        """See Oracle."""

    def on_received(self, uid: int, number: int, body: bytes) -> None:
        """See Oracle."""

    def on_snapshot(self, node: NodeId, uid: int, index: int, data: bytes) -> None:
        """See Oracle."""


class BeyondWorld(BrokerWorld):
    """A cluster of three of which two forget the same."""

    def _new_scenario(self, profile: str | None) -> Scenario:
        return replace(Scenario.of_seed(self.rng, "fair"), node_count=3, sync_ms_max=4.0)

    def _run(self, root: Path) -> None:
        rng = random.Random(f"beyond {self.salts.random()}")
        self._populate(root)
        self._run_until_led()
        self._run_until(self.kernel.now_ms + CALM_MS)
        third, *others = rng.sample(sorted(self.members), 3)
        identities = {}
        for node in others:
            member = self.members[node]
            shutil.copytree(member.directory, root / f"{node}.copy")
            for file in member.directory.iterdir():
                identities[node, file.name] = member.disk.identity_of(file)
        self._run_until(self.kernel.now_ms + LOST_MS)
        for member in self.members.values():
            member.crash(cuts_power=False)
        self._forget()
        for node in others:
            self._put_back(self.members[node], root / f"{node}.copy", identities)
            self.start_later(self.members[node], rng.choice((50, 300)))
        self._run_until_led()
        self._run_until(self.kernel.now_ms + GOES_ON_MS)
        self._bring_back(self.members[third], [self.members[node] for node in others])

    def _run_until_led(self) -> None:
        while any(self._leader(uid) is None for uid in self.queues):
            self._run_until(self.kernel.now_ms + 100)

    def _forget(self) -> None:
        ledgers, published = self.oracle.ledgers, self.oracle.published
        self.oracle = PastOracle()
        self.oracle.ledgers, self.oracle.published = ledgers, published
        # No client comes back.
        self.is_open = False

    def _put_back(
        self, member: SimMember, copy: Path, identities: dict[tuple[NodeId, str], tuple[int, int]]
    ) -> None:
        """As a snapshot of the volume does: the same files as far as anybody can tell."""
        member.is_victim = True
        member.disk.forget()
        shutil.rmtree(member.directory)
        shutil.copytree(copy, member.directory)
        for file in copy.iterdir():
            identity = identities[member.id, file.name]
            member.disk.identify(member.directory / file.name, identity)
        member._promised = {}
        self.record("put back", member.id)

    def _bring_back(self, third: SimMember, others: list[SimMember]) -> None:
        """Start the one that remembers all; see that it forgets nothing of it unsaid."""
        third.start()
        held = {uid: self._committed_at(third, uid) for uid in sorted(self.queues)}
        lost = {
            uid
            for uid, entries in held.items()
            if all(self._lacks(other, uid, entries) for other in others)
        }
        self.record("lost", sorted(lost))
        end_ms = self.kernel.now_ms + HEARS_MS
        while self.kernel.now_ms < end_ms and not all(self._says_so(third, uid) for uid in lost):
            self._run_until(self.kernel.now_ms + 100)
        for uid in lost:
            found = self._entries_at(third, uid)
            # What its own snapshot stands for may be there no more.
            others = [at for at, data in held[uid].items() if found.get(at, data) != data]
            self.oracle.require(
                not others, f"{third.id}: committed {others[:5]} of queue {uid} are overwritten"
            )
            self.oracle.require(
                self._says_so(third, uid) or self._leads(third, uid),
                f"{third.id}: queue {uid} has lost what was committed, and nobody is told",
            )

    def _lacks(self, member: SimMember, uid: int, entries: dict[int, int]) -> bool:
        """Tell whether its log ends before one of these, or has another one there."""
        assert member.wal is not None
        last, own = member.wal.log(uid).last_index(), self._entries_at(member, uid)
        return any(index > last or own.get(index, data) != data for index, data in entries.items())

    def _says_so(self, member: SimMember, uid: int) -> bool:
        return member.host.status_of(uid).is_contradicted

    def _leads(self, member: SimMember, uid: int) -> bool:
        """It was elected: the others get from it what they lack."""
        return self._leader(uid) is member

    def _committed_at(self, member: SimMember, uid: int) -> dict[int, int]:
        commit = member.host.status_of(uid).commit
        entries = self._entries_at(member, uid)
        return {index: data for index, data in entries.items() if index <= commit}

    def _entries_at(self, member: SimMember, uid: int) -> dict[int, int]:
        assert member.wal is not None
        log = member.wal.log(uid)
        indexes = range(log.first_index(), log.last_index() + 1)
        data = {index: log.entry_data(index) for index in indexes}
        return {index: crc32(found) for index, found in data.items() if found is not None}
