"""What a queue's machine has answered, as its clients read it.  PURE."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Counts:
    """For declare-ok (R-Q-3)."""

    ready: int
    consumers: int
    #: Channels that hold messages of a quorum queue by basic.get or a consumer that is cancelled.
    holders: int = 0


@dataclass(slots=True, frozen=True)
class Deleted:
    """How the deletion of a queue went; not done: it is in use."""

    done: bool
    messages: int = 0
    consumers: int = 0
