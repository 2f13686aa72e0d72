"""Long steps tell how far they are, from the first one that takes long."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from brokerd_telemetry import progress, sources, verify

from tests.telemetry import fleet


def test_it_is_told_while_the_step_goes_on_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "EVERY_S", 0.001)
    said: list[str] = []
    twice = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            twice.set()

    def step() -> None:
        with progress.reported(say, lambda: "half"):
            assert twice.wait(10)
            raise ValueError("the step's own")

    with pytest.raises(ValueError, match="the step's"):
        step()
    count = len(said)
    assert set(said) == {"half"}
    assert not [thread for thread in threading.enumerate() if "progress" in thread.name]
    assert len(said) == count


def test_each_segment_that_is_read_is_heard_of(tmp_path: Path) -> None:
    fleet.make(tmp_path, 3)
    raw = tmp_path / "raw" / "v1"
    paths = sources.listed(raw)
    torn = paths[0].replace(".jsonl.gz", "x.jsonl.gz")
    (raw / paths[1]).write_bytes(b"torn")
    heard: list[str] = []
    verify.judge(raw, [*paths, torn], {}, None, heard.append)
    assert heard == sorted(paths)
