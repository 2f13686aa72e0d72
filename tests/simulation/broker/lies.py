"""A disk that lies: one member's tail reads as zeros, or its directory is an older one.

For world.py, in every profile in which anything goes wrong.  The process is killed and the disk
keeps what it was given; that a device loses in the same moment what it had never synced is another
fault (disk.py).  Once in a run, at the victim's only: a minority's disks may lie (G8).
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from brokerd.storage import records

if TYPE_CHECKING:
    from tests.simulation.broker.member import SimMember
    from tests.simulation.broker.world import BrokerWorld

#: How much of the tail is gone.
TAILS = (60, 300, 2_000, 20_000)
LOOK_MS = 100


@dataclass(slots=True)
class Copy:
    """A directory as it once was."""

    path: Path
    #: Which log it was (an earlier disk of the member had another one), and what it had synced.
    log: int
    batches: int
    #: Name -> which file it was.
    identities: dict[str, tuple[int, int]] = field(default_factory=dict)


class Lies:
    """State: what is to happen to the victim's disk, drawn apart from all else."""

    def __init__(self, world: BrokerWorld, seed: int, *, always: bool, never: bool) -> None:
        self.rng = random.Random(f"lies {seed}")
        self._world = world
        is_on = self.rng.random() < 0.3
        self.is_on = (is_on or always) and not never
        self.kind = self.rng.choice(("tail", "tail and mark", "mark", "copied", "put back"))
        self._copy: Copy | None = None

    def schedule(self, chaos_ms: int, root: Path) -> None:
        """Let it come some time before all is healed."""
        if not self.is_on:
            return
        after_ms = self.rng.randrange(chaos_ms // 3, chaos_ms * 2 // 3)
        if self.kind in ("copied", "put back"):
            self._world.kernel.after(after_ms, self._make_copy, root / "copy")
        else:
            self._world.kernel.after(after_ms, self._spoil_tail)

    @property
    def _victim(self) -> SimMember:
        return self._world.members[self._world.victim]

    def _kill(self, member: SimMember, down_ms: int) -> None:
        if member.is_up:
            member.crash(cuts_power=False)
            self._world.start_later(member, down_ms)

    # ---- the tail -------------------------------------------------------------------------------

    def _spoil_tail(self) -> None:
        world, victim, rng = self._world, self._victim, self.rng
        if not world.is_chaotic:
            return
        if not (victim.is_up and world.may_damage()):
            world.kernel.after(LOOK_MS, self._spoil_tail)
            return
        others = self._others()
        rng.shuffle(others)
        if rng.random() < 0.5:
            # One is down meanwhile; then the others end, and the one with the bad disk comes first.
            self._kill(others[0], 600)
            world.kernel.after(500, self._spoil_now, others[1])
        else:
            self._spoil_now(None)

    def _spoil_now(self, last: SimMember | None) -> None:
        victim, rng = self._victim, self.rng
        if not (victim.is_up and self._world.is_chaotic and self._world.may_damage()):
            return
        wal = victim.wal
        assert wal is not None
        active = wal._writer.active
        path = wal._files.path(active.segment)
        start, end, is_in_use = records.SEGMENT_DATA_START, active.end, wal.promised > 0
        self._kill(victim, rng.choice((50, 300)))
        if last is not None:
            self._kill(last, 1_500)
        if not is_in_use or end == start:
            return
        victim.is_victim = True
        cut = max(start, end - rng.choice(TAILS))
        if self.kind != "mark":
            _zero(path, cut, end)
        if self.kind != "tail":
            _zero(path, records.SYNC_MARK_AT, records.SEGMENT_DATA_START)
            _zero(path.with_name(records.MARK_NAME), 0, records.SYNC_MARK_COPY)
        self._world.record("lie", victim.id, self.kind, cut, end)

    # ---- the directory --------------------------------------------------------------------------

    def _make_copy(self, path: Path) -> None:
        victim = self._victim
        if not self._world.is_chaotic:
            return
        if victim.wal is None or not self._world.may_damage():
            self._world.kernel.after(LOOK_MS, self._make_copy, path)
            return
        shutil.copytree(victim.directory, path)
        state = victim.wal._writer.state
        self._copy = Copy(path, state.promises.log, state.batches)
        for file in victim.directory.iterdir():
            self._copy.identities[file.name] = victim.disk.identity_of(file)
        self._world.record("copy", victim.id)
        if self.kind == "copied":
            # Who is down meanwhile will not know that the copy is too old, and be up before those
            # who do: it shows by itself.
            absent = self.rng.choice(self._others())
            self._kill(absent, 1_000)
        self._world.kernel.after(3 * LOOK_MS, self._put_back)

    def _others(self) -> list[SimMember]:
        members = self._world.members.values()
        return [each for each in members if each is not self._victim and not each.is_out]

    def _put_back(self) -> None:
        """The victim gets the copy once others know on their disks that it is too old: all of them
        if nothing else shows it.
        """
        world, victim, copy = self._world, self._victim, self._copy
        assert copy is not None
        if not world.is_chaotic:
            return
        knowing = [other for other in self._others() if _knows(other, victim, copy)]
        wanted = 1 if self.kind == "copied" else len(self._others())
        if not (victim.is_up and world.may_damage()) or len(knowing) < wanted:
            world.kernel.after(LOOK_MS, self._put_back)
            return
        self._kill(victim, self.rng.choice((50, 300)))
        if self.kind == "copied":
            for other in knowing:
                self._kill(other, 1_500)
        victim.is_victim = True
        victim.disk.forget()
        for file in victim.directory.iterdir():
            file.unlink()
        for file in sorted(copy.path.iterdir()):
            shutil.copy(file, victim.directory)
            if self.kind == "put back":
                # As a snapshot of the volume does: the same files as far as anybody can tell.
                victim.disk.identify(victim.directory / file.name, copy.identities[file.name])
        victim.forget_unnoticed()
        world.record("lie", victim.id, self.kind)


def _knows(other: SimMember, victim: SimMember, copy: Copy) -> bool:
    if other.wal is None:
        return False
    said = other.wal._writer.state.promises.others.get(victim.id)
    return said is not None and said.log == copy.log and said.batch > copy.batches


def _zero(path: Path, start: int, end: int) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.pwrite(descriptor, bytes(end - start), start)
    finally:
        os.close(descriptor)
