"""kill -9 of a real writer process: see wal_kill.py (more rounds: `python -m` it)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration import wal_kill

#: design/replication.md §5, the column of every CI run.
ROUNDS = 50


@pytest.mark.timeout(600)
def test_everything_synced_survives_kill_9(tmp_path: Path) -> None:
    synced = wal_kill.run(tmp_path, ROUNDS)
    assert min(synced.values()) > ROUNDS
