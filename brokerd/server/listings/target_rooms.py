"""What is known of the queues that a job would send to: who leads, consumers, what still fits.

Asked of all members at once; the leaders answer.  For dry runs (triages.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.members import ports as members_ports
    from brokerd.server.members.member_calls import MemberCalls
    from brokerd.server.queues.walking import Replicas

Json: TypeAlias = dict[str, Any]

_ASK = "target_rooms"
#: Queues that one dry run asks about at once.
QUEUES_MAX = 1_000


@dataclass(slots=True)
class Room:
    """One queue as its leader knows it."""

    #: "": no leader has answered, so that nothing else is known.
    leader: str = ""
    consumers: int = 0
    ready: int = 0
    #: Messages and bytes up to the queue's limits; None: it has none.
    free_messages: int | None = None
    free_bytes: int | None = None
    #: What happens beyond them: drop-head, reject-publish, reject-publish-dlx.
    overflow: str = ""

    def as_json(self) -> Json:
        """Return all fields by their names."""
        return asdict(self)


def serve(calls: MemberCalls, node: str, queues: Replicas) -> None:
    """Answer other members' questions, and this one's."""

    async def rooms(asked: Json) -> Json:
        found = {}
        for uid in map(int, asked["uids"][:QUEUES_MAX]):
            if queues.leads(uid) and queues.hears_most(uid):
                found[str(uid)] = _room(node, queues, uid).as_json()
        return {"rooms": found}

    calls.serve(_ASK, rooms)


def _room(node: str, queues: Replicas, uid: int) -> Room:
    machine = queues.machine(uid)
    options, overview = machine.options, machine.overview()
    ready, ready_bytes = overview["ready"], overview["ready_bytes"]
    length, size = options.max_length, options.max_length_bytes
    is_limited = length is not None or size is not None
    return Room(
        leader=node,
        consumers=overview["consumers"],
        ready=ready,
        free_messages=None if length is None else max(0, length - ready),
        free_bytes=None if size is None else max(0, size - ready_bytes),
        overflow=str(options.overflow) if is_limited else "",
    )


async def rooms_of(
    members: members_ports.Cluster, view: CatalogState, vhost: str, names: Iterable[str]
) -> dict[str, Room]:
    """Return what is known of these queues of a vhost now; those that are gone are left out."""
    uids: dict[int, str] = {}
    for name in sorted(names)[:QUEUES_MAX]:
        queue = view.queue(vhost, name)
        if queue is not None:
            uids[queue.uid] = name
    if not uids:
        return {}
    fields = {"uids": list(uids)}
    answers = await members.calls.ask_all(members.host.alive(), _ASK, fields)
    found = {name: Room() for name in uids.values()}
    for answer in answers.values():
        for uid, room in answer["rooms"].items():
            found[uids[int(uid)]] = Room(**room)
    return found
