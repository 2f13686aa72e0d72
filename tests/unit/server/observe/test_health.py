"""What a member serves of the telemetry job's results, beside its own metrics."""

from __future__ import annotations

from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer

from brokerd.server.observe import health
from brokerd.server.observe.metrics_detailed import Asked


async def test_the_figures_of_the_telemetry_job_can_be_scraped(tmp_path: Path) -> None:
    async def nothing() -> bytes:
        return b""

    async def detailed(_: Asked) -> bytes:
        return b""

    app = health.make_app(health.HealthState(), health.Pages(nothing, detailed), tmp_path)
    async with TestClient(TestServer(app)) as client:
        response = await client.get("/telemetry/metrics")
        assert (response.status, await response.text()) == (
            404,
            "no telemetry job has handed in figures yet\n",
        )
        text = "# TYPE broker_tele_run_seconds gauge\nbroker_tele_run_seconds 1.0\n"
        (tmp_path / "metrics.prom").write_text(text)
        response = await client.get("/telemetry/metrics")
        assert (response.status, await response.text()) == (200, text)
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
