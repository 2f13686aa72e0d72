"""The embedded validator beyond the cases that it shares with the API server."""

from __future__ import annotations

import base64
import copy
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator import cel, columns
from brokerd_operator.validation import (
    Admitted,
    InvalidCrd,
    Refused,
    Validator,
    crd_directory,
    load_kinds,
)

from tests.operator.resources import resource

VALIDATOR = Validator.from_directory()


def refusal(body: Any, **options: Any) -> str:
    found = VALIDATOR.admit(body, **options)
    assert isinstance(found, Refused), found
    return found.message


def admitted(body: Any, **options: Any) -> dict[str, Any]:
    found = VALIDATOR.admit(body, **options)
    assert isinstance(found, Admitted), found
    return found.body


def secret(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, **fields}


@pytest.mark.parametrize(
    ("path", "change"),
    [
        ("spec.deliveryLimt", {"deliveryLimt": 3}),
        ("spec.deadLetter.exchnage", {"deadLetter": {"exchnage": "a"}}),
        ("spec.brokerRef.nmae", {"brokerRef": {"name": "a", "nmae": "b"}}),
        ("spec.arguments[0].int", {"arguments": [{"name": "a", "integer": 1, "int": 2}]}),
    ],
)
def test_unknown_field_is_named(path: str, change: dict[str, Any]) -> None:
    """The API server would drop it with a warning that nobody sees."""
    assert refusal(resource("Queue", **change)) == f"{path}: unknown field"


def test_unknown_fields_outside_of_the_spec_are_named_too() -> None:
    assert refusal({**resource("Queue"), "sepc": {}}) == "sepc: unknown field"
    body = resource("Queue")
    body["metadata"]["lables"] = {}
    assert refusal(body) == "metadata.lables: unknown field"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, "must be a mapping"),
        ([], "must be a mapping"),
        ({}, "unknown kind"),
        ({"kind": ["Queue"]}, "unknown kind"),
        ({"kind": "Deployment", "apiVersion": "apps/v1"}, 'unknown kind "Deployment"'),
        (
            {"kind": "Queue", "apiVersion": "brokerd.io/v1"},
            'apiVersion: must be brokerd.io/v1alpha1, is "brokerd.io/v1"',
        ),
        ({"kind": "Queue"}, "apiVersion: must be brokerd.io/v1alpha1, is missing"),
        ({"kind": "Queue", "apiVersion": "brokerd.io/v1alpha1"}, "metadata.name: required value"),
    ],
)
def test_documents_that_are_no_resource_are_refused(body: Any, expected: str) -> None:
    assert expected in refusal(body)


@pytest.mark.parametrize("name", ["", "Orders", "a_b", "a..b", "-a", "x" * 254, "a\n"])
def test_names_are_those_of_kubernetes(name: str) -> None:
    assert "metadata.name" in refusal(resource("Queue", name))


def test_namespace_is_the_current_one_unless_named() -> None:
    body = resource("Queue")
    del body["metadata"]["namespace"]
    assert admitted(body, namespace="shop")["metadata"]["namespace"] == "shop"
    assert admitted(resource("Queue"), namespace="shop")["metadata"]["namespace"] == "default"


def test_status_in_a_file_does_not_count() -> None:
    """Status is a subresource: a spec change keeps what was there, a file cannot set it."""
    body = {**resource("Queue"), "status": {"observedGeneration": 99}}
    first = admitted(body)
    assert first["status"] == {"observedGeneration": -1}
    seen = {**first, "status": {"observedGeneration": 1, "appliedHash": "x"}}
    assert admitted(body, old=seen)["status"] == seen["status"]


def test_nulls_give_way_to_defaults() -> None:
    body = admitted(resource("Queue") | {"spec": {"brokerRef": {"name": "a"}, "vhost": None}})
    assert body["spec"]["vhost"] == "/"
    assert (
        "maxLength"
        not in admitted(
            resource("Queue") | {"spec": {"brokerRef": {"name": "a"}, "maxLength": None}}
        )["spec"]
    )


def test_defaults_reach_into_lists() -> None:
    body = admitted(resource("Queue", bindings=[{"source": "e"}]))
    assert body["spec"]["bindings"] == [{"source": "e", "routingKeys": [""]}]


def test_defaults_are_not_shared_between_resources() -> None:
    first = admitted(resource("Binding"))
    first["spec"]["routingKeys"].append("changed")
    assert admitted(resource("Binding"))["spec"]["routingKeys"] == [""]


def test_yaml_keys_that_are_no_text_are_refused() -> None:
    body = yaml.safe_load("{apiVersion: brokerd.io/v1alpha1, kind: Queue, metadata: {name: q}}")
    body["spec"] = {"brokerRef": {"name": "a"}, True: 1}
    assert "the key must be a string" in refusal(body)


def test_affinity_passes_as_it_is() -> None:
    affinity = {"podAntiAffinity": {"anything": [1, {"a": None}]}}
    body = admitted(resource("BrokerCluster", scheduling={"affinity": affinity}))
    assert body["spec"]["scheduling"]["affinity"] == affinity


def test_errors_are_counted_and_bounded() -> None:
    many = {f"field{n}": n for n in range(1000)}
    found = VALIDATOR.admit(resource("Queue", **many))
    assert isinstance(found, Refused)
    assert len(found.errors) == 33


def test_long_values_are_cut_in_messages() -> None:
    assert len(refusal(resource("Queue", type="x" * 100_000))) < 300


def test_deep_huge_and_endless_documents_are_refused_at_once() -> None:
    """YAML aliases make an endless document of one line (SEC-49)."""
    deep: dict[str, Any] = {}
    inner = deep
    for _ in range(10_000):
        inner["a"] = {}
        inner = inner["a"]
    assert "nested deeper" in refusal({**resource("Queue"), "x": deep})
    bomb: Any = "x"
    for _ in range(12):
        bomb = [bomb] * 10
    assert "more than" in refusal({**resource("Queue"), "x": bomb})
    endless = yaml.safe_load("&a [*a]")
    assert "nested deeper" in refusal({**resource("Queue"), "x": endless})


def test_secrets_are_taken_with_plain_text() -> None:
    """design/operator.md §14: the embedded mode has no Secrets API, so files may hold them."""
    encoded = base64.b64encode(b"a").decode()
    body = admitted(secret(data={"x": encoded}, stringData={"password": "pä"}), namespace="shop")
    assert body["metadata"]["namespace"] == "shop"
    assert base64.b64decode(body["data"]["password"]).decode() == "pä"
    assert "stringData" not in body
    assert "s3cret" not in refusal(secret(data={"password": "s3cret!"}))
    assert "unknown field" in refusal(secret(datas={}))
    assert "at most" in refusal(secret(stringData={"a": "x" * 200_000, "b": "x" * 1_000_000}))


def test_rule_that_fails_to_evaluate_is_a_refusal() -> None:
    """As in the API server: an error in a rule never lets a resource through."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "x-kubernetes-validations": [{"rule": "self.missing == 1", "message": "never"}],
    }
    (error,) = cel.check_rules({"a": 1}, None, schema, "spec")
    assert "failed" in error.message


def test_reserved_words_are_escaped_as_in_kubernetes() -> None:
    assert cel.escape("namespace") == "__namespace__"
    assert cel.escape("a-b.c/d__e") == "a__dash__b__dot__c__slash__d__underscores__e"


@pytest.mark.parametrize(
    "change",
    [
        {"spec": None},
        {"oneOf": []},
    ],
)
def test_crd_that_the_validator_cannot_honour_is_an_error(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """A keyword that nobody checks would let wrong resources through in silence."""
    document = yaml.safe_load((crd_directory() / "queues.yaml").read_text())
    if "spec" in change:
        document = {**document, **change}
    else:
        version = document["spec"]["versions"][0]
        version["schema"]["openAPIV3Schema"]["properties"]["spec"] |= change
    (tmp_path / "queues.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(InvalidCrd, match=r"queues\.yaml"):
        load_kinds(tmp_path)


def test_directory_without_crds_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidCrd, match="no custom resource definition"):
        load_kinds(tmp_path)


NOW = datetime(2026, 11, 20, 15, 0, tzinfo=UTC)


def test_rows_are_those_of_kubectl() -> None:
    kind = VALIDATOR.kinds["Queue"]
    body = admitted(resource("Queue", "orders", deliveryLimit=3))
    body["metadata"]["creationTimestamp"] = "2026-11-20T14:57:00Z"
    body["status"] = {
        "resolved": {"broker": "default/prod", "name": "orders"},
        "conditions": [
            {"type": "InSync", "status": "True"},
            {"type": "Ready", "status": "True", "reason": "Applied", "message": "m"},
        ],
    }
    assert columns.header(kind) == [
        *("NAME", "BROKER", "VHOST", "NAME", "TYPE", "READY", "REASON", "AGE")
    ]
    assert columns.cells(kind, body, NOW) == [
        *("orders", "default/prod", "/", "orders", "quorum", "True", "Applied", "3m")
    ]
    wide = dict(zip(columns.header(kind, True), columns.cells(kind, body, NOW, True), strict=True))
    assert wide["LIMIT"] == "3"
    assert wide["DLX"] == ""
    assert wide["MESSAGE"] == "m"


def test_every_column_of_every_kind_can_be_looked_up() -> None:
    for kind in VALIDATOR.kinds.values():
        row = columns.cells(kind, copy.deepcopy(resource(kind.kind)), NOW, True)
        assert len(row) == len(columns.header(kind, True))


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        ("2026-11-20T14:59:58Z", "2s"),
        ("2026-11-20T14:58:01Z", "119s"),
        ("2026-11-20T14:00:00Z", "60m"),
        ("2026-11-18T15:00:00Z", "2d"),
        ("2027-11-18T15:00:00Z", "0s"),
        ("soon", ""),
        ("2026-11-20T14:00:00", ""),
    ],
)
def test_ages_are_short(timestamp: str, expected: str) -> None:
    assert columns.age(timestamp, NOW) == expected
