"""Who fights over an object: repairs per resource in a window of time (design/operator.md §8)."""

from __future__ import annotations

from collections import deque

from brokerd_operator.engine.keys import Key

#: More repairs than this in the window: two writers.
REPAIRS_MAX = 5
WINDOW_S = 60.0
#: How long the operator then leaves it.
REST_S = 300.0


class DriftWatch:
    """Owns the times of recent repairs."""

    def __init__(self) -> None:
        self._repairs: dict[Key, deque[float]] = {}
        self._resting: dict[Key, tuple[float, int]] = {}

    def repaired(self, key: Key, generation: int, now: float) -> None:
        times = self._repairs.setdefault(key, deque(maxlen=REPAIRS_MAX + 1))
        times.append(now)
        if len(times) > REPAIRS_MAX and now - times[0] <= WINDOW_S:
            self._resting[key] = (now + REST_S, generation)
            times.clear()

    def rest_s(self, key: Key, generation: int, now: float) -> float:
        """Seconds that the resource is still left alone; a new generation ends the rest."""
        until, of_generation = self._resting.get(key, (0.0, 0))
        if until <= now or of_generation != generation:
            self._resting.pop(key, None)
            return 0.0
        return until - now

    def forget(self, key: Key) -> None:
        self._repairs.pop(key, None)
        self._resting.pop(key, None)
