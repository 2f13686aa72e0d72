"""How long the operator takes for many resources: `python -m tests.operator.scale --count 10000`.

A real API server, a real operator process and a fake broker behind a BrokerConnection, so that the
figures are the operator's and the API server's. Prints a line of figures for each of: from the
operator's start until all resources, which are there before it, are Ready; a restart with
nothing to do; one changed spec until the broker has it, at rest; the same in another namespace
while all those resources are deleted. Wall time says something on a
quiet machine only, so seconds of processor time stand beside it: of the operator, of the API server
with its etcd, and of what the API server takes alone for as many status patches. A change is timed
from its request, and the part until the API server's answer stands beside it.

Whatever ends a run, SIGKILL too, what it started ends with it: a second process sees to that.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from brokerd_operator.sources.api import GROUP_PATH
from brokerd_operator.specs.model import Identity

from tests.cluster_fixtures import CLUSTER, Kubernetes, api_up
from tests.operator.broker_thread import BrokerThread
from tests.operator.fault_proxy import Upstream
from tests.operator.operator_process import Namespace, OperatorProcess, of_connection, wait_for

NAMESPACE = "scale"
#: Of another team, which changes one queue now and then.
NEIGHBOUR = "neighbour"
QUEUES = f"{GROUP_PATH}/namespaces/{NAMESPACE}/queues"
WRITERS = 4
#: As many as the operator's requests at once.
PATCHERS = 8
CHANGES = 20
CHANGE_PAUSE_S = 0.5
DEADLINE_S = 900.0
MIB = 1 << 20
MEMORY_MIB = 300
#: Nothing happens any more.
REST_S = 3.0
#: A bound, not an expectation.
DELETIONS_S = 3600.0
#: Of a process that was killed.
END_S = 30.0


def main() -> int:
    """Measure; 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many queues")
    parser.add_argument("--end-after-parent", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.end_after_parent:
        return end_after_parent(options.end_after_parent)
    with ended_folder() as folder, closing(BrokerThread()) as broker:
        compile_bytecode(folder / "bytecode")
        return 0 if measure(api_up(folder / "state"), broker, folder, options.count) else 1


@contextmanager
def ended_folder() -> Iterator[Path]:
    """A folder. What was started with it in its environment is ended, and the folder taken away.

    By a process of its own, as soon as this one lets go of its standard input, alive or killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    ender = subprocess.Popen(
        [sys.executable, "-m", "tests.operator.scale", "--end-after-parent", str(folder)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    let_go = ender.stdin
    assert let_go is not None

    def end(number: int, _: object) -> None:
        # At once: threads that ask the API server would be waited for.
        let_go.close()
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    try:
        yield folder
    finally:
        let_go.close()
        ender.wait()


def end_after_parent(folder: Path) -> int:
    """What that process does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    # What is being started may start something more before it is killed.
    while found := [process for process in psutil.process_iter() if _is_of(process, folder)]:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, END_S)
    shutil.rmtree(folder)
    return 0


def _is_of(process: psutil.Process, folder: Path) -> bool:
    try:
        values = process.environ().values()
    except psutil.Error:
        # Somebody else's, or it has ended.
        return False
    return any(value.startswith(f"{folder}/") for value in values)


def compile_bytecode(cache: Path) -> None:
    """The image has it: a start there compiles nothing."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(cache)
    subprocess.run([sys.executable, "-c", "import brokerd_operator.app"], check=True)


def measure(api: Kubernetes, broker: BrokerThread, folder: Path, count: int) -> bool:
    """All figures; whether the targets are met."""
    api.kubectl("apply", "-f", str(CLUSTER.parents[1] / "crds"))
    api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    upstream = Upstream.of(api.kubeconfig, folder)
    for name in (NAMESPACE, NEIGHBOUR):
        api.kubectl("create", "namespace", name)
        Namespace(api, name).connect(broker.broker.address)
    Namespace(api, NEIGHBOUR).apply(of_connection("Queue", "own", maxLength=5))
    create(upstream, count)
    floor = patch_statuses(upstream, count)
    operator = OperatorProcess(api.kubeconfig, f"{NAMESPACE},{NEIGHBOUR}", folder / "operator.log")
    limit_s = 10 if count <= 1000 else 120
    say(f"count={count} load={os.getloadavg()[0]:.1f}")
    say(f"floor_s={floor.wall_s:.1f} api_cpu_s={floor.api_cpu_s:.1f}: as many status patches")
    first = begin(operator, upstream, "status_writes", count + 1)
    say(f"all_ready_s={first.wall_s:.1f} limit={limit_s} {first.text(count)} limit={MEMORY_MIB}")
    settle(upstream, count)
    versions, writes = listed(upstream), broker.broker.writes
    operator.stop(signal.SIGKILL)
    again = begin(operator, upstream, "passes", count + 1)
    is_unwritten = listed(upstream) == versions and broker.broker.writes == writes
    say(f"restart_s={again.wall_s:.1f} limit=30 unwritten={is_unwritten} {again.text(count)}")
    changes = [change(upstream, broker, number) for number in range(CHANGES)]
    say(f"{_text('change_ms', changes)} limit=200")
    beside, deleted_s = change_beside_deletions(upstream, broker, count)
    say(f"deleted_s={deleted_s:.1f} changes_beside={len(beside)} load={os.getloadavg()[0]:.1f}")
    say(f"{_text('beside_ms', beside)} limit=1000")
    operator.stop()
    median = statistics.median(item.whole_ms for item in changes)
    worst_beside = max(item.whole_ms for item in beside)
    is_met = first.wall_s <= limit_s and first.memory_mib <= MEMORY_MIB
    is_met = is_met and again.wall_s <= 30 and median <= 200 and worst_beside <= 1000
    return is_met and is_unwritten


def say(line: str) -> None:
    print(line, flush=True)


@dataclass(frozen=True, slots=True)
class Change:
    """From the request that changes a spec until the API server's answer, and until the broker
    has it."""

    answered_ms: float
    whole_ms: float


def _text(name: str, changes: list[Change]) -> str:
    parts = []
    for part, times in (
        ("", [item.whole_ms for item in changes]),
        ("_answered", [item.answered_ms for item in changes]),
        ("_after", [item.whole_ms - item.answered_ms for item in changes]),
    ):
        parts.append(f"{name}{part}_median={statistics.median(times):.0f}")
        parts.append(f"{name}{part}_worst={max(times):.0f}")
    return " ".join(parts)


def create(upstream: Upstream, count: int) -> None:
    """The resources, by some connections that stay open."""

    def some(first: int) -> None:
        connection = _connection(upstream)
        for number in range(first, count, WRITERS):
            body = of_connection("Queue", f"q{number}", maxLength=5)
            body["metadata"]["namespace"] = NAMESPACE
            _send(connection, "POST", QUEUES, body, "application/json")
        connection.close()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(some, range(WRITERS)))


def _connection(upstream: Upstream) -> http.client.HTTPSConnection:
    return http.client.HTTPSConnection(urlsplit(upstream.url).netloc, context=upstream.context)


def _send(
    connection: http.client.HTTPSConnection, method: str, path: str, body: Any, kind: str
) -> None:
    connection.request(method, path, json.dumps(body), {"Content-Type": kind})
    answer = connection.getresponse()
    said = answer.read()
    assert answer.status in (200, 201), said


@dataclass(slots=True)
class Taken:
    """What something took; processor time is in seconds since its start."""

    wall_s: float
    cpu_s: float = 0.0
    api_cpu_s: float = 0.0
    memory_mib: float = 0.0

    def text(self, count: int) -> str:
        each_ms = 1000 * self.cpu_s / count
        cpu = f"cpu_s={self.cpu_s:.1f} cpu_ms_each={each_ms:.2f} api_cpu_s={self.api_cpu_s:.1f}"
        return f"{cpu} memory_mib={self.memory_mib:.0f}"


def _api_cpu_s(upstream: Upstream) -> float:
    """Processor time of the API server and its etcd until now."""
    port = urlsplit(upstream.url).port
    servers = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "kube-apiserver"
        and f"--secure-port={port}" in (process.info["cmdline"] or ())
    ]
    (server,) = servers
    etcd = next(
        text.removeprefix("--etcd-servers=")
        for text in server.info["cmdline"]
        if text.startswith("--etcd-servers=")
    )
    stores = [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] == "etcd"
        and any(etcd in text for text in process.info["cmdline"] or ())
    ]
    return sum(_cpu_s(process) for process in (server, *stores))


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def patch_statuses(upstream: Upstream, count: int) -> Taken:
    """How fast the API server takes a patch of the status of each resource, and nothing else."""
    before, began = _api_cpu_s(upstream), time.monotonic()
    patch = {"status": {"appliedHash": "none yet"}}

    def some(first: int) -> None:
        connection = _connection(upstream)
        for number in range(first, count, PATCHERS):
            path = f"{QUEUES}/q{number}/status"
            _send(connection, "PATCH", path, patch, "application/merge-patch+json")
        connection.close()

    with ThreadPoolExecutor(PATCHERS) as threads:
        list(threads.map(some, range(PATCHERS)))
    return Taken(time.monotonic() - began, api_cpu_s=_api_cpu_s(upstream) - before)


def begin(operator: OperatorProcess, upstream: Upstream, name: str, count: int) -> Taken:
    """Start an operator; what it took until a metric of queues is at its count and rests."""
    last = 0.0
    taken = Taken(0.0)
    api_before_s, began = _api_cpu_s(upstream), time.monotonic()
    operator.start()
    assert operator.process is not None
    process = psutil.Process(operator.process.pid)
    pause = threading.Event()
    while True:
        now_s = time.monotonic() - began
        found = _metric(operator, f'brokerd_operator_{name}_total{{kind="Queue"}}')
        if found != last:
            last, taken.wall_s, taken.cpu_s = found, now_s, _cpu_s(process)
            taken.api_cpu_s = _api_cpu_s(upstream) - api_before_s
        taken.memory_mib = max(taken.memory_mib, process.memory_info().rss / MIB)
        if last >= count and now_s - taken.wall_s > REST_S:
            return taken
        is_late = operator.process.poll() is not None or now_s > DEADLINE_S
        assert not is_late, operator.log.read_text()[-2000:]
        pause.wait(0.2)


def _metric(operator: OperatorProcess, name: str) -> float:
    try:
        return operator.metric(name)
    except OSError:
        return 0.0


def settle(upstream: Upstream, count: int) -> None:
    """Until every resource says that it is ready."""

    def all_ready() -> bool:
        found = upstream.get(QUEUES)["items"]
        return sum(_is_ready(body) for body in found) == count

    wait_for("all say so", all_ready, DEADLINE_S)


def _is_ready(body: dict[str, Any]) -> bool:
    found = (body.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in found)


def listed(upstream: Upstream) -> dict[str, str]:
    found = upstream.get(QUEUES)["items"]
    return {body["metadata"]["name"]: body["metadata"]["resourceVersion"] for body in found}


def change_beside_deletions(
    upstream: Upstream, broker: BrokerThread, count: int
) -> tuple[list[Change], float]:
    """A neighbour's changes while all queues are deleted; how long that takes, in s."""
    began = time.monotonic()
    asking = ThreadPoolExecutor(1)
    asked = asking.submit(delete_all, upstream, count)
    asking.shutdown(wait=False)
    found: list[Change] = []
    while len(broker.broker.named("queue")) > 1:
        found.append(change(upstream, broker, len(found), NEIGHBOUR, "own"))
        assert time.monotonic() - began < DELETIONS_S
        if asked.done():
            asked.result()
    return found, time.monotonic() - began


def delete_all(upstream: Upstream, count: int) -> None:
    """Each by itself, as `kubectl delete queues --all` asks for it."""

    def some(first: int) -> None:
        for number in range(first, count, WRITERS):
            upstream.request("DELETE", f"{QUEUES}/q{number}")

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(some, range(WRITERS)))


def change(
    upstream: Upstream,
    broker: BrokerThread,
    number: int,
    namespace: str = NAMESPACE,
    name: str = "q0",
) -> Change:
    """One change of a spec."""
    connection = _connection(upstream)
    connection.connect()
    patch = {"spec": {"maxLength": 100 + number}}
    queue = Identity("queue", "/", name)
    pause = threading.Event()
    began = time.monotonic()
    path = f"{GROUP_PATH}/namespaces/{namespace}/queues/{name}"
    _send(connection, "PATCH", path, patch, "application/merge-patch+json")
    answered_s = time.monotonic() - began
    while broker.broker.objects[queue]["settings"].get("max-length") != 100 + number:
        assert time.monotonic() - began < DEADLINE_S
        pause.wait(0.001)
    taken_s = time.monotonic() - began
    connection.close()
    # At rest: the status of the one before is written.
    pause.wait(CHANGE_PAUSE_S)
    return Change(1000 * answered_s, 1000 * taken_s)


if __name__ == "__main__":
    sys.exit(main())
