"""Queues that calls of Messages read from: named, there, and allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.core.catalog import declare
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.refusals import Refused
from brokerd.server.catalog.catalog_writer import QueueStuck
from brokerd.server.grpc.publish_channel import Caller
from brokerd.server.messages import message_checks

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import StreamServices


def readable_queue(services: StreamServices, caller: Caller, name: str, uid: int) -> Queue:
    """Return a queue that a call may read from (R-ERR-2, R-Q-9); ProtocolError, QueueStuck.

    uid: of the call, whose exclusive queues it may use; of others it is refused.
    """
    connection = services.identity.connection_id(uid)
    queue = declare.use_queue(services.topology.view, caller.access, name, connection)
    if isinstance(queue, Refused):
        raise message_checks.refuse(queue)
    if refusal := services.queues.groups.refusal(queue.uid):
        # Before anything is sent that the queue would have to be told the end of.
        raise QueueStuck(refusal)
    return queue
