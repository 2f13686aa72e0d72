"""Queues that have no leader because of damage: clients that wait for one get the reason.

A group without leader is normally a matter of a second or two, and everything waits for that.
Where commands or consumers have waited longer, the queue's members are asked (quorum_calls.py).  If
the reason is damage (cluster/groups/damage.py), a request to the queue gets that as an error:
at first after about 5 s, then at once, until there is a leader.  What is published waits, as in
every queue without a majority, unless waiting cannot help; then it is refused.  Settlements wait in
any case.

Looks by itself, since nothing tells that something has not happened; app.py starts it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from brokerd.cluster.groups import damage
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.members import ports, quorum_calls

log = logging.getLogger(__name__)

#: With both, an error comes within 5 s: twice the longest election time-out, and a moment.
PATIENCE_S = 4.0
LOOK_S = 0.5
#: Of a queue's and a vhost's name in a reason, which must fit into a reply text.
QUEUE_BYTES_MAX = 60
VHOST_BYTES_MAX = 24


class Consumers(Protocol):
    """The consumers of this member, by the groups of their queues."""

    def groups(self) -> Collection[int]:
        """Return the groups that have some."""
        ...

    def has_group(self, uid: int) -> bool:
        """Tell whether a group has some."""
        ...

    def group_stuck(self, uid: int, reason: str) -> None:
        """Notify those of a group why nothing comes."""
        ...


class Commands(Protocol):
    """Commands of this member that wait for groups' leaders."""

    def stalled(self, since: float) -> Collection[int]:
        """Return the groups whose first has waited since then."""
        ...

    def refuse(self, uid: int, reason: str, is_lasting: bool) -> None:
        """Those of a group are refused from now on."""
        ...

    def accept(self, uid: int) -> None:
        """No longer."""
        ...


class StuckQueues:
    """State: since when queues have had no leader that is known here; those that wait with damage,
    and why.  Both are bounded by the number of queues.
    """

    def __init__(self, queues: ports.Neighbours, consumers: Consumers, commands: Commands) -> None:
        self._queues = queues
        self._consumers = consumers
        self._commands = commands
        self._leaderless: dict[int, float] = {}
        self._reasons: dict[int, str] = {}
        #: How far the last look came.
        self._looked = 0

    # ---- news -------------------------------------------------------------------------------

    def leader_changed(self, uid: int, leader: NodeId | None) -> None:
        """The replica here has a (new) leader, or none for now."""
        if leader is not None:
            self.forget(uid)
        else:
            self._leaderless.setdefault(uid, _now())

    def node_changed(self, node: NodeId, up: bool) -> None:
        """A member is heard again, or suspected.

        Without a replica here the loss of the leader is not reported, and a damaged replica does
        not notice it.
        """
        if up:
            return
        for uid in self._consumers.groups():
            if self._queues.host.leader_of(uid) in (node, None):
                self._leaderless.setdefault(uid, _now())

    def forget(self, uid: int) -> None:
        """The queue has a leader, or is gone."""
        self._leaderless.pop(uid, None)
        if self._reasons.pop(uid, None) is not None:
            self._commands.accept(uid)

    # ---- looking ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Look for as long as the broker runs."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """Ask after the next batch of the queues that commands or consumers wait for."""
        due = list(self._due())
        # Of very many, each look takes the next.
        first = self._looked if self._looked < len(due) else 0
        self._looked = first + quorum_calls.BATCH
        uids = due[first : self._looked]
        queues = {uid: queue for uid in uids if (queue := self._queues.queue_of(uid)) is not None}
        if not queues:
            return
        replicas = await self._ask(queues)
        still = self._due()
        for uid, queue in queues.items():
            if uid in still:
                self._judge(queue, *replicas[uid])

    def _due(self) -> dict[int, None]:
        """Return the queues without leader that somebody has waited for long enough."""
        since = _now() - PATIENCE_S
        due = dict.fromkeys(
            uid
            for uid, began in self._leaderless.items()
            if began <= since and self._consumers.has_group(uid)
        )
        due |= dict.fromkeys(self._commands.stalled(since))
        return due | dict.fromkeys(self._reasons)

    async def _ask(
        self, queues: Mapping[int, Queue]
    ) -> dict[int, tuple[list[NodeId], dict[NodeId, damage.ReplicaState]]]:
        """Return the voters of each queue, and what those say that answer."""
        nodes = {node for queue in queues.values() for node in queue.members}
        answers = await self._queues.calls.ask_all(nodes, "replicas", {"uids": list(queues)})
        rows: dict[int, dict[NodeId, dict[str, Any]]] = {uid: {} for uid in queues}
        for node, answer in answers.items():
            for row in answer["rows"]:
                rows[row["uid"]][NodeId(node)] = row
        found = {}
        for uid, queue in queues.items():
            newest = max(rows[uid].values(), key=lambda row: (row["term"], row["last"]), default={})
            voters = [NodeId(node) for node in newest.get("voters") or queue.members]
            states = {
                node: damage.ReplicaState(row["is_leader"], row["damaged"], bool(row["error"]))
                for node, row in rows[uid].items()
            }
            found[uid] = voters, states
        return found

    def _judge(
        self, queue: Queue, voters: list[NodeId], replicas: dict[NodeId, damage.ReplicaState]
    ) -> None:
        uid = queue.uid
        verdict = damage.judge(voters, replicas)
        if verdict is None:
            if uid in self._reasons:
                log.warning("%s waits for its damaged members no more", _name(queue))
            if uid in self._reasons or damage.has_leader(replicas):
                self.forget(uid)
            return
        # A classic queue has one member, of which the other command has nothing to tell.
        command = "quorum_status" if queue.type == "quorum" else "wal verify"
        reason = f"{_name(queue)} is {verdict.reason}; see 'brokerctl {command}'"
        if self._reasons.get(uid) != reason:
            log.error("%s", reason)
        self._reasons[uid] = reason
        self._commands.refuse(uid, reason, verdict.is_lasting)
        self._consumers.group_stuck(uid, reason)


def _name(queue: Queue) -> str:
    name = damage.shortened(queue.name, QUEUE_BYTES_MAX)
    return f"queue '{name}' in vhost '{damage.shortened(queue.vhost, VHOST_BYTES_MAX)}'"


def _now() -> float:
    return asyncio.get_running_loop().time()
