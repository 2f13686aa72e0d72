"""Operators that start without paying for imports: forks of one process that has made them.

A start takes two seconds of processor time otherwise, and the test that kills an operator at each
of its writes starts hundreds. Run as a program it is that process; tests use `WarmOperators`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

#: The imports, on two busy cores.
START_S = 60.0
POLL_S = 0.01
#: sysexits.h EX_SOFTWARE
FAILED = 70


@dataclass(slots=True)
class Forked:
    """One operator, as far as tests need a `subprocess.Popen`."""

    pid: int
    log: Path

    def poll(self) -> int | None:
        """0 when it has ended, whatever its status was: only its parent knows that."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        end = time.monotonic() + (START_S if timeout is None else timeout)
        pause = threading.Event()
        while self.poll() is None:
            assert time.monotonic() < end, f"operator {self.pid} does not end"
            pause.wait(POLL_S)
        return 0


class WarmOperators:
    """Owns the process that forks; ends it, not the operators."""

    def __init__(self) -> None:
        root = Path(__file__).parents[2]
        self._lock = threading.Lock()
        self._parent = subprocess.Popen(
            [sys.executable, "-m", "tests.operator.warm_operators"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{root}:{root / 'operator'}"},
        )

    def start(self, environment: dict[str, str], log: Path) -> Forked:
        asked = json.dumps({"environment": environment, "log": str(log)}).encode() + b"\n"
        with self._lock:
            assert self._parent.stdin is not None
            assert self._parent.stdout is not None
            self._parent.stdin.write(asked)
            self._parent.stdin.flush()
            return Forked(int(self._parent.stdout.readline()), log)

    def close(self) -> None:
        assert self._parent.stdin is not None
        assert self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait(START_S)
        self._parent.stdout.close()


def _serve() -> None:
    # Imported before the first fork: that is what this process is for.
    from brokerd_operator import app, settings
    from kubernetes.config import kube_config

    # Children that ended are nobody's to wait for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        log = os.open(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for descriptor, target in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(descriptor, target)
        os.environ.clear()
        os.environ.update(asked["environment"])
        # The client reads the variable when it is imported.
        kube_config.KUBE_CONFIG_DEFAULT_LOCATION = asked["environment"]["KUBECONFIG"]
        status = FAILED
        try:
            status = app.run(settings.load())
        except BaseException:
            traceback.print_exc()
        os._exit(status)


if __name__ == "__main__":
    _serve()
