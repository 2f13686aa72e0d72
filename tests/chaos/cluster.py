"""A cluster under test: processes that can be killed, frozen, restarted and made to misbehave.

What every broker has in common; `brokers` says how each is started.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench import processes
from tests.chaos.load import LOST, Address, connect, wait_until
from tests.chaos.network import Network
from tests.chaos.shim import Control

#: From the start of a process to a login: RabbitMQ's nodes wait for each other.
START_S = 120.0
STOP_S = 60.0


@dataclass(slots=True)
class Node:
    """One member.  Owns its process; everything else is given."""

    index: int
    name: str
    address: Address
    command: list[str]
    environment: dict[str, str]
    #: Where its messages are, and nothing else.
    data: Path
    log: Path
    control: Control | None
    process: subprocess.Popen[bytes] | None = None
    #: Times it ended without having been told to.
    ended_by_itself: int = 0
    is_meant_to_run: bool = False

    def start(self) -> None:
        """Start the process; `is_ready` tells when it serves."""
        extra = self.control.environment if self.control else {}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env=os.environ | self.environment | extra,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                # A broker may be the child of its start script: signals go to all of them.
                start_new_session=True,
            )
        self.is_meant_to_run = True

    def is_running(self) -> bool:
        """Tell whether its process lives."""
        return self.process is not None and self.process.poll() is None

    def is_ready(self) -> bool:
        """Tell whether a client can log in."""
        try:
            connect(self.address, 2.0).close()
        except LOST:
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the member."""
        assert self.process is not None
        for pid in processes.session_pids(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.is_meant_to_run = False
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait(STOP_S)

    def stop(self) -> bool:
        """SIGTERM; tell whether it ended in time (it is killed otherwise)."""
        assert self.process is not None
        self.is_meant_to_run = False
        for pid in self.servers():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
            return True
        self.kill()
        return False

    def servers(self) -> list[int]:
        """Return the processes that are asked to end: the broker itself, not its start script."""
        assert self.process is not None
        pids = processes.session_pids(self.process.pid)
        beams = [pid for pid in pids if "beam" in Path(f"/proc/{pid}/comm").read_text()]
        return beams or pids

    def last_words(self) -> str:
        """Return the last line of what its process printed."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return text.strip().rpartition("\n")[2][-200:] or "said nothing"

    def note_end(self) -> bool:
        """Tell whether it has ended by itself since it was started; counted once."""
        if not self.is_meant_to_run or self.is_running():
            return False
        self.is_meant_to_run = False
        self.ended_by_itself += 1
        return True


class Cluster(Protocol):
    """A broker's members and what differs from broker to broker."""

    title: str
    nodes: list[Node]
    network: Network

    def newest_log_files(self, node: Node) -> list[Path]:
        """Return the files of a member's write-ahead log, the newest last."""

    def leave_queue(self, node: Node, queue: str) -> None:
        """Take the member's replica out of a quorum queue's group; raises ClusterError."""

    def join_queue(self, node: Node, queue: str) -> None:
        """Give the member a replica of a quorum queue; raises ClusterError."""

    def forget(self, node: Node) -> None:
        """Take a member out of the cluster, with its replicas; raises ClusterError."""

    def grow(self, node: Node) -> None:
        """Give the member a replica of all quorum queues; raises ClusterError."""


class ClusterError(Exception):
    """A command to the cluster failed; the message is what it said."""


@dataclass(slots=True)
class World:
    """What faults act on."""

    cluster: Cluster
    chance: random.Random
    queues: list[str]
    notes: list[str] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        return self.cluster.nodes

    def any_node(self) -> Node:
        """Draw a victim."""
        return self.chance.choice(self.nodes)


def start_all(nodes: list[Node]) -> None:
    """Start what does not run and wait until all serve; raises ClusterError naming who does not."""
    for node in nodes:
        node.note_end()
        if not node.is_running():
            node.start()

    def all_ready() -> bool:
        # RabbitMQ's nodes may give up waiting for each other, and are started again, as a service
        # manager does; so is a member of ours that ended while another was not there yet.
        for node in nodes:
            if node.note_end():
                node.start()
        return all(node.is_ready() for node in nodes)

    if not wait_until(all_ready, START_S, 0.3):
        late = [f"{node.name} ({node.last_words()})" for node in nodes if not node.is_ready()]
        raise ClusterError(f"not back in {START_S:.0f} s: {', '.join(late)}")


def control_command(command: list[str], environment: dict[str, str], seconds: float = 90.0) -> str:
    """Run a command-line tool of a broker; raises ClusterError with what it said."""
    try:
        done = subprocess.run(
            command,
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{' '.join(command[-4:])}: no end in {seconds:.0f} s") from None
    if done.returncode:
        said = (done.stderr + done.stdout).strip()
        raise ClusterError(f"{' '.join(command[-4:])}: {said[-300:]}")
    return done.stdout
