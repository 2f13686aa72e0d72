"""What queues know of copies that redrives sent to them, from whichever members lead them.

One question a target; the answer is bounded as the queue's table is.  What is made of the answers
is messages/job_outcomes.py's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.server.messages.job_outcomes import Answer

if TYPE_CHECKING:
    from brokerd.server.members import ports as members_ports
    from brokerd.server.members.member_calls import MemberCalls
    from brokerd.server.queues.walking import Replicas

Json: TypeAlias = dict[str, Any]

_ASK = "job_outcomes"


def serve(calls: MemberCalls, queues: Replicas, is_folded: Callable[[int], bool]) -> None:
    """Answer other members' questions, and this one's, about the queues that are led here.

    is_folded(uid): the queue's state is put away, so that it watches nothing.
    """

    async def answer(asked: Json) -> Json:
        uid, source, job = int(asked["uid"]), int(asked["source"]), int(asked["job"])
        if not (queues.leads(uid) and queues.hears_most(uid)):
            return {"leads": False}
        if is_folded(uid):
            return {"leads": True, "consumers": 0, "counts": None}
        machine = queues.machine(uid)
        counts = machine.query_outcomes(source, job)
        return {"leads": True, "consumers": machine.query_consumers(), "counts": counts}

    calls.serve(_ASK, answer)


class TargetQuestions:
    """See job_outcomes.Asking.  State: none of its own."""

    def __init__(self, members: members_ports.Neighbours) -> None:
        self._members = members

    async def ask(self, uid: int, source: int, job: int) -> Answer | None:
        """See Asking."""
        members = self._members
        queue = members.queue_of(uid)
        if queue is None:
            return Answer("")
        alive = set(members.host.alive()).intersection(queue.members)
        hint = members.host.leader_of(uid)
        first = [hint] if hint in alive else []
        for node in [*first, *sorted(alive.difference(first))]:
            fields = {"uid": uid, "source": source, "job": job}
            answer = await members.calls.ask(node, _ASK, fields)
            if answer is not None and answer["leads"]:
                return Answer(queue.name, answer["consumers"], answer["counts"])
        return None
