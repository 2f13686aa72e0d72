"""Direct reply-to: the pseudo queue `amq.rabbitmq.reply-to` (R-DRT), on one member or across two.

A channel that consumes it gets a name of its own, which says at which member and channel it is and
holds a secret; a publish to that name goes straight to the channel, past all queues.  At most once:
a reply whose channel is gone, or does not read, is dropped (and returned if it was mandatory).
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brokerd.cluster import deliveries as delivery_codec
from brokerd.cluster.errors import DeliveryFormatError
from brokerd.core.confirms import Confirms
from brokerd.core.effects import ConsumerId, Run
from brokerd.core.message import Content
from brokerd.raft.messages import CATALOG_GROUP, NodeId

if TYPE_CHECKING:
    from brokerd.core.router import RouteResult
    from brokerd.server.broker import Broker
    from brokerd.server.session import PublishTarget, Session

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
_NOBODY = ConsumerId("", 0, 0, "")

#: Told whether the channel has taken the reply.
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

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sinks: dict[int, tuple[bytes, Sink]] = {}
        self._questions: dict[int, tuple[Done, asyncio.TimerHandle]] = {}
        self._last_question = 0

    def open(self, channel_uid: int, sink: Sink) -> str:
        """Register a channel; return the name of its pseudo queue."""
        secret = os.urandom(_SECRET_BYTES)
        self._sinks[channel_uid] = (secret, sink)
        broker = self._broker
        raw = _ADDRESS.pack(_digest(broker.node), broker.incarnation, channel_uid) + secret
        return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")

    def close(self, channel_uid: int) -> None:
        """Its consumer is cancelled, or the channel has ended."""
        self._sinks.pop(channel_uid, None)

    def send(self, name: str, content: Content | None, done: Done | None) -> None:
        """Deliver a reply, or only ask (no content); `done` is told at once or later."""
        address = _parse(name)
        if address is None:
            taken = False
        elif address[:8] == _digest(self._broker.node):
            taken = self._take(address, content)
        else:
            self._send_away(address, content, done)
            return
        if done is not None:
            done(taken)

    async def exists(self, name: str) -> bool:
        """Tell whether someone awaits replies under this name (R-DRT-3, queue.declare)."""
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(is_there: bool) -> None:
            if not future.done():
                future.set_result(is_there)

        self.send(name, None, done)
        return await future

    def _take(self, address: bytes, content: Content | None) -> bool:
        _, incarnation, channel_uid = _ADDRESS.unpack_from(address)
        secret, sink = self._sinks.get(channel_uid, (b"", None))
        if sink is None or incarnation != self._broker.incarnation:
            return False
        if not hmac.compare_digest(secret, address[_ADDRESS.size :]):
            return False
        return content is None or sink.deliver_reply(content)

    # ---- other members ----------------------------------------------------------------------

    def _send_away(self, address: bytes, content: Content | None, done: Done | None) -> None:
        node = self._node_of(address[:8])
        if node is None or node not in self._broker.host.alive():
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
        payload = _HEAD.pack(_VERSION, number) + address + delivery_codec.encode(_NOBODY, runs)
        kind = delivery_codec.DeliveryKind.REPLY
        self._broker.host.send_delivery(node, CATALOG_GROUP, 0, kind, payload)

    def _node_of(self, digest: bytes) -> NodeId | None:
        names = self._broker.view.members()
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
        _, parts = delivery_codec.decode(payload[_HEAD.size + size :])
        taken = self._take(address, parts[0][1][0] if parts else None)
        if number:
            kind = delivery_codec.DeliveryKind.REPLY_TAKEN
            answer = _ANSWER.pack(number, taken)
            self._broker.host.send_delivery(sender, CATALOG_GROUP, 0, kind, answer)

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


def publish(
    session: Session,
    target: PublishTarget,
    result: RouteResult,
    contents: list[Content],
    number: int,
    replies: tuple[str, ...],
    tracker: Confirms | None,
) -> None:
    """Send a run of messages of which some targets are pseudo queues (R-DRT-3).

    A mandatory one comes back when nobody is there: known once the other member has answered.
    """
    mandatory = target.method.mandatory and len(replies) == 1 and not result.queues
    session.count_published(target, Routed((*result.queues, *replies)), contents, number)
    if tracker is not None:
        tracker.expect(number, len(contents), len(result.queues) + len(replies))
    if result.queues:
        session.publisher.add(result.queues, contents, number)
    for name in replies:
        for i, content in enumerate(contents):
            done = None
            if mandatory or tracker is not None:
                own = number + i if tracker is not None else number
                done = _Taken(session, target, content, own, mandatory)
            session.broker.replies.send(name, content, done)


@dataclass(slots=True)
class Routed:
    """A route with pseudo queues among its targets, as telemetry counts it."""

    queues: Sequence[object]
    alternates: Sequence[tuple[str, str]] = ()
    ae_missing: tuple[str, str] | None = None
    ae_cycle: bool = False


@dataclass(slots=True)
class _Taken:
    """What follows the answer to one reply."""

    session: Session
    target: PublishTarget
    content: Content
    number: int
    mandatory: bool

    def __call__(self, taken: bool) -> None:
        if self.session.has_ended:
            return
        if self.mandatory and not taken:
            self.session.send_return(self.target.method, self.content, 312, "NO_ROUTE")
        self.session.reply_taken(self.number)


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
