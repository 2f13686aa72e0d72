"""The HTTP listener: what it says about requests that cannot be read, and what it holds."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMessage

from brokerd.server import http_server
from brokerd.server.http_server import HttpLimits, HttpServer, _OneLine
from tests.ports import free_ports


def complain(logger: logging.Logger, error: Exception) -> None:
    try:
        raise error
    except Exception:
        logger.exception("Error handling request from %s", "10.0.0.1")


def test_one_line_a_second_with_what_was_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(http_server.time, "monotonic", lambda: now)
    logger = logging.getLogger("tests.http")
    one_line = _OneLine()
    logger.addFilter(one_line)
    try:
        for _ in range(3):
            complain(logger, BadHttpMessage("Bad %s\nquote: \x1b[31m"))
        now += 1.0
        one_line.warn("too many connections from %s", "10.0.0.2")
        now += 1.0
        complain(logger, ValueError("ours"))
    finally:
        logger.removeFilter(one_line)
    first, second, third = caplog.records
    assert "10.0.0.1: " in first.getMessage()
    assert "\n" not in first.getMessage()
    assert "\x1b" not in first.getMessage()
    assert first.exc_info is None
    assert second.getMessage().endswith("from 10.0.0.2 (2 more since the last line)")
    assert third.exc_info is not None


async def test_of_a_stranger_little_is_held_however_much_it_sends() -> None:
    """SEC-33: what comes with a request head, before its sender is known, waits in the kernel."""
    asked, may_answer = asyncio.Event(), asyncio.Event()
    held: list[int] = []
    body = b"x" * (8 << 20)

    async def handler(request: web.Request) -> web.Response:
        connection = request[http_server.CONNECTION]
        asked.set()
        await may_answer.wait()
        held.append(request.content.total_bytes)
        connection.allow(len(body))
        return web.Response(text=str(len(await request.read())))

    app = web.Application(client_max_size=len(body) + 1)
    app.router.add_put("/", handler)
    server = HttpServer(app, HttpLimits(has_bodies=True))
    (port,) = free_ports(1)
    await server.start("127.0.0.1", port)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await asyncio.wait_for(asked.wait(), 30)
        # Whatever can be read is read in these turns of the loop.
        for _ in range(1000):
            await asyncio.sleep(0)
        may_answer.set()
        answer = await asyncio.wait_for(reader.readuntil(str(len(body)).encode()), 30)
        assert answer.startswith(b"HTTP/1.1 200")
        (size,) = held
        # Up to the head, and behind it.
        assert size <= 2 * (HttpLimits().unanswered_bytes_max + http_server.STRANGER_READ_BYTES)
        writer.close()
    finally:
        await server.cleanup()


async def test_an_answer_arrives_though_nobody_wants_the_body() -> None:
    """Somebody whose password is wrong sends his definitions: he is to read why, not of a broken
    pipe.
    """

    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=401, text="no")

    app = web.Application()
    app.router.add_put("/", handler)
    server = HttpServer(app, HttpLimits(has_bodies=True))
    (port,) = free_ports(1)
    await server.start("127.0.0.1", port)
    body = b"x" * (8 << 20)
    try:
        for _ in range(5):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
            writer.write(head)
            # In pieces, as clients do: the answer is there before the last of them.
            for at in range(0, len(body), 1 << 20):
                writer.write(body[at : at + (1 << 20)])
                await writer.drain()
            answer = await asyncio.wait_for(reader.readuntil(b"no"), 30)
            assert answer.startswith(b"HTTP/1.1 401")
            writer.close()
    finally:
        await server.cleanup()


@pytest.mark.parametrize(
    "request_head", [b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/1.1\r\n\r\n"]
)
async def test_no_answer_tells_strangers_what_runs_here(request_head: bytes) -> None:
    """Not the one to a request that cannot be read, either: no handler sees it."""
    server = HttpServer(web.Application())
    (port,) = free_ports(1)
    await server.start("127.0.0.1", port)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_head)
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 30)
        assert b"\r\nServer: brokerd\r\n" in answer
        writer.close()
    finally:
        await server.cleanup()
