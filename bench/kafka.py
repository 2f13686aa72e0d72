"""Three Apache Kafka brokers (KRaft) on loopback, and a load program with Kafka's own client.

Kafka comes from Maven Central by the ordinary Maven client, which checks what it fetches by its
checksums, and lies in the cache folder; load/KafkaLoad.java is compiled there.  Nothing is
committed.  For bench.anchors.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from itertools import count as counter
from pathlib import Path

from bench import load_programs, processes
from bench.processes import CACHE, BenchError, Nodes
from bench.rows import Point

VERSION = "4.3.1"
#: Says nothing, where the broker's own logging would need a configuration.
SILENT_LOGGING = "2.0.17"
SOURCE = Path(__file__).parent / "load" / "KafkaLoad.java"
RUN_TIMEOUT_S = 300
#: Of each broker and of the load program: more than they need here.
HEAP = "-Xmx1g"
#: What its own bench prints at the end.
OWN_RATE = re.compile(r"records sent, ([\d.]+) records/sec")
OWN_LATENCY = re.compile(r"([\d.]+) ms 50th, .*?([\d.]+) ms 99th")
DEPENDENCIES = (
    f"org.apache.kafka:kafka_2.13:{VERSION}",
    f"org.apache.kafka:kafka-tools:{VERSION}",
    f"org.slf4j:slf4j-nop:{SILENT_LOGGING}",
)
TOPICS = counter(1)


def jars() -> Path:
    return load_programs.maven_jars(f"kafka-{VERSION}", DEPENDENCIES)


def load_program() -> Path:
    """Folder of the compiled load program; compiled anew when its source has changed."""
    digest = hashlib.sha256(SOURCE.read_bytes() + VERSION.encode()).hexdigest()[:16]
    folder = CACHE / f"kafkaload-{digest}"
    if folder.exists():
        return folder
    if not shutil.which("javac"):
        raise BenchError("javac is missing: apt-get install openjdk-17-jdk-headless")
    new = folder.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    processes.run_tool(["javac", "-cp", f"{jars()}/*", "-d", str(new), str(SOURCE)])
    new.rename(folder)
    return folder


class KafkaCluster(Nodes):
    """Three brokers, each of which is a controller too."""

    def __init__(self, flush_messages: int = 0) -> None:
        """flush_messages: after how many records a broker syncs; 0 leaves it to the system."""
        super().__init__("kafka")
        self._flush_messages = flush_messages
        how = f"flush.messages={flush_messages}" if flush_messages else "no flush, the default"
        self.title = f"Apache Kafka {VERSION}, acks=all, {how}"
        self._class_path = f"{load_program()}:{jars()}/*"
        self._ports: list[int] = []

    def start(self) -> None:
        ports = processes.free_ports(6)
        self._ports, voters = ports[:3], ports[3:]
        with self.starting():
            for number in range(3):
                file = self._prepare(number, voters)
                env = os.environ | {"LOG_DIR": str(self.folder)}
                self.run_node(number, self._java("kafka.Kafka", str(file)), env)
            for number in range(3):
                self.wait_for_node(number, lambda n: processes.listens(self._ports[n]))

    def _prepare(self, number: int, voters: list[int]) -> Path:
        named = ",".join(f"{n}@127.0.0.1:{port}" for n, port in enumerate(voters))
        settings = {
            "process.roles": "broker,controller",
            "node.id": number,
            "controller.quorum.voters": named,
            "listeners": f"PLAINTEXT://127.0.0.1:{self._ports[number]},"
            f"CONTROLLER://127.0.0.1:{voters[number]}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": self.folder / f"data{number}",
            "offsets.topic.replication.factor": 3,
            "offsets.topic.num.partitions": 3,
            "min.insync.replicas": 2,
            "group.initial.rebalance.delay.ms": 0,
        }
        if self._flush_messages:
            settings["log.flush.interval.messages"] = self._flush_messages
        file = self.folder / f"broker{number}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        tool = ["kafka.tools.StorageTool", "format", "--cluster-id", "YnJva2VyZC1iZW5jaC0xMQ"]
        processes.run_tool(self._java(*tool, "--config", str(file)), timeout_s=120)
        return file

    def _java(self, *arguments: str) -> list[str]:
        return ["java", HEAP, "-cp", self._class_path, *arguments]

    def _servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    def _load(self, verb: str, topic: str, *arguments: object) -> list[str]:
        words = [str(argument) for argument in arguments]
        return self._java("KafkaLoad", verb, self._servers(), topic, *words)

    def _new_topic(self) -> str:
        topic = f"bench-{next(TOPICS)}"
        processes.run_tool(self._load("create", topic), timeout_s=120)
        return topic

    def _drop(self, topic: str) -> None:
        processes.run_tool(self._load("delete", topic), timeout_s=120)

    def publish(self, in_flight: int, count: int) -> Point:
        """One producer with at most `in_flight` unanswered records at any time."""
        return self._published(count, in_flight, 1)

    def publish_each(self, publishers: int, count: int) -> Point:
        """Each of the producers awaits the answer to every record."""
        return self._published(count, 1, publishers)

    def _published(self, count: int, in_flight: int, publishers: int) -> Point:
        topic = self._new_topic()
        command = self._load("publish", topic, count, in_flight, publishers)
        point = load_programs.costed(command, self.pids(), RUN_TIMEOUT_S)
        self._drop(topic)
        return point

    def consume(self, count: int) -> Point:
        """The offset is committed, and that awaited, after every poll of 1,000 records at most."""
        topic = self._new_topic()
        # A tenth more, which the programs use to get warm.
        load_programs.costed(self._load("publish", topic, count, 1000, 1), self.pids())
        point = load_programs.costed(self._load("consume", topic, count), self.pids())
        self._drop(topic)
        return point

    def own_bench(self, count: int) -> Point:
        """kafka-producer-perf-test: as many in flight as its buffer of 32 MiB takes."""
        topic, before = self._new_topic(), processes.cpu_seconds(self.pids())
        command = self._java(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", "1024"),
            *("--throughput", "-1", "--producer-props", "acks=all"),
            f"bootstrap.servers={self._servers()}",
        )
        try:
            done = subprocess.run(command, text=True, capture_output=True, timeout=RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise BenchError(f"ProducerPerformance: not done in {RUN_TIMEOUT_S} s") from error
        if done.returncode:
            raise BenchError(f"ProducerPerformance: {(done.stderr or done.stdout)[-600:]}")
        spent = processes.cpu_seconds(self.pids()) - before
        self._drop(topic)
        return own_figures(done.stdout) | {"broker_cpu_us": spent * 1e6 / count}


def own_figures(said: str) -> Point:
    """What the last line of Kafka's own bench says, of all records."""
    rates, latencies = OWN_RATE.findall(said), OWN_LATENCY.findall(said)
    if not rates or not latencies:
        raise BenchError(f"ProducerPerformance told no rate: {said[-600:]}")
    p50, p99 = (float(value) * 1000 for value in latencies[-1])
    return {"rate": float(rates[-1]), "p50_us": p50, "p99_us": p99}
