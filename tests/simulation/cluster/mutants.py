"""Planted bugs of the rooms that keep a cluster together: the catalog, joining, members of groups,
refill, repair, placement of leaders, dead letters.

As in ../mutants.py and ../broker/mutants.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from brokerd.cluster.groups import formation, membership_steps, placement
from brokerd.cluster.groups.failure_domains import Domains
from brokerd.cluster.groups.formation import Course
from brokerd.core.catalog import catalog_commands
from brokerd.server.catalog import member_states
from brokerd.server.catalog.catalog_writer import CatalogWriter
from brokerd.server.catalog.topology import Placement
from brokerd.server.members import catalog_members, group_membership, repair
from brokerd.server.members.catalog_members import CatalogMembers
from brokerd.server.members.disk_watch import DiskWatch
from brokerd.server.members.group_membership import GroupMembership
from brokerd.server.members.joining import Joining
from brokerd.server.members.leadership import Leadership
from brokerd.server.members.refill import Refill
from brokerd.server.members.repair import Repair
from brokerd.server.messages.dead_letter_publisher import DeadLetterPublisher, Worker
from brokerd.server.queues.leaders import QueueLeaders
from tests.simulation.broker import mutants as broker_mutants
from tests.simulation.broker.mutants import Plant
from tests.simulation.cluster.world import ClusterWorld

# ---- the catalog --------------------------------------------------------------------------------


async def _answered_at_once(*_: Any) -> None:
    """Nobody waits until a change is applied."""


# ---- joining ------------------------------------------------------------------------------------

_course = formation.course


def _lone_founder(node: Any, founders: Any, has_data: bool, answers: Any) -> Course:
    """A founder with an empty disk founds a cluster though nobody else says that there is none."""
    found = _course(node, founders, has_data, answers)
    may_found = node in founders and not has_data
    return Course.FOUND if found is Course.WAIT and may_found else found


def _nothing(*_: Any) -> None:
    """What should be done is not."""


# ---- members ------------------------------------------------------------------------------------


def _ended_for_good(membership: GroupMembership, uid: int, _: str) -> None:
    """What cannot go on now is not looked at again."""
    membership._begin()


def _never_again(members: CatalogMembers, accepted: bool, *_: Any) -> None:
    """The first change of the catalog's group that is refused is the last one."""
    members._is_changing = not accepted


def _goes_at_once(members: CatalogMembers, node: Any) -> bool:
    """Who leaves is off the list while queues count on it."""
    return member_states.is_leaving(members._catalog.view, node)


def _one_place_fewer(view: Any, voters_max: int) -> bool:
    """Of many members none votes in the place of one that is lost, or in the last one."""
    staying = sum(voter in view.wanted for voter in view.configuration.voters)
    return staying < voters_max - (len(view.members) > voters_max)


def _nowhere(_: Any) -> Domains:
    """Nobody knows where members run."""
    return Domains({})


# ---- refill and repair --------------------------------------------------------------------------


_opened = Refill.opened


def _opened_of_old(refill: Refill, uid: int, member_count: int, since: int = 0) -> None:
    """A new disk is suspected in groups that came after it."""
    _opened(refill, uid, member_count)


def _none_left(_: Refill) -> list[int]:
    """All is refilled as soon as anybody asks."""
    return []


async def _leave_for_good(catalog: Any, _: Any, node: str, queue: Any) -> None:
    """A damaged replica goes, and does not come back."""
    await catalog.write(
        catalog_commands.want_queue_members(
            queue.vhost, queue.name, queue.uid, remove=[node], is_automatic=True
        )
    )


# ---- leaders ------------------------------------------------------------------------------------

_place = Placement.__init__


def _place_anywhere(chooser: Placement, cluster: Any) -> None:
    """Who rests gets new leaders."""
    _place(chooser, cluster)
    chooser._running |= member_states.resting(cluster.view)


def _place_on_newcomers(chooser: Placement, cluster: Any) -> None:
    """Who has never started gets new replicas as any other, as before they went to others first."""
    _place(chooser, cluster)
    chooser._running |= cluster.host.alive() - member_states.resting(cluster.view)


def _place_on_stalled(chooser: Placement, cluster: Any) -> None:
    """Who has a disk that does not answer gets new leaders."""
    _place(chooser, cluster)
    chooser._running |= {node for node in cluster.host.alive() if cluster.host.is_stalled(node)}


def _none_of_them(*_: Any, **__: Any) -> list[Any]:
    return []


# ---- dead letters -------------------------------------------------------------------------------


async def _drop_without_route(worker: Worker, letters: list[Any]) -> list[Any]:
    """What has no route counts as taken."""
    options = worker._queues.machine(worker._uid).options
    lost = [letter for letter in letters if not worker._addressed(letter, options).targets]
    if lost:
        ranges = [(letter.run.first, letter.run.first + 1) for letter in lost]
        await worker._client.settle_dead_letters(worker._uid, ranges)
    return await _round(worker, [letter for letter in letters if letter not in lost])


_round = Worker._round


def _propose_once(leaders: QueueLeaders, uid: int, command: bytes, *, first: bool = False) -> None:
    leaders._replicas.propose(uid, command, lambda *_: None, first=first)


#: Name -> what is replaced, the profile in which it shows soonest, and how many seeds it may take.
MUTANTS: dict[str, tuple[list[Plant], str, int]] = {
    "catalog-answers-before-applied": (
        [(CatalogWriter, "_wait_applied", _answered_at_once)],
        "fair",
        5,
    ),
    "catalog-asks-nobody": ([(CatalogWriter, "_applied_everywhere", _answered_at_once)], "fair", 5),
    "lone-founder": ([(formation, "course", _lone_founder)], "wiped", 60),
    "empty-disk-trusted": ([(Refill, "begin", _nothing)], "wiped", 30),
    "removal-unnoticed": ([(Joining, "watch", _nothing)], "comings", 60),
    "refill-counts-as-done": ([(Refill, "left", _none_left)], "wiped", 100),
    "groups-not-suspected": ([(Refill, "opened", _nothing)], "wiped", 30),
    "newcomers-suspect-new-queues": (
        [(Refill, "opened", _opened_of_old), (Placement, "__init__", _place_on_newcomers)],
        "scaling",
        40,
    ),
    "repair-never-acts": ([(Repair, "look", _nothing)], "decay", 60),
    "damaged-replica-goes-for-good": ([(repair, "renew_member", _leave_for_good)], "decay", 60),
    "membership-not-woken": ([(GroupMembership, "topology_changed", _nothing)], "fair", 10),
    # A turn that is over soon: in a long one all comes to its end.
    "membership-gives-up": (
        [(GroupMembership, "_ended", _ended_for_good), (group_membership, "TURN_S", 0.02)],
        "moves",
        5,
    ),
    "catalog-members-give-up": ([(CatalogMembers, "_changed", _never_again)], "comings", 800),
    "leaver-goes-at-once": ([(CatalogMembers, "_may_go", _goes_at_once)], "fair", 40),
    "voters-without-bound": ([(catalog_members, "VOTERS_MAX", 1 << 20)], "many", 3),
    "lost-voter-not-replaced": ([(membership_steps, "_has_place", _one_place_fewer)], "many", 3),
    "zones-not-known": ([(member_states, "domains", _nowhere)], "many", 3),
    "leaders-where-members-rest": ([(Placement, "__init__", _place_anywhere)], "rests", 30),
    "nothing-handed-over": ([(Leadership, "transferable", _none_of_them)], "rests", 10),
    "stalled-disk-leads": ([(DiskWatch, "_is_to_move", _nothing)], "stalls", 10),
    "leaders-where-disks-stall": ([(Placement, "__init__", _place_on_stalled)], "stalls", 10),
    "leaders-not-spread": ([(placement, "balanced_leaders", _none_of_them)], "rests", 20),
    "letters-without-route-dropped": ([(Worker, "_round", _drop_without_route)], "rests", 20),
    "refused-letters-forgotten": (
        [(DeadLetterPublisher, "topology_changed", _nothing)],
        "rests",
        60,
    ),
    "refused-news-forgotten": ([(QueueLeaders, "propose", _propose_once)], "classic", 60),
}
#: The ones of every run: those that are found soon.
CI = {
    "catalog-answers-before-applied",
    "catalog-asks-nobody",
    "empty-disk-trusted",
    "groups-not-suspected",
    "membership-not-woken",
    "nothing-handed-over",
    "stalled-disk-leads",
    "voters-without-bound",
}


def hunt(name: str) -> tuple[int, str] | None:
    """See ../broker/mutants.py."""
    return broker_mutants.hunt_in(ClusterWorld, MUTANTS[name])


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug for the length of a with-block."""
    with broker_mutants.planted_all(MUTANTS[name][0]):
        yield
