"""Runtime parameters of federation as they are set (topology_batch.py with its checks)."""

from __future__ import annotations

import json
from typing import Any

from brokerd.core.profiles import profile
from brokerd.rpc.v1 import admin_pb2
from tests.unit.server.catalog.fakes import Member

Operation, Result = admin_pb2.Operation, admin_pb2.OperationResult
NAME = "federation-upstream/up"
VALUE = {"uri": "amqp://u:secret@a"}


def put(kind: str, name: str, spec: Any, **more: Any) -> Any:
    return Operation(kind=kind, vhost="/", name=name, spec=json.dumps(spec), **more)


def parameter(value: Any, name: str = NAME, **more: Any) -> Any:
    return put("parameter", name, {"value": value}, **more)


async def federated(member: Member) -> None:
    results = await member.apply(
        parameter(VALUE),
        put("exchange", "stock", {"type": "fanout"}),
        put("policy", "f", {"pattern": "^stock$", "definition": {"federation-upstream": "up"}}),
    )
    assert {result.code for result in results} == {Result.OK}


async def test_what_is_refused_never_gets_into_the_log() -> None:
    """R-FED-2, SEC-20: the password in it would stay there."""
    member = Member()
    for value in ({"url": "amqp://u:secret@a"}, {"uri": "http://u:secret@a"}, 5):
        (result,) = await member.apply(parameter(value))
        assert result.code == Result.REFUSED
        assert result.message.startswith(f"{NAME}: ")
        assert not result.needs_confirmation
    assert member.written == []
    # Without a value at all, and of a component that is not ours.
    (result,) = await member.apply(put("parameter", NAME, {}))
    assert result.code == Result.REFUSED
    (result,) = await member.apply(parameter(5, "other/up"))
    assert result.code == Result.OK


async def test_a_change_that_loses_what_waits_upstream_wants_to_be_confirmed() -> None:
    """R-FX-17."""
    member = Member()
    await federated(member)
    for value in (VALUE | {"expires": 5}, {"expires": 5}, {"uri": "amqp://a/other"}):
        (result,) = await member.apply(parameter(value))
        assert result.code == Result.REFUSED
        assert result.needs_confirmation
        assert "the link of exchange 'stock' to 'up' needs another upstream queue" in result.message
        assert "secret" not in result.message
    for value in (VALUE | {"prefetch-count": 1}, {"uri": "amqp://u:other@a", "max-hops": 2}):
        (result,) = await member.apply(parameter(value))
        assert result.code == Result.OK, result.message
    (result,) = await member.apply(parameter(VALUE | {"expires": 5}, confirmed=True))
    assert result.code == Result.OK
    (result,) = await member.apply(Operation(action=1, kind="policy", vhost="/", name="f"))
    (result,) = await member.apply(parameter(VALUE | {"expires": 6}))
    assert result.code == Result.OK, "nothing is federated by it"


async def test_a_set_that_overrides_another_exchange_wants_to_be_confirmed() -> None:
    """R-FED-3, R-FX-17: compared with what the operations before it have made."""
    member = Member()
    name = "federation-upstream-set/s"
    results = await member.apply(
        parameter(VALUE),
        parameter([{"upstream": "up"}, {"upstream": "later"}], name),
        put("exchange", "stock", {"type": "fanout"}),
        put("exchange", "more", {"type": "fanout"}),
        put("policy", "f", {"pattern": ".", "definition": {"federation-upstream-set": "s"}}),
        parameter([{"upstream": "up", "exchange": "other"}], name),
    )
    assert [result.code for result in results] == [Result.OK] * 5 + [Result.REFUSED]
    assert "(and " in results[-1].message
    (result,) = await member.apply(parameter([], name))
    assert result.code == Result.OK


async def test_profiles_of_rabbitmq_ask_for_no_confirmation() -> None:
    """R-FX-17: scripts written for it expect none."""
    for name in ("rabbitmq-3.10", "rabbitmq-3.13", "rabbitmq-4.3"):
        member = Member(profile(name))
        await federated(member)
        (result,) = await member.apply(parameter(VALUE | {"expires": 5}))
        assert result.code == Result.OK
