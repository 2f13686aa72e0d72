"""The planner: desired and observed objects of one resource in, actions or a conflict out. PURE.

This is the apply table of design/operator.md §8, and nothing else decides what is written to a
broker. Both shells (Kubernetes and the embedded mode) call it. Unchanged objects cost no action.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from brokerd_operator.reconcile import drift, ordering, ownership, reserved
from brokerd_operator.reconcile.actions import (
    Action,
    Conflict,
    Delete,
    Plan,
    Precondition,
    SetOwner,
    Upsert,
)
from brokerd_operator.reconcile.drift import Difference
from brokerd_operator.reconcile.ownership import Relation, Token
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs import arguments
from brokerd_operator.specs.model import DesiredObject, Identity, Meta, TopologySpec
from brokerd_operator.specs.queue import QueueSpec

#: Fields that no update can change, by kind of object (design/operator.md §1).
IDENTITY_FIELDS = {
    "exchange": ("type", "durable", "auto_delete", "internal", "arguments"),
    "queue": ("type", "durable", "auto_delete", "arguments"),
}


@dataclass(frozen=True, slots=True)
class Written:
    """What we wrote last to an object with write-only keys, and the hash the broker answered."""

    desired: str
    hash: str


@dataclass(frozen=True, slots=True)
class Context:
    """What the planner needs to know besides the resource and the broker."""

    instance: str
    is_paused: bool = False
    may_take_over: bool = False
    #: The generation that the annotation `confirm` names.
    confirmed_generation: int | None = None
    #: Generation at which the broker removed the object by its own terms, if it did.
    expired_generation: int | None = None
    written: Mapping[Identity, Written] = field(default_factory=dict)
    #: The user that the operator itself logs in as.
    account: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource with its objects."""

    kind: str
    meta: Meta
    spec: TopologySpec
    objects: tuple[DesiredObject, ...]

    @property
    def name(self) -> str:
        return ownership.resource_name(self.kind, self.meta)


@dataclass(frozen=True, slots=True)
class _Step:
    actions: tuple[Action, ...] = ()
    drift: tuple[Difference, ...] = ()
    is_adoption: bool = False
    is_missing: bool = False


def plan(resource: Resource, observed: Topology, context: Context) -> Plan | Conflict:
    """Decide what brings the broker to what the resource asks for."""
    token = ownership.token_of(
        resource.kind, resource.meta, resource.spec, context.instance, context.is_paused
    )
    for item in resource.objects:
        if reserved.is_reserved(item.identity, context.account):
            return Conflict("Reserved", reserved.refusal(item.identity, context.account))
    if context.is_paused:
        return _pause(resource, observed, token)
    steps: list[_Step] = []
    missing: list[Identity] = []
    for item in sorted(resource.objects, key=_order):
        step = _step(resource, item, observed.get(item.identity), token, context)
        if isinstance(step, Conflict):
            return step
        if step.is_missing:
            missing.append(item.identity)
        steps.append(step)
    if missing and context.expired_generation == resource.meta.generation:
        return Conflict("Expired", "the broker removed it by its own terms (autoDelete or expires)")
    vanished = _vanished(resource, observed, token)
    found = Plan(
        # New ones first, old ones then: no gap (design/operator.md §5.3).
        actions=tuple(
            _confirmed(action, resource, context) for step in steps for action in step.actions
        )
        + reserved.spared(vanished, context.account),
        drift=tuple(item for step in steps for item in step.drift),
        is_adoption=any(step.is_adoption for step in steps),
        missing=tuple(missing),
    )
    if resource.spec.drift_policy == "Report":
        return replace(found, actions=(), is_adoption=False)
    return found


def _confirmed(action: Action, resource: Resource, context: Context) -> Action:
    """Pass the annotation's consent on to the broker, which alone knows the changes of some kinds
    that lose messages (a federation upstream's).
    """
    if context.confirmed_generation != resource.meta.generation or not isinstance(action, Upsert):
        return action
    return replace(action, is_confirmed=True)


def _order(item: DesiredObject) -> tuple[int, str, str]:
    return (ordering.rank(item.kind), item.vhost, item.name)


def _pause(resource: Resource, observed: Topology, token: Token) -> Plan:
    """Paused: nothing is written but the word that the orphan sweep leaves the objects alone."""
    actions = tuple(
        SetOwner(item.identity, replace(item.owner, deletion_policy=ownership.LEAVE))
        for item in observed.owned_by(resource.name)
        if item.owner is not None
        and item.owner.managed_by == token.managed_by
        and item.owner.deletion_policy != ownership.LEAVE
    )
    return Plan(actions=actions)


def _step(
    resource: Resource,
    item: DesiredObject,
    present: ObservedObject | None,
    token: Token,
    context: Context,
) -> _Step | Conflict:
    if present is None:
        action = Upsert(item, token, Precondition(is_absent=True))
        return _Step((action,), is_missing=True)
    relation = ownership.relation(present.owner, token)
    if relation is Relation.OTHERS and not context.may_take_over:
        assert present.owner is not None
        return Conflict(
            "OwnedByOther",
            f"{shown(item.identity)} belongs to {present.owner.resource} "
            f"(managed by {present.owner.managed_by})",
        )
    found = drift.differences(item, present.spec)
    is_equal = not found and _has_same_secrets(item, present, context)
    precondition = _precondition(present)
    if relation is Relation.NOBODYS:
        if reserved.is_right_of(item.identity, context.account):
            return Conflict("Reserved", reserved.refusal(item.identity, context.account), found)
        return _adopt(resource, item, found, is_equal, precondition, token)
    if is_equal:
        if present.owner == token:
            return _Step()
        return _Step((SetOwner(item.identity, token, precondition),))
    return _change(resource, item, present, found, token, context)


def _precondition(present: ObservedObject) -> Precondition:
    return Precondition(
        hash=present.hash, owner_uid=present.owner.uid if present.owner is not None else ""
    )


def _has_same_secrets(item: DesiredObject, present: ObservedObject, context: Context) -> bool:
    """Write-only keys are equal if the object is unchanged since we wrote the same."""
    if not item.write_only:
        return True
    written = context.written.get(item.identity)
    return written is not None and written == Written(full_digest(item), present.hash)


def full_digest(item: DesiredObject) -> str:
    """Digest of a spec with its secrets; kept in memory only, never shown (SEC-20)."""
    return arguments.digest(item.spec, 64)


def _adopt(
    resource: Resource,
    item: DesiredObject,
    found: tuple[Difference, ...],
    is_equal: bool,
    precondition: Precondition,
    token: Token,
) -> _Step | Conflict:
    policy = resource.spec.adoption_policy
    if policy == "Never":
        return Conflict(
            "ExistsDifferently",
            f"{shown(item.identity)} exists and no resource owns it; adoptionPolicy is Never",
            found,
        )
    if is_equal:
        return _Step((SetOwner(item.identity, token, precondition),), is_adoption=True)
    if found and policy != "Always":
        fields = ", ".join(entry.path for entry in found[: drift.DIFFERENCES_MAX])
        return Conflict(
            "ExistsDifferently", f"{shown(item.identity)} exists and differs in {fields}", found
        )
    if item.kind == "user" and policy != "Always":
        return Conflict(
            "ExistsDifferently",
            f"{shown(item.identity)} exists with another password, and no resource owns it; to "
            "give it this one, set adoptionPolicy to Always",
        )
    refused = _immutable(item, found)
    if refused is not None:
        return refused
    # Equal as far as can be seen: write-only keys are written anew.
    return _Step((Upsert(item, token, precondition),), found, is_adoption=True)


def _change(
    resource: Resource,
    item: DesiredObject,
    present: ObservedObject,
    found: tuple[Difference, ...],
    token: Token,
    context: Context,
) -> _Step | Conflict:
    refused = _immutable(item, found)
    precondition = Precondition(owner_uid=present.owner.uid if present.owner else "")
    if refused is not None:
        spec = resource.spec
        if not isinstance(spec, QueueSpec) or spec.on_immutable_change != "RecreateIfEmpty":
            return refused
        actions = (
            Delete(item.identity, precondition, if_empty=True, if_unused=True),
            Upsert(item, token, Precondition(is_absent=True)),
        )
        return _Step(actions, found)
    if _drops_dead_letters(found) and context.confirmed_generation != resource.meta.generation:
        return Conflict(
            "ConfirmationRequired",
            "leaving at-least-once discards dead letters that are not confirmed yet (R-ALO-9); "
            f'annotate brokerd.io/confirm: "{resource.meta.generation}" to go on',
            found,
        )
    return _Step((Upsert(item, token, precondition),), found)


def _immutable(item: DesiredObject, found: tuple[Difference, ...]) -> Conflict | None:
    fields = IDENTITY_FIELDS.get(item.kind, ())
    wrong = [entry.path for entry in found if entry.path.partition(".")[0] in fields]
    if not wrong:
        return None
    return Conflict(
        "ImmutableChange", f"{shown(item.identity)}: {', '.join(wrong)} cannot change", found
    )


def _drops_dead_letters(found: tuple[Difference, ...]) -> bool:
    return any(
        entry.path == "settings.dead-letter-strategy" and entry.observed == "at-least-once"
        for entry in found
    )


def _vanished(resource: Resource, observed: Topology, token: Token) -> tuple[Action, ...]:
    """What this resource made and no longer names, such as the binding of a key that went."""
    wanted = {item.identity for item in resource.objects}
    gone = [
        item
        for item in observed.owned_by(resource.name)
        if item.identity not in wanted
        and ownership.relation(item.owner, token) is not Relation.OTHERS
    ]
    gone.sort(key=lambda item: (-ordering.rank(item.kind), item.vhost, item.name))
    return tuple(Delete(item.identity, _precondition_of_owner(item)) for item in gone)


def _precondition_of_owner(item: ObservedObject) -> Precondition:
    return Precondition(owner_uid=item.owner.uid if item.owner is not None else "")


def shown(identity: Identity) -> str:
    """An object in words."""
    place = f" in {identity.vhost}" if identity.vhost else ""
    return f"{identity.kind.replace('_', ' ')} {identity.name or '(default)'}{place}"
