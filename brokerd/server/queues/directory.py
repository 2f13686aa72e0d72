"""The queues as this member sees them: which there are, who leads them and what lies in them here
(the way to their leaders is client.py).  The rooms name what they need of it in their ports.

Records come and go with the catalog (replicas.py); leaders with elections (leaders.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.cluster.groups.group_client import GroupClient
from brokerd.cluster.groups.host import Host
from brokerd.cluster.peer import deliveries as delivery_codec
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content
from brokerd.core.queue import client_sessions, effects, queue_commands, queue_summary
from brokerd.core.queue.effects import ConsumerId
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.raft.messages import CATALOG_GROUP
from brokerd.server.queues.bodies import BodyCaches, LogCache, MessageViews
from brokerd.server.queues.ends import QueueEnds
from brokerd.server.queues.table import QueueTable


class MemberQueues:
    """State: the catalog's records by groups' uids, terms of those led here, parsed messages."""

    def __init__(
        self,
        host: Host,
        groups: GroupClient,
        log_cache: LogCache,
    ) -> None:
        self.host = host
        self.groups = groups
        #: All queues known here; queues/replicas.py changes it.
        self.records: dict[int, Queue] = {}
        #: Those whose leader is here, with its term; queues/leaders.py changes it.
        self.led: dict[int, int] = {}
        self._views = MessageViews(self.entry_data)
        self.caches = BodyCaches(self._views, log_cache)
        #: Figures of those that have a replica here, for components that add up or sort all.
        self.table = QueueTable(host, self, self._without_vote)
        #: What those had counted that are gone.
        self.ends = QueueEnds(self, host)

    # ---- which there are ------------------------------------------------------------------------

    def queue_of(self, uid: int) -> Queue | None:
        """Return the catalog's record of a group."""
        return self.records.get(uid)

    def queue_uids(self) -> list[int]:
        """Return the uids of all queues known here."""
        return list(self.records)

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        return uid in self.led

    def machine(self, uid: int) -> QueueMachine:
        """Return the state of a queue that has a replica here."""
        machine = self.host.machine_of(uid)
        assert isinstance(machine, QueueMachine)
        return machine

    def hears_most(self, uid: int) -> bool:
        """Tell whether most voters of a group that has a replica here are up."""
        return self.host.liveness.hears_most(self.host.status_of(uid).members)

    def summary(self, uid: int) -> bytes:
        """Return what walks over all queues read of one that has a replica here."""
        return self.host.folded.summary_of(uid) or self.machine(uid).summary()

    def messages_of(self, uid: int) -> int:
        """Return how many messages are in a queue that has a replica here, of any kind."""
        return queue_summary.messages_of(self.summary(uid))

    def _without_vote(self) -> list[int]:
        return [driver.uid for driver in self.host.refilling.without_vote()]

    def led_queues(self, uids: Sequence[int]) -> list[tuple[Queue, QueueMachine]]:
        """Return those of these queues whose leader is here, with their state."""
        result = []
        for uid in uids:
            queue = self.records.get(uid)
            if queue is not None and uid in self.led and self.host.has_group(uid):
                result.append((queue, self.machine(uid)))
        return result

    # ---- what lies in them ----------------------------------------------------------------------

    def contents(self, uid: int, run: effects.Run) -> list[Content]:
        """Return a run's messages: from the log's cache, or read back from disk."""
        found = self._views.contents(uid, run)
        if found is None:
            raise AssertionError(f"group {uid}: entry {run.entry} is live but not in the log")
        return found

    def contents_if_here(self, uid: int, run: effects.Run) -> list[Content] | None:
        """Return a run's messages, None where this member has them no more."""
        return self._views.contents(uid, run)

    def complete_reply(self, uid: int, command: bytes, reply: bytes) -> bytes:
        """Before a reply goes to another node: basic.get brings its message along."""
        if uid == CATALOG_GROUP or client_sessions.kind_of(command) != queue_commands.Kind.GET:
            return reply
        taken = queue_commands.decode_get_reply(reply)
        if taken is None:
            return reply
        run, ready = taken
        found = self.contents_if_here(uid, run)
        if found is None:
            # Asked again after its answer was lost: what was settled by handing it out may be gone.
            return queue_commands.encode_get_reply(None, ready)
        nobody = ConsumerId("", 0, 0, "")
        return reply + b"\n" + delivery_codec.encode(nobody, [(run, found)])

    def entry_data(self, uid: int, index: int) -> bytes | None:
        """Return a log entry, None where it is not here any more."""
        return self.host.entry_data(uid, index) if self.host.has_group(uid) else None
