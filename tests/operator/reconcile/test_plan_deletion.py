"""The deletion table of design/operator.md §10, row by row."""

from __future__ import annotations

from dataclasses import replace

import pytest
from brokerd_operator.reconcile import deletion
from brokerd_operator.reconcile.actions import Delete, SetOwner
from brokerd_operator.reconcile.deletion import Reach, Release, Situation, Wait, Work
from brokerd_operator.reconcile.ownership import Token
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs.model import Identity

MINE = Token("brokerd", "Queue/default/q", "u1", "DeleteIfEmpty")
QUEUE = Identity("queue", "/", "q")
BINDING = Identity("binding", "/", "in|queue|q||")
SITUATION = Situation("DeleteIfEmpty", False, Reach.REACHABLE, 0, 600_000)


def holding(*identities: Identity, owner: Token | None = MINE) -> Topology:
    topology = Topology()
    for item in identities:
        topology.put(ObservedObject(item.kind, item.vhost, item.name, {}, "h", owner, 1))
    return topology


def decide(
    situation: Situation, topology: Topology, primary: Identity | None = QUEUE
) -> Release | Wait | Work:
    return deletion.decide(situation, MINE, primary, topology)


def test_object_that_is_gone_already_is_success() -> None:
    assert decide(SITUATION, Topology()) == Release()


def test_object_of_somebody_else_is_not_touched() -> None:
    other = replace(MINE, resource="Queue/default/other")
    assert decide(SITUATION, holding(QUEUE, owner=other)) == Release()
    assert decide(SITUATION, holding(QUEUE, owner=None)) == Release()


@pytest.mark.parametrize("policy", ["DeleteIfEmpty", "WaitUntilEmpty"])
def test_queue_goes_only_when_it_is_empty_and_its_bindings_after_it(policy: str) -> None:
    work = decide(replace(SITUATION, policy=policy), holding(BINDING, QUEUE))
    assert isinstance(work, Work)
    (first,) = work.first
    assert isinstance(first, Delete)
    assert first.identity == QUEUE
    assert first.if_empty
    assert first.if_unused
    assert first.precondition.owner_uid == "u1"
    assert [action.identity for action in work.then] == [BINDING]


def test_delete_goes_with_all_its_messages() -> None:
    work = decide(replace(SITUATION, policy="Delete"), holding(QUEUE))
    assert isinstance(work, Work)
    (first,) = work.first
    assert isinstance(first, Delete)
    assert not first.if_empty


def test_exchange_that_is_used_is_guarded_when_asked_for() -> None:
    exchange = Identity("exchange", "/", "x")
    work = decide(replace(SITUATION, policy="DeleteIfUnused"), holding(exchange), None)
    assert isinstance(work, Work)
    (first,) = work.first
    assert isinstance(first, Delete)
    assert first.if_unused


def test_retained_object_loses_its_token_only() -> None:
    work = decide(replace(SITUATION, policy="Retain"), holding(QUEUE))
    assert isinstance(work, Work)
    assert work.first == (SetOwner(QUEUE, None),)


def test_refused_queue_is_left_behind_with_its_bindings() -> None:
    topology = holding(QUEUE, BINDING)
    verdict, actions = deletion.after_refusal(SITUATION, MINE, topology, "3 messages")
    assert isinstance(verdict, Release)
    assert verdict.event == "LeftBehind"
    assert "3 messages" in verdict.message
    assert {action.identity for action in actions} == {QUEUE, BINDING}
    assert all(isinstance(action, SetOwner) and action.owner is None for action in actions)


def test_wait_until_empty_waits_as_long_as_it_takes() -> None:
    patient = replace(SITUATION, policy="WaitUntilEmpty", age_ms=10**9)
    verdict, actions = deletion.after_refusal(patient, MINE, holding(QUEUE), "3 messages")
    assert isinstance(verdict, Wait)
    assert verdict.reason == "WaitingUntilEmpty"
    assert actions == ()


def test_terminating_namespace_ends_wait_until_empty() -> None:
    """design/operator.md §10."""
    ending = replace(
        SITUATION, policy="WaitUntilEmpty", age_ms=60_000, is_namespace_terminating=True
    )
    verdict, _ = deletion.after_refusal(ending, MINE, holding(QUEUE), "3 messages")
    assert isinstance(verdict, Release)


@pytest.mark.parametrize("policy", ["Delete", "DeleteIfEmpty", "Retain", "WaitUntilEmpty"])
def test_gone_cluster_never_blocks(policy: str) -> None:
    gone = replace(SITUATION, policy=policy, reach=Reach.GONE)
    assert decide(gone, holding(QUEUE)) == Release()


def test_unreachable_broker_is_waited_for_until_the_timeout() -> None:
    away = replace(SITUATION, reach=Reach.UNREACHABLE)
    verdict = decide(away, Topology())
    assert isinstance(verdict, Wait)
    assert verdict.reason == "WaitingForBroker"
    late = decide(replace(away, age_ms=600_000), Topology())
    assert isinstance(late, Release)
    assert late.event == "LeftBehind"
    retained = decide(replace(away, policy="Retain"), Topology())
    assert retained == Release()


def test_terminating_namespace_waits_a_minute_at_most() -> None:
    away = replace(SITUATION, reach=Reach.UNREACHABLE, is_namespace_terminating=True)
    assert isinstance(decide(replace(away, age_ms=59_000), Topology()), Wait)
    assert isinstance(decide(replace(away, age_ms=60_000), Topology()), Release)


def test_paused_resource_goes_and_the_broker_is_left_alone() -> None:
    assert decide(replace(SITUATION, is_paused=True), holding(QUEUE)) == Release()


def test_virtual_host_with_dependants_is_waited_for_and_then_left() -> None:
    vhost = Identity("vhost", "", "team")
    used = replace(SITUATION, policy="Delete", has_dependants=True)
    verdict = decide(used, holding(vhost), None)
    assert isinstance(verdict, Wait)
    assert verdict.reason == "WaitingForDependants"
    late = decide(replace(used, age_ms=600_000), holding(vhost), None)
    assert isinstance(late, Work)
    assert late.release.event == "LeftBehind"
    careful = decide(replace(used, policy="DeleteIfEmpty"), holding(vhost), None)
    assert isinstance(careful, Work)
    assert careful.first == (SetOwner(vhost, None),)
