"""Answers of the API server that were lost, came late or say no for a moment; without a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.engine.ports import Gone
from brokerd_operator.engine.running import run_engine
from brokerd_operator.sources import events
from brokerd_operator.sources.api import Api, ApiError, Json
from brokerd_operator.sources.lease import Lease, LeaseLost

from tests.operator.resources import resource

pytestmark = pytest.mark.timeout(60)

KEY = Key("Queue", "default", "q")
DEADLINE_S = 20.0


class Store:
    """One resource, as a store that can lose an answer and let things happen before one."""

    def __init__(self) -> None:
        self.body: Body | None = made("u1", 1)
        self.writes = 0
        self.loses = 0
        self.meanwhile: list[Any] = []

    async def write_status(self, body: Body, status: Mapping[str, Any]) -> None:
        await self._happen()
        if self.body is None or self.body["metadata"]["uid"] != body["metadata"]["uid"]:
            raise Gone
        self.writes += 1
        # Every write makes another version of it.
        metadata = self.body["metadata"]
        metadata = {**metadata, "resourceVersion": str(int(metadata["resourceVersion"]) + 1)}
        self.body = {**self.body, "metadata": metadata, "status": dict(status)}
        if self.loses:
            self.loses -= 1
            raise ApiError(0, "the answer was lost")

    async def add_finalizer(self, body: Body) -> None:
        await self._happen()
        if self.body is None or self.body["metadata"]["uid"] != body["metadata"]["uid"]:
            raise Gone

    async def _happen(self) -> None:
        if self.meanwhile:
            self.meanwhile.pop(0)()

    async def read(self, key: Key) -> Body | None:
        return self.body

    async def emit(self, body: Body, type_: str, reason: str, message: str) -> None: ...

    async def is_namespace_terminating(self, namespace: str) -> bool:
        return False

    def is_watched(self, namespace: str) -> bool:
        return True


def made(uid: str, version: int) -> Body:
    metadata = {
        "name": "q",
        "namespace": "default",
        "uid": uid,
        "resourceVersion": str(version),
        "generation": 1,
    }
    return {**resource("Queue", "q"), "metadata": metadata}


@pytest.fixture
def store() -> Store:
    return Store()


@pytest_asyncio.fixture
async def engine(store: Store) -> AsyncIterator[Engine]:
    found = Engine(store, None)  # type: ignore[arg-type]
    running = asyncio.create_task(run_engine(found))
    yield found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until(check: Any) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if check():
                return
            await asyncio.sleep(0.01)


async def test_a_status_whose_answer_was_lost_is_read_before_the_next_is_compared(
    engine: Engine, store: Store
) -> None:
    store.loses = 1
    assert store.body is not None
    engine.put(store.body)
    await until(lambda: store.writes == 1 and engine.queue.is_idle and len(engine.queue) == 0)
    entry = engine.cache.get(KEY)
    assert entry is not None
    assert entry.body == store.body, "it is known what is stored"
    assert store.writes == 1, "and it is not written again"


async def test_a_defect_of_ours_is_an_error_in_the_log_and_others_failures_are_not(
    engine: Engine, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """`brokerctl up` shows errors only: a resource must not wait for ever without a word."""
    store.loses = 1
    store.meanwhile = [lambda: {}["defect"]]
    assert store.body is not None
    engine.put(store.body)
    await until(lambda: store.writes == 1 and engine.queue.is_idle and len(engine.queue) == 0)
    told = [record for record in caplog.records if "pass failed" in record.getMessage()]
    assert [record.levelname for record in told] == ["ERROR", "WARNING"]
    assert told[0].exc_info is not None


async def test_a_resource_that_went_with_the_lost_answer_is_forgotten(
    engine: Engine, store: Store
) -> None:
    first = store.body
    assert first is not None
    store.loses = 1
    engine.put(first)
    await until(lambda: store.writes == 1)
    store.body = None
    await until(lambda: engine.cache.get(KEY) is None)


async def test_a_resource_made_anew_during_the_pass_of_the_one_before_is_looked_at(
    engine: Engine, store: Store
) -> None:
    first = store.body
    assert first is not None

    def again() -> None:
        store.body = made("u2", 2)
        engine.put(store.body)

    store.meanwhile = [again]
    engine.put(first)
    await until(lambda: store.writes == 1)
    assert store.body is not None
    assert store.body["metadata"]["uid"] == "u2"
    assert store.body["status"]["conditions"]


# ---- requests ---------------------------------------------------------------------------------


class Scripted(Api):
    """Answers by a list: an error to raise, something to return, or seconds to hang."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def request(self, method: str, path: str, *_: Any, **__: Any) -> Json:
        self.asked.append(method)
        answer = self.answers.pop(0) if self.answers else {}
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, float):
            await asyncio.sleep(answer)
        return answer if isinstance(answer, dict) else {}


class Recording(Scripted):
    """Keeps what was sent."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.sent: list[Json] = []

    async def request(self, method: str, path: str, *rest: Any, **named: Any) -> Json:
        if rest:
            self.sent.append(rest[0])
        return await super().request(method, path, *rest, **named)


MANIFEST = {"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "n", "name": "s"}}


async def test_only_a_taken_name_is_an_object_that_is_there_already() -> None:
    taken = ApiError(409, "secrets s already exists", "POST", "AlreadyExists")
    assert await Scripted(taken).create(MANIFEST) is None
    quota = ApiError(409, "cannot be fulfilled on resourcequotas", "POST", "Conflict")
    with pytest.raises(ApiError):
        await Scripted(quota).create(MANIFEST)


async def test_a_page_whose_answer_was_lost_is_asked_for_again() -> None:
    api = Scripted(ApiError(0, "connection lost", "GET"), {"items": [{"metadata": {}}]})
    found, _ = await api.list("/api/v1/secrets")
    assert len(found) == 1


# ---- the Lease --------------------------------------------------------------------------------


def held_by(holder: str) -> Json:
    return {"metadata": {}, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 15}}


def lease_of(api: Api, duration_s: int = 3) -> Lease:
    return Lease(api, "n", "lease", "me", duration_s)


async def test_a_conflict_is_no_other_holder() -> None:
    """A gateway that sends a renewal twice makes one with ourselves."""
    conflict = ApiError(409, "the object has been modified", "PUT", "Conflict")
    api = Scripted(held_by("me"), conflict, held_by("me"), held_by("me"), conflict)
    api.answers.append(held_by("somebody"))
    with pytest.raises(LeaseLost, match="another holder"):
        await lease_of(api).keep()
    # The third renewal knows what the second one left, and needs no look before.
    assert api.asked == ["GET", "PUT", "GET", "PUT", "PUT", "GET"]


async def test_a_lease_survives_more_failures_in_a_row_than_renewals_fit_in() -> None:
    failures = [ApiError(503, "by the plan", "GET") for _ in range(4)]
    api = Scripted(held_by("me"), held_by("me"), *failures, held_by("me"), held_by("me"))
    conflict = ApiError(409, "the object has been modified", "PUT", "Conflict")
    api.answers += [conflict, held_by("somebody")]
    lease = lease_of(api, duration_s=6)
    lease.is_held = True
    with pytest.raises(LeaseLost, match="another holder"):
        await lease.keep()
    assert not api.answers, "it was renewed after the failures"
    assert not lease.is_held


async def test_a_renewal_keeps_when_the_lease_was_acquired() -> None:
    acquired = "2026-01-01T00:00:00.000000Z"
    held = {**held_by("me")["spec"], "acquireTime": acquired, "leaseTransitions": 3}
    api = Recording({"metadata": {}, "spec": held}, held_by("somebody"))
    with pytest.raises(LeaseLost):
        await lease_of(api).keep()
    (sent,) = api.sent
    assert (sent["spec"]["acquireTime"], sent["spec"]["leaseTransitions"]) == (acquired, 3)
    assert sent["spec"]["renewTime"] > acquired


async def test_a_renewal_that_hangs_ends_before_the_lease_does() -> None:
    api = Scripted(held_by("me"), {}, *(60.0 for _ in range(20)))
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(LeaseLost, match="in time"):
        await lease_of(api).keep()
    # Renewed after a fifth of 3 s; others may begin 3 s after that.
    assert loop.time() - began < 0.6 + 3


async def test_a_loop_that_is_busy_for_longer_than_a_lease_lasts_does_not_lose_it() -> None:
    """As with ten thousand resources that are new at the same moment."""
    api = Scripted(held_by("me"))
    lease = lease_of(api, duration_s=1)
    lease.is_held = True
    keeping = asyncio.create_task(lease.keep_apart())
    await asyncio.sleep(0)
    # Nothing else runs in this loop meanwhile.
    threading.Event().wait(3.0)
    await asyncio.sleep(0)
    assert not keeping.done()
    assert lease.is_held
    assert api.asked.count("PUT") >= 3
    keeping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await keeping
    renewed = len(api.asked)
    await asyncio.sleep(0.5)
    assert len(api.asked) == renewed, "it is not renewed any more"
    assert not [thread for thread in threading.enumerate() if thread.name == "lease"]


async def test_a_lease_that_is_lost_apart_is_told() -> None:
    with pytest.raises(LeaseLost, match="another holder"):
        await lease_of(Scripted(held_by("somebody"))).keep_apart()


# ---- Events -----------------------------------------------------------------------------------


def told(type_: str, number: int, namespace: str = "n") -> Json:
    involved = {"kind": "Queue", "namespace": namespace, "name": f"q{number}"}
    return events.event(involved, type_, "Applied", "text")


async def test_of_too_many_events_the_newest_are_sent_and_warnings_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "PAUSE_S", 0.0)
    monkeypatch.setattr(events, "PAUSE_OF_MANY_S", 0.0)
    monkeypatch.setattr(events, "WAITING_MAX", 3)
    api = Recording()
    recorder = events.EventRecorder(api)
    for number in range(5):
        recorder.tell(told("Normal", number))
    recorder.tell(told("Warning", 9))
    await recorder.close()
    sent = [item["involvedObject"]["name"] for item in api.sent]
    assert sent == ["q9", "q2", "q3", "q4"]


async def test_a_namespace_with_many_events_takes_none_of_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither its place nor its turn."""
    monkeypatch.setattr(events, "PAUSE_S", 0.0)
    monkeypatch.setattr(events, "PAUSE_OF_MANY_S", 0.0)
    monkeypatch.setattr(events, "WAITING_MAX", 6)
    api = Recording()
    recorder = events.EventRecorder(api)
    for number in range(2):
        recorder.tell(told("Normal", number, "quiet"))
    for number in range(50):
        recorder.tell(told("Normal", number, "loud"))
    recorder.tell(told("Normal", 7, "late"))
    await recorder.close()
    sent = [(item["metadata"]["namespace"], item["involvedObject"]["name"]) for item in api.sent]
    quiet, loud = ([name for place, name in sent if place == of] for of in ("quiet", "loud"))
    assert quiet == ["q0", "q1"]
    assert loud == ["q47", "q48", "q49"]
    assert sent.index(("late", "q7")) <= 2


async def test_of_as_many_namespaces_as_may_wait_each_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "PAUSE_S", 0.0)
    monkeypatch.setattr(events, "WAITING_MAX", 3)
    api = Recording()
    recorder = events.EventRecorder(api)
    for number in range(5):
        recorder.tell(told("Normal", number, f"n{number}"))
    await recorder.close()
    assert len(api.sent) == 3
    assert api.sent[-1]["metadata"]["namespace"] == "n4"


async def test_an_event_that_is_refused_or_hangs_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(events, "PAUSE_S", 0.0)
    monkeypatch.setattr(events, "PAUSE_OF_MANY_S", 0.0)
    api = Recording(ApiError(403, "the namespace is being terminated", "POST"), {}, 60.0)
    recorder = events.EventRecorder(api)
    for number in range(3):
        recorder.tell(told("Normal", number))
    loop = asyncio.get_running_loop()
    began = loop.time()
    await recorder.close()
    assert loop.time() - began < 2 * events.CLOSE_S
    assert len(api.sent) == 3
