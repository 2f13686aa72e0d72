"""Live rows for listings: what brokerctl and the operator's status show.

Figures of a queue come from this member's replica (every replica applies the same commands); a
queue without a replica here is listed with its definition and no figures.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brokerd import __version__
from brokerd.cluster.placement import GroupHealth
from brokerd.core import policy, profiles
from brokerd.core.catalog_objects import Binding, Exchange, Queue
from brokerd.core.queue import QueueMachine
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server import admin_client_rows, catalog_members, listener

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

Row = dict[str, Any]
_STARTED_NS = time.monotonic_ns()


def queues(broker: Broker, vhost: str) -> list[Row]:
    """One row per queue, names as rabbitmqctl has them."""
    rows = []
    for record in broker.view.records("queue", vhost or None):
        assert isinstance(record, Queue)
        settings = policy.effective_queue(broker.view, record)
        row: Row = {
            "vhost": record.vhost,
            "name": record.name,
            "type": record.type,
            "durable": record.durable,
            "auto_delete": record.auto_delete,
            "exclusive": record.exclusive_owner is not None,
            "arguments": record.arguments,
            "policy": settings.policy,
            "operator_policy": settings.operator_policy,
            "effective_policy_definition": settings.values,
            "owner_pid": admin_client_rows.owner_pid(record.exclusive_owner),
            "members": list(record.members),
            "leader": "",
            "state": "unknown",
            "uid": record.uid,
        }
        if broker.host.has_group(record.uid):
            row |= _queue_figures(broker, record)
        rows.append(row)
    return rows


def _queue_figures(broker: Broker, queue: Queue) -> Row:
    status = broker.host.status_of(queue.uid)
    machine = broker.machine(queue.uid)
    overview = machine.overview()
    alive = broker.host.alive() | {NodeId(broker.node)}
    messages = overview["ready"] + overview["unacked"] + overview["dl_pending"]
    size = overview["ready_bytes"] + overview["unacked_bytes"]
    leader = status.leader or ""
    return {
        "leader": leader,
        "pid": admin_client_rows.pid(leader, queue.uid >> 32, queue.uid & 0xFFFFFFFF),
        "state": "running" if leader else "waiting for a majority",
        "online": [node for node in queue.members if NodeId(node) in alive],
        "messages_ready": overview["ready"],
        "messages_unacknowledged": overview["unacked"],
        "messages": messages,
        "messages_dlx": overview["dl_pending"],
        # A durable queue's messages are all on disk, a transient one's all in memory.
        "messages_persistent": messages if queue.durable else 0,
        "message_bytes": size,
        "message_bytes_ready": overview["ready_bytes"],
        "message_bytes_unacknowledged": overview["unacked_bytes"],
        "message_bytes_persistent": size if queue.durable else 0,
        "consumers": overview["consumers"],
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
            row[f"{name}_pid"] = admin_client_rows.channel_pid(consumer["consumer"])
            row[f"{name}_tag"] = consumer["consumer"].tag
    return row


def exchanges(broker: Broker, vhost: str) -> list[Row]:
    """One row per exchange."""
    rows = []
    for record in broker.view.records("exchange", vhost or None):
        assert isinstance(record, Exchange)
        options = policy.effective_exchange(broker.view, record)
        rows.append(
            {
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


def bindings(broker: Broker, vhost: str) -> list[Row]:
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
        for queue in broker.view.records("queue", vhost or None)
    ]
    for record in broker.view.records("binding", vhost or None):
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


def links(broker: Broker, vhost: str) -> list[Row]:
    """One row per federation link of this member."""
    rows = broker.link_rows()
    return [row for row in rows if not vhost or row["vhost"] == vhost]


def members(broker: Broker, _: str) -> list[Row]:
    """One row per member, in the form of admin.proto's Member."""
    host = broker.host
    alive = host.alive()
    all_queues = list(broker.view.queues())
    rows = []
    for name, address in broker.view.members().items():
        row: Row = {
            "name": name,
            "peer_address": address,
            "running": name == broker.node or NodeId(name) in alive,
            "replicas": sum(1 for queue in all_queues if name in queue.members),
            "state": catalog_members.state_of(broker, name),
        }
        if name == broker.node:
            monitor = broker.monitor
            row |= {
                "version": __version__,
                "memory_used": monitor.memory_used if monitor else 0,
                "memory_limit": monitor.memory_limit if monitor else 0,
                "disk_free": monitor.disk_free if monitor else 0,
                "alarms": sorted(broker.alarms.on(name)),
                "leaders": len(broker.leaders.led),
                "caught_up": is_caught_up(broker),
            }
        elif row["running"] and name in broker.connections.member_figures:
            used, limit, free, alarms = broker.connections.member_figures[name]
            row |= {
                "memory_used": used,
                "memory_limit": limit,
                "disk_free": free,
                "alarms": alarms,
                "leaders": _leaders_elsewhere(broker, name),
            }
        rows.append(row)
    return rows


def _leaders_elsewhere(broker: Broker, node: str) -> int:
    host = broker.host
    return sum(1 for uid in host.groups() if host.leader_of(uid) == node and uid != CATALOG_GROUP)


def is_caught_up(broker: Broker) -> bool:
    """Tell whether every group here has a leader and nothing committed is unapplied."""
    host = broker.host
    for uid in host.groups():
        status = host.status_of(uid)
        if status.leader is None or status.applied < status.commit:
            return False
    return True


def groups(broker: Broker, _: str) -> list[Row]:
    """One row per Raft group with a replica here."""
    rows = []
    for uid in broker.host.groups():
        status = broker.host.status_of(uid)
        rows.append(
            {
                "uid": uid,
                "name": group_name(broker, uid),
                "leader": status.leader or "",
                "term": status.term,
                "commit": status.commit,
                "applied": status.applied,
                "last": status.last,
                "snapshot": status.snapshot,
                "members": list(status.members.voters),
                "lag": dict(status.lag),
                "damaged": status.is_damaged,
                "error": status.error,
            }
        )
    return rows


def group_name(broker: Broker, uid: int) -> str:
    """Return what a person calls a group."""
    if uid == CATALOG_GROUP:
        return "the catalog"
    queue = broker.queue_of(uid)
    return f"queue '{queue.name}' in vhost '{queue.vhost}'" if queue else f"group {uid:x}"


def group_health(broker: Broker) -> list[GroupHealth]:
    """Return all groups of the cluster with the members that are up, from the catalog."""
    alive = broker.host.alive() | {NodeId(broker.node)}
    catalog = tuple(NodeId(name) for name in broker.view.members())
    found = [GroupHealth(CATALOG_GROUP, catalog, frozenset(alive & set(catalog)))]
    for queue in broker.view.queues():
        voters = tuple(NodeId(name) for name in queue.members)
        found.append(GroupHealth(queue.uid, voters, frozenset(alive & set(voters))))
    return found


#: Settings whose value nobody needs to see (SEC-20).
_SECRETS = ("password", "secret")


def configuration(broker: Broker, _: str) -> list[Row]:
    """One row per setting that this member was started with, and each compat switch in effect."""
    rows: list[Row] = [
        {
            "name": f"{section}.{key}",
            "value": "***" if value and any(word in key for word in _SECRETS) else value,
        }
        for section, settings in broker.config.model_dump(mode="json").items()
        for key, value in settings.items()
        if (section, key) != ("compat", "switches")
    ]
    switches = profiles.effective(broker.profile).items()
    rows += [{"name": f"compat.switches.{name}", "value": value} for name, value in switches]
    return rows


def variables(broker: Broker, _: str) -> list[Row]:
    """One row per variable that can be set at run time (variables.py)."""
    return broker.variables.rows()


def tracing(broker: Broker, vhost: str) -> list[Row]:
    """One row per vhost whose firehose is on."""
    return [{"vhost": name} for name in sorted(broker.tracer.vhosts) if not vhost or name == vhost]


def status(broker: Broker, _: str) -> list[Row]:
    """One row: what `brokerctl status` shows of this member beside its row in `members`."""
    config, monitor, doors = broker.config, broker.monitor, broker.doors
    return [
        {
            "node": broker.node,
            "pid": os.getpid(),
            "os": platform.system(),
            "python_version": platform.python_version(),
            "brokerd_version": __version__,
            "rabbitmq_version": listener.compatible_version(broker),
            "profile": broker.profile.name,
            "uptime": (time.monotonic_ns() - _STARTED_NS) // 1_000_000_000,
            "is_listening": doors is not None and doors.is_open,
            "data_directory": str(config.data_dir),
            "alarms": sorted(broker.alarms.on(broker.node)),
            "memory_used": monitor.memory_used if monitor else 0,
            "vm_memory_high_watermark_limit": monitor.memory_limit if monitor else 0,
            "disk_free": monitor.disk_free if monitor else 0,
            "disk_free_limit": monitor.disk_limit if monitor else 0,
            "caught_up": is_caught_up(broker),
            "listeners": _listeners(broker),
            "totals": {
                "connection_count": len(broker.connections),
                "channel_count": sum(len(c.sessions) for c in broker.connections.all()),
                "consumer_count": len(broker.deliveries),
                "queue_count": len(broker.queue_uids()),
                "virtual_host_count": len(broker.view.records("vhost")),
                "raft_group_count": len(list(broker.host.groups())),
            },
        }
    ]


def _listeners(broker: Broker) -> list[Row]:
    config = broker.config
    is_open = broker.doors is not None and broker.doors.is_open
    purposes = {
        "amqp": ("amqp", "AMQP 0-9-1", is_open),
        "amqps": ("amqp/ssl", "AMQP 0-9-1 over TLS", is_open and bool(config.tls.cert_file)),
        "grpc": ("grpc", "Admin, Messages, Telemetry", True),
        "http": ("http", "health, metrics, reports", True),
        "peer": ("clustering", "inter-node communication", True),
    }
    return [
        {
            "node": broker.node,
            "interface": config.node.bind or "[::]",
            "port": config.port(name),
            "protocol": protocol,
            "purpose": purpose,
        }
        for name, (protocol, purpose, is_used) in purposes.items()
        if is_used and config.port(name)
    ]


MAKERS: dict[str, Callable[[Broker, str], list[Row]]] = {
    "variables": variables,
    "tracing": tracing,
    "status": status,
    "queues": queues,
    "exchanges": exchanges,
    "bindings": bindings,
    "connections": admin_client_rows.connections,
    "channels": admin_client_rows.channels,
    "consumers": admin_client_rows.consumers,
    "links": links,
    "members": members,
    "groups": groups,
    "configuration": configuration,
}
