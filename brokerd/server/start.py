"""How a member comes to know its cluster and its queues; behind it clients may come.

Opens the catalog, finds the cluster (joining.py), waits for the catalog's leader, writes the first
objects of a new cluster, opens the queues.  Listeners are app.py's, which calls this; so does the
simulator (tests/simulation/cluster).
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from brokerd import secret_files
from brokerd.config import ConfigError
from brokerd.core.catalog import catalog_commands, features
from brokerd.raft.messages import CATALOG_GROUP
from brokerd.server.catalog import boot_definitions, cluster_name, member_states
from brokerd.server.catalog.boot_definitions import Definitions
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.composition import CoreServices, Member
from brokerd.server.members import repair
from brokerd.storage.wal import WriteAheadLog

log = logging.getLogger(__name__)

POLL_S = 0.1
CLUSTER_ID_BYTES = 16


async def open_catalog(member: Member, wal: WriteAheadLog) -> None:
    """Go on with what is known from earlier starts, if the log knows anything."""
    known = wal.log(CATALOG_GROUP)
    has_data = bool(known.initial_state()[1].voters or known.last_index())
    await member.members.joining.open_if_data(has_data)


async def join(member: Member, definitions: Definitions | None = None) -> None:
    """Find the cluster, wait for the catalog, make its first objects, open this member's queues,
    load the definitions.

    ConfigError, Removed among them, if the cluster does not take this member or its definitions.
    """
    base, members = member.base, member.members
    joining, catalog, spawn = members.joining, base.catalog, base.tasks.spawn
    spawn(members.kept_aside.watch())
    base.lifecycle.hindrances.append(members.disk_watch.hindrance)
    spawn(members.disk_watch.run())
    await joining.settle()
    base.lifecycle.waits_for("a majority of the members")
    spawn(members.catalog_members.run())
    while not (catalog.view.cluster_id or joining.may_found):  # noqa: ASYNC110
        # The catalog comes from its leader, and nothing tells when it is here.
        await asyncio.sleep(POLL_S)
    waiting = spawn(_wait_with_contradiction(member))
    await _write_start(member, has_users=definitions is not None and definitions.has_users)
    waiting.cancel()
    operations = joining.first_records()
    # Maintenance ends with the restart that it was for.
    if member_states.state_of(catalog.view, base.process.node) == member_states.MAINTENANCE:
        setting = catalog_commands.member_state(base.process.node)
        operations.append(catalog_commands.set_setting(setting, None))
    if operations:
        await catalog.write({"do": "batch", "operations": operations})
    member.catalog_events.load()
    if members.refill.is_on:
        base.lifecycle.health.reason = "the disk of this member was empty and is being refilled"
    await members.refill.started()
    spawn(repair.watch(members.repair))
    spawn(members.stuck.run())
    spawn(members.homes.run())
    spawn(members.homes.run_deletions())
    joining.watch()
    if definitions is not None:
        base.lifecycle.waits_for(f"the definitions of {definitions.source}")
        await boot_definitions.apply(
            member.messages.objects,
            definitions,
            skip_if_unchanged=base.config.definitions.skip_if_unchanged,
        )


async def _write_start(member: Member, *, has_users: bool) -> None:
    """Have the catalog know that this member runs; found the cluster if no member has.

    has_users: somebody else than guest can log in once it is founded.
    """
    base, catalog = member.base, member.base.catalog
    while True:
        try:
            if not catalog.view.cluster_id:
                await catalog.write(await _bootstrap(base, has_users=has_users))
            started = await catalog.write(
                catalog_commands.node_started(
                    base.process.node, base.process.incarnation, features.names()
                )
            )
            if started["code"] == catalog_commands.REFUSED:
                raise ConfigError(f"{started['text']}; start the version that it ran before")
            return
        except Unavailable:
            if not member.members.kept_aside.is_catalog_contradicted:
                log.info("waiting for a majority of the members to answer")


async def _wait_with_contradiction(member: Member) -> None:
    """A start with a catalog that its leader contradicts waits until somebody decides: probes shall
    not end this member, and its replicas of queues are as good as ever.
    """
    while not member.members.kept_aside.is_catalog_contradicted:  # noqa: ASYNC110
        # Nothing tells of it here.
        await asyncio.sleep(POLL_S)
    health = member.base.lifecycle.health
    health.started = True
    health.reason = "the catalog here is contradicted (brokerctl list_kept_aside)"
    log.error("not ready: %s", health.reason)
    member.catalog_events.load()


async def _bootstrap(base: CoreServices, *, has_users: bool) -> dict[str, Any]:
    """Return the operation that makes a new cluster; of several proposers the first one wins."""
    config, checker = base.config, base.checker
    settings = config.auth
    users = []
    # Not with a known password from everywhere beside somebody who was given one.
    is_needless = bool(settings.admin_user) and "guest" not in base.variables.loopback_users
    if settings.create_guest and not has_users and not is_needless:
        users.append(
            {
                "name": "guest",
                "tags": ["administrator"],
                "password_hash": await checker.hash("guest"),
            }
        )
    password = settings.admin_password
    if settings.admin_password_file:
        try:
            # Once, at the first start, from a small file.
            password = secret_files.read(Path(settings.admin_password_file))
        except secret_files.SecretFileError as error:
            raise ConfigError(f"auth.admin_password_file: {error}") from error
    if settings.admin_user:
        if not password:
            raise ConfigError("auth.admin_user needs auth.admin_password or …_password_file")
        users.append(
            {
                "name": settings.admin_user,
                "tags": ["administrator"],
                "password_hash": await checker.hash(password),
            }
        )
    cluster_id = base.rng.randbytes(CLUSTER_ID_BYTES).hex()
    name = cluster_name.founding(config.cluster.name, config.node_name, cluster_id)
    return catalog_commands.bootstrap(cluster_id, name, users, features=features.names())
