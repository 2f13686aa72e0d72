"""What a catalog command is refused for, and rare answers: whatever is asked, there is one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.core import alarms
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog import catalog_commands, names
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import Owner, Record
from brokerd.core.profiles import profile
from tests.unit.core.catalog_driver import VHOST, CatalogDriver, StepMeta

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


@pytest.mark.plain
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
    """design/operator.md §8"""
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


def test_members_of_a_queue_that_are_the_same_change_nothing(catalog: CatalogDriver) -> None:
    catalog.queue("q")
    uid = catalog.found("q").uid
    operation = catalog_commands.set_queue_members(VHOST, "q", uid, ["n1"])
    assert catalog.do(operation)["code"] == "UNCHANGED"
    assert catalog.do(operation | {"uid": uid + 1})["code"] == "NOT_FOUND"


def test_small_parts_answer_for_what_they_do_not_know() -> None:
    assert message_annotations.decode(b"") == message_annotations.Annotations()
    with pytest.raises(AssertionError, match="has no spec"):
        Record("queue", "/", "q").spec()
    known = alarms.AlarmSet()
    known.set_node("n1", frozenset(("memory",)))
    assert (known.on("n1"), known.on("n2")) == (frozenset(("memory",)), frozenset())
    assert alarms.DiskAlarm().interval_ms() == alarms.DISK_INTERVAL_MS_MAX
    watermark = alarms.WatermarkMachine(profile("reference"))
    watermark.configure("0.5", None)
    assert "Unknown total memory size" in watermark.warnings[0]
