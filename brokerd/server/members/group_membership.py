"""Members of quorum queues' groups: their leaders bring about what the catalog wants (R-QQ-23).

Level-triggered: the leader of a group looks at what is, takes one step, and looks again, so that a
new leader goes on where the last one stopped (membership_steps.py decides, this does).  Woken by
changes of the catalog, by leadership, by members that come up, and every few seconds where a group
cannot go on.  Below stand the calls that people and leaving members make: grow and shrink.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from brokerd.cluster.groups import membership_steps, placement
from brokerd.cluster.groups.membership_steps import GroupView, Step, StepKind
from brokerd.core.catalog import catalog_commands, catalog_effects, policy
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import Configuration, NodeId
from brokerd.server.catalog import member_states
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.members import ports
from brokerd.server.members.replica_changes import Outcome, grow_member, shrink_member

__all__ = ["GroupMembership", "Outcome", "grow_member", "shrink_member"]

log = logging.getLogger(__name__)

#: Queues that are worked on at once; the others wait their turn.
CHANGES_MAX = 16
#: How often it is looked whether a learner has caught up.
POLL_S = 0.1
#: One queue is worked on for at most so long before others get their turn.
TURN_S = 20.0
#: How often a group that could not go on is looked at again.
RETRY_S = 3.0

_CHANGES = (StepKind.ADD_LEARNER, StepKind.PROMOTE, StepKind.REMOVE)
_SAID = {
    StepKind.RECORD_ADD: "queue '%s' in vhost '%s': member %s comes",
    StepKind.PROMOTE: "queue '%s' in vhost '%s': member %s has caught up and votes",
    StepKind.REMOVE: "queue '%s' in vhost '%s': member %s is taken out of the group",
    StepKind.HAND_OVER: "queue '%s' in vhost '%s': handed over to %s",
    StepKind.RECORD_REMOVE: "queue '%s' in vhost '%s': member %s has left",
}


class Member(ports.LedQueues, ports.Catalog, Protocol):
    """The queues of the catalog, their replicas here, and which of them are led here."""

    @property
    def host(self) -> ports.Replicas:
        """Return the replicas here."""
        ...


class GroupMembership:
    """State: queues led here that are to be looked at, are worked on, or cannot go on."""

    def __init__(self, member: Member, spawn: ports.Spawn, is_stopping: Callable[[], bool]) -> None:
        self._member = member
        self._spawn = spawn
        self._is_stopping = is_stopping
        self._waiting: dict[int, None] = {}
        self._working: set[int] = set()
        #: uid -> why, for people who ask.
        self.stuck: dict[int, str] = {}
        #: Queues that may be below their target size, and the task that looks after them.
        self._small: dict[int, None] = {}
        self._growing: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        #: All are to be looked at, and somebody does.
        self._wants_all = self._is_walking = False

    # ---- what wakes it ----------------------------------------------------------------------

    def wake(self, uid: int) -> None:
        """Something about a queue led here may have changed."""
        if not self._member.leads(uid):
            self.stuck.pop(uid, None)
            return
        self._consider_target(uid)
        if uid in self._working or self._step(uid).kind is StepKind.DONE:
            self.stuck.pop(uid, None)
            return
        self._waiting[uid] = None
        self._begin()

    def topology_changed(self, change: catalog_effects.TopologyChanged) -> None:
        """A listener of the catalog.  After a policy queues/leaders.py wakes who is concerned."""
        if change.kind == "queue":
            self.wake(change.uid)
        elif change.kind in ("member", "setting"):
            self.wake_all()

    def wake_all(self) -> None:
        """Look at all queues that are led here, some in each turn of the loop.

        A member that comes back often, since it has too little time, must not cost the others
        theirs: ten thousand queues take a tenth of a second.
        """
        self._wants_all = True
        if not self._is_walking:
            self._is_walking = True
            self._spawn(self._wake_all())

    async def _wake_all(self) -> None:
        try:
            while self._wants_all:
                self._wants_all = False
                async for uids in in_chunks(self._member.queue_uids()):
                    for uid in filter(self._member.leads, uids):
                        self.wake(uid)
        finally:
            self._is_walking = False

    def close(self) -> None:
        """The broker ends."""
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    # ---- work -------------------------------------------------------------------------------

    def _begin(self) -> None:
        while self._waiting and len(self._working) < CHANGES_MAX:
            uid = next(iter(self._waiting))
            del self._waiting[uid]
            if uid not in self._working:
                self._working.add(uid)
                self._spawn(self._work(uid))

    async def _work(self, uid: int) -> None:
        """Take steps until nothing is left, or nothing can be done now."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TURN_S
        reason = ""
        try:
            while loop.time() < deadline:
                step = self._step(uid)
                reason = step.reason
                if step.kind is StepKind.DONE:
                    return
                if step.kind is not StepKind.WAIT:
                    await self._do(uid, step)
                elif self._is_soon(uid, step):
                    await asyncio.sleep(POLL_S)
                else:
                    return
        except Unavailable as error:
            reason = str(error)
        finally:
            self._working.discard(uid)
            self._ended(uid, reason)

    def _ended(self, uid: int, reason: str) -> None:
        if self._member.leads(uid) and self._step(uid).kind is not StepKind.DONE:
            self.stuck[uid] = reason or "it goes on in a moment"
            if self._retry is None and not self._is_stopping():
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(RETRY_S, self._retry_stuck)
        else:
            self.stuck.pop(uid, None)
        self._begin()

    def _retry_stuck(self) -> None:
        self._retry = None
        for uid in list(self.stuck):
            self.wake(uid)

    def _is_soon(self, uid: int, step: Step) -> bool:
        """Tell whether waiting a moment may help: a learner catches up, a change is committed."""
        learners = self._member.host.status_of(uid).members.learners
        return not step.node or (step.node in learners and step.node in self._member.host.alive())

    def _step(self, uid: int) -> Step:
        member = self._member
        queue = member.queue_of(uid)
        if queue is None or queue.type != "quorum" or not member.leads(uid):
            return Step(StepKind.DONE)
        status = member.host.status_of(uid)
        members = [NodeId(node) for node in queue.members]
        is_quiet = queue.membership.wanted is None and not status.members.learners
        if is_quiet and set(status.members.voters) == set(members):
            return Step(StepKind.DONE)
        # A member that left the cluster while it was being added is waited for in vain.
        cluster = member.view.members()
        view = GroupView(
            leader=member.host.node,
            members=members,
            wanted=[NodeId(node) for node in queue.wanted_members if node in cluster],
            configuration=status.members,
            may_change=status.may_change,
            alive=frozenset(member.host.alive()),
            configuration_index=status.members_index,
            last_index=status.last,
            match={node: status.last - lag for node, lag in status.lag.items()},
        )
        return membership_steps.next_step(view)

    async def _do(self, uid: int, step: Step) -> None:
        queue = self._member.queue_of(uid)
        assert queue is not None
        if step.kind in _SAID:
            log.info(_SAID[step.kind], queue.name, queue.vhost, step.node)
        if step.kind in _CHANGES:
            await self._change(uid, step)
        elif step.kind is StepKind.HAND_OVER:
            self._member.host.transfer_leadership(uid, step.node)
            await asyncio.sleep(POLL_S)
        else:
            await self._record(queue, step)

    async def _change(self, uid: int, step: Step) -> None:
        """Change the group's configuration; what is refused now is tried again."""
        host = self._member.host
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def done(accepted: bool, _: bytes, __: NodeId | None) -> None:
            if not future.done():
                future.set_result(accepted)

        configuration: Configuration = host.status_of(uid).members
        host.change_members(uid, membership_steps.changed(configuration, step), done)
        try:
            async with asyncio.timeout(TURN_S):
                if not await future:
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            # It is in the log; whether it is committed shows later.
            return

    async def _record(self, queue: Queue, step: Step) -> None:
        members = [node for node in queue.members if node != step.node]
        if step.kind is StepKind.RECORD_ADD:
            members.append(step.node)
        await self._member.write(
            catalog_commands.set_queue_members(
                queue.vhost, queue.name, queue.uid, members, revision=queue.revision
            )
        )

    # ---- a target size ----------------------------------------------------------------------

    def _consider_target(self, uid: int) -> None:
        """Policy target-group-size and x-quorum-target-group-size: grow, never shrink (R-QQ-23)."""
        queue = self._member.queue_of(uid)
        if queue is None or self._missing(queue) <= 0:
            return
        self._small[uid] = None
        if self._growing is None:
            self._growing = self._spawn(self._grow_small())

    def _missing(self, queue: Queue) -> int:
        """Return how many members a queue is below its target size."""
        view = self._member.view
        # A deleted queue's vhost may be gone, too.
        if queue.type != "quorum" or view.queue(queue.vhost, queue.name) is not queue:
            return 0
        target = policy.effective_queue(view, queue).values.get("target-group-size", 0)
        return int(target) - len({*queue.wanted_members, *queue.membership.returning})

    async def _grow_small(self) -> None:
        """One queue after the other, so that each sees where the last one's replicas went."""
        member = self._member
        try:
            while self._small:
                uid = next(iter(self._small))
                del self._small[uid]
                queue = member.queue_of(uid)
                if queue is not None and member.leads(uid):
                    await self._grow(queue)
        except Unavailable as error:
            log.warning("queues do not grow to their target size now: %s", error)
        finally:
            self._growing = None

    async def _grow(self, queue: Queue) -> None:
        member = self._member
        running = {node for node in member.view.members() if node in member.host.alive()}
        running -= {*queue.wanted_members, *queue.membership.excluded}
        candidates = {NodeId(node) for node in running} - member_states.resting(member.view)
        missing = self._missing(queue)
        if missing <= 0 or not candidates:
            return
        counts = placement.replica_counts(other.wanted_members for other in member.view.queues())
        # Those that leave to come back will be there again.
        present = dict.fromkeys([*queue.wanted_members, *queue.membership.returning])
        chosen = placement.newcomers(
            candidates,
            [NodeId(node) for node in present],
            counts,
            missing,
            member_states.domains(member.view),
        )
        log.info("queue '%s' in vhost '%s' grows to its target size", queue.name, queue.vhost)
        await member.write(
            catalog_commands.want_queue_members(
                queue.vhost, queue.name, queue.uid, add=chosen, is_automatic=True
            )
        )
