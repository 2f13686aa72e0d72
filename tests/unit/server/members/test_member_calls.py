"""Questions between members: answered, unanswered, and hostile."""

from __future__ import annotations

import asyncio
import json

import pytest

from brokerd.cluster.peer.deliveries import DeliveryKind
from brokerd.raft.messages import NodeId
from brokerd.server.members import member_calls
from brokerd.server.members.member_calls import MemberCalls
from brokerd.server.members.ports import Json
from tests.unit.server.members.fakes import Tasks


class Wire:
    """One of the two, as the other one's questions reach it."""

    def __init__(self, pair: Pair, node: NodeId) -> None:
        self.node = node
        self._pair = pair

    def alive(self) -> set[NodeId]:
        return {NodeId("n1"), NodeId("n2")}

    def send_delivery(self, node: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        pair = self._pair
        if pair.lost and self.node == "n2":
            return
        other = pair.one if node == "n1" else pair.two
        asyncio.get_running_loop().call_soon(other.received, self.node, kind, payload)


class Pair:
    """Two members wired back to back; `lost` drops what the second one sends."""

    def __init__(self) -> None:
        self.lost = False
        self.tasks = Tasks()
        self.one = self._member("n1")
        self.two = self._member("n2")

    def _member(self, name: str) -> MemberCalls:
        calls = MemberCalls(Wire(self, NodeId(name)), self.tasks.spawn)

        async def double(question: Json) -> Json:
            return {"is": question["number"] * 2, "from": name}

        calls.serve("double", double)
        return calls


async def test_members_answer_each_other_and_themselves() -> None:
    pair = Pair()
    assert await pair.one.ask("n2", "double", {"number": 4}) == {"is": 8, "from": "n2"}
    assert await pair.one.ask("n1", "double", {"number": 4}) == {"is": 8, "from": "n1"}
    found = await pair.one.ask_all(["n2", "n1"], "double", {"number": 1})
    assert found == {"n1": {"is": 2, "from": "n1"}, "n2": {"is": 2, "from": "n2"}}


async def test_no_answer_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_calls, "ANSWER_S", 0.02)
    pair = Pair()
    assert await pair.one.ask("n3", "double", {"number": 4}) is None
    assert await pair.one.ask("n2", "never heard of") is None
    # A question that its handler cannot read.
    assert await pair.one.ask("n2", "double") is None
    pair.lost = True
    assert await pair.one.ask("n2", "double", {"number": 4}) is None
    assert await pair.one.ask_all(["n2"], "double", {"number": 4}) == {}


async def test_questions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = Pair()
    monkeypatch.setattr(member_calls, "PAYLOAD_BYTES_MAX", 64)
    assert await pair.one.ask("n2", "double", {"number": 1, "text": "x" * 64}) is None
    monkeypatch.setattr(member_calls, "WAITING_MAX", 0)
    assert await pair.one.ask("n2", "double", {"number": 1}) is None


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01short",
        bytes([2]) + bytes(8) + b"{}",
        bytes([1]) + bytes(8) + b"no json",
        bytes([1]) + bytes(8) + b"[1]",
        bytes([1]) + bytes(8) + b"[" * 100_000,
        bytes([1]) + bytes(8) + b"\xff\xfe",
        bytes([1]) + bytes(8) + json.dumps({"ask": ["double"]}).encode(),
    ],
)
@pytest.mark.parametrize("kind", [DeliveryKind.CALL, DeliveryKind.ANSWER])
async def test_what_is_no_question_and_no_answer_is_dropped(
    kind: DeliveryKind, payload: bytes
) -> None:
    pair = Pair()
    pair.two.received(NodeId("n1"), kind, payload)
    await pair.tasks.wait()
    assert await pair.one.ask("n2", "double", {"number": 3}) == {"is": 6, "from": "n2"}
