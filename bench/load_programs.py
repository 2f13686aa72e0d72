"""The two programs that drive a broker: our own amqpload, and RabbitMQ's PerfTest as the witness.

Both are set up in the cache folder: amqpload is compiled from bench/load, PerfTest comes from Maven
Central by the ordinary Maven client. Neither is committed.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import processes
from bench.processes import CACHE, BenchError

SOURCES = Path(__file__).parent / "load"
PERFTEST_VERSION = "2.22.1"
RUN_TIMEOUT_S = 300
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>io.brokerd</groupId><artifactId>bench</artifactId><version>1</version>
  <dependencies>
{}
  </dependencies>
</project>
"""
DEPENDENCY = """<dependency>
  <groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
</dependency>"""
#: PerfTest's last lines, such as "id: x, sending rate avg: 14092 msg/s".
AVERAGE = re.compile(r"(sending|receiving) rate avg: (\d+) (?:msg|message)")


def amqpload() -> Path:
    """Path of the compiled load program; compiled anew when a source has changed."""
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:16]
    binary = CACHE / f"amqpload-{digest}"
    if binary.exists():
        return binary
    if not shutil.which("gcc"):
        raise BenchError("gcc is missing: apt-get install gcc libc6-dev")
    CACHE.mkdir(parents=True, exist_ok=True)
    new = binary.with_suffix(".new")
    command = ["gcc", "-O2", "-Wall", "-Wextra", "-std=gnu11", "-pthread", "-o", str(new)]
    command += [str(source) for source in sources if source.suffix == ".c"]
    done = subprocess.run(command, text=True, capture_output=True)
    if done.returncode:
        raise BenchError(f"amqpload does not compile: {done.stderr}")
    new.rename(binary)
    return binary


def run_amqpload(verb: str, port: int | str, **options: object) -> dict[str, float]:
    """One run; options are those of amqpload.c, underscores for hyphens, True for a bare flag."""
    with amqpload_running(verb, port, **options) as result_of:
        result = result_of()
    if result.get("nacked"):
        raise BenchError(f"{verb}: {result['nacked']:.0f} publishes were refused")
    return result


def run_costed(verb: str, port: int | str, pids: list[int], **options: object) -> dict[str, float]:
    """One run of amqpload, as `costed` has it."""
    return costed(amqpload_command(verb, port, announce=True, **options), pids)


def costed(
    command: list[str], pids: list[int], timeout_s: float = RUN_TIMEOUT_S
) -> dict[str, float]:
    """The figures that a load program prints, and what a message cost the brokers with these pids,
    in microseconds of CPU (`broker_cpu_us`).
    """
    spent: list[float] = []

    def note() -> None:
        spent.append(processes.cpu_seconds(pids))

    figures = announced(command, note, note, timeout_s)
    return figures | {"broker_cpu_us": (spent[1] - spent[0]) * 1e6 / figures["messages"]}


def announced(
    command: list[str],
    at_begin: Callable[[], None],
    at_end: Callable[[], None],
    timeout_s: float = RUN_TIMEOUT_S,
) -> dict[str, float]:
    """Run a load program and call one where its steady state begins, which it says by a line, so
    after connecting and declaring, and the other where its figures come.  After timeout_s it ends.
    """
    program = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    watchdog = threading.Timer(timeout_s, program.kill)
    watchdog.start()
    try:
        assert program.stdout is not None
        program.stdout.readline()
        at_begin()
        line = program.stdout.readline()
        at_end()
        _, errors = program.communicate()
    finally:
        watchdog.cancel()
        program.kill()
        program.wait()
    if program.returncode or not line:
        said = errors.strip() or f"exit status {program.returncode}, or not done in {timeout_s:g} s"
        raise BenchError(f"{' '.join(command[1:])}: {said}")
    figures: dict[str, float] = json.loads(line)
    if figures.get("nacked"):
        raise BenchError(f"{command[1]}: {figures['nacked']:.0f} publishes were refused")
    return figures


def amqpload_command(verb: str, port: int | str, **options: object) -> list[str]:
    command = [str(amqpload()), verb, "--port", str(port)]
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        command += [flag] if value is True else [flag, str(value)]
    return command


@contextmanager
def amqpload_running(
    verb: str, port: int | str, **options: object
) -> Iterator[Callable[[], dict[str, float]]]:
    """A run beside which something else is done; call what is given to wait for its result."""
    command = amqpload_command(verb, port, **options)
    program = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def result() -> dict[str, float]:
        out, errors = program.communicate(timeout=RUN_TIMEOUT_S)
        if program.returncode:
            said = errors.strip() or f"exit status {program.returncode}"
            raise BenchError(f"{' '.join(command[1:])}: {said}")
        figures: dict[str, float] = json.loads(out)
        return figures

    try:
        yield result
    finally:
        program.kill()
        program.wait()


def perftest_jars() -> Path:
    artifact = f"com.rabbitmq:perf-test:{PERFTEST_VERSION}"
    return maven_jars(f"perf-test-{PERFTEST_VERSION}", (artifact,))


def maven_jars(name: str, artifacts: tuple[str, ...]) -> Path:
    """Folder of these artifacts (group:artifact:version) and all that they need; fetched once."""
    folder = CACHE / name
    if folder.exists():
        return folder
    for tool, package in (("mvn", "maven"), ("java", "openjdk-17-jre-headless")):
        if not shutil.which(tool):
            raise BenchError(f"{tool} is missing: apt-get install {package}")
    print(f"bench: fetching {name} from Maven Central", flush=True)
    new = folder.with_name(f"{name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    dependencies = (DEPENDENCY.format(*artifact.split(":")) for artifact in artifacts)
    (new / "pom.xml").write_text(POM.format("\n".join(dependencies)))
    goal = ["dependency:copy-dependencies", "-DoutputDirectory=.", "-DincludeScope=runtime"]
    # Without --strict-checksums Maven only warns of a checksum that does not match.
    command = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", "-f", str(new / "pom.xml")]
    done = subprocess.run([*command, *goal], cwd=new, text=True, capture_output=True)
    if done.returncode:
        raise BenchError(f"{name} cannot be fetched: {done.stdout[-800:]}")
    new.rename(folder)
    return folder


def run_perftest(port: int, queue: str, *args: str) -> dict[str, float]:
    """PerfTest's average rates, {"sending": …, "receiving": …}, on a quorum queue."""
    command = ["java", "-cp", f"{perftest_jars()}/*", "com.rabbitmq.perf.PerfTest"]
    command += ["--uri", f"amqp://guest:guest@127.0.0.1:{port}", "--queue", queue]
    command += ["--quorum-queue", "--size", "1024", "--id", "bench", *args]
    try:
        done = subprocess.run(command, text=True, capture_output=True, timeout=RUN_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"PerfTest {' '.join(args)}: not done in {RUN_TIMEOUT_S} s") from error
    rates = {which: float(rate) for which, rate in AVERAGE.findall(done.stdout)}
    if done.returncode or not rates:
        raise BenchError(f"PerfTest {' '.join(args)}: {(done.stderr or done.stdout)[-600:]}")
    return rates
