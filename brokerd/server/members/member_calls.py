"""Questions of one member to another: who leads what, how far a replica is, please hand over.

For administration, where an answer needs what only others know.  Best effort: no answer within the
time is None.  Nothing of a message's way uses it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import struct
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeAlias

from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.members import ports
from brokerd.server.members.ports import Json

log = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Json], Awaitable[Json]]

#: A member that is up answers within milliseconds; one that is just being lost never does.
ANSWER_S = 5.0
#: Questions that wait at once; beyond it there is no answer.
WAITING_MAX = 1_024
#: Of a question or an answer.
PAYLOAD_BYTES_MAX = 16 * 1024 * 1024
_VERSION = 1
_HEAD = struct.Struct("<BQ")


class Members(Protocol):
    """The members of the cluster, this one by its name."""

    node: NodeId

    def alive(self) -> set[NodeId]:
        """Return those that are up."""
        ...

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        """Send one of them something; it may get lost."""
        ...


class MemberCalls:
    """State: questions that wait for their answers; who answers which question here."""

    def __init__(self, members: Members, spawn: ports.Spawn) -> None:
        self._members = members
        self._spawn = spawn
        self._handlers: dict[str, Handler] = {}
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self._last_token = 0

    def serve(self, name: str, handler: Handler) -> None:
        """Answer questions of this name by `handler`."""
        self._handlers[name] = handler

    async def ask(self, node: str, name: str, fields: Json | None = None) -> Json | None:
        """Return a member's answer, this one's included; None: there is none."""
        question = {"ask": name, **(fields or {})}
        members = self._members
        if node == members.node:
            return await self._handlers[name](question)
        payload = json.dumps(question, separators=(",", ":")).encode()
        if (
            node not in members.alive()
            or len(self._waiting) >= WAITING_MAX
            or len(payload) > PAYLOAD_BYTES_MAX
        ):
            return None
        self._last_token += 1
        token = self._last_token
        future: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._waiting[token] = future
        self._send(NodeId(node), DeliveryKind.CALL, token, payload)
        try:
            async with asyncio.timeout(ANSWER_S):
                return await future
        except TimeoutError:
            return None
        finally:
            del self._waiting[token]

    async def ask_all(
        self, nodes: Iterable[str], name: str, fields: Json | None = None
    ) -> dict[str, Json]:
        """Return the answers of those that answered."""
        asked = sorted(nodes)
        answers = await asyncio.gather(*(self.ask(node, name, fields) for node in asked))
        pairs = zip(asked, answers, strict=True)
        return {node: answer for node, answer in pairs if answer is not None}

    def received(self, sender: NodeId, kind: int, payload: bytes) -> None:
        """Another member asks or answers."""
        if len(payload) < _HEAD.size or len(payload) > PAYLOAD_BYTES_MAX + _HEAD.size:
            return
        version, token = _HEAD.unpack_from(payload)
        try:
            fields = json.loads(payload[_HEAD.size :])
        except (ValueError, RecursionError):
            return
        if version != _VERSION or not isinstance(fields, dict):
            return
        if kind == DeliveryKind.CALL:
            self._spawn(self._answer(sender, token, fields))
            return
        future = self._waiting.get(token)
        if future is not None and not future.done():
            future.set_result(fields)

    async def _answer(self, sender: NodeId, token: int, question: Json) -> None:
        handler = self._handlers.get(str(question.get("ask")))
        if handler is None:
            # A later release asks what this one does not know: no answer says so.
            return
        try:
            answer = await handler(question)
        except (KeyError, TypeError, ValueError):
            log.warning("member %s asked what cannot be answered: %.200r", sender, question)
            return
        payload = json.dumps(answer, separators=(",", ":")).encode()
        self._send(sender, DeliveryKind.ANSWER, token, payload)

    def _send(self, node: NodeId, kind: DeliveryKind, token: int, payload: bytes) -> None:
        head = _HEAD.pack(_VERSION, token)
        self._members.send_delivery(node, CATALOG_GROUP, 0, kind, head + payload)
