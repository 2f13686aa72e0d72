"""Runs of operations in one proposal: order, results, what sends a run off, bounds (SEC-49)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands
from brokerd.core.profiles import profile
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import topology_batch
from brokerd.server.catalog.topology import Placement
from tests.unit.server.catalog.fakes import MEMBERS, Json, Member

Operation, Result = admin_pb2.Operation, admin_pb2.OperationResult
QUORUM = {"type": "quorum"}


def put(kind: str, name: str, spec: Json, vhost: str = "/", **more: Any) -> Any:
    return Operation(id=name, kind=kind, vhost=vhost, name=name, spec=json.dumps(spec), **more)


def delete(kind: str, name: str, vhost: str = "/", **more: Any) -> Any:
    return Operation(id=name, action=Operation.DELETE, kind=kind, vhost=vhost, name=name, **more)


def bind(source: str, queue: str, key: str) -> Any:
    return put("binding", "", {"source": source, "destination": queue, "routing_key": key})


def codes(results: list[Any]) -> list[str]:
    return [Result.Code.Name(result.code) for result in results]


async def test_operations_that_build_on_each_other_are_one_proposal() -> None:
    member = Member()
    results = await member.apply(
        put("exchange", "ex", {"type": "topic"}),
        put("queue", "qu", QUORUM),
        bind("ex", "qu", "k"),
        put("permission", "guest", {"configure": "", "write": "", "read": "x"}),
        put("parameter", "a/b", {"value": 1}),
    )
    assert codes(results) == ["OK"] * 5
    assert member.runs() == [5]
    assert [result.id for result in results] == ["ex", "qu", "", "guest", "a/b"]
    assert results[2].current.name == "ex|queue|qu|k|"
    assert {result.revision for result in results} == {member.view.revision}


async def test_one_operation_goes_the_way_of_many() -> None:
    member = Member()
    assert codes(await member.apply(put("vhost", "v", {}, vhost=""))) == ["OK"]
    assert member.runs() == [1]
    assert await member.apply() == []
    assert member.runs() == [1]


async def test_what_is_refused_leaves_the_others_as_they_are() -> None:
    """SEC-49."""
    member = Member()
    results = await member.apply(
        put("exchange", "a", {"type": "topic"}),
        put("castle", "b", {}),
        put("exchange", "c", {"type": "colourful"}),
        Operation(id="d", kind="exchange", vhost="/", name="d", spec="{"),
        put("policy", "e", {"pattern": "(", "definition": {"max-length": 1}}),
        bind("nowhere", "a", ""),
        put("exchange", "f", {"type": "topic"}, precondition=admin_pb2.Precondition(hash="0" * 16)),
        delete("exchange", "g"),
        put("exchange", "h", {"type": "topic"}),
    )
    assert codes(results) == [
        "OK",
        "REFUSED",
        "REFUSED",
        "REFUSED",
        "REFUSED",
        "NOT_FOUND",
        "PRECONDITION",
        "NOT_FOUND",
        "OK",
    ]
    assert [result.id for result in results] == ["a", "b", "c", "d", "e", "", "f", "g", "h"]
    # The deletion had to know what the policies before it come to; nothing is made behind it.
    assert member.runs() == [5, 1, 1]
    assert "regular expression" in results[4].message


async def test_text_that_is_no_text_is_refused_alone() -> None:
    """SEC-49: the catalog cannot read a command with halves of characters in it."""
    member = Member()
    half = Operation(id="b", kind="exchange", vhost="/", name="b")
    half.spec = '{"type": "topic", "arguments": {"x": "\\ud800"}}'
    byte = Operation(id="c", kind="exchange", vhost="/", name="c")
    byte.spec = '{"type": "topic", "arguments": {"x": "\\udc80"}}'
    results = await member.apply(
        put("exchange", "a", {"type": "topic"}), half, byte, put("exchange", "d", {"type": "topic"})
    )
    assert codes(results) == ["OK", "REFUSED", "OK", "OK"]
    assert "Unicode" in results[1].message
    assert member.runs() == [3]


async def test_a_queue_waits_for_the_vhost_and_the_policies_before_it() -> None:
    """R-QQ-5: they say whether it can be, and who is to lead it."""
    member = Member()
    policy = {"pattern": "^q", "definition": {"queue-leader-locator": "balanced"}}
    results = await member.apply(
        put("queue", "early", QUORUM, vhost="v"),
        put("vhost", "v", {}, vhost=""),
        put("queue", "q0", QUORUM, vhost="v"),
        put("policy", "p", policy, vhost="v"),
        put("queue", "q1", QUORUM, vhost="v"),
        put("queue", "q2", QUORUM, vhost="v"),
        put("queue", "q3", QUORUM, vhost="v"),
    )
    assert codes(results) == ["REFUSED"] + ["OK"] * 6
    assert "vhost 'v' does not exist" in results[0].message
    assert member.runs() == [1, 2, 3]
    leaders = [member.view.queue("v", f"q{n}").members[0] for n in range(4)]  # type: ignore[union-attr]
    # q0 before the policy: the member that was asked.
    assert leaders[0] == "n0"
    assert sorted(leaders[1:3]) == ["n1", "n2"]


@pytest.mark.parametrize("kind", ["quorum", "classic"])
async def test_queues_of_resources_are_spread_and_others_are_where_they_were_declared(
    kind: str,
) -> None:
    """R-QQ-5: the operator that declares them is no client with a member near it."""
    member = Member()
    owner = admin_pb2.Owner(managed_by="operator", resource="Queue/a/q", uid="u")
    local = {"x-queue-leader-locator": "client-local"}
    for number in range(6):
        await member.apply(put("queue", f"own{number}", {"type": kind}, owner=owner))
        await member.apply(put("queue", f"plain{number}", {"type": kind}))
    spec = {"type": "quorum", "arguments": local}
    await member.apply(put("queue", "local", spec, owner=owner))

    def leader(name: str) -> str:
        return member.view.queue("/", name).members[0]  # type: ignore[union-attr]

    assert {leader(f"plain{number}") for number in range(6)} == {"n0"}
    assert leader("local") == "n0"
    # Those that were declared at n0 count as well.
    assert Counter(leader(f"own{number}") for number in range(1, 6)).keys() == {"n1", "n2"}


async def test_queues_of_one_run_are_spread_as_if_one_came_after_the_other() -> None:
    """R-QQ-4, R-QQ-5: what the run has chosen counts."""
    member = Member()
    arguments = {"x-quorum-initial-group-size": 2, "x-queue-leader-locator": "balanced"}
    spec = {**QUORUM, "arguments": arguments}
    results = await member.apply(*(put("queue", f"q{n}", spec) for n in range(12)))
    assert codes(results) == ["OK"] * 12
    assert member.runs() == [12]
    members = [member.view.queue("/", f"q{n}").members for n in range(12)]  # type: ignore[union-attr]
    replicas = Counter(node for queue in members for node in queue)
    assert replicas == {"n0": 12, "n1": 6, "n2": 6}
    leaders = Counter(queue[0] for queue in members)
    assert max(leaders.values()) - min(leaders.values()) <= 1, leaders


async def test_many_queues_are_placed_by_chance_and_nobody_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-QQ-4: counting would make each queue dearer than the one before it."""
    member = Member()
    monkeypatch.setattr("brokerd.cluster.groups.placement.RANDOM_QUEUES_MIN", 4)
    await member.apply(*(put("queue", f"q{n}", QUORUM) for n in range(4)))
    member.host.may_be_counted = False
    results = await member.apply(put("queue", "q4", QUORUM))
    assert codes(results) == ["OK"]
    assert sorted(member.view.queue("/", "q4").members) == ["n0", "n1", "n2"]  # type: ignore[union-attr]


async def test_the_same_object_twice_finds_what_was_made() -> None:
    member = Member()
    user = {"password": "pw", "tags": []}
    results = await member.apply(
        put("queue", "q", QUORUM),
        put("queue", "q", QUORUM),
        put("user", "u", user, vhost=""),
        put("user", "u", user, vhost=""),
        put("user", "u", {"tags": ["management"]}, vhost=""),
        put("exchange", "e", {"type": "topic"}),
        put("exchange", "e", {"type": "fanout"}),
        delete("exchange", "e"),
        delete("exchange", "e"),
    )
    assert codes(results) == [
        "OK",
        "UNCHANGED",
        "OK",
        "UNCHANGED",
        "OK",
        "OK",
        "IMMUTABLE",
        "OK",
        "NOT_FOUND",
    ]
    # The second password was compared with the first one's hash, which the run had to store.
    assert member.checker.hashed == ["pw"]
    assert member.view.user("u").password_hash == "hash of pw"  # type: ignore[union-attr]


async def test_who_has_never_started_gets_no_replica_while_others_have() -> None:
    """Its disk may be new: until it is refilled it has no vote, and two such ones are a majority of
    a queue's members that nobody could refill (seed 17003714).
    """
    member = Member()
    for name in ("m0", "m1"):
        member.driver.do(catalog_commands.put_member(name, f"{name}:5690"))
        member.host.heard.add(NodeId(name))
    names = [f"q{number}" for number in range(8)]
    await member.apply(*(put("queue", name, QUORUM) for name in names))
    held = [member.view.queue("/", name).members for name in names]
    assert {frozenset(members) for members in held} == {frozenset(MEMBERS)}
    member.driver.do(catalog_commands.node_started("m0", 1))
    await member.apply(put("queue", "later", QUORUM))
    assert "m0" in member.view.queue("/", "later").members


async def test_new_queues_are_made_when_their_leaders_work() -> None:
    member = Member()
    await member.apply(put("queue", "old", QUORUM))
    member.asked.clear()
    settings = {**QUORUM, "settings": {"max-length": 1}}
    results = await member.apply(
        put("queue", "old", settings),
        put("queue", "a", QUORUM),
        put("queue", "dry", QUORUM, dry_run=True),
        put("queue", "b", {}),
    )
    assert codes(results) == ["OK"] * 4
    found = [member.view.queue("/", name) for name in ("a", "b")]
    assert member.asked == [queue.uid for queue in found if queue is not None]
    assert found[1] is not None
    assert found[1].type == "classic"
    assert member.view.queue("/", "dry") is None
    member.has_leaders = False
    results = await member.apply(put("exchange", "e", {"type": "topic"}), put("queue", "c", QUORUM))
    assert codes(results) == ["OK", "UNAVAILABLE"]


async def test_the_deletion_of_a_queue_is_a_step_in_its_place() -> None:
    member = Member()
    await member.apply(put("queue", "q", QUORUM), put("exchange", "e", {"type": "topic"}))
    uid = member.view.queue("/", "q").uid  # type: ignore[union-attr]
    member.written.clear()
    member.asked.clear()
    stranger = admin_pb2.Precondition(owner_uid="u2")
    results = await member.apply(
        bind("e", "q", "k"),
        delete("queue", "q", precondition=stranger),
        delete("queue", "q", dry_run=True),
        delete("queue", "q"),
        put("queue", "q", {"type": "classic"}),
        delete("queue", "none"),
    )
    assert codes(results) == ["OK", "PRECONDITION", "OK", "OK", "OK", "NOT_FOUND"]
    assert (results[3].messages, results[3].consumers) == (2, 1)
    assert member.view.queue("/", "q").type == "classic"  # type: ignore[union-attr]
    # The binding; the record is looked at; the dry run; its own log, then the record; the rest.
    assert member.runs() == [1, 0, 1, 0, 2]
    assert member.asked[0] == uid


async def test_the_deletion_of_a_traced_vhost_ends_its_tracing_if_it_goes() -> None:
    member = Member()
    await member.apply(put("vhost", "v", {}, vhost=""))
    member.tracer.vhosts = frozenset({"v"})
    member.driver.do(catalog_commands.set_setting("tracing/v", True))
    member.written.clear()
    wrong = admin_pb2.Precondition(hash="0" * 16)
    results = await member.apply(
        delete("vhost", "v", vhost="", precondition=wrong),
        delete("vhost", "v", vhost="", dry_run=True),
    )
    assert codes(results) == ["PRECONDITION", "OK"]
    assert len(member.written) == 2
    results = await member.apply(delete("vhost", "v", vhost=""), put("vhost", "v", {}, vhost=""))
    assert codes(results) == ["OK", "OK"]
    assert [operation.get("kind") for operation in member.written[2:]] == [
        "vhost",
        "setting",
        None,
    ]


async def test_what_waits_is_deleted_in_order() -> None:
    member = Member()
    results = await member.apply(
        put("vhost", "v", {}, vhost=""),
        put("queue", "q", QUORUM, vhost="v"),
        delete("vhost", "v", vhost=""),
        delete("queue", "q", vhost="v"),
        put("queue", "q", QUORUM, vhost="v"),
    )
    assert codes(results) == ["OK", "OK", "OK", "NOT_FOUND", "REFUSED"]


async def test_the_alternate_exchange_of_a_queue_of_the_same_request_stays() -> None:
    """R-MQ-9: judged by the member that proposes, of what stands before it."""
    member = Member(profile("mrg"))
    queue = {"type": "classic", "settings": {"queue-alternate-exchange": "alt"}}
    results = await member.apply(
        put("exchange", "alt", {"type": "fanout"}),
        put("queue", "q", queue),
        delete("exchange", "alt"),
    )
    assert codes(results) == ["OK", "OK", "REFUSED"]
    assert "in use as alternate exchange of queue 'q'" in results[2].message


async def test_an_object_has_one_state_at_each_revision() -> None:
    """Whoever follows the topology would take what was made again for what was deleted before."""
    member = Member()
    member.driver.put("queue", "q", {"type": "classic"}, uid=1 << 20, members=["n0"])
    await member.apply(put("exchange", "auto", {"type": "fanout", "auto_delete": True}))
    await member.apply(bind("auto", "q", "k"))
    member.written.clear()
    results = await member.apply(
        put("exchange", "e", {"type": "topic"}),
        delete("binding", "auto|queue|q|k|"),
        delete("exchange", "e"),
        put("exchange", "auto", {"type": "topic"}),
        put("exchange", "f", {"type": "topic"}),
    )
    assert codes(results) == ["OK"] * 5
    assert member.runs() == [2, 1, 2]
    states: dict[tuple[int, str], set[bool]] = {}
    for change in member.view.changes_since(0) or []:
        states.setdefault((change.revision, change.name), set()).add(change.deleted)
    assert all(len(found) == 1 for found in states.values()), states


async def test_owners_are_set_in_order() -> None:
    member = Member()
    owner = admin_pb2.Owner(managed_by="op", resource="Exchange/ns/e", uid="u1")
    change = Operation(
        action=Operation.SET_OWNER, kind="exchange", vhost="/", name="e", owner=owner
    )
    mine = admin_pb2.Precondition(owner_uid="u1")
    results = await member.apply(
        put("exchange", "e", {"type": "topic"}),
        change,
        put("exchange", "e", {"type": "topic", "settings": {}}, precondition=mine),
    )
    assert codes(results) == ["OK", "OK", "UNCHANGED"]
    assert results[1].current.owner.uid == "u1"


async def test_without_a_majority_each_operation_of_the_run_is_unavailable() -> None:
    member = Member()
    await member.apply(put("queue", "q", QUORUM))
    member.has_majority = False
    member.has_leaders = False
    results = await member.apply(
        put("exchange", "a", {"type": "topic"}),
        put("castle", "b", {}),
        put("exchange", "c", {"type": "topic"}),
        delete("queue", "q"),
    )
    assert codes(results) == ["UNAVAILABLE", "REFUSED", "UNAVAILABLE", "UNAVAILABLE"]
    assert all("answered" in result.message for result in results if result.code != Result.REFUSED)


async def test_a_run_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-49: bytes of specs, new and present, and groups that are opened at once."""
    member = Member()
    text = "x" * 1000
    large = [put("parameter", f"c/{n}", {"value": text}) for n in range(10)]
    monkeypatch.setattr(topology_batch, "RUN_BYTES_MAX", 4 * 1024)
    assert codes(await member.apply(*large)) == ["OK"] * 10
    assert member.runs() == [4, 4, 2]
    member.written.clear()
    # Each reply shows what is there: twice as much.
    assert codes(await member.apply(*large)) == ["UNCHANGED"] * 10
    assert member.runs() == [2] * 5
    member.written.clear()
    assert codes(await member.apply(put("parameter", "c/x", {"value": text * 9}))) == ["OK"]
    monkeypatch.setattr(topology_batch, "RUN_QUEUES_MAX", 3)
    member.written.clear()
    results = await member.apply(
        put("exchange", "e", {"type": "topic"}), *(put("queue", f"q{n}", {}) for n in range(7))
    )
    assert codes(results) == ["OK"] * 8
    assert member.runs() == [4, 3, 1]


async def test_a_disk_that_does_not_answer_gets_no_leader_and_no_durable_classic_queue() -> None:
    """ADR 68: a quorum queue has its replica there, as on a member that is down."""
    member = Member()
    member.host.stalled = {NodeId("n0"), NodeId("n2")}
    chooser = Placement(member)
    durable = {"type": "classic", "durable": True, "arguments": {}, "settings": {}}
    durable |= {"auto_delete": False}
    transient, quorum = durable | {"durable": False}, durable | {"type": "quorum"}
    members = chooser.choose("/", "q", quorum)
    assert (members[0], sorted(members)) == ("n1", ["n0", "n1", "n2"])
    assert chooser.choose("/", "durable", durable) == ["n1"]
    # It has no need of the disk.
    assert chooser.choose("/", "transient", transient) == ["n0"]
    member.host.stalled = {NodeId("n0"), NodeId("n1"), NodeId("n2")}
    assert Placement(member).choose("/", "durable", durable) == ["n0"]


@pytest.mark.parametrize("declared", [{}, {"x-queue-type": "quorum"}])
@pytest.mark.parametrize("said", [{}, {"x-queue-type": "quorum"}])
async def test_the_type_of_a_queue_stands_in_its_arguments_or_not(
    declared: Json, said: Json
) -> None:
    """R-Q-4: an export of RabbitMQ 4.3 has it always, and is imported again."""
    member = Member()
    limit = {"x-max-length": 5}
    await member.apply(put("queue", "q", QUORUM | {"arguments": limit | declared}))
    for wanted, code in ((limit, "UNCHANGED"), ({"x-max-length": 6}, "IMMUTABLE")):
        spec = QUORUM | {"arguments": wanted | said}
        assert codes(await member.apply(put("queue", "q", spec))) == [code]
    queue = member.view.queue("/", "q")
    assert queue is not None
    assert queue.arguments == limit | declared
    other = {"type": "classic", "arguments": {}}
    assert codes(await member.apply(put("queue", "q", other))) == ["IMMUTABLE"]
    broken = put("queue", "q", QUORUM | {"arguments": 5})
    assert codes(await member.apply(broken)) == ["REFUSED"]


async def test_arguments_without_effect_are_told_when_the_queue_is_made(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """R-Q-6: an import and a resource as a declare, once."""
    member = Member()
    idle = {
        "type": "quorum",
        "arguments": {"x-queue-master-locator": "min-masters", "x-max-age": "1h"},
    }
    refused = {"type": "quorum", "durable": False, "arguments": {"x-max-age": "1h"}}
    for code in ("OK", "UNCHANGED"):
        results = await member.apply(put("queue", "idle", idle), put("queue", "refused", refused))
        assert codes(results) == [code, "REFUSED"]
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "queue 'idle' in vhost '/' has arguments without effect: "
        "x-max-age (of streams), x-queue-master-locator (use x-queue-leader-locator)"
    ]


async def test_an_empty_type_is_none_in_an_import_too() -> None:
    """R-Q-1: RabbitMQ 4.3.6 takes one in a declare and exports it."""
    member = Member()
    spec = {"type": "classic", "arguments": {"x-queue-type": "", "x-max-length": 3}}
    for code in ("OK", "UNCHANGED"):
        assert codes(await member.apply(put("queue", "q", spec))) == [code]
    queue = member.view.queue("/", "q")
    assert queue is not None
    assert (queue.type, queue.arguments) == ("classic", {"x-max-length": 3})


async def test_what_has_an_owner_is_as_its_owner_says() -> None:
    member = Member()
    await member.apply(put("queue", "q", QUORUM))
    owner = admin_pb2.Owner(managed_by="operator", resource="Queue/ns/q", uid="u")
    spec = QUORUM | {"arguments": {"x-queue-type": "quorum"}}
    assert codes(await member.apply(put("queue", "q", spec, owner=owner))) == ["IMMUTABLE"]


async def test_the_same_password_gets_a_hash_of_the_kind_that_is_wanted() -> None:
    """auth.password_hashing: users move to a RabbitMQ with hashes that it takes."""
    member = Member()
    user = put("user", "till", {"password": "pw"}, vhost="")
    for are_current, hashed in ((True, ["pw"]), (True, ["pw"]), (False, ["pw", "pw"])):
        member.checker.are_current = are_current
        await member.apply(user)
        assert member.checker.hashed == hashed
