"""The operator's own account in a broker, which no resource may take over, weaken or delete. PURE.

It is the user that the operator logs in as; a resource that names it would change the password
under the operator, or take the account along when it goes (ADR 21). For the planner, the passes and
the orphan sweep.
"""

from __future__ import annotations

from collections.abc import Iterable

from brokerd_operator.reconcile.actions import Action, Delete, SetOwner
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs.model import Identity

#: Where the first start of a cluster gives the account all rights.
DEFAULT_VHOST = "/"


def user(account: str) -> Identity:
    return Identity("user", "", account)


def permission(account: str) -> Identity:
    return Identity("permission", DEFAULT_VHOST, account)


def is_reserved(identity: Identity, account: str) -> bool:
    """Whether an object is the account, or the rights that it was made with."""
    return bool(account) and identity in (user(account), permission(account))


def is_right_of(identity: Identity, account: str) -> bool:
    """Whether an object is among the account's rights: no resource may adopt one that is there."""
    kinds = ("permission", "topic_permission")
    return bool(account) and identity.kind in kinds and identity.name == account


def let_go(owned: Iterable[ObservedObject], account: str) -> tuple[SetOwner, ...]:
    """What a resource took over in an earlier release, given back."""
    found = [item.identity for item in owned if is_reserved(item.identity, account)]
    return tuple(SetOwner(identity, None) for identity in found)


def spared(actions: Iterable[Action], account: str) -> tuple[Action, ...]:
    """The actions, with the account let go of instead of deleted."""
    return tuple(
        SetOwner(action.identity, None, action.precondition)
        if isinstance(action, Delete) and is_reserved(action.identity, account)
        else action
        for action in actions
    )


def refusal(identity: Identity, account: str) -> str:
    """Why a resource is refused, and what to do."""
    if identity.kind == "user":
        return (
            f"user {account} is the operator's own account on this broker and belongs to no "
            "resource: give this User another name; the account's password is changed in its Secret"
        )
    return (
        f"the rights of user {account} in {identity.vhost} are those of the operator's own account "
        "on this broker and belong to no resource: delete this Permission, or name another user"
    )
