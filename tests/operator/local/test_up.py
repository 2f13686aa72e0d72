"""The embedded mode with real members: `Environment` and `brokerctl up` (operator.md §14)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pika
import pytest
import pytest_asyncio
import yaml
from brokerd_operator import conditions
from brokerd_operator.broker.client import AdminClient, Target
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine.keys import Key
from brokerd_operator.local import dry_run, export_topology
from brokerd_operator.local.directory import is_ready
from brokerd_operator.local.environment import RUNNING_FILE, Environment
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.local.member import MemberState
from brokerd_operator.local.ports import LOOPBACK
from brokerd_operator.reconcile import drift
from brokerd_operator.reconcile.actions import Delete
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import Identity, Inputs, Meta, TopologySpec

from tests.operator.resources import resource

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[3]
READY_S = 120.0
#: Away from the ports of a broker that somebody runs by hand.
OFFSET = 3000


def write(directory: Path, name: str, *bodies: dict[str, object]) -> Path:
    directory.mkdir(exist_ok=True)
    file = directory / name
    file.write_text(yaml.safe_dump_all(bodies))
    return file


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    found = tmp_path / "resources"
    write(found, "cluster.yaml", resource("BrokerCluster", "prod", replicas=1))
    write(
        found,
        "topology.yaml",
        resource("Exchange", "in", type="topic"),
        resource("Queue", "q", bindings=[{"source": "in", "routingKeys": ["#"]}]),
    )
    return found


@pytest_asyncio.fixture
async def environment(tmp_path: Path, directory: Path) -> AsyncIterator[Environment]:
    said: list[str] = []
    async with Environment(say=said.append, first_offset=OFFSET) as found:
        await found.start(directory, tmp_path / "data", follow=True)
        await found.wait_ready(READY_S)
        yield found


def admin(environment: Environment) -> AdminClient:
    port = environment.clusters["prod"].members[0].grpc_port
    return AdminClient(Target((f"{LOOPBACK}:{port}",), "guest", "guest"))


async def names(environment: Environment, kind: str) -> list[str]:
    client = admin(environment)
    try:
        objects, _ = await client.list_topology()
    finally:
        await client.close()
    return sorted(item.name for item in objects if item.kind == kind)


async def until_names(environment: Environment, kind: str, wanted: set[str]) -> None:
    async with asyncio.timeout(READY_S):
        while True:
            if set(await names(environment, kind)) == wanted:
                return
            await asyncio.sleep(0.05)


async def test_resources_of_a_directory_are_applied_to_real_members(
    environment: Environment,
) -> None:
    assert await names(environment, "queue") == ["q"]
    assert {state.reason for state in environment.conditions()} == {"Available", "Applied"}


async def test_files_are_followed(environment: Environment, directory: Path) -> None:
    write(directory, "more.yaml", resource("Queue", "r"))
    await until_names(environment, "queue", {"q", "r"})
    (directory / "more.yaml").unlink()
    await until_names(environment, "queue", {"q"})


async def test_mistake_in_a_file_is_told_and_deletes_nothing(
    environment: Environment, directory: Path
) -> None:
    (directory / "topology.yaml").write_text("kind: [\n")
    environment.reload()
    assert any("topology.yaml:" in str(problem) for problem in environment.problems)
    assert environment.store.get(Key("Queue", "default", "q")) is not None


async def test_drift_made_in_a_real_broker_is_repaired(environment: Environment) -> None:
    client = admin(environment)
    await client.apply([Delete(Identity("queue", "/", "q"))])
    await client.close()
    await until_names(environment, "queue", {"q"})


async def test_crashed_member_comes_again_and_a_killed_one_is_held(
    environment: Environment,
) -> None:
    member = environment.clusters["prod"].members[0]
    member.kill(signal.SIGKILL)
    await member.wait_stopped()
    async with asyncio.timeout(READY_S):
        while True:
            if member.state is MemberState.HELD:
                break
            await asyncio.sleep(0.02)
    assert member.pid is None
    await member.restart()
    await member.wait_ready(READY_S)
    first = member.pid
    member.kill(signal.SIGKILL, hold=False)
    async with asyncio.timeout(READY_S):
        while True:
            if member.pid not in (None, first) and member.state is MemberState.READY:
                break
            await asyncio.sleep(0.02)
    assert member.restarts == 1
    await environment.wait_ready(READY_S)


async def test_set_and_delete_resource_by_program(environment: Environment) -> None:
    environment.set_resource(resource("Queue", "made", maxLength=7))
    await environment.wait_ready(READY_S)
    assert "made" in await names(environment, "queue")
    environment.reload()
    assert environment.store.get(Key("Queue", "default", "made")) is not None
    environment.delete_resource("Queue", "made")
    await environment.wait_gone("Queue", "made", READY_S)
    assert await names(environment, "queue") == ["q"]
    with pytest.raises(EmbeddedError, match="maxLength"):
        environment.set_resource(resource("Queue", "bad", maxLength="x"))


async def test_export_of_a_real_broker_asks_for_what_it_holds(
    environment: Environment, directory: Path
) -> None:
    """One of everything: applied, exported, and planned again nothing differs."""
    uri = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "uri"}}
    write(
        directory,
        "more.yaml",
        {**uri, "stringData": {"uri": "amqp://u:p@127.0.0.1:1"}},
        resource("Vhost", "team", limits={"maxQueues": 9}, tags=["b", "a"]),
        resource("User", "web", tags=["monitoring"], limits={"maxChannels": 3}),
        resource("Permission", "web", user=None, userRef={"name": "web"}, write="^a"),
        resource("TopicPermission", "web", exchange="in", write="^a", read=".*"),
        resource("FederationUpstream", "east", endpoints=None, uriSecretRef={"name": "uri"}),
        resource("FederationUpstreamSet", "all-of-them"),
        resource("Shovel", "moves", destination={"queue": "moved"}),
        resource("OperatorPolicy", "op", definition={"maxLength": 5, "messageTTL": "3s"}),
        resource("Policy", "p", pattern="^q", definition={"deliveryLimit": 3}),
        resource("Policy", "p2", pattern="^q", definition={"maxLength": 7}),
        resource("Exchange", "a", alternateExchange="b"),
        resource("Exchange", "b", alternateExchange="a"),
        resource("Binding", "b", source="in", destination={"name": "a", "kind": "Exchange"}),
    )
    await _until_applied(environment, set(registry.TOPOLOGY_KINDS))
    target = {"default/prod": admin(environment).target}
    same = await dry_run.run(directory, environment.data_dir, target)
    assert same.lines == ["nothing would change"]
    client = admin(environment)
    try:
        held, _ = await client.list_topology()
    finally:
        await client.close()
    exported = export_topology.to_resources(held, "prod", None)
    inputs = Inputs(secrets=_AnySecret())
    asked = {}
    for body in exported.resources:
        spec = registry.parse(body)
        assert isinstance(spec, TopologySpec), (body, spec)
        objects = registry.desired(spec, Meta.of(body), inputs)
        assert isinstance(objects, tuple), (body, objects)
        asked |= {item.identity: item for item in objects}
    observed = {item.identity: item for item in held}
    assert set(asked) <= set(observed)
    left = {item.kind for name, item in observed.items() if name not in asked}
    # The predefined exchanges, and the virtual host / as every broker has it.
    assert left <= {"exchange", "vhost"}
    for identity, item in asked.items():
        assert drift.differences(item, observed[identity].spec) == (), identity


async def _until_applied(environment: Environment, kinds: set[str]) -> None:
    """Wait until the files were read and each of these kinds is ready."""
    async with asyncio.timeout(READY_S):
        while True:
            bodies = environment.store.resources()
            if kinds <= {body["kind"] for body in bodies} and all(map(is_ready, bodies)):
                return
            await asyncio.sleep(0.05)


class _AnySecret(dict[str, Mapping[str, bytes]]):
    """Whatever an export names."""

    def get(self, key: str, default: object = None) -> Any:
        return {"password": b"p", "uri": b"amqp://u:p@h"}


async def test_statuses_say_what_real_members_and_policies_come_to(
    environment: Environment, directory: Path
) -> None:
    write(
        directory,
        "more.yaml",
        resource("Policy", "p", pattern="^q", definition={"maxLength": 7}),
        resource("Policy", "p2", pattern="^q", definition={"maxLength": 8}),
        resource("Queue", "big", replicas=3),
    )

    def condition(kind: str, name: str, type_: str) -> conditions.Condition | None:
        body = environment.store.get(Key(kind, "default", name))
        return None if body is None else conditions.find(body, type_)

    async def until(kind: str, name: str, type_: str, status: str, reason: str) -> None:
        async with asyncio.timeout(READY_S):
            while True:
                found = condition(kind, name, type_)
                if found is not None and (found.status, found.reason) == (status, reason):
                    return
                await asyncio.sleep(0.05)

    await until("BrokerCluster", "prod", "MemoryAlarm", "False", "BelowWatermark")
    await until("BrokerCluster", "prod", "QuorumCritical", "False", "MajoritySafe")
    await until("Policy", "p", "Warning", "True", "EqualPriority")
    await until("Policy", "p2", "Effective", "False", "EqualPriority")
    await until("Queue", "big", "Warning", "True", "TooFewMembers")
    client = admin(environment)
    try:
        await client.set_settings({"vm_memory_high_watermark": "1MiB"})
        await until("BrokerCluster", "prod", "MemoryAlarm", "True", "AboveWatermark")
    finally:
        await client.close()


async def test_status_says_where_letters_of_a_real_queue_wait(
    environment: Environment, directory: Path
) -> None:
    """A policy says the dead letter exchange; the queue's letters expire into another queue."""
    write(
        directory,
        "more.yaml",
        resource("Queue", "dead"),
        resource(
            "Policy",
            "letters",
            pattern="^q$",
            definition={
                "messageTTL": "1ms",
                "deadLetter": {"exchange": "", "routingKey": "dead"},
            },
        ),
    )

    def told() -> Any:
        body = environment.store.get(Key("Queue", "default", "q"))
        return None if body is None else (body.get("status") or {}).get("deadLetters")

    async def until(waiting: int) -> None:
        async with asyncio.timeout(READY_S):
            while True:
                if (told() or {}).get("waiting") == waiting:
                    return
                await asyncio.sleep(0.05)

    await until(0)
    await asyncio.to_thread(_publish, environment.clusters["prod"].members[0].amqp_port, 3)
    await until(3)
    assert told() == {
        "exchange": "",
        "routingKey": "dead",
        "queues": [{"name": "dead", "messages": 3}],
        "held": 0,
        "waiting": 3,
        "hint": "brokerctl triage dead",
    }


def _publish(port: int, count: int) -> None:
    with pika.BlockingConnection(pika.ConnectionParameters(LOOPBACK, port)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        for _ in range(count):
            channel.basic_publish("", "q", b"m")


async def test_plan_shows_what_would_change_and_writes_nothing(
    environment: Environment, directory: Path
) -> None:
    target = {"default/prod": admin(environment).target}
    same = await dry_run.run(directory, environment.data_dir, target)
    assert same.lines == ["nothing would change"]
    assert same.status == 0
    changed = directory.parent / "changed"
    write(changed, "a.yaml", resource("Queue", "new"), resource("Exchange", "in", type="topic"))
    report = await dry_run.run(changed, environment.data_dir, target)
    text = "\n".join(report.lines)
    assert "+ queue new in / on default/prod (Queue new)" in text
    assert "- queue q in / on default/prod (Queue/default/q is gone" in text
    write(changed, "a.yaml", resource("Queue", "new"), resource("Exchange", "in", type="fanout"))
    report = await dry_run.run(changed, environment.data_dir, target)
    text = "\n".join(report.lines)
    assert "+ queue new in / on default/prod (Queue new)" in text
    assert "spec: type is immutable" in text
    assert "queue q" not in text
    assert "what would be deleted is not known before all files are right" in text
    assert report.status == 1
    assert await names(environment, "queue") == ["q"]


async def test_data_and_identity_outlive_a_stop(tmp_path: Path, directory: Path) -> None:
    async with Environment(first_offset=OFFSET) as first:
        await first.start(directory, tmp_path / "data")
        await first.wait_ready(READY_S)
        port = first.clusters["prod"].members[0].amqp_port
        body = first.store.get(Key("Queue", "default", "q"))
        assert body is not None
        pid = first.clusters["prod"].members[0].pid
        assert pid is not None
    key = tmp_path / "data" / "clusters" / "default" / "prod" / "secrets.key"
    assert key.stat().st_mode & 0o777 == 0o400
    kept = key.read_text()
    assert not _is_running(pid)
    assert not (tmp_path / "data" / RUNNING_FILE).exists()
    # What vanished while nobody looked is a deletion as well.
    write(directory, "topology.yaml", resource("Exchange", "in", type="topic"))
    async with Environment(first_offset=OFFSET) as second:
        await second.start(directory, tmp_path / "data")
        await second.wait_gone("Queue", "q", READY_S)
        await second.wait_ready(READY_S)
        assert second.clusters["prod"].members[0].amqp_port == port
        assert key.read_text() == kept
        assert await names(second, "queue") == []


async def test_data_directory_is_for_one_at_a_time(
    environment: Environment, directory: Path
) -> None:
    async with Environment() as second:
        with pytest.raises(EmbeddedError, match="is in use by another"):
            await second.start(directory, environment.data_dir)


# ---- the command ------------------------------------------------------------------------------


def command(*arguments: str) -> list[str]:
    code = "import sys; from brokerd_operator import commands; commands.up(prog_name='up')"
    return [sys.executable, "-c", code, *arguments]


def environ() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'operator'}"}


def test_up_once_prints_the_table_and_leaves_nothing_running(
    tmp_path: Path, directory: Path
) -> None:
    arguments = ("-f", str(directory), "--data-dir", str(tmp_path / "data"), "--once")
    done = subprocess.run(
        command(*arguments, "--port-offset", str(OFFSET)),
        env=environ(),
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["Queue", "q", "True", "Applied"] in [line[:4] for line in lines]


def test_up_once_ends_at_a_broker_that_is_in_no_file(tmp_path: Path, directory: Path) -> None:
    write(directory, "stray.yaml", resource("Queue", "stray", brokerRef={"name": "nowhere"}))
    arguments = ("-f", str(directory), "--data-dir", str(tmp_path / "data"), "--once")
    done = subprocess.run(
        command(*arguments, "--port-offset", str(OFFSET)),
        env=environ(),
        text=True,
        capture_output=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "Queue stray: BrokerCluster default/nowhere, its brokerRef, is in no file" in done.stderr


def test_up_says_how_it_goes_and_where_to_connect(tmp_path: Path, directory: Path) -> None:
    """Also while one resource waits for what never comes."""
    write(directory, "stray.yaml", resource("Queue", "stray", brokerRef={"name": "nowhere"}))
    arguments = ("-f", str(directory), "--data-dir", str(tmp_path / "data"))
    out = tmp_path / "out"
    with out.open("wb") as output:
        process = subprocess.Popen(
            command(*arguments, "--port-offset", str(OFFSET)),
            env=environ(),
            stdout=output,
            stderr=output,
        )
    try:
        # What waits is said one by one when no broker is on its way any more.
        wanted = (
            "Queue q: ready",
            "\nCLUSTER  AMQP ",
            "BrokerCluster prod: ready: 1 of 1 members are ready",
            "Queue stray: WaitingForBroker: BrokerCluster default/nowhere does not",
            "  export AMQP_URL=amqp://guest:guest@127.0.0.1:",
        )
        _wait(lambda: all(text in out.read_text() for text in wanted))
        assert out.read_text().count("Queue stray") == 1
        assert "waiting for prod (0 of 1 members)" in out.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == 0


def test_up_refuses_a_wrong_resource_with_its_place(tmp_path: Path) -> None:
    file = write(tmp_path / "r", "a.yaml", resource("Queue", "q", maxLength=-1, typo=1))
    done = subprocess.run(
        command("-f", str(tmp_path / "r"), "--data-dir", str(tmp_path / "data")),
        env=environ(),
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 78
    lines = file.read_text().splitlines()
    for name, text in (("maxLength", "-1 must be"), ("typo", "unknown field")):
        (at,) = (number for number, line in enumerate(lines, 1) if name in line)
        assert f"{file}:{at}: Queue q: spec.{name}: {text}" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_members_never_outlive_up(tmp_path: Path, directory: Path, number: int) -> None:
    arguments = ("-f", str(directory), "--data-dir", str(tmp_path / "data"))
    with (tmp_path / "out").open("wb") as output:
        process = subprocess.Popen(
            command(*arguments, "--port-offset", str(OFFSET)),
            env=environ(),
            stdout=output,
            stderr=output,
        )
    try:
        _wait(lambda: "all resources are ready" in (tmp_path / "out").read_text())
        pids = _children(process.pid)
        assert pids
        process.send_signal(number)
        assert process.wait(READY_S) == (0 if number == signal.SIGTERM else -9)
        _wait(lambda: not any(map(_is_running, pids)))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


def _wait(check: object, deadline_s: float = READY_S) -> None:
    assert callable(check)
    end = time.monotonic() + deadline_s
    pause = threading.Event()
    while not check():
        assert time.monotonic() < end, "timed out"
        pause.wait(0.05)


async def until_members(environment: Environment, wanted: int) -> None:
    """Wait until so many members run, are on the broker's list, and the resource says so."""
    async with asyncio.timeout(2 * READY_S):
        while True:
            cluster = environment.clusters["prod"]
            client = admin(environment)
            try:
                listed = [member.name for member in await client.members()]
            except BrokerError:
                listed = []
            finally:
                await client.close()
            reasons = {state.reason for state in environment.conditions()}
            if len(cluster.ready) == len(listed) == wanted and reasons == {"Available", "Applied"}:
                return
            await asyncio.sleep(0.1)


async def test_members_are_added_and_taken_away_one_by_one(
    environment: Environment, directory: Path
) -> None:
    """design/operator.md §5.10: nothing is lost, and the data of who went are kept."""
    queue = resource("Queue", "kept", type="quorum")
    write(directory, "more.yaml", queue)
    await until_names(environment, "queue", {"q", "kept"})
    for replicas in (3, 1, 2):
        write(directory, "cluster.yaml", resource("BrokerCluster", "prod", replicas=replicas))
        await until_members(environment, replicas)
    assert await names(environment, "queue") == ["kept", "q"]
    data_dir = environment.clusters["prod"].members[0].data_dir.parent
    assert {"prod-0", "prod-1", "prod-2"} <= {path.name for path in data_dir.iterdir()}
