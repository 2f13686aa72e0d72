"""What fails is told in the status of its resource, and tried again with growing pauses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from brokerd_operator import conditions
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine import refusals
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.refusals import REST_MAX_S, TOLD_FROM, Refusals
from brokerd_operator.engine.running import run_engine
from brokerd_operator.sources.api import ApiError, shown
from brokerd_operator.sources.cluster_events import ClusterEvents
from brokerd_operator.sources.cluster_objects import Refusals as OfOnePass

from tests.operator.engine.test_engine import Bench
from tests.operator.fake_broker import FakeBroker

pytestmark = pytest.mark.timeout(240)
KEY = Key("User", "default", "web")
QUOTA = ApiError(403, "exceeded quota: few", "POST", "Forbidden", "Secret web-credentials")
BUSY = ApiError(503, "busy", "POST", "", "Secret web-credentials")


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


def told(bench: Bench) -> list[str]:
    return [text for _, _, reason, text in bench.store.events if reason == "ApiRefused"]


async def test_a_refused_write_is_in_the_status_and_an_event_until_it_is_taken(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise QUOTA

    monkeypatch.setattr(bench.store, "make_user_secret", refuse)
    bench.add("User", "web")
    await bench.until_reason("User", "web", "ApiRefused")
    ready = bench.ready("User", "web")
    assert ready is not None
    assert ready.message == "Secret web-credentials: exceeded quota: few"
    bench.engine.wake([KEY])
    await bench.until("another try", lambda: bench.engine.refusals._failures.get(KEY, 0) > 1)
    assert told(bench) == [ready.message], "told once, however often it is tried"
    monkeypatch.undo()
    bench.engine.wake([KEY])
    await bench.until_reason("User", "web", "Applied")


async def test_a_defect_is_in_the_status_too(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise KeyError("a defect with a secret in its text")

    monkeypatch.setattr(bench.store, "make_user_secret", fail)
    bench.add("User", "web")

    def has_failed() -> bool:
        bench.engine.wake([KEY])
        return bench.engine.refusals._failures.get(KEY, 0) >= TOLD_FROM

    await bench.until("some tries", has_failed)
    await bench.until_reason("User", "web", "InternalError")
    ready = bench.ready("User", "web")
    assert ready is not None
    assert "KeyError" in ready.message
    assert "secret" not in ready.message


async def test_a_status_that_is_refused_rests_whatever_wakes_its_resource(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []
    write = bench.store.write_status

    async def refuse(body: Any, status: Any) -> None:
        if body["kind"] != "Queue":
            await write(body, status)
            return
        tries.append(body["metadata"]["name"])
        raise ApiError(403, "you may not", "PATCH", "Forbidden", "status of Queue q")

    monkeypatch.setattr(bench.store, "write_status", refuse)
    bench.add("Queue", "q")
    key = Key("Queue", "default", "q")
    await bench.until("an Event", lambda: told(bench) == ["status of Queue q: you may not"])
    assert bench.broker.named("queue") == ["q"], "the work itself is done"
    before = len(tries)
    for _ in range(20):
        bench.engine.wake([key])
        await bench.until("a pass", lambda: bench.engine.queue.is_idle)
    assert tries.count("q") <= before + 1
    monkeypatch.undo()
    # A new generation does not wait for its turn.
    bench.add("Queue", "q", maxLength=5)
    await bench.until_reason("Queue", "q", "Applied")


def test_pauses_between_tries_of_a_status_grow() -> None:
    now = [0.0]
    found = Refusals(lambda: now[0])
    body = {"metadata": {"generation": 1}}
    pauses = []
    for _ in range(10):
        assert not found.is_resting(KEY, body)
        pauses.append(found.status_refused(KEY, body))
        assert found.is_resting(KEY, body)
        assert not found.is_resting(KEY, {"metadata": {"generation": 2}})
        now[0] += pauses[-1]
    assert pauses == sorted(pauses)
    assert pauses[0] < pauses[1] < pauses[-1] == REST_MAX_S
    assert found.status_refused(KEY, {"metadata": {"generation": 2}}) == pauses[0]
    found.status_taken(KEY)
    assert found.status_refused(KEY, body) == pauses[0]


@pytest.mark.parametrize(
    ("error", "count", "reason"),
    [
        (QUOTA, 1, "ApiRefused"),
        (BUSY, TOLD_FROM - 1, None),
        (BUSY, TOLD_FROM, "WaitingForApi"),
        (ApiError(0, "no answer"), TOLD_FROM, None),
        (BrokerError("down"), TOLD_FROM, "BrokerError"),
        (OSError("disk"), TOLD_FROM, "InternalError"),
    ],
)
def test_what_may_pass_by_itself_is_told_when_it_does_not(
    error: Exception, count: int, reason: str | None
) -> None:
    found = Refusals(lambda: 0.0)
    last = None
    for _ in range(count):
        last = found.failed(KEY, error)
    assert (last and last.reason) == reason
    found.succeeded(KEY)
    assert found.failed(KEY, BUSY) is None


def test_a_failed_pass_takes_no_other_condition_away() -> None:
    before = [
        conditions.build("Ready", True, "Applied", "", 1).to_json(),
        conditions.build("InSync", True, "InSync", "", 1).to_json(),
    ]
    body = {"metadata": {"generation": 2}, "status": {"conditions": before, "appliedHash": "x"}}
    said = refusals.told(QUOTA)
    assert said is not None
    status = refusals.failed_status(body, said)
    assert status["observedGeneration"] == 2
    assert status["appliedHash"] == "x"
    states = {item["type"]: item["status"] for item in status["conditions"]}
    assert states == {"Ready": "False", "Stalled": "True", "InSync": "True"}


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/apis/brokerd.io/v1alpha1/namespaces/n/users/web/status", {}, "status of User web"),
        ("/apis/brokerd.io/v1alpha1/namespaces/n/queues/q?x=1", {}, "Queue q"),
        ("/api/v1/namespaces/n/secrets", {"metadata": {"name": "s"}}, "Secret s"),
        ("/api/v1/namespaces/n/events", {"metadata": {"generateName": "s."}}, "Event"),
        ("/api/v1/namespaces/n", None, "Namespace n"),
        ("/apis/storage.k8s.io/v1/things/t", None, "things t"),
        ("/api", None, "/api"),
    ],
)
def test_what_was_refused_is_named_as_people_know_it(path: str, body: Any, expected: str) -> None:
    assert shown(path, body) == expected


# ---- what controllers are refused ---------------------------------------------------------------


class ToldBy:
    """An API server that only has Events."""

    def __init__(self, *events: dict[str, Any], status: int = 0) -> None:
        self.events = events
        self.status = status

    async def request(self, method: str, path: str, query: dict[str, str]) -> dict[str, Any]:
        assert (method, path) == ("GET", "/api/v1/namespaces/n/events")
        assert query["fieldSelector"] == "involvedObject.uid=u"
        if self.status:
            raise ApiError(self.status, "you may not list them", "GET")
        return {"items": list(self.events)}


def event(reason: str, message: str, at: str = "2026-01-01T00:00:00Z") -> dict[str, Any]:
    return {"reason": reason, "message": message, "lastTimestamp": at}


def owned(name: str, phase: str = "") -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "uid": "u", "name": name}, "status": {"phase": phase}}


async def test_the_last_refusal_of_each_missing_pod_counts() -> None:
    made = "create Pod {} in StatefulSet a failed error: {}"
    api: Any = ToldBy(
        event("FailedCreate", made.format("a-1", "newer"), "2026-01-01T00:00:09Z"),
        event("FailedCreate", made.format("a-1", "older")),
        event("FailedCreate", made.format("a-10", "of another"), "2026-01-01T00:00:10Z"),
        event("SuccessfulCreate", made.format("a-1", "no"), "2026-01-01T00:00:11Z"),
    )
    found = await ClusterEvents(api).refused_pods(owned("a"), ["a-1", "a-2"])
    assert found == {"a-1": "newer"}
    assert await ClusterEvents(api).refused_pods({}, ["a-1"]) == {}


async def test_a_claim_without_a_volume_is_explained() -> None:
    api: Any = ToldBy(event("ProvisioningFailed", "no class"), event("Other", "x", "2027"))
    claims = [owned("data-a-0", "Pending"), owned("data-a-1", "Bound")]
    assert await ClusterEvents(api).unbound(claims) == {"data-a-0": "no class"}


async def test_a_volume_that_cannot_be_mounted_is_told_with_one_text_for_both_of_a_time() -> None:
    late = "2026-01-01T00:00:09Z"
    api: Any = ToldBy(
        event("FailedMount", "b: no key", late),
        event("FailedMount", "a: no key", late),
        event("FailedMount", "0: mended since"),
        event("FailedMount", "failed to sync secret cache", "2026-01-01T00:00:10Z"),
        event("Pulled", "x", "2027"),
    )
    assert await ClusterEvents(api).unmounted([owned("a-0")]) == {"a-0": "a: no key"}
    assert await ClusterEvents(ToldBy(event("Pulled", "x"))).unmounted([owned("a-0")]) == {}  # type: ignore[arg-type]


async def test_without_the_right_to_list_events_nothing_is_said() -> None:
    api: Any = ToldBy(status=403)
    assert await ClusterEvents(api).refused_pods(owned("a"), ["a-1"]) == {}
    api.status = 503
    with pytest.raises(ApiError):
        await ClusterEvents(api).refused_pods(owned("a"), ["a-1"])


def test_only_lasting_refusals_of_a_pass_are_worth_an_event() -> None:
    found = OfOnePass()
    found.add("Service a", ApiError(503, "busy", "PATCH"))
    found.add("Service b", ApiError(422, "invalid", "PATCH"))
    found.add_lasting("Pod a-0: exceeded quota")
    assert found.lasting == ("Service b: invalid", "Pod a-0: exceeded quota")
    assert found.reason == "ApiRefused"
