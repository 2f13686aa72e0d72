"""The catalog's group follows the list of members, and nobody goes who is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import pytest

from brokerd.cluster.groups.membership_steps import StepKind
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.raft.messages import CATALOG_GROUP, Configuration, NodeId
from brokerd.server.catalog import member_states
from brokerd.server.members.catalog_members import CatalogMembers
from brokerd.server.members.joining import VOTERS_MAX
from tests.unit.core.catalog_driver import StepMeta
from tests.unit.server.members import fakes

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")


class Catalog:
    """A catalog that applies at once."""

    def __init__(self) -> None:
        self._machine = CatalogMachine()
        self._index = 0
        self.apply(catalog_commands.bootstrap("uid", "test"))
        for node in (A, B, C):
            self.apply(catalog_commands.put_member(node, f"{node}:1"))

    @property
    def view(self) -> CatalogState:
        return self._machine.state

    def apply(self, operation: dict[str, Any]) -> dict[str, Any]:
        self._index += 1
        meta = StepMeta(self._index)
        outcome = self._machine.apply(meta, catalog_commands.encode(operation))
        return catalog_commands.decode_reply(outcome.reply)

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        return self.apply(operation)

    def leaves(self, node: NodeId) -> None:
        setting = catalog_commands.member_state(node)
        self.apply(catalog_commands.set_setting(setting, member_states.LEAVING))

    def queue(self, queue_type: str, *members: NodeId) -> None:
        spec = fakes.SPEC | {"type": queue_type}
        put = catalog_commands.put(
            "queue", "/", "q", spec, cause="test", uid=1 << 20, members=members
        )
        assert self.apply(put)["code"] == catalog_commands.OK


async def _nobody_to_hand_over(_timeout_s: float, _avoid: Collection[NodeId] = ()) -> int:
    return 0


def members_of(catalog: Catalog) -> tuple[CatalogMembers, fakes.Replicas]:
    host = fakes.Replicas(A, B, C)
    host.by_uid[CATALOG_GROUP] = fakes.status(A, B, C, is_leader=True, may_change=True)
    return CatalogMembers(catalog, host, _nobody_to_hand_over), host


async def one_step(catalog: Catalog) -> list[tuple[int, Configuration]]:
    """Return the change that is asked for."""
    members, host = members_of(catalog)
    step = members._next_step()
    assert step is not None
    await members._do(step)
    return host.changes


async def test_a_member_that_leaves_is_taken_out_when_no_queue_needs_it() -> None:
    catalog = Catalog()
    catalog.leaves(C)
    assert await one_step(catalog) == [(CATALOG_GROUP, Configuration((A, B)))]


async def test_a_member_that_leaves_stays_while_a_group_counts_on_its_replica() -> None:
    """R-QQ-23: the others would talk to it no more, and the group would have a voter less."""
    catalog = Catalog()
    catalog.queue("quorum", A, B, C)
    catalog.leaves(C)
    assert await one_step(catalog) == []
    move = catalog_commands.want_queue_members("/", "q", 1 << 20, remove=[C])
    assert catalog.apply(move)["code"] == catalog_commands.OK
    assert await one_step(catalog) == [], "the group has not let go of it yet"
    catalog.apply(catalog_commands.set_queue_members("/", "q", 1 << 20, [A, B]))
    assert await one_step(catalog) == [(CATALOG_GROUP, Configuration((A, B)))]


async def test_a_queue_of_one_member_keeps_nobody() -> None:
    """Whoever takes the member out has decided about it (RemoveMember)."""
    catalog = Catalog()
    catalog.queue("classic", C)
    catalog.leaves(C)
    assert await one_step(catalog) == [(CATALOG_GROUP, Configuration((A, B)))]


async def test_in_a_large_cluster_voters_are_spread_over_zones_and_the_others_learn() -> None:
    """ADR 44: of nine members in three zones seven vote, at most three in one zone."""
    names = [NodeId(f"{zone}{number}") for zone in "abc" for number in range(3)]
    catalog = Catalog()
    for node in (A, B, C):
        catalog.apply(catalog_commands.remove_member(node))
    for node in names:
        catalog.apply(catalog_commands.put_member(node, f"{node}:1"))
        domain = catalog_commands.member_domain(node)
        catalog.apply(catalog_commands.set_setting(domain, {"host": "", "zone": node[0]}))
    host = fakes.Replicas(*names)
    now = Configuration((names[0],), tuple(names[1:]))
    while True:
        status = fakes.status(*now.voters, last=5, is_leader=True, may_change=True)
        known = dict.fromkeys(names[1:], 0)
        host.by_uid[CATALOG_GROUP] = replace(status, members=now, lag=known)
        members = CatalogMembers(catalog, host, _nobody_to_hand_over)
        step = members._next_step()
        assert step is not None
        if step.kind is StepKind.DONE:
            break
        await members._do(step)
        now = host.changes[-1][1]
    assert len(now.voters) == VOTERS_MAX
    assert len(now.learners) == 2
    zones = Counter(node[0] for node in now.voters)
    assert sorted(zones.values()) == [2, 2, 3]


def test_a_member_that_does_not_lead_looks_at_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks twice a second, and thirty members are 276 pairs to compare."""
    members, host = members_of(Catalog())
    host.by_uid[CATALOG_GROUP] = fakes.status(A, B, C)
    monkeypatch.setattr(members, "_in_order", None)
    assert members._next_step() is None
