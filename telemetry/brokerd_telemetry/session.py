"""Starts Spark: finds Java, picks the JVM profile, local or with executors as pods.

design/telemetry.md §3, §4.2 (short runs), §5.5 and §14.3.
Everything else in this package gets a ready SparkSession.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MAJOR_MIN = 17
#: Rows up to which the JVM is done before its second compiler pays (design/telemetry.md §4.2):
#: what Spark itself is given are sums already, a twentieth of the rows.
SHORT_PROFILE_ROWS_MAX = 10_000_000
#: Parts that rows are parted into where they are brought together.
PARTITION_ROWS = 1_000_000
PARTITIONS_MIN = 2
PARTITIONS_MAX = 8
#: Code of 28 tables' plans is about as much as the JVM has room for by default with one compiler.
_SHORT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=96m -XX:+UseSerialGC -Xshare:auto"
_QUIET = Path(__file__).with_name("log4j2.properties")
TEMPLATE = Path("/etc/telemetry/executor.yaml")
DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079


class SparkUnavailable(Exception):
    """Spark cannot start here; the text says what to do about it."""


@dataclass(slots=True, frozen=True)
class SparkSettings:
    """How a run wants its Spark."""

    master: str = "local[*]"
    executors: int = 2
    image: str | None = None
    pod_template: Path | None = None
    rows: int = 0
    #: It serves run after run.
    is_warm: bool = False

    @property
    def is_kubernetes(self) -> bool:
        """Say whether executors are pods."""
        return self.master.startswith("k8s://")


def find_java() -> None:
    """See that there is a java to use; SparkUnavailable if there is none, or it is too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    advice = "Install it with: apt-get install openjdk-17-jre-headless"
    if java is None or not Path(java).exists():
        raise SparkUnavailable(f"Spark needs Java {JAVA_MAJOR_MIN}, and there is none. {advice}")
    said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30)
    if said.returncode:
        # JDK_JAVA_OPTIONS with an option that it does not know, say.
        raise SparkUnavailable(f"Spark needs Java; {java} -version fails: {said.stderr.strip()}")
    match = re.search(r'version "(\d+)', said.stderr)
    if match is None or int(match[1]) < JAVA_MAJOR_MIN:
        found = said.stderr.splitlines()[0] if said.stderr else "something else"
        raise SparkUnavailable(f"Spark needs Java {JAVA_MAJOR_MIN}; {java} is {found}. {advice}")


def configuration(settings: SparkSettings, environ: dict[str, str]) -> dict[str, str]:
    """Return Spark's settings for a run."""
    is_short = settings.rows <= SHORT_PROFILE_ROWS_MAX
    options = f"-Dlog4j2.configurationFile=file:{_QUIET}"
    values = {
        "spark.master": settings.master,
        "spark.app.name": "brokerd telemetry",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(
            min(max(PARTITIONS_MIN, settings.rows // PARTITION_ROWS), PARTITIONS_MAX)
        ),
        # Tables have many plans and few rows: to think again, and to compile expressions to
        # bytecode, takes longer than the rows do.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # Files are listed here: a job of tasks to look for some hundred takes longer.
        "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
        # Many small segments share a task (design/telemetry.md §4.3).
        "spark.sql.files.openCostInBytes": "65536",
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.caseSensitive": "true",
        # What one member claims may be beyond all sense; it stops no run, which is many clusters'.
        "spark.sql.ansi.enabled": "false",
        # Never true: a truncated segment would pass for a short one (gotcha 5).
        "spark.sql.files.ignoreCorruptFiles": "false",
        # A worker that has read segments frees its memory before the tables need theirs (ADR 55).
        "spark.python.worker.reuse": "false",
        "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
        "spark.hadoop.parquet.enable.summary-metadata": "false",
    }
    if is_short and not settings.is_warm:
        values["spark.cleaner.referenceTracking"] = "false"
        options += f" {_SHORT}"
    elif is_short:
        # The second compiler pays over many runs, and what they leave behind must go.
        options += " -XX:+UseSerialGC"
    if settings.is_kubernetes:
        return values | _kubernetes(settings, environ, options)
    values |= {
        "spark.driver.memory": "640m" if is_short else "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": options,
    }
    return values


def _kubernetes(settings: SparkSettings, environ: dict[str, str], options: str) -> dict[str, str]:
    """design/telemetry.md §14.3: client mode, this pod is the driver, executors are pods of the
    template.
    """
    if settings.image is None:
        raise SparkUnavailable("--master k8s://… needs --image, the image of the executors")
    address = environ.get("POD_IP")
    if not address:
        raise SparkUnavailable("--master k8s://… needs POD_IP: the driver runs in a pod")
    template = settings.pod_template or (TEMPLATE if TEMPLATE.exists() else None)
    values = {
        "spark.driver.memory": "640m",
        "spark.driver.host": address,
        # Executors get this address, not spark.driver.host (spark.kubernetes.executor.
        # useDriverPodIP is on in Spark 4).
        "spark.driver.bindAddress": address,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.driver.extraJavaOptions": options,
        # The executors' image is the driver's: the same files are there.
        "spark.executor.extraJavaOptions": options,
        "spark.executor.instances": str(settings.executors),
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.kubernetes.namespace": environ.get("NAMESPACE", "default"),
        "spark.kubernetes.container.image": settings.image,
        "spark.kubernetes.executor.request.cores": "200m",
        "spark.kubernetes.executor.podNamePrefix": f"tele-{environ.get('POD_NAME', 'job')[-40:]}",
        "spark.scheduler.minRegisteredResourcesRatio": "0.5",
        # The Role has no right to claims (design/telemetry.md §13.5).
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
    }
    if environ.get("POD_NAME"):
        # Executors get an owner: they go when this pod goes.
        values["spark.kubernetes.driver.pod.name"] = environ["POD_NAME"]
    if template is not None:
        values["spark.kubernetes.executor.podTemplateFile"] = str(template)
        values["spark.kubernetes.executor.podTemplateContainerName"] = "executor"
    return values


def start(settings: SparkSettings) -> SparkSession:
    """Return a session; one per process."""
    find_java()
    # Gotchas 1 and 2: workers must be this Python, and nothing binds the host's interfaces.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    import pyspark
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    values = configuration(settings, dict(os.environ))
    conf = pyspark.SparkConf(loadDefaults=False)
    for name, value in values.items():
        conf.set(name, value)
    with tempfile.TemporaryFile() as said:
        # A JVM greets with lines that mean nothing to a user; in a pod they go to its log.
        streams: dict[str, IO[bytes]] = (
            {} if settings.is_kubernetes else {"stderr": said, "stdout": said}
        )
        try:
            # One JVM per process: a second run of the same process goes on with the first's.
            gateway = pyspark.SparkContext._gateway or launch_gateway(conf, streams)
            session = SparkSession(pyspark.SparkContext(conf=conf, gateway=gateway))
        except Exception as error:
            said.seek(0)
            tail = said.read()[-2000:].decode(errors="replace")
            raise SparkUnavailable(f"Spark did not start: {error}\n{tail}") from error
    return session
