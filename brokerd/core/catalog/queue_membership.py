"""Which nodes are to hold a queue, beside those that do (R-QQ-23).

The record of a queue says where it is going, so that the next leader of its group goes on where the
last one stopped.  Pure; part of the catalog's records, changed by `catalog_machine.py` only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

#: Members of one queue at most (brokerd.raft.membership has the same bound).
MEMBERS_MAX = 64

#: Odd and large (2**64 over the golden ratio), so that lives and groups fall far apart.
_SPREAD = 0x9E3779B97F4A7C15

Json = dict[str, Any]

#: Of a queue that has the members of its creation, as most have: one for all of them.
NOBODY: Mapping[str, int] = MappingProxyType({})


@dataclass(slots=True)
class Membership:
    """What a queue's record knows of changes of its members.

    Invariants: `wanted` differs from the members as a set; `joined` names members only;
    `returning` names members that are not wanted.
    """

    #: The members that the group is to have; None: those that it has.
    wanted: list[str] | None = None
    #: Members that came later, and the catalog's revision that brought them.  Such a one starts
    #: empty and waits for its leader; the revision tells its lives apart, since a log that was
    #: removed is never written again.
    joined: Mapping[str, int] = field(default_factory=lambda: NOBODY)
    #: The members are those of the creation: one that has no log yet may begin with them.  Once a
    #: change is wanted, two of the first members that lost their disks could be the majority of a
    #: group that is none any more.
    is_founding: bool = True
    #: Nodes that were taken out by hand: a target size does not bring them back.
    excluded: tuple[str, ...] = ()
    #: Members that leave only to come back with a new log: wanted again once they are out, whatever
    #: becomes of the client that asked for it.
    returning: tuple[str, ...] = ()
    #: The catalog's revision that made the queue; 0: a release made it that did not write it down.
    created: int = 0

    def stored(self) -> Json:
        """Return the fields that say something, for a snapshot."""
        fields: Json = {}
        if self.wanted is not None:
            fields["wanted"] = self.wanted
        if self.joined:
            fields["joined"] = dict(self.joined)
        if not self.is_founding:
            fields["is_founding"] = False
        if self.excluded:
            fields["excluded"] = list(self.excluded)
        if self.returning:
            fields["returning"] = list(self.returning)
        if self.created:
            fields["created"] = self.created
        return fields


def restored(fields: Json) -> Membership:
    """Return what was stored; a release that knew nothing of it stored nothing."""
    return Membership(
        fields.get("wanted"),
        fields.get("joined", NOBODY),
        fields.get("is_founding", True),
        tuple(fields.get("excluded", ())),
        tuple(fields.get("returning", ())),
        fields.get("created", 0),
    )


def fault_of_wish(
    members: Sequence[str],
    add: Collection[str],
    cluster: Collection[str],
    returning: Collection[str] = (),
) -> str | None:
    """Return why a queue cannot get these members, None if it can.

    members: those that would be wanted; add: the new ones among them; returning: those that will be
    wanted again.
    """
    for node in add:
        if node not in cluster:
            return f"'{node}' is no member of the cluster; its members are {', '.join(cluster)}"
    if not members:
        return "a queue needs at least one member"
    if len({*members, *returning}) > MEMBERS_MAX:
        return f"a queue has at most {MEMBERS_MAX} members"
    return None


def after_wish(
    membership: Membership,
    members: Sequence[str],
    wanted: Sequence[str],
    add: Collection[str],
    remove: Collection[str],
    is_automatic: bool,
    comes_back: bool = False,
) -> Membership:
    """Return what the record knows once `wanted` is wished for.

    is_automatic: a target size or a damaged member asked for it, no person.
    comes_back: those of `remove`, all of them members, are wanted again once they are out.
    """
    returning = [node for node in membership.returning if node not in add and node not in remove]
    if comes_back:
        returning += remove
    excluded = [node for node in membership.excluded if node not in add]
    if not is_automatic:
        excluded += [node for node in remove if node not in excluded]
    return Membership(
        None if set(wanted) == set(members) else list(wanted),
        membership.joined,
        membership.is_founding and set(wanted) == set(members),
        tuple(excluded),
        tuple(returning),
        membership.created,
    )


def after_change(
    membership: Membership, before: Sequence[str], members: Sequence[str], revision: int
) -> Membership:
    """Return what the record knows once its members are these."""
    joined = {node: at for node, at in membership.joined.items() if node in members}
    joined |= {node: revision for node in members if node not in before}
    gone = [node for node in membership.returning if node not in members]
    returning = [node for node in membership.returning if node in members]
    wanted = membership.wanted
    if gone:
        wanted = list(dict.fromkeys([*(members if wanted is None else wanted), *gone]))
    if wanted is not None and set(wanted) == set(members):
        wanted = None
    return Membership(
        wanted, joined, False, membership.excluded, tuple(returning), created=membership.created
    )


def without_node(membership: Membership, node: str) -> None:
    """A node leaves the cluster: one of the same name that comes later is another one."""
    membership.excluded = tuple(name for name in membership.excluded if name != node)
    membership.returning = tuple(name for name in membership.returning if name != node)


def not_wanted(membership: Membership, members: Sequence[str], node: str) -> None:
    """A node has left the cluster: it can get no replica any more."""
    wanted = membership.wanted
    if wanted is not None and node not in members:
        wanted = [name for name in wanted if name != node]
        membership.wanted = None if set(wanted) == set(members) else wanted


def since(membership: Membership, node: str) -> int:
    """Return the catalog's revision that gave a member its replica; 0: not known."""
    return membership.joined.get(node, membership.created)


def log_uid(uid: int, membership: Membership, node: str) -> int:
    """Return what the log of a replica is called on its node.

    A member's second life is another log than its first: what was removed is never written again.
    """
    revision = membership.joined.get(node)
    return uid if revision is None else (uid + revision * _SPREAD) % (1 << 63)
