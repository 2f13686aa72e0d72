"""Runs of operations in one proposal: order, results, what sends a run off, bounds (SEC-49)."""

from __future__ import annotations

import json
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from brokerd.core import catalog_checks, catalog_commands
from brokerd.core.profiles import Profile, profile
from brokerd.rpc.v1 import admin_pb2
from brokerd.server import topology_batch
from brokerd.server.catalog_writer import Unavailable
from tests.unit.core.catalog_driver import CatalogDriver

Operation, Result = admin_pb2.Operation, admin_pb2.OperationResult
QUORUM = {"type": "quorum"}
Json = dict[str, Any]


class Broker:
    """A catalog that answers at once, and queues whose leaders do, unless told otherwise."""

    def __init__(self, profile_: Profile | None = None) -> None:
        self.driver = CatalogDriver(profile_)
        self.view = self.driver.view
        self.node = "n0"
        for name in ("n0", "n1", "n2"):
            self.driver.do(catalog_commands.put_member(name, f"{name}:5690"))
        self.config = SimpleNamespace(queues=SimpleNamespace(quorum_group_size=3))
        self.host = SimpleNamespace(alive=lambda: {"n0", "n1", "n2"}, leader_of=lambda _: None)
        self.random = random.Random(1)
        self.tracer = SimpleNamespace(vhosts=set())
        self.checker = self
        self.hashed: list[str] = []
        #: What was proposed, each in its own entry.
        self.written: list[Json] = []
        self.asked: list[int] = []
        self.has_majority = True
        self.has_leaders = True
        self._last_uid = 1 << 16

    def new_group_uid(self) -> int:
        self._last_uid += 1
        return self._last_uid

    async def check(self, stored: str, password: str) -> bool:
        return stored == f"hash of {password}"

    async def hash(self, password: str) -> str:
        self.hashed.append(password)
        return f"hash of {password}"

    async def write(self, operation: Json) -> Json:
        if not self.has_majority:
            raise Unavailable("no leader of group 1 answered")
        catalog_checks.judge(operation, self.driver.profile, self.view)
        self.written.append(operation)
        return self.driver.do(operation)

    async def ask_queue(self, uid: int, command: bytes) -> bytes:
        self.asked.append(uid)
        if not self.has_leaders:
            raise Unavailable(f"no leader of group {uid} answered")
        return json.dumps({"deleted": True, "messages": 2, "consumers": 1}).encode()

    def runs(self) -> list[int]:
        """Return how many operations each proposal had; 0: it was no run."""
        return [len(operation.get("operations", ())) for operation in self.written]

    async def apply(self, *operations: Any) -> list[Any]:
        return await topology_batch.apply(self, operations)  # type: ignore[arg-type]


def put(kind: str, name: str, spec: Json, vhost: str = "/", **more: Any) -> Any:
    return Operation(id=name, kind=kind, vhost=vhost, name=name, spec=json.dumps(spec), **more)


def delete(kind: str, name: str, vhost: str = "/", **more: Any) -> Any:
    return Operation(id=name, action=Operation.DELETE, kind=kind, vhost=vhost, name=name, **more)


def bind(source: str, queue: str, key: str) -> Any:
    return put("binding", "", {"source": source, "destination": queue, "routing_key": key})


def codes(results: list[Any]) -> list[str]:
    return [Result.Code.Name(result.code) for result in results]


async def test_operations_that_build_on_each_other_are_one_proposal() -> None:
    broker = Broker()
    results = await broker.apply(
        put("exchange", "ex", {"type": "topic"}),
        put("queue", "qu", QUORUM),
        bind("ex", "qu", "k"),
        put("permission", "guest", {"configure": "", "write": "", "read": "x"}),
        put("parameter", "a/b", {"value": 1}),
    )
    assert codes(results) == ["OK"] * 5
    assert broker.runs() == [5]
    assert [result.id for result in results] == ["ex", "qu", "", "guest", "a/b"]
    assert results[2].current.name == "ex|queue|qu|k|"
    assert {result.revision for result in results} == {broker.view.revision}


async def test_one_operation_goes_the_way_of_many() -> None:
    broker = Broker()
    assert codes(await broker.apply(put("vhost", "v", {}, vhost=""))) == ["OK"]
    assert broker.runs() == [1]
    assert await broker.apply() == []
    assert broker.runs() == [1]


async def test_what_is_refused_leaves_the_others_as_they_are() -> None:
    """SEC-49."""
    broker = Broker()
    results = await broker.apply(
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
    assert broker.runs() == [5, 1, 1]
    assert "regular expression" in results[4].message


async def test_text_that_is_no_text_is_refused_alone() -> None:
    """SEC-49: the catalog cannot read a command with halves of characters in it."""
    broker = Broker()
    half = Operation(id="b", kind="exchange", vhost="/", name="b")
    half.spec = '{"type": "topic", "arguments": {"x": "\\ud800"}}'
    byte = Operation(id="c", kind="exchange", vhost="/", name="c")
    byte.spec = '{"type": "topic", "arguments": {"x": "\\udc80"}}'
    results = await broker.apply(
        put("exchange", "a", {"type": "topic"}), half, byte, put("exchange", "d", {"type": "topic"})
    )
    assert codes(results) == ["OK", "REFUSED", "OK", "OK"]
    assert "Unicode" in results[1].message
    assert broker.runs() == [3]


async def test_a_queue_waits_for_the_vhost_and_the_policies_before_it() -> None:
    """R-QQ-5: they say whether it can be, and who is to lead it."""
    broker = Broker()
    policy = {"pattern": "^q", "definition": {"queue-leader-locator": "balanced"}}
    results = await broker.apply(
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
    assert broker.runs() == [1, 2, 3]
    leaders = [broker.view.queue("v", f"q{n}").members[0] for n in range(4)]  # type: ignore[union-attr]
    # q0 before the policy: the member that was asked.
    assert leaders[0] == "n0"
    assert sorted(leaders[1:3]) == ["n1", "n2"]


async def test_queues_of_one_run_are_spread_as_if_one_came_after_the_other() -> None:
    """R-QQ-4, R-QQ-5: what the run has chosen counts."""
    broker = Broker()
    arguments = {"x-quorum-initial-group-size": 2, "x-queue-leader-locator": "balanced"}
    spec = {**QUORUM, "arguments": arguments}
    results = await broker.apply(*(put("queue", f"q{n}", spec) for n in range(12)))
    assert codes(results) == ["OK"] * 12
    assert broker.runs() == [12]
    members = [broker.view.queue("/", f"q{n}").members for n in range(12)]  # type: ignore[union-attr]
    replicas = Counter(node for queue in members for node in queue)
    assert replicas == {"n0": 12, "n1": 6, "n2": 6}
    leaders = Counter(queue[0] for queue in members)
    assert max(leaders.values()) - min(leaders.values()) <= 1, leaders


async def test_many_queues_are_placed_by_chance_and_nobody_counts_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R-QQ-4: counting would make each queue dearer than the one before it."""
    broker = Broker()
    monkeypatch.setattr("brokerd.cluster.placement.RANDOM_QUEUES_MIN", 4)
    await broker.apply(*(put("queue", f"q{n}", QUORUM) for n in range(4)))

    def nobody(_: int) -> None:
        raise AssertionError("leaders are counted")

    broker.host.leader_of = nobody
    results = await broker.apply(put("queue", "q4", QUORUM))
    assert codes(results) == ["OK"]
    assert sorted(broker.view.queue("/", "q4").members) == ["n0", "n1", "n2"]  # type: ignore[union-attr]


async def test_the_same_object_twice_finds_what_was_made() -> None:
    broker = Broker()
    user = {"password": "pw", "tags": []}
    results = await broker.apply(
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
    assert broker.hashed == ["pw"]
    assert broker.view.user("u").password_hash == "hash of pw"  # type: ignore[union-attr]


async def test_new_queues_are_made_when_their_leaders_work() -> None:
    broker = Broker()
    await broker.apply(put("queue", "old", QUORUM))
    broker.asked.clear()
    settings = {**QUORUM, "settings": {"max-length": 1}}
    results = await broker.apply(
        put("queue", "old", settings),
        put("queue", "a", QUORUM),
        put("queue", "dry", QUORUM, dry_run=True),
        put("queue", "b", {}),
    )
    assert codes(results) == ["OK"] * 4
    found = [broker.view.queue("/", name) for name in ("a", "b")]
    assert broker.asked == [queue.uid for queue in found if queue is not None]
    assert found[1] is not None
    assert found[1].type == "classic"
    assert broker.view.queue("/", "dry") is None
    broker.has_leaders = False
    results = await broker.apply(put("exchange", "e", {"type": "topic"}), put("queue", "c", QUORUM))
    assert codes(results) == ["OK", "UNAVAILABLE"]


async def test_the_deletion_of_a_queue_is_a_step_in_its_place() -> None:
    broker = Broker()
    await broker.apply(put("queue", "q", QUORUM), put("exchange", "e", {"type": "topic"}))
    uid = broker.view.queue("/", "q").uid  # type: ignore[union-attr]
    broker.written.clear()
    broker.asked.clear()
    stranger = admin_pb2.Precondition(owner_uid="u2")
    results = await broker.apply(
        bind("e", "q", "k"),
        delete("queue", "q", precondition=stranger),
        delete("queue", "q", dry_run=True),
        delete("queue", "q"),
        put("queue", "q", {"type": "classic"}),
        delete("queue", "none"),
    )
    assert codes(results) == ["OK", "PRECONDITION", "OK", "OK", "OK", "NOT_FOUND"]
    assert (results[3].messages, results[3].consumers) == (2, 1)
    assert broker.view.queue("/", "q").type == "classic"  # type: ignore[union-attr]
    # The binding; the record is looked at; the dry run; its own log, then the record; the rest.
    assert broker.runs() == [1, 0, 1, 0, 2]
    assert broker.asked[0] == uid


async def test_the_deletion_of_a_traced_vhost_ends_its_tracing_if_it_goes() -> None:
    broker = Broker()
    await broker.apply(put("vhost", "v", {}, vhost=""))
    broker.tracer.vhosts.add("v")
    broker.driver.do(catalog_commands.set_setting("tracing/v", True))
    broker.written.clear()
    wrong = admin_pb2.Precondition(hash="0" * 16)
    results = await broker.apply(
        delete("vhost", "v", vhost="", precondition=wrong),
        delete("vhost", "v", vhost="", dry_run=True),
    )
    assert codes(results) == ["PRECONDITION", "OK"]
    assert len(broker.written) == 2
    results = await broker.apply(delete("vhost", "v", vhost=""), put("vhost", "v", {}, vhost=""))
    assert codes(results) == ["OK", "OK"]
    assert [operation.get("kind") for operation in broker.written[2:]] == [
        "vhost",
        "setting",
        None,
    ]


async def test_what_waits_is_deleted_in_order() -> None:
    broker = Broker()
    results = await broker.apply(
        put("vhost", "v", {}, vhost=""),
        put("queue", "q", QUORUM, vhost="v"),
        delete("vhost", "v", vhost=""),
        delete("queue", "q", vhost="v"),
        put("queue", "q", QUORUM, vhost="v"),
    )
    assert codes(results) == ["OK", "OK", "OK", "NOT_FOUND", "REFUSED"]


async def test_the_alternate_exchange_of_a_queue_of_the_same_request_stays() -> None:
    """R-MQ-9: judged by the member that proposes, of what stands before it."""
    broker = Broker(profile("mrg"))
    queue = {"type": "classic", "settings": {"queue-alternate-exchange": "alt"}}
    results = await broker.apply(
        put("exchange", "alt", {"type": "fanout"}),
        put("queue", "q", queue),
        delete("exchange", "alt"),
    )
    assert codes(results) == ["OK", "OK", "REFUSED"]
    assert "in use as alternate exchange of queue 'q'" in results[2].message


async def test_an_object_has_one_state_at_each_revision() -> None:
    """Whoever follows the topology would take what was made again for what was deleted before."""
    broker = Broker()
    broker.driver.put("queue", "q", {"type": "classic"}, uid=1 << 20, members=["n0"])
    await broker.apply(put("exchange", "auto", {"type": "fanout", "auto_delete": True}))
    await broker.apply(bind("auto", "q", "k"))
    broker.written.clear()
    results = await broker.apply(
        put("exchange", "e", {"type": "topic"}),
        delete("binding", "auto|queue|q|k|"),
        delete("exchange", "e"),
        put("exchange", "auto", {"type": "topic"}),
        put("exchange", "f", {"type": "topic"}),
    )
    assert codes(results) == ["OK"] * 5
    assert broker.runs() == [2, 1, 2]
    states: dict[tuple[int, str], set[bool]] = {}
    for change in broker.view.changes_since(0) or []:
        states.setdefault((change.revision, change.name), set()).add(change.deleted)
    assert all(len(found) == 1 for found in states.values()), states


async def test_owners_are_set_in_order() -> None:
    broker = Broker()
    owner = admin_pb2.Owner(managed_by="op", resource="Exchange/ns/e", uid="u1")
    change = Operation(
        action=Operation.SET_OWNER, kind="exchange", vhost="/", name="e", owner=owner
    )
    mine = admin_pb2.Precondition(owner_uid="u1")
    results = await broker.apply(
        put("exchange", "e", {"type": "topic"}),
        change,
        put("exchange", "e", {"type": "topic", "settings": {}}, precondition=mine),
    )
    assert codes(results) == ["OK", "OK", "UNCHANGED"]
    assert results[1].current.owner.uid == "u1"


async def test_without_a_majority_each_operation_of_the_run_is_unavailable() -> None:
    broker = Broker()
    await broker.apply(put("queue", "q", QUORUM))
    broker.has_majority = False
    broker.has_leaders = False
    results = await broker.apply(
        put("exchange", "a", {"type": "topic"}),
        put("castle", "b", {}),
        put("exchange", "c", {"type": "topic"}),
        delete("queue", "q"),
    )
    assert codes(results) == ["UNAVAILABLE", "REFUSED", "UNAVAILABLE", "UNAVAILABLE"]
    assert all("answered" in result.message for result in results if result.code != Result.REFUSED)


async def test_a_run_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-49: bytes of specs, new and present, and groups that are opened at once."""
    broker = Broker()
    text = "x" * 1000
    large = [put("parameter", f"c/{n}", {"value": text}) for n in range(10)]
    monkeypatch.setattr(topology_batch, "RUN_BYTES_MAX", 4 * 1024)
    assert codes(await broker.apply(*large)) == ["OK"] * 10
    assert broker.runs() == [4, 4, 2]
    broker.written.clear()
    # Each reply shows what is there: twice as much.
    assert codes(await broker.apply(*large)) == ["UNCHANGED"] * 10
    assert broker.runs() == [2] * 5
    broker.written.clear()
    assert codes(await broker.apply(put("parameter", "c/x", {"value": text * 9}))) == ["OK"]
    monkeypatch.setattr(topology_batch, "RUN_QUEUES_MAX", 3)
    broker.written.clear()
    results = await broker.apply(
        put("exchange", "e", {"type": "topic"}), *(put("queue", f"q{n}", {}) for n in range(7))
    )
    assert codes(results) == ["OK"] * 8
    assert broker.runs() == [4, 3, 1]
