"""One short chaos run of real members in network namespaces: the CI row of the matrix.

`make chaos-nightly` runs all families; docs/reliability.md has its figures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos import network
from tests.chaos.scenario import Plan, run

SEED = 5
#: One fault of 15 s, and what is before and after it.
SECONDS = 12.0
#: Gentle: other tests may run beside it.
RATE = 25.0


@pytest.mark.slow
@pytest.mark.timeout(800)
def test_a_member_that_is_cut_off_costs_no_confirmed_message(tmp_path: Path) -> None:
    """G1 to G4, G6, G9: a partition under load with dead letters, then everything is drained."""
    lines: list[str] = []
    try:
        result = run(Plan("brokerd", "random-node", 3, SECONDS, SEED, RATE), lines.append, tmp_path)
    except network.NoNamespaces as error:
        # Without root nothing can be cut, but a member can be killed.
        lines.append(str(error))
        result = run(Plan("brokerd", "kill", 3, SECONDS, SEED, RATE), lines.append, tmp_path)
    verdict = result.verdict
    told = (result.row(), lines)
    assert verdict.violations == [], told
    assert result.faults
    assert verdict.confirmed > 100
    assert verdict.dead_lettered > 0
    assert verdict.looked_for > 0
