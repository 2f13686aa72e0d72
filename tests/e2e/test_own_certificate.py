"""A cluster that runs is given certificates of the company's own, and gives them back."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_operator.sources import certificates

from tests.e2e.namespace import Namespace, Resource, resource, small_cluster, until
from tests.e2e.reach import Reach
from tests.e2e.test_clusters import CHANGE_S, pods, ready_members

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

MEMBERS = 3


def company(space: Namespace) -> tuple[Resource, Resource]:
    """A certificate for the cluster `tiny` by an authority of its own, and that authority."""
    ca, key = certificates.make_ca("company")
    hosts = [f"tiny.{space.name}.svc", "localhost"]
    hosts += [f"tiny-{ordinal}.tiny-nodes.{space.name}.svc" for ordinal in range(MEMBERS)]
    made = certificates.make_certificate(ca, key, hosts)
    pair = {"tls.crt": made.certificate.decode(), "tls.key": made.key.decode()}
    authority = secret("company-ca", {"ca.crt": ca.decode()})
    return secret("company", pair, "kubernetes.io/tls"), authority


def secret(name: str, values: dict[str, str], type_: str = "Opaque") -> Resource:
    metadata = {"name": name}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": type_,
        "stringData": values,
    }


def rolled(space: Namespace, before: Any) -> bool:
    """Whether every member is another pod than before, and ready."""
    now = pods(space)
    return ready_members(space) == MEMBERS and not set(before.values()) & set(now.values())


@pytest.mark.timeout(900)
def test_a_running_cluster_is_rolled_to_certificates_of_the_companys_own_and_back(
    space: Namespace,
) -> None:
    cluster = small_cluster()
    cluster["spec"]["replicas"] = MEMBERS
    space.apply(cluster)
    space.apply(resource("Queue", "jobs", brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready("brokercluster/tiny", "queue/jobs")
    for made in company(space):
        space.apply(made)
    for tls in ({"secretName": "company", "caSecretName": "company-ca"}, None):
        before = pods(space)
        space.patch("brokercluster", "tiny", {"tls": tls})
        until(lambda before=before: rolled(space, before), "all members are new", CHANGE_S)
        space.wait_ready("brokercluster/tiny")
        # The operator asks by TLS alone: this is made, and seen, over the new certificate.
        name = "own" if tls else "again"
        space.apply(resource("Queue", name, brokerRef={"name": "tiny"}, type="quorum"))
        space.wait_ready(f"queue/{name}")
    reach = Reach(space, "tiny")
    assert {"jobs", "own", "again"} <= set(reach.topology("queue"))
    reach.close()
