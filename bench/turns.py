"""One member whose long turns of the loop are noted: `python -m bench.turns FOLDER serve …`.

A timer of the event loop ticks each millisecond; what the main thread used of its own CPU clock
between two ticks is how long a publish would have waited, on a busy machine as well.  Meanwhile
bench.sampler's timer notes where the thread is, and gc.callbacks how long each collection took.
SIGUSR2 writes the longest turns and collections to FOLDER/PID.json and begins anew.  The product
knows nothing of this; bench.management is the only user.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType

from bench.sampler import place, start_timer

TICK_S = 0.001
#: Shorter turns are not told apart: so much is used for one tick's own work and the loop's.
LONG_S = 0.002
KEPT = 40
INTERVAL_NS = 500_000


class Turns:
    """State: the longest turns since the last writing, and the one that goes on."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}.json"
        self._began_s = 0.0
        self._places: Counter[str] = Counter()
        self._collecting_s = 0.0
        self._forget()

    def _forget(self) -> None:
        #: Seconds, a number that tells equal ones apart, where the thread was.
        self._longest: list[tuple[float, int, dict[str, int]]] = []
        self._turns = 0
        #: By generation: seconds, objects that were garbage.
        self._collections: dict[int, list[tuple[float, int]]] = {0: [], 1: [], 2: []}

    def start(self) -> None:
        """Begin; call it in the main thread, before the loop is made."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR2, self._write)
        start_timer(INTERVAL_NS)
        gc.callbacks.append(self._collection)

    def tick(self, loop: asyncio.AbstractEventLoop) -> None:
        """A turn has ended: called by the loop."""
        now = time.thread_time()
        took = now - self._began_s
        if self._began_s and took > LONG_S:
            self._turns += 1
            heapq.heappush(self._longest, (took, self._turns, dict(self._places.most_common(6))))
            if len(self._longest) > KEPT:
                heapq.heappop(self._longest)
        self._places.clear()
        self._began_s = time.thread_time()
        loop.call_later(TICK_S, self.tick, loop)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        self._places[place(frame)] += 1

    def _collection(self, phase: str, found: dict[str, int]) -> None:
        if phase == "start":
            self._collecting_s = time.thread_time()
            return
        took = time.thread_time() - self._collecting_s
        self._collections[found["generation"]].append((took, found["collected"]))
        self._places[f"collection-{found['generation']}"] += round(took * 1e9) // INTERVAL_NS

    def _write(self, _: int, __: FrameType | None) -> None:
        longest = sorted(self._longest, key=lambda turn: -turn[0])
        found = {
            "turns": [(took, places) for took, _, places in longest],
            "long_turns": self._turns,
            "collections": {
                generation: {"count": len(took), "longest": max(took, default=(0.0, 0))}
                for generation, took in self._collections.items()
            },
            "frozen": gc.get_freeze_count(),
            "cpu": resource.getrusage(resource.RUSAGE_SELF).ru_utime,
        }
        self._forget()
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.rename(self._path)
        # This took long itself.
        self._began_s = time.thread_time()


def main() -> None:
    turns = Turns(Path(sys.argv[1]))
    sys.argv[1:] = sys.argv[2:]
    turns.start()
    from brokerd.cli import main as brokerd
    from brokerd.server import app

    serve = app._serve

    async def ticking(*args: object, **more: object) -> object:
        turns.tick(asyncio.get_running_loop())
        return await serve(*args, **more)

    app._serve = ticking
    brokerd()


if __name__ == "__main__":
    main()
