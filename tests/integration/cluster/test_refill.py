"""Disks that end in the middle of something: a snapshot on its way in, a write that has no room."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from brokerd.amqp import methods
from brokerd.storage.errors import StorageFailed
from brokerd.storage.staging import StagedChunk
from tests.integration.cluster.test_cluster_hosts import NAMES, UID, Cluster
from tests.integration.cluster_toy import Member, toy_config, until
from tests.integration.members import cluster
from tests.integration.raw_client import RawClient, publish

pytestmark = pytest.mark.timeout(240)

#: Generous: two busy cores, and a disk that others use.
SECONDS = 60.0
VALUE = b"v" * 100_000
KEYS = 80


async def test_a_follower_that_ends_within_a_refill_gets_it_again(tmp_path: Path) -> None:
    """8 MB of live entries where 1 MiB fits into memory; what had come of the first attempt counts
    for nothing (design/replication.md §2.8).
    """
    config = toy_config(snapshot_entries=20)
    config.transport.chunk_bytes = 20_000
    config.transport.snapshot_bytes_max = 1 << 20
    toys = Cluster(tmp_path, config)
    for name in NAMES:
        (await toys.start(name)).open_group(UID, NAMES)
    leader = await toys.leader()
    behind = next(m for m in toys.all() if m is not leader).node
    await toys.stop(behind)
    for number in range(KEYS):
        await leader.client.request(UID, b"k%d=%s" % (number, VALUE), SECONDS)
    await until(lambda: leader.host.status_of(UID).snapshot >= KEYS - 20, SECONDS)

    again = await toys.start(behind)
    is_under_way = hold_the_writer(again)
    again.open_group(UID, NAMES)
    await until(is_under_way.is_set, SECONDS)
    await toys.stop(behind)

    again = await toys.start(behind)
    assert again.wal.log(UID).snapshot_index == 0
    assert again.wal.log(UID).last_index() < KEYS
    assert not again.wal.log(UID).damaged
    machine = again.open_group(UID, NAMES)
    await until(lambda: machine.count == KEYS, SECONDS)
    for number in range(KEYS):
        index = machine.entries[f"k{number}"]
        assert again.host.entry_data(UID, index) == b"k%d=%s" % (number, VALUE)
    # And it has all of it after one more start, and can serve others.
    await toys.stop(behind)
    again = await toys.start(behind)
    machine = again.open_group(UID, NAMES)
    await until(lambda: machine.count == KEYS, SECONDS)
    assert again.host.entry_data(UID, machine.entries["k0"]) == b"k0=" + VALUE
    for name in NAMES:
        await toys.stop(name)


def hold_the_writer(member: Member) -> threading.Event:
    """Have the writer thread stop behind some of a snapshot's entries, as a killed process does.

    Otherwise it would do what it was given already, and that may be all of the snapshot.
    """
    stage, queue, is_under_way = member.wal.stage, member.host._queue, threading.Event()
    pause = threading.Event()

    def stage_and_end(chunks: Sequence[StagedChunk]) -> None:
        stage(chunks)
        is_under_way.set()
        for _ in range(int(SECONDS / 0.01)):
            if queue._has_failed:
                break
            pause.wait(0.01)
        raise StorageFailed("the process has ended")

    member.wal.stage = stage_and_end  # type: ignore[method-assign]
    return is_under_way


def test_a_member_that_ended_for_its_disk_starts_again_when_there_is_room(tmp_path: Path) -> None:
    """design/replication.md §3: 74, and nothing that was confirmed before is lost."""
    with cluster(tmp_path, 1, BROKERD_STORAGE_SEGMENT_BYTES="1048576") as [member]:
        raw = RawClient(member.amqp_port)
        raw.open(1)
        raw.declare(1, "kept", durable=True)
        raw.send(1, methods.ConfirmSelect())
        raw.expect(methods.ConfirmSelectOk)
        raw.send(1, publish(1, "", "kept", b"confirmed"))
        assert raw.expect(methods.BasicAck).delivery_tag == 1
        assert member.process is not None
        limit = 300_000
        resource.prlimit(member.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        raw.send(1, publish(1, "", "kept", bytes(2_000_000)))
        assert member.process.wait(SECONDS) == 74
        raw.close()
        member.start()
        member.wait_ready()
        connection = member.connect()
        channel = connection.channel()
        assert channel.basic_get("kept", auto_ack=True)[2] == b"confirmed"
        connection.close()


async def test_a_damaged_member_of_a_quiet_group_votes_again_without_waiting_for_a_timer(
    tmp_path: Path,
) -> None:
    """What it handled last made it whole; nobody sends anything more, and no look is due (G8)."""
    toys = Cluster(tmp_path, toy_config(collect_interval_ms=600_000))
    for name in NAMES:
        (await toys.start(name)).open_group(UID, NAMES)
    leader = await toys.leader()
    for number in range(30):
        await leader.client.request(UID, b"k%d=%s" % (number, b"v" * 200), SECONDS)
    hurt = next(member for member in toys.all() if member is not leader)
    await until(lambda: hurt.machines[UID].count == 30, SECONDS)
    for member in toys.all():
        await toys.stop(member.node)
    segment = max((toys.directory / hurt.node).glob("*.log"), key=os.path.getsize)
    image = bytearray(segment.read_bytes())
    image[image.rfind(b"k20=vvv") + 10] ^= 0xFF
    segment.write_bytes(image)
    for name in NAMES:
        (await toys.start(name)).open_group(UID, NAMES)
    again = next(member for member in toys.all() if member.node == hurt.node)
    assert again.host.status_of(UID).is_damaged
    # Nobody looks at its state meanwhile, which would have it apply what it holds.
    driver = again.host.driver_of(UID)
    assert driver is not None
    await until(lambda: driver.health.may_vote, SECONDS)
    for name in NAMES:
        await toys.stop(name)
