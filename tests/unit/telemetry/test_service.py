"""The pull service over a real gRPC connection; paths and names from outside are judged first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from brokerd.config import TelemetryConfig
from brokerd.rpc.v1 import telemetry_pb2, telemetry_pb2_grpc
from brokerd.telemetry import service
from brokerd.telemetry.segments import Identity, SegmentWriter
from brokerd.telemetry.service import TelemetryService


class Member:
    """A server with a writer behind it."""

    def __init__(self, tmp_path: Path) -> None:
        self.results = tmp_path / "results"
        self.writer = SegmentWriter(tmp_path, Identity("c", "n", "ab" * 16), TelemetryConfig())
        self.collected = 0
        self.may_change = True
        self.stub: Any = None

    async def collect(self) -> None:
        self.collected += 1
        self.writer.emit("sample", [{"k": "node", "n": self.collected}])

    def members(self) -> list[tuple[str, str, bool]]:
        return [("n", "here:5680", True), ("other", "", False)]

    async def authorise(self, context: Any, is_change: bool) -> None:
        if is_change and not self.may_change:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "readers only")


@pytest.fixture
async def member(tmp_path: Path) -> AsyncIterator[Member]:
    made = Member(tmp_path)
    server = grpc.aio.server()
    telemetry_pb2_grpc.add_TelemetryServicer_to_server(  # type: ignore[no-untyped-call]
        TelemetryService(
            made.writer, made.results, made.authorise, made.collect, made.members, lambda: 5
        ),
        server,
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    made.writer.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        made.stub = telemetry_pb2_grpc.TelemetryStub(channel)  # type: ignore[no-untyped-call]
        yield made
    await server.stop(None)
    made.writer.close()


async def read(member: Member, path: str) -> bytes:
    request = telemetry_pb2.ReadSegmentRequest(path=path)
    return b"".join([chunk.data async for chunk in member.stub.ReadSegment(request)])


async def test_seal_counts_first_and_then_hands_out_everything(member: Member) -> None:
    sealed = await member.stub.Seal(telemetry_pb2.SealRequest())
    assert member.collected == 1
    found = [(item.name, item.address, item.is_self) for item in sealed.members]
    assert found == member.members()
    assert sealed.now_us == 5
    (sample,) = [item for item in sealed.segments if "/sample." in item.path]
    data = await read(member, sample.path)
    assert len(data) == sample.size
    listed = await member.stub.ListSegments(telemetry_pb2.ListSegmentsRequest())
    assert list(listed.segments) == list(sealed.segments)


@pytest.mark.parametrize(
    "path", ["../results/report.html", "/etc/passwd", "", "cluster=c/node=n/../../x"]
)
async def test_a_path_that_is_no_segment_is_refused(member: Member, path: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(member, path)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await member.stub.Release(telemetry_pb2.ReleaseRequest(paths=[path]))
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_segment_that_is_gone_is_not_found(member: Member) -> None:
    sealed = await member.stub.Seal(telemetry_pb2.SealRequest())
    path = sealed.segments[0].path
    released = await member.stub.Release(telemetry_pb2.ReleaseRequest(paths=[path, path]))
    assert released.released == 1
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await read(member, path)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


async def test_results_are_kept_whole_and_replaced(member: Member) -> None:
    async def chunks() -> AsyncIterator[Any]:
        yield telemetry_pb2.ResultChunk(name="report.html", data=b"<html>")
        yield telemetry_pb2.ResultChunk(data=b"</html>")
        yield telemetry_pb2.ResultChunk(name="metrics.prom", data=b"x 1\n")

    await member.stub.PutResult(chunks())
    await member.stub.PutResult(chunks())
    assert (member.results / "report.html").read_bytes() == b"<html></html>"
    assert sorted(path.name for path in member.results.iterdir()) == [
        "metrics.prom", "report.html",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["../../evil", "report.html/x", "", "passwd"])
async def test_a_result_of_another_name_is_refused(member: Member, name: str) -> None:
    async def chunks() -> AsyncIterator[Any]:
        yield telemetry_pb2.ResultChunk(name=name, data=b"x")

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await member.stub.PutResult(chunks())
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert not member.results.exists()


async def test_a_result_without_end_is_refused(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "RESULT_BYTES_MAX", 1000)

    async def chunks() -> AsyncIterator[Any]:
        for _ in range(100):
            yield telemetry_pb2.ResultChunk(name="report.html", data=b"x" * 100)

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await member.stub.PutResult(chunks())
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_who_may_only_read_changes_nothing(member: Member) -> None:
    member.may_change = False
    sealed = await member.stub.Seal(telemetry_pb2.SealRequest())
    paths = [item.path for item in sealed.segments]
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await member.stub.Release(telemetry_pb2.ReleaseRequest(paths=paths))
    assert caught.value.code() == grpc.StatusCode.PERMISSION_DENIED
    assert [item.path for item in member.writer.sealed()] == paths
