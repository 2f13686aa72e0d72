"""Real brokerd processes for tests: free ports on loopback, own data, ended by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika

from brokerd import compiled
from tests import warm
from tests.ports import free_ports

LISTENERS = ("AMQP", "GRPC", "PEER", "HTTP", "MANAGEMENT")
#: Two busy cores and a full test run beside it.
START_SECONDS = 180.0
#: Which form members run (brokerd/compiled.py): `make test` says 1, since images and wheels do. The
#: process of the tests runs plain Python, in which some of them replace parts of a member.
FORM = os.environ.get("MEMBERS_COMPILED") or os.environ.get(compiled.VARIABLE) or "0"
REPOSITORY = Path(__file__).resolve().parents[2]


#: An idle machine needs hundreds of milliseconds for what takes longest here, an election.
PATIENCE_SECONDS = 60.0


def eventually(check: Callable[[], Any], what: str, seconds: float = PATIENCE_SECONDS) -> Any:
    """Poll until `check` returns something true; fail naming `what`."""
    deadline = time.monotonic() + seconds
    while True:
        result = check()
        if result:
            return result
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        # A poll with a deadline, not a sleep that hopes.
        select_nothing(0.02)


def select_nothing(seconds: float) -> None:
    """Give the processor away for a moment."""
    import select

    select.select([], [], [], seconds)


@dataclass
class Member:
    """One brokerd process."""

    name: str
    data_dir: Path
    ports: dict[str, int]
    env: dict[str, str]
    process: subprocess.Popen[bytes] | warm.Forked | None = None
    #: The module that is run; another one for a member of another version.
    program: str = "brokerd"
    #: A fork of a process that has made the imports (warm.py); False: one from the ground up.
    is_warm: bool = True
    log_path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.log_path = self.data_dir.parent / f"{self.name}.log"

    @property
    def amqp_port(self) -> int:
        """Return the AMQP port."""
        return self.ports["AMQP"]

    @property
    def grpc_port(self) -> int:
        """Return the port of Admin, Messages and Telemetry."""
        return self.ports["GRPC"]

    @property
    def http_port(self) -> int:
        """Return the port of health and metrics."""
        return self.ports["HTTP"]

    @property
    def management_port(self) -> int:
        """Return the port of the management API."""
        return self.ports["MANAGEMENT"]

    def start(self) -> None:
        """Start the process; `wait_ready` follows."""
        arguments = [
            self.program,
            "serve",
            "--node-name",
            self.name,
            "--data-dir",
            str(self.data_dir),
            "--bind",
            "127.0.0.1",
        ]
        # Another program changes names of modules, which compiled ones do not allow.
        form = self.env.get(compiled.VARIABLE, FORM if self.program == "brokerd" else "0")
        own = {"PYTHONPATH": str(REPOSITORY), compiled.VARIABLE: form}
        env = os.environ | self.env | own
        folder = self.data_dir.parent
        if self.is_warm and self.program == "brokerd":
            self.process = warm.members(form).start(arguments, env, self.log_path, folder)
            return
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], env=env, stdout=log, stderr=log, cwd=folder
            )

    def wait_ready(self) -> None:
        """Wait until clients are let in."""
        eventually(self._is_ready, f"{self.name} ready; log:\n{self.log()[-3000:]}", START_SECONDS)

    def _is_ready(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"{self.name} ended:\n{self.log()[-3000:]}")
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}/health/ready", timeout=5
            ) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def running_members(self) -> int:
        """Return how many members it knows to be up, itself included; 0 while it does not say."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.http_port}/metrics", timeout=5
            ) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0
        name = "brokerd_cluster_members_running "
        return next((int(float(line.split()[1])) for line in lines if line.startswith(name)), 0)

    def log(self) -> str:
        """Return what it has logged."""
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """SIGKILL, as a machine that loses power does it to a process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM and wait; return the exit status."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not stop:\n{self.log()[-3000:]}") from None

    def connect(self, **settings: Any) -> pika.BlockingConnection:
        """Connect a pika client as guest."""
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.amqp_port, **settings)
        )


def wait_acquainted(members: list[Member]) -> None:
    """Wait until all members know all others to be up, which may be after all are ready.

    Only who is known to be up has applied a declare before it is answered.
    """
    for member in members:
        eventually(
            lambda member=member: member.running_members() == len(members),
            f"{member.name} knows {len(members)} members to be up",
        )


def listener_settings(ports: Mapping[str, int]) -> dict[str, str]:
    """Return the ports as a member's environment, so that an older release can read it, too."""
    settings = {
        f"{'OPTIONAL_' if key == 'MANAGEMENT' else ''}BROKERD_LISTENERS_{key}": str(port)
        for key, port in ports.items()
    }
    # Members with a certificate would all want the same port.
    return settings | {"OPTIONAL_BROKERD_LISTENERS_MANAGEMENT_TLS": "0"}


@contextlib.contextmanager
def cluster(
    folder: Path,
    size: int,
    *,
    program: str = "brokerd",
    is_warm: bool = True,
    amqps_ports: Sequence[int] = (),
    own_env: Sequence[Mapping[str, str]] = (),
    **env: str,
) -> Iterator[list[Member]]:
    """Run `size` members with their data below `folder`; extra settings as BROKERD_… variables, in
    which {name} stands for a member's name.  own_env: such of single members, in their order.
    is_warm: False for tests of memory, and of starts.
    """
    ports = free_ports(size * len(LISTENERS))
    members = []
    for i in range(size):
        own = dict(zip(LISTENERS, ports[i * len(LISTENERS) :], strict=False))
        members.append(Member(f"n{i}", folder / f"n{i}", own, {}, program=program, is_warm=is_warm))
    peers = ",".join(f"{member.name}=127.0.0.1:{member.ports['PEER']}" for member in members)
    for i, member in enumerate(members):
        member.env = listener_settings(member.ports)
        amqps_port = amqps_ports[i] if amqps_ports else 0
        member.env |= {"BROKERD_CLUSTER_NAME": "tests", "BROKERD_LISTENERS_AMQPS": str(amqps_port)}
        if size > 1:
            member.env |= {
                "BROKERD_CLUSTER_MEMBERS": peers,
                "BROKERD_CLUSTER_SECRET": "a secret of the tests",
            }
        member.env |= {key: value.replace("{name}", member.name) for key, value in env.items()}
        member.env |= own_env[i] if own_env else {}
    try:
        for member in members:
            member.start()
        for member in members:
            member.wait_ready()
        wait_acquainted(members)
        yield members
    finally:
        for member in members:
            if member.process is not None and member.process.poll() is None:
                member.kill()
