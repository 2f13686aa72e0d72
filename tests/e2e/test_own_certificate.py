"""A cluster that runs is given certificates of the company's own, and gives them back."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from brokerd_operator.sources import certificates

from tests.e2e.conftest import nightly
from tests.e2e.namespace import Namespace, Resource, resource, small_cluster, until
from tests.e2e.reach import Reach
from tests.e2e.test_clusters import CHANGE_S, pods, ready_members

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

MEMBERS = 3


def company(
    space: Namespace, name: str = "company", *, members: int = MEMBERS
) -> tuple[Resource, Resource]:
    """A certificate for the cluster `tiny` by an authority of its own, and that authority."""
    ca, key = certificates.make_ca(name)
    hosts = [f"tiny.{space.name}.svc", "localhost"]
    hosts += [f"tiny-{ordinal}.tiny-nodes.{space.name}.svc" for ordinal in range(members)]
    made = certificates.make_certificate(ca, key, hosts)
    pair = {"tls.crt": made.certificate.decode(), "tls.key": made.key.decode()}
    authority = secret(f"{name}-ca", {"ca.crt": ca.decode()})
    return secret(name, pair, "kubernetes.io/tls"), authority


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
        until(partial(rolled, space, before), "all members are new", CHANGE_S)
        space.wait_ready("brokercluster/tiny")
        # The operator asks by TLS alone: this is made, and seen, over the new certificate.
        name = "own" if tls else "again"
        space.apply(resource("Queue", name, brokerRef={"name": "tiny"}, type="quorum"))
        space.wait_ready(f"queue/{name}")
    reach = Reach(space, "tiny")
    assert {"jobs", "own", "again"} <= set(reach.topology("queue"))
    reach.close()


@nightly
@pytest.mark.timeout(1800)
def test_members_that_show_what_is_refused_come_to_a_good_certificate(space: Namespace) -> None:
    """ADR 71: made with a certificate without their names; then the Secrets in use are deleted."""
    for name, members in (("nameless", 0), ("company", MEMBERS), ("second", MEMBERS)):
        for made in company(space, name, members=members):
            space.apply(made)
    cluster = small_cluster()
    cluster["spec"] |= {"replicas": MEMBERS, "tls": tls_of("nameless")}
    space.apply(cluster)
    until(lambda: space.find("statefulset", "tiny"), "the operator has made members", CHANGE_S)
    until(lambda: ready_members(space) == MEMBERS, "members run", CHANGE_S)
    until(lambda: "tiny-nodes" in ready_message(space), "Ready names the certificate", CHANGE_S)
    assert "subject CN=" in ready_message(space)
    for number, name in enumerate(("company", "second"), 1):
        before = pods(space)
        if name == "second":
            space.kubectl("delete", "secret", "company", "company-ca")
        space.patch("brokercluster", "tiny", {"tls": tls_of(name)})
        until(partial(rolled, space, before), f"all have {name}", CHANGE_S)
        space.wait_ready("brokercluster/tiny")
        space.apply(resource("Queue", name, brokerRef={"name": "tiny"}, type="quorum"))
        space.wait_ready(f"queue/{name}")
        # Two for each change, the second with one that could be asked; the last went by majorities.
        assert len(space.events("RestartedUnasked", "tiny")) == 2 * number


def tls_of(name: str) -> dict[str, str]:
    return {"secretName": name, "caSecretName": f"{name}-ca"}


def ready_message(space: Namespace) -> str:
    return str((space.condition("brokercluster", "tiny") or {}).get("message", ""))
