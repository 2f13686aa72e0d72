"""Clients of all members: each member knows its own, the others are asked (member_calls.py).

Clients are closed in the same way.  For the Admin service; the management API shares its rows
otherwise (management/figures.py).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from brokerd.server.listings import client_rows

if TYPE_CHECKING:
    from brokerd.server.access.connections import GuestCall
    from brokerd.server.listings.ports import ListedConnection, Sources
    from brokerd.server.members.member_calls import Handler
    from brokerd.server.members.ports import Calls

Json = dict[str, Any]
_ASK, _CLOSE = "client_rows", "close_clients"
ALL_CONNECTIONS = "all_connections"
#: Kinds of List, and what makes the rows at each member.
MAKERS: dict[str, Callable[[Sources, str], list[Json]]] = {
    ALL_CONNECTIONS: client_rows.connections,
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

    async def close(question: Json) -> Json:
        return {"closed": _close_here(services, set(question["ids"]), question["reason"])}

    calls.serve(_ASK, rows)
    calls.serve(_CLOSE, close)


def _close_here(services: Sources, ids: Collection[str], reason: str) -> list[Json]:
    """Close clients of this member; return name and vhost of each."""
    closed = []
    clients: list[ListedConnection | GuestCall] = [
        *services.clients.all(),
        *services.clients.calls(),
    ]
    for client in clients:
        if client.name in ids or client_rows.connection_pid(services, client) in ids:
            client.close(320, reason)
            closed.append({"name": client.name, "vhost": client.vhost})
    return closed


async def close(
    members: Collection[str], calls: Calls, ids: Sequence[str], reason: str
) -> tuple[list[Json], list[str]]:
    """Close clients of these members, by pid or name as listings have them.

    Returns name and vhost of each that was closed, and the members that do not answer.
    """
    answers = await calls.ask_all(members, _CLOSE, {"ids": list(ids), "reason": reason})
    closed = [client for _, answer in sorted(answers.items()) for client in answer["closed"]]
    return closed, sorted(set(members) - answers.keys())


async def rows_of_all(calls: Calls, members: Collection[str], kind: str, vhost: str) -> list[Json]:
    """Return the rows of these members; of one that does not answer, a row that says so."""
    answers = await calls.ask_all(members, _ASK, {"kind": kind, "vhost": vhost})
    found = [row for _, answer in sorted(answers.items()) for row in answer["rows"]]
    silent = sorted(set(members) - answers.keys())
    return found + [{"node": node, "unanswered": True} for node in silent]
