"""Clients of all members: each member knows its own, the others are asked (member_calls.py).

For the Admin service; the management API shares its rows otherwise (management/figures.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.server.listings import client_rows

if TYPE_CHECKING:
    from brokerd.server.listings.ports import Sources
    from brokerd.server.members.member_calls import Handler
    from brokerd.server.members.ports import Calls

Json = dict[str, Any]
_ASK = "client_rows"
#: Kinds of List, and what makes the rows at each member.
MAKERS: dict[str, Callable[[Sources, str], list[Json]]] = {
    "all_connections": client_rows.connections,
    "all_channels": client_rows.channels,
    "all_consumers": client_rows.consumers,
}


class Answers(Protocol):
    """Who answers other members' questions (member_calls.py)."""

    def serve(self, name: str, handler: Handler) -> None:
        """Answer questions of this name by `handler`."""
        ...


def serve(calls: Answers, services: Sources) -> None:
    """Answer other members' questions."""

    async def rows(question: Json) -> Json:
        make = MAKERS.get(str(question.get("kind")))
        return {"rows": make(services, str(question.get("vhost", ""))) if make else []}

    calls.serve(_ASK, rows)


async def rows_of_all(calls: Calls, members: Collection[str], kind: str, vhost: str) -> list[Json]:
    """Return the rows of these members; of one that does not answer, a row that says so."""
    answers = await calls.ask_all(members, _ASK, {"kind": kind, "vhost": vhost})
    found = [row for _, answer in sorted(answers.items()) for row in answer["rows"]]
    silent = sorted(set(members) - answers.keys())
    return found + [{"node": node, "unanswered": True} for node in silent]
