"""One member of a local cluster: a brokerd process that is started again when it crashes.

A member that was killed or stopped on purpose is held: only `restart` starts it again.
For `local/cluster.py` and programs that use the environment, such as the demo.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import aiohttp

from brokerd_operator.local.errors import MemberFailed
from brokerd_operator.local.ports import LOOPBACK, Ports

log = logging.getLogger(__name__)

READY_POLL_S = 0.05
PROBE_TIMEOUT_S = 2.0
#: Back-off between restarts of a member that crashes again and again.
RESTART_FIRST_S = 0.5
RESTART_MAX_S = 30.0
#: A member that ran so long starts afresh with the shortest back-off.
STEADY_S = 30.0
#: A stopping member hands its leaderships over within 15 s.
STOP_TIMEOUT_S = 25.0
LOG_BYTES_MAX = 16 * 1024 * 1024
LOG_TAIL_BYTES = 8192
LOG_TAIL_LINES = 8
#: sysexits.h EX_CONFIG: starting again would end the same way.
EXIT_CONFIG = 78


class MemberState(enum.Enum):
    """What a member does."""

    STARTING = "starting"
    READY = "ready"
    #: Ended by itself; comes again after the back-off.
    CRASHED = "crashed"
    #: Ended on purpose; stays so until `restart`.
    HELD = "held"
    STOPPED = "stopped"


class Member:
    """Owns one process and its log file. `changed` is called after every change of state."""

    def __init__(
        self,
        name: str,
        ports: Ports,
        data_dir: Path,
        environment: Mapping[str, str],
        changed: Callable[[Member], None],
    ) -> None:
        self.name = name
        self.ports = ports
        self.data_dir = data_dir
        self.environment = dict(environment)
        self.state = MemberState.STOPPED
        #: Why it is not running, with the last log lines.
        self.problem = ""
        self.restarts = 0
        self._changed = changed
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._may_run = asyncio.Event()
        self._is_stopping = False
        self._was_ready = False

    @property
    def amqp_port(self) -> int:
        return self.ports.amqp

    @property
    def grpc_port(self) -> int:
        return self.ports.grpc

    @property
    def http_port(self) -> int:
        return self.ports.http

    @property
    def peer_address(self) -> str:
        return f"{LOOPBACK}:{self.ports.peer}"

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    @property
    def log_file(self) -> Path:
        return self.data_dir / "brokerd.log"

    @property
    def is_held(self) -> bool:
        return not self._may_run.is_set() and not self._is_stopping

    def start(self) -> None:
        """Begin to supervise."""
        self._is_stopping = False
        self._may_run.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._supervise())

    def kill(self, number: int = signal.SIGKILL, *, hold: bool = True) -> None:
        """Send a signal. With `hold` the member is not started again until `restart`."""
        if hold:
            self._may_run.clear()
        pid = self.pid
        if pid is not None:
            os.kill(pid, number)

    async def wait_stopped(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Wait until the process has ended."""
        process = self._process
        if process is not None:
            async with asyncio.timeout(timeout_s):
                await process.wait()

    async def restart(self) -> None:
        """Start a held member again; a running one is stopped first."""
        if self.pid is not None:
            self.kill(signal.SIGTERM)
            await self.wait_stopped()
        self._may_run.set()
        if self.state is MemberState.HELD:
            # A task that waits for it must not see the state of before.
            self._set(MemberState.STARTING)

    async def wait_ready(self, timeout_s: float = 30.0) -> None:
        """Wait until it answers /health/ready; raises MemberFailed."""
        try:
            async with asyncio.timeout(timeout_s):
                while self.state is not MemberState.READY:
                    if self.state is MemberState.HELD:
                        raise MemberFailed(self.problem or f"{self.name} is not running")
                    await asyncio.sleep(READY_POLL_S)
        except TimeoutError as error:
            text = self.problem or f"{self.name} was not ready after {timeout_s:g} s"
            raise MemberFailed(f"{text}\n{self.log_tail()}".rstrip()) from error

    async def stop(self) -> None:
        """Stop it for good: SIGTERM, and SIGKILL when that is not enough."""
        self._is_stopping = True
        self._may_run.clear()
        task, self._task = self._task, None
        if self.pid is not None:
            self.kill(signal.SIGTERM)
            try:
                await self.wait_stopped()
            except TimeoutError:
                log.warning("member did not stop, killing it member=%s", self.name)
                self.kill(signal.SIGKILL)
                await self.wait_stopped()
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._set(MemberState.STOPPED)

    def log_tail(self) -> str:
        """The last lines of its log."""
        try:
            with self.log_file.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - LOG_TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-LOG_TAIL_LINES:])

    # ---- supervision --------------------------------------------------------------------------

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        delay = RESTART_FIRST_S
        while True:
            await self._may_run.wait()
            began = loop.time()
            status = await self._run_once()
            if self._is_stopping:
                return
            if not self._may_run.is_set():
                self.problem = f"{self.name} was stopped on purpose"
                self._set(MemberState.HELD)
                continue
            self.problem = f"{self.name} {_ending(status)}"
            if not self._was_ready or status == EXIT_CONFIG:
                self.problem += f"; its last log lines:\n{self.log_tail()}"
            if loop.time() - began > STEADY_S:
                delay = RESTART_FIRST_S
            self.restarts += 1
            self._set(MemberState.CRASHED)
            log.warning("%s; starting it again in %.1f s", self.problem, delay)
            await asyncio.sleep(delay)
            delay = min(delay * 2, RESTART_MAX_S)

    async def _run_once(self) -> int:
        """One life of the process; its exit status."""
        self._was_ready = False
        process = await self._spawn()
        self._process = process
        self._set(MemberState.STARTING)
        probe = asyncio.get_running_loop().create_task(self._probe())
        try:
            return await process.wait()
        finally:
            probe.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probe

    async def _spawn(self) -> asyncio.subprocess.Process:
        self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.log_file.exists() and self.log_file.stat().st_size > LOG_BYTES_MAX:
            self.log_file.replace(self.log_file.with_suffix(".log.1"))
        command = [sys.executable, "-m", "brokerd_operator.local.launch", str(os.getpid())]
        command += [sys.executable, "-m", "brokerd", "serve", "--node-name", self.name]
        command += ["--data-dir", str(self.data_dir), "--port-offset", str(self.ports.offset)]
        with self.log_file.open("ab") as output:
            return await asyncio.create_subprocess_exec(
                *command,
                env=self.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C in the terminal is for the supervisor, which stops its members in order.
                start_new_session=True,
            )

    async def _probe(self) -> None:
        """Follow the health of the process."""
        url = f"http://{LOOPBACK}:{self.ports.http}/health/ready"
        timeout = aiohttp.ClientTimeout(total=PROBE_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                is_ready = False
                with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                    async with session.get(url) as response:
                        is_ready = response.status == 200
                if is_ready:
                    self._was_ready = True
                    self.problem = ""
                    self._set(MemberState.READY)
                elif self.state is MemberState.READY:
                    self._set(MemberState.STARTING)
                await asyncio.sleep(1.0 if is_ready else READY_POLL_S)

    def _set(self, state: MemberState) -> None:
        if state is not self.state:
            self.state = state
            self._changed(self)


def _ending(status: int) -> str:
    if status < 0:
        try:
            return f"was ended by {signal.Signals(-status).name}"
        except ValueError:
            return f"was ended by signal {-status}"
    return f"ended with status {status}"
