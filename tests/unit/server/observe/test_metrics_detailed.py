"""What a query of /metrics/detailed asks for, and names in its answer; who holds its answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from brokerd.server.observe import health
from brokerd.server.observe.metrics_detailed import ASKED_MAX, Asked, asked, labels


def test_unknown_families_give_nothing_and_too_many_are_refused() -> None:
    wanted = asked(["queue_metrics", "queue_metrics", "no_such"], ["/", "v"])
    assert wanted == Asked(frozenset({"queue_metrics"}), frozenset({"/", "v"}))
    assert [wanted.has(vhost) for vhost in ("/", "v", "w")] == [True, True, False]
    everywhere = asked([], [])
    assert everywhere is not None
    assert everywhere.has("w")
    assert asked(["a"] * (ASKED_MAX + 1), []) is None
    assert asked([], ["v"] * (ASKED_MAX + 1)) is None


def test_names_of_any_kind_can_be_read_back_and_stay_apart() -> None:
    names = ['"', "\\", "a\nb", "\\n", "}", "ü", "\udcff", "\udcfe", "x" * 255, ""]
    lines = [f"m{{{labels(vhost='/', queue=name)}}} 1\n" for name in names]
    [family] = text_string_to_metric_families("# TYPE m gauge\n" + "".join(lines))
    read = [sample.labels["queue"] for sample in family.samples]
    assert len(set(read)) == len(names)
    assert read[:6] == names[:6]
    assert read[6:8] == ["\\xff", "\\xfe"]


async def test_equal_requests_share_a_rendering_and_others_wait_for_it(tmp_path: Path) -> None:
    rendered: list[Asked] = []
    running = 0
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def detailed(wanted: Asked) -> bytes:
        nonlocal running
        running += 1
        assert running == 1
        begun.set()
        await go_on.wait()
        running -= 1
        rendered.append(wanted)
        return b"text\n"

    async def metrics() -> bytes:
        return b""

    app = health.make_app(health.HealthState(), health.Pages(metrics, detailed), tmp_path)
    async with TestClient(TestServer(app)) as client:
        paths = ["?family=queue_metrics", "?family=queue_metrics&family=x", "?vhost=v"]
        answers = [asyncio.create_task(client.get(f"/metrics/detailed{path}")) for path in paths]
        await begun.wait()
        go_on.set()
        for answer in answers:
            response = await answer
            assert (response.status, await response.text()) == (200, "text\n")
            assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert len(rendered) == 2
        too_much = "&".join(f"vhost={n}" for n in range(ASKED_MAX + 1))
        assert (await client.get(f"/metrics/detailed?{too_much}")).status == 400


async def test_who_comes_while_too_much_waits_is_told_so() -> None:
    async def detailed(_: Asked) -> bytes:
        return b"x" * 10

    answers = health._Detailed(detailed)
    answers._held_bytes = health.ANSWERS_BYTES_MAX + 1
    app = web.Application()
    app.router.add_get("/", answers.answer)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/")).status == 503
        answers._held_bytes = 0
        assert await (await client.get("/")).read() == b"x" * 10
        assert answers._held_bytes == 0
