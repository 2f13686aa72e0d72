"""What queues had counted when they ended."""

from __future__ import annotations

from typing import Any, cast

import pytest

from brokerd.server.messages.dropped import Dropped
from brokerd.server.queues import ends as queue_ends
from brokerd.server.queues.ends import QueueEnds


class Machine:
    """A queue with three messages, or with none since it was told to end."""

    options = None

    def __init__(self, deleted: str | None = None) -> None:
        left = 0 if deleted else 1
        self.seen = {"ready": left, "delayed": left, "unacked": left, "deleted": deleted}

    def overview(self) -> dict[str, Any]:
        return self.seen


class Record:
    """A queue of the catalog."""

    vhost, name = "/", "q"


class Member:
    """One that leads queue 1 and follows queue 2."""

    def __init__(self, deleted: str | None = None) -> None:
        self.deleted = deleted

    def queue_of(self, uid: int) -> Any:
        return Record()

    def leads(self, uid: int) -> bool:
        return uid == 1

    def machine(self, uid: int) -> Any:
        return Machine(self.deleted)

    def has_group(self, uid: int) -> bool:
        return True

    def status_of(self, uid: int) -> Any:
        return None


def ends_of(deleted: str | None = None) -> QueueEnds:
    member = cast(Any, Member(deleted))
    ends = QueueEnds(member, member)
    ends.is_wanted = True
    return ends


@pytest.mark.parametrize(("cause", "is_expired"), [("expired", True), ("delete", False)])
def test_what_a_queue_said_at_its_end_is_what_went_with_it(cause: str, is_expired: bool) -> None:
    ends = ends_of(cause)
    dropped = Dropped(ends.dropped)
    dropped.of_queue("/", "q", "purge", 9, 0)
    dropped.of_queue("/", "q", cause, 5, 1)
    ends.ending(1)
    ((end,), lost) = ends.take()
    assert (end.is_expired, end.messages, lost) == (is_expired, 5, 0)
    assert ends.take() == ([], 0)


def test_one_that_vanished_takes_what_is_in_it_and_a_follower_says_nothing() -> None:
    ends = ends_of()
    ends.ending(2)
    assert ends.take() == ([], 0)
    ends.ending(1)
    ((end,), _) = ends.take()
    assert (end.is_expired, end.messages) == (False, 3)


def test_ends_are_bounded_and_nothing_is_kept_that_nobody_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_ends, "ENDS_MAX", 2)
    ends = ends_of()
    for _ in range(5):
        ends.ending(1)
    found, lost = ends.take()
    assert (len(found), lost) == (2, 3)
    ends.is_wanted = False
    ends.ending(1)
    assert ends.take() == ([], 0)
