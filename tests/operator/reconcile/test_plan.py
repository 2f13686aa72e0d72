"""The planner: the apply table of design/operator.md §8, row by row, and what goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from brokerd_operator.reconcile import dependencies, ordering, ownership, plan
from brokerd_operator.reconcile.actions import Action, Conflict, Delete, Plan, SetOwner, Upsert
from brokerd_operator.reconcile.ownership import Token
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs import arguments, registry
from brokerd_operator.specs.model import (
    ClusterAddress,
    Dependency,
    Identity,
    Inputs,
    Meta,
    TopologySpec,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.operator.resources import resource

CONTEXT = plan.Context("brokerd")


def made(kind: str, metadata_name: str = "thing", /, **spec: Any) -> plan.Resource:
    """A resource with its objects, as the engine hands it to the planner."""
    body = resource(kind, metadata_name, **spec)
    body["metadata"] |= {"uid": "u1", "generation": 2}
    meta = Meta.of(body)
    parsed = registry.parse(body)
    assert isinstance(parsed, TopologySpec), parsed
    secrets = {"default/thing-credentials": {"password": b"p"}}
    clusters = {"default/warehouse": ClusterAddress(("127.0.0.1:5672",), "u", "p")}
    objects = registry.desired(parsed, meta, Inputs(secrets, clusters))
    assert isinstance(objects, tuple), objects
    return plan.Resource(kind, meta, parsed, objects)


def token(item: plan.Resource, **changes: Any) -> Token:
    mine = ownership.token_of(item.kind, item.meta, item.spec, "brokerd", False)
    return replace(mine, **changes)


def holding(item: plan.Resource, owner: Token | None, **changes: Any) -> Topology:
    """A broker that holds the resource's objects, with changes of their specs."""
    topology = Topology()
    for wanted in item.objects:
        hidden = {path for path in wanted.write_only if "." not in path}
        spec = {key: value for key, value in wanted.spec.items() if key not in hidden} | changes
        digest = arguments.digest(spec)
        topology.put(ObservedObject(wanted.kind, wanted.vhost, wanted.name, spec, digest, owner, 1))
    return topology


def actions(found: Plan | Conflict) -> Sequence[Action]:
    assert isinstance(found, Plan), found
    return found.actions


def test_absent_object_is_created_only_if_it_is_still_absent() -> None:
    item = made("Queue")
    (action,) = actions(plan.plan(item, Topology(), CONTEXT))
    assert isinstance(action, Upsert)
    assert action.precondition.is_absent
    assert action.owner == token(item)
    assert action.owner.resource == "Queue/default/thing"


def test_equal_object_of_ours_costs_nothing() -> None:
    item = made("Queue", maxLength=5)
    found = plan.plan(item, holding(item, token(item)), CONTEXT)
    assert actions(found) == ()
    assert isinstance(found, Plan)
    assert found.is_in_sync


def test_changed_setting_of_ours_is_updated_and_named() -> None:
    item = made("Queue", maxLength=5)
    found = plan.plan(item, holding(item, token(item), settings={"max-length": 9}), CONTEXT)
    (action,) = actions(found)
    assert isinstance(action, Upsert)
    assert action.precondition.owner_uid == "u1"
    assert isinstance(found, Plan)
    (difference,) = found.drift
    assert difference.to_json() == {
        "path": "settings.max-length",
        "desired": "5",
        "observed": "9",
    }


def test_unowned_equal_object_is_adopted_without_writing_its_spec() -> None:
    item = made("Exchange", type="topic")
    found = plan.plan(item, holding(item, None), CONTEXT)
    (action,) = actions(found)
    assert isinstance(action, SetOwner)
    assert isinstance(found, Plan)
    assert found.is_adoption


@pytest.mark.parametrize("is_ours", [True, False])
def test_queue_whose_client_gave_its_type_as_an_argument_too_is_equal(is_ours: bool) -> None:
    """R-Q-4: so clients declare quorum queues, and so RabbitMQ 4.3 exports all of them."""
    item = made("Queue", maxPriority=4)
    table = {"x-max-priority": 4, "x-queue-type": "quorum"}
    found = plan.plan(
        item, holding(item, token(item) if is_ours else None, arguments=table), CONTEXT
    )
    assert isinstance(found, Plan), found
    assert [type(action) for action in found.actions] == ([] if is_ours else [SetOwner])
    assert found.drift == ()


def test_type_of_a_queue_among_an_exchanges_arguments_is_a_difference() -> None:
    item = made("Exchange", type="topic")
    found = plan.plan(item, holding(item, None, arguments={"x-queue-type": "quorum"}), CONTEXT)
    assert isinstance(found, Conflict)
    assert found.reason == "ExistsDifferently"


@pytest.mark.parametrize(
    ("policy", "differs", "reason"),
    [
        ("IfIdentical", True, "ExistsDifferently"),
        ("Never", False, "ExistsDifferently"),
        ("Never", True, "ExistsDifferently"),
        ("Always", True, ""),
        ("Always", False, ""),
        ("IfIdentical", False, ""),
    ],
)
def test_adoption_matrix(policy: str, differs: bool, reason: str) -> None:
    item = made("Policy", adoptionPolicy=policy)
    changes = {"priority": 7} if differs else {}
    found = plan.plan(item, holding(item, None, **changes), CONTEXT)
    if reason:
        assert isinstance(found, Conflict)
        assert found.reason == reason
        return
    (action,) = actions(found)
    assert isinstance(action, Upsert if differs else SetOwner)
    assert action.precondition.hash, "what was looked at must still be there"


def test_conflict_lists_the_fields_that_differ() -> None:
    item = made("Policy")
    found = plan.plan(item, holding(item, None, priority=7, pattern="x"), CONTEXT)
    assert isinstance(found, Conflict)
    assert found.message.endswith("differs in pattern, priority")


def test_object_of_another_resource_is_left_alone() -> None:
    item = made("Queue")
    other = token(item, resource="Queue/default/other", uid="u9")
    found = plan.plan(item, holding(item, other), CONTEXT)
    assert isinstance(found, Conflict)
    assert found.reason == "OwnedByOther"
    assert "Queue/default/other" in found.message


def test_object_of_another_operator_is_left_alone() -> None:
    item = made("Queue")
    found = plan.plan(item, holding(item, token(item, managed_by="b")), CONTEXT)
    assert isinstance(found, Conflict)
    assert found.reason == "OwnedByOther"


def test_takeover_annotation_takes_the_object() -> None:
    item = made("Queue", maxLength=3)
    other = token(item, resource="Queue/default/other", uid="u9")
    (action,) = actions(plan.plan(item, holding(item, other), replace(CONTEXT, may_take_over=True)))
    assert isinstance(action, SetOwner)
    assert action.owner == token(item)


def test_recreated_resource_takes_over_its_predecessors_object() -> None:
    item = made("Queue")
    (action,) = actions(plan.plan(item, holding(item, token(item, uid="old")), CONTEXT))
    assert isinstance(action, SetOwner)
    assert action.owner is not None
    assert action.owner.uid == "u1"


def test_changed_deletion_policy_changes_the_token_only() -> None:
    item = made("Queue", deletionPolicy="Retain")
    before = token(item, deletion_policy="DeleteIfEmpty")
    (action,) = actions(plan.plan(item, holding(item, before), CONTEXT))
    assert isinstance(action, SetOwner)
    assert action.owner is not None
    assert action.owner.deletion_policy == "Retain"


def test_protection_travels_in_the_token() -> None:
    item = made("Queue", protection="Managed")
    (action,) = actions(plan.plan(item, Topology(), CONTEXT))
    assert isinstance(action, Upsert)
    assert action.owner.is_protected


def test_identity_fields_cannot_change() -> None:
    item = made("Exchange", type="topic")
    found = plan.plan(item, holding(item, token(item), type="fanout"), CONTEXT)
    assert isinstance(found, Conflict)
    assert found.reason == "ImmutableChange"
    assert "type" in found.message


def test_recreate_if_empty_deletes_guarded_and_creates() -> None:
    item = made("Queue", onImmutableChange="RecreateIfEmpty")
    found = actions(plan.plan(item, holding(item, token(item), type="classic"), CONTEXT))
    delete, create = found
    assert isinstance(delete, Delete)
    assert delete.if_empty
    assert delete.if_unused
    assert isinstance(create, Upsert)
    assert create.precondition.is_absent


def test_leaving_at_least_once_needs_a_confirmation_of_this_generation() -> None:
    """R-ALO-9: dead letters that are not confirmed yet would be discarded."""
    item = made("Queue", overflow="reject-publish")
    settings = {"overflow": "reject-publish", "dead-letter-strategy": "at-least-once"}
    topology = holding(item, token(item), settings=settings)
    found = plan.plan(item, topology, CONTEXT)
    assert isinstance(found, Conflict)
    assert found.reason == "ConfirmationRequired"
    stale = plan.plan(item, topology, replace(CONTEXT, confirmed_generation=1))
    assert isinstance(stale, Conflict)
    assert actions(plan.plan(item, topology, replace(CONTEXT, confirmed_generation=2)))


def test_vanished_routing_key_is_unbound_after_the_new_one_is_bound() -> None:
    old = made("Binding", routingKeys=["a", "b"])
    new = made("Binding", routingKeys=["b", "c"])
    found = actions(plan.plan(new, holding(old, token(new)), CONTEXT))
    bind, unbind = found
    assert isinstance(bind, Upsert)
    assert bind.identity.name == "orders.in|queue|orders|c|"
    assert isinstance(unbind, Delete)
    assert unbind.identity.name == "orders.in|queue|orders|a|"


def test_queue_comes_before_its_own_bindings() -> None:
    item = made("Queue", bindings=[{"source": "in", "routingKeys": ["k"]}])
    kinds = [action.identity.kind for action in actions(plan.plan(item, Topology(), CONTEXT))]
    assert kinds == ["queue", "binding"]


def test_report_writes_nothing_and_shows_the_drift() -> None:
    item = made("Queue", maxLength=5, driftPolicy="Report")
    found = plan.plan(item, holding(item, token(item), settings={}), CONTEXT)
    assert actions(found) == ()
    assert isinstance(found, Plan)
    assert [entry.path for entry in found.drift] == ["settings.max-length"]
    absent = plan.plan(item, Topology(), CONTEXT)
    assert actions(absent) == ()
    assert isinstance(absent, Plan)
    assert not absent.is_in_sync


def test_pausing_tells_the_sweep_to_leave_the_objects_and_nothing_else() -> None:
    """design/operator.md §10."""
    item = made("Queue", maxLength=5)
    paused = replace(CONTEXT, is_paused=True)
    topology = holding(item, token(item), settings={})
    (action,) = actions(plan.plan(item, topology, paused))
    assert isinstance(action, SetOwner)
    assert action.owner is not None
    assert action.owner.deletion_policy == ownership.LEAVE
    left = holding(item, token(item, deletion_policy=ownership.LEAVE), settings={})
    assert actions(plan.plan(item, left, paused)) == ()


def test_object_that_expired_is_not_made_again_in_this_generation() -> None:
    """design/operator.md §8."""
    item = made("Queue", expires="1m")
    found = plan.plan(item, Topology(), replace(CONTEXT, expired_generation=2))
    assert isinstance(found, Conflict)
    assert found.reason == "Expired"
    assert actions(plan.plan(item, Topology(), replace(CONTEXT, expired_generation=1)))


def test_unchanged_secret_costs_nothing_and_a_changed_one_is_written() -> None:
    """SEC-20: listings hide it, so it is compared by the hash the broker answered."""
    item = made("User")
    (wanted,) = item.objects
    topology = holding(item, token(item))
    present = topology.get(wanted.identity)
    assert present is not None
    unknown = plan.plan(item, topology, CONTEXT)
    assert isinstance(actions(unknown)[0], Upsert), "after a restart it is written once"
    written = plan.Written(plan.full_digest(wanted), present.hash)
    known = replace(CONTEXT, written={wanted.identity: written})
    assert actions(plan.plan(item, topology, known)) == ()
    stale = replace(CONTEXT, written={wanted.identity: plan.Written("other", present.hash)})
    assert isinstance(actions(plan.plan(item, topology, stale))[0], Upsert)


def test_booleans_and_numbers_are_told_apart() -> None:
    item = made("Queue", type="classic", arguments=[{"name": "x-a", "integer": 1}])
    found = plan.plan(item, holding(item, token(item), arguments={"x-a": True}), CONTEXT)
    assert isinstance(found, Conflict)
    assert found.reason == "ImmutableChange"


@pytest.mark.parametrize("kind", registry.TOPOLOGY_KINDS)
def test_what_was_applied_is_in_sync(kind: str) -> None:
    item = made(kind)
    first = actions(plan.plan(item, Topology(), CONTEXT))
    assert all(isinstance(action, Upsert) for action in first)
    topology = holding(item, token(item))
    written = {
        wanted.identity: plan.Written(plan.full_digest(wanted), present.hash if present else "")
        for wanted in item.objects
        for present in [topology.get(wanted.identity)]
    }
    assert actions(plan.plan(item, topology, replace(CONTEXT, written=written))) == ()


def test_kinds_are_made_in_the_order_in_which_they_need_each_other() -> None:
    kinds = ["vhost", "user", "permission", "policy", "exchange", "queue", "binding"]
    assert sorted(kinds, key=ordering.rank) == kinds


# ---- dependencies -----------------------------------------------------------------------------


def test_missing_hard_dependency_is_waited_for_and_soft_ones_are_told() -> None:
    hard = Dependency(Identity("exchange", "/", "in"), "WaitingForSource")
    soft = Dependency(Identity("exchange", "/", "dlx"), "", is_hard=False)
    found = dependencies.check((hard, soft), lambda identity: False)
    assert found.waiting is not None
    assert found.waiting.reason == "WaitingForSource"
    assert found.absent == (hard.identity, soft.identity)
    assert found.warning == "exchange dlx in / does not exist"
    only_soft = dependencies.check((soft,), lambda identity: False)
    assert only_soft.waiting is None


def test_the_default_exchange_is_always_there() -> None:
    default = Dependency(Identity("exchange", "/", ""), "WaitingForSource")
    assert dependencies.check((default,), lambda identity: False).waiting is None


# ---- the mirror -------------------------------------------------------------------------------


def observed(name: str, revision: int, owner: Token | None = None) -> ObservedObject:
    return ObservedObject("queue", "/", name, {}, "", owner, revision)


def test_old_news_changes_nothing() -> None:
    topology = Topology()
    assert topology.put(observed("q", 5))
    assert not topology.put(observed("q", 4))
    assert topology.remove(Identity("queue", "/", "q"), 4) is None
    assert topology.remove(Identity("queue", "/", "q"), 6) is not None
    assert not topology.put(observed("q", 6)), "late news of what went does not revive it"
    assert topology.put(observed("q", 7))


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(0, 20),
            st.sampled_from((None, "x", "y")),
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_mirror_keeps_its_index_of_owners(news: list[tuple[str, int, str | None, bool]]) -> None:
    topology = Topology()
    for name, revision, owner, is_removal in news:
        if is_removal:
            topology.remove(Identity("queue", "/", name), revision)
        else:
            token_ = Token("brokerd", f"Queue/default/{owner}", "u") if owner else None
            topology.put(observed(name, revision, token_))
        topology.check_invariants()
