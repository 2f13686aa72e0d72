"""Plays a sequence on one server and notes every frame that comes back, channel by channel.

Connections and channels are opened when a step needs them, so that any part of a sequence is a
sequence.  Nothing here judges: `fuzz_compare.py` does.  Used by the differential fuzzer only.
"""

from __future__ import annotations

import contextlib
import copy
import re
import select
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.amqp import methods
from brokerd.amqp.channel import decode_method, method_class
from brokerd.amqp.methods import Method
from brokerd.amqp.properties import EMPTY, BasicProperties
from tests.compat.fuzz_sequences import QUEUES, Step
from tests.integration import raw_client

#: What a client announces that wants to hear everything.
CAPABILITIES = dict.fromkeys(
    (
        "publisher_confirms",
        "consumer_cancel_notify",
        "exchange_exchange_bindings",
        "basic.nack",
        "connection.blocked",
        "authentication_failure_close",
        "per_consumer_qos",
    ),
    True,
)
#: A server that says nothing for so long hangs.
SILENCE_SECONDS = 60.0
#: The queues whose counts are compared after each step, each on a channel of its own.
WATCHED = (*QUEUES, "~q\u00e9", "~none")
_GENERATED = re.compile(r"amq\.(gen|ctag)-[\w-]{20,24}")
#: Asks for an answer that nothing else asks for and that changes nothing.
_PROBE = methods.ChannelFlow(True)

Event = tuple[Any, ...]


class Silent(Exception):
    """The server did not answer a probe."""


@dataclass(slots=True)
class Channel:
    """What is known of one open channel."""

    #: Outstanding delivery tags.
    unacked: list[int] = field(default_factory=list)
    #: The tags of consumers without acknowledgement.
    unsettled_tags: set[str] = field(default_factory=set)
    is_confirming: bool = False
    published: int = 0
    unconfirmed: set[int] = field(default_factory=set)
    #: Sent with no_ack, answered by get-ok or get-empty.
    gets: list[bool] = field(default_factory=list)
    #: Consumers whose tag the server chooses: are they without acknowledgement?
    unnamed: list[bool] = field(default_factory=list)
    probes: int = 0
    #: The client has sent channel.close.
    is_closing: bool = False


class Client(raw_client.RawClient):
    """The client of exact bytes, which can also say whether a frame lies here already."""

    def has_frame(self) -> bool:
        """Tell whether `next_frame` would answer without reading."""
        if len(self._buffer) < 8:
            return False
        return len(self._buffer) >= 8 + int(struct.unpack_from(">I", self._buffer, 3)[0])


class Wire:
    """One connection.  State: its channels, and the content that is being read."""

    def __init__(self, port: int, vhost: str) -> None:
        self.client = Client(port, vhost=vhost, capabilities=dict(CAPABILITIES))
        # Small writes one after the other: without this each waits for a delayed acknowledgement.
        self.client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.channels: dict[int, Channel] = {}
        self.is_open = True
        #: The client has sent connection.close.
        self.is_closing = False
        self._partial: list[Any] = []

    def end(self) -> None:
        """Close the socket."""
        self.is_open = False
        self.client.close()

    def is_busy(self) -> bool:
        """Tell whether an answer or the end has to come."""
        return self.is_closing or any(
            channel.probes or channel.is_closing for channel in self.channels.values()
        )

    def frames(self, seconds: float) -> Iterable[tuple[int, Method, bytes, bytes]]:
        """Yield (channel, method, properties, body) of what arrives within the time."""
        client = self.client
        while client.has_frame() or select.select([client.socket], [], [], seconds)[0]:
            seconds = 0
            try:
                found = client.next_frame()
            except ConnectionResetError:
                found = None
            if found is None:
                self.end()
                yield 0, methods.ConnectionCloseOk(), b"end of stream", b""
                return
            whole = self._assemble(*found)
            if whole is not None:
                yield whole
            if not self.is_open:
                return

    def _assemble(
        self, kind: int, channel: int, payload: bytes
    ) -> tuple[int, Method, bytes, bytes] | None:
        if kind == 1:
            method = decode_method(method_class(payload), payload)
            if not method.HAS_CONTENT:
                return channel, method, b"", b""
            self._partial = [channel, method, b"", b"", None]
            return None
        partial = self._partial
        assert partial, "content without a method"
        assert partial[0] == channel, "a content inside another"
        if kind == 2:
            partial[2], partial[4] = payload[12:], struct.unpack_from(">Q", payload, 4)[0]
        else:
            partial[3] += payload
        if len(partial[3]) < partial[4]:
            return None
        self._partial = []
        return partial[0], partial[1], partial[2], partial[3]


class Player:
    """One server in one run.  State: connections, and the events of the present step."""

    def __init__(self, name: str, ports: Sequence[int], vhost: str, prefix: str) -> None:
        """ports: of its members; connections are spread over them."""
        self._name, self._ports, self._vhost, self._prefix = name, ports, vhost, prefix
        self._wires: dict[int, Wire] = {}
        #: Names that the server made, in their order.
        self._names: dict[str, str] = {}
        #: (connection, channel, category) to what came since `begin`.
        self.events: dict[tuple[int, int, str], list[Event]] = {}
        self._control = Wire(ports[0], vhost)
        #: Name to (ready, consumers), or to the code of the refusal.
        self.counts: dict[str, tuple[int, int] | int] = {}

    def begin(self) -> None:
        """Forget the events of the step before."""
        self.events.clear()

    def outstanding(self, connection: int, channel: int) -> list[int]:
        """Return the delivery tags a client may settle."""
        wire = self._wires.get(connection)
        found = wire.channels.get(channel) if wire is not None else None
        return sorted(found.unacked) if found is not None else []

    def perform(self, step: Step, tag: int | None) -> None:
        """Send a step; `tag` is the delivery tag that its pick stands for."""
        wire = self._wire(step.connection)
        if step.drop:
            wire.end()
            return
        method = self._named(step.method)
        if isinstance(method, methods.ConnectionClose):
            wire.client.send(0, method)
            wire.is_closing = True
            return
        channel = wire.channels.get(step.channel)
        if channel is None:
            channel = self._open(wire, step)
        if tag is not None:
            method.delivery_tag = tag  # type: ignore[attr-defined]
        if isinstance(method, methods.BasicPublish):
            assert step.properties is not None
            properties = self._deep(step.properties)
            frames = raw_client.publish(
                step.channel,
                method.exchange,
                method.routing_key,
                step.body,
                properties.encode(),
                method.mandatory,
            )
            first = method.encode(step.channel)
            frames = first + frames[len(first) :]
            wire.client.send(step.channel, frames * step.count)
            for _ in range(step.count if channel.is_confirming else 0):
                channel.published += 1
                channel.unconfirmed.add(channel.published)
            return
        self._note_sent(channel, method)
        wire.client.send(step.channel, method)
        if isinstance(method, methods.TxCommit):
            # R-CH-9: nothing else may come before the answer.
            self._await_reply(wire, step)

    def _open(self, wire: Wire, step: Step) -> Channel:
        """Open a channel and wait for it: an error of the connection would overtake the answer."""
        wire.client.send(step.channel, methods.ChannelOpen())
        channel = wire.channels[step.channel] = Channel()
        self._await_reply(wire, step)
        return channel

    def _await_reply(self, wire: Wire, step: Step) -> None:
        """Read until one more answer is there on the step's channel, or the connection ends."""
        at = (step.connection, step.channel, "reply")
        known = len(self.events.get(at, ()))
        deadline = time.monotonic() + SILENCE_SECONDS
        while wire.is_open and len(self.events.get(at, ())) == known:
            self._read(step.connection, wire, 0.05)
            if time.monotonic() > deadline:
                raise Silent(f"{self._name}: no answer to {step}")

    def _wire(self, number: int) -> Wire:
        wire = self._wires.get(number)
        if wire is None or not wire.is_open:
            if wire is not None:
                wire.client.close()
            wire = self._wires[number] = Wire(self._ports[number % len(self._ports)], self._vhost)
        return wire

    def _note_sent(self, channel: Channel, method: Method) -> None:
        channel.is_closing = isinstance(method, methods.ChannelClose)
        if isinstance(method, methods.BasicGet):
            channel.gets.append(method.no_ack)
        elif isinstance(method, methods.BasicConsume) and method.no_ack:
            channel.unsettled_tags.add(method.consumer_tag)
        elif isinstance(method, methods.ConfirmSelect):
            channel.is_confirming = True
        elif isinstance(method, methods.BasicRecover | methods.BasicRecoverAsync):
            channel.unacked.clear()
        elif isinstance(method, methods.BasicAck | methods.BasicNack | methods.BasicReject):
            tag, many = method.delivery_tag, getattr(method, "multiple", False)
            channel.unacked = [
                other
                for other in channel.unacked
                if not (other == tag or (many and (tag == 0 or other < tag)))
            ]
        if isinstance(method, methods.BasicConsume) and not method.consumer_tag:
            channel.unnamed.append(method.no_ack)

    def settle(self) -> None:
        """Read until every channel and every watched queue has answered once more.

        What a channel's probe follows is done there; a queue that has answered the control
        channel has handed out what it had; the second probes come behind those deliveries.
        """
        self.probe()
        self._count()
        self.probe()

    def probe(self) -> None:
        """Read until each open channel has answered a probe."""
        for wire in self._wires.values():
            with contextlib.suppress(OSError):
                for number, channel in wire.channels.items():
                    if wire.is_open and not wire.is_closing and not channel.is_closing:
                        channel.probes += 1
                        wire.client.send(number, _PROBE)
        deadline = time.monotonic() + SILENCE_SECONDS
        for number, wire in self._wires.items():
            while wire.is_open and wire.is_busy():
                self._read(number, wire, 0.05)
                if time.monotonic() > deadline:
                    raise Silent(f"{self._name}: no answer on connection {number}")
        for number, wire in self._wires.items():
            self._read(number, wire, 0.0)

    def wait(self, seconds: float) -> None:
        """Let time pass, reading."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            sockets = [wire.client.socket for wire in self._wires.values() if wire.is_open]
            select.select(sockets, [], [], left)
            for number, wire in self._wires.items():
                self._read(number, wire, 0.0)

    def _read(self, number: int, wire: Wire, seconds: float) -> None:
        if not wire.is_open:
            return
        for channel, method, properties, body in wire.frames(seconds):
            self._arrived(number, wire, channel, method, properties, body)

    def _note(self, connection: int, channel: int, category: str, event: Event) -> None:
        self.events.setdefault((connection, channel, category), []).append(event)

    def _arrived(
        self, number: int, wire: Wire, at: int, method: Method, properties: bytes, body: bytes
    ) -> None:
        channel = wire.channels.get(at)
        if isinstance(method, methods.ConnectionClose):
            with contextlib.suppress(OSError):
                wire.client.send(0, methods.ConnectionCloseOk())
        if isinstance(method, methods.ConnectionClose | methods.ConnectionCloseOk):
            # Who closes the socket now is nobody's business (RabbitMQ waits for the client).
            wire.end()
        if isinstance(method, methods.ChannelClose):
            wire.client.send(at, methods.ChannelCloseOk())
        if isinstance(method, methods.ChannelClose | methods.ChannelCloseOk):
            wire.channels.pop(at, None)
        elif channel is not None and self._is_expected(number, at, channel, method):
            return
        category, event = "reply", self._event(method, properties, body)
        if isinstance(method, methods.BasicDeliver | methods.BasicReturn):
            category = method.NAME
        elif isinstance(method, methods.BasicCancel):
            category = "cancel"
        if channel is not None:
            self._note_delivery(channel, method)
        self._note(number, at, category, event)

    def _is_expected(self, number: int, at: int, channel: Channel, method: Method) -> bool:
        """Take answers to probes, and confirms, which come in any grouping (R-PC-8)."""
        if isinstance(method, methods.ChannelFlowOk) and channel.probes:
            channel.probes -= 1
            return True
        if not isinstance(method, methods.BasicAck | methods.BasicNack):
            return False
        if isinstance(method, methods.BasicAck) and channel.is_confirming is False:
            return False
        upto = method.delivery_tag
        settled = {tag for tag in channel.unconfirmed if tag <= upto} if method.multiple else {upto}
        for tag in sorted(settled):
            self._note(number, at, "confirm", (tag, method.NAME))
        channel.unconfirmed -= settled
        return True

    def _note_delivery(self, channel: Channel, method: Method) -> None:
        if isinstance(method, methods.BasicDeliver):
            if method.consumer_tag not in channel.unsettled_tags:
                channel.unacked.append(method.delivery_tag)
        elif isinstance(method, methods.BasicGetOk | methods.BasicGetEmpty):
            if not channel.gets.pop(0) and isinstance(method, methods.BasicGetOk):
                channel.unacked.append(method.delivery_tag)
        elif (
            isinstance(method, methods.BasicConsumeOk)
            and method.consumer_tag.startswith("amq.ctag-")
            and channel.unnamed.pop(0)
        ):
            channel.unsettled_tags.add(method.consumer_tag)

    def _event(self, method: Method, properties: bytes, body: bytes) -> Event:
        fields = tuple((name, self._plain(getattr(method, name))) for name in method.FIELDS)
        if not method.HAS_CONTENT:
            return (method.NAME, fields) if not properties else ("end of stream",)
        decoded = BasicProperties.decode(properties or EMPTY)
        given = {
            name: self._plain(value)
            for name in BasicProperties.__slots__
            if (value := getattr(decoded, name)) is not None
        }
        return method.NAME, fields, given, body

    def _plain(self, value: Any) -> Any:
        """A value without what differs from run to run."""
        if isinstance(value, str):
            value = _GENERATED.sub(
                lambda m: self._names.setdefault(m[0], f"{m[1]}#{len(self._names)}"), value
            )
            return value.replace(self._prefix, "~")
        if isinstance(value, list):
            return [self._plain(item) for item in value]
        if isinstance(value, dict):
            return {
                self._plain(key): "now" if _is_death_time(key, value) else self._plain(item)
                # RabbitMQ sorts a table that it adds something to (R-PUB-11).
                for key, item in sorted(value.items())
            }
        return type(value).__name__, value

    def _count(self) -> None:
        """Ask for the counts of the watched queues."""
        wire = self._control
        for at, name in enumerate(WATCHED, 1):
            if at not in wire.channels:
                wire.channels[at] = Channel()
                wire.client.send(at, methods.ChannelOpen())
            wire.client.send(at, methods.QueueDeclare(queue=self._full(name), passive=True))
        missing = dict(enumerate(WATCHED, 1))
        deadline = time.monotonic() + SILENCE_SECONDS
        while missing:
            for at, method, _, _ in wire.frames(0.05):
                if isinstance(method, methods.QueueDeclareOk):
                    self.counts[missing.pop(at)] = (method.message_count, method.consumer_count)
                elif isinstance(method, methods.ChannelClose):
                    self.counts[missing.pop(at)] = method.reply_code
                    wire.client.send(at, methods.ChannelCloseOk())
                    del wire.channels[at]
                else:
                    assert isinstance(method, methods.ChannelOpenOk), method
            assert wire.is_open, "the server ended the control connection"
            if time.monotonic() > deadline:
                raise Silent(f"{self._name}: no answer for queues {sorted(missing.values())}")

    def close(self) -> None:
        """Drop the connections and delete what the run has made."""
        for wire in self._wires.values():
            wire.client.close()
        generated = [name for name in self._names if name.startswith("amq.gen-")]
        at = 100
        wire = self._control
        wire.client.send(at, methods.ChannelOpen())
        for name in (*map(self._full, WATCHED), *generated):
            wire.client.send(at, methods.QueueDelete(queue=name))
            reply: Method | None = None
            while not isinstance(reply, methods.QueueDeleteOk | methods.ChannelClose):
                found = wire.client.next_method()
                assert found is not None
                reply = found[1]
            if isinstance(reply, methods.ChannelClose):
                wire.client.send(at, methods.ChannelCloseOk(), methods.ChannelOpen())
        for name in ("~e1", "~e2", "~e3"):
            wire.client.send(at, methods.ExchangeDelete(exchange=self._full(name)))
            wire.client.next_method()
        wire.client.close()

    def _full(self, name: str) -> str:
        return name.replace("~", self._prefix)

    def _named(self, method: Method) -> Method:
        return self._deep(method)

    def _deep(self, thing: Any) -> Any:
        """A copy with every `~` of its texts replaced."""
        made = copy.copy(thing)
        names = getattr(thing, "FIELDS", None) or type(thing).__slots__
        for name in names:
            setattr(made, name, self._replaced(getattr(thing, name)))
        return made

    def _replaced(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._full(value)
        if isinstance(value, list):
            return [self._replaced(item) for item in value]
        if isinstance(value, dict):
            return {self._full(key): self._replaced(item) for key, item in value.items()}
        return value


def _is_death_time(key: str, table: dict[str, Any]) -> bool:
    """Whether this is the time in an entry of x-death."""
    return key == "time" and "reason" in table and "count" in table
