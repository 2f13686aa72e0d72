"""Rare answers of the catalog, of declares and of policies: whatever is asked, there is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.core import alarms, arguments, catalog_commands, declare, names, policy
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog import CatalogMachine
from brokerd.core.catalog_objects import Owner, Record
from brokerd.core.profiles import profile
from tests.unit.core.catalog_driver import OTHER, OWN, VHOST, CatalogDriver, StepMeta, is_refused
from tests.unit.core.test_declare import LOCKED, with_rights

OWNER = Owner(managed_by="op", resource="ns/x", uid="u1", protected=True)


@pytest.fixture
def catalog() -> CatalogDriver:
    return CatalogDriver()


@pytest.mark.parametrize(
    ("kind", "name", "spec", "text"),
    [
        ("exchange", "x", {"type": 5}, "type: must be one of"),
        ("exchange", "x", {"type": "topic", "arguments": []}, "arguments: expected an object"),
        (
            "exchange",
            "x",
            {"type": "topic", "arguments": {"alternate-exchange": 5}},
            "invalid type 'signedint' for arg 'alternate-exchange'",
        ),
        ("queue", "q", {"type": "classic", "arguments": {"x-expires": 0}}, "{value_zero,0}"),
        ("queue", "q", {"type": "quorum", "replicas": "3"}, "replicas: expected an integer"),
        ("member", "m", {"peer_address": 5}, "peer_address: expected a string"),
        ("user", "u", {"tags": "administrator"}, "tags: expected a list of strings"),
        ("vhost", "v", {"limits": {"max-colours": 1}}, "limits: unknown limit 'max-colours'"),
        (
            "operator_policy",
            "o",
            {"pattern": "x", "apply-to": "queues", "definition": {"dead-letter-exchange": "d"}},
            "is not allowed in an operator policy",
        ),
        (
            "binding",
            "",
            {"source": "x" * 256, "destination": "q"},
            "longer than 255 bytes",
        ),
    ],
)
def test_specs_of_a_wrong_shape_are_refused(
    catalog: CatalogDriver, kind: str, name: str, spec: dict[str, Any], text: str
) -> None:
    """SEC-49, R-POL-7"""
    vhost = "" if kind in names.GLOBAL_KINDS else VHOST
    reply = catalog.put(kind, name, spec, vhost, uid=1, members=["n1"])
    assert reply["code"] == "REFUSED"
    assert text in reply["text"]


def test_an_object_is_in_a_vhost_or_it_is_not(catalog: CatalogDriver) -> None:
    assert catalog.put("user", "u", {}, VHOST)["text"] == "a user has no vhost"
    assert catalog.put("exchange", "x", {"type": "topic"}, "")["text"] == "a exchange needs a vhost"


def test_an_operation_that_is_no_object_has_its_own_answer(catalog: CatalogDriver) -> None:
    reply = catalog.do({"do": "batch", "operations": [5]})
    assert reply["results"][0]["text"] == "an operation must be an object"


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"users": [{"name": 5}]}, "a user needs a name"),
        ({"users": [{"name": "u", "tags": "administrator"}]}, "a user needs a name"),
        ({"users": [{"name": "u", "password_hash": None}]}, "a user needs a name"),
        ({"features": [5]}, "features is wrong"),
        ({"members": 5}, "members is wrong"),
    ],
)
def test_a_founding_of_a_wrong_shape_is_refused(changed: dict[str, Any], text: str) -> None:
    """SEC-44: a committed command that made a machine raise would stop the catalog everywhere."""
    founding = {"do": "bootstrap", "cluster_id": "id", "cluster_name": "c", "default_vhost": "/"}
    machine = CatalogMachine()
    command = catalog_commands.encode(founding | {"users": []} | changed)
    reply = catalog_commands.decode_reply(machine.apply(StepMeta(1), command).reply)
    assert (reply["code"], text in reply["text"]) == ("REFUSED", True)
    assert not machine.state.cluster_id


@pytest.mark.parametrize("escaped", [True, False])
def test_half_a_character_is_refused_and_a_byte_that_is_no_text_is_not(
    catalog: CatalogDriver, escaped: bool
) -> None:
    """SEC-44: such a name or pattern has no bytes, and every reading of its size would raise."""

    def put(pattern: str) -> dict[str, Any]:
        operation = catalog_commands.put(
            "policy", VHOST, "p", {"pattern": pattern, "definition": {"max-length": 1}}, cause="c"
        )
        text = json.dumps(operation, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
        return catalog.send(bytes((catalog_commands.VERSION,)) + text)

    reply = put("\ud800")
    assert (reply["code"], "text that is no Unicode" in reply["text"]) == ("REFUSED", True)
    assert put("\udcff")["code"] == "OK"
    assert put("\N{GRINNING FACE}")["code"] == "OK"


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"source": "", "destination": "q"}, "operation not permitted on the default exchange"),
        ({"source": "x", "destination": "no"}, "no queue 'no' in vhost '/'"),
    ],
)
def test_bindings_need_both_ends(catalog: CatalogDriver, spec: dict[str, Any], text: str) -> None:
    """R-BND-2, R-BND-3: as applied, after whoever proposed it has looked."""
    catalog.exchange("x")
    reply = catalog.put("binding", "", spec)
    assert reply["code"] != "OK"
    assert (reply["text"], catalog.effects) == (text, [])


def test_two_bindings_never_share_a_name(
    catalog: CatalogDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the hash of two identities were ever equal, the second is refused."""
    catalog.exchange("x")
    catalog.queue("q")
    monkeypatch.setattr(names, "binding_name", lambda *_: "same")
    spec = {"source": "x", "destination": "q", "routing_key": "a"}
    assert catalog.put("binding", "", spec)["code"] == "OK"
    reply = catalog.put("binding", "", spec | {"routing_key": "b"})
    assert (reply["code"], reply["text"]) == ("REFUSED", "another binding has this name")
    assert catalog.put("binding", "", spec, owner=OWNER)["code"] == "OK"


def test_owners_are_set_once_and_with_their_precondition(catalog: CatalogDriver) -> None:
    """operator.md §8"""
    catalog.exchange("x")
    operation = catalog_commands.set_owner("exchange", VHOST, "x", OWNER)
    assert catalog.do(operation | {"name": "no"})["code"] == "NOT_FOUND"
    failing = catalog_commands.set_owner(
        "exchange", VHOST, "x", OWNER, precondition={"owner_uid": "someone"}
    )
    assert catalog.do(failing)["code"] == "PRECONDITION"
    dry = catalog_commands.set_owner("exchange", VHOST, "x", OWNER, dry_run=True)
    assert (catalog.do(dry)["code"], catalog.effects) == ("OK", [])
    assert catalog.do(operation)["code"] == "OK"
    assert catalog.do(operation)["code"] == "UNCHANGED"


def test_a_protected_object_is_changed_by_no_client(catalog: CatalogDriver) -> None:
    """R-Q-14"""
    catalog.exchange("x")
    catalog.do(catalog_commands.set_owner("exchange", VHOST, "x", OWNER))
    spec = {"type": "direct", "durable": False, "settings": {"alternate-exchange": "a"}}
    reply = catalog.put("exchange", "x", spec, cause="amqp:guest")
    assert (reply["code"], reply["amqp"]) == ("REFUSED", 403)
    catalog.queue("q")
    catalog.do(catalog_commands.set_owner("queue", VHOST, "q", OWNER))
    answer = declare.delete_queue(
        catalog.view, catalog.access, "q", if_unused=False, if_empty=False, connection=OWN
    )
    is_refused(answer, 405, "Cannot delete protected queue 'q' in vhost '/'.")


def test_members_of_a_queue_that_are_the_same_change_nothing(catalog: CatalogDriver) -> None:
    catalog.queue("q")
    uid = catalog.found("q").uid
    operation = catalog_commands.set_queue_members(VHOST, "q", uid, ["n1"])
    assert catalog.do(operation)["code"] == "UNCHANGED"
    assert catalog.do(operation | {"uid": uid + 1})["code"] == "NOT_FOUND"


def test_a_redeclaration_that_lost_the_race_is_judged_when_applied(catalog: CatalogDriver) -> None:
    """R-EX-4, R-Q-4: another node's declare came first."""
    catalog.exchange("x")
    reply = catalog.put("exchange", "x", {"type": "topic"}, cause="amqp:guest", declare=True)
    assert (reply["code"], reply["amqp"]) == ("PRECONDITION", 406)
    same = catalog.put(
        "exchange", "x", {"type": "direct", "durable": False}, cause="amqp:guest", declare=True
    )
    assert same["code"] == "UNCHANGED"


def test_exclusive_queues_of_one_connection_go_one_by_one(catalog: CatalogDriver) -> None:
    """R-Q-9"""
    for name in ("a", "b"):
        catalog.queue(name, exclusive=True)
    catalog.delete("queue", "a")
    assert [queue.name for queue in catalog.view.exclusive_queues(OWN)] == ["b"]


def test_what_has_no_rights_or_is_not_there_is_told_in_that_order(catalog: CatalogDriver) -> None:
    """R-ERR-1, R-ERR-2, R-ERR-41, R-EX-5, R-Q-7, R-PERM-6"""
    nobody = with_rights(catalog)
    text = "{} access to {} refused for user 'u'"
    passive = catalog.queue("q", passive=True, access=nobody)
    is_refused(passive, 403, text.format("configure", "queue 'q' in vhost '/'"))
    flags: dict[str, Any] = {"if_unused": False, "if_empty": False, "connection": OWN}
    deleted = declare.delete_queue(catalog.view, nobody, "q", **flags)
    is_refused(deleted, 403, text.format("configure", "queue 'q' in vhost '/'"))
    used = declare.use_queue(catalog.view, nobody, "q", OWN)
    is_refused(used, 403, text.format("read", "queue 'q' in vhost '/'"))
    missing = "no queue 'q' in vhost '/'"
    is_refused(declare.use_queue(catalog.view, catalog.access, "q", OWN), 404, missing)
    published = declare.check_publish(nobody, "x", None)
    is_refused(published, 403, text.format("write", "exchange 'x' in vhost '/'"))
    missing = "no exchange 'x' in vhost '/'"
    is_refused(declare.check_publish(catalog.access, "x", None), 404, missing)
    catalog.exchange("t", "topic")
    found = catalog.view.exchange(VHOST, "t")
    assert declare.check_publish(catalog.access, "t", found, ("k",)) is None
    catalog.queue("q", exclusive=True)
    locked = declare.delete_queue(
        catalog.view, catalog.access, "q", if_unused=False, if_empty=False, connection=OTHER
    )
    is_refused(locked, 405, LOCKED)


def test_a_queue_type_that_is_no_text_is_told_by_its_type(catalog: CatalogDriver) -> None:
    """R-Q-1"""
    is_refused(
        catalog.queue("q", arguments={"x-queue-type": 5}),
        406,
        "invalid arg 'x-queue-type' for queue 'q' in vhost '/': {unacceptable_type,signedint}",
    )


@pytest.mark.parametrize(
    ("argument", "value", "text"),
    [
        ("x-queue-mode", "busy", "\"unsupported queue mode 'busy'\""),
        ("x-queue-mode", "lazy", None),
        ("x-queue-version", 1, "\"unsupported queue version '1'\""),
        ("x-queue-version", 2, None),
    ],
)
def test_arguments_of_older_versions(argument: str, value: Any, text: str | None) -> None:
    """R-Q-5, R-Q-6"""
    refused = arguments.check_queue_arguments("classic", {argument: value}, VHOST, "q")
    assert (None if refused is None else refused.text.partition(": ")[2]) == text


def test_delayed_retry_needs_a_least_delay_and_says_so(catalog: CatalogDriver) -> None:
    """R-QQ-24: the greatest is the least where it is not given, and never below it."""
    base = {"x-queue-type": "quorum", "x-delayed-retry-type": "all"}
    catalog.queue("without", arguments=base)
    catalog.queue("least", arguments=base | {"x-delayed-retry-min": 50})
    both = {"x-delayed-retry-min": 50, "x-delayed-retry-max": 9}
    catalog.queue("both", arguments=base | both)
    catalog.queue("classic")
    found = {
        name: policy.effective_queue_options(catalog.view, catalog.found(name), profile())
        for name in ("without", "least", "both", "classic")
    }
    assert [
        (each.delayed_retry, each.delayed_retry_min_ms, each.delayed_retry_max_ms)
        for each in found.values()
    ] == [("disabled", 0, 0), ("all", 50, 50), ("all", 50, 50), ("disabled", 0, 0)]
    warned = [bool(policy.option_warnings(catalog.view, catalog.found(name))) for name in found]
    assert warned == [True, False, False, False]


def test_the_timeout_of_consumers_is_the_smaller_of_argument_and_policy(
    catalog: CatalogDriver,
) -> None:
    """R-QQ-22, R-POL-6: else the member's; none on classic queues or where channels watch."""
    argument = {"x-queue-type": "quorum", "x-consumer-timeout": 7000}
    catalog.queue("q", arguments=argument)
    catalog.queue("plain", arguments={"x-queue-type": "quorum"})
    catalog.queue("c")
    defaults = policy.QueueDefaults(consumer_timeout_ms=9000)

    def timeout(name: str, chosen: str = "brokerd") -> int | None:
        queue = catalog.found(name)
        options = policy.effective_queue_options(catalog.view, queue, profile(chosen), defaults)
        return options.consumer_timeout_ms

    assert (timeout("q"), timeout("plain"), timeout("c")) == (7000, 9000, None)
    assert timeout("q", "rabbitmq-3.10") is None
    definition = {"consumer-timeout": 5000}
    catalog.put("policy", "p", {"pattern": "^q", "apply-to": "queues", "definition": definition})
    assert timeout("q") == 5000


def test_no_queue_of_a_vhost_that_is_gone_has_an_alternate(catalog: CatalogDriver) -> None:
    assert policy.queues_with_alternate(catalog.view, "gone", "x") == []


def test_a_route_does_not_follow_an_exchange_that_is_not_there(catalog: CatalogDriver) -> None:
    """R-RT-1: pushed only if it exists"""
    catalog.exchange("x", "fanout")
    catalog.exchange("y", "fanout")
    catalog.bind("x", "y", kind="exchange")
    del catalog.view.vhosts[VHOST].exchanges["y"]
    assert catalog.routed("x") == []


def test_small_parts_answer_for_what_they_do_not_know() -> None:
    assert message_annotations.decode(b"") == message_annotations.Annotations()
    with pytest.raises(AssertionError, match="has no spec"):
        Record("queue", "/", "q").spec()
    known = alarms.AlarmSet()
    known.set_node("n1", frozenset(("memory",)))
    assert (known.on("n1"), known.on("n2")) == (frozenset(("memory",)), frozenset())
    assert alarms.DiskAlarm().interval_ms() == alarms.DISK_INTERVAL_MS_MAX
    watermark = alarms.WatermarkMachine(profile("reference"))
    assert "Unknown total memory size" in watermark.configure("0.5", None)[0]


def test_whoever_follows_the_catalog_is_told_of_a_snapshot(catalog: CatalogDriver) -> None:
    """What changed before it has no effects: the member was too far behind."""
    catalog.queue("q")
    behind, seen = CatalogMachine(), []
    behind.on_restored = lambda: seen.append(behind.state.queue(VHOST, "q"))
    behind.restore(catalog.machine.snapshot())
    assert [queue is not None for queue in seen] == [True]
