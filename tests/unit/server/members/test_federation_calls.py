"""Links of all members: listed and restarted from any of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brokerd.server.members import federation_calls
from brokerd.server.members.member_calls import Handler

Json = dict[str, Any]


class Calls:
    """Members that answer, those in `silent` aside."""

    def __init__(self, links: dict[str, list[str]], silent: Iterable[str] = ()) -> None:
        self.links = links
        self.silent = set(silent)
        self.restarted: list[str] = []
        self._handlers: dict[str, dict[str, Handler]] = {}
        for node in links:
            self._node = node
            self._handlers[node] = {}
            federation_calls.serve(self, *self._of(node))

    def _of(self, node: str) -> Any:
        def restart(link_id: str) -> bool:
            self.restarted += [node] * (link_id in self.links[node])
            return link_id in self.links[node]

        return lambda: [{"id": each, "node": node} for each in self.links[node]], restart

    def serve(self, name: str, handler: Handler) -> None:
        self._handlers[self._node][name] = handler

    async def ask(self, node: str, name: str, fields: Json | None = None) -> Json | None:
        return (await self.ask_all([node], name, fields)).get(node)

    async def ask_all(
        self, nodes: Iterable[str], name: str, fields: Json | None = None
    ) -> dict[str, Json]:
        return {
            node: await self._handlers[node][name]({"ask": name, **(fields or {})})
            for node in nodes
            if node not in self.silent
        }


async def test_the_links_of_all_members_are_listed() -> None:
    """R-FED-6, R-FED-7: a member that does not say what it runs is in the listing as well."""
    calls = Calls({"a": ["one"], "b": [], "c": ["two", "three"]})
    rows = await federation_calls.all_links(calls, {"a", "b", "c"})
    assert [(row["id"], row["node"]) for row in rows] == [
        ("one", "a"),
        ("two", "c"),
        ("three", "c"),
    ]
    calls.silent = {"c"}
    *rows, last = await federation_calls.all_links(calls, {"a", "b", "c"})
    assert [row["id"] for row in rows] == ["one"]
    assert (last["node"], last["status"]) == ("c", "unknown")
    assert last["error"] == "member c did not say which links it runs"


async def test_the_member_that_runs_a_link_restarts_it() -> None:
    """R-FED-7."""
    calls = Calls({"a": ["one"], "b": [], "c": ["two"]})
    assert await federation_calls.restart(calls, {"a", "b", "c"}, "two") == "c"
    assert calls.restarted == ["c"]
    assert await federation_calls.restart(calls, {"a", "b", "c"}, "none") == ""
    calls.silent = {"c"}
    assert await federation_calls.restart(calls, {"a", "b", "c"}, "two") == ""
