"""The short form of tests/integration/redrive_kills.py: `make redrive-nightly` has a million."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import redrive_kills


@pytest.mark.timeout(300)
def test_each_redriven_letter_has_one_fate_though_leaders_are_killed(tmp_path: Path) -> None:
    figures = redrive_kills.run(tmp_path, letters=10_000, every_s=2.0, kills_max=2, rate=1000)
    print(figures)
    assert figures.kills == 2
    assert all(figures.fates.values())
