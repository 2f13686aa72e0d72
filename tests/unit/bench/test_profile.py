"""The stages of a profile are files of the broker: a move must not leave a stage without any."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.profile import STAGES

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("prefix", [each for each in STAGES if each.startswith("brokerd/")])
def test_stage_has_files(prefix: str) -> None:
    assert (ROOT / prefix).is_dir() or (ROOT / f"{prefix}.py").is_file()
