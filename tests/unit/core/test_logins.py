"""Whose password is checked next, in virtual time (SEC-9, SEC-12, SEC-13)."""

from __future__ import annotations

import pytest

from brokerd.core import logins
from brokerd.core.logins import Attempt, LoginQueue

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


class Rig:
    """A queue with one thread, and a clock."""

    def __init__(self) -> None:
        self.queue = LoginQueue()
        self.now_ms = 1_000_000
        self.sockets = 0

    def enter(
        self, address: str, user: str, connection: str = "", is_likely: bool = False
    ) -> Attempt:
        """Enter over a connection of its own, unless it is named."""
        self.sockets += 1
        connection = connection or f"socket-{self.sockets}"
        return self.queue.enter(address, user, connection, is_likely, self.now_ms)[0]

    def next(self) -> Attempt | None:
        return self.queue.next(self.now_ms)

    def fail(self, attempt: Attempt | None, count: int = 1) -> int:
        assert attempt is not None
        return self.queue.failed(attempt, count, self.now_ms)

    def wait(self) -> Attempt:
        """Let time pass until somebody is next."""
        for _ in range(3):
            if (attempt := self.next()) is not None:
                return attempt
            assert self.queue.due_ms is not None
            self.now_ms = max(self.now_ms, self.queue.due_ms)
        raise AssertionError("nobody is due when it was said")

    def guess(self, address: str, user: str, times: int) -> None:
        """Let an address fail with a user's name."""
        for _ in range(times):
            entered = self.enter(address, user)
            attempt = self.wait()
            assert attempt is entered
            self.fail(attempt)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_an_empty_queue_has_nobody_and_nothing_to_wait_for(rig: Rig) -> None:
    assert rig.next() is None
    assert rig.queue.due_ms is None
    rig.enter(A, "u")
    assert rig.next() is not None
    assert rig.next() is None
    assert rig.queue.due_ms is None
    assert len(rig.queue) == 0


def test_addresses_take_turns_and_within_them_users(rig: Rig) -> None:
    """700 of one address and user cost all others nothing."""
    for _ in range(700):
        rig.enter(A, "u")
    rig.enter(A, "v")
    rig.enter(B, "u")
    rig.enter(C, "w")
    order = []
    for _ in range(5):
        attempt = rig.next()
        assert attempt is not None
        order.append((attempt.address, attempt.user))
    assert sorted(order[:3]) == [(A, "v"), (B, "u"), (C, "w")]
    assert order[3:] == [(A, "u"), (A, "u")]


def test_one_address_served_last_waits_for_the_others(rig: Rig) -> None:
    for _ in range(3):
        for address in (A, B):
            rig.enter(address, "u")
    served = [attempt.address for _ in range(6) if (attempt := rig.next()) is not None]
    assert served in ([A, B] * 3, [B, A] * 3)


def test_a_login_that_is_probably_right_is_next_whatever_its_address_did(rig: Rig) -> None:
    """SEC-13: delays and lines are for guesses."""
    rig.guess(A, "u", 20)
    for _ in range(100):
        rig.enter(A, "u")
    first = rig.enter(A, "u", is_likely=True)
    second = rig.enter(A, "u", is_likely=True)
    assert [rig.next(), rig.next()] == [first, second]
    assert rig.next() is None
    third = rig.enter(A, "u", is_likely=True)
    rig.queue.leave(third)
    rig.queue.leave(third)
    assert rig.next() is None


@pytest.mark.plain
def test_those_that_look_right_are_bounded_too(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "WAITING_MAX", 1)
    assert rig.enter(A, "u", is_likely=True).is_likely
    assert not rig.enter(A, "u", is_likely=True).is_likely
    assert len(rig.queue) == 2


def test_each_failure_of_a_pair_makes_the_next_one_wait_longer(rig: Rig) -> None:
    delays = []
    for _ in range(logins.PAIR_FREE + 8):
        rig.enter(A, "u")
        delays.append(rig.fail(rig.wait()))
    assert delays[: logins.PAIR_FREE] == [0] * logins.PAIR_FREE
    assert delays[logins.PAIR_FREE :] == [100, 200, 400, 800, 1600, 2000, 2000, 2000]
    before_ms = rig.now_ms
    rig.enter(A, "u")
    assert rig.next() is None
    rig.wait()
    assert rig.now_ms - before_ms == logins.PAIR_DELAY_MS_MAX
    # Its end was not yet known, and the next one waits all the same.
    rig.enter(A, "u")
    rig.wait()
    assert rig.now_ms - before_ms == 2 * logins.PAIR_DELAY_MS_MAX


def test_who_guesses_from_one_address_does_not_lock_out_another(rig: Rig) -> None:
    """SEC-9: nor another user of the same address."""
    rig.guess(A, "victim", 30)
    rig.enter(A, "victim")
    for address, user in ((B, "victim"), (A, "other")):
        began_ms = rig.now_ms
        entered = rig.enter(address, user)
        assert rig.wait() is entered
        assert rig.now_ms == began_ms


def test_failures_are_forgotten_in_quiet_time(rig: Rig) -> None:
    rig.guess(A, "u", 1000)
    rig.now_ms += 7 * logins.FORGET_MS
    rig.enter(A, "u")
    assert rig.fail(rig.next()) == 0
    # One of them was forgotten too few for a second one.
    rig.guess(A, "u", 5)
    rig.enter(A, "u")
    assert rig.fail(rig.wait()) > 0


def test_many_who_send_the_same_wrong_password_count_each(rig: Rig) -> None:
    rig.enter(A, "u")
    assert rig.fail(rig.next(), 700) == logins.PAIR_DELAY_MS_MAX


def test_an_address_that_tries_many_users_is_slowed_down_a_little(rig: Rig) -> None:
    """The work that one address can cause is bounded, and others behind it still come in."""
    delays = []
    for number in range(logins.ADDRESS_FREE + 8):
        rig.enter(A, f"u{number}")
        delays.append(rig.fail(rig.wait()))
    assert delays[: logins.ADDRESS_FREE] == [0] * logins.ADDRESS_FREE
    assert delays[logins.ADDRESS_FREE :] == [10, 20, 40, 80, 160, 250, 250, 250]
    began_ms = rig.now_ms
    for number in range(300):
        rig.enter(A, f"v{number}")
    newcomer = rig.enter(A, "newcomer")
    assert rig.wait() is newcomer
    assert rig.now_ms - began_ms <= logins.ADDRESS_DELAY_MS_MAX
    elsewhere = rig.enter(B, "u")
    assert rig.next() is elsewhere


def test_connections_of_a_pair_take_turns_and_the_newest_comes_first(rig: Rig) -> None:
    """A flood over one connection does not keep out the same user's over another."""
    for _ in range(10):
        rig.enter(A, "u", "flood")
    newcomer = rig.enter(A, "u", "newcomer")
    for _ in range(10):
        rig.enter(A, "u", "flood")
    first, second = rig.next(), rig.next()
    assert newcomer in (first, second)
    third = rig.next()
    assert third is not None
    assert third.turn == 1


def test_of_many_connections_the_newest_comes_first(rig: Rig) -> None:
    numbers = [rig.enter(A, "u", f"socket-{number}").number for number in range(5)]
    served = [attempt.number for _ in range(5) if (attempt := rig.next()) is not None]
    assert served == numbers[::-1]


@pytest.mark.plain
def test_connections_that_are_counted_are_bounded(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "WAITING_MAX", 3)
    for number in range(10):
        rig.queue.leave(rig.enter(A, "u", f"socket-{number}"))
        rig.enter(A, "u", "stays")
    assert len(rig.queue._lines[A].turns) <= 3


def test_who_leaves_is_not_checked(rig: Rig) -> None:
    first, second = rig.enter(A, "u"), rig.enter(A, "u")
    rig.queue.leave(second)
    rig.queue.leave(second)
    assert rig.next() is first
    rig.queue.leave(first)
    assert rig.next() is None
    third, fourth = rig.enter(A, "u"), rig.enter(A, "v")
    rig.queue.leave(third)
    rig.queue.leave(third)
    assert rig.next() is fourth


@pytest.mark.plain
def test_of_an_address_that_is_too_many_the_busiest_connection_gives_way(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "ADDRESS_WAITING_MAX", 3)
    monkeypatch.setattr(logins, "WAITING_MAX", 5)
    first, second = rig.enter(A, "u", "flood"), rig.enter(A, "u", "flood")
    rig.enter(A, "v", "other")
    assert rig.queue.enter(A, "w", "newcomer", False, rig.now_ms)[1] is second
    rig.enter(B, "u", "1")
    rig.enter(B, "u", "2")
    # All places are taken: the address with most of them makes room, here by its oldest.
    _, displaced = rig.queue.enter(C, "u", "3", False, rig.now_ms)
    assert displaced is first
    assert len(rig.queue) == 5


def test_a_flood_of_many_names_over_one_connection_keeps_nobody_out(rig: Rig) -> None:
    """Spraying: somebody else behind the same address is next, though never seen before."""
    for number in range(200):
        rig.enter(A, f"sprayed-{number}", "flood")
        rig.fail(rig.wait())
    for number in range(900):
        rig.enter(A, f"again-{number}", "flood")
    newcomer = rig.enter(A, "newcomer", "own")
    for number in range(900):
        rig.enter(A, f"more-{number}", "flood")
    began_ms = rig.now_ms
    assert newcomer in (rig.wait(), rig.wait())
    assert rig.now_ms - began_ms <= 2 * logins.ADDRESS_DELAY_MS_MAX


@pytest.mark.plain
def test_what_is_remembered_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were quiet longest are forgotten."""
    monkeypatch.setattr(logins, "REMEMBERED_MAX", 10)
    for number in range(30):
        rig.guess(f"10.0.1.{number}", f"u{number}", 1)
    assert len(rig.queue._pairs) == len(rig.queue._addresses) == 10
    assert ("10.0.1.29", "u29") in rig.queue._pairs


def test_an_arrival_that_is_ready_is_served_though_others_wait_for_their_time(rig: Rig) -> None:
    for address in (A, B):
        rig.enter(address, "u")
        rig.fail(rig.next(), 100)
    for address in (A, B, A):
        rig.enter(address, "u")
    assert rig.next() is None
    assert rig.queue.due_ms is not None
    assert rig.queue.due_ms > rig.now_ms
    assert rig.enter(C, "w") is rig.next()
    assert rig.next() is None
    assert rig.wait().user == "u"
