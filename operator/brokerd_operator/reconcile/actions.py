"""What the planner decides: operations on a broker, or why there are none. PURE.

The broker room turns actions into operations of the Admin service one to one.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd_operator.reconcile.drift import Difference
from brokerd_operator.reconcile.ownership import Token
from brokerd_operator.specs.model import DesiredObject, Identity


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must still be true when the broker gets to the operation; all empty: anything."""

    is_absent: bool = False
    hash: str = ""
    owner_uid: str = ""


@dataclass(frozen=True, slots=True)
class Upsert:
    """Make an object, or make it as it shall be."""

    item: DesiredObject
    #: None: no owner, or the one that it has already.
    owner: Token | None
    precondition: Precondition = Precondition()
    #: Even if messages are lost by it; the broker says when it wants to know.
    is_confirmed: bool = False

    @property
    def identity(self) -> Identity:
        return self.item.identity


@dataclass(frozen=True, slots=True)
class SetOwner:
    """Change the token only; None takes it away."""

    identity: Identity
    owner: Token | None
    precondition: Precondition = Precondition()


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove an object; conditions on messages and users are atomic in the broker's log."""

    identity: Identity
    precondition: Precondition = Precondition()
    if_empty: bool = False
    if_unused: bool = False


Action = Upsert | SetOwner | Delete


@dataclass(frozen=True, slots=True)
class Plan:
    """The operations of one resource, in their order, and what they mean."""

    actions: tuple[Action, ...] = ()
    #: What differed, in words of the object's spec.
    drift: tuple[Difference, ...] = ()
    is_adoption: bool = False
    #: Objects that are to be made because they are not there.
    missing: tuple[Identity, ...] = ()

    @property
    def is_in_sync(self) -> bool:
        return not self.drift and not self.missing


@dataclass(frozen=True, slots=True)
class Conflict:
    """The resource cannot be applied as things are; becomes a condition with this reason."""

    reason: str
    message: str
    drift: tuple[Difference, ...] = ()
