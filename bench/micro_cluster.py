"""Three members on loopback: replicated megabytes per second, CPU, latency, cost of idling.

Each member is a process with its own log on disk, uvloop and gRPC streams to the others; the
group's machine does nothing, so the figures are those of raft, storage and cluster alone.  From the
root: `python -m bench.micro_cluster [--seconds N] [--directory DIR]`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from brokerd.cluster.config import HostConfig
from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.cluster.groups.host import Host
from brokerd.raft.machine import Meta
from brokerd.raft.membership import decode_configuration
from brokerd.raft.messages import NodeId
from brokerd.storage.wal import WalConfig, WriteAheadLog

NAMES = ("a", "b", "c")
UID = 77
IDLE_GROUPS = 1_000


@dataclass(slots=True)
class Outcome:
    """Nothing to say."""

    reply: bytes
    effects: list[Any]


class NullMachine:
    """Refers to no entry, so that the log can always be cleaned."""

    realise_everywhere = False
    may_lose_last = False

    def apply(self, meta: Meta, command: bytes) -> Outcome:
        return Outcome(b"", [])

    def became_leader(self, meta: Meta) -> list[Any]:
        return []

    def snapshot(self) -> bytes:
        return b""

    def restore(self, data: bytes) -> None:
        pass

    def live_indexes(self) -> Sequence[tuple[int, int]]:
        return []

    def factory(self) -> None:
        return None

    def next_deadline_ms(self) -> int | None:
        return None

    def tick_command(self) -> bytes:
        return b""

    def overview(self) -> dict[str, Any]:
        return {}

    def check_invariants(self) -> None:
        pass


class Silent:
    """HostEvents that are not interested, a failing disk aside."""

    def realise(self, uid: int, term: int, effects: list[Any]) -> None:
        pass

    def leader_changed(self, uid: int, leader: NodeId | None, term: int, is_local: bool) -> None:
        pass

    def node_changed(self, node: NodeId, incarnation: int, up: bool) -> None:
        pass

    def delivered(self, sender: NodeId, uid: int, term: int, kind: int, payload: bytes) -> None:
        pass

    def complete_reply(self, uid: int, command: bytes, reply: bytes) -> bytes:
        return reply

    def liveness_received(
        self, node: NodeId, alarms: Sequence[str], used: int, limit: int, free: int
    ) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        sys.exit(f"disk: {error}")


def cpu_s() -> float:
    """Return the CPU seconds of this process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def wait_for(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            sys.exit("the condition did not come true in time")
        await asyncio.sleep(0.01)


async def pump(client: GroupClient, size: int, window: int, seconds: float) -> dict[str, float]:
    """Keep `window` commands of `size` bytes in flight for a while."""
    command = random.Random(1).randbytes(size)
    loop = asyncio.get_running_loop()
    finished = loop.create_future()
    started, cpu = time.perf_counter(), cpu_s()
    sent_at: list[float] = []
    latencies: list[float] = []

    def answered(status: ReplyStatus, reply: bytes) -> None:
        now = time.perf_counter()
        latencies.append(now - sent_at[len(latencies)])
        if now - started < seconds:
            sent_at.append(now)
            client.send(UID, command, answered)
        elif len(latencies) == len(sent_at):
            finished.set_result(None)

    for _ in range(window):
        sent_at.append(time.perf_counter())
        client.send(UID, command, answered)
    await finished
    took = time.perf_counter() - started
    return {
        "mb_per_s": len(latencies) * size / took / 1e6,
        "commands_per_s": len(latencies) / took,
        "p50_ms": statistics.median(latencies) * 1e3,
        "cpu": (cpu_s() - cpu) / took,
    }


async def member(name: str, ports: list[int], directory: Path) -> None:
    """Serve one member; commands come as JSON lines on standard input."""
    node = NodeId(name)
    wal = WriteAheadLog.open(
        directory / name, WalConfig(node_id=name), decode_configuration=decode_configuration
    )
    rng = random.Random(name)
    host = Host(node, 1, wal, HostConfig(), rng)
    host.serve(Silent())
    client = GroupClient(host, rng)
    peers = {NodeId(n): f"127.0.0.1:{p}" for n, p in zip(NAMES, ports, strict=True)}
    await host.start(peers, peers[node])
    host.open_group(UID, list(peers), NullMachine())
    client.set_members(UID, list(peers))
    await wait_for(lambda: len(host.alive()) == 3, 20)
    if name == "a":
        host.transfer_leadership(UID, node)
    await wait_for(lambda: host.leader_of(UID) is not None, 20)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    print(json.dumps({"ready": host.leader_of(UID)}), flush=True)
    while line := await reader.readline():
        order = json.loads(line)
        answer: dict[str, Any] = {}
        if order["do"] == "pump":
            answer = await pump(client, order["size"], order["window"], order["seconds"])
        elif order["do"] == "cpu":
            answer = {"cpu_s": cpu_s(), "at_s": time.monotonic()}
        elif order["do"] == "open":
            for uid in range(1000, 1000 + IDLE_GROUPS):
                host.open_group(uid, list(peers), NullMachine())
            await wait_for(lambda: host.active_count == 0, 60)
            answer = {"leading": sum(host.status_of(uid).is_leader for uid in host.groups())}
        print(json.dumps(answer), flush=True)
    await host.stop()
    wal.close()


class Process:
    """A member's process."""

    def __init__(self, name: str, ports: list[int], directory: Path) -> None:
        arguments = [name, ",".join(map(str, ports)), str(directory)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.micro_cluster", "--member", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, **fields: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(fields) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            sys.exit("a member ended early")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **fields: Any) -> dict[str, Any]:
        self.order(**fields)
        return self.answer()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(20)


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(found.getsockname()[1]) for found in sockets]
    for found in sockets:
        found.close()
    return ports


def run(seconds: float, directory: Path) -> None:
    """Print the tables."""
    ports = free_ports(3)
    members = [Process(name, ports, directory) for name in NAMES]
    leaders = [process.answer()["ready"] for process in members]
    print(f"leader {leaders[0]}; CPU is cores per process: leader, follower, follower")
    rows = ((256 << 10, 16, "a"), (64 << 10, 16, "a"), (1024, 1, "a"), (1024, 100, "a"))
    for size, window, name in (*rows, (256 << 10, 16, "b"), (1024, 1, "b")):
        sender = members[NAMES.index(name)]
        before = [process.ask(do="cpu") for process in members]
        found = sender.ask(do="pump", size=size, window=window, seconds=seconds)
        after = [process.ask(do="cpu") for process in members]
        cpu = [
            (late["cpu_s"] - early["cpu_s"]) / (late["at_s"] - early["at_s"])
            for early, late in zip(before, after, strict=True)
        ]
        print(
            f"{size:7d} B x {window:3d} in flight from {name}: {found['mb_per_s']:7.1f} MB/s "
            f"{found['commands_per_s']:7.0f}/s p50 {found['p50_ms']:7.2f} ms  CPU "
            + " ".join(f"{share:.2f}" for share in cpu)
        )
    for label in ("1 idle group", f"{IDLE_GROUPS + 1} idle groups"):
        if label != "1 idle group":
            started = time.monotonic()
            for process in members:
                process.order(do="open")
            leading = [process.answer()["leading"] for process in members]
            print(f"opened and quiet after {time.monotonic() - started:.1f} s, leaders {leading}")
        before = [process.ask(do="cpu") for process in members]
        time.sleep(max(seconds, 5))
        after = [process.ask(do="cpu") for process in members]
        shares = [
            100 * (late["cpu_s"] - early["cpu_s"]) / (late["at_s"] - early["at_s"])
            for early, late in zip(before, after, strict=True)
        ]
        print(f"{label}: % of a core per member " + " ".join(f"{share:.2f}" for share in shares))
    members[0].kill()
    started = time.monotonic()
    members[1].ask(do="pump", size=1024, window=1, seconds=0)
    print(f"leader killed: the next command was answered after {time.monotonic() - started:.2f} s")
    for process in members[1:]:
        process.close()


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="per row")
    parser.add_argument("--directory", type=Path, help="where the logs go; default: temporary")
    parser.add_argument("--member", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    if arguments.member:
        name, ports, directory = arguments.member
        uvloop.run(member(name, [int(port) for port in ports.split(",")], Path(directory)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        run(arguments.seconds, Path(directory))


if __name__ == "__main__":
    main()
