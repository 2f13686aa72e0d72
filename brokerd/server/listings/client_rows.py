"""Live rows about clients: connections, channels, consumers, with the columns of rabbitmqctl.

A client is known only to the member it is connected to.  Pids look like RabbitMQ's, because
scripts cut them out of listings and hand them back: `<node.incarnation.number.0>`.
Asked by the front doors (rows.MAKERS).
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from brokerd.amqp.values import Decimal, Timestamp
from brokerd.core.catalog.catalog_objects import ConnectionId
from brokerd.core.queue.effects import ConsumerId

if TYPE_CHECKING:
    from brokerd.server.access.blocked_clients import Blocked
    from brokerd.server.access.connections import GuestCall
    from brokerd.server.listings.ports import ListedChannel, ListedConnection, Sources

Row = dict[str, Any]
#: Incarnations have 63 bits; pids show the last 32, as long as Erlang's creation.
_CREATION = 0xFFFFFFFF


def pid(node: str, incarnation: int, number: int) -> str:
    """Return a name that is unique in the cluster, in the form of rabbitmqctl's pids."""
    return f"<{node}.{incarnation & _CREATION}.{number}.0>"


def connection_pid(services: Sources, connection: ListedConnection | GuestCall) -> str:
    """Return what list_connections shows and close_connection takes."""
    return pid(services.node, services.incarnation, connection.uid)


def owner_pid(owner: ConnectionId | None) -> str:
    """Return the pid of the connection that an exclusive queue belongs to."""
    return pid(owner.node, owner.incarnation, owner.connection) if owner is not None else ""


def channel_pid(consumer: ConsumerId) -> str:
    """Return the pid of a consumer's channel."""
    return pid(consumer.node, consumer.incarnation, consumer.channel)


def typed(value: Any) -> Any:
    """Return a field value as JSON that keeps its type: {"type": …, "value": …}."""
    if isinstance(value, dict):
        return {"type": "table", "value": typed_table(value)}
    if isinstance(value, list):
        return {"type": "array", "value": [typed(item) for item in value]}
    if isinstance(value, bytes):
        return {"type": "binary", "value": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return {"type": "decimal", "value": [value.scale, value.value]}
    if value is None:
        return {"type": "void", "value": None}
    name = next((name for kind, name in _TYPES if isinstance(value, kind)), None)
    if name is None:
        return {"type": "longstr", "value": str(value)}
    if name == "signedint" and not -(2**31) <= value < 2**31:
        name = "long"
    return {"type": name, "value": value}


#: In this order: a bool is an int, and so is a time stamp.
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "bool"),
    (Timestamp, "timestamp"),
    (int, "signedint"),
    (float, "double"),
    (str, "longstr"),
)


def typed_table(table: dict[str, Any]) -> list[Row]:
    """Return a field table in its order: {"key": …, "type": …, "value": …} each."""
    return [{"key": str(key)} | typed(value) for key, value in table.items()]


def _state(services: Sources, connection: ListedConnection) -> str:
    if not connection.is_open:
        return "closing"
    if services.clients.blocked.since_ms(connection) is not None:
        return "blocked"
    if services.runtime.alarms.reason():
        return "blocking"
    return "flow" if connection.gate.is_in_flow else "running"


def connections(services: Sources, vhost: str) -> list[Row]:
    """One row per open AMQP connection of this member, then one per call of Messages."""
    rows = [
        connection_row(services, connection)
        for connection in services.clients.all()
        if not vhost or connection.vhost == vhost
    ]
    return rows + [
        call_row(services, call)
        for call in services.clients.calls()
        if not vhost or call.vhost == vhost
    ]


def call_row(services: Sources, call: GuestCall) -> Row:
    """Return what a call has of a connection's columns."""
    is_blocked = services.clients.blocked.since_ms(call.caller) is not None
    waiting = "blocking" if services.runtime.alarms.reason() else "running"
    return {
        "pid": connection_pid(services, call),
        "name": call.name,
        "user_provided_name": "",
        "node": services.node,
        "user": call.user,
        "vhost": call.vhost,
        "peer_host": call.peer[0],
        "peer_port": call.peer[1],
        "protocol": "gRPC",
        "state": "closing" if not call.is_open else "blocked" if is_blocked else waiting,
        "channels": 1,
        "connected_at": call.connected_ms,
        "client_properties": [],
        **_blocked(services, call.caller),
    }


def _blocked(services: Sources, client: Blocked) -> Row:
    """Return since when an alarm blocks a client, why, and which members have the alarm."""
    since_ms = services.clients.blocked.since_ms(client)
    if since_ms is None:
        return {"blocked_since": None, "blocked_reason": "", "blocked_by": []}
    alarms = services.runtime.alarms
    return {
        "blocked_since": since_ms,
        "blocked_reason": alarms.reason(),
        "blocked_by": alarms.blocking(),
    }


def connection_row(services: Sources, connection: ListedConnection) -> Row:
    """Return one AMQP connection."""
    return {
        "pid": connection_pid(services, connection),
        **connection_fields(services, connection),
        "client_properties": typed_table(connection.machine.client_properties),
        **_blocked(services, connection),
    }


def connection_fields(services: Sources, connection: ListedConnection) -> Row:
    """Return what every list has of an AMQP connection."""
    machine = connection.machine
    given = machine.client_properties.get("connection_name")
    return {
        "name": connection.name,
        "user_provided_name": given if isinstance(given, str) else "",
        "node": services.node,
        "user": connection.user,
        "vhost": connection.vhost,
        "peer_host": connection.peer[0],
        "peer_port": connection.peer[1],
        "host": connection.sock[0],
        "port": connection.sock[1],
        "ssl": connection.tls,
        "protocol": [0, 9, 1],
        "auth_mechanism": machine.mechanism,
        "state": _state(services, connection),
        "channels": len(connection.sessions),
        "frame_max": machine.frame_max,
        "channel_max": machine.channel_max,
        "timeout": machine.heartbeat_s,
        "connected_at": connection.connected_ms,
        "recv_oct": connection.received_bytes,
        "send_oct": connection.sent_bytes,
    }


def channels(services: Sources, vhost: str) -> list[Row]:
    """One row per channel of this member."""
    return [
        channel_row(services, connection, number, session)
        for connection in services.clients.all()
        if not vhost or connection.vhost == vhost
        for number, session in connection.sessions.items()
    ]


def channel_row(
    services: Sources, connection: ListedConnection, number: int, session: ListedChannel
) -> Row:
    """Return one channel of a connection."""
    return {
        "pid": pid(services.node, services.incarnation, session.uid),
        "connection": connection_pid(services, connection),
        "name": f"{connection.name} ({number})",
        "number": number,
        "node": services.node,
        "user": connection.user,
        "vhost": connection.vhost,
        "transactional": session.tx is not None,
        "messages_uncommitted": session.tx.publish_count if session.tx is not None else 0,
        "acks_uncommitted": session.tx.settlement_count if session.tx is not None else 0,
        "confirm": session.confirms is not None,
        "consumer_count": len(session.consumers),
        "messages_unacknowledged": len(session.unacked),
        "messages_unconfirmed": session.confirms.outstanding if session.confirms else 0,
        "prefetch_count": session.prefetch,
        "global_prefetch_count": session.shared.limit if session.shared is not None else 0,
        "state": "running",
    }


def consumers(services: Sources, vhost: str) -> list[Row]:
    """One row per consumer whose channel is on this member."""
    active: dict[int, dict[ConsumerId, bool]] = {}
    rows = []
    for consumer in services.deliveries.consumers():
        if vhost and consumer.vhost != vhost:
            continue
        if consumer.uid not in active:
            active[consumer.uid] = _active(services, consumer.uid)
        is_active = active[consumer.uid].get(consumer.id, True)
        status = "waiting"
        if is_active:
            status = "single_active" if _is_single(services, consumer.uid) else "up"
        rows.append(
            {
                "vhost": consumer.vhost,
                "queue_name": consumer.queue,
                "consumer_tag": consumer.id.tag,
                "channel_pid": channel_pid(consumer.id),
                "node": services.node,
                "ack_required": not consumer.no_ack,
                "prefetch_count": 0 if consumer.no_ack else consumer.prefetch,
                "priority": consumer.priority,
                "exclusive": consumer.exclusive,
                "active": is_active,
                "activity_status": status,
                "arguments": {"x-priority": consumer.priority} if consumer.priority else {},
                "user": consumer.user,
            }
        )
    return rows


def _is_single(services: Sources, uid: int) -> bool:
    """Tell whether a queue has one consumer at a time (R-CS-7)."""
    queue = services.queues.queue_of(uid)
    return queue is not None and queue.arguments.get("x-single-active-consumer") is True


def _active(services: Sources, uid: int) -> dict[ConsumerId, bool]:
    """Return who gets messages, where a replica here knows (R-CS-7)."""
    if not services.groups.has_group(uid):
        return {}
    return {row["consumer"]: row["active"] for row in services.queues.machine(uid).consumer_rows()}
