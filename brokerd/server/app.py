"""Composition root: builds one member from its configuration, starts it, stops it.

Order of the start: log, peers, the cluster (joining.py), catalog leader, topology, listeners.  AMQP
clients are let in only when this member knows the topology as of its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvloop

from brokerd import __version__
from brokerd.cluster import config as cluster_config
from brokerd.cluster.errors import ClusterError
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.group_clock import wall_clock_ms
from brokerd.cluster.groups.host import Host
from brokerd.config import BrokerConfig, ConfigError
from brokerd.core import profiles
from brokerd.core.catalog import catalog_commands, features
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server import logs, memory_release
from brokerd.server.access.password_checker import PasswordChecker
from brokerd.server.access.tls_listener import ListenError
from brokerd.server.alarm_monitor import AlarmMonitor
from brokerd.server.broker import Broker
from brokerd.server.catalog import keyring, member_states
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.endpoints import Doors
from brokerd.server.health import HealthState
from brokerd.server.members import identity, kept_catalog, leadership, repair
from brokerd.storage.aside import FOLDER, AsideFiles
from brokerd.storage.config import WalConfig
from brokerd.storage.errors import CorruptLog, StorageError, StorageFailed
from brokerd.storage.wal import WriteAheadLog

log = logging.getLogger(__name__)

#: sysexits.h: EX_CONFIG for what the user can mend, EX_IOERR for the disk.
EXIT_CONFIG = 78
EXIT_DISK = 74
#: EX_TEMPFAIL: nothing is wrong with the member, it only has to start again.
EXIT_AGAIN = 75
#: A stopping member hands its leaderships over for at most this long.
STOP_SECONDS = 15.0
POLL_S = 0.1


def run(config: BrokerConfig) -> int:
    """Run a member until it is told to stop; return the process's exit status."""
    memory_release.settle_allocator()
    logs.set_up(config.log)
    _raise_descriptor_limit()
    try:
        status: int = uvloop.run(_serve(config))
        return status
    except (ConfigError, ListenError, StorageError, ClusterError, profiles.UnknownProfile) as error:
        log.error("%s", error)
        print(f"brokerd: {error}", file=sys.stderr)
        is_disk = isinstance(error, StorageFailed | CorruptLog)
        return EXIT_DISK if is_disk else EXIT_CONFIG


def _raise_descriptor_limit() -> None:
    """Take as many descriptors as the system lets us: it starts with few for select's sake."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("keeping the limit of %d descriptors: %s", soft, error)


async def _serve(config: BrokerConfig) -> int:
    began = time.monotonic()
    async with _member(config) as broker:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, broker.stopping.set)
        starting = loop.create_task(_open_doors(broker, began))
        stopping = loop.create_task(broker.stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            # A start that failed raises here and ends the process.
            doors = starting.result()
            await stopping
            # Nobody new comes; leaders elsewhere serve those who are here until they are sent away.
            await doors.shut()
            await leadership.hand_over(broker, STOP_SECONDS)
            await doors.close()
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        stopping.cancel()
    if isinstance(broker.failure, kept_catalog.BeginsAnew):
        log.warning("stopped: %s", broker.failure)
        return EXIT_AGAIN
    if broker.failure is not None:
        log.critical("the disk failed, this member ends: %s", broker.failure)
        return EXIT_DISK
    if broker.removed is not None:
        raise broker.removed
    log.info("stopped")
    return 0


@contextlib.asynccontextmanager
async def _member(config: BrokerConfig) -> AsyncIterator[Broker]:
    """Build everything that the start needs; tear it down in reverse."""
    node = NodeId(config.node_name)
    incarnation = identity.claim(config.data_dir, node, time.time_ns() // 1_000_000)
    print(f"brokerd {__version__}: member {node}, data in {config.data_dir}", file=sys.stderr)
    profile = profiles.configured(config.compat.profile, config.compat.switches)
    wal = WriteAheadLog.open(
        config.data_dir / "wal",
        WalConfig(
            node_id=str(node),
            segment_bytes=config.storage.segment_bytes,
            cache_bytes=config.storage.cache_bytes,
        ),
        log.warning,
    )
    checker = PasswordChecker(config.auth.scrypt_log2_n)
    try:
        aside = AsideFiles(config.data_dir / FOLDER)
        kept_catalog.begin_anew(wal, aside)
        rng = random.Random()
        host_config = _host_config(config)
        host = Host(node, incarnation, wal, host_config, rng, wall_clock_ms, aside)
        groups = GroupClient(host, rng, incarnation=incarnation)
        keys = keyring.load(config)
        broker = Broker(config, profile, checker, host, groups, keys, rng)
        host.serve(broker.events)
        broker.queues.caches.limit_log_cache = wal.limit_cache
        broker.queues.caches.log_cache_bytes = wal.cached_bytes
        joining = broker.joining
        bind = _peer_bind(config)
        try:
            await host.start({}, bind, joining.describe)
        except OSError as error:
            raise ListenError(f"cannot listen on {bind} for peers: {error}") from error
        known = wal.log(CATALOG_GROUP)
        await joining.open_if_data(bool(known.initial_state()[1].voters or known.last_index()))
        try:
            yield broker
        finally:
            await leadership.hand_over(broker, STOP_SECONDS)
            broker.close()
            await host.stop()
    finally:
        wal.close()
        checker.close()


def _host_config(config: BrokerConfig) -> cluster_config.HostConfig:
    tls = config.peer_tls
    files = None
    if tls.cert_file:
        files = cluster_config.TlsFiles(tls.cert_file, tls.key_file or tls.cert_file, tls.ca_file)
    return cluster_config.HostConfig(
        cluster_id=config.cluster.name,
        secret=config.cluster.secret,
        tls=files,
        heartbeat_ms=config.cluster.heartbeat_ms,
        suspicion_ms=config.cluster.suspect_after_ms,
    )


def _peer_bind(config: BrokerConfig) -> str:
    """A lone member's peer port is on loopback only: nobody else has business there."""
    port = config.port("peer")
    host = config.node.bind
    if not host:
        is_alone = not (config.cluster.members or config.cluster.address)
        host = "127.0.0.1" if is_alone else "[::]"
    elif ":" in host:
        host = f"[{host}]"
    return f"{host}:{port}"


async def _open_doors(broker: Broker, began: float) -> Doors:
    from brokerd.server import health, http_server, metrics

    config = broker.config
    doors = Doors(broker)
    state = doors.state
    # Admin and health answer while the member is still waiting for a majority.
    await doors.grpc.start(config)
    if port := config.port("http"):
        app = health.make_app(state, lambda: metrics.render(broker), config.data_dir / "results")
        doors.http = http_server.HttpServer(app)
        try:
            await doors.http.start(config.node.bind or None, port)
        except OSError as error:
            raise ListenError(f"cannot listen on port {port} for HTTP: {error}") from error
    await _join(broker, state)
    state.started = True
    monitor = AlarmMonitor(broker)
    broker.monitor = monitor
    monitor.check()
    broker.spawn(monitor.run())
    doors.telemetry.start()
    broker.tracer.load()
    broker.topology_listeners.append(broker.tracer.topology_changed)
    await doors.open()
    broker.doors = doors
    gc.collect()
    gc.freeze()
    await monitor.breakdown.started()
    # Fewer, later collections: per-message objects are in no cycles (hot-path.md rule 8).
    gc.set_threshold(100_000, 50, 100)
    log.info("ready after %.2f s", time.monotonic() - began)
    print(f"brokerd is ready after {time.monotonic() - began:.2f} s", file=sys.stderr)
    return doors


async def _join(broker: Broker, state: HealthState) -> None:
    """Find the cluster, wait for the catalog, make its first objects, open this member's queues."""
    joining = broker.joining
    joining.say = functools.partial(setattr, state, "reason")
    broker.spawn(broker.kept_aside.watch())
    await joining.settle()
    state.reason = "waiting for a majority of the members"
    broker.spawn(broker.catalog_members.run())
    while not (broker.view.cluster_id or joining.may_found):  # noqa: ASYNC110
        # The catalog comes from its leader, and nothing tells when it is here.
        await asyncio.sleep(POLL_S)
    waiting = broker.spawn(_wait_with_contradiction(broker, state))
    while True:
        try:
            if not broker.view.cluster_id:
                await broker.write(await _bootstrap(broker))
            started = await broker.write(
                catalog_commands.node_started(broker.node, broker.incarnation, features.names())
            )
            if started["code"] == catalog_commands.REFUSED:
                raise ConfigError(f"{started['text']}; start the version that it ran before")
            break
        except Unavailable:
            if not broker.kept_aside.is_catalog_contradicted:
                log.info("waiting for a majority of the members to answer")
    waiting.cancel()
    operations = joining.first_records()
    # Maintenance ends with the restart that it was for.
    if member_states.state_of(broker.view, broker.node) == member_states.MAINTENANCE:
        setting = catalog_commands.member_state(broker.node)
        operations.append(catalog_commands.set_setting(setting, None))
    if operations:
        await broker.write({"do": "batch", "operations": operations})
    broker.load_topology()
    if broker.refill.is_on:
        state.reason = "the disk of this member was empty and is being refilled"
    await broker.refill.started()
    replicas = broker.host
    broken = repair.Repair(broker, replicas, replicas.refilling.lacking, broker.spawn)
    broker.spawn(repair.watch(broken))
    broker.spawn(broker.stuck.run())
    joining.watch()


async def _wait_with_contradiction(broker: Broker, state: HealthState) -> None:
    """A start with a catalog that its leader contradicts waits until somebody decides: probes shall
    not end this member, and its replicas of queues are as good as ever.
    """
    while not broker.kept_aside.is_catalog_contradicted:  # noqa: ASYNC110
        # Nothing tells of it here.
        await asyncio.sleep(POLL_S)
    state.started = True
    state.reason = "the catalog here is contradicted (brokerctl list_kept_aside)"
    log.error("not ready: %s", state.reason)
    broker.load_topology()


async def _bootstrap(broker: Broker) -> dict[str, Any]:
    """Return the operation that makes a new cluster; of several proposers the first one wins."""
    settings = broker.config.auth
    users = []
    if settings.create_guest:
        users.append(
            {
                "name": "guest",
                "tags": ["administrator"],
                "password_hash": await broker.checker.hash("guest"),
            }
        )
    password = settings.admin_password
    if settings.admin_password_file:
        try:
            # Once, at the first start, from a small file.
            password = Path(settings.admin_password_file).read_text().rstrip("\n")  # noqa: ASYNC240
        except OSError as error:
            raise ConfigError(
                f"cannot read auth.admin_password_file {settings.admin_password_file}: "
                f"{error.strerror}"
            ) from error
    if settings.admin_user:
        if not password:
            raise ConfigError("auth.admin_user needs auth.admin_password or …_password_file")
        users.append(
            {
                "name": settings.admin_user,
                "tags": ["administrator"],
                "password_hash": await broker.checker.hash(password),
            }
        )
    return catalog_commands.bootstrap(
        os.urandom(16).hex(), broker.config.cluster.name, users, features=features.names()
    )
