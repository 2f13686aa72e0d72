"""Processes of ours that start without paying for imports: forks of one that has made them.

A member's start takes 1.8 s of processor time, 1.4 of it for imports, and the tests start
thousands.  What runs in a fork is the program itself, from its `__main__` on, in an environment,
folder and log of its own.  Not for what depends on how a process comes to be: memory that is
measured, signals during imports, another version.  Run as a program this is the one that forks.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import runpy
import selectors
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
READ_BYTES = 65536
#: sysexits.h: EX_SOFTWARE.
FAILED = 70


class Forked:
    """One process, as far as tests need a `subprocess.Popen`."""

    def __init__(self, pid: int, arguments: Sequence[str]) -> None:
        self.pid = pid
        self.args = arguments
        self.returncode: int | None = None
        self._has_ended = threading.Event()

    def ended(self, status: int) -> None:
        """Say what its parent has learned."""
        self.returncode = status
        self._has_ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._has_ended.wait(timeout):
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """Owns the process that forks; ends it, not what it has started."""

    def __init__(
        self, modules: Sequence[str], paths: Sequence[Path], environment: Mapping[str, str]
    ) -> None:
        """modules: what is imported before; paths: where modules are looked for; environment: what
        these imports need beside this process's own.
        """
        path = os.pathsep.join(str(path) for path in (REPOSITORY, *paths))
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": path},
        )
        self._lock = threading.Lock()
        self._started = threading.Event()
        self._newest: Forked | None = None
        self._arguments: Sequence[str] = ()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def start(
        self, arguments: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path
    ) -> Forked:
        """Run `python -m` with these arguments; what it prints is added to the log."""
        asked = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "log": str(log),
            "folder": str(folder),
        }
        with self._lock:
            assert self._parent.stdin is not None
            self._started.clear()
            self._newest, self._arguments = None, arguments
            self._parent.stdin.write(json.dumps(asked).encode() + b"\n")
            self._parent.stdin.flush()
            self._started.wait()
            found = self._newest
        assert found is not None, "the process that forks has ended"
        return found

    def _read(self) -> None:
        running: dict[int, Forked] = {}
        assert self._parent.stdout is not None
        for line in self._parent.stdout:
            said = json.loads(line)
            if "started" in said:
                self._newest = Forked(said["started"], self._arguments)
                running[self._newest.pid] = self._newest
                self._started.set()
            else:
                running.pop(said["ended"]).ended(said["status"])
        self._started.set()

    def close(self) -> None:
        """End it; what has been started lives on, and nobody says how it ends."""
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait()
        self._reader.join()
        self._parent.stdout.close()


@functools.cache
def members(form: str) -> Warm:
    """Return what starts brokerd members of a form (BROKERD_COMPILED) in this run of tests."""
    found = Warm(["brokerd.cli", "brokerd.server.app"], [], {"BROKERD_COMPILED": form})
    atexit.register(found.close)
    return found


def _become(asked: dict[str, Any]) -> None:
    """Be what was asked for, and end."""
    status = FAILED
    try:
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        os.close(nothing)
        os.close(log)
        os.chdir(asked["folder"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        module, *sys.argv[1:] = asked["arguments"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        # As the interpreter has it: nothing is 0, and a text is printed.
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _reap(running: set[int]) -> None:
    for pid in list(running):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            running.discard(pid)
            _say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})


def _say(what: dict[str, int]) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def _serve() -> None:
    """Fork for each line that comes, and tell which of the forks have ended how."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakes, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(wakes, selectors.EVENT_READ)
    running: set[int] = set()
    begun = b""
    while True:
        ready = {key.fd for key, _ in selector.select()}
        if wakes in ready:
            os.read(wakes, READ_BYTES)
        _reap(running)
        if 0 not in ready:
            continue
        read = os.read(0, READ_BYTES)
        if not read:
            return
        *lines, begun = (begun + read).split(b"\n")
        for line in lines:
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                selector.close()
                os.close(wakes)
                os.close(wake)
                _become(json.loads(line))
            running.add(pid)
            _say({"started": pid})


if __name__ == "__main__":
    # Nothing of this is garbage, and children that collect it would copy its pages.
    import gc

    gc.disable()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()
    gc.enable()
    _serve()
