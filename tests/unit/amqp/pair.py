"""Builders: machines wired back to back, frames made by hand, events taken apart."""

from __future__ import annotations

import struct
from dataclasses import replace

from brokerd.amqp import events, methods
from brokerd.amqp.config import ConnectionConfig, Credentials, Role
from brokerd.amqp.connection import AmqpConnection
from brokerd.amqp.events import Event
from brokerd.amqp.methods import METHODS, Method

HEADER = b"AMQP\x00\x00\x09\x01"
NO_PROPERTIES = b"\x00\x00"


def frame(kind: int, channel: int, payload: bytes, end: int = 0xCE) -> bytes:
    """A frame with any content."""
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + bytes((end,))


def header_frame(
    channel: int, size: int, class_id: int = 60, weight: int = 0, raw: bytes = NO_PROPERTIES
) -> bytes:
    """A content header frame."""
    return frame(2, channel, struct.pack(">HHQ", class_id, weight, size) + raw)


def body_frame(channel: int, body: bytes) -> bytes:
    """A content body frame."""
    return frame(3, channel, body)


def publish_bytes(
    channel: int, body: bytes, key: str = "k", raw: bytes = NO_PROPERTIES, cut: int = 120_000
) -> bytes:
    """A whole publish."""
    out = methods.BasicPublish(exchange="x", routing_key=key).encode(channel)
    out += header_frame(channel, len(body), raw=raw)
    for start in range(0, len(body), cut):
        out += body_frame(channel, body[start : start + cut])
    return out


def sent(machine: AmqpConnection) -> list[tuple[int, Method]]:
    """The methods a machine has queued; other frames are skipped."""
    return methods_in(machine.data_to_send())


def methods_in(data: bytes) -> list[tuple[int, Method]]:
    """The methods in a byte string of whole frames."""
    out = []
    pos = 0
    while pos < len(data):
        kind, channel, size = struct.unpack_from(">BHI", data, pos)
        payload = data[pos + 7 : pos + 7 + size]
        assert data[pos + 7 + size] == 0xCE
        if kind == 1:
            out.append((channel, METHODS[int.from_bytes(payload[:4], "big")].decode(payload)))
        pos += 8 + size
    return out


def server(**changes: object) -> AmqpConnection:
    """A fresh server machine at time 0, with these fields of its configuration changed."""
    config = replace(ConnectionConfig(), **changes)  # type: ignore[arg-type]
    return AmqpConnection(Role.SERVER, config, 0)


def start_ok(mechanism: str = "PLAIN", **capabilities: bool) -> bytes:
    """A client's start-ok frame."""
    return methods.ConnectionStartOk(
        {"capabilities": dict(capabilities)}, mechanism, b"\0guest\0guest", "en_US"
    ).encode(0)


def tune_ok(channel_max: int = 2047, frame_max: int = 131072, heartbeat: int = 0) -> bytes:
    """A client's tune-ok frame."""
    return methods.ConnectionTuneOk(channel_max, frame_max, heartbeat).encode(0)


def authenticated_server(**changes: object) -> AmqpConnection:
    """A server machine that has sent tune."""
    machine = server(**changes)
    machine.receive_data(HEADER + start_ok(), 0)
    machine.authentication_succeeded()
    machine.data_to_send()
    return machine


def opened_server(
    channels: tuple[int, ...] = (), heartbeat: int = 0, channel_max: int = 2047, **changes: object
) -> AmqpConnection:
    """A server machine in the phase open, with these channels open."""
    machine = authenticated_server(**changes)
    machine.receive_data(tune_ok(channel_max=channel_max, heartbeat=heartbeat), 0)
    machine.receive_data(methods.ConnectionOpen("/").encode(0), 0)
    machine.open_accepted()
    for number in channels:
        machine.receive_data(methods.ChannelOpen().encode(number), 0)
        machine.send(number, methods.ChannelOpenOk())
    machine.data_to_send()
    return machine


def flat(found: list[Event]) -> list[object]:
    """Events with batches taken apart, so that how reads were cut does not show."""
    out: list[object] = []
    for event in found:
        if isinstance(event, events.PublishesReceived):
            out += [("publish", event.channel, *item) for item in event.items]
        elif isinstance(event, events.AcksReceived):
            out += [("ack", event.channel, *ack) for ack in event.acks]
        else:
            out.append(event)
    return out


class ConnectionPair:
    """A client and a server machine; every exchange is fed whole, or byte by byte."""

    def __init__(self, is_bytewise: bool = False, **changes: object) -> None:
        self.is_bytewise = is_bytewise
        self.server = server(**changes)
        self.client = AmqpConnection(
            Role.CLIENT,
            ConnectionConfig(credentials=Credentials("guest", "guest"), heartbeat_s=30),
            0,
        )
        self.server_events: list[Event] = []
        self.client_events: list[Event] = []

    def exchange(self) -> None:
        """Moves bytes both ways until none are left."""
        for _ in range(100):
            up = self.client.data_to_send()
            for event in self._feed(self.server, up):
                self.server_events.append(event)
                self._answer(event)
            down = self.server.data_to_send()
            self.client_events += self._feed(self.client, down)
            if not up and not down:
                break
        self.server.check_invariants()
        self.client.check_invariants()

    def _feed(self, machine: AmqpConnection, data: bytes) -> list[Event]:
        if not data:
            return []
        if not self.is_bytewise:
            return machine.receive_data(data, 0)
        out: list[Event] = []
        for i in range(len(data)):
            out += machine.receive_data(data[i : i + 1], 0)
        return out

    def _answer(self, event: Event) -> None:
        """What every server does with the events of opening and closing."""
        machine = self.server
        if isinstance(event, events.AuthenticationRequested):
            assert event.response == b"\0guest\0guest"
            assert machine.authentication_succeeded() == []
        elif isinstance(event, events.OpenRequested):
            assert machine.open_accepted() == []
        elif isinstance(event, events.ChannelOpened):
            machine.send(event.channel, methods.ChannelOpenOk())
        elif isinstance(event, events.ChannelClosed) and event.by_peer:
            machine.send(event.channel, methods.ChannelCloseOk())
        elif isinstance(event, events.ConnectionClosed) and event.by_peer:
            machine.send(0, methods.ConnectionCloseOk())
