"""A network namespace of its own, where 127.0.0.1:5672 is free: for suites with hard-coded ports.

Needs root and iproute2. Everything that was started in it is ended by its pid. For the tests of
established clients only; other tests use free ports.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

#: A process that ignores SIGTERM for so long is killed.
STOP_SECONDS = 60.0


class Namespace:
    """State: the name of a network namespace and the processes that were started in it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._processes: list[subprocess.Popen[bytes]] = []

    def command(self, *args: str) -> list[str]:
        """Return the command line that runs `args` inside."""
        return ["ip", "netns", "exec", self.name, *args]

    def start(
        self, *args: str, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process inside, in a session of its own, its output in `log`."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(*args),
                env=os.environ | dict(env or {}),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=cwd,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> None:
        """End a process and what it left in its session."""
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_SECONDS)

    def run(
        self,
        *args: str,
        timeout: float,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside to its end; one that takes too long is killed with its children."""
        process = subprocess.Popen(
            self.command(*args),
            env=os.environ | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            said, _ = process.communicate()
            said += f"\nkilled after {timeout:.0f} s\n"
        return subprocess.CompletedProcess(args, process.returncode, said, "")

    def close(self) -> None:
        """End what still runs."""
        for process in reversed(self._processes):
            self.end(process)


class NoNamespace(Exception):
    """A network namespace cannot be made here; the text says why."""


@contextlib.contextmanager
def namespace(purpose: str) -> Iterator[Namespace]:
    """Make a namespace with loopback and take it away again."""
    if os.geteuid() != 0:
        raise NoNamespace("a network namespace of its own needs root")
    name = f"brokerd-{purpose}-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True, text=True)
    if made.returncode:
        raise NoNamespace(f"network namespaces cannot be made here: {made.stderr.strip()}")
    inside = Namespace(name)
    try:
        subprocess.run(inside.command("ip", "link", "set", "lo", "up"), check=True)
        yield inside
    finally:
        inside.close()
        subprocess.run(["ip", "netns", "delete", name], check=False)
