"""The Spark job of the CronJob: client mode, executors as pods, the tables of local mode."""

from __future__ import annotations

import json

import pika
import pytest

from tests.e2e.namespace import Namespace, Resource, resource, until
from tests.e2e.reach import Reach
from tests.e2e.traffic import take

# A driver, two executors and four brokers share two cores: Java takes its time.
pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

COUNT = 200
BODY = b"counted".ljust(512, b".")
JOB = "by-hand"
JOB_TIMEOUT_S = 420.0
EXECUTORS = "spark-role=executor"
#: Makes the tables anew in local mode from the same segments, and says how they compare.
COMPARE = """
import json, subprocess, sys
from pathlib import Path
import pyarrow.parquet
from brokerd_telemetry import commit

CLUSTER, QUEUE = sys.argv[1:]
PODS, LOCAL = Path("/var/lib/telemetry"), Path("/tmp/local")
command = [sys.executable, "-m", "brokerd_telemetry", "run", "--cluster", CLUSTER]
command += ["--raw", str(PODS / "raw"), "--out", str(LOCAL), "--master", "local[2]"]
subprocess.run(command, check=True)

def plain(value):
    return round(value, 6) if isinstance(value, float) else str(value)

def rows(out, table):
    found = []
    for path in commit.table_files(out, table):
        with pyarrow.parquet.ParquetFile(path) as file:
            found += file.read().to_pylist()
    return found

def key(row):
    row.pop("run_id", None)
    return json.dumps({name: plain(value) for name, value in row.items()}, sort_keys=True)

verdict = {"tables": {}, "differing": {}}
for table in sorted(commit.Ledger(LOCAL).load().tables):
    if table == "silver":
        continue
    pods, local = (sorted(map(key, rows(out, table))) for out in (PODS, LOCAL))
    verdict["tables"][table] = len(local)
    if pods != local:
        only = sorted(set(pods) - set(local))[:3], sorted(set(local) - set(pods))[:3]
        verdict["differing"][table] = only
verdict["queue"] = [
    {name: value for name, value in row.items() if isinstance(value, int)}
    for row in rows(PODS, "queue_1h")
    if row.get("queue") == QUEUE
]
verdict["report"] = (PODS / "publish" / "report.html").stat().st_size
print("VERDICT " + json.dumps(verdict))
"""


def reader(space: Namespace) -> Resource:
    """A pod with the job's own image, volume and security, that runs COMPARE."""
    cron_job = space.get("cronjob", "orders-telemetry")
    pod: Resource = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["args"] = ["python", "-c", COMPARE, f"{space.name}/orders", "counted"]
    pod["automountServiceAccountToken"] = False
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "compare"}, "spec": pod}


def use_executors(space: Namespace) -> None:
    """Ask for executors as pods, and wait until the CronJob has it."""
    telemetry = {"engine": "kubernetes", "executors": 2, "suspend": True}
    space.patch("brokercluster", "orders", {"telemetry": telemetry})

    def is_there() -> bool:
        found = space.find("cronjob", "orders-telemetry")
        return found is not None and "k8s://" in json.dumps(found) and found["spec"]["suspend"]

    until(is_there, "the CronJob with --master k8s://…")


def kill_an_executor(space: Namespace) -> str:
    """Delete the first executor that runs, with no grace.

    Not waited for is the second: where it comes late, the first one may have done all the work.
    """

    def running() -> list[str]:
        assert not is_ended(space), "the job ended before its executors ran"
        pods = space.items("pods", EXECUTORS)
        return [p["metadata"]["name"] for p in pods if p["status"]["phase"] == "Running"]

    name = until(running, "an executor running", JOB_TIMEOUT_S)[0]
    space.kubectl("delete", "pod", name, "--grace-period=0", "--force")
    return name


def is_ended(space: Namespace) -> str:
    """Complete or Failed, once the job is."""
    for condition in space.get("job", JOB).get("status", {}).get("conditions", []):
        if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
            return str(condition["type"])
    return ""


def test_job_with_executors_as_pods_makes_the_tables_of_local_mode_though_one_is_killed(
    shop: Namespace, orders: Reach
) -> None:
    use_executors(shop)
    shop.apply(resource("Queue", "counted", brokerRef={"name": "orders"}, type="quorum"))
    shop.wait_applied("queue", "counted")
    connection = orders.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    for _ in range(COUNT):
        channel.basic_publish("", "counted", BODY, pika.BasicProperties(delivery_mode=2))
    connection.close()
    take(orders, "counted", COUNT)

    shop.kubectl("create", "job", JOB, "--from=cronjob/orders-telemetry")
    kill_an_executor(shop)
    assert until(lambda: is_ended(shop), "the job's end", JOB_TIMEOUT_S) == "Complete"
    until(lambda: not shop.items("pods", EXECUTORS), "executors go with the driver")

    shop.apply(reader(shop))
    ended = ("Succeeded", "Failed")
    phase = until(
        lambda: (p := shop.get("pod", "compare")["status"]["phase"]) in ended and p,
        "the comparison's end",
        JOB_TIMEOUT_S,
    )
    said = shop.kubectl("logs", "compare")
    assert phase == "Succeeded", said
    verdict = json.loads(said.split("VERDICT ")[1])
    assert verdict["differing"] == {}, said
    assert verdict["tables"]["queue_1h"] > 0
    assert verdict["tables"]["audit_1h"] > 0
    assert verdict["report"] > 0
    assert sum(row["enq"] for row in verdict["queue"]) == COUNT
    assert sum(row["ack"] for row in verdict["queue"]) == COUNT
    shop.delete("queue", "counted")
