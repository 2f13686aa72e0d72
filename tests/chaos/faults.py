"""The faults of the chaos matrix: each is injected at `begin` and undone at `end`.

What a minority suffers, at most: one member, or a partition.  After `end` every member runs.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.chaos.cluster import ClusterError, Node, World, start_all
from tests.chaos.load import wait_until
from tests.chaos.partitions import SHAPES

#: The disk of a member in the disk-full configurations.
TMPFS_BYTES = 700 << 20
#: Below the disk alarm of both brokers (50 MB).
NEARLY_FULL_BYTES = 20 << 20
SYNC_DELAY_MS = 300
CLOCK_JUMP_S = 3600
#: A cluster may be in no state to let a member go, for a moment.
FORGET_S = 60.0


class Fault:
    """One kind of fault; an object is used for one run and injects it many times."""

    #: How long it lasts and how long the cluster is left alone afterwards.
    lasts_s = 15.0
    calm_s = 10.0
    needs_namespaces = False
    needs_shim = False
    needs_root = False
    #: One member's log may lack what it had, until the others have refilled it.
    costs_a_log = False

    def begin(self, world: World) -> str:
        """Inject; say what was done."""
        raise AssertionError("each fault has its own")

    def end(self, world: World) -> None:
        """Undo; `start_all` follows."""


class Partition(Fault):
    """Members that do not hear each other."""

    lasts_s, calm_s = 12.0, 8.0
    needs_namespaces = True

    def __init__(self, shape: str) -> None:
        self._shape = shape

    def begin(self, world: World) -> str:
        cuts = SHAPES[self._shape](len(world.nodes), world.chance)
        world.cluster.network.cut(cuts)
        return " ".join(f"{a}>{b}" for a, b in sorted(cuts))

    def end(self, world: World) -> None:
        world.cluster.network.heal()


class OneNode(Fault):
    """Something happens to one member, drawn anew each time."""

    _victim: Node

    def begin(self, world: World) -> str:
        self._victim = world.any_node()
        self.strike(world, self._victim)
        return self._victim.name

    def strike(self, world: World, node: Node) -> None:
        """Do it."""


class Kill(OneNode):
    """SIGKILL, and away for a while."""

    lasts_s, calm_s = 6.0, 6.0

    def strike(self, world: World, node: Node) -> None:
        node.kill()


class Freeze(OneNode):
    """SIGSTOP, then SIGCONT: a member that does not know how long it was away."""

    def strike(self, world: World, node: Node) -> None:
        node.signal(signal.SIGSTOP)

    def end(self, world: World) -> None:
        self._victim.signal(signal.SIGCONT)


class SlowSync(OneNode):
    """Every sync of one member takes SYNC_DELAY_MS longer."""

    needs_shim = True

    def strike(self, world: World, node: Node) -> None:
        assert node.control is not None
        node.control.set(sync_delay_ms=SYNC_DELAY_MS)

    def end(self, world: World) -> None:
        assert self._victim.control is not None
        self._victim.control.calm()


class DiskStall(SlowSync):
    """No sync of one member returns, until all do (ADR 68)."""

    lasts_s, calm_s = 20.0, 10.0

    def strike(self, world: World, node: Node) -> None:
        assert node.control is not None
        node.control.set(sync_stalls=True)


class Eio(SlowSync):
    """Writes and syncs of one member fail with EIO."""

    def strike(self, world: World, node: Node) -> None:
        assert node.control is not None
        node.control.set(sync_errno=errno.EIO, write_errno=errno.EIO)


class ClockJump(SlowSync):
    """The wall clock of one member is wrong by up to an hour, then right again."""

    def strike(self, world: World, node: Node) -> None:
        assert node.control is not None
        seconds = world.chance.choice([-1, 1]) * world.chance.uniform(1, CLOCK_JUMP_S)
        node.control.set(clock_offset_ms=int(seconds * 1000))


class DiskFull(OneNode):
    """The disk of one member fills up: first below the alarm's limit, then completely."""

    needs_root = True
    lasts_s, calm_s = 16.0, 12.0

    @staticmethod
    def mount(node: Node) -> None:
        """Give a member a small disk of its own."""
        options = f"size={TMPFS_BYTES}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(node.data)], check=True)

    @staticmethod
    def unmount(node: Node) -> None:
        """Take it away again."""
        subprocess.run(["umount", "-l", str(node.data)], check=False)

    def _filler(self) -> Path:
        return self._victim.data / "filler"

    def _fill(self, leave_bytes: int) -> None:
        space = os.statvfs(self._victim.data)
        free = space.f_bavail * space.f_frsize - leave_bytes
        with self._filler().open("ab") as filler:
            if free > 0:
                os.posix_fallocate(filler.fileno(), filler.tell(), free)

    def strike(self, world: World, node: Node) -> None:
        self._fill(NEARLY_FULL_BYTES)
        # Publishers are blocked now; what they had sent before may still be written.
        wait_until(lambda: False, self.lasts_s / 2)
        self._fill(0)

    def end(self, world: World) -> None:
        self._filler().unlink(missing_ok=True)


class BitFlip(OneNode):
    """A member is killed, one bit of its newest log files is flipped, and it starts again."""

    lasts_s, calm_s = 1.0, 12.0
    costs_a_log = True

    def strike(self, world: World, node: Node) -> None:
        node.kill()
        files = [
            path for path in world.cluster.newest_log_files(node) if written_bytes(path) > 1000
        ]
        if not files:
            world.notes.append(f"{node.name} has no log file to damage")
            return
        path = files[-1]
        # Not the last hundred bytes: a torn tail is a different fault.
        offset = world.chance.randrange(64, written_bytes(path) - 100)
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1 << world.chance.randrange(8)]))


def written_bytes(path: Path) -> int:
    """Return how much of a file is in use: brokers fill new log files with zeros."""
    with path.open("rb") as file:
        return len(file.read().rstrip(b"\0"))


class RollingRestart(Fault):
    """Every member is stopped with SIGTERM and started again, one after the other."""

    lasts_s, calm_s = 0.0, 8.0

    def begin(self, world: World) -> str:
        for node in world.nodes:
            if not node.stop():
                world.notes.append(f"{node.name} did not end after SIGTERM")
            start_all([node])
            # A moment for its replicas to catch up, as a careful operator leaves one.
            wait_until(lambda: False, 3.0)
        return "all, one by one"


class Membership(Fault):
    """A member's replicas are taken out of all queues, and given back later."""

    lasts_s, calm_s = 8.0, 8.0
    costs_a_log = True
    _victim: Node

    def begin(self, world: World) -> str:
        self._victim = world.any_node()
        for queue in world.queues:
            self._do(world, "leave_queue", queue)
        return self._victim.name

    def end(self, world: World) -> None:
        for queue in world.queues:
            self._do(world, "join_queue", queue)

    def _do(self, world: World, what: str, queue: str) -> None:
        try:
            getattr(world.cluster, what)(self._victim, queue)
        except ClusterError as error:
            world.notes.append(f"{what} {self._victim.name} {queue}: {error}")


class JoinLeave(OneNode):
    """A member leaves the cluster, alive or dead, and comes back as a new one with nothing."""

    lasts_s, calm_s = 10.0, 8.0
    costs_a_log = True

    def strike(self, world: World, node: Node) -> None:
        if world.chance.random() < 0.5:
            node.kill()
        # One that runs ends when it learns of it.
        node.is_meant_to_run = False
        said = ""

        def has_left() -> bool:
            nonlocal said
            try:
                world.cluster.forget(node)
            except ClusterError as error:
                said = str(error)
                return False
            return True

        if not wait_until(has_left, FORGET_S, 1.0):
            raise ClusterError(said)
        if said:
            world.notes.append(f"{node.name} was let go after: {said}")
        if not wait_until(lambda: not node.is_running(), FORGET_S):
            raise ClusterError(f"{node.name} was taken out of the cluster and goes on")
        node.kill()
        for path in node.data.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def end(self, world: World) -> None:
        start_all([self._victim])
        world.cluster.grow(self._victim)


class KillAll(Fault):
    """SIGKILL to all members at once, as when the power goes (the page cache stays)."""

    lasts_s, calm_s = 1.0, 12.0

    def begin(self, world: World) -> str:
        for node in world.chance.sample(world.nodes, len(world.nodes)):
            node.kill()
        return "all"


class Nothing(Fault):
    """No fault: what the load alone shows."""

    lasts_s, calm_s = 1.0, 4.0

    def begin(self, world: World) -> str:
        return "nothing"


def _partition(shape: str) -> Callable[[], Fault]:
    return lambda: Partition(shape)


#: The 16 families of the nightly matrix, each with 3 and with 5 members.
MATRIX: dict[str, Callable[[], Fault]] = {
    **{shape: _partition(shape) for shape in SHAPES},
    "kill": Kill,
    "freeze": Freeze,
    "slow-sync": SlowSync,
    "disk-stall": DiskStall,
    "disk-full": DiskFull,
    "eio": Eio,
    "bit-flip": BitFlip,
    "clock-jump": ClockJump,
    "membership": Membership,
    "join-leave": JoinLeave,
    "rolling-restart": RollingRestart,
}
FAULTS: dict[str, Callable[[], Fault]] = MATRIX | {"kill-all": KillAll, "none": Nothing}
