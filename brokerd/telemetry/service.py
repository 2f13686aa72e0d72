"""The gRPC service Telemetry of one member: jobs list, read, release and hand in results.

Contract in protos/brokerd/rpc/v1/telemetry.proto, design/telemetry.md §6.4 and 9.  Who may call is
the server's: it passes `authorise` in.  Paths and names from outside are matched against patterns
before any file is touched.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from brokerd.rpc.v1 import telemetry_pb2, telemetry_pb2_grpc
from brokerd.telemetry import segment_files
from brokerd.telemetry.segments import SealedSegment, SegmentWriter

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
#: (context, does it change something): returns, or ends the call with its status.
Authorise: TypeAlias = Callable[[Context, bool], Awaitable[object]]

CHUNK_BYTES = 256 * 1024
#: What a job may hand in, and how much of it (design/telemetry.md §9: a report is below 2 MB).
RESULT_NAMES = frozenset({"report.html", "metrics.prom", "findings.json"})
RESULT_BYTES_MAX = 16 * 1024 * 1024
#: Paths in one Release call.
RELEASED_MAX = 100_000


class TelemetryService(telemetry_pb2_grpc.TelemetryServicer):
    """Serves the sealed segments of a writer.  `collect` counts what is up to this moment;
    `members` returns (name, address, is it this one) of each member of the cluster.
    """

    def __init__(
        self,
        writer: SegmentWriter,
        result_dir: Path,
        authorise: Authorise,
        collect: Callable[[], Awaitable[None]],
        members: Callable[[], list[tuple[str, str, bool]]],
        now_us: Callable[[], int],
    ) -> None:
        self._writer = writer
        self._result_dir = result_dir
        self._authorise = authorise
        self._collect = collect
        self._members = members
        self._now_us = now_us

    async def ListSegments(
        self, request: telemetry_pb2.ListSegmentsRequest, context: Context
    ) -> telemetry_pb2.ListSegmentsResponse:
        await self._authorise(context, False)
        segments = await asyncio.to_thread(self._writer.sealed)
        return telemetry_pb2.ListSegmentsResponse(segments=_rows(segments))

    async def Seal(
        self, request: telemetry_pb2.SealRequest, context: Context
    ) -> telemetry_pb2.SealResponse:
        await self._authorise(context, False)
        await self._collect()
        try:
            segments = await asyncio.to_thread(self._writer.seal_now)
        except TimeoutError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        members = [
            telemetry_pb2.ClusterMember(name=name, address=address, is_self=is_self)
            for name, address, is_self in self._members()
        ]
        return telemetry_pb2.SealResponse(
            segments=_rows(segments), members=members, now_us=self._now_us()
        )

    async def ReadSegment(
        self, request: telemetry_pb2.ReadSegmentRequest, context: Context
    ) -> AsyncIterator[telemetry_pb2.SegmentChunk]:
        await self._authorise(context, False)
        path = await self._path(request.path, context)
        offset = 0
        while True:
            try:
                data = await asyncio.to_thread(_read, path, offset)
            except FileNotFoundError:
                await context.abort(
                    grpc.StatusCode.NOT_FOUND, f"segment '{request.path}' is not here (any more)"
                )
            if not data:
                return
            yield telemetry_pb2.SegmentChunk(data=data)
            offset += len(data)

    async def Release(
        self, request: telemetry_pb2.ReleaseRequest, context: Context
    ) -> telemetry_pb2.ReleaseResponse:
        await self._authorise(context, True)
        if len(request.paths) > RELEASED_MAX:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"more than {RELEASED_MAX} paths in one call"
            )
        for path in request.paths:
            await self._path(path, context)
        released = await asyncio.to_thread(
            lambda: sum(self._writer.release(path) for path in request.paths)
        )
        return telemetry_pb2.ReleaseResponse(released=released)

    async def PutResult(
        self, request_iterator: AsyncIterator[telemetry_pb2.ResultChunk], context: Context
    ) -> telemetry_pb2.PutResultResponse:
        await self._authorise(context, True)
        files: dict[str, bytearray] = {}
        size_bytes = 0
        name = ""
        async for chunk in request_iterator:
            # A name stands on the first chunk of a file and may be left out on the others.
            name = chunk.name or name
            size_bytes += len(chunk.data)
            if name not in RESULT_NAMES:
                await context.abort(
                    grpc.StatusCode.INVALID_ARGUMENT,
                    f"'{name[:200]}' is no result; known are {', '.join(sorted(RESULT_NAMES))}",
                )
            if size_bytes > RESULT_BYTES_MAX:
                await context.abort(
                    grpc.StatusCode.RESOURCE_EXHAUSTED,
                    f"results of more than {RESULT_BYTES_MAX} octets",
                )
            files.setdefault(name, bytearray()).extend(chunk.data)
        await asyncio.to_thread(self._keep, files)
        return telemetry_pb2.PutResultResponse()

    def _keep(self, files: dict[str, bytearray]) -> None:
        segment_files.make_directory(self._result_dir)
        for name, data in files.items():
            temporary = self._result_dir / f".{name}.{os.getpid()}"
            temporary.write_bytes(data)
            temporary.replace(self._result_dir / name)

    async def _path(self, path: str, context: Context) -> Path:
        try:
            return self._writer.path_of(path)
        except ValueError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        raise AssertionError("abort does not return")


def _read(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def _rows(segments: list[SealedSegment]) -> list[telemetry_pb2.Segment]:
    return [
        telemetry_pb2.Segment(path=item.path, size=item.size_bytes, sha256=item.sha256)
        for item in segments
    ]
