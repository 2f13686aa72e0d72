"""What a fuzz target is.  Used by the modules that define targets, and by who runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Target:
    """A decoder under fuzzing; `run` raises when something is wrong."""

    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    #: Longer inputs teach nothing more.
    bytes_max: int = 4096
