"""A queue of the simulation, as the catalog would describe it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

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


def with_letters(
    options: QueueOptions, limit: int | None, count_mode: str, is_default: bool
) -> QueueOptions:
    """Return the options of a queue whose letters go to another one at least once."""
    return replace(
        options,
        dead_letter_exchange="dlx",
        at_least_once=True,
        overflow="reject-publish",
        delivery_limit=limit,
        delivery_count_mode="failures" if is_default else count_mode,
        delivery_limit_is_default=is_default,
    )
