"""Who else is in the cluster, for telemetry."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.server.observe.telemetry_peers import Members, TelemetryPeers


class Calls:
    """Members that answer, by name; others do not."""

    def __init__(self, **answers: dict[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.handler: Any = None

    def serve(self, name: str, handler: Any) -> None:
        self.handler = handler

    async def ask(self, node: str, name: str, fields: Any = None) -> dict[str, Any] | None:
        self.asked.append(node)
        return self.answers.get(node)


ADDRESSES = {"a": "one:5690", "b": "two:5690", "c": "[::1]:5693", "d": "four:5690"}


def peers(calls: Calls, alive: tuple[str, ...] = ("a", "b", "c")) -> TelemetryPeers:
    members = Members("a", lambda: ADDRESSES, lambda: set(alive), calls)
    return TelemetryPeers(members, 5680)


async def test_members_that_answer_are_found_by_any_other() -> None:
    calls = Calls(b={"grpc_port": 5681, "now_ms": 0.0, "is_enabled": True})
    found = peers(calls)
    await found.look()
    assert calls.asked == ["b", "c"]
    assert found.addresses() == {"a": "one:5680", "b": "two:5681", "c": "", "d": ""}
    assert found.standing() == (["b", "c"], ["d"])
    assert (await calls.handler({}))["grpc_port"] == 5680


async def test_members_say_whether_their_telemetry_is_switched_off() -> None:
    """One of an earlier version does not say, and is taken to have it on."""
    off = {"grpc_port": 1, "now_ms": 0.0, "is_enabled": False}
    calls = Calls(b=off, c={"grpc_port": 1, "now_ms": 0.0, "is_enabled": True})
    found = peers(calls)
    await found.look()
    assert found.switched_off() == ["b"]
    assert (await calls.handler({}))["is_enabled"] is True
    calls.answers["b"] = off | {"is_enabled": True}
    await found.look()
    assert found.switched_off() == []
    own = Calls()
    TelemetryPeers(Members("a", lambda: ADDRESSES, set, own), 1, is_enabled=False)
    assert (await own.handler({}))["is_enabled"] is False


class Clocks:
    """A clock that may be set, and one that may not."""

    def __init__(self) -> None:
        self.wall_ms, self.steady_ms = 1_000_000.0, 5000.0

    def pass_by(self, ms: float) -> None:
        self.wall_ms += ms
        self.steady_ms += ms


async def skew(own_ms: float, b_ms: float, c_ms: float) -> int:
    clocks = Clocks()
    answers = {
        name: {"grpc_port": 1, "now_ms": 1_000_000.0 + ahead_ms, "is_enabled": True}
        for name, ahead_ms in (("b", b_ms), ("c", c_ms))
    }
    members = Members("a", lambda: ADDRESSES, lambda: {"a", "b", "c"}, Calls(**answers))
    clocks.wall_ms += own_ms
    found = TelemetryPeers(members, 1, lambda: clocks.wall_ms, lambda: clocks.steady_ms)
    await found.look()
    clocks.pass_by(60_000)
    return found.skew_ms()


@pytest.mark.parametrize(
    ("clocks_ms", "expected"),
    [
        ((300_000, 0, 0), 300_000),
        ((-3_600_000, 0, 10), -3_600_000),
        ((0, 300_000, 0), 0),
        ((4_000, 0, 0), 0),
        ((0, 300_000, 300_000), -300_000),
    ],
)
async def test_a_clock_is_wrong_by_how_far_it_is_from_the_middle_of_all(
    clocks_ms: tuple[float, float, float], expected: int
) -> None:
    assert await skew(*clocks_ms) == expected


async def test_a_clock_that_is_set_is_known_to_be_at_once_and_a_lone_one_never() -> None:
    clocks = Clocks()
    calls = Calls(
        b={"grpc_port": 1, "now_ms": 1_000_000.0, "is_enabled": True},
        c={"grpc_port": 1, "now_ms": 1e6, "is_enabled": True},
    )
    members = Members("a", lambda: ADDRESSES, lambda: {"a", "b", "c"}, calls)
    found = TelemetryPeers(members, 1, lambda: clocks.wall_ms, lambda: clocks.steady_ms)
    clocks.wall_ms += 300_000
    assert found.skew_ms() == 0
    clocks.wall_ms -= 300_000
    await found.look()
    clocks.wall_ms += 300_000
    assert found.skew_ms() == 300_000
    # They are gone: what they said counts no longer.
    calls.answers.clear()
    await found.look()
    assert found.skew_ms() == 0
