"""Federation links of all members: listed, and one of them restarted, from whichever is asked.

Each link runs on one member (R-FED-7); the others are asked by member_calls.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

from brokerd.server.members import ports
from brokerd.server.members.member_calls import Handler
from brokerd.server.members.ports import Json


class Answers(Protocol):
    """Who answers other members' questions (member_calls.py)."""

    def serve(self, name: str, handler: Handler) -> None:
        """Answer questions of this name by `handler`."""
        ...


def serve(calls: Answers, rows: Callable[[], list[Json]], restart: Callable[[str], bool]) -> None:
    """Answer other members' questions.  restart(id) tells whether the link runs here."""

    async def links(_: Json) -> Json:
        return {"rows": rows()}

    async def restart_link(question: Json) -> Json:
        return {"restarted": restart(str(question["id"]))}

    calls.serve("links", links)
    calls.serve("restart_link", restart_link)


async def all_links(calls: ports.Calls, members: Collection[str]) -> list[dict[str, Any]]:
    """Return the rows of these members; of one that does not answer, a row that says so."""
    answers = await calls.ask_all(members, "links")
    found = [row for _, answer in sorted(answers.items()) for row in answer["rows"]]
    return found + [_silent(node) for node in sorted(set(members) - answers.keys())]


async def restart(calls: ports.Calls, members: Collection[str], link_id: str) -> str:
    """Have a link connect anew; return the member that runs it, "" if none of these does."""
    answers = await calls.ask_all(members, "restart_link", {"id": link_id})
    return next((node for node, answer in answers.items() if answer["restarted"]), "")


def _silent(node: str) -> dict[str, Any]:
    error = f"member {node} did not say which links it runs"
    return {
        **dict.fromkeys(("id", "type", "vhost", "exchange", "queue", "upstream"), ""),
        "node": node,
        "upstream_exchange": "",
        "upstream_queue": "",
        "status": "unknown",
        "uri": "",
        "error": error,
        "last_error": error,
        "since_ms": 0,
        "local_connection": "",
        "backlog": None,
    }
