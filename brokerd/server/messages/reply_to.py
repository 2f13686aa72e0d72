"""Direct reply-to: the pseudo queue `amq.rabbitmq.reply-to` (R-DRT), on one member or across two.

A channel that consumes it gets a name of its own, which says at which member and channel it is and
holds a secret; a publish to that name goes straight to the channel, past all queues.  At most once:
a reply whose channel is gone, or does not read, is dropped (and returned if it was mandatory).
Within a vhost only: nothing crosses vhosts (R-VH-1), so elsewhere the name belongs to no channel.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.message import Content
from brokerd.core.queue.effects import ConsumerId, Run
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.queues import ports as queue_ports

#: What clients consume, and name in reply_to; the channel's own name is PREFIX and an address.
PSEUDO_QUEUE = "amq.rabbitmq.reply-to"
PREFIX = PSEUDO_QUEUE + "."
#: How long another member may take to say whether a channel is there.
ANSWER_S = 5.0
#: Questions to other members that are open at once; beyond it replies go without asking.
WAITING_MAX = 10_000

#: digest of the member's name, incarnation, channel
_ADDRESS = struct.Struct(">8sQQ")
_SECRET_BYTES = 16
#: version, number of the question (0: no answer wanted)
_HEAD = struct.Struct(">BQ")
_VERSION = 1
_ANSWER = struct.Struct(">Q?")
#: Where the publisher's vhost stands in what goes to another member: the tag of the consumer id
#: that is there for the codec, with this in the place of the node. Older members look at
#: neither, and name no vhost.
_VHOST = "vhost"

#: Called with whether the channel has taken the reply.
Done = Callable[[bool], None]


class Sink(Protocol):
    """A channel, as this module sees it."""

    def deliver_reply(self, content: Content) -> bool:
        """Hand a reply to the client; False: it cannot be."""
        ...


@dataclass(slots=True)
class ReplyConsumer:
    """A channel's consumer of the pseudo queue."""

    tag: str
    #: The channel's own name of it: what reply_to becomes (R-DRT-2).
    queue: str


class Replies:
    """The channels of this member that await replies, and the questions to other members."""

    def __init__(
        self, identity: queue_ports.Identity, members: queue_ports.Members, view: CatalogState
    ) -> None:
        self._identity = identity
        self._members = members
        self._view = view
        self._sinks: dict[int, tuple[str, bytes, Sink]] = {}
        self._questions: dict[int, tuple[Done, asyncio.TimerHandle]] = {}
        self._last_question = 0

    def open(self, channel_uid: int, vhost: str, sink: Sink) -> str:
        """Register a channel; return the name of its pseudo queue."""
        secret = os.urandom(_SECRET_BYTES)
        self._sinks[channel_uid] = (vhost, secret, sink)
        own = self._identity
        raw = _ADDRESS.pack(_digest(own.node), own.incarnation, channel_uid) + secret
        return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def close(self, channel_uid: int) -> None:
        """Its consumer is cancelled, or the channel has ended."""
        self._sinks.pop(channel_uid, None)

    def send(self, vhost: str, name: str, content: Content | None, done: Done | None) -> None:
        """Deliver a reply from a vhost, or only ask (no content); `done` is called, maybe later."""
        address = _parse(name)
        if address is None:
            taken = False
        elif address[:8] == _digest(self._identity.node):
            taken = self._take(vhost, address, content)
        else:
            self._send_away(vhost, address, content, done)
            return
        if done is not None:
            done(taken)

    async def exists(self, vhost: str, name: str) -> bool:
        """Tell whether someone awaits replies under this name (R-DRT-3, queue.declare)."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(is_there: bool) -> None:
            if not future.done():
                future.set_result(is_there)

        self.send(vhost, name, None, done)
        return await future

    def _take(self, vhost: str | None, address: bytes, content: Content | None) -> bool:
        _, incarnation, channel_uid = _ADDRESS.unpack_from(address)
        own_vhost, secret, sink = self._sinks.get(channel_uid, ("", b"", None))
        if sink is None or incarnation != self._identity.incarnation:
            return False
        if vhost is not None and vhost != own_vhost:
            return False
        if not hmac.compare_digest(secret, address[_ADDRESS.size :]):
            return False
        return content is None or sink.deliver_reply(content)

    # ---- other members ----------------------------------------------------------------------

    def _send_away(
        self, vhost: str, address: bytes, content: Content | None, done: Done | None
    ) -> None:
        node = self._node_of(address[:8])
        if node is None or node not in self._members.alive():
            if done is not None:
                done(False)
            return
        number = 0
        if done is not None and len(self._questions) < WAITING_MAX:
            self._last_question += 1
            number = self._last_question
            timer = asyncio.get_running_loop().call_later(ANSWER_S, self._answered, number, False)
            self._questions[number] = (done, timer)
        elif done is not None:
            done(True)
        runs = [] if content is None else [(Run(0, 1, 0, 0, 0, 0), [content])]
        sender = ConsumerId(_VHOST, 0, 0, vhost)
        payload = _HEAD.pack(_VERSION, number) + address + delivery_codec.encode(sender, runs)
        kind = delivery_codec.DeliveryKind.REPLY
        self._members.send_delivery(node, CATALOG_GROUP, 0, kind, payload)

    def _node_of(self, digest: bytes) -> NodeId | None:
        names = self._view.members()
        return next((NodeId(name) for name in names if _digest(name) == digest), None)

    def received(self, sender: NodeId, payload: bytes) -> None:
        """Another member has a reply (or a question) for a channel of this one."""
        size = _ADDRESS.size + _SECRET_BYTES
        if len(payload) < _HEAD.size + size:
            raise DeliveryFormatError(f"bad reply of {len(payload)} bytes")
        version, number = _HEAD.unpack_from(payload)
        if version != _VERSION:
            raise DeliveryFormatError(f"reply of version {version}")
        address = payload[_HEAD.size : _HEAD.size + size]
        publisher, parts = delivery_codec.decode(payload[_HEAD.size + size :])
        vhost = publisher.tag if publisher.node == _VHOST else None
        taken = self._take(vhost, address, parts[0][1][0] if parts else None)
        if number:
            kind = delivery_codec.DeliveryKind.REPLY_TAKEN
            answer = _ANSWER.pack(number, taken)
            self._members.send_delivery(sender, CATALOG_GROUP, 0, kind, answer)

    def answered(self, payload: bytes) -> None:
        """Another member says what became of a reply."""
        if len(payload) != _ANSWER.size:
            raise DeliveryFormatError(f"bad answer of {len(payload)} bytes")
        self._answered(*_ANSWER.unpack(payload))

    def _answered(self, number: int, taken: bool) -> None:
        found = self._questions.pop(number, None)
        if found is not None:
            done, timer = found
            timer.cancel()
            done(taken)


def _digest(node: str) -> bytes:
    return hashlib.sha256(node.encode("utf-8", "surrogateescape")).digest()[:8]


def _parse(name: str) -> bytes | None:
    """Return the address in a name, None if it is none."""
    text = name[len(PREFIX) :]
    try:
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return raw if len(raw) == _ADDRESS.size + _SECRET_BYTES else None
