"""Secrets that are read by name, again and again: who is woken, and what is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.sources import secret_reads
from brokerd_operator.sources.api import Api, ApiError, Json
from brokerd_operator.sources.secret_reads import SecretReads

from tests.operator.resources import resource


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secret_reads, "PAUSE_S", 0.0)


class Answers(Api):
    """Versions of Secrets by path."""

    def __init__(self) -> None:
        self.versions: dict[str, str] = {}
        self.is_down = False
        self.asked: list[str] = []

    async def get(self, path: str) -> Json | None:
        self.asked.append(path)
        if self.is_down:
            raise ApiError(503, "not now")
        version = self.versions.get(path)
        return None if version is None else {"metadata": {"uid": "u", "resourceVersion": version}}


class Bench:
    """Reads, and whom they wake."""

    def __init__(self) -> None:
        self.api = Answers()
        self.woken: list[tuple[str, str, frozenset[str]]] = []
        self.unwanted: set[str] = set()
        self.reads = SecretReads(
            self.api,
            lambda *changed: self.woken.append(changed),
            lambda namespace, name, clusters: name not in self.unwanted,
        )


def path(name: str) -> str:
    return f"/api/v1/namespaces/shop/secrets/{name}"


async def test_what_was_read_is_looked_at_again_and_told_once_when_it_changes() -> None:
    """SEC-23: by name, with one request each."""
    bench = Bench()
    assert await bench.reads.get("shop", "web") is None
    await bench.reads.look()
    assert bench.woken == [], "it is as it was read"
    bench.api.versions[path("web")] = "1"
    for _ in range(2):
        await bench.reads.look()
    assert bench.woken == [("shop", "web", frozenset())], "made"
    bench.api.versions[path("web")] = "2"
    await bench.reads.look()
    del bench.api.versions[path("web")]
    await bench.reads.look()
    assert len(bench.woken) == 3, "changed, and gone"
    assert set(bench.api.asked) == {path("web")}


async def test_a_change_that_another_pass_reads_first_is_told_all_the_same() -> None:
    bench = Bench()
    await bench.reads.get("shop", "login", "orders")
    bench.api.versions[path("login")] = "1"
    await bench.reads.get("shop", "login")
    assert bench.woken == [("shop", "login", frozenset({"orders"}))]


async def test_what_nobody_needs_is_forgotten_and_no_answer_is_no_change() -> None:
    bench = Bench()
    bench.api.versions[path("web")] = "1"
    await bench.reads.get("shop", "web")
    bench.api.is_down = True
    await bench.reads.look()
    bench.api.is_down = False
    await bench.reads.look()
    assert bench.woken == []
    bench.unwanted.add("web")
    await bench.reads.look()
    asked = len(bench.api.asked)
    await bench.reads.look()
    assert len(bench.api.asked) == asked


async def test_the_rounds_go_on_by_themselves() -> None:
    bench, is_told = Bench(), asyncio.Event()
    reads = SecretReads(bench.api, lambda *_: is_told.set(), lambda *_: True, interval_s=0.0)
    await reads.get("shop", "web")
    task = asyncio.create_task(reads.follow())
    bench.api.versions[path("web")] = "1"
    async with asyncio.timeout(10):
        await is_told.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_operator_wakes_who_names_a_secret_and_the_cluster_that_made_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from brokerd_operator.app import Operator

    operator: Any = Operator.__new__(Operator)
    operator.engine = Engine(None, None)  # type: ignore[arg-type]

    class Store:
        def is_watched(self, namespace: str) -> bool:
            return namespace == "default"

    operator.store = Store()
    user = resource("User", "web", credentialsSecretRef={"name": "web-login"})
    cluster = resource("BrokerCluster", "orders")
    for body in (user, cluster):
        body["metadata"] |= {"uid": body["metadata"]["name"], "resourceVersion": "1"}
        operator.engine.put(body)
    nobody: frozenset[str] = frozenset()
    wanted = operator._is_secret_wanted
    assert wanted("default", "web-login", nobody)
    assert wanted("default", "orders-ca", frozenset({"orders"}))
    assert not wanted("default", "orders-ca", frozenset({"gone"}))
    assert not wanted("default", "other", nobody)
    assert not wanted("elsewhere", "web-login", nobody)
    woken: list[Key] = []
    monkeypatch.setattr(operator.engine, "wake", lambda keys: woken.extend(keys))
    operator._secret_changed("default", "web-login", nobody)
    operator._secret_changed("default", "orders-ca", frozenset({"orders", "gone"}))
    assert woken == [Key("User", "default", "web"), Key("BrokerCluster", "default", "orders")]
