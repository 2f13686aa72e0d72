"""kill -9 of the member that leads, under the verbs of the Messages service: each call has a clear
outcome within a bounded time, and the next one finds things as the answers said.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc, messages_pb2
from tests.integration.members import Member, cluster, eventually, wait_acquainted
from tests.integration.messages_client import (
    Client,
    ask,
    batch,
    metadata,
    numbers,
    publication,
    settle,
)

pytestmark = pytest.mark.timeout(300)
Declaration = messages_pb2.QueueDeclaration
Binding = messages_pb2.Binding
QUORUM = {"x-queue-type": messages_pb2.Value(text="quorum")}
#: limits.operation_timeout_ms, and what a busy machine may add.
OPERATION_TIMEOUT_S = 10.0
ANSWER_S = OPERATION_TIMEOUT_S + 10.0


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    timeout = {"BROKERD_LIMITS_OPERATION_TIMEOUT_MS": f"{OPERATION_TIMEOUT_S * 1000:.0f}"}
    with cluster(tmp_path_factory.mktemp("deaths"), 3, **timeout) as members:
        yield members


@pytest.fixture
def members(three: list[Member]) -> list[Member]:
    """Three members that are up."""
    for member in three:
        assert member.process is not None
        if member.process.poll() is not None:
            member.start()
            member.wait_ready()
    wait_acquainted(three)
    return three


def catalog_leader(member: Member) -> str:
    with grpc.insecure_channel(f"127.0.0.1:{member.grpc_port}") as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        status = stub.MemberStatus(admin_pb2.MemberStatusRequest(), metadata=metadata(), timeout=30)
    return str(status.catalog_leader)


def led_queue(leader: Member, name: str, count: int) -> None:
    """Make a queue that this member leads, with messages whose bodies are their numbers."""
    client = Client(leader.grpc_port)
    queue = Declaration(name=name, durable=True, arguments=QUORUM)
    client.call("DeclareQueue", queue=queue)
    sent = [publication(n + 1, name, b"%d" % n) for n in range(count)]
    assert len(numbers([client.publish_batch(batch(*sent))], "confirmed")) == count
    client.channel.close()


class Caller(threading.Thread):
    """Calls again and again; keeps how each call ended, and the longest."""

    def __init__(self, work: Callable[[], bool]) -> None:
        """work() makes a call; False: there is nothing more to do."""
        super().__init__(daemon=True)
        self._work = work
        self.ends: Counter[str] = Counter()
        self.longest_s = 0.0
        self.failure: BaseException | None = None

    def run(self) -> None:
        """Call until there is nothing more to do."""
        try:
            goes_on = True
            while goes_on:
                began_s = time.monotonic()
                try:
                    goes_on = self._work()
                    self.ends["OK"] += 1
                except grpc.RpcError as error:
                    failed: Any = error
                    self.ends[failed.code().name] += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began_s)
        except BaseException as failure:
            self.failure = failure

    def finish(self) -> None:
        """Wait for its end; each call was answered in time, and well or UNAVAILABLE."""
        self.join(120)
        if self.failure is not None:
            raise self.failure
        assert not self.is_alive()
        assert self.longest_s < ANSWER_S
        assert set(self.ends) <= {"OK", "UNAVAILABLE"}, self.ends


def test_gets_go_on_with_the_next_leader_and_nothing_is_taken_twice(members: list[Member]) -> None:
    """R-CS-8: at most once, and with a member that lives between, once."""
    count = 3000
    led_queue(members[0], "gets", count)
    found: list[int] = []
    client = Client(members[1].grpc_port)

    def take() -> bool:
        got = client.call("Get", queue="gets", count=7)
        found.extend(int(each.body) for each in got.deliveries)
        return bool(got.deliveries)

    callers = [Caller(take) for _ in range(4)]
    for caller in callers:
        caller.start()
    eventually(lambda: len(found) > 300, "some were taken")
    members[0].kill()
    taken_before = len(found)
    for caller in callers:
        caller.finish()
    assert taken_before < count
    assert len(found) == len(set(found))
    failed = sum(caller.ends["UNAVAILABLE"] for caller in callers)
    # A call that ends with a status may have taken one whose answer did not come.
    assert count - len(found) <= failed, Counter(found)
    assert client.call("DeleteQueue", name="gets").messages == 0
    client.channel.close()


@pytest.mark.parametrize("is_sent_first", [True, False])
@pytest.mark.parametrize("what", ["drain", "withdraw"])
def test_the_books_of_credit_are_exact_across_a_leaders_death(
    members: list[Member], what: str, is_sent_first: bool
) -> None:
    """What was granted was used by deliveries, or the answer says that it was left."""
    count, granted = 200, 300
    queue = f"books-{what}-{is_sent_first}"
    led_queue(members[0], queue, count)
    client = Client(members[1].grpc_port)
    call = client.consume(queue=queue, credit=granted)
    received: list[Any] = list(call.next().deliveries)
    if is_sent_first:
        call.send(ask(what))
        members[0].kill()
    else:
        members[0].kill()
        call.send(ask(what))
    began_s = time.monotonic()
    answers = {"drain": "drained", "withdraw": "withdrawn"}
    while not (answer := call.next()).HasField(answers[what]):
        received += answer.deliveries
    assert time.monotonic() - began_s < ANSWER_S
    assert len(received) + getattr(answer, answers[what]).credit == granted
    bodies = [int(each.body) for each in received]
    assert bodies == list(range(len(bodies)))
    assert what == "withdraw" or len(bodies) == count
    # What was not sent is there for others, as it was.
    call.send(settle("ACCEPT", 0, multiple=True))
    assert call.rest() == []
    rest = client.call("Get", queue=queue, count=count).deliveries
    assert [int(each.body) for each in rest] == list(range(len(bodies), count))
    assert not any(each.redelivered for each in [*received, *rest])
    client.call("DeleteQueue", name=queue)
    client.channel.close()


def test_declares_binds_and_deletes_hold_what_their_answers_said(members: list[Member]) -> None:
    """The member that leads the catalog dies; what ended UNAVAILABLE may or may not be done."""
    leader = eventually(lambda: catalog_leader(members[0]), "a leader of the catalog")
    dying = next(member for member in members if member.name == leader)
    others = [member for member in members if member is not dying]
    steps = itertools.count()
    is_over = threading.Event()
    #: What an answer has said of a queue: declared, bound, deleted; or the step that is unknown.
    known: dict[str, str] = {}

    def declaring(client: Client) -> Callable[[], bool]:
        def work() -> bool:
            name = f"topology-{next(steps)}"
            parts = {
                "declared": ("DeclareQueue", {"queue": Declaration(name=name, durable=True)}),
                "bound": (
                    "Bind",
                    {"binding": Binding(source="amq.topic", destination=name, routing_key=name)},
                ),
            }
            if int(name.rpartition("-")[2]) % 2:
                parts["deleted"] = ("DeleteQueue", {"name": name})
            for said, (method, fields) in parts.items():
                known[name] = f"perhaps {said}"
                client.call(method, **fields)
                known[name] = said
            return not is_over.is_set()

        return work

    clients = [Client(member.grpc_port) for member in others]
    callers = [Caller(declaring(client)) for client in clients * 2]
    for caller in callers:
        caller.start()
    eventually(lambda: len(known) > 20, "some were declared")
    dying.kill()
    at_death = len(known)
    eventually(lambda: len(known) > at_death + 20, "more were declared")
    is_over.set()
    for caller in callers:
        caller.finish()
    for name, said in known.items():
        client = clients[0]
        perhaps = said.startswith("perhaps")
        declared = Declaration(name=name, durable=True, passive=True)
        try:
            client.call("DeclareQueue", queue=declared)
            is_there = True
        except grpc.RpcError as error:
            missing: Any = error
            assert missing.code() is grpc.StatusCode.NOT_FOUND, missing
            is_there = False
        if not perhaps:
            assert is_there is (said != "deleted"), (name, said)
        if not perhaps and is_there:
            sent = publication(1, name, b"x", exchange="amq.topic", mandatory=True)
            assert bool(client.publish_batch(batch(sent)).returned) is (said != "bound"), name
        # The same again is as asked for, whatever had become of it.
        client.call("DeclareQueue", queue=Declaration(name=name, durable=True))
        client.call("DeleteQueue", name=name)
    for client in clients:
        client.channel.close()


def test_without_a_majority_each_verb_says_so_in_time(members: list[Member]) -> None:
    led_queue(members[0], "alone", 10)
    client = Client(members[0].grpc_port)
    consumer = client.consume(queue="alone", credit=2)
    assert [int(each.body) for each in consumer.next().deliveries] == [0, 1]
    for member in members[1:]:
        member.kill()
    calls: dict[str, dict[str, Any]] = {
        "Get": {"queue": "alone"},
        "PurgeQueue": {"name": "alone"},
        "DeclareQueue": {"queue": Declaration(name="more", durable=True)},
        "DeleteQueue": {"name": "alone"},
        "Bind": {"binding": Binding(source="amq.topic", destination="alone")},
    }
    ends: dict[str, tuple[grpc.StatusCode, str]] = {}

    def call(method: str, fields: dict[str, Any]) -> None:
        ends[method] = client.status(method, **fields)

    def publish() -> None:
        with pytest.raises(grpc.RpcError) as caught:
            client.publish_batch(batch(publication(1, "alone")))
        failed: Any = caught.value
        ends["PublishBatch"] = failed.code(), failed.details()

    def drain() -> None:
        consumer.send(ask("drain"))
        ends["drain"] = consumer.error()

    began_s = time.monotonic()
    threads = [threading.Thread(target=call, args=each) for each in calls.items()]
    threads += [threading.Thread(target=publish), threading.Thread(target=drain)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began_s < ANSWER_S
    assert len(ends) == len(threads)
    for method, (code, text) in ends.items():
        assert code is grpc.StatusCode.UNAVAILABLE, (method, text)
        what = {"PublishBatch": "a queue", "DeclareQueue": "catalog", "Bind": "catalog"}
        assert what.get(method, "queue 'alone' in vhost '/'") in text, (method, text)
    for member in members[1:]:
        member.start()
    for member in members[1:]:
        member.wait_ready()
    eventually(lambda: "OK" if _is_deleted(client, "alone") else "", "the queue can be deleted")
    client.channel.close()


def _is_deleted(client: Client, name: str) -> bool:
    try:
        client.call("DeleteQueue", name=name)
    except grpc.RpcError:
        return False
    return True
