"""Queues whose group has no leader since members are damaged: every operation says so, or goes on.

Real members; damage is a flipped bit in a message that is on disk, as tests/chaos does it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pika
import pika.exceptions
import pytest

from brokerd.amqp import methods
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.cluster.test_members_come_and_go import ctl
from tests.integration.members import PATIENCE_SECONDS, Member, cluster, eventually
from tests.integration.messages_client import Client, batch, metadata, publication
from tests.integration.raw_client import RawClient, publish

pytestmark = pytest.mark.timeout(300)

QUORUM = {"x-queue-type": "quorum"}
BODY = b"message number %d of the damaged queue"
TEXT_BYTES_MAX = 255


def damage(member: Member, body: bytes) -> None:
    """Flip a bit of a message on a stopped member's disk, wherever it stands there."""
    count = 0
    for path in (member.data_dir / "wal").rglob("*.log"):
        image = bytearray(path.read_bytes())
        at = image.find(body)
        while at >= 0:
            image[at] ^= 1
            count += 1
            at = image.find(body, at)
        path.write_bytes(image)
    assert count, f"{member.name} does not hold {body!r}"


def fill(member: Member, queue: str, count: int) -> None:
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare(queue, durable=True, arguments=QUORUM)
    channel.confirm_delivery()
    for number in range(count):
        channel.basic_publish("", queue, BODY % number)
    connection.close()


def status(member: Member, queue: str) -> dict[str, Any]:
    """Return what quorum_status says of each member."""
    with grpc.insecure_channel(f"127.0.0.1:{member.grpc_port}") as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        request = admin_pb2.QuorumStatusRequest(vhost="/", name=queue)
        answer = stub.QuorumStatus(request, metadata=metadata(), timeout=PATIENCE_SECONDS)
    return {row.member: row for row in answer.members}


def has_leader(member: Member, queue: str) -> bool:
    return any(row.state == "leader" for row in status(member, queue).values())


def is_whole(member: Member, queue: str, count: int) -> bool:
    """Tell whether so many members of the queue vote, and one leads."""
    rows = status(member, queue).values()
    whole = [row for row in rows if row.membership == "voter" and not row.problem]
    return len(whole) == count and any(row.state == "leader" for row in rows)


def closed_text(connection: pika.BlockingConnection, use: Callable[[Any], Any]) -> str:
    """Return why the channel was closed on which this was done."""
    channel = connection.channel()
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        use(channel)
    assert caught.value.reply_code == 404
    assert len(caught.value.reply_text.encode()) <= TEXT_BYTES_MAX
    return str(caught.value.reply_text)


USES: dict[str, Callable[[Any], Any]] = {
    "get": lambda channel: channel.basic_get("hurt"),
    "consume": lambda channel: channel.basic_consume("hurt", lambda *_: None),
    "declare passive": lambda channel: channel.queue_declare("hurt", passive=True),
    "declare": lambda channel: channel.queue_declare("hurt", durable=True, arguments=QUORUM),
    "purge": lambda channel: channel.queue_purge("hurt"),
}


def test_a_queue_that_waits_with_damage_says_so_until_it_works_again(tmp_path: Path) -> None:
    """First one member is down that could help, then nobody can."""
    with cluster(tmp_path, 3) as members:
        one, two, three = members
        fill(one, "hurt", 20)
        fill(one, "sound", 1)
        standing = RawClient(one.amqp_port)
        standing.open(1)
        standing.open(2)
        standing.send(2, methods.ConfirmSelect())
        standing.expect(methods.ConfirmSelectOk)
        standing.send(1, methods.BasicConsume(0, "hurt", "waits"))
        standing.expect(methods.BasicConsumeOk)
        for _ in range(20):
            standing.content(methods.BasicDeliver)

        # n0 is whole, n1 is damaged, n2 is down: those that could vote are no majority.
        lose_majority(members)
        damage(two, BODY % 7)
        two.start()
        check_that_one_is_waited_for(standing, members)
        three.start()
        assert standing.expect(methods.BasicAck).delivery_tag == 1
        eventually(lambda: is_whole(one, "hurt", 3), "n1 votes again")
        three.wait_ready()
        connection = three.connect()
        declared = connection.channel().queue_declare("hurt", passive=True)
        assert declared.method.message_count == 21
        connection.close()

        # Two of three are damaged: nothing heals that by itself.
        lose_majority(members)
        standing.send(2, publish(2, "", "hurt", b"on its way"))
        damage(two, BODY % 8)
        damage(three, BODY % 9)
        two.start()
        three.start()
        assert standing.expect(methods.BasicNack).delivery_tag == 2
        standing.close()
        three.wait_ready()
        check_that_nothing_helps(three)


def lose_majority(members: list[Member]) -> None:
    one, two, three = members
    two.kill()
    three.kill()
    # Asked before, they would be waited for.
    eventually(lambda: one.running_members() == 1, "the others are known to be down")
    eventually(lambda: not has_leader(one, "hurt"), "the queue has no leader")


def check_that_one_is_waited_for(standing: RawClient, members: list[Member]) -> None:
    one, two, _ = members
    close = standing.expect(methods.ChannelClose)
    standing.send(1, methods.ChannelCloseOk())
    assert close.reply_code == 404
    assert close.reply_text == (
        "NOT_FOUND - queue 'hurt' in vhost '/' is damaged: waits for n2, since n1 must be "
        "refilled to vote; see 'brokerctl quorum_status'"
    )
    two.wait_ready()
    connection = two.connect()
    for use in USES.values():
        assert "is damaged: waits for n2" in closed_text(connection, use)
    # Who is connected works on with all else.
    assert connection.channel().basic_get("sound", auto_ack=True)[0] is not None
    connection.close()
    assert "no leader to refill it" in status(one, "hurt")["n1"].problem
    # What is published waits for the member as it always does.
    standing.send(2, publish(2, "", "hurt", b"later"))


def check_that_nothing_helps(member: Member) -> None:
    connection = member.connect()
    for use in USES.values():
        text = closed_text(connection, use)
        assert "is damaged: no majority of whole members can refill n1, n2;" in text
    channel = connection.channel()
    channel.confirm_delivery()
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", "hurt", b"at once")
    channel.basic_publish("", "sound", b"still here")
    check_grpc(member)
    refused = ctl(member, "delete_queue", "hurt", "--if-empty")
    assert "is damaged" in refused.stderr
    channel.queue_delete("hurt")
    channel.queue_declare("hurt", durable=True, arguments=QUORUM)
    channel.basic_publish("", "hurt", b"anew")
    assert channel.basic_get("hurt", auto_ack=True)[2] == b"anew"
    connection.close()


def check_grpc(member: Member) -> None:
    """Both streams of the Messages service say the same."""
    client = Client(member.grpc_port)
    code, text = client.consume(queue="hurt", credit=1).error()
    assert (code, "is damaged: " in text) == (grpc.StatusCode.UNAVAILABLE, True)
    call = client.publish()
    call.send(batch(publication(1, "hurt")))
    rejected = [(row.first, row.last) for answer in call.rest() for row in answer.rejected]
    assert rejected == [(1, 1)]
    client.channel.close()
