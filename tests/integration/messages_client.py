"""A small client of the Messages service for tests: calls whose requests are sent by hand."""

from __future__ import annotations

import base64
import queue
from collections.abc import Iterator
from typing import Any

import grpc

from brokerd.rpc.v1 import messages_pb2, messages_pb2_grpc

#: A call that has not ended within this time fails the test; an election may fall into it.
DEADLINE_S = 90.0


def metadata(
    user: str = "guest", password: str = "guest", vhost: str | None = None
) -> tuple[tuple[str, str], ...]:
    """Return what a call sends along."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    found = [("authorization", f"Basic {token}")]
    return tuple(found if vhost is None else [*found, ("vhost", vhost)])


def _is_subscribed(response: Any) -> bool:
    return bool(response.ListFields()) and response.ListFields()[0][0].name == "subscribed"


class Call:
    """One streaming call."""

    #: Of a Consume call, once it has been read.
    subscribed: Any = None

    def __init__(self, method: Any, sent: tuple[tuple[str, str | bytes], ...]) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._call = method(iter(self._requests.get, None), metadata=sent, timeout=DEADLINE_S)

    def send(self, request: Any) -> None:
        """Send one request."""
        self._requests.put(request)

    def half_close(self) -> None:
        """Say that no more requests follow."""
        self._requests.put(None)

    def next(self) -> Any:
        """Wait for the next response; that a subscription is active is kept aside."""
        response = next(self._call)
        if _is_subscribed(response):
            self.subscribed = response.subscribed
            response = next(self._call)
        return response

    def rest(self) -> list[Any]:
        """Half-close and return what still comes."""
        self.half_close()
        return [response for response in self._call if not _is_subscribed(response)]

    def cancel(self) -> None:
        """Break the call off."""
        self._call.cancel()
        self.half_close()

    def error(self) -> tuple[grpc.StatusCode, str]:
        """Read to the end of a call that must fail; return its status."""
        try:
            for _ in self._call:
                pass
        except grpc.RpcError as error:
            self.half_close()
            return error.code(), str(error.details())
        raise AssertionError("the call ended well")


class Client:
    """Calls to one member."""

    def __init__(self, port: int) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._stub: Any = messages_pb2_grpc.MessagesStub(  # type: ignore[no-untyped-call]
            self.channel
        )

    def publish(self, *sent: tuple[str, str | bytes]) -> Call:
        """Open a Publish call."""
        return Call(self._stub.Publish, sent or metadata())

    def publish_batch(
        self, request: Any, *sent: tuple[str, str | bytes], timeout_s: float = DEADLINE_S
    ) -> Any:
        """Publish, and return what became of it."""
        return self._stub.PublishBatch(request, metadata=sent or metadata(), timeout=timeout_s)

    def call(self, method: str, *sent: tuple[str, str | bytes], **fields: Any) -> Any:
        """Call a method of one request, named for it, and one response."""
        named = getattr(messages_pb2, f"Messages{method}Request", None)
        request = (named or getattr(messages_pb2, f"{method}Request"))(**fields)
        return getattr(self._stub, method)(request, metadata=sent or metadata(), timeout=DEADLINE_S)

    def status(
        self, method: str, *sent: tuple[str, str | bytes], **fields: Any
    ) -> tuple[grpc.StatusCode, str]:
        """Return the status of a call that must fail."""
        try:
            self.call(method, *sent, **fields)
        except grpc.RpcError as error:
            failed: Any = error
            return failed.code(), str(failed.details())
        raise AssertionError("the call ended well")

    def consume(self, *sent: tuple[str, str], **subscription: Any) -> Call:
        """Open a Consume call and subscribe."""
        call = Call(self._stub.Consume, sent or metadata())
        call.send(messages_pb2.ConsumeRequest(subscribe=messages_pb2.Subscribe(**subscription)))
        return call


def publication(sequence: int, key: str, body: bytes = b"", **more: Any) -> Any:
    """Return one publication to the default exchange unless another is named."""
    return messages_pb2.Publication(sequence=sequence, routing_key=key, body=body, **more)


def batch(*publications: Any) -> Any:
    """Return a request."""
    return messages_pb2.PublishRequest(publications=publications)


def settle(outcome: str, *tags: int, multiple: bool = False) -> Any:
    """Return a settlement: ACCEPT, REJECT or REQUEUE."""
    return messages_pb2.ConsumeRequest(
        settle=messages_pb2.Settlement(
            outcome=outcome,
            delivery_tags=tags,
            multiple=multiple,
        )
    )


def credit(count: int) -> Any:
    """Return a request that adds credit."""
    return messages_pb2.ConsumeRequest(credit=count)


def numbers(responses: Iterator[Any] | list[Any], field: str) -> list[int]:
    """Return the sequences in `confirmed` or `rejected` ranges, in order of arrival."""
    return [
        number
        for response in responses
        for span in getattr(response, field)
        for number in range(span.first, span.last + 1)
    ]


def ask(what: str) -> Any:
    """Return a request: withdraw, drain or cancel."""
    request = messages_pb2.ConsumeRequest()
    getattr(request, what).SetInParent()
    return request


def deliveries(call: Call, count: int) -> list[Any]:
    """Read until `count` messages have come; more must not be in the last response."""
    found: list[Any] = []
    while len(found) < count:
        response = call.next()
        assert response.deliveries, response
        found += response.deliveries
    assert len(found) == count
    return found
