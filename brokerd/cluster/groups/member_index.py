"""Which groups here have a replica at which node; for host.py only."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from brokerd.cluster.groups.driver import Driver
from brokerd.raft.messages import NodeId, members_of


class MemberIndex:
    """State: uids by member.  Invariant: as the drivers' `members` say, this node's included."""

    def __init__(self) -> None:
        self._with_member: dict[NodeId, set[int]] = {}

    def groups_with(self, node: NodeId) -> Collection[int]:
        """Return the uids of the groups that a node is a member of."""
        return self._with_member.get(node, ())

    def update(self, driver: Driver) -> None:
        """Take over the configuration in force."""
        configuration = driver.replica.configuration
        driver.configuration = configuration
        members = members_of(configuration)
        for node in driver.members - members:
            self._with_member[node].discard(driver.uid)
        for node in members - driver.members:
            self._with_member.setdefault(node, set()).add(driver.uid)
        driver.members = members

    def remove(self, uid: int, members: Iterable[NodeId]) -> None:
        """The group is closed, which had these members."""
        for node in members:
            self._with_member[node].discard(uid)
