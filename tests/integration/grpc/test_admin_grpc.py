"""The Admin service against real members: what the operator relies on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import pika
import pytest

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.members import Member, cluster, eventually, wait_acquainted
from tests.integration.messages_client import metadata

pytestmark = pytest.mark.timeout(300)
Operation = admin_pb2.Operation
Result = admin_pb2.OperationResult
QUORUM = {"type": "quorum", "arguments": {"x-queue-type": "quorum"}}


class Admin:
    """The service as seen by one user."""

    def __init__(self, port: int, user: str = "guest", password: str = "guest") -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self._stub: Any = admin_pb2_grpc.AdminStub(self.channel)  # type: ignore[no-untyped-call]
        self._metadata = metadata(user, password)

    def call(self, name: str, request: Any) -> Any:
        """Make a call; a stream is returned as it is."""
        return getattr(self._stub, name)(request, metadata=self._metadata, timeout=90)

    def apply(self, *operations: Any) -> list[Any]:
        """Apply operations and return their results."""
        answers = self.call("ApplyTopology", iter([admin_pb2.ApplyRequest(operations=operations)]))
        return [result for answer in answers for result in answer.results]

    def code(self, *operations: Any) -> int:
        """Apply one operation and return the code of its result."""
        (result,) = self.apply(*operations)
        code: int = result.code
        return code

    def objects(self, *kinds: str, vhost: str = "") -> dict[tuple[str, str], Any]:
        """Return objects by kind and name."""
        request = admin_pb2.ListTopologyRequest(kinds=kinds, vhost=vhost)
        pages = self.call("ListTopology", request)
        return {(item.kind, item.name): item for page in pages for item in page.objects}


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("admin"), 1) as members:
        yield members[0]


@pytest.fixture
def admin(member: Member) -> Iterator[Admin]:
    admin = Admin(member.grpc_port)
    yield admin
    admin.channel.close()


def put(kind: str, name: str, spec: dict[str, Any], vhost: str = "/", **more: Any) -> Any:
    return Operation(id=name, kind=kind, vhost=vhost, name=name, spec=json.dumps(spec), **more)


def delete(kind: str, name: str, vhost: str = "/", **more: Any) -> Any:
    return Operation(id=name, action=Operation.DELETE, kind=kind, vhost=vhost, name=name, **more)


def test_a_listing_names_what_ended_by_its_own_terms(admin: Admin) -> None:
    """An operator that did not run asks for it; whoever does not ask is not told."""
    settings = {"expires": 100}
    admin.apply(
        put("queue", "ends", {"type": "classic", "settings": settings}),
        put("queue", "goes", {"type": "classic"}),
    )
    admin.apply(delete("queue", "goes"))
    eventually(lambda: ("queue", "ends") not in admin.objects("queue"), "the queue expires")

    def ended(*kinds: str, vhost: str = "", asked: bool = True) -> list[tuple[str, str]]:
        request = admin_pb2.ListTopologyRequest(kinds=kinds, vhost=vhost, with_ended=asked)
        events = [event for page in admin.call("ListTopology", request) for event in page.ended]
        return [(event.object.name, event.cause) for event in events]

    assert ("ends", "expired") in ended()
    assert "goes" not in [name for name, _ in ended()]
    assert ("ends", "expired") in ended("queue", vhost="/")
    assert ("ends", "expired") not in ended("exchange")
    assert ended(vhost="elsewhere") == ended(asked=False) == []


def test_a_batch_makes_objects_and_the_same_batch_again_changes_nothing(admin: Admin) -> None:
    binding = {"source": "ex", "destination": "qu", "routing_key": "k"}
    batch = [
        put("exchange", "ex", {"type": "topic"}),
        put("queue", "qu", QUORUM),
        put("binding", "ex|queue|qu|k|", binding),
        put("policy", "po", {"pattern": "^qu", "definition": {"max-length": 5}}),
    ]
    first = admin.apply(*batch)
    assert [result.code for result in first] == [Result.OK] * 4, first
    assert [result.id for result in first] == ["ex", "qu", "ex|queue|qu|k|", "po"]
    again = admin.apply(*batch)
    assert [result.code for result in again] == [Result.UNCHANGED] * 4, again
    found = admin.objects("exchange", "queue", "binding", "policy", vhost="/")
    assert json.loads(found["queue", "qu"].spec)["type"] == "quorum"
    assert found["exchange", "ex"].hash == again[0].current.hash
    codes = [admin.code(delete(item.kind, item.name)) for item in batch[::-1]]
    # The binding went with its queue or exchange, or by its own name: it was first.
    assert codes == [Result.OK] * 4
    assert admin.code(delete("queue", "qu")) == Result.NOT_FOUND


def test_identity_cannot_change_and_the_answer_names_what_differs(admin: Admin) -> None:
    admin.apply(put("exchange", "fixed", {"type": "topic"}))
    (result,) = admin.apply(put("exchange", "fixed", {"type": "fanout"}))
    assert result.code == Result.IMMUTABLE
    assert "type" in result.message
    assert json.loads(result.current.spec)["type"] == "topic"
    admin.apply(delete("exchange", "fixed"))


def test_dry_run_says_what_would_happen_and_does_nothing(admin: Admin) -> None:
    dry = put("queue", "dry", QUORUM, dry_run=True)
    assert admin.code(dry) == Result.OK
    assert ("queue", "dry") not in admin.objects("queue")
    admin.apply(put("queue", "dry", QUORUM))
    assert admin.code(delete("queue", "dry", dry_run=True)) == Result.OK
    assert ("queue", "dry") in admin.objects("queue")
    admin.apply(delete("queue", "dry"))


def test_preconditions_and_owners_protect_what_somebody_else_manages(admin: Admin) -> None:
    owner = admin_pb2.Owner(managed_by="op", resource="Queue/ns/owned", uid="u1")
    absent = admin_pb2.Precondition(absent=True)
    create = put("queue", "owned", QUORUM, owner=owner, precondition=absent)
    assert admin.code(create) == Result.OK
    assert admin.code(create) == Result.PRECONDITION
    stranger = admin_pb2.Precondition(owner_uid="u2")
    (refused,) = admin.apply(delete("queue", "owned", precondition=stranger))
    assert refused.code == Result.PRECONDITION
    assert refused.current.owner.uid == "u1"
    mine = admin_pb2.Precondition(owner_uid="u1")
    new_owner = admin_pb2.Owner(managed_by="op", resource="Queue/ns/owned", uid="u2")
    change = Operation(
        action=Operation.SET_OWNER,
        kind="queue",
        vhost="/",
        name="owned",
        owner=new_owner,
        precondition=mine,
    )
    assert admin.code(change) == Result.OK
    assert admin.code(delete("queue", "owned", precondition=mine)) == Result.PRECONDITION
    assert admin.code(delete("queue", "owned", precondition=stranger)) == Result.OK


def test_a_queue_with_messages_or_consumers_survives_a_conditional_delete(
    admin: Admin, member: Member
) -> None:
    """The condition is judged in the queue's own log, together with the deletion."""
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("busy", durable=True, arguments={"x-queue-type": "quorum"})
    channel.confirm_delivery()
    channel.basic_publish("", "busy", b"x")
    (refused,) = admin.apply(delete("queue", "busy", if_empty=True))
    assert (refused.code, refused.messages, refused.consumers) == (Result.REFUSED, 1, 0)
    channel.basic_consume("busy", lambda *_: None)
    (refused,) = admin.apply(delete("queue", "busy", if_unused=True))
    assert (refused.code, refused.consumers) == (Result.REFUSED, 1)
    assert admin.code(delete("queue", "busy")) == Result.OK
    connection.close()


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        (Operation(kind="queue", vhost="/", name="bad", spec="{"), "JSON"),
        (Operation(kind="queue", vhost="/", name="bad", spec="[]"), "object"),
        (Operation(kind="queue", vhost="/", name="bad", spec="[" * 100_000), "JSON"),
        (Operation(kind="castle", vhost="/", name="bad", spec="{}"), "castle"),
        (put("queue", "bad", {"type": "stream"}), "type"),
        (put("exchange", "bad", {}), "type"),
        (put("exchange", "bad", {"type": "topic", "colour": "red"}), "colour"),
        (put("queue", "bad", {"type": "classic"}, vhost="nowhere"), "nowhere"),
        (put("queue", "q" * 256, {"type": "classic"}), "255"),
        (put("policy", "bad", {"pattern": "(", "definition": {}}), "regular expression"),
    ],
)
def test_wrong_operations_are_refused_with_a_reason_and_the_next_ones_work(
    admin: Admin, operation: Any, text: str
) -> None:
    """SEC-49."""
    refused, good = admin.apply(operation, put("vhost", "after", {}, vhost=""))
    assert refused.code == Result.REFUSED, refused
    assert text in refused.message
    assert good.code in (Result.OK, Result.UNCHANGED)
    admin.apply(delete("vhost", "after", vhost=""))


def test_too_many_operations_in_one_request_end_the_call(admin: Admin) -> None:
    operations = [put("vhost", f"v{i}", {}, vhost="", dry_run=True) for i in range(257)]
    with pytest.raises(grpc.RpcError, match="256"):
        admin.apply(*operations)


def test_passwords_are_stored_hashed_and_never_listed(admin: Admin, member: Member) -> None:
    """SEC-10, SEC-20."""
    spec = {"tags": ["monitoring"], "password": "first secret"}
    assert admin.code(put("user", "eve", spec, vhost="")) == Result.OK
    # The same password again: its hash stays, nothing changes.
    assert admin.code(put("user", "eve", spec, vhost="")) == Result.UNCHANGED
    before = admin.objects("user")["user", "eve"]
    assert "password" not in before.spec
    assert admin.code(put("user", "eve", {**spec, "password": "second"}, vhost="")) == Result.OK
    assert admin.objects("user")["user", "eve"].hash != before.hash
    request = admin_pb2.AuthenticateRequest(user="eve", password="second")
    answer = admin.call("Authenticate", request)
    assert (answer.ok, list(answer.tags)) == (True, ["monitoring"])
    request.password = "first secret"
    assert not admin.call("Authenticate", request).ok
    assert "secret" not in member.log()
    admin.apply(delete("user", "eve", vhost=""))


def test_tags_decide_who_may_read_and_who_may_write(admin: Admin, member: Member) -> None:
    """R-PERM-9, SEC-9."""
    for name, tags in (("reader", ["monitoring"]), ("nobody", [])):
        spec = {"tags": tags, "password": "pw"}
        assert admin.code(put("user", name, spec, vhost="")) == Result.OK
    reader = Admin(member.grpc_port, "reader", "pw")
    assert reader.call("GetInfo", admin_pb2.GetInfoRequest()).node == "n0"
    denied, unknown = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
    for user, call, request, code in (
        ("reader", "SetSettings", admin_pb2.SetSettingsRequest(), denied),
        ("reader", "PurgeQueue", admin_pb2.PurgeQueueRequest(), denied),
        ("reader", "Drain", admin_pb2.DrainRequest(), denied),
        ("nobody", "GetInfo", admin_pb2.GetInfoRequest(), denied),
        ("unknown", "GetInfo", admin_pb2.GetInfoRequest(), unknown),
    ):
        stranger = Admin(member.grpc_port, user, "pw")
        with pytest.raises(grpc.RpcError) as failure:
            stranger.call(call, request)
        assert failure.value.code() is code, (user, call)
        stranger.channel.close()
    with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
        reader.apply(put("vhost", "v", {}, vhost=""))
    reader.channel.close()
    admin.apply(delete("user", "reader", vhost=""), delete("user", "nobody", vhost=""))


def test_a_watch_tells_of_every_change_from_a_revision_on(admin: Admin, member: Member) -> None:
    revision = admin.call("GetInfo", admin_pb2.GetInfoRequest()).revision
    # One change before the watch begins, one by the service, one by an AMQP client.
    admin.apply(put("exchange", "w1", {"type": "fanout"}))
    watch = admin.call("WatchTopology", admin_pb2.WatchTopologyRequest(since_revision=revision))
    first = next(watch)
    assert (first.change, first.object.name, first.cause) == (
        admin_pb2.TopologyEvent.PUT,
        "w1",
        "admin",
    )
    connection = member.connect()
    connection.channel().exchange_delete("w1")
    second = next(watch)
    assert (second.change, second.object.name, second.cause) == (
        admin_pb2.TopologyEvent.DELETED,
        "w1",
        "amqp:guest",
    )
    assert first.revision < second.revision
    connection.close()
    watch.cancel()


def test_a_watch_from_the_future_or_the_forgotten_past_lists_again(admin: Admin) -> None:
    far = admin.call("WatchTopology", admin_pb2.WatchTopologyRequest(since_revision=1 << 60))
    assert next(far).change == admin_pb2.TopologyEvent.COMPACTED
    assert list(far) == []


def test_unknown_kinds_settings_and_queues_are_refused(admin: Admin) -> None:
    invalid, missing = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
    for call, request, code in (
        ("List", admin_pb2.ListRequest(kind="castles"), invalid),
        ("ListTopology", admin_pb2.ListTopologyRequest(kinds=["castle"]), invalid),
        ("SetSettings", admin_pb2.SetSettingsRequest(settings={"colour": "red"}), invalid),
        ("PurgeQueue", admin_pb2.PurgeQueueRequest(vhost="/", name="none"), missing),
    ):
        with pytest.raises(grpc.RpcError) as failure:
            list(admin.call(call, request))
        assert failure.value.code() is code, call


def test_an_upstreams_uri_stays_secret_and_its_hash_changes_with_it(admin: Admin) -> None:
    """SEC-20."""
    name = "federation-upstream/up"

    def hash_with(uri: str) -> str:
        value = {"uri": uri, "prefetch-count": 10}
        assert admin.code(put("parameter", name, {"value": value})) == Result.OK
        found = admin.objects("parameter")["parameter", name]
        assert "hunter2" not in found.spec
        assert json.loads(found.spec)["value"]["prefetch-count"] == 10
        digest: str = found.hash
        return digest

    assert hash_with("amqp://u:hunter2@h1") != hash_with("amqp://u:hunter2@h2")
    admin.apply(delete("parameter", name))


def test_three_members_are_told_apart_drained_and_judged_safe_to_stop(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with cluster(tmp_path_factory.mktemp("three"), 3) as members:
        first, second = Admin(members[0].grpc_port), Admin(members[1].grpc_port)
        for i in range(3):
            assert first.code(put("queue", f"q{i}", QUORUM)) == Result.OK
        # What one member was told, another one knows, figures included.
        pages = second.call("List", admin_pb2.ListRequest(kind="queues"))
        rows = [json.loads(row) for page in pages for row in page.rows]
        assert {row["name"] for row in rows} == {"q0", "q1", "q2"}
        assert all(len(row["members"]) == 3 and row["messages"] == 0 for row in rows)
        eventually(lambda: _safe(first, "n2"), "all members are up")
        assert _critical(first) == []
        drained = first.call("Drain", admin_pb2.DrainRequest(deadline_ms=60_000))
        assert drained.leaders_left == 0
        with pytest.raises(grpc.RpcError, match="call Drain on 'n1' itself"):
            first.call("Drain", admin_pb2.DrainRequest(member="n1"))
        members[2].kill()
        eventually(lambda: not _running(first, "n2"), "the killed member is missed")
        eventually(lambda: not _safe(first, "n1"), "the missing member counts")
        eventually(lambda: _critical(first) == ["n0", "n1"], "nobody can be spared")
        answer = first.call("SafeToStop", admin_pb2.SafeToStopRequest(member="n1"))
        assert not answer.safe
        assert "would lose its majority" in answer.reasons[0]
        with pytest.raises(grpc.RpcError, match="'n7' is not in the cluster"):
            first.call("RemoveMember", admin_pb2.MemberRequest(name="n7"))
        # The two that are left are a majority of themselves; one of them alone is not.
        left = first.call("RemoveMember", admin_pb2.MemberRequest(name="n2"))
        assert list(left.members) == ["n0", "n1"]
        first.channel.close()
        second.channel.close()


def test_queues_of_resources_are_led_by_all_members(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """R-QQ-5: the operator asks one member for all of them."""
    owner = admin_pb2.Owner(managed_by="operator", resource="Queue/a/q", uid="u")
    with cluster(tmp_path_factory.mktemp("spread"), 3) as members:
        wait_acquainted(members)
        admin = Admin(members[0].grpc_port)
        results = admin.apply(
            *(put("queue", f"q{number}", QUORUM, owner=owner) for number in range(6)),
            *(put("queue", f"c{number}", {"type": "classic"}, owner=owner) for number in range(3)),
        )
        assert {result.code for result in results} == {Result.OK}
        # Who leads is told by the leader.
        eventually(lambda: _led(admin) == {"n0": 3, "n1": 3, "n2": 3}, "all lead as many")
        admin.channel.close()


def _led(admin: Admin) -> Counter[str]:
    """How many queues each member leads; of a classic queue elsewhere only the home is known."""
    pages = admin.call("List", admin_pb2.ListRequest(kind="queues"))
    rows = [json.loads(row) for page in pages for row in page.rows]
    return Counter(row["leader"] or row["members"][0] for row in rows)


def _safe(admin: Admin, member: str) -> bool:
    safe: bool = admin.call("SafeToStop", admin_pb2.SafeToStopRequest(member=member)).safe
    return safe


def _critical(admin: Admin) -> list[str]:
    status = admin.call("MemberStatus", admin_pb2.MemberStatusRequest())
    return sorted(member.name for member in status.members if member.quorum_critical)


def _running(admin: Admin, name: str) -> bool:
    status = admin.call("MemberStatus", admin_pb2.MemberStatusRequest())
    return any(member.name == name and member.running for member in status.members)


def test_without_a_majority_the_answer_is_unavailable_not_silence(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("minority")
    with cluster(folder, 3, BROKERD_LIMITS_OPERATION_TIMEOUT_MS="3000") as members:
        admin = Admin(members[0].grpc_port)
        for member in members[1:]:
            member.kill()
        (result,) = admin.apply(put("vhost", "v", {}, vhost=""))
        assert result.code == Result.UNAVAILABLE
        # Reading goes on.
        assert ("vhost", "/") in admin.objects("vhost")
        admin.channel.close()


def test_many_operations_have_the_results_that_each_has_alone(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """SEC-49: in one request or one by one; at another member all of it is there at once."""
    with cluster(tmp_path_factory.mktemp("many"), 3) as members:
        wait_acquainted(members)
        first, second = Admin(members[0].grpc_port), Admin(members[1].grpc_port)
        together = first.apply(*_mixed("together"))
        alone = [result for item in _mixed("alone") for result in first.apply(item)]
        assert [_told(result) for result in together] == [_told(result) for result in alone]
        ok, unchanged = Result.OK, Result.UNCHANGED
        expected = [ok] * 8 + [Result.REFUSED, Result.PRECONDITION, ok, ok, ok, unchanged]
        assert [result.code for result in together] == [*expected, ok, Result.NOT_FOUND, ok]
        kinds = ("exchange", "queue", "binding", "policy")
        for admin in (second, first):
            found = [admin.objects(*kinds, vhost=vhost) for vhost in ("together", "alone")]
            assert found[0].keys() == found[1].keys()
            assert {name for kind, name in found[0] if kind == "queue"} == {"q1", "q2"}
        # A new queue can be used when the answer is there.
        login = pika.PlainCredentials("of together", "pw")
        connection = members[2].connect(virtual_host="together", credentials=login)
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("ex", "k", b"x", mandatory=True)
        assert channel.queue_declare("q1", passive=True).method.message_count == 1
        connection.close()
        # The same again changes nothing but what was deleted in it.
        again = first.apply(*_mixed("together")[:5])
        assert [result.code for result in again] == [unchanged] * 5
        first.channel.close()
        second.channel.close()


def _mixed(vhost: str) -> list[Any]:
    """Return operations that build on each other, in a vhost of their own."""
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    policy = {"pattern": "^q", "definition": {"queue-leader-locator": "balanced"}}
    bound = {"source": "ex", "destination": "q1", "routing_key": "k"}
    absent = admin_pb2.Precondition(absent=True)
    return [
        put("vhost", vhost, {}, vhost=""),
        put("user", f"of {vhost}", {"tags": [], "password": "pw"}, vhost=""),
        put("permission", f"of {vhost}", rights, vhost=vhost),
        put("policy", "po", policy, vhost=vhost),
        put("exchange", "ex", {"type": "topic"}, vhost=vhost),
        put("queue", "q1", QUORUM, vhost=vhost),
        put("queue", "q3", QUORUM, vhost=vhost),
        put("binding", "", bound, vhost=vhost),
        put("exchange", "bad", {"type": "round"}, vhost=vhost),
        put("queue", "q1", QUORUM, vhost=vhost, precondition=absent),
        put("queue", "q2", QUORUM, vhost=vhost, dry_run=True),
        delete("queue", "q3", vhost=vhost),
        put("queue", "q2", QUORUM, vhost=vhost),
        put("queue", "q2", QUORUM, vhost=vhost),
        put("queue", "q4", {"type": "classic"}, vhost=vhost),
        delete("exchange", "none", vhost=vhost),
        delete("queue", "q4", vhost=vhost),
    ]


def _told(result: Any) -> tuple[Any, ...]:
    """Return what a result says, but for what differs between two vhosts."""
    current = result.current
    name = current.name.replace("alone", "together")
    spec = "" if current.kind == "vhost" else current.spec
    shown = (current.kind, name, spec, bool(current.revision), bool(result.revision))
    return result.code, result.message, result.messages, result.consumers, *shown
