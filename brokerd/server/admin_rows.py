"""Live rows for listings: what brokerctl and the operator's status show.

Figures of a queue come from this member's replica (every replica applies the same commands); a
queue without a replica here is listed with its definition and no figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from brokerd import __version__
from brokerd.cluster.placement import GroupHealth
from brokerd.core import policy, profiles
from brokerd.core.catalog_objects import Binding, Exchange, Queue
from brokerd.raft.messages import CATALOG_GROUP, NodeId

if TYPE_CHECKING:
    from brokerd.server.broker import Broker
    from brokerd.server.connection import ClientConnection

Row = dict[str, Any]


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
    overview = broker.machine(queue.uid).overview()
    alive = broker.host.alive() | {NodeId(broker.node)}
    return {
        "leader": status.leader or "",
        "state": "running" if status.leader else "waiting for a majority",
        "online": [node for node in queue.members if NodeId(node) in alive],
        "messages_ready": overview["ready"],
        "messages_unacknowledged": overview["unacked"],
        "messages": overview["ready"] + overview["unacked"] + overview["dl_pending"],
        "messages_dlx": overview["dl_pending"],
        "message_bytes": overview["ready_bytes"] + overview["unacked_bytes"],
        "consumers": overview["consumers"],
        "counters": overview["counters"],
        "as_of": "leader" if status.is_leader else "follower",
    }


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


def connection_pid(broker: Broker, connection: ClientConnection) -> str:
    """Return a name that is unique in the cluster and fits one shell word."""
    return f"<{broker.node}.{broker.incarnation & 0xFFFFFFFF:x}.{connection.uid}>"


def connections(broker: Broker, vhost: str) -> list[Row]:
    """One row per open AMQP connection of this member."""
    rows = []
    for connection in broker.connections.all():
        if vhost and connection.vhost != vhost:
            continue
        machine = connection.machine
        state = "running"
        if broker.connections.is_blocked(connection):
            state = "blocked"
        elif machine.hold_publishes:
            state = "blocking"
        rows.append(
            {
                "pid": connection_pid(broker, connection),
                "name": connection.name,
                "node": broker.node,
                "user": connection.user,
                "vhost": connection.vhost,
                "peer_host": connection.peer[0],
                "peer_port": connection.peer[1],
                "host": connection.sock[0],
                "port": connection.sock[1],
                "ssl": connection.tls,
                "state": state,
                "channels": len(connection.sessions),
                "frame_max": machine.frame_max,
                "channel_max": machine.channel_max,
                "timeout": machine.heartbeat_s,
                "connected_at": connection.connected_ms,
                "recv_oct": connection.received_bytes,
                "send_oct": connection.sent_bytes,
                "client_properties": _plain(machine.client_properties),
            }
        )
    return rows


def _plain(value: Any) -> Any:
    """JSON cannot hold bytes, time stamps and the like; a listing shows them as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def channels(broker: Broker, vhost: str) -> list[Row]:
    """One row per channel of this member."""
    return [
        {
            "pid": f"{connection_pid(broker, connection)[:-1]}.{number}>",
            "connection": connection_pid(broker, connection),
            "name": f"{connection.name} ({number})",
            "number": number,
            "node": broker.node,
            "user": connection.user,
            "vhost": connection.vhost,
            "confirm": session.confirms is not None,
            "consumer_count": len(session.consumers),
            "messages_unacknowledged": len(session.unacked),
            "messages_unconfirmed": session.confirms.outstanding if session.confirms else 0,
            "prefetch_count": session.prefetch,
        }
        for connection in broker.connections.all()
        if not vhost or connection.vhost == vhost
        for number, session in connection.sessions.items()
    ]


def consumers(broker: Broker, vhost: str) -> list[Row]:
    """One row per consumer whose channel is on this member."""
    return [
        {
            "vhost": consumer.vhost,
            "queue_name": consumer.queue,
            "consumer_tag": consumer.id.tag,
            "node": broker.node,
            "ack_required": not consumer.no_ack,
            "prefetch_count": 0 if consumer.no_ack else consumer.prefetch,
            "priority": consumer.priority,
            "exclusive": consumer.exclusive,
            "user": consumer.user,
        }
        for consumer in broker.deliveries.consumers()
        if not vhost or consumer.vhost == vhost
    ]


def links(broker: Broker, vhost: str) -> list[Row]:
    """One row per federation link of this member."""
    rows = broker.link_rows()
    return [row for row in rows if not vhost or row["vhost"] == vhost]


def members(broker: Broker, _: str) -> list[Row]:
    """One row per member, in the form of admin.proto's Member."""
    host = broker.host
    alive = host.alive()
    led = {queue.uid for queue, _ in broker.led_queues()}
    all_queues = list(broker.view.queues())
    rows = []
    for name, address in broker.view.members().items():
        row: Row = {
            "name": name,
            "peer_address": address,
            "running": name == broker.node or NodeId(name) in alive,
            "replicas": sum(1 for queue in all_queues if name in queue.members),
        }
        if name == broker.node:
            monitor = broker.monitor
            row |= {
                "version": __version__,
                "memory_used": monitor.memory_used if monitor else 0,
                "memory_limit": monitor.memory_limit if monitor else 0,
                "disk_free": monitor.disk_free if monitor else 0,
                "alarms": sorted(broker.alarms.on(name)),
                "leaders": len(led),
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


#: Settings whose value nobody needs to see (SEC-19).
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


MAKERS: dict[str, Callable[[Broker, str], list[Row]]] = {
    "queues": queues,
    "exchanges": exchanges,
    "bindings": bindings,
    "connections": connections,
    "channels": channels,
    "consumers": consumers,
    "links": links,
    "members": members,
    "groups": groups,
    "configuration": configuration,
}
