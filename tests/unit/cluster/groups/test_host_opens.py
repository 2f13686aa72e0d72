"""What a replica is trusted with when its group is opened (cluster/groups/host.py)."""

from __future__ import annotations

import random
from pathlib import Path

from brokerd.cluster.config import HostConfig
from brokerd.cluster.groups.host import Host
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.messages import CATALOG_GROUP, Configuration, NodeId
from brokerd.storage.wal import WalConfig, WriteAheadLog

A, B, C = (NodeId(name) for name in "abc")
UID = 7


async def test_a_log_that_has_forgotten_something_is_trusted_with_what_is_made_now_alone(
    tmp_path: Path,
) -> None:
    """G8: a start opens groups that the catalog, whole by then, has named for long."""
    tmp_path.joinpath("wal").mkdir()
    wal = WriteAheadLog.open(tmp_path / "wal", WalConfig(node_id="a"), lambda _: None)
    wal.bootstrap([(CATALOG_GROUP, Configuration((A, B, C)))])
    wal.regressions.write(wal.regressions.begin(), wal.regressions.promises())
    wal.mark_refilled(CATALOG_GROUP)
    wal.refilled(CATALOG_GROUP)
    host = Host(A, 1, wal, HostConfig(), random.Random(1))
    host.open_group(CATALOG_GROUP, [A, B, C], CatalogMachine())
    host.open_group(UID, [A, B, C], CatalogMachine())
    host.open_group(UID + 1, [A, B, C], CatalogMachine(), is_made_now=True)
    uids = (CATALOG_GROUP, UID, UID + 1)
    assert [host.status_of(uid).is_damaged for uid in uids] == [False, True, False]
    await host.stop()
    wal.close()


async def test_who_votes_in_a_group_whose_members_are_not_known(tmp_path: Path) -> None:
    """G8: a second life may have forgotten its first; one of the first members has no other life,
    and without its vote one more that is damaged would be one too many (seed 17000223).
    """
    tmp_path.joinpath("wal").mkdir()
    wal = WriteAheadLog.open(tmp_path / "wal", WalConfig(node_id="a"), lambda _: None)
    host = Host(A, 1, wal, HostConfig(), random.Random(1))
    host.open_group(UID, [A, B, C], CatalogMachine())
    host.open_group(UID + 1, [], CatalogMachine())
    host.open_group(UID + 2, [], CatalogMachine(), is_first=True)
    found = [host.status_of(UID + number) for number in range(3)]
    assert [status.is_suspected for status in found] == [False, True, False]
    assert [status.members.voters for status in found] == [(A, B, C), (), ()]
    await host.stop()
    wal.close()


async def test_only_the_log_of_a_group_that_lives_here_alone_is_read(tmp_path: Path) -> None:
    """What others hold as well they count; what is in memory has no log; and a replica that has
    stopped would stop whoever looks.
    """
    tmp_path.joinpath("wal").mkdir()
    wal = WriteAheadLog.open(tmp_path / "wal", WalConfig(node_id="a"), lambda _: None)
    alone, shared, stopped, volatile, unknown = range(UID, UID + 5)
    wal.bootstrap([(alone, Configuration((A,))), (shared, Configuration((A, B)))])
    wal.bootstrap([(stopped, Configuration((A,)))])
    host = Host(A, 1, wal, HostConfig(), random.Random(1))
    host.open_group(stopped, [A], QueueMachine())
    host.open_group(volatile, [A], QueueMachine(), volatile=True)
    driver = host.driver_of(stopped)
    assert driver is not None
    driver.error = RuntimeError("an invariant")
    uids = (alone, shared, stopped, volatile, unknown)
    found = [host.read_alone(uid, QueueMachine()) for uid in uids]
    assert found == [True, False, False, False, False]
    # Nobody begins a log by asking.
    assert wal.groups() == [alone, shared, stopped]
    await host.stop()
    wal.close()
