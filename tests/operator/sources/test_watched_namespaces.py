"""Namespaces that do not let the operator in, and bindings that are held, against answers by hand.

What the real API server makes of it is in test_namespaces_api.py.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.sources import shutdown
from brokerd_operator.sources.api import Api, ApiError, Json, path_of
from brokerd_operator.sources.kubernetes_store import KubernetesStore
from brokerd_operator.sources.rights import FINALIZER, RBAC, Rights
from brokerd_operator.sources.secret_reads import SecretReads
from brokerd_operator.sources.shutdown import Shutdown
from brokerd_operator.sources.watched_namespaces import WatchedNamespaces

from tests.operator.resources import resource

NAME = "r-watched"
NOW = "2026-01-01T00:00:00Z"


class Answers(Api):
    """Objects by path, with versions; `refused` has paths that are forbidden."""

    def __init__(self) -> None:
        self.objects: dict[str, Json] = {}
        self.refused: set[str] = set()
        self.conflicts = 0
        self.made: list[Json] = []
        self.listed: list[Any] = []

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Any = None,
        content_type: str = "application/json",
    ) -> Json:
        if path in self.refused:
            raise ApiError(403, "forbidden")
        if method == "POST":
            self.made.append(body)
            return dict(body)
        if path not in self.objects:
            if self.listed and method == "GET":
                answer = self.listed.pop(0)
                if isinstance(answer, ApiError):
                    raise answer
                return dict(answer)
            raise ApiError(404, "not found")
        if method == "PATCH":
            if self.conflicts:
                self.conflicts -= 1
                raise ApiError(409, "changed")
            self.objects[path]["metadata"] |= body["metadata"]
        return copy.deepcopy(self.objects[path])

    def binding(self, namespace: str, **metadata: Any) -> str:
        path = path_of(RBAC, "RoleBinding", namespace, NAME)
        self.objects[path] = {"metadata": {"name": NAME, "resourceVersion": "1", **metadata}}
        return path

    def namespace(self, name: str, **metadata: Any) -> None:
        self.objects[path_of("v1", "Namespace", "", name)] = {"metadata": metadata}

    def finalizers(self, path: str) -> list[str]:
        return list(self.objects[path]["metadata"].get("finalizers") or ())


async def _nothing(namespace: str) -> None:
    pass


def _store(api: Api, *watched: str) -> KubernetesStore:
    reads = SecretReads(api)
    return KubernetesStore(
        api, lambda body: None, lambda key, version: None, watched, _nothing, reads
    )


async def test_binding_is_held_once_and_keeps_the_finalizers_of_others() -> None:
    api = Answers()
    path = api.binding("shop", finalizers=["x/y"])
    api.conflicts = 2
    rights = Rights(api, NAME, ("shop",))
    await rights.hold("shop")
    assert api.finalizers(path) == ["x/y", FINALIZER]
    api.objects.clear()
    await rights.hold("shop")
    path = api.binding("shop")
    rights.forget("shop")
    await rights.hold("shop")
    assert api.finalizers(path) == [FINALIZER]
    await rights.release("shop")
    assert api.finalizers(path) == []


async def test_binding_that_is_not_ours_to_keep_stops_nobody() -> None:
    api = Answers()
    await Rights(api, NAME, ("shop",)).hold("shop")
    path = api.binding("shop", deletionTimestamp=NOW)
    await Rights(api, NAME, ("shop",)).hold("shop")
    await Rights(api, "", ("shop",)).hold("shop")
    await Rights(api, NAME, ("other",)).hold("shop")
    assert api.finalizers(path) == []


async def test_refused_namespace_is_said_once_and_the_others_count() -> None:
    api = Answers()
    store = _store(api, "a", "b")
    engine = Engine(store, None)  # type: ignore[arg-type]
    places = WatchedNamespaces(api, engine, store, ("a", "b"), ("own", "lease"))
    for _ in range(3):
        await places.is_refused("a", "forbidden")
    assert not engine.is_synced.is_set(), "nothing is known of b yet"
    assert not store.is_watched("a")
    assert store.is_watched("b")
    await places.is_back("b")
    assert engine.is_synced.is_set()
    assert b'namespace_unavailable{namespace="a"} 1.0' in engine.metrics.render()
    engine.put({**resource("Queue", "q"), "metadata": {"name": "q", "namespace": "a"}})
    await engine.queue.get()
    await places.is_back("a")
    assert [event["reason"] for event in api.made] == ["NamespaceUnavailable", "NamespaceAvailable"]
    assert store.is_watched("a")
    assert b'namespace_unavailable{namespace="a"} 0.0' in engine.metrics.render()
    engine.queue.done(Key("Queue", "a", "q"))
    assert await engine.queue.get() == Key("Queue", "a", "q"), "its resources look again"


async def test_operator_that_can_read_no_namespace_is_not_ready() -> None:
    api = Answers()
    store = _store(api, "a")
    engine = Engine(store, None)  # type: ignore[arg-type]
    places = WatchedNamespaces(api, engine, store, ("a",), ("own", "lease"))
    await places.is_refused("a", "forbidden")
    assert not engine.is_synced.is_set()


async def test_namespace_is_asked_whether_it_ends() -> None:
    api = Answers()
    api.namespace("a")
    api.namespace("b", deletionTimestamp=NOW)
    api.refused.add(path_of("v1", "Namespace", "", "c"))
    store = _store(api, "a", "b", "c", "gone")
    found = [await store.is_namespace_terminating(name) for name in ("a", "b", "c", "gone")]
    assert found == [False, True, False, True]


async def test_listing_outlasts_passing_failures_and_begins_anew_when_it_is_too_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("brokerd_operator.sources.api.PAGE_RETRY_S", 0.0)
    api = Answers()
    first = {"items": [{"n": 1}], "metadata": {"continue": "more"}}
    last = {"items": [{"n": 2}], "metadata": {"resourceVersion": "7"}}
    api.listed = [ApiError(503, ""), ApiError(429, ""), first, ApiError(410, ""), first, last]
    assert await api.list("/x") == ([{"n": 1}, {"n": 2}], "7")
    api.listed = [ApiError(403, "no")]
    with pytest.raises(ApiError, match="no"):
        await api.list("/x")


async def test_conflict_of_a_status_is_tried_again_and_a_resource_made_anew_is_let_be() -> None:
    from brokerd_operator.engine.ports import Gone

    api = Answers()
    store = _store(api, "a")
    body = {**resource("Queue", "q"), "metadata": {"name": "q", "namespace": "a", "uid": "u"}}
    path = path_of("brokerd.io/v1alpha1", "Queue", "a", "q")
    api.objects[path] = copy.deepcopy(body)
    api.objects[f"{path}/status"] = copy.deepcopy(body)
    api.conflicts = 1
    with pytest.raises(ApiError):
        await store.write_status(body, {"x": 1})
    api.conflicts = 1
    api.objects[path]["metadata"]["uid"] = "other"
    with pytest.raises(Gone):
        await store.write_status(body, {"x": 1})


@pytest.mark.parametrize("is_namespace_ending", [False, True])
async def test_operator_that_ends_lets_go_of_rights_that_are_taken_away_and_of_no_others(
    is_namespace_ending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "BINDINGS_S", 0.2)
    monkeypatch.setattr(shutdown, "BINDINGS_PAUSE_S", 0.01)
    api = Answers()
    api.namespace("own")
    api.namespace("stays")
    ends = {"deletionTimestamp": NOW} if is_namespace_ending else {}
    api.namespace("a", **ends)
    taken = api.binding("a", finalizers=[FINALIZER], deletionTimestamp=NOW)
    kept = api.binding("stays", finalizers=[FINALIZER])
    rights = Rights(api, NAME, ("a", "stays"))
    store = _store(api, "own", "a", "stays")
    await Shutdown(api, store, rights, "own", ("a", "stays")).run()
    # Where the namespace ends, the next operator needs the rights.
    assert api.finalizers(taken) == ([FINALIZER] if is_namespace_ending else [])
    assert api.finalizers(kept) == [FINALIZER]
