"""What unfinished requests may hold: counted as they come, promised when they are large."""

from __future__ import annotations

from brokerd.server.grpc.rpc_budget import WAITING_MAX, Budget


def test_a_connection_takes_from_its_own_and_from_all() -> None:
    everything = Budget(100)
    one, other = Budget(60, everything), Budget(60, everything)
    assert one.take(60)
    assert not one.take(1)
    assert not other.take(41)
    assert other.used == 0
    assert other.take(40)
    one.give(60)
    assert (one.used, other.used, everything.used) == (0, 40, 40)


def test_a_quarter_is_left_to_small_requests() -> None:
    budget = Budget(100)
    assert budget.promise(75)
    assert not budget.promise(1)
    assert budget.take(25)


def test_who_waits_has_a_turn_when_bytes_are_free() -> None:
    everything = Budget(100)
    one, other = Budget(100, everything), Budget(100, everything)
    assert one.promise(70)
    turns: list[str] = []

    def attempt(name: str, budget: Budget, size: int) -> bool:
        turns.append(name)
        return budget.promise(size)

    def large() -> bool:
        return attempt("large", other, 70)

    def small() -> bool:
        return attempt("small", other, 5)

    assert other.wait(large)
    assert other.wait(small)
    other.serve()
    assert turns == ["large", "small"]
    one.give(70)
    everything.serve()
    assert turns[2:] == ["large"]
    assert everything.used == 75
    assert one.wait(large)
    one.leave(large)
    everything.serve()
    assert turns[3:] == []


def test_those_who_wait_are_bounded() -> None:
    budget = Budget(1)

    def waiting(number: int) -> bool:
        return budget.wait(lambda: number < 0)

    assert all(waiting(number) for number in range(WAITING_MAX))
    assert not waiting(WAITING_MAX)
