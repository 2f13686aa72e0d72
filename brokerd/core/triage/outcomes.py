"""What became of the copies that a redrive has sent, as its targets count them.

A job's status keeps what each target said last (`JobStatus.targets`); sums by group are made of it.
Pure; who asks the targets is server/messages/job_outcomes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerd.core.queue.watched_copies import GROUPS_MAX as _GROUPS_MAX
from brokerd.core.queue.watched_copies import OTHERS, Became
from brokerd.core.triage.jobs import JobStatus, Outcomes

#: Groups that a job tells apart; what is beyond is counted as `OTHERS`, in targets too.
GROUPS_MAX: Final = _GROUPS_MAX - 1
#: Targets that are asked; what became of copies at others is not known.
TARGETS_MAX: Final = 64


def add_target(status: JobStatus, uid: int) -> None:
    """Ask this queue from now on."""
    if len(status.targets) < TARGETS_MAX:
        status.targets.setdefault(str(uid), {})


def heard(status: JobStatus, uid: str, counts: Mapping[str, list[int]] | None) -> None:
    """A target has answered; None: it does not know the job (any more).

    What it said earlier then stays, but nothing is known of what waited.
    """
    if counts is not None:
        status.targets[uid] = {name: list(each) for name, each in counts.items()}
        return
    for each in status.targets[uid].values():
        each[Became.WAITING] = 0


def lost(status: JobStatus, uid: str) -> None:
    """A target has been deleted, with what waited there."""
    for each in status.targets[uid].values():
        each[Became.REMOVED] += each[Became.WAITING]
        each[Became.WAITING] = 0


def count(status: JobStatus, copies: Mapping[str, int] | None) -> None:
    """Sum up what the targets have said.

    copies: those that targets had confirmed before they were asked, by group; None: some have not
    answered, so that what is unknown stays as it was.
    """
    found = {name: Outcomes() for name in status.groups}
    total = Outcomes()
    for groups in status.targets.values():
        for name, counts in groups.items():
            _add(total, counts)
            if found:
                _add(found.setdefault(name if name in found else OTHERS, Outcomes()), counts)
    for name, outcomes in found.items():
        before = status.groups.setdefault(name, Outcomes())
        _become(before, outcomes, None if copies is None else copies.get(name, 0))
    _become(status.total, total, None if copies is None else sum(copies.values()))
    if found:
        status.total.unknown = sum(group.unknown for group in status.groups.values())


def _add(outcomes: Outcomes, counts: list[int]) -> None:
    outcomes.acknowledged += counts[Became.ACKNOWLEDGED]
    outcomes.died_again += counts[Became.DIED_AGAIN]
    outcomes.removed += counts[Became.REMOVED]
    outcomes.waiting += counts[Became.WAITING]
    outcomes.duplicates += counts[Became.DUPLICATE]


def _become(outcomes: Outcomes, now: Outcomes, copies: int | None) -> None:
    outcomes.acknowledged = now.acknowledged
    outcomes.died_again = now.died_again
    outcomes.removed = now.removed
    outcomes.waiting = now.waiting
    outcomes.duplicates = now.duplicates
    if copies is not None:
        known = now.acknowledged + now.died_again + now.removed + now.waiting
        outcomes.unknown = max(0, copies - known)


def may_change(status: JobStatus) -> bool:
    """Tell whether the targets could say something new of a job that has ended."""
    return bool(status.targets) and bool(status.total.waiting or status.total.unknown)


def without_groups(status: JobStatus) -> None:
    """Keep sums alone: a receipt has a bound."""
    status.groups = {}
    status.copies = {"": sum(status.copies.values())}
    for uid, groups in status.targets.items():
        sums = [sum(column) for column in zip(*groups.values(), strict=True)]
        status.targets[uid] = {"": sums} if sums else {}
