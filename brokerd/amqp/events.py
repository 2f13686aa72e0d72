"""What comes out of `AmqpConnection`: one list of events per read, in the order of the bytes.

Requests of the peer that need an answer are answered by the handler of the event, with
`connection.send(...)`; the machine answers only the handshake and broken rules by itself.
Per-message data travels in plain tuples inside one event, never as one event per message.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from brokerd.amqp.methods import BasicDeliver, Method
from brokerd.amqp.values import Table


@dataclass(slots=True)
class AuthenticationRequested:
    """Server: a login.  Nothing further is read until `authentication_succeeded` or `_failed`."""

    mechanism: str
    response: bytes
    client_properties: Table
    locale: str

    def __repr__(self) -> str:
        # The response holds the password.
        return f"AuthenticationRequested(mechanism={self.mechanism!r}, response=***)"


@dataclass(slots=True)
class OpenRequested:
    """Server: connection.open.  Answer with `open_accepted()` or `close(530, ...)`."""

    vhost: str


@dataclass(slots=True)
class ConnectionOpened:
    """Client: open-ok came; channels may be opened."""

    server_properties: Table


@dataclass(slots=True)
class SecretUpdated:
    """Server: connection.update-secret (R-CON-13).  Answer with update-secret-ok or close 530."""

    new_secret: bytes
    reason: str

    def __repr__(self) -> str:
        return f"SecretUpdated(new_secret=***, reason={self.reason!r})"


@dataclass(slots=True)
class ChannelOpened:
    """Server: a client opened a channel, answer with channel.open-ok.  Client: open-ok came."""

    channel: int


@dataclass(slots=True)
class ChannelClosed:
    """The channel is gone.

    `by_peer`: the peer closed it; clean up, then answer with channel.close-ok.  Otherwise close-ok
    for our own channel.close came and the number is free again (R-CH-4).
    """

    channel: int
    by_peer: bool
    code: int = 0
    text: str = ""
    class_id: int = 0
    method_id: int = 0


@dataclass(slots=True)
class ChannelError:
    """The peer broke a rule that costs it the channel; channel.close is queued already."""

    channel: int
    code: int
    text: str
    class_id: int
    method_id: int


@dataclass(slots=True)
class MethodReceived:
    """A method that carries no content and is legal here."""

    channel: int
    method: Method


@dataclass(slots=True)
class PublishesReceived:
    """Server: a run of basic.publish on one channel, the batch unit (design/hot-path.md rule 1).

    Each item is (payload of the publish method, raw properties, body); `parse_publish` reads the
    first, from a cache.
    """

    channel: int
    items: list[tuple[bytes, bytes, bytes]]


@dataclass(slots=True)
class DeliveriesReceived:
    """Client: basic.deliver on one channel, once or as a run of messages that are alike but for
    their bodies and tags, each of which is one more than the last.

    `method` is the first one's.
    """

    channel: int
    method: BasicDeliver
    header: bytes
    bodies: list[bytes]


@dataclass(slots=True)
class ContentReceived:
    """Client: basic.return or basic.get-ok with its content."""

    channel: int
    method: Method
    header: bytes
    body: bytes


@dataclass(slots=True)
class AcksReceived:
    """A run of basic.ack on one channel: (delivery_tag, multiple) in the order of arrival."""

    channel: int
    acks: list[tuple[int, bool]]


@dataclass(slots=True)
class PublishHeld:
    """Server: content came while `hold_publishes` was set; reading has stopped (R-ALM-2)."""

    channel: int


@dataclass(slots=True)
class Blocked:
    """Client: the server will not read our publishes for now."""

    reason: str


@dataclass(slots=True)
class Unblocked:
    """Client: the server reads again."""


@dataclass(slots=True)
class ConnectionClosed:
    """The last event of an orderly end.

    `by_peer`: connection.close came; clean up, then answer with connection.close-ok.  Otherwise our
    own close was answered, or its time ran out.
    """

    by_peer: bool
    code: int
    text: str
    class_id: int = 0
    method_id: int = 0


@dataclass(slots=True)
class ConnectionFailed:
    """The connection is of no more use: a broken rule, silence, or the socket's end.

    `code` is the reply code of the connection.close that is queued, 0 when none is.
    """

    reason: str
    code: int = 0
    class_id: int = 0
    method_id: int = 0


Event: TypeAlias = (
    AuthenticationRequested
    | OpenRequested
    | ConnectionOpened
    | SecretUpdated
    | ChannelOpened
    | ChannelClosed
    | ChannelError
    | MethodReceived
    | PublishesReceived
    | DeliveriesReceived
    | ContentReceived
    | AcksReceived
    | PublishHeld
    | Blocked
    | Unblocked
    | ConnectionClosed
    | ConnectionFailed
)
