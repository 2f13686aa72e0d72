"""What holds for all tests: Hypothesis measures no time, which on a loaded machine means nothing.

How long a test may take altogether is pytest's time-out (pyproject.toml).  The profile `ci` takes
the same examples each time (`.ci/run`).
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("brokerd", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("brokerd"), derandomize=True, database=None)
settings.load_profile("brokerd")
