"""Steady calls by threads until the test has seen enough, and the verdict over them.

Used by the programs beside it.  Says `ready` when calls get through; reads `go` when the member
that was killed is back; says `done` when each call was answered and none took too long.
"""

import sys
import threading
import time
from collections.abc import Callable

#: Calls at a time, and the pause of each caller between two.
CALLERS, PAUSE_S = 4, 0.1
#: Callers whose calls got through so often are ready.
READY_CALLS = 3
#: A call that failed is tried again after so long, as applications do.
AGAIN_S = 0.2


class Steady:
    """State: how long each call took with all its tries, and how many tries failed."""

    def __init__(self, call: Callable[[int], None], bound_s: float) -> None:
        """call: makes one call with this number and raises if there is no right answer in time."""
        self._call = call
        self._bound_s = bound_s
        self._stopped = threading.Event()
        self._ready = threading.Semaphore(0)
        self._took: list[float] = []
        self._failed: dict[str, int] = {}

    def run(self) -> None:
        """Call until told to stop, then print the verdict; raises if it is not good."""
        threads = [
            threading.Thread(target=self._caller, args=(n,), daemon=True) for n in range(CALLERS)
        ]
        for thread in threads:
            thread.start()
        for _ in range(CALLERS * READY_CALLS):
            self._ready.acquire()
        print("ready", flush=True)
        sys.stdin.readline()
        self._stopped.set()
        for thread in threads:
            thread.join(self._bound_s)
        hanging = sum(thread.is_alive() for thread in threads)
        slowest = max(self._took)
        print(f"{len(self._took)} calls, slowest {slowest:.1f} s, tries failed: {self._failed}")
        assert not hanging, f"{hanging} calls without an answer"
        assert slowest < self._bound_s, f"a call took {slowest:.1f} s"

    def _caller(self, caller: int) -> None:
        number = caller
        while not self._stopped.is_set():
            began = time.monotonic()
            self._until_answered(number)
            self._took.append(time.monotonic() - began)
            self._ready.release()
            number += CALLERS
            self._stopped.wait(PAUSE_S)

    def _until_answered(self, number: int) -> None:
        while True:
            try:
                return self._call(number)
            except Exception as error:
                what = f"{type(error).__name__}: {error}"[:160]
                if what not in self._failed:
                    print(f"call {number}: {what}", flush=True)
                self._failed[what] = self._failed.get(what, 0) + 1
                threading.Event().wait(AGAIN_S)


def done() -> None:
    """Say that all is well; what the frameworks' threads still do is of no interest."""
    import os

    print("done", flush=True)
    os._exit(0)
