"""Who else is in the cluster, for telemetry."""

from __future__ import annotations

from typing import Any

from brokerd.server.telemetry_peers import Members, TelemetryPeers


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
    calls = Calls(b={"grpc_port": 5681})
    found = peers(calls)
    await found.look()
    assert calls.asked == ["b", "c"]
    assert found.addresses() == {"a": "one:5680", "b": "two:5681", "c": "", "d": ""}
    assert found.standing() == (["b", "c"], ["d"])
    assert (await calls.handler({}))["grpc_port"] == 5680
