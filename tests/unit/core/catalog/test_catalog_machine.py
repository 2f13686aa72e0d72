"""The catalog machine: puts, deletes, cascades, preconditions, snapshots, the log of changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands, names
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import ConnectionId, Owner
from brokerd.core.machine import Meta
from tests.unit.core.catalog_driver import OTHER, OWN, CatalogDriver, StepMeta

QUEUE: dict[str, Any] = {"type": "classic"}
OURS = Owner("op-1", "Queue/shop/q", "uid-1", "DeleteIfEmpty", False)


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


def codes(*replies: dict[str, Any]) -> list[str]:
    return [reply["code"] for reply in replies]


def test_machine_has_the_shape_of_a_replicated_machine(catalog: CatalogDriver) -> None:
    machine = catalog.machine
    meta: Meta = StepMeta(5)
    assert machine.realise_everywhere
    assert (machine.factory(), machine.look(b"{}", 0)) == (None, None)
    assert machine.became_leader(meta) == []
    assert list(machine.live_indexes()) == []
    assert machine.next_deadline_ms() is None
    before = machine.snapshot()
    assert machine.apply(meta, machine.tick_command()).effects == []
    assert machine.snapshot() == before


def test_first_bootstrap_wins(catalog: CatalogDriver) -> None:
    reply = catalog.do(catalog_commands.bootstrap("id-2", "other", [{"name": "eve"}]))
    assert (reply["code"], reply["cluster_id"]) == ("UNCHANGED", "id-1")
    assert catalog.view.cluster_name == "shop"
    assert catalog.view.user("eve") is None
    guest = catalog.view.user("guest")
    assert guest is not None
    assert (guest.tags, guest.password_hash) == (["administrator"], "h")


def test_identical_put_changes_nothing(catalog: CatalogDriver) -> None:
    first = catalog.put("exchange", "x", {"type": "topic"})
    assert (first["code"], first["revision"]) == ("OK", 2)
    again = catalog.put("exchange", "x", {"type": "topic", "durable": True, "arguments": {}})
    assert (again["code"], again["revision"], catalog.effects) == ("UNCHANGED", 2, [])
    assert again["object"] == first["object"]


def test_identity_is_immutable_and_the_fields_are_named(catalog: CatalogDriver) -> None:
    catalog.put("queue", "q", QUEUE, uid=5, members=["n1"])
    spec = {"type": "quorum", "arguments": {"x-max-length": 1}}
    reply = catalog.put("queue", "q", spec, uid=6, members=["n1"])
    assert reply["code"] == "IMMUTABLE"
    assert reply["text"] == "cannot change type, arguments of an existing queue"
    assert reply["object"]["uid"] == 5
    catalog.put("exchange", "x", {"type": "topic"})
    reply = catalog.put("exchange", "x", {"type": "topic", "internal": True})
    assert reply["text"] == "cannot change internal of an existing exchange"


def test_settings_and_replicas_are_mutable(catalog: CatalogDriver) -> None:
    spec: dict[str, Any] = {"type": "quorum"}
    catalog.put("queue", "q", spec, uid=5, members=["n1"])
    first = catalog.machine.object("queue", "/", "q")
    assert first is not None
    changed = spec | {"settings": {"max-length": 5, "overflow": None}, "replicas": 5}
    reply = catalog.put("queue", "q", changed)
    assert reply["code"] == "OK"
    assert reply["object"]["spec"]["settings"] == {"max-length": 5}
    assert reply["object"]["hash"] != first["hash"]
    assert catalog.found("q").replicas == 5
    assert catalog.changed() == [("+", "queue", "q")]
    assert (first["revision"], reply["object"]["revision"]) == (2, 3)


@pytest.mark.parametrize(
    ("kind", "name", "spec", "text"),
    [
        ("exchange", "x", {"type": "zz"}, "type: must be one of"),
        ("exchange", "x", {}, "type: missing"),
        ("exchange", "x", {"type": "topic", "colour": 1}, "unknown field 'colour'"),
        ("exchange", "x", {"type": "topic", "durable": 1}, "durable: expected a boolean"),
        ("exchange", "x", {"type": "topic", "settings": {"ae": "x"}}, "['ae'] are not recognised"),
        ("exchange", "amq.x", {"type": "topic"}, "reserved prefix 'amq.*'"),
        ("exchange", "x" * 256, {"type": "topic"}, "longer than 255 bytes"),
        ("exchange", "é" * 128, {"type": "topic"}, "longer than 255 bytes"),
        ("queue", "q", {"type": "classic", "replicas": 3}, "only quorum queues have replicas"),
        ("queue", "q", {"type": "quorum", "replicas": 0}, "replicas: must be between 1 and 255"),
        ("queue", "q", {"type": "quorum", "durable": False}, "invalid property 'non-durable'"),
        ("queue", "q", {"type": "classic", "settings": {"max-length": -1}}, "must be at least 0"),
        (
            "queue",
            "q",
            {"type": "classic", "settings": {"delivery-limit": 1}},
            "not supported by classic",
        ),
        (
            "queue",
            "q",
            {"type": "classic", "arguments": {"x-queue-type": "quorum"}},
            "type is classic but x-queue-type is quorum",
        ),
        ("queue", "", {"type": "classic"}, "a queue needs a name"),
        ("policy", "p", {"pattern": "(", "definition": {"max-length": 1}}, "regular expression"),
        ("policy", "p", {"pattern": "x", "definition": {}}, "must not be empty"),
        ("policy", "p", {"pattern": "x", "definition": {"nope": 1}}, "['nope'] are not recognised"),
        ("policy", "p", {"pattern": "x" * 1025, "definition": {"expires": 1}}, "1024 bytes"),
        ("permission", "guest", {"configure": "[", "write": "", "read": ""}, "configure: invalid"),
        ("parameter", "p", {"value": 1}, "component/name"),
        ("topic_permission", "guest", {"write": "", "read": ""}, "user|exchange"),
        ("nonsense", "p", {}, "unknown kind 'nonsense'"),
    ],
)
def test_wrong_objects_are_refused_with_a_reason(
    catalog: CatalogDriver, kind: str, name: str, spec: dict[str, Any], text: str
) -> None:
    before = catalog.machine.snapshot()
    reply = catalog.put(kind, name, spec, uid=1, members=["n1"])
    assert reply["code"] == "REFUSED"
    assert text in reply["text"]
    assert (catalog.effects, catalog.machine.snapshot()) == ([], before)


def test_missing_dependencies_are_not_found(catalog: CatalogDriver) -> None:
    binding = {"source": "x", "destination": "q"}
    rights = {"configure": "", "write": "", "read": ""}
    replies = [
        catalog.put("binding", "", binding),
        catalog.put("permission", "nobody", rights),
        catalog.put("exchange", "x", {"type": "topic"}, vhost="nowhere"),
        catalog.delete("queue", "q"),
    ]
    assert codes(*replies) == ["NOT_FOUND"] * 4
    assert [reply["amqp"] for reply in replies] == [404] * 4


def test_nested_and_large_specs_are_refused(catalog: CatalogDriver) -> None:
    """SEC-49."""
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    for value, text in ((deep, "nested deeper"), ("x" * 300_000, "larger than")):
        reply = catalog.put("parameter", "c/n", {"value": value})
        assert reply["code"] == "REFUSED"
        assert text in reply["text"]


@pytest.mark.parametrize(
    "command",
    [
        b"",
        b"\x02{}",
        b"\x01{",
        b"\x01[]",
        b"\x01" + b"[" * 100_000,
        b"\x01\xff",
        b'\x01{"do":"explode"}',
        b'\x01{"do":["put"]}',
        b'\x01{"do":"put","kind":"queue","vhost":"/","name":"q","spec":{},"cause":"admin"}',
        b'\x01{"do":"delete","kind":1,"vhost":"/","name":"q","cause":"admin"}',
        b'\x01{"do":"batch","operations":5}',
        b'\x01{"do":"connection_closed","connection":[1]}',
        b'\x01{"do":"bootstrap","cluster_id":"","cluster_name":"","default_vhost":"/","users":[1]}',
        b'\x01{"do":"delete","kind":"queue","vhost":"/","name":"q","cause":"a","precondition":[1]}',
        b'\x01{"do":"set_owner","kind":"queue","vhost":"/","name":"q","cause":"a","owner":5}',
    ],
)
def test_any_bytes_are_answered(catalog: CatalogDriver, command: bytes) -> None:
    reply = catalog.send(command)
    assert reply["code"] == "REFUSED"
    assert catalog.effects == []


def test_batch_answers_each_operation_in_order(catalog: CatalogDriver) -> None:
    reply = catalog.send(
        catalog_commands.encode_batch(
            [
                catalog_commands.put("exchange", "/", "x", {"type": "fanout"}, cause="admin"),
                catalog_commands.put("queue", "/", "q", QUEUE, cause="admin", uid=9, members=["a"]),
                catalog_commands.put(
                    "binding", "/", "", {"source": "x", "destination": "q"}, cause="admin"
                ),
                catalog_commands.delete("queue", "/", "missing", cause="admin"),
                {"do": "batch", "operations": []},
            ]
        )
    )
    assert codes(*reply["results"]) == ["OK", "OK", "OK", "NOT_FOUND", "REFUSED"]
    assert {effect.revision for effect in catalog.effects} == {2}
    assert catalog.routed("x") == ["q"]


# Preconditions and owners.


def test_preconditions(catalog: CatalogDriver) -> None:
    def put(**precondition: Any) -> str:
        reply = catalog.put("exchange", "x", {"type": "topic"}, precondition=precondition)
        return str(reply["code"])

    assert put(hash="0123456789abcdef") == "PRECONDITION"
    assert put(absent=True) == "OK"
    assert put(absent=True) == "PRECONDITION"
    known = catalog.machine.object("exchange", "/", "x")
    assert known is not None
    assert put(hash=known["hash"]) == "UNCHANGED"
    assert put(hash="0123456789abcdef") == "PRECONDITION"
    assert put(owner_uid="uid-1") == "PRECONDITION"
    catalog.do(catalog_commands.set_owner("exchange", "/", "x", OURS))
    assert put(owner_uid="uid-1") == "UNCHANGED"
    reply = catalog.delete("exchange", "x", precondition={"owner_uid": "uid-2"})
    assert (reply["code"], reply["object"]["owner"]["uid"]) == ("PRECONDITION", "uid-1")
    reply = catalog.delete("exchange", "x", precondition={"owner_uid": "uid-1"})
    assert reply["code"] == "OK"


def test_owner_is_no_part_of_spec_or_hash(catalog: CatalogDriver) -> None:
    """design/operator.md §8."""
    plain = catalog.put("exchange", "x", {"type": "topic"})["object"]
    owned = catalog.put("exchange", "x", {"type": "topic"}, owner=OURS)
    assert owned["code"] == "OK"
    assert owned["object"]["owner"]["resource"] == "Queue/shop/q"
    assert owned["object"]["hash"] == plain["hash"]
    assert catalog.put("exchange", "x", {"type": "topic"}, owner=OURS)["code"] == "UNCHANGED"
    assert catalog.put("exchange", "x", {"type": "topic"})["object"]["owner"] is not None
    catalog.do(catalog_commands.set_owner("exchange", "/", "x", None))
    cleared = catalog.machine.object("exchange", "/", "x")
    assert cleared is not None
    assert cleared["owner"] is None


def test_protected_objects_are_left_alone_by_amqp(catalog: CatalogDriver) -> None:
    """R-Q-14."""
    guarded = Owner("op-1", "Queue/shop/q", "u", "Retain", True)
    catalog.put("exchange", "x", {"type": "topic"}, owner=guarded)
    catalog.put("queue", "q", QUEUE, owner=guarded, uid=5, members=["n1"])
    for kind, name, amqp in (("queue", "q", 405), ("exchange", "x", 403)):
        reply = catalog.delete(kind, name, cause="amqp:guest")
        assert (reply["code"], reply["amqp"]) == ("REFUSED", amqp)
        assert "protected" in reply["text"]
    assert catalog.delete("queue", "q", cause="admin")["code"] == "OK"
    assert catalog.delete("exchange", "x", cause="admin")["code"] == "OK"


def test_dry_run_answers_and_changes_nothing(catalog: CatalogDriver) -> None:
    catalog.put("exchange", "x", {"type": "topic"})
    before = catalog.machine.snapshot()
    settings = {"type": "topic", "settings": {"alternate-exchange": "ae"}}
    replies = [
        catalog.put("exchange", "y", {"type": "topic"}, dry_run=True),
        catalog.put("exchange", "x", settings, dry_run=True),
        catalog.put("exchange", "x", {"type": "fanout"}, dry_run=True),
        catalog.delete("exchange", "x", dry_run=True),
        catalog.do(catalog_commands.set_owner("exchange", "/", "x", OURS, dry_run=True)),
    ]
    assert codes(*replies) == ["OK", "OK", "IMMUTABLE", "OK", "OK"]
    assert catalog.machine.snapshot() == before


# Races between nodes: the declare is judged again when it is applied.


def test_second_declare_of_two_nodes_is_a_redeclaration(catalog: CatalogDriver) -> None:
    def declare(spec: dict[str, Any], uid: int) -> dict[str, Any]:
        return catalog.put(
            "queue", "q", spec, cause="amqp:guest", declare=True, uid=uid, members=["n1"]
        )

    assert declare(QUEUE, 11)["code"] == "OK"
    same = declare(QUEUE, 12)
    assert (same["code"], same["object"]["uid"]) == ("UNCHANGED", 11)
    other = declare({"type": "quorum"}, 13)
    assert (other["code"], other["amqp"]) == ("PRECONDITION", 406)
    assert "inequivalent arg 'x-queue-type'" in other["text"]
    exclusive = catalog.put(
        "queue", "q", QUEUE, cause="amqp:u", declare=True, uid=14, members=[], exclusive_owner=OTHER
    )
    assert (exclusive["code"], exclusive["amqp"]) == ("PRECONDITION", 405)


def test_delete_by_uid_spares_the_queue_that_came_after(catalog: CatalogDriver) -> None:
    catalog.put("queue", "q", QUEUE, uid=5, members=["n1"])
    assert catalog.delete("queue", "q", uid=4)["code"] == "PRECONDITION"
    assert catalog.delete("queue", "q", uid=5, cause="expired")["code"] == "OK"
    assert (catalog.effects[-1].uid, catalog.effects[-1].cause) == (5, "expired")


# Cascades.


def test_bindings_go_with_their_queue(catalog: CatalogDriver) -> None:
    catalog.exchange("x", "fanout")
    catalog.queue("q")
    catalog.bind("x", "q", "a")
    catalog.bind("x", "q", "b")
    catalog.delete("queue", "q")
    assert catalog.changed() == [
        ("-", "binding", "x|queue|q|a|"),
        ("-", "binding", "x|queue|q|b|"),
        ("-", "queue", "q"),
    ]
    assert catalog.route("x", "a").unroutable


def test_exchange_goes_with_its_bindings_and_auto_delete_sources(catalog: CatalogDriver) -> None:
    """R-EX-7, R-EX-8: a chain of auto-delete exchanges unravels."""
    for name in ("a", "b"):
        catalog.exchange(name, "fanout", auto_delete=True)
    catalog.exchange("c", "fanout")
    catalog.bind("a", "b", kind="exchange")
    catalog.bind("b", "c", kind="exchange")
    catalog.delete("exchange", "c")
    assert [change for change in catalog.changed() if change[1] == "exchange"] == [
        ("-", "exchange", "c"),
        ("-", "exchange", "b"),
        ("-", "exchange", "a"),
    ]
    assert [effect.cause for effect in catalog.effects if effect.name in ("a", "b")] == [
        "auto-delete",
        "auto-delete",
    ]


def test_auto_delete_counts_bindings_as_source_only(catalog: CatalogDriver) -> None:
    """R-EX-8: and only after having had one."""
    catalog.exchange("x", "fanout", auto_delete=True)
    catalog.exchange("y", "fanout")
    catalog.queue("q")
    catalog.bind("y", "x", kind="exchange")
    catalog.unbind("y", "x", kind="exchange")
    assert catalog.view.exchange("/", "x") is not None
    catalog.bind("x", "q", "1")
    catalog.bind("x", "q", "2")
    catalog.unbind("x", "q", "1")
    assert catalog.view.exchange("/", "x") is not None
    catalog.unbind("x", "q", "2")
    assert catalog.view.exchange("/", "x") is None


def test_if_unused_is_judged_when_applied(catalog: CatalogDriver) -> None:
    """R-EX-6: being a destination is no use."""
    catalog.exchange("x", "fanout")
    catalog.exchange("y", "fanout")
    catalog.bind("x", "y", kind="exchange")
    reply = catalog.delete("exchange", "x", if_unused=True)
    assert (reply["amqp"], reply["text"]) == (406, "exchange 'x' in vhost '/' in use")
    assert catalog.delete("exchange", "y", if_unused=True)["code"] == "OK"
    assert catalog.delete("exchange", "x", if_unused=True)["code"] == "OK"


def test_default_exchanges_cannot_be_deleted(catalog: CatalogDriver) -> None:
    """R-EX-6."""
    for name, _, _ in names.DEFAULT_EXCHANGES:
        reply = catalog.delete("exchange", name)
        assert (reply["code"], reply["amqp"]) == ("REFUSED", 403)


def test_vhost_takes_everything_with_it(catalog: CatalogDriver) -> None:
    """R-VH-2."""
    catalog.put("vhost", "v", {}, vhost="")
    assert len(catalog.machine.objects("exchange", "v")) == 7
    rights = {"configure": ".*", "write": ".*", "read": ".*"}
    definition = {"pattern": "x", "definition": {"max-length": 1}}
    for kind, name, spec in (
        ("queue", "q", QUEUE),
        ("exchange", "x", {"type": "topic"}),
        ("binding", "", {"source": "x", "destination": "q"}),
        ("permission", "guest", rights),
        ("topic_permission", "guest|x", {"write": "", "read": ""}),
        ("policy", "p", definition),
        ("operator_policy", "o", definition),
        ("parameter", "federation-upstream/u", {"value": {"uri": "amqp://h"}}),
    ):
        assert catalog.put(kind, name, spec, vhost="v", uid=5, members=["n1"])["code"] == "OK"
    catalog.delete("vhost", "v", vhost="")
    assert [record for record in catalog.machine.objects() if record["vhost"] == "v"] == []
    assert len(catalog.effects) == 16
    assert {each.cause for each in catalog.effects} == {"vhost-deleted", "admin"}


def test_user_takes_its_permissions_with_it(catalog: CatalogDriver) -> None:
    for user in ("u", "u2"):
        catalog.put("user", user, {}, vhost="")
        catalog.put("permission", user, {"configure": "", "write": "", "read": ""})
        catalog.put("topic_permission", f"{user}|x", {"write": "", "read": ""})
    catalog.delete("user", "u", vhost="")
    assert catalog.changed() == [
        ("-", "permission", "u"),
        ("-", "topic_permission", "u|x"),
        ("-", "user", "u"),
    ]


def test_exclusive_queues_end_with_their_connection(catalog: CatalogDriver) -> None:
    """R-Q-9."""
    catalog.queue("mine", exclusive=True)
    catalog.queue("theirs", exclusive=True, connection=OTHER)
    catalog.queue("q")
    catalog.do(catalog_commands.connection_closed(OWN))
    assert catalog.changed() == [("-", "queue", "mine")]
    assert catalog.do(catalog_commands.connection_closed(OWN))["code"] == "UNCHANGED"


def test_restarted_node_sheds_what_died_with_its_predecessor(catalog: CatalogDriver) -> None:
    """R-Q-9, R-EX-9."""
    catalog.do(catalog_commands.put_member("n1", "n1:5690"))
    catalog.do(catalog_commands.node_started("n1", OWN.incarnation))
    catalog.queue("exclusive", exclusive=True)
    catalog.queue("transient", durable=False)
    catalog.queue("durable")
    catalog.exchange("fleeting")
    catalog.exchange("lasting", durable=True)
    again = catalog.do(catalog_commands.node_started("n1", OWN.incarnation))
    assert (again["code"], catalog.effects) == ("UNCHANGED", [])
    catalog.do(catalog_commands.node_started("n1", OWN.incarnation + 1))
    assert sorted(catalog.changed()) == [
        ("-", "exchange", "fleeting"),
        ("-", "queue", "exclusive"),
        ("-", "queue", "transient"),
    ]


def test_restart_of_one_of_several_keeps_transient_exchanges(catalog: CatalogDriver) -> None:
    for node in ("n1", "n2"):
        catalog.do(catalog_commands.put_member(node, f"{node}:5690"))
    catalog.exchange("fleeting")
    catalog.do(catalog_commands.node_started("n2", 1))
    assert catalog.effects == []


# Users, settings, members, parameters.


@pytest.mark.parametrize("kind", ["user", "vhost"])
def test_tags_stay_in_their_order(catalog: CatalogDriver, kind: str) -> None:
    """As in RabbitMQ: Terraform's provider compares them as a list."""
    put = catalog.put(kind, "u", {"tags": ["policymaker", "management", "policymaker"]}, vhost="")
    assert put["code"] == "OK"
    record = catalog.view.get(kind, "", "u")
    assert record is not None
    assert record.value["tags"] == ["policymaker", "management"]


def test_password_hash_is_stored_but_never_listed(catalog: CatalogDriver) -> None:
    """SEC-20; the listing's hash changes with it."""
    first = catalog.put("user", "u", {"password_hash": "s3cret"}, vhost="")
    assert "s3cret" not in json.dumps(first)
    user = catalog.view.user("u")
    assert user is not None
    assert user.password_hash == "s3cret"
    kept = catalog.put("user", "u", {"tags": ["monitoring"]}, vhost="")
    assert kept["code"] == "OK"
    assert user.password_hash == "s3cret"
    changed = catalog.put("user", "u", {"tags": ["monitoring"], "password_hash": "other"}, vhost="")
    assert changed["object"]["hash"] != kept["object"]["hash"]
    assert "s3cret" not in json.dumps(catalog.machine.objects())
    assert "other" not in json.dumps(catalog.machine.objects("user"))


def test_members_settings_and_parameters(catalog: CatalogDriver) -> None:
    for name in ("n2", "n1"):
        catalog.do(catalog_commands.put_member(name, f"{name}:5690"))
    assert list(catalog.view.members().items()) == [("n1", "n1:5690"), ("n2", "n2:5690")]
    catalog.do(catalog_commands.remove_member("n2"))
    assert list(catalog.view.members()) == ["n1"]
    catalog.do(catalog_commands.set_setting("disk_free_limit", "1GB"))
    assert catalog.view.setting("disk_free_limit") == "1GB"
    catalog.do(catalog_commands.set_setting("disk_free_limit", None))
    assert catalog.view.setting("disk_free_limit", "default") == "default"
    catalog.put("parameter", "federation-upstream/u/1", {"value": {"uri": "amqp://h"}})
    assert catalog.view.parameters("/", "federation-upstream") == {"u/1": {"uri": "amqp://h"}}


def test_the_firehose_of_each_vhost_has_a_setting() -> None:
    """What an earlier version has written is read by this one."""
    assert catalog_commands.tracing("/") == "tracing /"
    assert catalog_commands.tracing("v").startswith(catalog_commands.TRACING)


def test_the_state_of_a_member_is_a_setting_of_its_name(catalog: CatalogDriver) -> None:
    """Older members keep settings that they do not know, so nothing else had to be added."""
    name = catalog_commands.member_state("n1")
    assert name == "member_state@n1"
    assert catalog_commands.member_domain("n1") == "member_domain@n1"
    catalog.do(catalog_commands.set_setting(name, "leaving"))
    assert catalog.view.setting(name) == "leaving"
    catalog.do(catalog_commands.set_setting(name, None))
    assert catalog.view.setting(name, "") == ""


def test_queue_members_change_only_for_the_queue_that_was_meant(catalog: CatalogDriver) -> None:
    catalog.put("queue", "q", {"type": "quorum"}, uid=5, members=["n1"])
    assert catalog.do(catalog_commands.set_queue_members("/", "q", 4, ["n2"]))["code"] == (
        "NOT_FOUND"
    )
    assert catalog.do(catalog_commands.set_queue_members("/", "q", 5, ["n1", "n2"]))["code"] == "OK"
    assert catalog.found("q").members == ["n1", "n2"]
    assert (catalog.changed(), catalog.effects[0].uid) == ([("+", "queue", "q")], 5)


# Bindings' names.


def test_names_of_bindings(catalog: CatalogDriver) -> None:
    """R-BND-1."""
    catalog.exchange("x", "headers")
    catalog.queue("q")
    spec = {"source": "x", "destination": "q", "routing_key": "a.b"}
    reply = catalog.put("binding", "whatever", spec)
    assert reply["object"]["name"] == "x|queue|q|a.b|"
    arguments = {"n": 1}
    reply = catalog.put("binding", "", spec | {"arguments": arguments})
    assert reply["object"]["name"] == f"x|queue|q|a.b|{names.digest(arguments, 8)}"


def test_bindings_whose_names_contain_the_separator_stay_apart(catalog: CatalogDriver) -> None:
    first = names.binding_name("a", "queue", "b", "c|d", {})
    second = names.binding_name("a", "queue", "b|c", "d", {})
    assert first != second


# Snapshots and changes.


def fill(catalog: CatalogDriver) -> None:
    catalog.exchange("x", "topic", arguments={"alternate-exchange": "amq.fanout"})
    catalog.queue("q", arguments={"x-queue-type": "quorum"})
    catalog.queue("e", exclusive=True)
    catalog.bind("x", "q", "a.#")
    catalog.bind("x", "amq.fanout", "b", kind="exchange")
    catalog.put("policy", "p", {"pattern": "^q", "definition": {"max-length": 9}})
    catalog.do(catalog_commands.set_owner("queue", "/", "q", OURS))
    catalog.do(catalog_commands.node_started("n1", 7))


def test_snapshot_restores_everything(catalog: CatalogDriver) -> None:
    fill(catalog)
    other = CatalogMachine()
    other.restore(catalog.machine.snapshot())
    other.check_invariants()
    assert other.snapshot() == catalog.machine.snapshot()
    assert other.objects() == catalog.machine.objects()
    assert other.overview() == catalog.machine.overview()
    assert other.state.exclusive_queues(ConnectionId(*OWN))[0].name == "e"


def test_same_log_gives_the_same_state_and_replies(catalog: CatalogDriver) -> None:
    fill(catalog)
    other = CatalogMachine()
    for meta, command in catalog.log:
        other.apply(meta, command)
    assert other.snapshot() == catalog.machine.snapshot()


def test_what_ended_by_its_own_terms_is_told_until_it_comes_again_or_is_forgotten() -> None:
    catalog = CatalogDriver(changes_max=20)
    own_terms = frozenset(("expired", "auto-delete"))
    for name in ("ended", "deleted", "again", "stays"):
        catalog.put("exchange", name, {"type": "topic"})
    for name, cause in (("ended", "expired"), ("deleted", "admin"), ("again", "auto-delete")):
        catalog.delete("exchange", name, cause=cause)
    catalog.put("exchange", "again", {"type": "topic"})
    found = catalog.machine.removed_by(own_terms)
    assert [(change.name, change.cause) for change in found] == [("ended", "expired")]
    for number in range(20):
        catalog.put("exchange", f"x{number}", {"type": "topic"})
    assert catalog.machine.removed_by(own_terms) == []


def test_changes_can_be_resumed_until_they_are_compacted() -> None:
    catalog = CatalogDriver(changes_max=20)
    start = catalog.view.revision
    for number in range(4):
        catalog.put("exchange", f"x{number}", {"type": "topic"})
    changes = catalog.machine.changes_since(start)
    assert changes is not None
    assert [change.name for change in changes] == ["x0", "x1", "x2", "x3"]
    assert catalog.machine.changes_since(catalog.view.revision) == []
    for number in range(4, 30):
        catalog.put("exchange", f"x{number}", {"type": "topic"})
    assert catalog.machine.changes_since(start) is None
    recent = catalog.machine.changes_since(catalog.view.revision - 20)
    assert recent is not None
    assert len(recent) == 20


def test_changes_of_one_command_are_never_cut_in_two() -> None:
    catalog = CatalogDriver(changes_max=12)
    before = catalog.view.revision
    catalog.put("vhost", "v", {}, vhost="")
    assert len(catalog.machine.changes_since(before) or []) == 8
    for number in range(6):
        catalog.put("exchange", f"x{number}", {"type": "topic"})
    assert catalog.machine.changes_since(before) is None
    assert len(catalog.machine.changes_since(before + 1) or []) == 6


def test_restored_catalog_makes_watchers_list_again(catalog: CatalogDriver) -> None:
    fill(catalog)
    before = catalog.view.revision
    catalog.machine.restore(catalog.machine.snapshot())
    assert catalog.machine.changes_since(before) == []
    assert catalog.machine.changes_since(before - 1) is None


def test_listing_is_in_an_order_in_which_it_can_be_put(catalog: CatalogDriver) -> None:
    fill(catalog)
    listed = catalog.machine.objects()
    kinds = [names.KIND_ORDER[each["kind"]] for each in listed]
    assert kinds == sorted(kinds)
    exclusive = next(each for each in listed if each["name"] == "e")
    assert exclusive["spec"]["exclusive"] is True
    assert exclusive["hash"] == names.digest(exclusive["spec"])
    assert len(exclusive["hash"]) == 16
