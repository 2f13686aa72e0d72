"""What the benches share about processes: ports, waiting, ending by pid, and what they cost.

For the other files of bench.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brokerd-bench"
START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 15
ANSWER_TIMEOUT_S = 20.0


class BenchError(Exception):
    """The bench cannot go on; the message says why and what would help."""


class Cluster(Protocol):
    """Three members on loopback, started from nothing and thrown away."""

    #: As the table calls it, with its version.
    title: str
    amqp_ports: list[int]

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def pids(self) -> list[int]: ...

    def kill(self, number: int) -> None:
        """SIGKILL a member, number from 0; its data stay."""

    def start_again(self, number: int) -> None:
        """Start a killed member on its data; returns when its process runs, ready or not."""

    def is_ready(self, number: int) -> bool:
        """Whether the member serves clients."""

    def rebalance(self) -> None:
        """Spread the leaders of quorum queues over the members."""

    def control(self, *arguments: str) -> None:
        """Run brokerctl or rabbitmqctl at the first member; BenchError if it fails."""


class Nodes:
    """The programs of a cluster, each in a session of its own, and one folder that goes with them;
    subclasses know the commands.
    """

    def __init__(self, name: str) -> None:
        """name: part of the folder's name, which identifies one that was left behind."""
        self._name = name
        self._sessions: list[subprocess.Popen[bytes]] = []
        self._folder: Path | None = None

    @property
    def folder(self) -> Path:
        assert self._folder is not None
        return self._folder

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Make the folder; when what is done then fails, nothing is left of it."""
        end_with_sigterm()
        self._folder = Path(tempfile.mkdtemp(prefix=f"bench-{self._name}-"))
        try:
            yield
        except BaseException as error:
            if isinstance(error, BenchError):
                error.add_note(self._last_words())
            self.stop()
            raise

    def run_node(self, number: int, command: list[str], env: dict[str, str] | None = None) -> None:
        """Start a program, in the place of the one that was killed; its words go into a file."""
        with (self.folder / f"n{number}.log").open("ab") as log:
            session = subprocess.Popen(
                command,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._sessions[number : number + 1] = [session]

    def wait_for_node(self, number: int, is_ready: Callable[[int], bool]) -> None:
        what = f"{self._name} n{number}"
        wait_until(what, partial(is_ready, number), self._sessions[number])

    def _last_words(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: ...{log.read_text()[-800:]}" for log in logs)

    def kill(self, number: int) -> None:
        kill_session(self._sessions[number])

    def pids(self) -> list[int]:
        return [pid for session in self._sessions for pid in session_pids(session.pid)]

    def stop(self) -> None:
        end_sessions(self._sessions)
        self._sessions.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def end_with_sigterm() -> None:
    """On SIGTERM the bench ends its clusters first, as it does after Ctrl-C."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in held]
    for listener in held:
        listener.close()
    return ports


def wait_until(what: str, check: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not check():
        if process.poll() is not None:
            raise BenchError(f"{what} ended with status {process.returncode} while starting")
        if time.monotonic() > deadline:
            raise BenchError(f"{what} was not ready in {START_TIMEOUT_S} s")
        time.sleep(0.1)


def listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def end_session(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the session that Popen(start_new_session=True) made, then SIGKILL."""
    for how, wait_s in ((signal.SIGTERM, STOP_TIMEOUT_S), (signal.SIGKILL, STOP_TIMEOUT_S)):
        if process.poll() is not None:
            break
        os.killpg(process.pid, how)
        try:
            process.wait(wait_s)
        except subprocess.TimeoutExpired:
            continue
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # what a shell script left in its session


def end_sessions(sessions: list[subprocess.Popen[bytes]]) -> None:
    """All get SIGTERM at once; the bench ignores its own SIGTERM until all have ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for process in sessions:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
    for process in sessions:
        end_session(process)
    end_with_sigterm()


def kill_session(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL to every process of the session, and wait for their end.

    The first one's end is not enough: the port of a broker that is its child stands a little
    longer, and the broker would count as ready at once after its start.
    """
    killed = session_pids(process.pid)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_TIMEOUT_S)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while set(killed) & set(session_pids(process.pid)):
        if time.monotonic() > deadline:
            raise BenchError(f"processes {killed} did not end")
        time.sleep(0.005)


def run_tool(command: list[str], env: dict[str, str] | None = None, timeout_s: int = 1800) -> None:
    """Run a command-line tool to its end; BenchError with its words if it fails."""
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=timeout_s)
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {(done.stderr or done.stdout)[-600:]}")


def session_pids(leader: int) -> list[int]:
    """Every process of a session: a broker may be the child of its start script."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader:
            found.append(int(entry.name))
    return found


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of these processes so far; one that has ended counts nothing."""
    ticks = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def resident_mib(pids: list[int]) -> float:
    pages = 0
    for pid in pids:
        try:
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def notes_of(pid: int, folder: Path) -> Any:
    """Have a member that bench.sampler or bench.stages wraps write down what it has noted since it
    was last asked.
    """
    path = folder / f"{pid}.json"
    path.unlink(missing_ok=True)
    os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise BenchError(f"the member {pid} does not write down what it noted")
        time.sleep(0.02)
    return json.loads(path.read_text())
