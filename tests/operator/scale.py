"""How long the operator takes for many resources: `python -m tests.operator.scale --count 10000`.

A real API server, a real operator process and a fake broker behind a BrokerConnection, so that the
figures are the operator's and the API server's. Prints a line of figures for each of: from the
operator's start until all resources, which are there before it, are Ready; a restart with
nothing to do; one changed spec until the broker has it, at rest.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from brokerd_operator.sources.api import GROUP_PATH
from brokerd_operator.specs.model import Identity

from tests.cluster_fixtures import CLUSTER, Kubernetes, api_down, api_up
from tests.operator.broker_thread import BrokerThread
from tests.operator.fault_proxy import Upstream
from tests.operator.operator_process import Namespace, OperatorProcess, of_connection, wait_for

NAMESPACE = "scale"
QUEUES = f"{GROUP_PATH}/namespaces/{NAMESPACE}/queues"
WRITERS = 4
CHANGES = 20
CHANGE_PAUSE_S = 0.5
DEADLINE_S = 900.0
MIB = 1 << 20
MEMORY_MIB = 300
#: Nothing happens any more.
REST_S = 3.0


def main() -> int:
    """Measure; 1 when a target was missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="how many queues")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        api = api_up(state)
        broker = BrokerThread()
        try:
            return 0 if measure(api, broker, Path(folder), options.count) else 1
        finally:
            broker.close()
            api_down(state)


def measure(api: Kubernetes, broker: BrokerThread, folder: Path, count: int) -> bool:
    """All figures; whether the targets are met."""
    api.kubectl("apply", "-f", str(CLUSTER.parents[1] / "crds"))
    api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    api.kubectl("create", "namespace", NAMESPACE)
    space = Namespace(api, NAMESPACE)
    upstream = Upstream.of(api.kubeconfig, folder)
    space.connect(broker.broker.address)
    create(upstream, count)
    operator = OperatorProcess(api.kubeconfig, NAMESPACE, folder / "operator.log")
    ready_s, peak = begin(operator, "status_writes", count)
    settle(upstream, count)
    versions, writes = listed(upstream), broker.broker.writes
    operator.stop(signal.SIGKILL)
    restart_s, again = begin(operator, "passes", count)
    is_unwritten = listed(upstream) == versions and broker.broker.writes == writes
    change_ms = [change(upstream, broker, number) for number in range(CHANGES)]
    operator.stop()
    limit_s = 10 if count <= 1000 else 120
    print(f"count={count} load={os.getloadavg()[0]:.1f}")
    print(f"all_ready_s={ready_s:.1f} limit={limit_s} memory_mib={peak:.0f} limit={MEMORY_MIB}")
    print(f"restart_s={restart_s:.1f} limit=30 unwritten={is_unwritten} memory_mib={again:.0f}")
    median, worst = statistics.median(change_ms), max(change_ms)
    print(f"change_ms_median={median:.0f} change_ms_worst={worst:.0f} limit=200")
    is_met = ready_s <= limit_s and peak <= MEMORY_MIB and restart_s <= 30 and median <= 200
    return is_met and is_unwritten


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


def begin(operator: OperatorProcess, name: str, count: int) -> tuple[float, float]:
    """Start an operator. Seconds until a metric of queues is at its count and rests, and MiB."""
    peak, last, changed_s = 0, 0.0, 0.0
    began = time.monotonic()
    operator.start()
    assert operator.process is not None
    process = psutil.Process(operator.process.pid)
    pause = threading.Event()
    while True:
        now_s = time.monotonic() - began
        found = _metric(operator, f'brokerd_operator_{name}_total{{kind="Queue"}}')
        if found != last:
            last, changed_s = found, now_s
        peak = max(peak, process.memory_info().rss)
        if last >= count and now_s - changed_s > REST_S:
            return changed_s, peak / MIB
        assert now_s < DEADLINE_S, operator.log.read_text()[-2000:]
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


def change(upstream: Upstream, broker: BrokerThread, number: int) -> float:
    """Milliseconds from the request that changes a spec until the broker has it."""
    connection = _connection(upstream)
    connection.connect()
    patch = {"spec": {"maxLength": 100 + number}}
    queue = Identity("queue", "/", "q0")
    pause = threading.Event()
    began = time.monotonic()
    _send(connection, "PATCH", f"{QUEUES}/q0", patch, "application/merge-patch+json")
    while broker.broker.objects[queue]["settings"].get("max-length") != 100 + number:
        assert time.monotonic() - began < DEADLINE_S
        pause.wait(0.001)
    taken_ms = (time.monotonic() - began) * 1000
    connection.close()
    # At rest: the status of the one before is written.
    pause.wait(CHANGE_PAUSE_S)
    return taken_ms


if __name__ == "__main__":
    sys.exit(main())
