"""The report's pictures say what the rows say, whatever names and figures they bear."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from datetime import UTC, datetime, timedelta
from typing import Any

from brokerd_telemetry import pictures

BEGIN = datetime(2026, 11, 20, 14, tzinfo=UTC)
BEGIN_S = BEGIN.timestamp()
HOSTILE = "</title><script>alert(1)</script>\"'&"


def drawn(text: str) -> list[ElementTree.Element]:
    """Parse the figures: what is not escaped is no XML."""
    return list(ElementTree.fromstring(f"<div>{text}</div>"))


def link(minute: int, state: str = "running", is_stuck: bool = False, **row: Any) -> dict[str, Any]:
    base = {
        "window_start": BEGIN + timedelta(minutes=minute), "link": "l", "state_last": state,
        "is_stuck": is_stuck, "err_last": "", "running_pct": 100.0 if state == "running" else 0.0,
    }  # fmt: skip
    return base | row


def episode(start_s: float, end_s: float) -> dict[str, Any]:
    return {"node": "n0", "start_us": (BEGIN_S + start_s) * 1e6, "end_us": (BEGIN_S + end_s) * 1e6,
            "duration_s": end_s - start_s}  # fmt: skip


def forecast(queue: str = "q", ttf_s: float = 1800.0, **row: Any) -> dict[str, Any]:
    base = {"cluster": "c", "vhost": "/", "queue": queue, "window_start": BEGIN, "max_len": 100,
            "level": 50, "ttf_s": ttf_s, "ttf_lo_s": ttf_s / 2, "ttf_hi_s": ttf_s * 2}  # fmt: skip
    return base | row


def minutes(queue: str = "q") -> list[dict[str, Any]]:
    return [
        {"cluster": "c", "vhost": "/", "queue": queue, "ready_last": number,
         "window_start": BEGIN + timedelta(minutes=number)}
        for number in range(60)
    ]  # fmt: skip


def test_rows_join_what_lasts_and_put_trouble_first() -> None:
    blocked = {"user": "web", "cause": "memory", "spans": [
        {"start_us": (BEGIN_S + 60) * 1e6, "end_us": (BEGIN_S + 90) * 1e6, "conn": "c1",
         "blocked_ms": 30_000}]}  # fmt: skip
    rows = [link(number * 5) for number in range(12)]
    rows += [link(number * 5, "error", True, link="m", err_last="refused") for number in range(6)]
    found = pictures.timeline_rows([episode(10, 20)], [blocked], rows)
    assert [row.name for row in found] == ["blocked: web", "link m", "memory of n0", "link l"]
    (figure,) = drawn(pictures.bands(found, BEGIN_S, BEGIN_S + 3600))
    bands = [
        rect.get("class") for rect in figure.iter("rect") if rect.get("class") != "timeline-row"
    ]
    assert bands == ["warn", "bad", "bad", "good"]
    texts = " ".join(figure.itertext())
    assert "link m, 14:00 to 14:30: stuck, error: refused" in texts


def test_without_anything_there_is_no_picture() -> None:
    assert pictures.bands(pictures.timeline_rows([], [], []), 0, 1) == ""
    assert pictures.bands([pictures.TimelineRow("x")], 5, 5) == ""
    assert pictures.depths(lambda _: [], [forecast()], BEGIN_S + 3600) == ""
    assert pictures.sankey({}) == ""


def test_only_what_is_forecast_now_is_drawn_and_the_soonest_first() -> None:
    names = [f"q{number}" for number in range(pictures.DEPTHS_MAX + 3)]
    told = [row for name in names for row in minutes(name)]
    due = [forecast(name, 9000.0 - number * 60) for number, name in enumerate(names)]
    old = [forecast("q0", 1.0, window_start=BEGIN - timedelta(hours=1))]
    later = [forecast("q1", pictures.HORIZON_S)]
    figures = drawn(pictures.depths(lambda _: told, [*due, *old, *later], BEGIN_S + 3600))
    names = [re.sub(" in .*", "", "".join(f.find("figcaption").itertext())) for f in figures]  # type: ignore[union-attr]
    assert names == [f"q{number}" for number in range(8, 2, -1)]


def test_odd_figures_of_forecasts_stay_within_the_picture() -> None:
    for row in (
        forecast(ttf_s=0.0),
        forecast(level=500),
        forecast(max_len=0, level=0),
        forecast(max_len=10**18),
        forecast(ttf_s=1e-9, ttf_hi_s=1e9),
    ):
        text = pictures.depths(lambda _: minutes(), [row], BEGIN_S + 3600)
        (figure,) = drawn(text)
        assert "nan" not in text
        for line in figure.iter("polyline"):
            for point in (line.get("points") or "").split():
                x, y = map(float, point.split(","))
                assert 0 <= x <= pictures.WIDTH
                assert 0 <= y <= 150


def test_every_letter_is_in_the_flow_once() -> None:
    graph = [
        {"queue": "a", "reason": "rejected", "target": "dead", "n": 70},
        {"queue": "a", "reason": "rejected", "target": "copy", "n": 70},
    ]
    letters = [
        {"queue": "a", "reason": "rejected", "outcome": "routed", "dlx": "x", "n": 70},
        {"queue": "b", "reason": "expired", "outcome": "routed", "dlx": "x", "n": 5},
        {"queue": "b", "reason": "maxlen", "outcome": "dropped_no_dlx", "dlx": None, "n": 9},
        {"queue": "b", "reason": "maxlen", "outcome": "dlx_missing", "dlx": "y", "n": 3},
    ]
    found = pictures.flows(letters, graph)
    assert found == {
        ("a", "rejected", "→ dead"): 70,
        ("a", "rejected", "→ copy"): 70,
        ("b", "maxlen", "dropped_no_dlx"): 9,
        ("b", "expired", "→ exchange x"): 5,
        ("b", "maxlen", "dlx_missing"): 3,
    }
    (figure,) = drawn(pictures.sankey(found))
    assert [path.get("class") for path in figure.iter("path")] == [
        *("good",) * 4, *("warn",) * 2, *("good",) * 2, *("bad",) * 2,
    ]  # fmt: skip


def test_thousands_of_names_and_hostile_ones_make_small_sound_pictures() -> None:
    letters = [
        {"queue": f"{HOSTILE}{number}", "reason": HOSTILE, "outcome": HOSTILE, "dlx": HOSTILE,
         "n": number}
        for number in range(5000)
    ]  # fmt: skip
    flows = pictures.flows(letters, [])
    assert sum(flows.values()) == sum(range(5000))
    rows = [
        link(5 * minute, link=f"{HOSTILE}{number}", err_last=HOSTILE, is_stuck=bool(minute % 2))
        for number in range(200)
        for minute in range(50)
    ]
    bands = pictures.bands(pictures.timeline_rows([], [], rows), BEGIN_S, BEGIN_S + 86_400)
    told = [{**row, "queue": HOSTILE} for row in minutes()]
    depth = pictures.depths(lambda _: told, [forecast(HOSTILE)], BEGIN_S + 3600)
    whole = pictures.sankey(flows) + bands + depth
    assert len(drawn(whole)) == 3
    assert "<script" not in whole
    assert len(whole) < 1_000_000
