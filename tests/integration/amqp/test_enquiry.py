"""A node that starts asks the others what they know of it, member or not (peer.proto: Enquiry)."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.cluster.config import HostConfig
from brokerd.cluster.peer import join_request
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2
from tests.integration.cluster_toy import Member, toy_config, until

pytestmark = pytest.mark.timeout(240)

HERE = NodeId("here")
STRANGER = NodeId("stranger")


async def describe(node: NodeId, asked: peer_pb2.Enquiry) -> peer_pb2.Description:
    return peer_pb2.Description(
        standing=peer_pb2.Description.REMOVED,
        cluster_uid=asked.cluster_uid,
        members={node: asked.address},
    )


async def ask(config: HostConfig, node: NodeId, peer: NodeId, port: int) -> peer_pb2.Description:
    question = peer_pb2.Enquiry(address="x:1", cluster_uid="7", has_data=True)
    return await join_request.ask(config, node, 5, peer, f"127.0.0.1:{port}", question)


async def test_a_stranger_is_told_what_is_known_and_takes_no_part(tmp_path: Path) -> None:
    config = toy_config(secret="shown")
    member = Member(HERE, tmp_path, config, 1)
    await member.host.start({}, "127.0.0.1:0", describe)
    try:
        answer = await ask(config, STRANGER, HERE, member.host.port)
        assert answer.standing == peer_pb2.Description.REMOVED
        assert answer.cluster_uid == "7"
        assert dict(answer.members) == {STRANGER: "x:1"}
        assert not member.host.is_peer(STRANGER)
        # Not under the asked node's own name, and not without the secret (SEC-3).
        with pytest.raises(join_request.NoAnswer, match="no other member"):
            await ask(config, HERE, HERE, member.host.port)
        with pytest.raises(join_request.NoAnswer, match="wrong cluster secret"):
            await ask(toy_config(secret="guessed"), STRANGER, HERE, member.host.port)
        with pytest.raises(join_request.NoAnswer, match="it is 'here'"):
            await ask(config, STRANGER, NodeId("other"), member.host.port)
    finally:
        await member.close()
    with pytest.raises(join_request.NoAnswer):
        await ask(config, STRANGER, HERE, member.host.port)


async def test_a_node_that_cannot_tell_says_so(tmp_path: Path) -> None:
    config = toy_config()
    member = Member(HERE, tmp_path, config, 1)
    await member.host.start({STRANGER: "127.0.0.1:1"}, "127.0.0.1:0")
    try:
        answer = await ask(config, STRANGER, HERE, member.host.port)
        assert answer.standing == peer_pb2.Description.UNKNOWN
    finally:
        await member.close()


async def test_a_stream_that_broke_is_no_answer_to_a_question(tmp_path: Path) -> None:
    """With the compiled form (ADR 32) its end was once raised again from every later question, so
    that members whose first streams broke asked for their cluster for ever.
    """
    config = toy_config()
    member = Member(HERE, tmp_path / "here", config, 1)
    other = Member(STRANGER, tmp_path / "other", config, 1)
    await member.host.start({}, "127.0.0.1:0")
    try:
        await other.host.start({HERE: f"127.0.0.1:{member.host.port}"}, "127.0.0.1:0")
        await member.host.set_peers({STRANGER: f"127.0.0.1:{other.host.port}"})
        await until(lambda: member.host.transport.is_connected(STRANGER), 30)
        await other.close()
        await until(lambda: not member.host.transport.is_connected(STRANGER), 30)
        for _ in range(2):
            answer = await ask(config, STRANGER, HERE, member.host.port)
            assert answer.standing == peer_pb2.Description.UNKNOWN
    finally:
        await other.close()
        await member.close()
