"""What a seed of the cluster world stands for: the faults of the broker world, and what is done to
members, disks and queues.  For world.py.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.simulation.broker.scenario import _QUIET, Scenario

#: Members of most seeds.
MEMBERS_MAX = 5


@dataclass(slots=True)
class ClusterScenario(Scenario):
    """What a seed stands for."""

    #: Nodes join that were no members before.
    joins: bool = False
    #: Members are taken out of the cluster, and may come back as new ones.
    leaves: bool = False
    #: The victim's disk is replaced by an empty one.
    wipes: bool = False
    #: Replicas are moved by hand.
    moves: bool = False
    #: Queues come and go.
    declares: bool = False
    #: A policy says how many members queues have.
    target_size: int = 0
    #: Members rest, leaders are spread.
    rests: bool = False
    #: A queue fills and is emptied at the end only.
    keeps: bool = False
    #: A queue of one member, whose group takes few commands at once.
    classic: bool = False
    #: The way of dead letters is missing for a while.
    unbinds: bool = False
    founders: int = 3
    #: Members run on so many hosts, in so many zones; 0: nobody says where.
    hosts: int = 0
    zones: int = 0
    #: How many replicas queues have, by turns; none: the default.
    sizes: tuple[int, ...] = ()
    #: Nodes join several at a time, and in the end all have.
    grows: bool = False
    #: From when on things go wrong.
    calm_ms: int = 2_000

    @classmethod
    def of_seed(cls, rng: random.Random, profile: str | None) -> ClusterScenario:
        """Draw a scenario; `profile` names one of PROFILES instead of the drawn one."""
        drawn = asdict(Scenario.of_seed(rng, "mixed"))
        scenario = cls(
            **drawn
            | {
                "node_count": MEMBERS_MAX,
                "chaos_ms": rng.randrange(4_000, 10_000),
                # The real membership of groups takes back what is done to groups behind it.
                "membership": False,
                "delay_ms_max": rng.choice((1.0, 5.0, 5.0, 40.0)),
            },
            joins=rng.random() < 0.3,
            leaves=rng.random() < 0.3,
            wipes=rng.random() < 0.6,
            founders=rng.choice((3, 5)),
            moves=rng.random() < 0.5,
            declares=rng.random() < 0.3,
            target_size=rng.choice((0, 0, 4)),
            rests=rng.random() < 0.4,
            keeps=rng.random() < 0.3,
            unbinds=rng.random() < 0.3,
            calm_ms=rng.choice((300, 2_000, 2_000)),
        )
        scenario = replace(scenario, **PROFILES[profile or "mixed"])
        if scenario.zones:
            scenario.hosts = rng.choice((9, 15, 30))
            scenario.founders = rng.choice((3, 9, 15))
        elif scenario.joins or scenario.leaves:
            # The disk of who joins is as new as one that was replaced, and has no vote until it is
            # filled, from start to start: with another one that is lost or decays it would be more
            # than a minority of what is promised (G8).  Among many members they only learn the
            # catalog, and hold few of the queues.
            scenario.wipes = scenario.bit_flips = False
        return scenario


_CALM: dict[str, Any] = _QUIET | {
    "joins": False,
    "leaves": False,
    "wipes": False,
    "moves": False,
    "declares": False,
    "target_size": 0,
    "rests": False,
    "founders": 3,
    "keeps": False,
    "unbinds": False,
    "delay_ms_max": 5.0,
    "sync_ms_max": 4.0,
}
PROFILES: dict[str, dict[str, Any]] = {
    "mixed": {},
    #: Nothing goes wrong, and all that people do is done.
    "fair": _CALM | {"joins": True, "moves": True, "declares": True, "rests": True, "leaves": True},
    #: Nodes join, members leave and come back, some of them in the middle of a crash.
    "comings": _CALM
    | {"joins": True, "leaves": True, "crashes": True, "partitions": True, "moves": True},
    #: Nodes join while clients declare their queues.
    "scaling": _CALM | {"joins": True, "declares": True, "calm_ms": 300, "queue_count": 3},
    #: One member's disk is lost, early and late.
    "wiped": _CALM
    | {"wipes": True, "crashes": True, "partitions": True, "transfers": True, "calm_ms": 300},
    #: One member's disk decays.
    "decay": _CALM
    | {
        "bit_flips": True,
        "crashes": True,
        "snapshot_entries": 5,
        "sync_ms_max": 0.5,
        "haste": 4,
        "keeps": True,
    },
    #: Disks do not answer for a while, early and late: others lead (ADR 68).
    "stalls": _CALM | {"disk_stalls": True, "crashes": True, "transfers": True, "rests": True},
    #: Replicas move all the time.
    "moves": _CALM
    | {"joins": True, "moves": True, "declares": True, "crashes": True, "target_size": 4},
    #: Members rest while others crash: leaders go elsewhere, dead letters with them.
    "rests": _CALM
    | {
        "rests": True,
        "transfers": True,
        "dead_letters": True,
        "unbinds": True,
        "declares": True,
        "crashes": True,
    },
    #: Thirty members, of which seven vote in the catalog (ADR 44): they come several at a time, on
    #: hosts in three zones, and one that votes is lost.
    "many": _CALM
    | {
        "node_count": 30,
        "zones": 3,
        "sizes": (3, 5),
        "grows": True,
        "queue_count": 4,
        "chaos_ms": 5_000,
        "calm_ms": 1_500,
        "joins": True,
        "leaves": True,
        "wipes": True,
        "moves": True,
        "declares": True,
        "rests": True,
        "crashes": True,
        "partitions": True,
        "transfers": True,
    },
    #: A queue of one member, where no other leader makes good what this one forgot to tell.
    "classic": _CALM
    | {
        "classic": True,
        "crashes": True,
        "channel_ends": 0.05,
        "queue_count": 1,
        "dead_letters": False,
        "window": 16,
        "haste": 4,
        "chaos_ms": 6_000,
    },
}
