"""What statuses say besides Ready: alarms, quorum, policies in force, warnings."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import copy
import datetime
import inspect
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from brokerd_operator import conditions
from brokerd_operator.engine import health, policy_coverage, warnings
from brokerd_operator.engine.health import Health, Members
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.policy_coverage import PolicyCoverage
from brokerd_operator.engine.running import run_engine
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import Identity, Reference

from tests.operator.engine.test_engine import Bench
from tests.operator.fake_broker import USER, FakeBroker, member
from tests.operator.resources import API_VERSION

pytestmark = pytest.mark.timeout(240)

PROD = Key("BrokerConnection", "default", "prod")
BROKER = Reference("BrokerConnection", "default", "prod")
#: One of the queue that `everything` has.
FINDINGS = [
    {
        "run_id": "r", "as_of_us": time.time_ns() // 1000,
        "findings": [
            {"rule": "DL-LOST", "severity": "critical", "status": "RAISED", "object_type": "queue",
             "since": "2026-11-20T14:00:00Z", "vhost": "/", "object": "q", "message": "lost",
             "action": "look"}
        ],
    }
]  # fmt: skip


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with running(tmp_path) as found:
        found.connect()
        yield found


@contextlib.asynccontextmanager
async def running(data_dir: Path, broker: FakeBroker | None = None) -> AsyncIterator[Bench]:
    """An engine over a directory of resources, with a broker of its own if it gets none."""
    owned = broker is None
    broker = broker or FakeBroker()
    if owned:
        await broker.start()
    found = Bench(data_dir, broker)
    task = asyncio.create_task(run_engine(found.engine))
    try:
        yield found
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if owned:
            await broker.stop()


def condition(bench: Bench, key: Key, type_: str) -> conditions.Condition | None:
    body = bench.store.get(key)
    return None if body is None else conditions.find(body, type_)


def status_of(bench: Bench, key: Key, type_: str) -> str | None:
    found = condition(bench, key, type_)
    return None if found is None else found.status


def shown(bench: Bench, key: Key) -> dict[str, Any]:
    body = bench.store.get(key)
    assert body is not None
    status: dict[str, Any] = body["status"]
    return status


def warning(bench: Bench, kind: str, name: str) -> str:
    found = condition(bench, Key(kind, "default", name), conditions.WARNING)
    return "" if found is None else f"{found.reason}: {found.message}"


def field(bench: Bench, kind: str, name: str, path: str) -> Any:
    body = bench.store.get(Key(kind, "default", name)) or {}
    return (body.get("status") or {}).get(path)


def events(bench: Bench, key: Key) -> list[tuple[str, str]]:
    return [(type_, reason) for type_, of, reason, _ in bench.store.events if of == key]


# ---- alarms and quorum ----------------------------------------------------------------------


async def test_alarms_show_on_the_broker_and_are_told_when_they_begin_and_end(
    bench: Bench,
) -> None:
    for type_ in health.TYPES:
        await bench.until(type_, lambda t=type_: status_of(bench, PROD, t) == "False")
    assert condition(bench, PROD, "MemoryAlarm").reason == "BelowWatermark"  # type: ignore[union-attr]
    stalled = ("memory", "disk", "disk_stalled")
    bench.broker.members = [member("fake-0"), member("fake-1", *stalled)]
    for type_ in health.ALARMS:
        await bench.until(type_, lambda t=type_: status_of(bench, PROD, t) == "True")
        assert "fake-1 is" in condition(bench, PROD, type_).message  # type: ignore[union-attr]
        assert ("Warning", type_) in events(bench, PROD)
    bench.broker.members = [member("fake-0"), member("fake-1")]
    for type_ in health.ALARMS:
        await bench.until(type_, lambda t=type_: status_of(bench, PROD, t) == "False")
        assert ("Normal", f"{type_}Over") in events(bench, PROD)
    # Once each, however often the broker was asked.
    told = [reason for _, reason in events(bench, PROD) if reason.startswith(health.ALARMS)]
    assert len(told) == len(set(told)) == 6


async def test_members_that_no_majority_can_spare_are_named(bench: Bench) -> None:
    bench.broker.members = [member("fake-0", is_critical=True), member("fake-1", is_critical=True)]
    await bench.until(
        "critical", lambda: status_of(bench, PROD, conditions.QUORUM_CRITICAL) == "True"
    )
    found = condition(bench, PROD, conditions.QUORUM_CRITICAL)
    assert found is not None
    assert found.reason == "MajorityAtRisk"
    assert found.message.startswith("without one of fake-0, fake-1 the catalog or a queue has no")


async def test_broker_that_does_not_answer_has_no_verdict(bench: Bench) -> None:
    await bench.until("known", lambda: status_of(bench, PROD, "DiskAlarm") == "False")
    await bench.broker.stop()
    for type_ in health.TYPES:
        await bench.until(type_, lambda t=type_: status_of(bench, PROD, t) == "Unknown")
    await bench.broker.start()
    await bench.until("back", lambda: status_of(bench, PROD, "DiskAlarm") == "False")


@pytest.mark.parametrize("alarms", [(), ("memory",), ("disk",), ("memory", "disk_stalled")])
@pytest.mark.parametrize("critical", [(), ("n0",), ("n0", "n1")])
def test_every_state_of_members_as_conditions(
    alarms: tuple[str, ...], critical: tuple[str, ...]
) -> None:
    said = health.summary(
        [member(name, *alarms, is_critical=name in critical) for name in ("n1", "n0")]
    )
    assert said.all == ("n0", "n1")
    found = {item.type: item for item in health.of_members(said, 3)}
    assert set(found) == set(health.TYPES)
    assert found["MemoryAlarm"].status == str("memory" in alarms)
    assert found["DiskAlarm"].status == str("disk" in alarms)
    assert found["DiskStalled"].status == str("disk_stalled" in alarms)
    assert found["QuorumCritical"].status == str(bool(critical))
    for item in found.values():
        assert item.reason in conditions.REASONS_OF[item.type]
        assert "{}" not in item.message
        assert item.observed_generation == 3


def test_a_member_alone_is_not_said_to_be_one_that_may_stop() -> None:
    alone = health.of_members(health.summary([member("n0")]), 1)
    (said,) = (item for item in alone if item.type == "QuorumCritical")
    assert (said.status, said.reason) == ("False", "MajoritySafe")
    assert said.message == "there is one member only: nothing works while it is stopped"


def test_health_is_unknown_until_somebody_asked() -> None:
    """After a restart the conditions stay, whatever they say, until the broker was asked."""
    known = conditions.build("MemoryAlarm", True, "AboveWatermark", "n0 is", 1).to_json()
    body = {"status": {"conditions": [known]}}
    told = Health()
    assert [item.status for item in told.of_broker(BROKER, body, 1)] == ["True"]
    assert told.member_count(BROKER) is None
    assert told.lost(BROKER)
    assert not told.lost(BROKER)
    assert {item.status for item in told.of_broker(BROKER, body, 1)} == {"Unknown"}
    assert told.replace(BROKER, [member("n0")])
    assert not told.replace(BROKER, [member("n0")])
    assert told.member_count(BROKER) == 1
    told.forget(BROKER)
    assert not told.is_known(BROKER)


def test_a_broker_without_members_counts_none() -> None:
    told = Health()
    told.replace(BROKER, [])
    assert told.member_count(BROKER) is None
    assert health.summary([]) == Members(
        (), tuple((resource, ()) for resource in ("memory", "disk", "disk_stalled")), ()
    )


# ---- policies --------------------------------------------------------------------------------


async def test_policy_tells_what_it_matches_and_follows_queues(bench: Bench) -> None:
    bench.add("Policy", "p", pattern="^a", applyTo="queues")
    key = Key("Policy", "default", "p")
    await bench.until("none", lambda: status_of(bench, key, conditions.EFFECTIVE) == "False")
    assert field(bench, "Policy", "p", "matches") == {"queues": 0, "skipped": 0, "exchanges": 0}
    bench.add("Queue", "a1")
    # A queue that no resource made counts as well.
    bench.broker.put(Identity("queue", "/", "a2"), {"type": "quorum"})
    await bench.until(
        "two", lambda: (field(bench, "Policy", "p", "matches") or {}).get("queues") == 2
    )
    assert status_of(bench, key, conditions.EFFECTIVE) == "True"
    bench.store.delete(Key("Queue", "default", "a1"))
    await bench.until(
        "one", lambda: (field(bench, "Policy", "p", "matches") or {}).get("queues") == 1
    )


async def test_tie_of_policies_warns_both_until_one_changes(bench: Bench) -> None:
    bench.add("Queue", "q")
    bench.add("Policy", "one", pattern="q")
    bench.add("OperatorPolicy", "other", pattern="q")
    bench.add("Policy", "two", pattern="q")
    await bench.until(
        "both", lambda: warning(bench, "Policy", "one") and warning(bench, "Policy", "two")
    )
    assert warning(bench, "Policy", "one").startswith(
        "EqualPriority: it has the same priority as two for queue q"
    )
    ready = bench.ready("Policy", "two")
    assert ready is not None
    assert ready.status == "True"
    effective = condition(bench, Key("Policy", "default", "two"), conditions.EFFECTIVE)
    assert effective is not None
    assert (effective.status, effective.reason) == ("False", "EqualPriority")
    assert warning(bench, "OperatorPolicy", "other") == ""
    bench.add("Policy", "two", pattern="q", priority=1)
    await bench.until(
        "over", lambda: not warning(bench, "Policy", "one") and not warning(bench, "Policy", "two")
    )


async def test_policy_that_is_not_in_the_broker_claims_nothing(bench: Bench) -> None:
    bench.add("Queue", "q")
    bench.add("Policy", "p", pattern="q")
    await bench.until("in force", lambda: field(bench, "Policy", "p", "matches"))
    await bench.broker.stop()
    await bench.until_reason("Policy", "p", "WaitingForBroker")
    assert field(bench, "Policy", "p", "matches") is None
    assert condition(bench, Key("Policy", "default", "p"), conditions.EFFECTIVE) is None
    await bench.broker.start()


async def test_pattern_that_is_slow_for_every_name_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None of them takes as long as the bound for one name, all together would stop the work."""
    monkeypatch.setattr(policy_coverage, "POLICY_BUDGET_S", 0.0)
    topology = Topology()
    policy = {"pattern": ".", "apply-to": "all", "priority": 0, "definition": {"max-length": 1}}
    topology.put(ObservedObject("policy", "/", "p", policy))
    for number in range(policy_coverage.PART * 3):
        topology.put(ObservedObject("queue", "/", f"q{number}", {"type": "quorum"}))
    found = PolicyCoverage()
    found.mark_all(BROKER)
    identity = Identity("policy", "/", "p")
    assert await found.refresh(BROKER, topology) == {identity}
    told = found.of_policy(BROKER, identity)
    assert told is not None
    assert told.reason == "PatternTooSlow"


async def test_looks_are_taken_only_at_what_changed() -> None:
    topology = Topology()
    topology.put(ObservedObject("vhost", "", "a", {}))
    policy = {"pattern": ".", "apply-to": "all", "priority": 0, "definition": {"max-length": 1}}
    for vhost in "ab":
        topology.put(ObservedObject("policy", vhost, "p", policy))
    found = PolicyCoverage()
    assert await found.refresh(BROKER, topology) == set()
    found.mark_all(BROKER)
    assert found.is_new(BROKER)
    everywhere = {Identity("policy", vhost, "p") for vhost in "ab"}
    assert await found.refresh(BROKER, topology) == everywhere
    assert found.is_known(BROKER, "a")
    # Listed anew and all the same: nobody has anything to say.
    found.mark_all(BROKER)
    assert await found.refresh(BROKER, topology) == set()
    queue = ObservedObject("queue", "a", "q", {"type": "quorum"}, revision=1)
    topology.put(queue)
    found.mark(BROKER, Identity("binding", "b", "x"))
    assert await found.refresh(BROKER, topology) == set()
    found.mark(BROKER, queue.identity)
    assert await found.refresh(BROKER, topology) == {Identity("policy", "a", "p")}
    # A virtual host that goes is forgotten.
    topology.remove(Identity("policy", "b", "p"), 2)
    found.mark(BROKER, Identity("policy", "b", "p"))
    assert await found.refresh(BROKER, topology) == {Identity("policy", "b", "p")}
    assert not found.is_known(BROKER, "b")
    found.forget(BROKER)
    assert not found.is_known(BROKER, "a")


# ---- warnings --------------------------------------------------------------------------------


async def test_cycle_of_alternate_exchanges_warns_while_it_is_closed(bench: Bench) -> None:
    bench.add("Exchange", "a", alternateExchange="b")
    bench.add("Exchange", "b", alternateExchange="a")
    for name in "ab":
        await bench.until(name, lambda n=name: "a -> b -> a" in warning(bench, "Exchange", n))
        await bench.until_reason("Exchange", name, "Applied")
    bench.add("Exchange", "b")
    # The other resource did not change.
    await bench.until("open", lambda: not any(warning(bench, "Exchange", n) for n in "ab"))


async def test_more_replicas_than_members_warns_until_there_are_enough(bench: Bench) -> None:
    bench.add("Queue", "q", replicas=5)
    bench.add("Queue", "plain")
    await bench.until("warned", lambda: warning(bench, "Queue", "q"))
    assert warning(bench, "Queue", "q") == (
        "TooFewMembers: replicas is 5, and the cluster has 3 members: it cannot have more replicas"
    )
    said = [event for event in bench.store.events if event[2] == "TooFewMembers"]
    assert [(type_, key.name) for type_, key, _, _ in said] == [("Warning", "q")]
    bench.broker.members = [member(f"fake-{n}") for n in range(5)]
    await bench.until("enough", lambda: not warning(bench, "Queue", "q"))
    assert warning(bench, "Queue", "plain") == ""


@pytest.mark.parametrize("members", [None, 1, 2, 3])
@pytest.mark.parametrize("replicas", [None, 1, 2, 3])
def test_replicas_against_members(replicas: int | None, members: int | None) -> None:
    told = warnings.too_few_members(replicas, members)
    assert bool(told) == (None not in (replicas, members) and replicas > members)  # type: ignore[operator]


async def test_missing_dependency_and_oddity_stand_in_one_warning(bench: Bench) -> None:
    dead = {"exchange": "nowhere"}
    bench.add("Queue", "q", replicas=9, deadLetter=dead)
    await bench.until("both", lambda: "replicas is 9" in warning(bench, "Queue", "q"))
    assert warning(bench, "Queue", "q").startswith(
        "MissingDependency: exchange nowhere in / does not exist; replicas is 9"
    )
    # Said by the condition alone: resources come in any order.
    assert all(event[2] != "MissingDependency" for event in bench.store.events)


# ---- nothing is written without need -----------------------------------------------------------


def everything(bench: Bench) -> None:
    """One of every kind in every state that a remark speaks of."""
    bench.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "uri"},
            "stringData": {"uri": "amqp://east"},
        }
    )
    bench.apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "web-login"},
            "stringData": {"username": "web", "password": "p"},
        }
    )
    bench.apply(
        {
            "apiVersion": API_VERSION,
            "kind": "BrokerCluster",
            "metadata": {"name": "off"},
            "spec": {"replicas": 0},
        }
    )
    bench.add("Vhost", "team")
    bench.add("User", "web", credentialsSecretRef={"name": "web-login"})
    bench.add("Permission", "web", user="web")
    bench.add("TopicPermission", "web", user="web", exchange="a")
    bench.add("FederationUpstream", "east", endpoints=None, uriSecretRef={"name": "uri"})
    bench.add("FederationUpstreamSet", "set", upstreams=[{"name": "east"}])
    bench.add("Shovel", "moves")
    bench.add("Policy", "one", pattern="^q")
    bench.add("Policy", "two", pattern="^q")
    bench.add("OperatorPolicy", "op", pattern="^none")
    bench.add("Exchange", "a", alternateExchange="b")
    bench.add("Exchange", "b", alternateExchange="a")
    bench.add("Queue", "q", replicas=9, deadLetter={"exchange": "nowhere"})
    bench.add("Binding", "b", source="a", destination={"name": "q"})


def links(*states: str) -> list[dict[str, Any]]:
    return [
        {"upstream": "east", "vhost": "/", "exchange": f"x{n}", "status": state}
        for n, state in enumerate(states)
    ]


async def test_a_shovel_shows_its_link(tmp_path: Path) -> None:
    """By name and vhost, whatever an upstream is called; as Ready says nothing of it."""
    broker = FakeBroker()
    await broker.start()
    moves = {"type": "shovel", "upstream": "moves", "vhost": "/", "source_queue": "old"}
    broker.links = [
        {"upstream": "moves", "vhost": "/", "exchange": "x", "status": "starting"},
        moves | {"status": "error", "error": "amqp://u:secret@h refused"},
    ]
    key = Key("Shovel", "default", "moves")
    try:
        async with running(tmp_path, broker) as bench:
            bench.connect()
            bench.add("Shovel", "moves")
            await bench.until("a link", lambda: status_of(bench, key, "LinksUp") == "False")
            (link,) = shown(bench, key)["links"]
            assert (link["object"], link["state"]) == ("old", "error")
            assert "secret" not in link["lastError"]
            broker.links[1] = moves | {"status": "running"}
            await bench.until("it runs", lambda: status_of(bench, key, "LinksUp") == "True")
            assert shown(bench, key)["linksRunning"] == "1/1"
            await bench.until_reason("Shovel", "moves", "Applied")
    finally:
        await broker.stop()


async def settled(bench: Bench) -> None:
    """Wait until everything that the engine asks for is known, and nothing is under way."""

    def is_known() -> bool:
        engine = bench.engine
        return (
            engine.health.is_known(BROKER)
            and engine.links.is_known(BROKER)
            and engine.kept_aside.is_known(BROKER)
            and engine.policy_coverage.is_known(BROKER, "/")
            and not engine.carrying
        )

    await bench.until("all is known", is_known)
    calls = bench.broker.member_calls
    await bench.until("another round", lambda: bench.broker.member_calls > calls + 1)


async def test_restart_with_all_kinds_writes_nothing(tmp_path: Path) -> None:
    """Not even what is known only after a while: links, what is kept aside, alarms, warnings."""
    broker = FakeBroker()
    await broker.start()
    broker.links = links("running", "starting")
    broker.members = [member("n0", "memory", is_critical=True), member("n1", is_critical=True)]
    row = {"id": "1", "kind": "queue", "vhost": "/", "name": "q", "member": "n0", "messages": 7}
    broker.kept_aside = [row | {"state": "kept"}]
    broker.findings = FINDINGS
    try:
        async with running(tmp_path, broker) as first:
            first.connect()
            everything(first)
            queue = Key("Queue", "default", "q")
            upstream = Key("FederationUpstream", "default", "east")
            await first.until("links", lambda: condition(first, upstream, "LinksUp"))
            await first.until("kept", lambda: condition(first, queue, "KeptAside"))
            for key in (PROD, queue, Key("Policy", "default", "one")):
                await first.until("found", lambda k=key: status_of(first, k, "Healthy") == "False")
            await first.until("too few", lambda: "replicas is 9" in warning(first, "Queue", "q"))
            await first.until("tie", lambda: warning(first, "Policy", "two"))
            await first.until("cycle", lambda: warning(first, "Exchange", "b"))
            await first.until("alarm", lambda: status_of(first, PROD, "MemoryAlarm") == "True")
            await first.until_reason("Binding", "b", "Applied")
            await first.until_reason("BrokerCluster", "off", "Stopped")
            await first.until_reason("Permission", "web", "Applied")
            await first.until_reason("TopicPermission", "web", "Applied")
            await settled(first)
            known = copy.deepcopy(first.store._resources)
        # Rows in another order are the same rows.
        broker.links.reverse()
        writes = broker.writes
        async with running(tmp_path, broker) as second:
            written: list[Key] = []
            write = second.store.write_status

            async def noted(body: Any, status: Any) -> None:
                written.append(Key(body["kind"], "", body["metadata"]["name"]))
                await write(body, status)

            second.store.write_status = noted  # type: ignore[method-assign]
            everything(second)
            second.connect()
            # An API server keeps statuses, a directory does not.
            assert set(second.store._resources) == set(known)
            second.store._resources = known
            for body in known.values():
                second.engine.put(body)
            await settled(second)
            assert written == []
            assert second.store.events == []
        # A User, an upstream and a shovel hide their secrets, so nobody can know them to be equal.
        assert broker.writes == writes + 3
    finally:
        await broker.stop()


async def test_what_ended_while_the_operator_was_away_is_taken_back(tmp_path: Path) -> None:
    """Conditions that are carried over a restart must not stay for ever."""
    broker = FakeBroker()
    await broker.start()
    other = Identity("exchange", "/", "other")
    broker.put(other, {"type": "fanout", "settings": {"alternate-exchange": "a"}})
    row = {"id": "1", "kind": "queue", "vhost": "/", "name": "q", "member": "n0", "messages": 7}
    broker.kept_aside = [row | {"state": "kept"}]
    broker.findings = FINDINGS
    exchange, queue = Key("Exchange", "default", "a"), Key("Queue", "default", "q")
    try:
        async with running(tmp_path, broker) as first:
            first.connect()
            first.add("Exchange", "a", alternateExchange="other")
            first.add("Queue", "q", replicas=5)
            await first.until("cycle", lambda: warning(first, "Exchange", "a"))
            await first.until("replicas", lambda: warning(first, "Queue", "q"))
            await first.until("kept", lambda: condition(first, queue, "KeptAside"))
            await first.until("found", lambda: condition(first, queue, "Healthy"))
            known = copy.deepcopy(first.store._resources)
        broker.put(other, {"type": "fanout", "settings": {}})
        broker.members = [member(f"fake-{number}") for number in range(5)]
        broker.kept_aside = []
        broker.findings = []
        async with running(tmp_path, broker) as second:
            second.connect()
            second.store._resources = known
            for body in known.values():
                second.engine.put(body)
            for key, type_ in (
                *((exchange, "Warning"), (queue, "Warning")),
                *((queue, "KeptAside"), (queue, "Healthy")),
            ):
                await second.until(
                    f"{key} {type_}", lambda k=key, t=type_: condition(second, k, t) is None
                )
            await second.until("nothing is carried", lambda: not second.engine.carrying)
    finally:
        await broker.stop()


async def test_idle_broker_is_asked_once_per_interval_and_costs_no_writes(bench: Bench) -> None:
    everything(bench)
    await bench.until("warned", lambda: "replicas is 9" in warning(bench, "Queue", "q"))
    await bench.until_reason("Binding", "b", "Applied")
    await bench.until("tie", lambda: warning(bench, "Policy", "two"))
    await bench.until("cycle", lambda: warning(bench, "Exchange", "b"))
    await settled(bench)
    before = bench.engine.metrics.render()
    writes = [line for line in before.splitlines() if b"status_writes_total" in line]
    await settled(bench)
    after = bench.engine.metrics.render()
    assert writes == [line for line in after.splitlines() if b"status_writes_total" in line]


def test_everything_is_one_of_every_kind() -> None:
    """Or the tests of restarts and of idleness would miss a new kind."""
    source = ast.parse(inspect.getsource(everything))
    named = {node.value for node in ast.walk(source) if isinstance(node, ast.Constant)}
    assert set(registry.KINDS) - {"BrokerConnection"} <= named


def test_all_pairs_of_carried_conditions() -> None:
    types = (conditions.WARNING, conditions.LINKS_UP, conditions.EFFECTIVE)
    for count in range(4):
        for chosen in itertools.combinations(types, count):
            body = {
                "status": {
                    "conditions": [
                        conditions.build(type_, True, "Because", "so", 1).to_json()
                        for type_ in chosen
                    ]
                }
            }
            assert [item.type for item in conditions.carried(body, types)] == list(chosen)


@pytest.mark.parametrize("has_permission", [False, True])
async def test_an_administrator_without_rights_in_a_new_vhost_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, has_permission: bool
) -> None:
    # The time of creation is in whole seconds.
    monkeypatch.setattr(warnings, "RIGHTS_AFTER_S", 3.0)
    if has_permission:
        rights = {"configure": "", "write": "", "read": ".*"}
        bench.broker.put(Identity("permission", "team", USER), rights)
    bench.add("Vhost", "team")
    await bench.until_reason("Vhost", "team", "Applied")
    if not has_permission:
        await bench.until("an Event", lambda: _without_rights(bench))
    key = Key("Vhost", "default", "team")
    body = bench.store.get(key)
    assert body is not None
    made = datetime.datetime.fromisoformat(body["metadata"]["creationTimestamp"])
    entry, session = bench.engine.cache.get(key), bench.engine.session(BROKER)
    assert entry is not None
    assert session is not None
    for age_s, again_s in ((1.0, 2.0), (3.0, None), (warnings.RIGHTS_UNTIL_S + 1, None)):
        now = made + datetime.timedelta(seconds=age_s)
        assert await warnings.tell_of_rights(bench.engine, key, entry, session, now) == again_s
    # Looked at twice in the time for it.
    told = _without_rights(bench)
    assert len(told) == (0 if has_permission else 1), told
    bench.engine.remove(key)
    assert key not in bench.engine.told_of_rights
    assert all(f"{USER} has no permissions in virtual host 'team'" in text for text in told)


def _without_rights(bench: Bench) -> list[str]:
    return [text for _, _, reason, text in bench.store.events if reason == "NoPermission"]
