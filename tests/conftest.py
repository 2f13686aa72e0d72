"""What holds for all tests: Hypothesis measures no time, which on a loaded machine means nothing;
with `BROKERD_COMPILED=1` (`make test-compiled`) the few that look into Python itself are left out.

How long a test may take altogether is pytest's time-out (pyproject.toml).  The profile `ci` takes
the same examples each time (`.ci/run`).
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

from brokerd import compiled

settings.register_profile("brokerd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("brokerd"), derandomize=True, database=None)
settings.load_profile("brokerd")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what only plain Python has where compiled rooms run."""
    if compiled.form() != "compiled":
        return
    # Taken out and not skipped: nobody can mend it, so nobody needs to read it in each run.
    items[:] = [item for item in items if not item.get_closest_marker("plain")]
