"""A replica that lost messages leaves its group and comes back, whoever ends in between (G8)."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster.groups import membership_steps
from brokerd.cluster.groups.membership_steps import GroupView, StepKind
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import Configuration, NodeId
from brokerd.server.members.group_membership import GroupMembership
from brokerd.server.members.replica_changes import MembershipError, renew_member
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.members.fakes import Replicas, Tasks

A, B, C = (NodeId(name) for name in "abc")
_CONFIGURED = (StepKind.ADD_LEARNER, StepKind.PROMOTE, StepKind.REMOVE)


class Cluster:
    """The catalog of three members, a queue on all of them, and the steps of the queue's leader."""

    def __init__(self) -> None:
        self.catalog = CatalogDriver()
        for node in "abc":
            self.catalog.do(catalog_commands.put_member(node, f"{node}:5690"))
        self.catalog.put("queue", "q", {"type": "quorum"}, uid=5, members=["a", "b", "c"])
        self.configuration = Configuration((A, B, C))
        self.view = self.catalog.view
        self.host = Replicas(A, B, C)

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        return self.catalog.do(operation)

    def queue_of(self, uid: int) -> Queue | None:
        return self.queue()

    def queue_uids(self) -> list[int]:
        return [5]

    def leads(self, uid: int) -> bool:
        return True

    def queue(self) -> Queue:
        found: Queue = self.catalog.found("q")
        return found

    async def renew(self) -> None:
        await renew_member(self, self.host, "c", self.queue())

    def step(self) -> StepKind:
        """Take the next step, as GroupMembership of any leader does."""
        queue = self.queue()
        step = membership_steps.next_step(
            GroupView(
                A,
                [NodeId(node) for node in queue.members],
                [NodeId(node) for node in queue.wanted_members],
                self.configuration,
                True,
                frozenset(self.host.up),
                match={A: 9, B: 9, C: 9},
            )
        )
        members = [node for node in queue.members if node != step.node]
        if step.kind in _CONFIGURED:
            self.configuration = membership_steps.changed(self.configuration, step)
        elif step.kind is StepKind.RECORD_ADD:
            self._record([*members, step.node])
        elif step.kind is StepKind.RECORD_REMOVE:
            self._record(members)
        return step.kind

    def _record(self, members: list[str]) -> None:
        self.catalog.do(catalog_commands.set_queue_members("/", "q", 5, members))

    def run_until(self, *kinds: StepKind) -> None:
        for _ in range(20):
            if self.step() in kinds:
                return
        raise AssertionError(f"it does not come to {kinds}")


@pytest.mark.parametrize(
    "killed_at",
    [StepKind.REMOVE, StepKind.RECORD_REMOVE, StepKind.RECORD_ADD, StepKind.ADD_LEARNER],
)
async def test_member_killed_on_its_way_out_or_in_is_a_member_again_when_it_returns(
    killed_at: StepKind,
) -> None:
    """It remembers nothing of what it was about to do: the queue was a member short for ever."""
    cluster = Cluster()
    await cluster.renew()
    cluster.run_until(killed_at)
    cluster.host.up.discard(C)
    cluster.run_until(StepKind.WAIT, StepKind.DONE)
    cluster.host.up.add(C)
    cluster.run_until(StepKind.DONE)
    assert cluster.configuration == Configuration((A, B, C))
    assert cluster.queue().wanted_members == ["a", "b", "c"]
    # Its new log is another one than that which had lost messages.
    assert list(cluster.queue().membership.joined) == ["c"]


async def test_a_group_that_cannot_do_without_a_replica_keeps_it() -> None:
    cluster = Cluster()
    cluster.host.up.discard(B)
    with pytest.raises(MembershipError, match="the other members would have no majority: 1 of 2"):
        await cluster.renew()
    assert cluster.step() is StepKind.DONE


async def test_a_wish_that_the_catalog_refuses_says_why() -> None:
    cluster = Cluster()
    gone = cluster.queue()
    cluster.catalog.do(catalog_commands.delete("queue", "/", "q", cause="admin"))
    with pytest.raises(MembershipError, match="queue 'q' not found"):
        await renew_member(cluster, cluster.host, "c", gone)


async def test_a_target_size_counts_who_is_on_its_way_back() -> None:
    """R-QQ-23: it would take the leaving replica for a missing one, and make another elsewhere."""
    cluster = Cluster()
    spec = {"pattern": ".*", "definition": {"target-group-size": 3}}
    cluster.catalog.put("policy", "three", spec)
    membership = GroupMembership(cluster, Tasks().spawn, lambda: False)
    await cluster.renew()
    assert cluster.queue().wanted_members == ["a", "b"]
    assert membership._missing(cluster.queue()) == 0
    cluster.catalog.do(catalog_commands.want_queue_members("/", "q", 5, remove=["c"]))
    assert membership._missing(cluster.queue()) == 1
