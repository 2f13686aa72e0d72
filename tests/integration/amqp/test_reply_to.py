"""Direct reply-to on real members: request and reply past all queues, on one member and on two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from brokerd.amqp import methods
from brokerd.amqp.properties import BasicProperties
from tests.integration.grpc.test_admin_grpc import Admin, put
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import Client, batch, metadata, numbers, publication
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(240)

PSEUDO = "amq.rabbitmq.reply-to"


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    with cluster(tmp_path_factory.mktemp("replies"), 2) as members:
        yield members


@pytest.fixture(params=["same member", "other member"])
def pair(
    request: pytest.FixtureRequest, members: list[Member]
) -> Iterator[tuple[RawClient, RawClient]]:
    """A requester and a replier, each with channel 1."""
    other = members[1] if request.param == "other member" else members[0]
    with client(members[0].amqp_port) as requester, client(other.amqp_port) as replier:
        requester.open(1)
        replier.open(1)
        yield requester, replier


def consume(raw: RawClient, channel: int = 1) -> None:
    raw.send(channel, methods.BasicConsume(0, PSEUDO, "replies", no_ack=True))
    raw.expect(methods.BasicConsumeOk)


def address(requester: RawClient, replier: RawClient, queue: str) -> str:
    """Send a request through a queue; return what the replier is to reply to."""
    requester.declare(1, queue, durable=True)
    header = BasicProperties(reply_to=PSEUDO, correlation_id="7").encode()
    requester.send(1, publish(1, "", queue, b"question", header))
    eventually(lambda: replier.count(1, queue) == 1, "the request has come")
    replier.send(1, methods.BasicGet(0, queue, no_ack=True))
    _, raw_properties, body = replier.content(methods.BasicGetOk)
    assert body == b"question"
    found = BasicProperties.decode(raw_properties)
    assert found.correlation_id == "7"
    assert found.reply_to is not None
    assert found.reply_to.startswith(f"{PSEUDO}.")
    return found.reply_to


def is_there(raw: RawClient, name: str) -> bool:
    """Ask by queue.declare (passive) on a channel of its own, which an error closes."""
    raw.open(9)
    raw.send(9, methods.QueueDeclare(0, name, passive=True))
    found = raw.next_method()
    assert found is not None
    if isinstance(found[1], methods.QueueDeclareOk):
        assert (found[1].queue, found[1].message_count, found[1].consumer_count) == (name, 0, 1)
        raw.send(9, methods.ChannelClose(200, "", 0, 0))
        raw.expect(methods.ChannelCloseOk)
        return True
    assert isinstance(found[1], methods.ChannelClose)
    assert found[1].reply_text == f"NOT_FOUND - no queue '{name}' in vhost '/'"
    raw.send(9, methods.ChannelCloseOk())
    return False


def test_replies_go_straight_to_the_requester(pair: tuple[RawClient, RawClient]) -> None:
    """R-DRT-1, R-DRT-2, R-DRT-3: in order, with properties, tags from 1 on, never redelivered."""
    requester, replier = pair
    consume(requester)
    name = address(requester, replier, "rpc")
    assert is_there(replier, name)
    header = BasicProperties(correlation_id="7").encode()
    replier.send(1, *[publish(1, "", name, b"answer %d" % i, header) for i in range(3)])
    for i in range(3):
        delivered, raw_properties, body = requester.content(methods.BasicDeliver)
        assert body == b"answer %d" % i
        assert (delivered.consumer_tag, delivered.delivery_tag) == ("replies", i + 1)
        assert (delivered.exchange, delivered.routing_key) == ("", name)
        assert not delivered.redelivered
        assert BasicProperties.decode(raw_properties).correlation_id == "7"
    large = bytes(300_000)
    replier.send(1, publish(1, "", name, large))
    assert requester.content(methods.BasicDeliver)[2] == large


def test_a_reply_to_nobody_is_unroutable(pair: tuple[RawClient, RawClient]) -> None:
    """R-DRT-3, R-PUB-7: dropped, or returned if mandatory; passive declare says so before."""
    requester, replier = pair
    consume(requester)
    name = address(requester, replier, "rpc")
    replier.send(1, methods.ConfirmSelect())
    replier.expect(methods.ConfirmSelectOk)
    replier.send(1, publish(1, "", name, b"there", mandatory=True))
    assert requester.content(methods.BasicDeliver)[2] == b"there"
    assert replier.expect(methods.BasicAck).delivery_tag == 1
    requester.send(1, methods.BasicCancel("replies"))
    requester.expect(methods.BasicCancelOk)
    assert not is_there(replier, name)
    replier.send(1, publish(1, "", name, b"gone", mandatory=True))
    returned, _, body = replier.content(methods.BasicReturn)
    assert (returned.reply_code, returned.routing_key, body) == (312, name, b"gone")
    assert replier.expect(methods.BasicAck).delivery_tag == 2
    replier.send(1, publish(1, "", name, b"dropped"))
    assert replier.expect(methods.BasicAck).delivery_tag == 3
    # A second consumer of the channel has another name.
    consume(requester)
    assert address(requester, replier, "rpc") != name


def test_the_end_of_the_channel_ends_its_name(pair: tuple[RawClient, RawClient]) -> None:
    """R-DRT-3, R-CH-5."""
    requester, replier = pair
    consume(requester)
    name = address(requester, replier, "rpc")
    requester.send(1, methods.ChannelClose(200, "", 0, 0))
    requester.expect(methods.ChannelCloseOk)
    assert not is_there(replier, name)


def test_replies_in_a_transaction_go_out_at_commit(pair: tuple[RawClient, RawClient]) -> None:
    """R-TX-1, R-DRT-3."""
    requester, replier = pair
    consume(requester)
    name = address(requester, replier, "rpc")
    replier.send(1, methods.TxSelect())
    replier.expect(methods.TxSelectOk)
    replier.send(1, publish(1, "", name, b"never"), methods.TxRollback())
    replier.expect(methods.TxRollbackOk)
    replier.send(1, publish(1, "", name, b"answer"), methods.TxCommit())
    replier.expect(methods.TxCommitOk)
    assert requester.content(methods.BasicDeliver)[2] == b"answer"


def test_copies_go_to_queues_and_requesters(pair: tuple[RawClient, RawClient]) -> None:
    """R-RT-C1, R-DRT-3: CC may name one; the confirm waits for both."""
    requester, replier = pair
    consume(requester)
    name = address(requester, replier, "rpc")
    header = BasicProperties(headers={"CC": [name]}).encode()
    replier.send(1, methods.ConfirmSelect())
    replier.expect(methods.ConfirmSelectOk)
    replier.send(1, publish(1, "", "rpc", b"both", header))
    assert requester.content(methods.BasicDeliver)[2] == b"both"
    assert replier.expect(methods.BasicAck).delivery_tag == 1
    assert replier.count(1, "rpc") == 1
    replier.send(1, methods.QueuePurge(0, "rpc"))
    replier.expect(methods.QueuePurgeOk)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (
            [methods.BasicConsume(0, PSEUDO, "x")],
            "PRECONDITION_FAILED - reply consumer cannot acknowledge",
        ),
        (
            [
                methods.BasicConsume(0, PSEUDO, "x", no_ack=True, nowait=True),
                methods.BasicConsume(0, PSEUDO, "y", no_ack=True),
            ],
            "PRECONDITION_FAILED - reply consumer already set",
        ),
        (
            [publish(1, "", "q", b"", BasicProperties(reply_to=PSEUDO).encode())],
            "PRECONDITION_FAILED - fast reply consumer does not exist",
        ),
        (
            [methods.QueueDeclare(0, f"{PSEUDO}.nonsense", passive=True)],
            f"NOT_FOUND - no queue '{PSEUDO}.nonsense' in vhost '/'",
        ),
        (
            [methods.QueueDeclare(0, f"{PSEUDO}.%%%%", passive=True)],
            f"NOT_FOUND - no queue '{PSEUDO}.%%%%' in vhost '/'",
        ),
    ],
    ids=["acknowledging", "twice", "no consumer", "no address", "no base64"],
)
def test_mistakes_close_the_channel(
    members: list[Member], sent: list[methods.Method | bytes], text: str
) -> None:
    """R-DRT-1, R-DRT-2, R-NAM-4."""
    with client(members[0].amqp_port) as raw:
        raw.open(1)
        raw.send(1, *sent)
        assert raw.expect(methods.ChannelClose).reply_text == text


def test_the_pseudo_queue_itself_is_always_there(members: list[Member]) -> None:
    """R-DRT-3, R-NAM-4."""
    with client(members[0].amqp_port) as raw:
        assert is_there(raw, PSEUDO)


def test_a_forged_name_reaches_nobody(members: list[Member]) -> None:
    """Whoever guesses the channel does not know its secret."""
    with client(members[0].amqp_port) as raw:
        raw.open(1)
        consume(raw)
        name = address(raw, raw, "forged")
        last = "A" if name[-5] != "A" else "B"
        forged = name[:-5] + last + name[-4:]
        raw.send(1, publish(1, "", forged, b"guess", mandatory=True))
        assert raw.content(methods.BasicReturn)[0].reply_code == 312
        raw.send(1, publish(1, "", name, b"known", mandatory=True))
        assert raw.content(methods.BasicDeliver)[2] == b"known"


@pytest.mark.parametrize("at", [0, 1], ids=["same member", "other member"])
def test_a_reply_from_another_vhost_is_unroutable(members: list[Member], at: int) -> None:
    """R-VH-1, R-DRT-3, R-PUB-7: as a name that is nobody's, over AMQP and gRPC, in CC as well."""
    admin = Admin(members[0].grpc_port)
    right = {"configure": ".*", "write": ".*", "read": ".*"}
    admin.apply(put("vhost", "abroad", {}, vhost=""), put("permission", "guest", right, "abroad"))
    with (
        client(members[0].amqp_port) as requester,
        client(members[at].amqp_port, vhost="abroad") as replier,
    ):
        requester.open(1)
        consume(requester)
        name = address(requester, requester, "at-home")
        replier.open(1)
        replier.send(1, methods.ConfirmSelect())
        replier.expect(methods.ConfirmSelectOk)
        replier.send(1, publish(1, "", name, b"abroad", mandatory=True))
        returned, _, body = replier.content(methods.BasicReturn)
        assert (returned.reply_code, returned.reply_text, body) == (312, "NO_ROUTE", b"abroad")
        assert replier.expect(methods.BasicAck).delivery_tag == 1
        header = BasicProperties(headers={"CC": [name]}).encode()
        replier.send(1, publish(1, "", name, b"abroad"), publish(1, "", "none", b"cc", header))
        while replier.expect(methods.BasicAck).delivery_tag < 3:
            pass
        replier.open(2)
        replier.send(2, methods.QueueDeclare(0, name, passive=True))
        closed = replier.expect(methods.ChannelClose)
        assert closed.reply_text == f"NOT_FOUND - no queue '{name}' in vhost 'abroad'"
        call = Client(members[at].grpc_port).publish(*metadata(vhost="abroad"))
        call.send(batch(publication(1, name, b"abroad", mandatory=True)))
        assert [r.sequence for response in call.rest() for r in response.returned] == [1]
        # Nothing of all that has come, and the name is good at home.
        requester.send(1, publish(1, "", name, b"at home"))
        assert requester.content(methods.BasicDeliver)[2] == b"at home"
    admin.channel.close()


def test_a_grpc_caller_may_reply(members: list[Member]) -> None:
    """R-DRT-3: the Messages service routes as AMQP does."""
    with client(members[0].amqp_port) as raw:
        raw.open(1)
        consume(raw)
        name = address(raw, raw, "grpc-rpc")
        call = Client(members[1].grpc_port).publish()
        call.send(batch(publication(1, name, b"answer", mandatory=True)))
        call.send(batch(publication(2, name + "x", b"lost", mandatory=True)))
        responses = call.rest()
        assert sorted(numbers(responses, "confirmed")) == [1, 2]
        assert [r.sequence for response in responses for r in response.returned] == [2]
        assert raw.content(methods.BasicDeliver)[2] == b"answer"
