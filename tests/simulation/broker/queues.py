"""A queue of the simulation, as the catalog would describe it."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerd.core.queue_options import QueueOptions


@dataclass(slots=True)
class SimQueue:
    """A quorum queue, as the catalog would describe it."""

    uid: int
    name: str
    founders: list[str]
    options: QueueOptions
    targets: tuple[int, ...] = ()
    vhost: str = "/"
    #: Who belongs to it now.
    members: list[str] = field(default_factory=list)
