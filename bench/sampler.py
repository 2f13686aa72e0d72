"""One member of a cluster, sampled: `python -m bench.sampler FOLDER serve …` is `brokerd serve …`.

A timer of the main thread's own CPU clock sends SIGPROF; the handler notes where that thread is.
So idle time costs and counts nothing, and other threads do not disturb.  SIGUSR2 writes what was
noted to FOLDER/PID.json and begins anew.  The product knows nothing of this; for bench.profile,
and what it is made of for bench.turns.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

#: Linux: clock of the calling thread, and "send the signal to this thread".
CLOCK_THREAD_CPUTIME_ID = 3
SIGEV_THREAD_ID = 4
INTERVAL_NS = 4_000_000
#: A handler runs between bytecodes: what the loop did in C shows up at the first of a callback.
FIRST_BYTECODES = 8
#: Distinct places that are counted; beyond, counting begins anew.
PLACES_MAX = 100_000
ROOT = str(Path(__file__).parents[1]) + os.sep


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("thread_id", ctypes.c_int),
        ("pad", ctypes.c_int * 11),
    )


class _TimerSpec(ctypes.Structure):
    _fields_ = (("times", ctypes.c_long * 4),)


class Sampler:
    """State: how often the main thread was seen at (file, function), innermost own frame first."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"{os.getpid()}.json"
        self._places: Counter[str] = Counter()

    def start(self) -> None:
        """Begin; call it in the main thread."""
        signal.signal(signal.SIGPROF, self._sample)
        signal.signal(signal.SIGUSR2, self._write)
        start_timer(INTERVAL_NS)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        self._places[place(frame)] += 1
        if len(self._places) > PLACES_MAX:
            self._places.clear()

    def _write(self, _: int, __: FrameType | None) -> None:
        threads = {thread.native_id: thread.name for thread in threading.enumerate()}
        used = resource.getrusage(resource.RUSAGE_SELF)
        found = {
            "threads": threads,
            "switches": used.ru_nvcsw + used.ru_nivcsw,
            "places": self._places.most_common(),
        }
        self._places = Counter()
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(found))
        new.rename(self._path)


def start_timer(interval_ns: int) -> None:
    """Have SIGPROF sent to the calling thread whenever it has used so much CPU."""
    libc = ctypes.CDLL(None, use_errno=True)
    event = _SigEvent(0, signal.SIGPROF, SIGEV_THREAD_ID, threading.get_native_id())
    timer = ctypes.c_void_p()
    if libc.timer_create(CLOCK_THREAD_CPUTIME_ID, ctypes.byref(event), ctypes.byref(timer)):
        raise OSError(ctypes.get_errno(), "timer_create")
    spec = _TimerSpec((0, interval_ns, 0, interval_ns))
    if libc.timer_settime(timer, 0, ctypes.byref(spec), None):
        raise OSError(ctypes.get_errno(), "timer_settime")


def place(frame: FrameType | None) -> str:
    """Return the stack's own frames, innermost first, as file:function separated by spaces."""
    names = []
    outermost = None
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(ROOT + "brokerd"):
            names.append(f"{path[len(ROOT) :]}:{frame.f_code.co_name}")
            outermost = frame
        elif "/grpc/" in path or "/google/" in path:
            names.append("grpc")
        frame = frame.f_back
    names = [name for name in names if not name.startswith(("brokerd/cli", "brokerd/__main__"))]
    names = [name for name in names if not name.startswith("brokerd/server/app")]
    if len(names) == 1 and outermost is not None and outermost.f_lasti < FIRST_BYTECODES:
        return "loop"
    return " ".join(names) or "loop"


def main() -> None:
    folder = Path(sys.argv[1])
    sys.argv[1:] = sys.argv[2:]
    Sampler(folder).start()
    from brokerd.cli import main as brokerd

    brokerd()


if __name__ == "__main__":
    main()
