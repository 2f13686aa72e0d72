"""A disk without room for a snapshot: the log keeps what it would replace, and nobody ends."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from brokerd.cluster.groups.write_queue import TRIED_MAX
from brokerd.storage.disk import Disk
from tests.integration.cluster_toy import Member, toy_config, until
from tests.ports import free_ports

UID = 700
ENTRIES = 20
GROUPS = TRIED_MAX + 2


class CrowdedDisk(Disk):
    """Other programs have taken what the log does not have already."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = False
        self.refused = 0
        #: Descriptors of snapshots that are being written.
        self.snapshots: set[int] = set()

    def open(self, path: Path, *, create: bool = False) -> int:
        descriptor = super().open(path, create=create)
        if path.name.startswith("snap-"):
            self.snapshots.add(descriptor)
        return descriptor

    def close(self, descriptor: int) -> None:
        self.snapshots.discard(descriptor)
        super().close(descriptor)

    def write_some(self, descriptor: int, data: bytes | memoryview, offset: int) -> int:
        if self.is_full and descriptor in self.snapshots:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write_some(descriptor, data, offset)


def snapshots_of(directory: Path) -> set[int]:
    """The groups of which there is a snapshot, or a part of one."""
    return {int(each.name.split("-")[1], 16) for each in directory.rglob("snap-*")}


async def test_snapshots_wait_for_room_and_the_member_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R-QQ-3: what was confirmed is there, and the next start finds it."""
    config, disk = toy_config(snapshot_entries=ENTRIES, election_ticks_min=10_000), CrowdedDisk()
    config.raft.election_ticks_max = 20_000
    member = Member("a", tmp_path, config, 1, disk)
    member.host._queue._room_s = 0.05
    await member.host.start({}, f"127.0.0.1:{free_ports(1)[0]}")
    for uid in range(UID, UID + GROUPS):
        member.open_group(uid, ["a"])
    disk.is_full = True
    with caplog.at_level(logging.WARNING):
        for number in range(ENTRIES + 5):
            for uid in range(UID, UID + GROUPS):
                answer = await member.client.request(uid, b"k%d=%d" % (number, number), 30)
                assert answer == b"%d" % (number + 1)
        # Each more than once, in turns.
        await until(lambda: disk.refused >= 3 * GROUPS)
    assert "no room for snapshots" in caplog.text
    assert snapshots_of(tmp_path) == set()
    assert member.events.failures == []
    assert all(member.host.status_of(uid).snapshot == 0 for uid in range(UID, UID + GROUPS))
    # One that goes meanwhile is not written any more.
    member.host.close_group(UID, forget=True)
    disk.is_full = False
    rest = range(UID + 1, UID + GROUPS)
    await until(lambda: all(member.host.status_of(uid).snapshot >= ENTRIES for uid in rest))
    assert snapshots_of(tmp_path) == set(rest)
    await member.close()
    member = Member("a", tmp_path, config, 2)
    await member.host.start({}, f"127.0.0.1:{free_ports(1)[0]}")
    machines = [member.open_group(uid, ["a"]) for uid in rest]
    await until(lambda: all(len(machine.values) == ENTRIES + 5 for machine in machines))
    await member.close()
