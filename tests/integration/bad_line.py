"""A bad line between two programs: a TCP proxy that delays, stalls as lost segments do, and cuts.

What TCP makes of a line that loses packets is what the ends see: nothing is lost or reordered, but
everything behind a lost segment waits for its retransmission, which is asked for after a timeout
that doubles (RFC 6298: 200 ms at least on Linux); and now and then the connection is gone, with
whatever was on the line.  For the tests and runs of federation; `tc netem` needs a kernel module
that is not everywhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass

#: What an end may have on the line in one direction before it is read no further.
WINDOW_BYTES = 256 * 1024
READ_BYTES = 16 * 1024
#: What one packet of the line carries, so that a large read loses one sooner.
SEGMENT_BYTES = 1460
RETRANSMIT_S = 0.2


@dataclass(slots=True, frozen=True)
class Quality:
    """How bad the line is."""

    #: One way, seconds.
    delay_s: float = 0.0
    #: Share of the segments that have to be sent again, 0 to 1.
    loss: float = 0.0
    #: Mean time from one cut of all connections to the next, seconds; 0: none.
    cut_every_s: float = 0.0


class BadLine:
    """Listens on `port` and carries to `target_port`, both on loopback, in a thread of its own.

    State: `cuts` and `stalls`, how often it has done so.
    """

    def __init__(self, target_port: int, quality: Quality, seed: int = 1) -> None:
        self._target_port = target_port
        self._quality = quality
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))
        self._is_listening = threading.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0
        self.cuts = 0
        self.stalls = 0

    def __enter__(self) -> BadLine:
        self._thread.start()
        self._is_listening.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()
        self._loop.close()

    async def _run(self) -> None:
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._is_listening.set()
        cutting = self._loop.create_task(self._cut())
        await self._ended.wait()
        cutting.cancel()
        server.close()
        self._abort_all()
        # Those that carry see that their ends are gone.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _cut(self) -> None:
        mean_s = self._quality.cut_every_s
        while mean_s:
            await asyncio.sleep(self._random.expovariate(1 / mean_s))
            self.cuts += bool(self._writers)
            self._abort_all()

    def _abort_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection; its end in either direction is the end of both."""
        self._writers.add(writer)
        try:
            onward = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            # Nobody listens there: the end of a process is seen at once, as on loopback.
            self._writers.discard(writer)
            writer.transport.abort()
            return
        self._writers.add(onward[1])
        pair = [
            self._loop.create_task(self._one_way(reader, onward[1])),
            self._loop.create_task(self._one_way(onward[0], writer)),
        ]
        await asyncio.wait(pair, return_when=asyncio.FIRST_COMPLETED)
        for task in pair:
            task.cancel()
        for end in (writer, onward[1]):
            self._writers.discard(end)
            end.transport.abort()

    async def _one_way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read up to a window ahead; deliver in order, each read when it has arrived."""
        on_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(WINDOW_BYTES // READ_BYTES)
        delivering = self._loop.create_task(self._deliver(on_way, writer))
        try:
            arrives = 0.0
            # The other end of a cut connection says so, or is just gone.
            with contextlib.suppress(OSError):
                while data := await reader.read(READ_BYTES):
                    # Never before what was sent earlier.
                    own = self._loop.time() + self._quality.delay_s + self._retransmission_s(data)
                    arrives = max(arrives, own)
                    await on_way.put((arrives, data))
            await on_way.join()
        finally:
            delivering.cancel()

    async def _deliver(
        self, on_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            arrives, data = await on_way.get()
            await asyncio.sleep(arrives - self._loop.time())
            # What arrives at an end that is gone is lost.
            if not writer.is_closing():
                with contextlib.suppress(OSError):
                    writer.write(data)
                    await writer.drain()
            on_way.task_done()

    def _retransmission_s(self, data: bytes) -> float:
        """Return how long the last of its segments is late."""
        late_s = 0.0
        for _ in range(0, len(data), SEGMENT_BYTES):
            timeout_s, own_s = RETRANSMIT_S, 0.0
            while self._random.random() < self._quality.loss:
                own_s += timeout_s
                timeout_s *= 2
            late_s = max(late_s, own_s)
        self.stalls += late_s > 0
        return late_s


@contextlib.contextmanager
def line_to(port: int, quality: Quality | None, seed: int = 1) -> Iterator[int]:
    """Yield the port at which a program is reached over such a line; its own without one."""
    if quality is None:
        yield port
        return
    with BadLine(port, quality, seed) as line:
        yield line.port
