"""Watches over a real HTTP server that says what a test makes it say; the API server itself is in
test_operator_api.py and test_faults_api.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web
from brokerd_operator.sources import watch
from brokerd_operator.sources.api import Api, ApiError
from brokerd_operator.sources.watch import Watcher
from kubernetes.config import kube_config

PATH = "/apis/brokerd.io/v1alpha1/namespaces/shop/queues"


def event(type_: str, version: int, name: str = "q") -> bytes:
    body = {"metadata": {"name": name, "resourceVersion": str(version)}}
    return json.dumps({"type": type_, "object": body}).encode() + b"\n"


def status(code: int) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "message": "by the test", "reason": "Expired"}


class Server:
    """Answers one watch after the other with what `answers` has; then it says nothing more."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, list[bytes]]] = []
        self.asked: list[dict[str, str]] = []
        #: Whether the connection is cut when an answer was sent, or ended as watches end.
        self.is_cut = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        if not self.answers:
            await asyncio.Event().wait()
        code, parts = self.answers.pop(0)
        response = web.StreamResponse(status=code)
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        if self.is_cut and request.transport is not None:
            request.transport.abort()
        return response


@pytest_asyncio.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(watch, "RETRY_FIRST_S", 0.0)
    found = Server()
    app = web.Application()
    app.router.add_route("GET", "/{path:.*}", found.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    named = {"cluster": "c", "user": "u"}
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": named}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "a-token"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    yield found
    await runner.cleanup()


async def follow(wanted: int, version: str = "1") -> list[tuple[str, str]]:
    """The first events of a watch; raises what it raises."""
    seen: list[tuple[str, str]] = []
    is_enough = asyncio.Event()

    def told(type_: str, body: dict[str, Any]) -> None:
        seen.append((type_, body["metadata"]["resourceVersion"]))
        if len(seen) >= wanted:
            is_enough.set()

    api = Api()
    try:
        async with Watcher(api) as watcher:
            following = asyncio.create_task(watcher.follow(PATH, version, told))
            enough = asyncio.create_task(is_enough.wait())
            both: set[asyncio.Task[Any]] = {following, enough}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            for task in both:
                task.cancel()
            done, _ = await asyncio.wait(both)
            for task in done:
                if not task.cancelled():
                    task.result()
    finally:
        api.close()
    return seen


@pytest.mark.parametrize("is_cut", [False, True])
async def test_a_watch_that_ends_goes_on_behind_its_last_event(
    server: Server, is_cut: bool
) -> None:
    server.is_cut = is_cut
    server.answers = [(200, [event("ADDED", 5)]), (200, [event("MODIFIED", 6)])]
    assert await follow(2) == [("ADDED", "5"), ("MODIFIED", "6")]
    assert [asked["resourceVersion"] for asked in server.asked[:2]] == ["1", "5"]
    assert server.asked[0]["watch"] == "true"


async def test_a_bookmark_is_where_the_next_watch_begins_and_is_no_news(server: Server) -> None:
    server.answers = [(200, [event("BOOKMARK", 90)]), (200, [event("DELETED", 91)])]
    assert await follow(1) == [("DELETED", "91")]
    assert server.asked[1]["resourceVersion"] == "90"


async def test_an_event_that_comes_in_pieces_is_one(server: Server) -> None:
    line = event("ADDED", 5) + event("ADDED", 6)
    server.answers = [(200, [line[:1], line[1:30], line[30:]])]
    assert await follow(2) == [("ADDED", "5"), ("ADDED", "6")]


@pytest.mark.parametrize("rubbish", [b"no JSON\n", b"[]\n", b'{"type": "ADDED"}\n', b"null\n"])
async def test_after_an_event_that_is_none_the_watch_goes_on_where_it_was(
    server: Server, rubbish: bytes
) -> None:
    half = event("ADDED", 6)[:20]
    server.answers = [
        (200, [event("ADDED", 5), rubbish, event("ADDED", 9)]),
        (200, [half]),
        (200, [event("ADDED", 6)]),
    ]
    assert await follow(2) == [("ADDED", "5"), ("ADDED", "6")]
    assert [asked["resourceVersion"] for asked in server.asked[:3]] == ["1", "5", "5"]


async def test_an_event_without_an_end_is_not_kept(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LINE_MAX", 1000)
    server.answers = [(200, [b"x" * 2000, event("ADDED", 5)]), (200, [event("ADDED", 6)])]
    assert await follow(1) == [("ADDED", "6")]


@pytest.mark.parametrize("code", [429, 500, 503])
async def test_a_passing_refusal_is_tried_again(server: Server, code: int) -> None:
    told = json.dumps({"type": "ERROR", "object": status(code)}).encode() + b"\n"
    server.answers = [(code, [b"{}"]), (200, [told]), (200, [event("ADDED", 5)])]
    assert await follow(1) == [("ADDED", "5")]


@pytest.mark.parametrize("code", [401, 403, 404, 410])
@pytest.mark.parametrize("is_event", [False, True])
async def test_what_only_a_listing_can_mend_ends_the_watch(
    server: Server, code: int, is_event: bool
) -> None:
    said = json.dumps(status(code)).encode()
    told = b'{"type": "ERROR", "object": ' + said + b"}\n"
    server.answers = [(200, [told]) if is_event else (code, [said])]
    with pytest.raises(ApiError, match="by the test") as raised:
        await follow(1)
    assert raised.value.status == code


async def test_a_handler_that_fails_keeps_nobody_else_from_being_told(server: Server) -> None:
    seen: list[str] = []
    is_enough = asyncio.Event()

    def told(_: str, body: dict[str, Any]) -> None:
        if body["metadata"]["name"] == "odd":
            raise KeyError("odd")
        seen.append(body["metadata"]["name"])
        is_enough.set()

    server.answers = [(200, [event("ADDED", 5, "odd"), event("ADDED", 6, "even")])]
    api = Api()
    async with Watcher(api) as watcher:
        following = asyncio.create_task(watcher.follow(PATH, "", told))
        await is_enough.wait()
        following.cancel()
        await asyncio.wait([following])
    api.close()
    assert seen == ["even"]
    assert "resourceVersion" not in server.asked[0]
