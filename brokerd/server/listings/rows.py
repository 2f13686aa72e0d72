"""Live rows for listings: what brokerctl and the operator's status show.

Figures of a queue come from this member's replica (every replica applies the same commands); a
queue without a replica here is listed with its definition and no figures.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import platform
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokerd import __version__, compiled
from brokerd.cluster.groups.placement import GroupHealth
from brokerd.core import profiles
from brokerd.core.catalog import arguments, policy
from brokerd.core.catalog.catalog_objects import Binding, Exchange, Queue
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.access import compatibility
from brokerd.server.catalog import member_states
from brokerd.server.listings import client_rows, delayed_exchanges, memory_breakdown
from brokerd.server.loop.chunks import in_chunks

if TYPE_CHECKING:
    from brokerd.server.listings.ports import Sources

Row = dict[str, Any]
#: Bytes of a findings file (200 findings at most): the reply has to fit a message.
FINDINGS_BYTES_MAX = 2 * 1024 * 1024
_STARTED_NS = time.monotonic_ns()


def queues(services: Sources, vhost: str) -> list[Row]:
    """One row per queue, names as rabbitmqctl has them."""
    rows = []
    # Thousands of queues have the same few sets of members.
    placement = functools.cache(member_states.domains(services.catalog.view).standing)
    for record in services.catalog.view.records("queue", vhost or None):
        assert isinstance(record, Queue)
        settings = policy.effective_queue(services.catalog.view, record)
        row: Row = {
            "vhost": record.vhost,
            "name": record.name,
            "type": record.type,
            "durable": record.durable,
            "auto_delete": record.auto_delete,
            "exclusive": record.exclusive_owner is not None,
            "arguments": arguments.with_type(record.arguments, record.type)
            if services.profile.management_as_4_3
            else record.arguments,
            "policy": settings.policy,
            "operator_policy": settings.operator_policy,
            "effective_policy_definition": settings.values,
            "owner_pid": client_rows.owner_pid(record.exclusive_owner),
            "members": list(record.members),
            "placement": placement(tuple(map(NodeId, record.members))),
            "leader": "",
            "state": "down" if services.catalog.view.down_homes.has(record.uid) else "unknown",
            "uid": record.uid,
        }
        if services.groups.has_group(record.uid):
            row |= _queue_figures(services, record)
        rows.append(row)
    return rows


def _queue_figures(services: Sources, queue: Queue) -> Row:
    status = services.groups.status_of(queue.uid)
    machine = services.queues.machine(queue.uid)
    overview = machine.overview()
    alive = services.groups.alive() | {NodeId(services.node)}
    messages = overview["ready"] + overview["unacked"] + overview["dl_pending"]
    size = overview["ready_bytes"] + overview["unacked_bytes"]
    memory = memory_breakdown.queue_bytes(machine.memory_bytes(), size, is_durable=queue.durable)
    leader = status.leader or ""
    return {
        "leader": leader,
        "pid": client_rows.pid(leader, queue.uid >> 32, queue.uid & 0xFFFFFFFF),
        "state": "running" if leader else "waiting for a majority",
        "online": [node for node in queue.members if NodeId(node) in alive],
        "messages_ready": overview["ready"],
        "messages_unacknowledged": overview["unacked"],
        "messages": messages,
        "messages_dlx": overview["dl_pending"],
        "messages_dlx_old_terms": overview["dl_old_terms"],
        "messages_delayed": overview["delayed"],
        # A durable queue's messages are all on disk, a transient one's all in memory.
        "messages_persistent": messages if queue.durable else 0,
        "message_bytes": size,
        "message_bytes_ready": overview["ready_bytes"],
        "message_bytes_unacknowledged": overview["unacked_bytes"],
        "message_bytes_persistent": size if queue.durable else 0,
        "consumers": overview["consumers"],
        "memory": memory,
        "counters": overview["counters"],
        "as_of": "leader" if status.is_leader else "follower",
    } | _chosen_consumers(machine)


def _chosen_consumers(machine: QueueMachine) -> Row:
    """Name the exclusive consumer, and the one that is active alone (R-CS-7)."""
    row: Row = {}
    rows = machine.consumer_rows()
    for consumer in rows:
        names: list[str] = []
        if consumer["exclusive"]:
            names.append("exclusive_consumer")
        if machine.options.single_active_consumer and consumer["active"]:
            names.append("single_active_consumer")
        for name in names:
            row[f"{name}_pid"] = client_rows.channel_pid(consumer["consumer"])
            row[f"{name}_tag"] = consumer["consumer"].tag
    return row


def exchanges(services: Sources, vhost: str) -> list[Row]:
    """One row per exchange."""
    rows = []
    services.queues.table.take()
    for record in services.catalog.view.records("exchange", vhost or None):
        assert isinstance(record, Exchange)
        options = policy.effective_exchange(services.catalog.view, record)
        rows.append(
            _waiting(services, record)
            | {
                "vhost": record.vhost,
                "name": record.name,
                "type": record.type,
                "durable": record.durable,
                "auto_delete": record.auto_delete,
                "internal": record.internal,
                "arguments": record.arguments,
                "policy": options.policy,
                "alternate_exchange": options.alternate_exchange or "",
            }
        )
    return rows


def _waiting(services: Sources, exchange: Exchange) -> Row:
    """Return what waits in an exchange, nothing of one that keeps no messages."""
    queue = delayed_exchanges.queue_of(services.catalog.view, exchange)
    if queue is None:
        return {}
    found = delayed_exchanges.waiting(services, queue.uid, time.time_ns() // 1_000_000)
    if found is None:
        return {}
    as_of = "leader" if queue.uid in services.queues.led else "follower"
    return found.as_json() | {"as_of": as_of}


def bindings(services: Sources, vhost: str) -> list[Row]:
    """One row per binding, the default exchange's implicit ones included."""
    rows: list[Row] = [
        {
            "vhost": queue.vhost,
            "source_name": "",
            "source_kind": "exchange",
            "destination_name": queue.name,
            "destination_kind": "queue",
            "routing_key": queue.name,
            "arguments": {},
        }
        for queue in services.catalog.view.records("queue", vhost or None)
    ]
    for record in services.catalog.view.records("binding", vhost or None):
        assert isinstance(record, Binding)
        rows.append(
            {
                "vhost": record.vhost,
                "source_name": record.source,
                "source_kind": "exchange",
                "destination_name": record.destination,
                "destination_kind": record.destination_kind,
                "routing_key": record.routing_key,
                "arguments": record.arguments,
            }
        )
    return rows


def links(services: Sources, vhost: str) -> list[Row]:
    """One row per federation link of this member."""
    return [row for row in _link_rows(services, vhost) if row["type"] != "shovel"]


def shovels(services: Sources, vhost: str) -> list[Row]:
    """One row per shovel of this member."""
    return [row for row in _link_rows(services, vhost) if row["type"] == "shovel"]


def _link_rows(services: Sources, vhost: str) -> list[Row]:
    rows = services.runtime.link_rows()
    return [row for row in rows if not vhost or row["vhost"] == vhost]


async def members(services: Sources, _: str) -> list[Row]:
    """One row per member, in the form of admin.proto's Member."""
    alive = services.groups.alive()
    all_queues = list(services.catalog.view.queues())
    rows = []
    for name, address in services.catalog.view.members().items():
        domain = member_states.domain_of(services.catalog.view, name)
        row: Row = {
            "name": name,
            "peer_address": address,
            "running": name == services.node or NodeId(name) in alive,
            "replicas": sum(1 for queue in all_queues if name in queue.members),
            "state": member_states.state_of(services.catalog.view, name),
            "host": domain.host,
            "zone": domain.zone,
        }
        if name == services.node:
            monitor = services.runtime.monitor
            row |= {
                "version": __version__,
                "memory_used": monitor.memory_used if monitor else 0,
                "memory_limit": monitor.memory_limit if monitor else 0,
                "disk_free": monitor.disk_free if monitor else 0,
                "alarms": sorted(services.runtime.alarms.on(name)),
                "leaders": len(services.queues.led),
                "caught_up": await is_caught_up(services),
            }
        elif row["running"] and name in services.clients.member_figures:
            used, limit, free, alarms = services.clients.member_figures[name]
            row |= {
                "memory_used": used,
                "memory_limit": limit,
                "disk_free": free,
                "alarms": alarms,
                "leaders": _leaders_elsewhere(services, name),
            }
        rows.append(row)
    return rows


def _leaders_elsewhere(services: Sources, node: str) -> int:
    groups = services.groups
    uids = groups.groups()
    return sum(1 for uid in uids if groups.leader_of(uid) == node and uid != CATALOG_GROUP)


async def is_caught_up(services: Sources) -> bool:
    """Tell whether every group here has a leader and nothing committed is unapplied."""
    groups = services.groups
    async for uids in in_chunks(groups.groups()):
        if any(groups.leader_of(uid) is None for uid in filter(groups.has_group, uids)):
            return False
    sums = await services.queues.table.add_groups()
    return sums["applied"] == sums["commit"]


def groups(services: Sources, _: str) -> list[Row]:
    """One row per Raft group with a replica here."""
    rows = []
    for uid in services.groups.groups():
        status = services.groups.status_of(uid)
        rows.append(
            {
                "uid": uid,
                "name": group_name(services, uid),
                "leader": status.leader or "",
                "term": status.term,
                "commit": status.commit,
                "applied": status.applied,
                "last": status.last,
                "snapshot": status.snapshot,
                "members": list(status.members.voters),
                "lag": dict(status.lag),
                "damaged": status.is_damaged,
                "contradicted": status.is_contradicted,
                "error": status.error,
            }
        )
    return rows


def group_name(services: Sources, uid: int) -> str:
    """Return what a person calls a group."""
    if uid == CATALOG_GROUP:
        return "the catalog"
    queue = services.queues.queue_of(uid)
    return f"queue '{queue.name}' in vhost '{queue.vhost}'" if queue else f"group {uid:x}"


def group_health(services: Sources) -> list[GroupHealth]:
    """Return all groups of the cluster with the members that are up, from the catalog.

    One whose disk does not answer counts as one that is down: it adds to no majority.
    """
    groups = services.groups
    up = groups.alive() | {NodeId(services.node)}
    alive = {node for node in up if not groups.is_stalled(node)}
    found = []
    if services.groups.has_group(CATALOG_GROUP):
        catalog = services.groups.status_of(CATALOG_GROUP).members.voters
        found.append(GroupHealth(CATALOG_GROUP, catalog, frozenset(alive & set(catalog))))
    for queue in services.catalog.view.queues():
        voters = tuple(NodeId(name) for name in queue.members)
        found.append(GroupHealth(queue.uid, voters, frozenset(alive & set(voters))))
    return found


#: Words in the names of settings whose value is hidden (SEC-20).
_SECRETS = ("password", "secret")


def configuration(services: Sources, _: str) -> list[Row]:
    """One row per setting that this member was started with, and each compat switch in effect."""
    rows: list[Row] = [
        {
            "name": f"{section}.{key}",
            "value": "***" if value and any(word in key for word in _SECRETS) else value,
        }
        for section, settings in services.objects.config.model_dump(mode="json").items()
        for key, value in settings.items()
        if (section, key) != ("compat", "switches")
    ]
    switches = profiles.effective(services.profile).items()
    rows += [{"name": f"compat.switches.{name}", "value": value} for name, value in switches]
    return rows


def variables(services: Sources, _: str) -> list[Row]:
    """One row per variable that can be set at run time (variables.py)."""
    return services.variables.rows()


def tracing(services: Sources, vhost: str) -> list[Row]:
    """One row per vhost whose firehose is on."""
    return [
        {"vhost": name}
        for name in sorted(services.objects.tracer.vhosts)
        if not vhost or name == vhost
    ]


async def status(services: Sources, _: str) -> list[Row]:
    """One row: what `brokerctl status` shows of this member beside its row in `members`."""
    return [own(services) | {"caught_up": await is_caught_up(services)}]


def own(services: Sources) -> Row:
    """Return what of this member needs no look at its groups."""
    config, monitor, endpoints = (
        services.objects.config,
        services.runtime.monitor,
        services.runtime.endpoints,
    )
    return {
        "node": services.node,
        "pid": os.getpid(),
        "os": platform.system(),
        "python_version": platform.python_version(),
        "brokerd_version": __version__,
        "form": compiled.form(),
        "rabbitmq_version": compatibility.compatible_version(services.profile),
        "profile": services.profile.name,
        "uptime": (time.monotonic_ns() - _STARTED_NS) // 1_000_000_000,
        "is_listening": endpoints is not None and endpoints.is_open,
        "data_directory": str(config.data_dir),
        "alarms": sorted(services.runtime.alarms.on(services.node)),
        "memory_used": monitor.memory_used if monitor else 0,
        "vm_memory_high_watermark_limit": monitor.memory_limit if monitor else 0,
        "disk_free": monitor.disk_free if monitor else 0,
        "disk_free_limit": monitor.disk_limit if monitor else 0,
        "listeners": _listeners(services),
        "totals": {
            "connection_count": len(services.clients),
            "channel_count": services.clients.channel_count - services.clients.call_count,
            "consumer_count": len(services.deliveries),
            "queue_count": len(services.queues.queue_uids()),
            "virtual_host_count": len(services.catalog.view.records("vhost")),
            "raft_group_count": len(services.groups.groups()),
        },
    }


async def memory(services: Sources, _: str) -> list[Row]:
    """One row per part of this member's memory (memory_breakdown.py)."""
    monitor = services.runtime.monitor
    found = await monitor.breakdown.take() if monitor else {}
    return [{"part": part, "bytes": size} for part, size in found.items()]


async def findings(services: Sources, _: str) -> list[Row]:
    """One row: what the telemetry job last handed to this member; none if there is nothing."""
    path = services.objects.config.data_dir / "results" / "findings.json"
    document = await asyncio.to_thread(_document, path)
    return [] if document is None else [document]


def _document(path: Path) -> Row | None:
    try:
        if path.stat().st_size > FINDINGS_BYTES_MAX:
            return None
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _listeners(services: Sources) -> list[Row]:
    config = services.objects.config
    is_open = services.runtime.endpoints is not None and services.runtime.endpoints.is_open
    purposes = {
        "amqp": ("amqp", "AMQP 0-9-1", is_open),
        "amqps": ("amqp/ssl", "AMQP 0-9-1 over TLS", is_open and bool(config.tls.cert_file)),
        "grpc": ("grpc", "Admin, Messages, Telemetry", True),
        "http": ("http/prometheus", "health, metrics, reports", True),
        "management": ("http", "HTTP API", True),
        "management_tls": ("https", "HTTP API over TLS", bool(config.tls.cert_file)),
        "peer": ("clustering", "inter-node communication", True),
    }
    return [
        {
            "node": services.node,
            "interface": config.peer_host if name == "peer" else config.node.bind or "[::]",
            "port": config.port(name),
            "protocol": protocol,
            "purpose": purpose,
        }
        for name, (protocol, purpose, is_used) in purposes.items()
        if is_used and config.port(name)
    ]


MAKERS: dict[str, Callable[[Sources, str], list[Row] | Awaitable[list[Row]]]] = {
    "memory": memory,
    "variables": variables,
    "tracing": tracing,
    "status": status,
    "queues": queues,
    "exchanges": exchanges,
    "bindings": bindings,
    "connections": client_rows.connections,
    "channels": client_rows.channels,
    "consumers": client_rows.consumers,
    "findings": findings,
    "links": links,
    "shovels": shovels,
    "members": members,
    "groups": groups,
    "configuration": configuration,
}
