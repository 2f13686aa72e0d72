"""The most frequent keys of a stream in bounded space (space-saving; Metwally et al., 2005).

For routing keys of unroutable messages (design/telemetry.md §6.6): a client may use a new key for
each message, and must not make the member remember them all.  Pure; used by the counters.
"""

from __future__ import annotations

#: design/telemetry.md §6.6.
KEYS_MAX = 20
KEY_CHARS_MAX = 128


class TopKeys:
    """Counts of at most KEYS_MAX keys.

    A key's count is too high by at most its error; the sum of all counts is the number of adds.
    """

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}

    def add(self, key: str) -> None:
        """Count one; a key that is new and finds no room takes over the rarest one's count."""
        key = key[:KEY_CHARS_MAX]
        entry = self._counts.get(key)
        if entry is not None:
            entry[0] += 1
        elif len(self._counts) < KEYS_MAX:
            self._counts[key] = [1, 0]
        else:
            rarest = min(self._counts, key=lambda name: self._counts[name][0])
            count = self._counts.pop(rarest)[0]
            self._counts[key] = [count + 1, count]

    def rows(self) -> list[tuple[str, int, int]]:
        """Return (key, count, error), the most frequent first."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1][0], item[0]))
        return [(key, count, error) for key, (count, error) in ordered]
