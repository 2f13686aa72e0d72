"""The admin Secret in a real API server: it outlives its BrokerCluster, and is made anew.

That the password of such a Secret is then the broker's is shown with a real member by
test_admin_account.py, and end to end by tests/e2e.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cluster_fixtures import Kubernetes
from tests.operator.api import test_operator_api
from tests.operator.operator_process import Namespace, OperatorProcess, wait_for
from tests.operator.resources import resource

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

api = test_operator_api.api
namespace = test_operator_api.namespace
operator = test_operator_api.operator


def secret(namespace: Namespace, name: str) -> dict[str, Any]:
    found = namespace.get("secret", name)
    assert found is not None, name
    return found


def recreate(namespace: Namespace, body: dict[str, Any]) -> None:
    namespace.delete("brokercluster", "prod")
    namespace.wait_gone("brokercluster", "prod")
    namespace.apply(body)
    namespace.wait_reason("brokercluster", "prod", "WaitingForMembers")


def test_admin_secret_outlives_its_cluster_with_the_volumes_and_the_authority_does_not(
    namespace: Namespace, operator: OperatorProcess, api: Kubernetes
) -> None:
    body = resource("BrokerCluster", "prod", replicas=1)
    namespace.apply(body)
    namespace.wait_reason("brokercluster", "prod", "WaitingForMembers")
    before = {name: secret(namespace, f"prod-{name}") for name in ("admin", "keys", "ca", "tls")}
    for name in ("admin", "keys"):
        assert "ownerReferences" not in before[name]["metadata"]
        assert "prod" in before[name]["metadata"]["annotations"]["brokerd.io/kept"]
    recreate(namespace, body)
    after = {name: secret(namespace, f"prod-{name}") for name in before}
    for name in ("admin", "keys"):
        assert after[name]["metadata"]["uid"] == before[name]["metadata"]["uid"]
        assert after[name]["data"] == before[name]["data"]
    cluster_uid = namespace.get("brokercluster", "prod")["metadata"]["uid"]  # type: ignore[index]
    for name in ("ca", "tls"):
        assert after[name]["data"]["ca.crt"] != before[name]["data"]["ca.crt"]
        [owner] = after[name]["metadata"]["ownerReferences"]
        assert owner["uid"] == cluster_uid
    assert after["tls"]["data"]["ca.crt"] == after["ca"]["data"]["ca.crt"]

    # Made anew at once, by the word of the watch.
    namespace.delete("secret", "prod-admin")
    anew = wait_for(
        "the Secret is made anew",
        lambda: (
            (found := namespace.get("secret", "prod-admin"))
            and found["metadata"]["uid"] != before["admin"]["metadata"]["uid"]
            and found
        ),
    )
    assert anew["data"]["password"] != before["admin"]["data"]["password"]

    # With volumes that go it goes, too, though it was made to stay.
    patch = json.dumps({"spec": {"storage": {"retention": "Delete"}}})
    api.kubectl("-n", namespace.name, "patch", "brokercluster", "prod", "--type=merge", "-p", patch)
    wait_for(
        "the Secret belongs to the BrokerCluster",
        lambda: secret(namespace, "prod-admin")["metadata"].get("ownerReferences"),
    )
    assert "annotations" not in secret(namespace, "prod-admin")["metadata"]
