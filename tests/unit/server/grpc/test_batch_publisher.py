"""PublishBatch: calls that share a channel have their own outcomes, and leave nothing behind."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest

from brokerd.rpc.v1 import messages_pb2
from brokerd.server.grpc import batch_publisher, rpc_call
from tests.unit.server.grpc.test_publish_stream import (
    GOOD,
    WAIT_S,
    Services,
    broken_clock,
    served,
    until,
)


def request(*sequences: int, key: str = "q", **more: Any) -> messages_pb2.PublishRequest:
    return messages_pb2.PublishRequest(
        publications=[
            messages_pb2.Publication(sequence=each, routing_key=key, body=b"body", **more)
            for each in sequences
        ]
    )


def ranges(found: Any) -> list[tuple[int, int]]:
    return [(each.first, each.last) for each in found]


def call(stub: Any, asked: messages_pb2.PublishRequest, **more: Any) -> Any:
    return asyncio.ensure_future(stub.PublishBatch(asked, metadata=GOOD, **more))


async def failure(answer: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(answer, WAIT_S)
    return caught.value.code(), str(caught.value.details())


def publishers(server: Any) -> list[Any]:
    return list(server._servicers.messages._publishers.values())


def publisher_of(server: Any) -> Any:
    (publisher,) = publishers(server)
    return publisher


async def test_calls_at_once_share_a_channel_and_have_their_own_sequences() -> None:
    services = Services()
    groups = services.queues.groups
    async with served(services) as (stub, server):
        first = call(stub, request(1, 2, 9))
        await until(lambda: len(groups.sent) == 1)
        second = call(stub, request(2, 3))
        await until(lambda: len(groups.sent) == 2)
        assert [count for count, _ in groups.sent] == [3, 2]
        groups.answer()
        assert ranges((await first).confirmed) == [(1, 2), (9, 9)]
        assert not second.done()
        groups.answer()
        assert ranges((await second).confirmed) == [(2, 3)]
        assert groups.ended == []
        assert server.budget.used == 0
    # One channel was at the queue, whose end it heard of once.
    assert len(groups.ended) == 1


async def test_what_a_queue_refuses_is_rejected() -> None:
    services = Services()
    groups = services.queues.groups
    async with served(services) as (stub, _):
        answer = call(stub, request(4, 5, 6))
        await until(lambda: bool(groups.sent))
        groups.answer(1)
        found = await answer
        assert (ranges(found.confirmed), ranges(found.rejected)) == ([(4, 4)], [(5, 6)])


async def test_what_nobody_takes_is_returned_and_confirmed() -> None:
    async with served(Services()) as (stub, _):
        found = await call(stub, request(3, 7, key="nowhere", mandatory=True))
        assert [(each.sequence, each.reply_code) for each in found.returned] == [(3, 312), (7, 312)]
        assert ranges(found.confirmed) == [(3, 3), (7, 7)]
        assert await call(stub, request()) == messages_pb2.PublishResponse()


@pytest.mark.parametrize(
    ("wrong", "code", "said"),
    [
        (request(2), grpc.StatusCode.INVALID_ARGUMENT, "sequence 2"),
        (request(5, exchange="none"), grpc.StatusCode.NOT_FOUND, "none"),
        (
            request(5, properties=messages_pb2.Properties(expiration="soon")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "expiration",
        ),
        (request(5, key="k" * 300), grpc.StatusCode.INVALID_ARGUMENT, "routing_key"),
    ],
)
async def test_a_call_with_a_mistake_has_published_nothing(
    wrong: Any, code: grpc.StatusCode, said: str
) -> None:
    services = Services()
    good = request(2, 3)
    good.publications.extend(wrong.publications)
    async with served(services) as (stub, _):
        found, text = await failure(call(stub, good))
        assert found is code
        assert said in text
        # What had been checked before would be sent by now.
        answer = call(stub, request(1))
        await until(lambda: bool(services.queues.groups.sent))
        assert [count for count, _ in services.queues.groups.sent] == [1]
        services.queues.groups.answer()
        await answer


async def test_a_queue_that_does_not_answer_ends_the_call_and_no_other() -> None:
    services = Services()
    services.limits = services.limits.model_copy(update={"operation_timeout_ms": 50})
    groups = services.queues.groups
    async with served(services) as (stub, server):
        code, text = await failure(call(stub, request(1)))
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "0.05 s" in text
        publisher_of(server)._timeout_s = WAIT_S
        second = call(stub, request(1))
        await until(lambda: len(groups.sent) == 2)
        groups.answer()
        await asyncio.sleep(0)
        assert not second.done()
        groups.answer()
        assert ranges((await second).confirmed) == [(1, 1)]


async def test_a_call_that_is_cancelled_leaves_the_others_alone() -> None:
    services = Services()
    groups = services.queues.groups
    async with served(services) as (stub, server):
        first = call(stub, request(1))
        await until(lambda: len(groups.sent) == 1)
        second = call(stub, request(8))
        await until(lambda: len(groups.sent) == 2)
        first.cancel()
        (connection,) = server._connections
        await until(lambda: len(connection.calls) == 1)
        groups.answer()
        groups.answer()
        assert ranges((await second).confirmed) == [(8, 8)]


async def test_a_channel_without_calls_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_publisher, "IDLE_S", 0.02)
    services = Services()
    groups = services.queues.groups
    async with served(services) as (stub, server):
        answer = call(stub, request(1))
        await until(lambda: bool(groups.sent))
        # It is not idle while a call waits.
        await asyncio.sleep(0.1)
        assert groups.ended == []
        groups.answer()
        await answer
        await until(lambda: len(groups.ended) == 1)
        (connection,) = server._connections
        await until(lambda: not connection._watching)
        # The next call has a new one.
        answer = call(stub, request(1))
        await until(lambda: bool(groups.sent))
        groups.answer()
        assert ranges((await answer).confirmed) == [(1, 1)]


async def test_an_alarm_holds_calls_back_in_their_order() -> None:
    services = Services()
    reason = "low on memory"
    services.blocking_reason = lambda: reason  # type: ignore[method-assign]
    groups = services.queues.groups
    async with served(services) as (stub, _):
        answers = [call(stub, request(each)) for each in (1, 2)]
        await until(lambda: len(services.blocked) == 1)
        given_up = answers.pop()
        given_up.cancel()
        assert groups.sent == []
        reason = ""
        await until(lambda: len(groups.sent) == 1)
        groups.answer()
        assert ranges((await answers[0]).confirmed) == [(1, 1)]
        assert len(services.blocked) == 0


async def test_a_user_who_is_deleted_hears_why() -> None:
    services = Services()
    reason = ""
    services.blocking_reason = lambda: reason  # type: ignore[method-assign]
    async with served(services) as (stub, server):
        waiting = call(stub, request(1))
        await until(lambda: bool(services.queues.groups.sent))
        reason = "low on memory"
        held = call(stub, request(2))
        await until(lambda: len(services.blocked) == 1)
        publisher = publisher_of(server)
        publisher.close(320, "user 'guest' is deleted")
        for answer in (waiting, held):
            code, text = await failure(answer)
            assert (code, text) == (grpc.StatusCode.ABORTED, "320: user 'guest' is deleted")
        assert publishers(server) == []


async def test_a_member_that_stops_answers_what_was_taken_and_takes_no_more() -> None:
    services = Services()
    groups = services.queues.groups
    async with served(services) as (stub, server):
        taken = call(stub, request(1))
        await until(lambda: bool(groups.sent))
        stopping = asyncio.create_task(server.stop())
        (connection,) = server._connections
        await until(lambda: connection.http2.is_leaving)
        (left,) = connection.calls.values()
        # As long as a stream has.
        assert left._deadline is not None
        assert left._deadline.when() > asyncio.get_running_loop().time() + rpc_call.ANSWERS_S - 1
        assert (await failure(call(stub, request(1))))[0] is grpc.StatusCode.UNAVAILABLE
        groups.answer()
        assert ranges((await taken).confirmed) == [(1, 1)]
        await asyncio.wait_for(stopping, WAIT_S)
        assert groups.sent == []


class BrokenStream:
    """A way to the queues with a defect."""

    def offer(self) -> None:
        raise RuntimeError("a bug")

    def leave(self) -> None:
        """The channel has ended."""


async def test_a_defect_behind_the_calls_ends_them(caplog: pytest.LogCaptureFixture) -> None:
    services = Services()
    clock, services.messages.counters.clock_us = services.messages.counters.clock_us, broken_clock
    async with served(services) as (stub, server):
        code, text = await failure(call(stub, request(1)))
        assert (code, text) == (
            grpc.StatusCode.INTERNAL,
            "Unexpected <class 'RuntimeError'>: a bug",
        )
        publisher = publisher_of(server)
        assert publisher._waiting == []
        services.messages.counters.clock_us = clock
        answer = call(stub, request(1))
        await until(lambda: bool(services.queues.groups.sent))
        publisher._stream = BrokenStream()
        publisher._offer()
        assert (await failure(answer))[0] is grpc.StatusCode.INTERNAL
    errors = [each.name for each in caplog.records if each.levelno >= logging.ERROR]
    assert errors.count("brokerd.server.grpc.rpc_call") == 2
