"""What a seed of the broker world stands for: how large, how bad, which faults.  For world.py."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any


@dataclass(slots=True)
class Scenario:
    """What a seed stands for."""

    node_count: int
    queue_count: int
    dead_letters: bool
    chaos_ms: int
    delay_ms_max: float
    sync_ms_max: float
    partitions: bool
    crashes: bool
    breaks: bool
    #: Streams that carry nothing in one direction for a while.
    mutes: bool
    slow_disks: bool
    disk_errors: bool
    bit_flips: bool
    transfers: bool
    membership: bool
    clock_jumps: bool
    channel_ends: float
    #: Chance of dying just after having confirmed something.
    crash_after_confirm: float
    delivery_limit: int | None
    snapshot_entries: int
    publisher_count: int
    window: int
    #: Clients are so many times as fast as they drew.
    haste: int
    #: So long a member gathers what its channels publish and acknowledge for one command (ADR 62,
    #: 65); 0: it sends one for each.
    turn_ms: int = 0
    #: Disks do not answer for a while.
    disk_stalls: bool = False
    #: Consumers grant credit, and are written late what comes (ADR 69).
    credit: bool = False
    #: The first queue has no consumers: jobs move what is in it to the second.
    jobs: bool = False

    @classmethod
    def of_seed(cls, rng: random.Random, profile: str | None) -> Scenario:
        """Draw a scenario; `profile` names one of PROFILES instead of the drawn one."""
        scenario = cls(
            node_count=rng.choice((3, 3, 3, 4)),
            queue_count=rng.choice((1, 1, 2)),
            dead_letters=rng.random() < 0.5,
            chaos_ms=rng.randrange(1_500, 4_000),
            delay_ms_max=rng.choice((1.0, 5.0, 40.0)),
            sync_ms_max=rng.choice((0.5, 4.0, 40.0)),
            partitions=rng.random() < 0.5,
            crashes=rng.random() < 0.8,
            breaks=rng.random() < 0.3,
            slow_disks=rng.random() < 0.3,
            disk_errors=rng.random() < 0.3,
            bit_flips=rng.random() < 0.3,
            transfers=rng.random() < 0.3,
            membership=rng.random() < 0.25,
            clock_jumps=rng.random() < 0.2,
            channel_ends=rng.choice((0.0, 0.0, 0.03)),
            crash_after_confirm=rng.choice((0.0, 0.0, 0.03)),
            delivery_limit=rng.choice((2, 5)),
            snapshot_entries=rng.choice((5, 20, 4096)),
            publisher_count=rng.choice((1, 2)),
            window=rng.choice((1, 16)),
            haste=1,
            mutes=rng.random() < 0.3,
        )
        # A draw that leaves those behind it as they were before there was this one.
        state = rng.getstate()
        scenario.turn_ms = rng.choice((0, 30, 150))
        scenario.disk_stalls = rng.random() < 0.2
        rng.setstate(state)
        if scenario.turn_ms:
            scenario.publisher_count += 2
        return replace(scenario, **PROFILES[profile or "mixed"])


_QUIET: dict[str, Any] = {
    "partitions": False,
    "crashes": False,
    "breaks": False,
    "mutes": False,
    "slow_disks": False,
    "disk_errors": False,
    "disk_stalls": False,
    "bit_flips": False,
    "transfers": False,
    "membership": False,
    "clock_jumps": False,
    "channel_ends": 0.0,
    "crash_after_confirm": 0.0,
}
PROFILES: dict[str, dict[str, Any]] = {
    "mixed": {},
    #: Nothing goes wrong.
    "fair": _QUIET,
    #: Power cuts and little else: what the log promises.
    "power": _QUIET | {"crashes": True, "crash_after_confirm": 0.1, "sync_ms_max": 4.0},
    #: One member's disk decays.
    "decay": _QUIET | {"crashes": True, "bit_flips": True, "snapshot_entries": 5},
    #: One member's disk lies (lies.py), as it may in every profile but the one above.
    "lies": _QUIET | {"transfers": True, "chaos_ms": 6_000, "sync_ms_max": 4.0},
    #: Members miss so much that they need a snapshot, and others crash.
    "lag": _QUIET
    | {
        "crashes": True,
        "partitions": True,
        "snapshot_entries": 5,
        "window": 16,
        "delay_ms_max": 1.0,
        "sync_ms_max": 0.5,
    },
    #: Deliveries are under way when leaders and streams end.
    "order": _QUIET
    | {
        "crashes": True,
        "transfers": True,
        "breaks": True,
        "mutes": True,
        "delay_ms_max": 40.0,
        "sync_ms_max": 0.5,
        "queue_count": 1,
        "dead_letters": False,
        "publisher_count": 2,
        "window": 16,
        "haste": 4,
    },
    #: Commands arrive and their answers do not, so that they come again.
    "answers": _QUIET
    | {
        "mutes": True,
        "transfers": True,
        "channel_ends": 0.05,
        "delay_ms_max": 5.0,
        "sync_ms_max": 4.0,
        "queue_count": 1,
        "window": 16,
        "haste": 4,
    },
    #: Members come and go.
    "members": _QUIET | {"membership": True, "crashes": True, "partitions": True, "node_count": 4},
    #: Disks do not answer for a while: leaders go on by their followers' (ADR 68).
    "stalls": _QUIET
    | {"disk_stalls": True, "transfers": True, "crashes": True, "sync_ms_max": 4.0},
    #: Consumers and their members die.
    "consumers": _QUIET
    | {"crashes": True, "channel_ends": 0.05, "dead_letters": True, "transfers": True},
    #: Leaders and streams end while jobs take messages from one queue to another.
    "jobs": _QUIET
    | {
        "jobs": True,
        "crashes": True,
        "transfers": True,
        "breaks": True,
        "mutes": True,
        "queue_count": 2,
        "dead_letters": False,
        "delay_ms_max": 5.0,
        "sync_ms_max": 4.0,
        "haste": 4,
    },
    #: Consumers go that have not been written all that was taken out for them.
    "credit": _QUIET
    | {
        "credit": True,
        "crashes": True,
        "transfers": True,
        "breaks": True,
        "channel_ends": 0.1,
        "dead_letters": True,
        "delay_ms_max": 5.0,
        "sync_ms_max": 4.0,
        "haste": 4,
    },
}
