"""Each scenario in this folder does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts.replica_health.runner import Transcript
from tests.transcripts.scenarios import assert_holds, found_in

SCENARIOS = found_in(__file__, at_least=6)


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(path: Path) -> None:
    assert_holds(path, Transcript())
