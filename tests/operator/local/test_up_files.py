"""Resources from files, ports, certificates and the export: what needs no running member."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator import settings, validation
from brokerd_operator.engine.keys import Key
from brokerd_operator.local import directory, documents, export_topology
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.local.ports import LOOPBACK, PortReservations
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.sources import certificates
from brokerd_operator.sources.api import merge_patch
from brokerd_operator.sources.cluster_objects import is_part
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import Inputs, Meta, TopologySpec
from cryptography import x509

from tests.operator.resources import resource


@pytest.fixture
def store(tmp_path: Path) -> directory.Directory:
    return directory.Directory(tmp_path, lambda sentence: None)


def test_generation_rises_with_the_spec_only(store: directory.Directory) -> None:
    key = Key("Queue", "default", "thing")
    assert store.apply(resource("Queue", maxLength=1)) == ""
    first = store.get(key)
    assert first is not None
    assert first["metadata"]["generation"] == 1
    assert first["status"] == {"observedGeneration": -1}
    store.apply(resource("Queue", maxLength=1))
    labelled = resource("Queue", maxLength=1)
    labelled["metadata"]["labels"] = {"a": "b"}
    store.apply(labelled)
    assert (store.get(key) or {})["metadata"]["generation"] == 1
    store.apply(resource("Queue", maxLength=2))
    assert (store.get(key) or {})["metadata"]["generation"] == 2
    assert (store.get(key) or {})["metadata"]["uid"] == first["metadata"]["uid"]


def test_transition_rules_hold_between_versions_of_a_file(store: directory.Directory) -> None:
    store.apply(resource("Queue", vhost="a"))
    assert "vhost is immutable" in store.apply(resource("Queue", vhost="b"))


def test_uid_is_kept_between_runs(tmp_path: Path) -> None:
    first = directory.Directory(tmp_path, lambda sentence: None)
    first.apply(resource("Queue"))
    second = directory.Directory(tmp_path, lambda sentence: None)
    second.attach(lambda body: None, lambda key: None, lambda namespace, name: None)
    key = Key("Queue", "default", "thing")
    assert (second.get(key) or {})["metadata"]["uid"] == (first.get(key) or {})["metadata"]["uid"]
    assert (tmp_path / directory.STATE_FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "a.yaml:1: is not YAML"),
        ("x: &a 1\ny: *a\n", "a.yaml:2: aliases are not allowed: write the value out"),
        ("spec:\n  a: 1\n  b: 2\n  a: 3\n", "a.yaml:4: the field a is there twice"),
        (
            "apiVersion: v1\nkind: Secret\napiVersion: v1\n",
            "a.yaml:3: the field apiVersion is there twice: is --- missing above it?",
        ),
        ("kind: Queue\n", "apiVersion"),
        ("- 1\n", "must be a mapping"),
        ("!!python/object:os.system {}\n", "is not YAML"),
    ],
)
def test_wrong_files_are_told_with_their_place(
    store: directory.Directory, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "a.yaml").write_text(text)
    (problem,) = store.load_files(tmp_path / "r")
    assert message in str(problem)


def test_resource_that_is_there_twice_is_told(store: directory.Directory, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    bodies = [resource("Queue"), resource("Queue")]
    (tmp_path / "r" / "a.yaml").write_text(yaml.safe_dump_all(bodies))
    (problem,) = store.load_files(tmp_path / "r")
    assert "is also at" in problem.message


def test_huge_file_is_refused(
    store: directory.Directory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "FILE_BYTES_MAX", 10)
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "a.yaml").write_text("a: " + "b" * 10)
    (problem,) = store.load_files(tmp_path / "r")
    assert "larger than 10 bytes" in problem.message


def test_missing_or_empty_directory_is_an_error(store: directory.Directory, tmp_path: Path) -> None:
    with pytest.raises(EmbeddedError, match="does not exist"):
        store.load_files(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmbeddedError, match=r"holds no file that ends with \.yaml, \.yml, \.json"):
        store.load_files(tmp_path / "empty")


# ---- ports --------------------------------------------------------------------------------------


def test_offset_whose_port_is_taken_is_passed_over(tmp_path: Path) -> None:
    with PortReservations(tmp_path) as reservations:
        free = reservations.reserve(first=9000)
        reservations.release(free.offset)
        with socket.socket() as taken:
            taken.bind((LOOPBACK, free.http))
            taken.listen()
            assert reservations.reserve(first=free.offset).offset > free.offset


def test_two_environments_never_choose_the_same_offset(tmp_path: Path) -> None:
    with PortReservations(tmp_path) as first, PortReservations(tmp_path) as second:
        offset = first.reserve(first=9000).offset
        assert second.reserve(offset, 9000).offset != offset
        first.close()
        assert second.reserve(offset, 9000).offset == offset


# ---- export -------------------------------------------------------------------------------------


DEFINITIONS: dict[str, Any] = {
    "vhosts": [{"name": "/"}, {"name": "team"}],
    "users": [{"name": "web", "tags": ["monitoring"]}],
    "permissions": [{"user": "web", "vhost": "team", "configure": "", "write": ".*", "read": ".*"}],
    "exchanges": [
        {
            "name": "orders.in",
            "vhost": "/",
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": False,
            "arguments": {"alternate-exchange": "orders.unrouted"},
        }
    ],
    "queues": [
        {
            "name": "Orders Queue",
            "vhost": "/",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum", "x-delivery-limit": 3},
        }
    ],
    "bindings": [
        {
            "source": "orders.in",
            "vhost": "/",
            "destination": "Orders Queue",
            "destination_type": "queue",
            "routing_key": "#",
            "arguments": {},
        }
    ],
    "policies": [
        {
            "vhost": "/",
            "name": "ttl",
            "pattern": "^a",
            "apply-to": "queues",
            "priority": 1,
            "definition": {"message-ttl": 1500, "x-odd": 1},
        }
    ],
}


def test_definitions_of_rabbitmq_become_resources_that_are_valid(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(DEFINITIONS))
    objects = export_topology.read_definitions(file)
    result = export_topology.to_resources(objects, "prod", None)
    validator = validation.Validator.from_directory()
    kinds = []
    for body in result.resources:
        verdict = validator.admit(body)
        assert isinstance(verdict, validation.Admitted), verdict
        kinds.append(body["kind"])
    assert kinds == ["Vhost", "User", "Permission", "Policy", "Exchange", "Queue", "Binding"]
    (policy,) = [body for body in result.resources if body["kind"] == "Policy"]
    assert policy["spec"]["definition"] == {
        "messageTTL": "1500ms",
        "extra": [{"name": "x-odd", "integer": 1}],
    }


_METADATA = {"description": "Tills", "tags": ["a", "b"], "default_queue_type": "quorum"}
#: Settings in the forms of RabbitMQ 4.3 and of earlier ones.
_SETTINGS: dict[str, Any] = {
    "vhosts": [
        {"name": "shop", "limits": [], "metadata": _METADATA},
        {
            "name": "old",
            "description": "Old",
            "tags": "c, d",
            "default_queue_type": "undefined",
        },
        {"name": "logs", "metadata": {"default_queue_type": "stream"}},
    ],
    "users": [
        {"name": "web", "tags": "management,policymaker", "limits": {"max-channels": 7}},
        {"name": "bare", "tags": [], "limits": []},
    ],
    "parameters": [
        {
            "component": "vhost-limits",
            "name": "limits",
            "vhost": "shop",
            "value": {"max-queues": 5, "max-connections": 9},
        },
        {
            "component": "operator_policy",
            "name": "bound",
            "vhost": "shop",
            "value": {
                "pattern": "^t",
                "apply-to": "all",
                "priority": 1,
                "definition": {"max-length": 3},
            },
        },
    ],
}


def test_settings_of_vhosts_and_users_in_definitions_are_kept_or_named(tmp_path: Path) -> None:
    """In the forms of 4.3 (`metadata`) and of earlier ones; limits are parameters in RabbitMQ."""
    file = tmp_path / "definitions.json"
    file.write_text(json.dumps(_SETTINGS))
    result = export_topology.to_resources(export_topology.read_definitions(file), "prod", None)
    validator = validation.Validator.from_directory()
    specs = {}
    for body in result.resources:
        assert isinstance(validator.admit(body), validation.Admitted), body
        specs[body["kind"], body["metadata"]["name"]] = body["spec"]
    named = {"brokerRef": {"name": "prod"}}
    assert specs["Vhost", "shop"] == named | {
        "description": "Tills",
        "tags": ["a", "b"],
        "defaultQueueType": "quorum",
        "limits": {"maxConnections": 9, "maxQueues": 5},
    }
    assert specs["Vhost", "old"] == named | {"description": "Old", "tags": ["c", "d"]}
    assert specs["Vhost", "logs"] == named
    assert any("Vhost logs" in note and "queue type stream" in note for note in result.notes)
    assert specs["User", "web"]["tags"] == ["management", "policymaker"]
    assert specs["User", "web"]["limits"] == {"maxChannels": 7}
    assert "limits" not in specs["User", "bare"]
    assert specs["OperatorPolicy", "shop.bound"] == named | {
        "name": "bound",
        "pattern": "^t",
        "applyTo": "queues",
        "priority": 1,
        "definition": {"maxLength": 3},
        "vhost": "shop",
    }
    assert not any("has no resource kind" in note for note in result.notes)


def test_export_gives_back_what_was_applied(tmp_path: Path) -> None:
    bodies = [
        resource("Queue", "q", maxLength=5, messageTTL="2s", deadLetter={"exchange": "d"}),
        resource("Exchange", "x", type="topic", alternateExchange="y"),
        resource("Binding", "b", source="x", destination={"name": "q"}, routingKeys=["a"]),
        resource("Policy", "p", definition={"deliveryLimit": 3}),
    ]
    objects = [item for body in bodies for item in desired(body)]
    observed = [ObservedObject(o.kind, o.vhost, o.name, o.spec) for o in objects]
    exported = export_topology.to_resources(observed, "prod", None).resources
    again = [item for body in exported for item in desired(body)]
    assert {item.identity: item.spec for item in again} == {
        item.identity: item.spec for item in objects
    }


def desired(body: dict[str, Any]) -> Any:
    meta = Meta.of(body)
    spec = registry.parse(body)
    assert isinstance(spec, TopologySpec), spec
    return registry.desired(spec, meta, Inputs())


@pytest.mark.parametrize("text", ["[]", "{", '{"queues": [1]}', '{"queues": [{}]}'])
def test_wrong_definitions_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "definitions.json"
    file.write_text(text)
    with pytest.raises(EmbeddedError, match="is not a definitions file"):
        export_topology.read_definitions(file)


# ---- parts of the Kubernetes side ---------------------------------------------------------------


def test_certificate_names_every_host_and_is_signed_by_the_ca() -> None:
    ca, key = certificates.make_ca("default/prod CA")
    made = certificates.make_certificate(ca, key, ["prod-0.prod-nodes", "127.0.0.1"])
    parsed = x509.load_pem_x509_certificate(made.certificate)
    parsed.verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["prod-0.prod-nodes"]
    assert "PRIVATE KEY" not in repr(made)


def test_merge_patch_says_what_differs_and_takes_away_what_is_gone() -> None:
    old = {"a": 1, "b": {"c": 1, "d": 2}, "e": [1]}
    new = {"a": 1, "b": {"c": 2}, "e": [1, 2]}
    assert merge_patch(old, new) == {"b": {"c": 2, "d": None}, "e": [1, 2]}
    assert merge_patch(old, old) == {}


def test_live_object_may_hold_more_than_was_applied_but_nothing_else() -> None:
    wanted = {"spec": {"replicas": 3, "ports": [{"port": 1}], "paused": False}}
    live = {"spec": {"replicas": 3, "ports": [{"port": 1, "protocol": "TCP"}]}, "status": {}}
    assert is_part(wanted, live)
    assert not is_part({"spec": {"replicas": 2}}, live)
    assert not is_part({"spec": {"ports": []}}, live)


def test_settings_come_from_the_environment_and_unknown_ones_are_refused() -> None:
    found = settings.load(
        {"BROKERD_OPERATOR_WATCH_NAMESPACES": "a, b", "BROKERD_OPERATOR_NAMESPACE": "op"}
    )
    assert found.namespaces == ("a", "b")
    assert settings.load({"BROKERD_OPERATOR_WATCH_NAMESPACES": "*"}).namespaces == ()
    assert settings.load({"BROKERD_OPERATOR_NAMESPACE": "op"}).namespaces == ("op",)
    with pytest.raises(settings.SettingsError, match="BROKERD_OPERATOR_TYPO"):
        settings.load({"BROKERD_OPERATOR_TYPO": "1"})
    with pytest.raises(settings.SettingsError, match="BROKERD_OPERATOR_HTTP_PORT"):
        settings.load({"BROKERD_OPERATOR_HTTP_PORT": "x"})
