"""Three NATS servers with JetStream on loopback, and what their own bench client says of them.

Server and client are built from the Go module proxy by the ordinary `go install` into the cache
folder; Go checks what it fetches against its checksum database.  Nothing is committed.  For
bench.anchors.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import time
from pathlib import Path

from bench import processes
from bench.processes import CACHE, BenchError, Nodes
from bench.rows import Point

#: Both need Go 1.24 or later.
SERVER = ("github.com/nats-io/nats-server/v2", "v2.14.9", "nats-server")
CLIENT = ("github.com/nats-io/natscli/nats", "v0.5.0", "nats")
#: Two hundred modules are fetched and compiled, once.
INSTALL_TIMEOUT_S = 1800
RUN_TIMEOUT_S = 300
#: What the client prints at the end, for one client and for many.
RATE = re.compile(r"stats: ([\d,]+) msgs/sec")
LATENCY = re.compile(r"P50:? ([\d,.]+)us.*?P99:? ([\d,.]+)us")
LATENCIES = ("p50_us", "p99_us")
STREAM = "bench"
SIZE = 1024


def installed(module: tuple[str, str, str]) -> Path:
    """Path of a Go program of this version; built the first time."""
    path, version, name = module
    folder = CACHE / f"{name}-{version}"
    program = folder / name
    if program.exists():
        return program
    if not shutil.which("go"):
        raise BenchError("go is missing: apt-get install golang-go, or a newer Go than Debian's")
    print(f"bench: building {name} {version} from the Go module proxy", flush=True)
    env = os.environ | {"GOBIN": str(folder)}
    processes.run_tool(["go", "install", f"{path}@{version}"], env, INSTALL_TIMEOUT_S)
    return program


class NatsCluster(Nodes):
    """Three servers."""

    def __init__(self, sync_interval: str = "") -> None:
        """sync_interval: "always" for a sync before each answer; empty for NATS's own."""
        super().__init__("nats")
        self._sync_interval = sync_interval
        self._program, self._client = installed(SERVER), installed(CLIENT)
        name = f"sync_interval {sync_interval or '2m, the default'}"
        self.title = f"NATS JetStream {SERVER[1]}, {name}"
        self._ports: list[int] = []

    def start(self) -> None:
        ports = processes.free_ports(6)
        self._ports, routes = ports[:3], ports[3:]
        with self.starting():
            for number in range(3):
                config = self._prepare(number, routes)
                self.run_node(number, [str(self._program), "-c", str(config)])
            for number in range(3):
                self.wait_for_node(number, lambda n: processes.listens(self._ports[n]))
            self._wait_for_leader()

    def _prepare(self, number: int, routes: list[int]) -> Path:
        sync = f"sync_interval: {self._sync_interval}" if self._sync_interval else ""
        config = self.folder / f"n{number}.conf"
        others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        config.write_text(
            f"server_name: n{number}\nlisten: 127.0.0.1:{self._ports[number]}\n"
            f'jetstream {{ store_dir: "{self.folder}/n{number}"\n{sync} }}\n'
            f"cluster {{ name: bench, listen: 127.0.0.1:{routes[number]}\nroutes: [{others}] }}\n"
        )
        return config

    def _wait_for_leader(self) -> None:
        """Until JetStream's own group has a leader: before that no stream can be made."""
        deadline = time.monotonic() + processes.START_TIMEOUT_S
        while True:
            try:
                self._stream("add", "--defaults", "--subjects", "ready", "ready")
                self._stream("rm", "--force", "ready")
                return
            except BenchError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _stream(self, verb: str, *arguments: str) -> None:
        self._run("stream", verb, *arguments)

    def _run(self, *arguments: str) -> str:
        command = [str(self._client), "--no-context", "--server", self._url(), *arguments]
        # Its settings are no business of the user's.
        env = os.environ | {"HOME": str(self.folder), "XDG_CONFIG_HOME": f"{self.folder}/config"}
        try:
            done = subprocess.run(
                command, env=env, text=True, capture_output=True, timeout=RUN_TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            raise BenchError(
                f"nats {' '.join(arguments)}: not done in {RUN_TIMEOUT_S} s"
            ) from error
        if done.returncode:
            raise BenchError(f"nats {' '.join(arguments)}: {(done.stderr or done.stdout)[-600:]}")
        return done.stdout

    def _url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self._ports)

    def _new_stream(self) -> None:
        """A stream of three replicas in files, which keeps everything."""
        self._stream(
            *("add", "--defaults", "--subjects", STREAM, "--storage", "file"),
            *("--replicas", "3", STREAM),
        )

    def _measured(self, count: int, *arguments: str) -> Point:
        """One run of the bench client; its CPU is counted from its start."""
        before, own = processes.cpu_seconds(self.pids()), _children_seconds()
        said = self._run(
            "bench",
            *arguments,
            *("--msgs", str(count), "--size", str(SIZE), "--stream", STREAM, "--no-progress"),
        )
        broker = processes.cpu_seconds(self.pids()) - before
        client = _children_seconds() - own
        return figures_of(said) | {
            "broker_cpu_us": broker * 1e6 / count,
            "client_cpu_us": client * 1e6 / count,
        }

    def publish(self, in_flight: int, count: int) -> Point:
        """The client sends a batch, awaits all its confirms, and sends the next one."""
        said = self._with_stream(count, "js", "pub", "async", "--batch", str(in_flight), STREAM)
        # Its times are those of a whole batch, not of a message.
        return {figure: value for figure, value in said.items() if figure not in LATENCIES}

    def publish_each(self, publishers: int, count: int) -> Point:
        """Each of the connections awaits the confirm of every message."""
        return self._with_stream(count, "js", "pub", "sync", "--clients", str(publishers), STREAM)

    def consume(self, count: int) -> Point:
        """Each message is acknowledged; whether the acknowledgement has come is not awaited."""
        self._new_stream()
        try:
            self._measured(count, "js", "pub", "async", "--batch", "1000", STREAM)
            return self._measured(count, "js", "consume", "--batch", "1000")
        finally:
            self._stream("rm", "--force", STREAM)

    def _with_stream(self, count: int, *arguments: str) -> Point:
        self._new_stream()
        try:
            return self._measured(count, *arguments)
        finally:
            self._stream("rm", "--force", STREAM)


def _children_seconds() -> float:
    """CPU of the programs that were run and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures_of(said: str) -> Point:
    """What the bench client's last lines say: of many clients together, not of each."""
    rates = RATE.findall(said)
    if not rates:
        raise BenchError(f"nats bench told no rate: {said[-600:]}")
    point = {"rate": float(rates[-1].replace(",", ""))}
    latencies = LATENCY.findall(said)
    if latencies:
        p50, p99 = (float(value.replace(",", "")) for value in latencies[-1])
        point |= {"p50_us": p50, "p99_us": p99}
    return point
