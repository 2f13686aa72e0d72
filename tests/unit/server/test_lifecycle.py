"""What a member is at, and why it ends."""

from __future__ import annotations

from brokerd.server.lifecycle import Lifecycle


async def test_a_member_that_starts_says_what_it_waits_for() -> None:
    lifecycle = Lifecycle()
    lifecycle.waits_for("a majority of the members")
    assert lifecycle.health.reason == "waiting for a majority of the members"
    assert not lifecycle.has_started


async def test_a_failure_ends_the_process_and_is_remembered() -> None:
    lifecycle = Lifecycle()
    assert not lifecycle.has_failed()
    lifecycle.failed(OSError("the disk"))
    assert lifecycle.stopping.is_set()
    assert lifecycle.has_failed()
    assert lifecycle.removal is None


async def test_a_member_that_was_removed_ends_and_has_not_failed() -> None:
    lifecycle = Lifecycle()
    lifecycle.removed(ValueError("not a member any more"))
    assert lifecycle.stopping.is_set()
    assert not lifecycle.has_failed()


async def test_a_member_says_all_that_keeps_it_from_working() -> None:
    """Probes see it, and that there is nothing any more."""
    lifecycle = Lifecycle()
    said = ["", "the disk does not answer", "the moon is full"]
    lifecycle.hindrances += [lambda: said[1], lambda: said[2]]
    assert lifecycle.health.hindrance() == "the disk does not answer; the moon is full"
    said[1] = said[2] = ""
    assert lifecycle.health.hindrance() == ""
