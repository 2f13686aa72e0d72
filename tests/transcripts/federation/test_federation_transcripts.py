"""Each scenario in this folder does what it says.

BROKERD_REWRITE_TRANSCRIPTS=1 writes down what really happens; read the difference before it is
committed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.transcripts.federation.runner import Transcript

SCENARIOS = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=[path.stem for path in SCENARIOS])
def test_scenario(path: Path) -> None:
    text = path.read_text()
    found = Transcript().run(text)
    if os.environ.get("BROKERD_REWRITE_TRANSCRIPTS"):
        path.write_text(found)
        return
    assert found == text


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 4
