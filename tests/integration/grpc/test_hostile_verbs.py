"""Clients of the Messages service that know the password and do wrong: damaged requests, numbers at
the ends of their ranges, calls that are given up in the middle, answers that nobody reads.

What they ask for has a clear status, never INTERNAL; the member's log names no defect, and what
others use works on.
"""

from __future__ import annotations

import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import hpack
import psutil
import pytest

from brokerd.http2 import framing
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc, messages_pb2
from tests.integration.members import Member, cluster, eventually
from tests.integration.messages_client import (
    Client,
    batch,
    credit,
    deliveries,
    metadata,
    numbers,
    publication,
    settle,
)

pytestmark = pytest.mark.timeout(240)
Declaration = messages_pb2.QueueDeclaration
Binding = messages_pb2.Binding
MIB = 1024 * 1024
UNSIGNED_MAX = {32: (1 << 32) - 1, 64: (1 << 64) - 1}
REFUSALS = {
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "FAILED_PRECONDITION",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
}
#: A request of each method, to be damaged.
REQUESTS: dict[str, Any] = {
    "PublishBatch": batch(publication(1, "spoilt", b"body", exchange="amq.topic", mandatory=True)),
    "Get": messages_pb2.GetRequest(queue="spoilt", count=3),
    "DeclareQueue": messages_pb2.DeclareQueueRequest(
        queue=Declaration(
            name="spoilt", durable=True, arguments={"x-max-length": messages_pb2.Value(integer=9)}
        )
    ),
    "DeclareExchange": messages_pb2.DeclareExchangeRequest(name="spoilt", type="topic"),
    "Bind": messages_pb2.BindRequest(
        binding=Binding(source="amq.topic", destination="spoilt", routing_key="a.#")
    ),
    "Unbind": messages_pb2.UnbindRequest(binding=Binding(source="amq.topic", destination="spoilt")),
    "PurgeQueue": messages_pb2.MessagesPurgeQueueRequest(name="spoilt"),
    "DeleteExchange": messages_pb2.DeleteExchangeRequest(name="spoilt", if_unused=True),
    "DeleteQueue": messages_pb2.DeleteQueueRequest(name="spoilt", if_empty=True),
}
STREAMS: dict[str, Any] = {
    "Publish": REQUESTS["PublishBatch"],
    "Consume": messages_pb2.ConsumeRequest(
        subscribe=messages_pb2.Subscribe(
            declare=Declaration(exclusive=True), bindings=[Binding(source="amq.topic")], credit=1
        )
    ),
}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    folder = tmp_path_factory.mktemp("hostile-verbs")
    with cluster(folder, 1, BROKERD_MEMORY_INTERVAL_MS="50") as [member]:
        yield member
        assert " ERROR " not in member.log()
        assert "Traceback" not in member.log()


@pytest.fixture
def client(member: Member) -> Iterator[Client]:
    client = Client(member.grpc_port)
    yield client
    client.channel.close()


def status_of(call: Any) -> str:
    try:
        call()
    except grpc.RpcError as error:
        failed: Any = error
        return str(failed.code().name)
    return "OK"


def spoilt(random_: random.Random, request: bytes) -> bytes:
    """Return a request with a few octets changed, added or lost."""
    octets = bytearray(request)
    for _ in range(random_.randint(1, 4)):
        at = random_.randrange(len(octets) + 1)
        match random_.randrange(3):
            case 0:
                octets[at:at] = random_.randbytes(random_.randint(1, 12))
            case 1:
                del octets[at : at + random_.randint(1, 8)]
            case _:
                octets[at : at + 1] = random_.randbytes(1)
    return bytes(octets)


def test_damaged_requests_are_refused_or_mean_something_else(
    member: Member, client: Client
) -> None:
    random_ = random.Random(47)
    ends: Counter[str] = Counter()
    sent = metadata()
    for _ in range(60):
        for method, request in REQUESTS.items():
            octets = spoilt(random_, request.SerializeToString())
            call = client.channel.unary_unary(f"/brokerd.v1.Messages/{method}")
            ends[status_of(lambda call=call, octets=octets: call(octets, 30, sent))] += 1
        for method, request in STREAMS.items():
            octets = spoilt(random_, request.SerializeToString())
            stream = client.channel.stream_stream(f"/brokerd.v1.Messages/{method}")
            call = stream(iter([octets]), timeout=30, metadata=sent)
            ends[status_of(lambda call=call: list(call))] += 1
    assert set(ends) <= REFUSALS | {"OK"}, ends
    assert ends["INVALID_ARGUMENT"] > 50
    client.call("DeleteQueue", name="spoilt")


def test_numbers_at_the_ends_of_their_ranges(client: Client) -> None:
    client.call("DeclareQueue", queue=Declaration(name="numbers", durable=True))
    last = UNSIGNED_MAX[64]
    sent = batch(publication(last - 1, "numbers"), publication(last, "numbers"))
    assert numbers([client.publish_batch(sent)], "confirmed") == [last - 1, last]
    call = client.publish()
    call.send(batch(publication(last, "numbers")))
    assert numbers([call.next()], "confirmed") == [last]
    call.send(batch(publication(1, "numbers")))
    assert call.error()[0] is grpc.StatusCode.INVALID_ARGUMENT
    properties = messages_pb2.Properties(timestamp=last, delivery_mode=UNSIGNED_MAX[32])
    wrong = batch(publication(1, "numbers", properties=properties))
    assert status_of(lambda: client.publish_batch(wrong)) in REFUSALS | {"OK"}
    consumer = client.consume(queue="numbers", credit=UNSIGNED_MAX[32], priority=-(1 << 31))
    assert len(deliveries(consumer, 3)) == 3
    for _ in range(3):
        consumer.send(credit(UNSIGNED_MAX[32]))
    consumer.send(settle("ACCEPT", 3, multiple=True))
    consumer.send(settle("ACCEPT", last))
    code, text = consumer.error()
    assert code is grpc.StatusCode.FAILED_PRECONDITION, text
    assert not client.call("Get", queue="numbers", count=UNSIGNED_MAX[32]).deliveries
    client.call("DeleteQueue", name="numbers")


def test_deadlines_shorter_than_the_work_leave_nothing_half_done(client: Client) -> None:
    ends: Counter[str] = Counter()
    stub: Any = client._stub
    for n in range(100):
        timeout_s = (n % 10 + 1) / 2000
        declaration = Declaration(name=f"short-{n}", durable=True)
        calls = [
            lambda d=declaration, t=timeout_s: stub.DeclareQueue(
                messages_pb2.DeclareQueueRequest(queue=d), timeout=t, metadata=metadata()
            ),
            lambda d=declaration, t=timeout_s: stub.PublishBatch(
                batch(publication(1, d.name)), timeout=t, metadata=metadata()
            ),
            lambda d=declaration, t=timeout_s: stub.Get(
                messages_pb2.GetRequest(queue=d.name), timeout=t, metadata=metadata()
            ),
        ]
        for call in calls:
            ends[status_of(call)] += 1
    assert set(ends) <= {"OK", "DEADLINE_EXCEEDED", "NOT_FOUND", "CANCELLED"}, ends
    assert ends["DEADLINE_EXCEEDED"]
    for n in range(100):
        client.call("DeclareQueue", queue=Declaration(name=f"short-{n}", durable=True))
        assert client.call("DeleteQueue", name=f"short-{n}").messages <= 1


def test_what_is_given_up_while_it_is_declared_goes_with_its_call(
    member: Member, client: Client
) -> None:
    """An exclusive queue whose call is cancelled while the catalog makes it."""
    random_ = random.Random(7)
    for n in range(60):
        declaration = Declaration(name=f"given-up-{n}", exclusive=True)
        call = client.consume(
            declare=declaration, bindings=[Binding(source="amq.topic", routing_key="a")] * 3
        )
        threading.Event().wait(random_.random() / 100)
        call.cancel()
    for n in range(60):
        name = f"given-up-{n}"
        passive = Declaration(name=name, passive=True)
        eventually(
            lambda passive=passive: (
                status_of(lambda: client.call("DeclareQueue", queue=passive)) == "NOT_FOUND"
            ),
            f"{name} is gone",
        )


def test_an_alarm_holds_single_publishes_back_until_their_deadline(client: Client) -> None:
    """R-ALM-2: what was held and given up is not published."""
    client.call("DeclareQueue", queue=Declaration(name="held", durable=True))
    admin: Any = admin_pb2_grpc.AdminStub(client.channel)  # type: ignore[no-untyped-call]

    def set_watermark(value: str) -> None:
        settings = {"vm_memory_high_watermark": value}
        admin.SetSettings(admin_pb2.SetSettingsRequest(settings=settings), metadata=metadata())

    def ends_in_time() -> str:
        request = batch(publication(1, "held"))
        return status_of(lambda: client.publish_batch(request, timeout_s=0.5))

    before = 0

    def is_held() -> bool:
        nonlocal before
        end = ends_in_time()
        before += end == "OK"
        return end == "DEADLINE_EXCEEDED"

    set_watermark("1kB")
    try:
        eventually(is_held, "publishes are held")
        waiting: list[Any] = []
        thread = threading.Thread(
            target=lambda: waiting.append(client.publish_batch(batch(publication(1, "held"))))
        )
        thread.start()
        assert [ends_in_time() for _ in range(3)] == ["DEADLINE_EXCEEDED"] * 3
        assert client.call("Get", queue="held", count=100).messages_left == 0
        assert not waiting
    finally:
        set_watermark("0.9")
    thread.join()
    assert numbers(waiting, "confirmed") == [1]
    assert client.call("PurgeQueue", name="held").messages == 1
    client.call("DeleteQueue", name="held")


def test_a_flood_of_calls_whose_answers_are_not_read_is_bounded(
    member: Member, client: Client
) -> None:
    """Gets of large messages, from one connection that never reads."""
    client.call("DeclareQueue", queue=Declaration(name="flood", durable=True))
    sent = batch(*(publication(n, "flood", bytes(MIB // 2)) for n in range(1, 21)))
    for _ in range(10):
        client.publish_batch(sent)
    assert member.process is not None
    process = psutil.Process(member.process.pid)
    before = process.memory_info().rss
    request = messages_pb2.GetRequest(queue="flood", count=2).SerializeToString()
    data = b"\0" + len(request).to_bytes(4, "big") + request
    encoder = hpack.Encoder()
    with socket.create_connection(("127.0.0.1", member.grpc_port), timeout=5) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", "/brokerd.v1.Messages/Get"),
            (":authority", "here"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *metadata(),
        ]
        sock.sendall(framing.PREFACE + framing.settings_frame([]))
        try:
            for number in range(1, 6001, 2):
                block = encoder.encode(headers)
                sock.sendall(
                    framing.frame(framing.HEADERS, framing.END_HEADERS, number, block)
                    + framing.frame(framing.DATA, framing.END_STREAM, number, data)
                )
        except OSError:
            # The member reads no more, or has ended the connection.
            pass
        most = 0

        def is_served() -> bool:
            nonlocal most
            most = max(most, process.memory_info().rss - before)
            left = client.call(
                "DeclareQueue", queue=Declaration(name="flood", passive=True)
            ).messages
            seen.append(left)
            return len(seen) > 50 and seen[-1] == seen[-50]

        seen: list[int] = []
        eventually(is_served, "the flood comes to rest")
        # 16 calls have one or two messages each; all would have taken 400 MiB.
        assert 160 <= seen[-1] < 200
        assert most < 96 * MIB, f"grew by {most / MIB:.0f} MiB"
        # Others are served meanwhile, and by the same method.
        assert client.call("Get", queue="flood").deliveries
        assert numbers([client.publish_batch(batch(publication(1, "flood")))], "confirmed") == [1]
    client.call("DeleteQueue", name="flood")
    assert member.process.poll() is None
