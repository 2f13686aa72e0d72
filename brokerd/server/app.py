"""One member from start to stop; composition.py builds it.

Order of the start: log, peers, catalog and topology (start.py), listeners.  AMQP clients are let in
only when this member knows the topology as of its start.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator

import uvloop

from brokerd import __version__, compiled
from brokerd.cluster import config as cluster_config
from brokerd.cluster.errors import ClusterError
from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.group_clock import wall_clock_ms
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import listening
from brokerd.cluster.peer.certificate_files import UnusableFiles
from brokerd.config import BrokerConfig, ConfigError
from brokerd.core import profiles
from brokerd.raft.messages import NodeId
from brokerd.server import banner, composition, logs, service_manager, start
from brokerd.server.access import proxied_listener
from brokerd.server.access.password_checker import PasswordChecker
from brokerd.server.access.tls_listener import ListenError, listener_context
from brokerd.server.catalog import boot_definitions, keyring
from brokerd.server.catalog.boot_definitions import Definitions
from brokerd.server.composition import CoreServices, Dependencies, Fronts, Member
from brokerd.server.members import identity, kept_catalog
from brokerd.server.memory import release
from brokerd.storage.aside import FOLDER, AsideFiles
from brokerd.storage.config import WalConfig
from brokerd.storage.errors import CorruptLog, DirectoryLocked, StorageError, StorageFailed
from brokerd.storage.wal import WriteAheadLog

log = logging.getLogger(__name__)

#: sysexits.h: EX_CONFIG for what the user can mend, EX_IOERR for the disk.
EXIT_CONFIG = 78
EXIT_DISK = 74
#: EX_TEMPFAIL: nothing is wrong with the member, it only has to start again.
EXIT_AGAIN = 75
#: A stopping member hands its leaderships over for at most this long.
STOP_SECONDS = 15.0


def run(config: BrokerConfig) -> int:
    """Run a member until it has to stop; return the process's exit status."""
    release.settle_allocator()
    logs.set_up(config.log)
    _raise_descriptor_limit()
    try:
        status: int = uvloop.run(_serve(identity.named(config)))
        return status
    except (ConfigError, ListenError, StorageError, ClusterError, profiles.UnknownProfile) as error:
        if isinstance(error, DirectoryLocked):
            error = ConfigError(f"{error}; a second member needs a --node-name and --port-offset")
        if config.log.format == "text":
            print(f"brokerd: {error}", file=sys.stderr)
        else:
            log.error("%s", error)
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
    definitions = boot_definitions.read(
        config.definitions.path, skips_unsupported=config.definitions.skip_unsupported
    )
    async with _member(config) as (member, fronts):
        lifecycle = member.base.lifecycle
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, lifecycle.stopping.set)
        starting = loop.create_task(_start(member, fronts, definitions, began))
        stopping = loop.create_task(lifecycle.stopping.wait())
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            # A start that failed raises here and ends the process.
            starting.result()
            await stopping
        else:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
        service_manager.notify(service_manager.STOPPING)
        # Clients connect before the start is complete: they are notified, and what they own goes.
        if lifecycle.has_started:
            await _stop(member, fronts)
        stopping.cancel()
    failure = lifecycle.failure
    if isinstance(failure, kept_catalog.BeginsAnew):
        log.warning("stopped: %s", failure)
        return EXIT_AGAIN
    if failure is not None:
        log.critical("the disk failed, this member ends: %s", failure)
        return EXIT_DISK
    if lifecycle.removal is not None:
        raise lifecycle.removal
    log.info("stopped")
    return 0


@contextlib.asynccontextmanager
async def _member(config: BrokerConfig) -> AsyncIterator[tuple[Member, Fronts]]:
    """Build everything that the start needs; tear it down in reverse."""
    node = NodeId(config.node_name)
    incarnation = identity.claim(config.data_dir, node, time.time_ns() // 1_000_000)
    running = f"brokerd {__version__} ({compiled.form()})"
    print(f"{running}: member {node}, data in {config.data_dir}", file=sys.stderr)
    if compiled.why_python():
        log.warning("plain Python runs: %s", compiled.why_python())
    elif compiled.advice():
        log.info("plain Python runs; %s", compiled.advice())
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
    is_for_rabbitmq = config.auth.password_hashing != "scrypt"
    checker = PasswordChecker(config.auth.scrypt_log2_n, is_for_rabbitmq=is_for_rabbitmq)
    try:
        aside = AsideFiles(config.data_dir / FOLDER)
        kept_catalog.begin_anew(wal, aside)
        rng = random.Random()
        host_config = _host_config(config)
        host = Host(node, incarnation, wal, host_config, rng, wall_clock_ms, aside)
        groups = GroupClient(host, rng, incarnation=incarnation)
        keys = keyring.load(config)
        member = composition.build(
            Dependencies(
                config=config,
                profile=profile,
                wal=wal,
                host=host,
                groups=groups,
                checker=checker,
                keyring=keys,
                rng=rng,
            )
        )
        fronts = composition.build_fronts(member)
        host.serve(member.events)
        bind = _peer_bind(config)
        try:
            await host.start({}, bind, member.members.joining.describe)
        except OSError as error:
            raise ListenError(str(error)) from error
        await start.open_catalog(member, wal)
        try:
            yield member, fronts
        finally:
            await member.members.leadership.hand_over(STOP_SECONDS)
            member.base.tasks.cancel()
            member.members.membership.close()
            member.access.wheel.close()
            await host.stop()
            await member.base.audit.close()
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
    host = config.peer_host
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return f"{host}:{config.port('peer')}"


async def _start(
    member: Member, fronts: Fronts, definitions: Definitions | None, began: float
) -> None:
    base = member.base
    config, lifecycle = base.config, base.lifecycle
    # Admin and health answer while the member is still waiting for a majority.
    await fronts.grpc.start(config)
    if port := config.port("http"):
        try:
            await fronts.http.start(config.node.bind or None, port)
        except OSError as error:
            reason = listening.in_words(error)
            raise ListenError(f"cannot listen on port {port} for HTTP: {reason}") from error
    await _open_management(member, fronts)
    await start.join(member, definitions)
    lifecycle.health.started = True
    fronts.monitor.check()
    base.tasks.spawn(fronts.monitor.run())
    base.tasks.spawn(fronts.rates.run())
    fronts.telemetry.start()
    await fronts.endpoints.open()
    lifecycle.has_started = True
    # From now on those alone whom the catalog names.
    member.members.joining.dial_members()
    gc.collect()
    gc.freeze()
    await fronts.monitor.breakdown.started()
    # Fewer, later collections: per-message objects are in no cycles (hot-path.md rule 8). Closed
    # connections are in some, and each of them may wait for a collection.
    gc.set_threshold(25_000, 50, 100)
    log.info("ready after %.2f s", time.monotonic() - began)
    await _log_banner(base, f"brokerd is ready after {time.monotonic() - began:.2f} s")
    service_manager.notify(service_manager.READY)


async def _log_banner(base: CoreServices, first: str) -> None:
    """Tell the person who started it what there is; a program that reads JSON has the log."""
    config, view = base.config, base.catalog.view
    guest = view.user(banner.GUEST)
    is_guest = guest is not None and await base.checker.check(guest.password_hash, banner.GUEST)
    users = sorted(record.name for record in view.records("user"))
    anonymous = config.auth.anonymous_login_user
    if anonymous and anonymous not in users:
        log.warning(
            "auth.anonymous_login_user names '%s', and there is no such user: clients without "
            "credentials are refused until it is added",
            anonymous,
        )
    more = banner.lines(config, users, guest_is_guest=is_guest)
    print("\n".join([first, *(more if config.log.format == "text" else [])]), file=sys.stderr)


async def _open_management(member: Member, fronts: Fronts) -> None:
    """Listen for the management API; logins are refused with a 503 until the catalog is known."""
    config = member.base.config
    host = config.node.bind or None
    trusted = proxied_listener.networks(config.proxy_protocol.trusted)
    try:
        if port := config.port("management"):
            await fronts.management.start(host, port, trusted=trusted)
        if config.tls.cert_file and (port := config.port("management_tls")):
            context = listener_context("https", config.tls)
            member.access.certificate_files.append(context.files)
            await fronts.management.start(host, port, context, trusted)
    except OSError as error:
        reason = str(error) if isinstance(error, UnusableFiles) else listening.in_words(error)
        raise ListenError(f"cannot listen on port {port} for management: {reason}") from error


async def _stop(member: Member, fronts: Fronts) -> None:
    # No new client connects; leaders elsewhere serve the others until they are sent away.
    await fronts.endpoints.shut()
    await member.members.leadership.hand_over(STOP_SECONDS)
    await fronts.endpoints.close()
    await fronts.grpc.stop()
    await fronts.telemetry.close()
    await fronts.management.cleanup()
    await fronts.http.cleanup()
