"""The CRD files themselves: shape, bounds, columns, and their rules through cel-python."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator import cel
from brokerd_operator.schema import Schema, children
from brokerd_operator.specs import registry
from brokerd_operator.validation import (
    Admitted,
    Refused,
    ResourceKind,
    Validator,
    crd_directory,
)

from tests.operator.crd_cases import ACCEPTED, REFUSED
from tests.operator.crd_transitions import TRANSITIONS_ACCEPTED, TRANSITIONS_REFUSED
from tests.operator.resources import MINIMAL, resource

FILES = sorted(crd_directory().glob("*.yaml"))
VALIDATOR = Validator.from_directory()
KINDS = sorted(VALIDATOR.kinds)


def version_of(path: Path) -> dict[str, Any]:
    document = yaml.safe_load(path.read_text())
    (version,) = document["spec"]["versions"]
    return dict(version)


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, child in children(schema):
        yield from fields(child, f"{path}.{name}")


def fields_of(kind: str) -> Iterator[tuple[str, Schema]]:
    root = VALIDATOR.kinds[kind].schema
    for name in ("spec", "status"):
        yield from fields(root["properties"][name], name)


def test_every_kind_has_a_file_and_a_parser() -> None:
    assert set(KINDS) == set(registry.KINDS) == set(MINIMAL)
    assert {kind: item.plural for kind, item in VALIDATOR.kinds.items()} == registry.PLURALS


def test_short_names_are_different_and_begin_with_br_or_b() -> None:
    names = [name for kind in VALIDATOR.kinds.values() for name in kind.short_names]
    assert len(names) == len(set(names)) == len(KINDS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file_is_one_namespaced_kind_of_the_group(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    spec = document["spec"]
    assert document["metadata"]["name"] == f"{path.stem}.brokerd.io"
    assert spec["group"] == "brokerd.io"
    assert spec["scope"] == "Namespaced"
    assert spec["names"]["categories"] == ["broker"]
    version = version_of(path)
    assert version["name"] == "v1alpha1"
    assert version["subresources"]["status"] == {}
    # The annotation of client-side apply may hold 256 KiB.
    assert path.stat().st_size < 256 * 1024


def test_cluster_can_be_scaled() -> None:
    version = version_of(crd_directory() / "brokerclusters.yaml")
    assert version["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_described_and_bounded(kind: str) -> None:
    """Without bounds the API server refuses rules by their estimated cost (KEP-2876)."""
    for path, schema in fields_of(kind):
        if path.endswith(".*"):
            assert "type" in schema or schema.get("x-kubernetes-int-or-string"), path
        else:
            assert schema.get("description", "").strip(), path
        if schema.get("type") == "string" and schema.get("format") != "date-time":
            assert "enum" in schema or "maxLength" in schema, path
        if schema.get("type") == "array":
            assert "maxItems" in schema, path
            assert "x-kubernetes-list-type" in schema, path
        if "additionalProperties" in schema:
            assert "maxProperties" in schema, path


@pytest.mark.parametrize("kind", KINDS)
def test_status_starts_unobserved_and_holds_conditions(kind: str) -> None:
    """design/operator.md §6: kstatus takes a resource without this default for done at once."""
    status = VALIDATOR.kinds[kind].schema["properties"]["status"]
    assert status["default"] == {"observedGeneration": -1}
    assert status["properties"]["conditions"]["x-kubernetes-list-map-keys"] == ["type"]


@pytest.mark.parametrize("kind", KINDS)
def test_columns_show_ready_reason_and_age_first(kind: str) -> None:
    columns = VALIDATOR.kinds[kind].columns
    shown = [column.name for column in columns if column.priority == 0]
    assert shown[-3:] == ["Ready", "Reason", "Age"]
    assert shown[0] == {"BrokerCluster": "Replicas", "BrokerConnection": "Endpoint"}.get(
        kind, "Broker"
    )
    for column in columns:
        assert _leads_to_a_field(column.json_path, VALIDATOR.kinds[kind]), column


def _leads_to_a_field(json_path: str, kind: ResourceKind) -> bool:
    schema: Any = kind.schema
    for step in json_path.split("[")[0].strip(".").split("."):
        properties = schema.get("properties", {})
        if step not in properties:
            return False
        schema = properties[step]
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_every_rule_has_a_message_and_plain_cel(kind: str) -> None:
    """design/operator.md §4.3: the Kubernetes extensions do not exist in cel-python."""
    for path, schema in [("", VALIDATOR.kinds[kind].schema), *fields_of(kind)]:
        for rule in schema.get("x-kubernetes-validations", ()):
            assert rule.get("message"), (path, rule)
            assert not any(word in rule["rule"] for word in ("quantity(", "isURL(", "optional")), (
                path
            )
    assert cel.compile_rules(VALIDATOR.kinds[kind].schema) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_least_resource_is_admitted_with_defaults(kind: str) -> None:
    body = resource(kind)
    before = copy.deepcopy(body)
    admitted = VALIDATOR.admit(body)
    assert isinstance(admitted, Admitted), admitted
    assert admitted.body["status"] == {"observedGeneration": -1}
    assert body == before, "the caller's document is not changed"
    again = VALIDATOR.admit(admitted.body, old=admitted.body)
    assert isinstance(again, Admitted)
    assert again.body == admitted.body, "defaults do not flap"


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_right_resources_are_admitted(case: Any) -> None:
    admitted = VALIDATOR.admit(resource(case.kind, case.metadata_name, **case.spec))
    assert isinstance(admitted, Admitted), admitted


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_wrong_resources_are_refused_with_a_clear_message(case: Any) -> None:
    refused = VALIDATOR.admit(resource(case.kind, case.metadata_name, **case.spec))
    assert isinstance(refused, Refused), refused
    assert case.message in refused.message


def _change(case: Any) -> Admitted | Refused:
    old = VALIDATOR.admit(resource(case.kind, **case.old))
    assert isinstance(old, Admitted), old
    return VALIDATOR.admit(resource(case.kind, **case.new), old=old.body)


@pytest.mark.parametrize("case", TRANSITIONS_ACCEPTED, ids=lambda case: case.id)
def test_allowed_changes_are_admitted(case: Any) -> None:
    changed = _change(case)
    assert isinstance(changed, Admitted), changed


@pytest.mark.parametrize("case", TRANSITIONS_REFUSED, ids=lambda case: case.id)
def test_changes_of_identity_are_refused(case: Any) -> None:
    changed = _change(case)
    assert isinstance(changed, Refused), changed
    assert case.message in changed.message


def test_every_rule_has_a_case_that_breaks_it() -> None:
    """One rule without a refusal is a rule that nobody has seen work."""
    seen = {(case.kind, case.message) for case in [*REFUSED, *TRANSITIONS_REFUSED]}
    for kind in KINDS:
        for _, schema in [("", VALIDATOR.kinds[kind].schema), *fields_of(kind)]:
            for rule in schema.get("x-kubernetes-validations", ()):
                message = rule["message"]
                assert any(kind == of and text in message for of, text in seen), (kind, message)
