"""What the suites of established clients expect of a broker and no rule says so plainly.

Found by running them (`make client-suites`); each test names the suite that found it.
"""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brokerd.amqp import methods
from tests.integration.members import Member, cluster, eventually, select_nothing
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    """Give a member with the profile of RabbitMQ 3.10."""
    folder: Path = tmp_path_factory.mktemp("member")
    with cluster(folder, 1, BROKERD_COMPAT_PROFILE="rabbitmq-3.10") as [member]:
        yield member


@pytest.fixture
def raw(member: Member) -> Iterator[RawClient]:
    """Give a connection with channel 1."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        yield raw


def test_a_message_whose_queue_went_before_the_commit_is_returned(raw: RawClient) -> None:
    """R-AE-14, R-TX-2; Java client, Routing.basicReturnTransactional."""
    raw.declare(1, "tx-gone")
    raw.send(1, methods.TxSelect())
    raw.expect(methods.TxSelectOk)
    raw.send(1, publish(1, "", "tx-gone", b"late", mandatory=True))
    raw.send(1, methods.QueueDelete(0, "tx-gone"))
    raw.expect(methods.QueueDeleteOk)
    raw.send(1, methods.TxCommit())
    returned, _, body = raw.content(methods.BasicReturn)
    assert (returned.reply_code, body) == (312, b"late")
    raw.expect(methods.TxCommitOk)


def test_cancel_ok_says_that_the_auto_delete_queue_is_gone(raw: RawClient) -> None:
    """R-Q-10, R-EX-8; Java client, BindingLifecycle.exchangeAutoDelete: the exchange went too."""
    for turn in range(10):
        raw.send(1, methods.ExchangeDeclare(0, f"auto-x{turn}", "direct", auto_delete=True))
        raw.expect(methods.ExchangeDeclareOk)
        raw.declare(1, f"auto{turn}", auto_delete=True)
        raw.send(1, methods.QueueBind(0, f"auto{turn}", f"auto-x{turn}", "k"))
        raw.expect(methods.QueueBindOk)
        raw.send(1, methods.BasicConsume(0, f"auto{turn}", "c"))
        raw.expect(methods.BasicConsumeOk)
        raw.send(1, methods.BasicCancel("c"))
        raw.expect(methods.BasicCancelOk)
        raw.declare(1, f"auto{turn}", exclusive=True)
        raw.send(1, methods.QueueBind(0, f"auto{turn}", f"auto-x{turn}", "k"))
        assert raw.expect(methods.ChannelClose).reply_code == 404
        raw.send(1, methods.ChannelCloseOk())
        raw.open(1)


def test_auto_acknowledging_consumers_wait_for_the_shared_prefetch(raw: RawClient) -> None:
    """R-QOS-3; Java client, QosTests.noAckObeysLimit."""
    for name in ("counted", "silent"):
        raw.declare(1, name, exclusive=True)
    raw.send(1, methods.BasicQos(0, 1, True))
    raw.expect(methods.BasicQosOk)
    raw.send(1, methods.BasicConsume(0, "counted", "counted"))
    raw.expect(methods.BasicConsumeOk)
    raw.send(1, publish(1, "", "counted", b"1"))
    first, _, _ = raw.content(methods.BasicDeliver)
    raw.send(1, methods.BasicConsume(0, "silent", "silent", no_ack=True))
    raw.expect(methods.BasicConsumeOk)
    raw.send(1, publish(1, "", "silent", b"2"))
    raw.open(2)
    # An answer on the way back: nothing else came before it, and the message left its queue.
    raw.send(1, methods.QueueDeclare(0, "counted", passive=True))
    assert raw.expect(methods.QueueDeclareOk).message_count == 0
    raw.send(1, methods.BasicAck(first.delivery_tag))
    assert raw.content(methods.BasicDeliver)[2] == b"2"


def test_a_client_that_writes_on_after_its_close_still_gets_close_ok(member: Member) -> None:
    """R-CON-14; amqplib, "find high watermark": connection.close overtakes what was published."""
    raw = RawClient(member.amqp_port)
    raw.open(1)
    raw.send(0, methods.ConnectionClose(200, "bye", 0, 0))
    # Not read yet: a reset would throw it away.
    select.select([raw.socket], [], [], 60)
    for _ in range(20):
        raw.send(1, publish(1, "", "nowhere", b"late"))
        select_nothing(0.01)
    raw.expect(methods.ConnectionCloseOk)
    raw.socket.close()


def test_the_profile_stands_in_for_rabbitmq_by_name_too(member: Member) -> None:
    """R-VER-1; amqplib, "serverProperties". Our own name and version stand beside it."""
    connection = member.connect()
    properties = connection._impl.server_properties
    connection.close()
    assert (properties["product"], properties["version"]) == ("RabbitMQ", "3.10.8")
    assert properties["brokerd_version"]


def has_sockets(member: Member) -> bool:
    """Tell whether the member holds sockets of clients."""
    assert member.process is not None
    held = psutil.Process(member.process.pid).net_connections("tcp")
    port = member.amqp_port
    return any(found.laddr.port == port and found.raddr for found in held)


def test_after_close_ok_the_client_closes_first(member: Member) -> None:
    """amqp091-go, TestChannelExceptionWithCloseIssue43: it reads on, and our end is an error."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(0, methods.ConnectionClose(200, "bye", 0, 0))
        raw.expect(methods.ConnectionCloseOk)
        assert select.select([raw.socket], [], [], 0.3)[0] == []
        # What it still says is dropped, and answers with no reset.
        raw.send(1, publish(1, "", "nowhere", bytes(100_000)))
        assert select.select([raw.socket], [], [], 0.1)[0] == []
    eventually(lambda: not has_sockets(member), "the socket is closed")


def test_a_client_that_does_not_end_after_close_ok_is_ended(member: Member) -> None:
    """SEC-34: a closed connection's socket is no way to hold a descriptor."""
    with client(member.amqp_port) as raw:
        raw.send(0, methods.ConnectionClose(200, "bye", 0, 0))
        raw.expect(methods.ConnectionCloseOk)
        assert raw.at_end()
        eventually(lambda: not has_sockets(member), "the socket is closed")


def test_after_the_servers_close_the_end_is_heard_at_once_and_without_a_reset(
    member: Member,
) -> None:
    """R-CON-14: clients that wait for the end hear it, those that write on read it."""
    with client(member.amqp_port) as raw:
        raw.send(0, methods.ChannelOpen())
        assert raw.expect(methods.ConnectionClose).reply_code
        raw.send(0, methods.ConnectionCloseOk())
        assert raw.next_frame() is None
        # Half of the socket is open: this is taken, and a reset would show at the second write.
        for _ in range(2):
            raw.send(1, publish(1, "", "nowhere", bytes(1000)))
            assert raw.next_frame() is None
    eventually(lambda: not has_sockets(member), "the socket is closed")
