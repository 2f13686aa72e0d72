"""One of values that are equal: ten thousand queues have the same options.  PURE.

Code that keeps such values for as long as a queue lives asks for the one that is kept already.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)

#: Different values of which one copy each is kept.
INTERNED_MAX = 1_000


class Interner(Generic[T]):
    """State: the values that were asked for, up to INTERNED_MAX."""

    def __init__(self) -> None:
        self._kept: dict[T, T] = {}

    def intern(self, value: T) -> T:
        """Return what is equal to it and was asked for before, or the value."""
        kept = self._kept
        if len(kept) >= INTERNED_MAX and value not in kept:
            kept.clear()
        return kept.setdefault(value, value)
