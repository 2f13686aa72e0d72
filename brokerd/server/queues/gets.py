"""What a queue has answered to a basic.get."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.core.catalog.refusals import Refused
from brokerd.core.message import Content
from brokerd.core.queue import queue_commands
from brokerd.core.queue.effects import Run


@dataclass(slots=True)
class Got:
    """What basic.get brought."""

    run: Run
    content: Content
    ready_count: int


def message_of(
    contents_if_here: Callable[[int, Run], list[Content] | None], uid: int, reply: bytes
) -> Got | Refused | None:
    """Return what a queue has answered to a get, None when it had nothing (R-CS-8).

    contents_if_here(uid, run): the messages of a run, where this member has them; a leader
    elsewhere sends them along.
    """
    head, _, payload = reply.partition(b"\n")
    taken = queue_commands.decode_get_reply(head)
    if taken is None:
        fields = queue_commands.decode_reply(head)
        if "refused" in fields:
            return Refused(fields["refused"], fields["text"])
        return None
    run, ready = taken
    if payload:
        content = delivery_codec.decode(payload)[1][0][1][0]
    else:
        found = contents_if_here(uid, run)
        if found is None:
            return None
        content = found[0]
    return Got(run, content, ready)
