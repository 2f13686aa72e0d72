"""The CRDs in a real API server, and its verdicts beside those of the embedded validator."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from brokerd_operator.specs import registry
from brokerd_operator.validation import crd_directory
from kubernetes import client, config

from tests.cluster_fixtures import Kubernetes
from tests.operator.crd_cases import ACCEPTED, REFUSED
from tests.operator.crd_transitions import TRANSITIONS_ACCEPTED, TRANSITIONS_REFUSED
from tests.operator.resources import MINIMAL, resource

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

NAMESPACE = "crd-verdicts"


class Api:
    """The custom resources of one namespace."""

    def __init__(self, custom: Any) -> None:
        self._custom = custom

    def _call(self, verb: str, kind: str, *rest: Any) -> tuple[dict[str, Any] | None, str]:
        method = getattr(self._custom, f"{verb}_namespaced_custom_object")
        plural = registry.PLURALS[kind]
        try:
            return method("brokerd.io", "v1alpha1", NAMESPACE, plural, *rest), ""
        except client.ApiException as error:
            return None, str(json.loads(error.body)["message"])

    def create(self, body: dict[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """What was stored, or why it was refused."""
        self._call("delete", body["kind"], body["metadata"]["name"])
        return self._call("create", body["kind"], _in_namespace(body))

    def replace(self, old: dict[str, Any], body: dict[str, Any]) -> str:
        """Why a change was refused; empty when it was not."""
        new = _in_namespace(body)
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return self._call("replace", body["kind"], body["metadata"]["name"], new)[1]


def _in_namespace(body: dict[str, Any]) -> dict[str, Any]:
    return {**body, "metadata": {**body["metadata"], "namespace": NAMESPACE}}


@pytest.fixture(scope="module")
def api(kube_api: Kubernetes) -> Iterator[Api]:
    kube_api.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(crd_directory()))
    kube_api.kubectl(
        "wait", "--for=condition=Established", "--timeout=100s", "-f", str(crd_directory())
    )
    kube_api.kubectl("create", "namespace", NAMESPACE)
    connection = config.new_client_from_config(str(kube_api.kubeconfig))
    with connection:
        yield Api(client.CustomObjectsApi(connection))
    kube_api.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


@pytest.mark.parametrize("kind", sorted(MINIMAL))
def test_api_server_keeps_the_status_default(api: Api, kind: str) -> None:
    """design/operator.md §6: without it Helm's wait succeeds before the operator has looked."""
    stored, message = api.create(resource(kind))
    assert stored is not None, message
    assert stored["status"] == {"observedGeneration": -1}


@pytest.mark.parametrize("case", ACCEPTED, ids=lambda case: case.id)
def test_api_server_admits_what_the_validator_admits(api: Api, case: Any) -> None:
    stored, message = api.create(resource(case.kind, case.metadata_name, **case.spec))
    assert stored is not None, message


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.id)
def test_api_server_refuses_what_the_validator_refuses(api: Api, case: Any) -> None:
    stored, message = api.create(resource(case.kind, case.metadata_name, **case.spec))
    assert stored is None
    assert case.message in message


@pytest.mark.parametrize("case", TRANSITIONS_ACCEPTED, ids=lambda case: case.id)
def test_api_server_admits_the_same_changes(api: Api, case: Any) -> None:
    old, message = api.create(resource(case.kind, **case.old))
    assert old is not None, message
    assert api.replace(old, resource(case.kind, **case.new)) == ""


@pytest.mark.parametrize("case", TRANSITIONS_REFUSED, ids=lambda case: case.id)
def test_api_server_refuses_the_same_changes(api: Api, case: Any) -> None:
    old, message = api.create(resource(case.kind, **case.old))
    assert old is not None, message
    assert case.message in api.replace(old, resource(case.kind, **case.new))
