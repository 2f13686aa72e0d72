"""The engine with a fake broker and resources in memory: wake-ups, gate, batches, drift, sweep."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from brokerd_operator import conditions
from brokerd_operator.broker.client import AdminClient, Target
from brokerd_operator.broker.errors import BrokerDenied, BrokerError, BrokerUnreachable
from brokerd_operator.engine.cache import Entry, ResourceCache
from brokerd_operator.engine.drift_watch import REPAIRS_MAX, REST_S, DriftWatch
from brokerd_operator.engine.engine import Engine, EngineSettings
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.running import run_engine
from brokerd_operator.engine.sweep import sweep
from brokerd_operator.engine.work_queue import BACKOFF_MAX_S, WorkQueue
from brokerd_operator.local.cluster import LocalClusters
from brokerd_operator.local.directory import Directory, is_ready
from brokerd_operator.local.ports import PortReservations
from brokerd_operator.reconcile.actions import Delete, Precondition
from brokerd_operator.specs.model import Identity, Reference

from tests.operator.fake_broker import PASSWORD, USER, FakeBroker
from tests.operator.resources import resource

#: Two busy cores and a full test run beside it.
DEADLINE_S = 60.0

pytestmark = pytest.mark.timeout(240)
Q = Identity("queue", "/", "q")


class Bench:
    """An engine over resources in memory, with the fake broker behind a BrokerConnection."""

    def __init__(self, data_dir: Path, broker: FakeBroker) -> None:
        self.broker = broker
        self.said: list[str] = []
        self.store = Directory(data_dir, self.said.append)
        driver = LocalClusters(
            data_dir, PortReservations(data_dir), lambda reference, member: None, print
        )
        self.engine = Engine(
            self.store,
            driver,
            EngineSettings(
                sweep_delay_s=0.1,
                kept_aside_interval_s=0.1,
                links_interval_s=0.1,
                dead_letters_interval_s=0.1,
                health_interval_s=0.1,
                policy_coverage_interval_s=0.02,
                findings_interval_s=0.1,
            ),
        )
        self.store.attach(
            self.engine.put,
            self.engine.remove,
            lambda namespace, name: self.engine.reference_changed(
                Reference("Secret", namespace, name)
            ),
        )

    def connect(self) -> None:
        login = {"username": USER, "password": PASSWORD}
        self.apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "login"},
                "stringData": login,
            }
        )
        self.apply(resource("BrokerConnection", "prod", endpoints=[self.broker.address]))

    def apply(self, body: dict[str, Any]) -> None:
        problem = self.store.apply(body)
        assert not problem, problem

    def add(self, kind: str, metadata_name: str, /, **spec: Any) -> None:
        reference = {"name": "prod", "kind": "BrokerConnection"}
        self.apply(resource(kind, metadata_name, brokerRef=reference, **spec))

    def ready(self, kind: str, name: str) -> conditions.Condition | None:
        body = self.store.get(Key(kind, "default", name))
        if body is None:
            return None
        status = body.get("status") or {}
        if status.get("observedGeneration") != body["metadata"]["generation"]:
            return None
        return conditions.find(body, "Ready")

    async def until(self, what: str, check: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(DEADLINE_S):
                while True:
                    if check():
                        return
                    await asyncio.sleep(0.01)
        except TimeoutError:
            states = {
                Key(b["kind"], "", b["metadata"]["name"]): conditions.find(b, "Ready")
                for b in self.store.resources()
            }
            pytest.fail(f"timed out: {what}; {states}; {self.said}")

    async def until_reason(self, kind: str, name: str, reason: str) -> None:
        def check() -> bool:
            found = self.ready(kind, name)
            return found is not None and found.reason == reason

        await self.until(f"{kind} {name} {reason}", check)

    async def until_gone(self, kind: str, name: str) -> None:
        key = Key(kind, "default", name)
        await self.until(f"{kind} {name} gone", lambda: self.store.get(key) is None)


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    broker = FakeBroker()
    await broker.start()
    found = Bench(tmp_path, broker)
    found.connect()
    task = asyncio.create_task(run_engine(found.engine))
    yield found
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await broker.stop()


async def test_binding_waits_for_its_ends_and_is_woken_by_them(bench: Bench) -> None:
    bench.add("Binding", "b", source="in", destination={"name": "q"})
    await bench.until_reason("Binding", "b", "WaitingForSource")
    bench.add("Exchange", "in")
    await bench.until_reason("Binding", "b", "WaitingForDestination")
    bench.add("Queue", "q")
    await bench.until_reason("Binding", "b", "Applied")
    assert bench.broker.named("binding") == ["in|queue|q||"]


async def test_object_made_by_a_client_wakes_who_waits_for_it(bench: Bench) -> None:
    bench.add("Queue", "q", vhost="team")
    await bench.until_reason("Queue", "q", "WaitingForVhost")
    bench.broker.put(Identity("vhost", "", "team"), {})
    await bench.until_reason("Queue", "q", "Applied")


async def test_binding_comes_back_when_its_queue_was_recreated(bench: Bench) -> None:
    """MTO#1007."""
    bench.add("Exchange", "in")
    bench.add("Queue", "q")
    bench.add("Binding", "b", source="in", destination={"name": "q"})
    await bench.until_reason("Binding", "b", "Applied")
    bench.broker.remove(Identity("binding", "/", "in|queue|q||"))
    bench.broker.remove(Q)
    await bench.until(
        "both came back",
        lambda: (bench.broker.named("queue"), len(bench.broker.named("binding"))) == (["q"], 1),
    )


async def test_news_that_an_object_is_gone_looks_at_no_resource_that_does_not_need_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of thousands that are deleted each would look at all the others."""
    for number in range(20):
        bench.add("Queue", f"q{number}")
    bench.add("Exchange", "in")
    bench.add("Binding", "b", source="in", destination={"name": "q0"})
    await bench.until_reason("Queue", "q19", "Applied")
    await bench.until_reason("Binding", "b", "Applied")
    session = bench.engine.session(Reference("BrokerConnection", "default", "prod"))
    assert session is not None
    gone = session.topology.get(Identity("queue", "/", "q0"))
    assert gone is not None
    session.topology.remove(gone.identity, gone.revision)
    looked_at = set()
    look = ResourceCache.get

    def noting(cache: ResourceCache, key: Key) -> Entry | None:
        looked_at.add(key.name)
        return look(cache, key)

    monkeypatch.setattr(ResourceCache, "get", noting)
    # No worker comes to its turn before this is over.
    bench.engine.object_changed(session, gone.identity, gone, "admin")
    assert looked_at <= {"q0", "b"}
    assert bench.engine.cache.depending_on(session.reference, gone.identity) == {
        Key("Binding", "default", "b")
    }


async def test_drift_is_repaired_and_told(bench: Bench) -> None:
    bench.add("Queue", "q", maxLength=5)
    await bench.until_reason("Queue", "q", "Applied")
    bench.broker.put(Q, {**bench.broker.objects[Q], "settings": {}}, cause="amqp:somebody")
    await bench.until(
        "the setting came back", lambda: bench.broker.objects[Q]["settings"] == {"max-length": 5}
    )
    await bench.until(
        "an event", lambda: any(reason == "DriftRepaired" for _, _, reason, _ in bench.store.events)
    )


async def test_two_writers_are_told_apart_from_drift(bench: Bench) -> None:
    bench.add("Queue", "q", maxLength=5)
    await bench.until_reason("Queue", "q", "Applied")

    def ours() -> bool:
        return bench.broker.objects[Q]["settings"] == {"max-length": 5}

    for _ in range(REPAIRS_MAX + 1):
        await bench.until("repaired", ours)
        await bench.until_reason("Queue", "q", "Applied")
        bench.broker.put(Q, {**bench.broker.objects[Q], "settings": {}})
    await bench.until_reason("Queue", "q", "FightingDrift")
    bench.add("Queue", "q", maxLength=6)
    await bench.until_reason("Queue", "q", "Applied")


async def test_queue_that_expired_stays_away_until_its_spec_changes(bench: Bench) -> None:
    """design/operator.md §8."""
    bench.add("Queue", "q", expires="1m")
    await bench.until_reason("Queue", "q", "Applied")
    bench.broker.remove(Q, cause="expired")
    await bench.until_reason("Queue", "q", "Expired")
    assert bench.broker.named("queue") == []
    bench.add("Queue", "q", expires="2m")
    await bench.until_reason("Queue", "q", "Applied")


async def test_what_expired_stays_away_when_the_operator_starts_again(bench: Bench) -> None:
    """The status remembers it: a new operator makes it no more than the one before."""
    bench.add("Queue", "q", expires="1m")
    await bench.until_reason("Queue", "q", "Applied")
    bench.broker.remove(Q, cause="expired")
    await bench.until_reason("Queue", "q", "Expired")
    key = Key("Queue", "default", "q")
    body = bench.store.get(key)
    assert body is not None
    bench.engine.remove(key)
    assert key not in bench.engine.expired
    bench.engine.put(body)
    bench.add("Queue", "other")
    await bench.until_reason("Queue", "other", "Applied")
    # Asked once more: the first look after a start is not the only one.
    bench.engine.wake_broker(Reference("BrokerConnection", "default", "prod"))
    bench.add("Queue", "third")
    await bench.until_reason("Queue", "third", "Applied")
    assert bench.broker.named("queue") == ["other", "third"]
    bench.add("Queue", "q", expires="2m")
    await bench.until_reason("Queue", "q", "Applied")


async def test_a_status_that_somebody_edited_is_written_again_and_its_own_is_no_news(
    bench: Bench,
) -> None:
    bench.add("Queue", "q")
    await bench.until_reason("Queue", "q", "Applied")
    key = Key("Queue", "default", "q")
    body = bench.store.get(key)
    assert body is not None
    passes = bench.engine.metrics.passed
    made: list[str] = []
    bench.engine.metrics.passed = lambda kind, seconds: (made.append(kind), passes(kind, seconds))  # type: ignore[assignment, func-returns-value]
    bench.engine.put({**body})
    bench.engine.put({**body, "status": {}})
    await bench.until("a pass", lambda: made == ["Queue"])
    assert bench.broker.named("queue") == ["q"]
    bench.add("Queue", "other")
    await bench.until_reason("Queue", "other", "Applied")


async def start_again(bench: Bench, *meanwhile: Callable[[], None]) -> None:
    """Nobody watches while these are done; then all resources come as at a start."""
    key = Key("BrokerConnection", "default", "prod")
    session = bench.engine.session(key.reference)
    assert session is not None
    for body in bench.store.resources():
        bench.engine.remove(Key(body["kind"], "default", body["metadata"]["name"]))
    await bench.until("the session ends", lambda: not session._tasks)
    for one in meanwhile:
        one()
    for body in bench.store.resources():
        bench.engine.put(body)


async def test_what_expired_while_no_operator_ran_stays_away(bench: Bench) -> None:
    """The broker remembers why it went (TopologyPage.ended); what somebody deleted comes back."""
    other = Identity("queue", "/", "other")
    for name in ("q", "other"):
        bench.add("Queue", name, expires="1m")
        await bench.until_reason("Queue", name, "Applied")
    await start_again(
        bench,
        lambda: bench.broker.remove(Q, cause="expired"),
        lambda: bench.broker.remove(other),
    )
    await bench.until_reason("Queue", "q", "Expired")
    await bench.until("other comes back", lambda: bench.broker.named("queue") == ["other"])
    bench.add("Queue", "q", expires="2m")
    await bench.until_reason("Queue", "q", "Applied")
    # It came again: what is done to it now is another matter.
    bench.broker.remove(Q)
    await bench.until("q comes back", lambda: Q in bench.broker.objects)


async def test_a_spec_that_changed_while_no_operator_ran_is_applied(bench: Bench) -> None:
    bench.add("Queue", "q", expires="1m")
    await bench.until_reason("Queue", "q", "Applied")
    await start_again(
        bench,
        lambda: bench.broker.remove(Q, cause="expired"),
        lambda: bench.add("Queue", "q", expires="2m"),
    )
    await bench.until("the queue is there", lambda: Q in bench.broker.objects)
    await bench.until_reason("Queue", "q", "Applied")


async def test_another_look_that_is_asked_for_ends_expired(bench: Bench) -> None:
    bench.add("Queue", "q", expires="1m")
    await bench.until_reason("Queue", "q", "Applied")
    bench.broker.remove(Q, cause="expired")
    await bench.until_reason("Queue", "q", "Expired")
    body = bench.store.get(Key("Queue", "default", "q"))
    assert body is not None
    annotations = {"brokerd.io/reconcile-at": "now"}
    bench.engine.put({**body, "metadata": {**body["metadata"], "annotations": annotations}})
    await bench.until_reason("Queue", "q", "Applied")


async def test_a_shovel_that_has_done_its_work_is_not_made_again(bench: Bench) -> None:
    """design/operator.md §8: a member deletes the definition with the cause auto-delete."""
    done = Identity("parameter", "/", "shovel/mover")
    ends = {"source": {"queue": "a", "deleteAfter": "queue-length"}, "destination": {"queue": "b"}}
    bench.add("Shovel", "mover", **ends)
    await bench.until_reason("Shovel", "mover", "Applied")
    bench.broker.remove(done, cause="auto-delete")
    await bench.until_reason("Shovel", "mover", "Expired")
    assert bench.broker.named("parameter") == []
    # Whoever wants it once more says so with another spec.
    bench.add("Shovel", "mover", **ends, reconnectDelay="7s")
    await bench.until_reason("Shovel", "mover", "Applied")


async def test_broker_that_is_down_parks_everything_and_comes_back(bench: Bench) -> None:
    bench.add("Queue", "q")
    await bench.until_reason("Queue", "q", "Applied")
    await bench.broker.stop()
    bench.add("Queue", "r")
    await bench.until_reason("Queue", "r", "WaitingForBroker")
    await bench.until_reason("BrokerConnection", "prod", "WaitingForBroker")
    await bench.broker.start()
    await bench.until_reason("Queue", "r", "Applied")


async def test_recreated_broker_gets_everything_again(bench: Bench) -> None:
    """MTO#624: resources stayed Ready while the broker was empty."""
    bench.add("Queue", "q")
    bench.add("User", "web")
    await bench.until_reason("User", "web", "Applied")
    await bench.broker.stop()
    await bench.until_reason("BrokerConnection", "prod", "WaitingForBroker")
    bench.broker.objects.clear()
    bench.broker.owners.clear()
    bench.broker.cluster_id = "c2"
    bench.broker.put(Identity("vhost", "", "/"), {})
    await bench.broker.start()
    await bench.until("the user is back", lambda: bench.broker.named("user") == ["web"])
    assert bench.broker.objects[Identity("user", "", "web")]["password"]
    await bench.until("the queue is back", lambda: bench.broker.named("queue") == ["q"])


async def test_many_resources_travel_in_batches(bench: Bench) -> None:
    await bench.until_reason("BrokerConnection", "prod", "Available")
    bench.broker.batches.clear()
    for number in range(60):
        bench.add("Queue", f"q{number}")
    await bench.until("all ready", lambda: all(is_ready(body) for body in bench.store.resources()))
    assert sum(bench.broker.batches) == 60
    assert len(bench.broker.batches) < 60


async def test_changed_secret_reaches_the_broker(bench: Bench) -> None:
    bench.add("User", "web", credentialsSecretRef={"name": "web"})
    await bench.until_reason("User", "web", "WaitingForSecret")
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "web"}}
    bench.apply({**secret, "stringData": {"password": "one"}})
    await bench.until_reason("User", "web", "Applied")
    bench.apply({**secret, "stringData": {"password": "two"}})
    user = Identity("user", "", "web")
    await bench.until("the password", lambda: bench.broker.objects[user]["password"] == "two")
    body = bench.store.get(Key("User", "default", "web"))
    assert "two" not in str(body), "no secret in a resource or its status (SEC-20)"


async def test_grant_is_needed_from_another_namespace_and_can_be_taken_away(
    bench: Bench,
) -> None:
    body = resource("Queue", "q", brokerRef={"name": "prod", "kind": "BrokerConnection"})
    body["metadata"]["namespace"] = "team"
    body["spec"]["brokerRef"]["namespace"] = "default"
    bench.apply(body)
    key = Key("Queue", "team", "q")

    def reason() -> str:
        found = conditions.find(bench.store.get(key) or {}, "Ready")
        return found.reason if found else ""

    def message() -> str:
        found = conditions.find(bench.store.get(key) or {}, "Ready")
        return found.message if found else ""

    await bench.until("refused", lambda: reason() == "NotGranted")
    assert message() == (
        "BrokerConnection default/prod grants nothing to namespace team: add a grant for it to "
        "spec.access"
    )
    wrong = {"namespaces": {"names": ["team"]}, "kinds": ["Queue"], "vhosts": ["/team"]}
    address = bench.broker.address
    bench.apply(resource("BrokerConnection", "prod", endpoints=[address], access=[wrong]))
    await bench.until("the vhost", lambda: "the vhost /: add a pattern for it" in message())
    grant = {"namespaces": {"names": ["team"]}, "kinds": ["Queue"], "vhosts": ["/"]}
    bench.apply(resource("BrokerConnection", "prod", endpoints=[address], access=[grant]))
    await bench.until("granted", lambda: reason() == "Applied")
    bench.apply(resource("BrokerConnection", "prod", endpoints=[address]))
    await bench.until("taken away", lambda: reason() == "NotGranted")
    assert bench.broker.named("queue") == ["q"], "a revoked grant destroys nothing"


async def test_topic_permission_follows_the_name_of_its_user(bench: Bench) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login"}}
    bench.apply({**secret, "stringData": {"username": USER, "password": PASSWORD}})
    bench.add("TopicPermission", "t", user=None, userRef={"name": "web"}, exchange="x", write="^a")
    await bench.until_reason("TopicPermission", "t", "WaitingForUser")
    web = {**secret, "metadata": {"name": "web-login"}, "stringData": {"password": "p"}}
    bench.apply(web)
    bench.add("User", "web", name="www", credentialsSecretRef={"name": "web-login"})
    await bench.until_reason("TopicPermission", "t", "Applied")
    identity = Identity("topic_permission", "/", "www|x")
    assert bench.broker.objects[identity] == {"write": "^a", "read": ""}
    # Somebody takes the bounds away: they come back.
    bench.broker.put(identity, {"write": ".*", "read": ".*"}, bench.broker.owners[identity])
    await bench.until("repaired", lambda: bench.broker.objects[identity]["write"] == "^a")
    bench.store.delete(Key("TopicPermission", "default", "t"))
    await bench.until_gone("TopicPermission", "t")
    assert bench.broker.named("topic_permission") == []


async def test_deleted_resource_takes_its_object_along(bench: Bench) -> None:
    bench.add("Queue", "q", bindings=[{"source": "in"}])
    bench.add("Exchange", "in")
    await bench.until_reason("Queue", "q", "Applied")
    bench.store.delete(Key("Queue", "default", "q"))
    await bench.until_gone("Queue", "q")
    assert bench.broker.named("queue") == []
    assert bench.broker.named("binding") == []


async def test_pausing_stops_writes_and_a_paused_resource_goes_alone(bench: Bench) -> None:
    bench.add("Queue", "q", maxLength=5)
    await bench.until_reason("Queue", "q", "Applied")
    paused = dict(bench.store.get(Key("Queue", "default", "q")) or {})
    paused["metadata"] = {"name": "q", "annotations": {"brokerd.io/pause": "true"}}
    paused["spec"] = {**paused["spec"], "maxLength": 6}
    bench.apply(paused)
    await bench.until_reason("Queue", "q", "Paused")
    assert bench.broker.objects[Q]["settings"] == {"max-length": 5}
    await bench.until(
        "the sweep is told", lambda: bench.broker.owners[Q].deletion_policy == "Leave"
    )
    bench.store.delete(Key("Queue", "default", "q"))
    await bench.until_gone("Queue", "q")
    assert bench.broker.named("queue") == ["q"]


async def test_sweep_finishes_deletions_of_a_time_when_the_broker_was_away(
    bench: Bench,
) -> None:
    """design/operator.md §10: empty queues go, others are left without their token."""
    bench.add("Queue", "q")
    bench.add("Queue", "full")
    await bench.until_reason("Queue", "q", "Applied")
    await bench.until_reason("Queue", "full", "Applied")
    bench.broker.messages["full"] = 2
    for name in ("q", "full"):
        # As after a time-out: the resource is gone and the token still lies in the broker.
        bench.store._resources.pop(Key("Queue", "default", name))
        bench.engine.remove(Key("Queue", "default", name))
    bench.engine.is_synced.set()
    await bench.until("the empty one goes", lambda: bench.broker.named("queue") == ["full"])
    full = Identity("queue", "/", "full")
    await bench.until("the other is let go", lambda: full not in bench.broker.owners)


@pytest.mark.parametrize("shown_by", ["names", "read", "nothing"])
async def test_sweep_spares_what_a_second_listing_or_a_direct_read_shows(
    bench: Bench, shown_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resource that a relisting lost from the cache is still there."""
    bench.add("Queue", "q")
    await bench.until_reason("Queue", "q", "Applied")
    key = Key("Queue", "default", "q")
    asked: list[str] = []

    async def names(kind: str, namespace: str) -> frozenset[str]:
        asked.append("names")
        return frozenset({"q"} if shown_by == "names" else ())

    async def read(key: Key) -> Any:
        asked.append("read")
        if shown_by == "nothing":
            raise OSError("no answer")
        return bench.store.get(key)

    monkeypatch.setattr(bench.store, "names", names)
    monkeypatch.setattr(bench.store, "read", read)
    bench.engine.remove(key)
    session = bench.engine.sessions()[0]
    await sweep(bench.engine, session)
    assert bench.broker.named("queue") == ["q"]
    assert bench.broker.owners[Q].resource == key.resource
    assert asked == (["names"] if shown_by == "names" else ["names", "read"])
    found_again = bench.engine.cache.get(key) is not None
    assert found_again == (shown_by == "read")


async def test_sweep_spares_what_belongs_to_a_namespace_that_does_not_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add("Queue", "q")
    await bench.until_reason("Queue", "q", "Applied")
    bench.store._resources.pop(Key("Queue", "default", "q"))
    bench.engine.remove(Key("Queue", "default", "q"))
    monkeypatch.setattr(bench.store, "is_watched", lambda namespace: False)
    await sweep(bench.engine, bench.engine.sessions()[0])
    assert bench.broker.named("queue") == ["q"]
    monkeypatch.undo()
    await sweep(bench.engine, bench.engine.sessions()[0])
    assert bench.broker.named("queue") == []


async def test_nothing_is_done_for_a_namespace_that_does_not_answer_until_it_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.add("Queue", "q")
    await bench.until_reason("Queue", "q", "Applied")
    monkeypatch.setattr(bench.store, "is_watched", lambda namespace: False)
    bench.broker.remove(Q)
    bench.add("Queue", "other")
    await bench.until("all were looked at", lambda: bench.engine.queue.is_idle)
    assert bench.broker.named("queue") == []
    monkeypatch.undo()
    bench.engine.wake_namespace("default")
    await bench.until("both are there", lambda: bench.broker.named("queue") == ["other", "q"])


async def test_wrong_credentials_are_said(bench: Bench) -> None:
    client = AdminClient(Target((bench.broker.address,), USER, "wrong"))
    with pytest.raises(BrokerDenied, match="login refused"):
        await client.info()
    await client.close()


async def test_client_goes_on_to_the_next_address(bench: Bench) -> None:
    client = AdminClient(Target(("127.0.0.1:1", bench.broker.address), USER, PASSWORD))
    assert (await client.info()).cluster_id == "c1"
    await client.close()
    lost = AdminClient(Target(("127.0.0.1:1",), USER, PASSWORD))
    with pytest.raises(BrokerUnreachable):
        await lost.info()
    await lost.close()


async def test_session_of_a_broker_that_is_removed_ends(bench: Bench) -> None:
    """Its closing is one of its tasks, and must not wait for itself: workers hung on it."""
    await bench.until("a session", lambda: bool(bench.engine._sessions))
    (session,) = bench.engine._sessions.values()
    (reference,) = bench.engine._sessions
    # Something waits to be written.
    session._flushing = True
    waiting = asyncio.ensure_future(session.apply([Delete(Q, Precondition())]))
    await asyncio.sleep(0)
    bench.engine.remove(Key(reference.kind, *reference.key.split("/")))
    with pytest.raises(BrokerError, match="the operator stops"):
        async with asyncio.timeout(DEADLINE_S):
            await waiting
    await bench.until("no task is left", lambda: not session._tasks)


# ---- the work queue -----------------------------------------------------------------------------


def queue_at(times: list[float]) -> WorkQueue[str]:
    return WorkQueue(lambda: times[0], random.Random(1))


async def test_key_is_with_one_worker_at_most_and_due_again_after_it() -> None:
    times = [0.0]
    queue = queue_at(times)
    queue.add("a")
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "b"
    queue.done("a")
    assert await queue.get() == "a"


async def test_new_generation_cuts_the_back_off() -> None:
    times = [0.0]
    queue = queue_at(times)
    queue.add("a")
    await queue.get()
    assert 0.8 <= queue.retry("a") <= 1.2
    queue.done("a")
    queue.add("a")
    assert await queue.get() == "a"


async def test_back_off_doubles_up_to_its_bound_and_starts_again_after_success() -> None:
    queue = queue_at([0.0])
    delays = [queue.retry("a") for _ in range(20)]
    assert 1.6 <= delays[1] <= 2.4
    assert delays[-1] <= BACKOFF_MAX_S * 1.2
    queue.succeed("a")
    assert queue.retry("a") <= 1.2


def test_fight_ends_with_the_generation_or_the_time() -> None:
    watch, key = DriftWatch(), Key("Queue", "default", "q")
    for second in range(REPAIRS_MAX + 1):
        assert watch.rest_s(key, 1, second) == 0
        watch.repaired(key, 1, second)
    assert watch.rest_s(key, 1, 10) > 0
    assert watch.rest_s(key, 1, 10 + REST_S) == 0
    for second in range(REPAIRS_MAX + 1):
        watch.repaired(key, 1, second)
    assert watch.rest_s(key, 2, 10) == 0


def test_slow_drift_is_no_fight() -> None:
    watch, key = DriftWatch(), Key("Queue", "default", "q")
    for minute in range(20):
        watch.repaired(key, 1, minute * 60.0)
        assert watch.rest_s(key, 1, minute * 60.0) == 0


async def test_what_members_keep_aside_shows_on_queue_and_broker_once_as_an_event(
    bench: Bench,
) -> None:
    """Whoever only reads resources must not miss that a leader lacks what was confirmed."""
    bench.connect()
    bench.add("Queue", "q")
    bench.add("Queue", "other")
    await bench.until_reason("Queue", "q", "Applied")
    await bench.until_reason("Queue", "other", "Applied")
    row = {"id": "1", "kind": "queue", "vhost": "/", "name": "q", "member": "n0", "messages": 7}
    bench.broker.kept_aside = [row | {"state": "kept"}]
    keys = [Key("Queue", "default", "q"), Key("BrokerConnection", "default", "prod")]

    def condition(key: Key) -> conditions.Condition | None:
        body = bench.store.get(key)
        assert body is not None
        return conditions.find(body, conditions.KEPT_ASIDE)

    await bench.until("both say so", lambda: all(condition(key) for key in keys))
    found = condition(keys[0])
    assert found is not None
    assert (found.status, found.reason) == ("True", "LeaderLacksCommitted")
    assert "n0 keeps 7 messages of queue 'q' aside" in found.message
    assert condition(Key("Queue", "default", "other")) is None
    told = [key for type_, key, reason, _ in bench.store.events if reason == found.reason]
    assert sorted(key.kind for key in told) == ["BrokerConnection", "Queue"]
    # A member that is down for a while has kept it no less.
    bench.broker.kept_aside, bench.broker.unanswered = [], ["n0"]
    asked = bench.broker.kept_aside_asked
    await bench.until("asked again", lambda: bench.broker.kept_aside_asked >= asked + 3)
    assert all(condition(key) for key in keys)
    bench.broker.kept_aside, bench.broker.unanswered = [row | {"state": "done"}], []
    await bench.until("it is over", lambda: not any(condition(key) for key in keys))


async def test_a_change_that_the_broker_wants_confirmed_waits_for_the_annotation(
    bench: Bench,
) -> None:
    """R-FX-17: only the broker knows that messages wait in an upstream queue."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "far"},
        "stringData": {"uri": "amqp://u:p@far"},
    }
    bench.apply(secret)
    uri = {"name": "far"}
    bench.add("FederationUpstream", "far", endpoints=None, uriSecretRef=uri)
    await bench.until_reason("FederationUpstream", "far", "Applied")
    identity = Identity("parameter", "/", "federation-upstream/far")
    bench.broker.buffers.add(identity)
    bench.add("FederationUpstream", "far", endpoints=None, uriSecretRef=uri, expires="60s")
    await bench.until_reason("FederationUpstream", "far", "ConfirmationRequired")
    found = bench.ready("FederationUpstream", "far")
    assert found is not None
    assert 'annotate brokerd.io/confirm: "2" to go on' in found.message
    assert "expires" not in bench.broker.objects[identity]["value"]
    reference = {"name": "prod", "kind": "BrokerConnection"}
    confirmed = resource(
        "FederationUpstream",
        "far",
        brokerRef=reference,
        endpoints=None,
        uriSecretRef=uri,
        expires="60s",
    )
    confirmed["metadata"]["annotations"] = {"brokerd.io/confirm": "2"}
    bench.apply(confirmed)
    await bench.until_reason("FederationUpstream", "far", "Applied")
    assert bench.broker.objects[identity]["value"]["expires"] == 60_000
