"""Certificates of BrokerClusters against a real API server: renewal, damage, cert-manager.

No pod runs there: what is shown is what the Secrets hold and what users are told. Over years, with
a clock of its own, test_certificate_rotation.py goes.
"""

from __future__ import annotations

import base64
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.sources import certificates

from tests.authorities import Authority
from tests.cluster_fixtures import CLUSTER, Kubernetes
from tests.operator.operator_process import Namespace, OperatorProcess, running, wait_for
from tests.operator.resources import resource

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

CRDS = CLUSTER.parents[1] / "crds"
YEAR_S = 365 * 86_400
#: As much of cert-manager as the operator sees.
CERT_MANAGER = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "certificates.cert-manager.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, for a test"},
    },
    "spec": {
        "group": "cert-manager.io",
        "names": {"kind": "Certificate", "plural": "certificates", "singular": "certificate"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["secretName", "issuerRef"],
                                "properties": {
                                    "secretName": {"type": "string"},
                                    "dnsNames": {"type": "array", "items": {"type": "string"}},
                                    "usages": {"type": "array", "items": {"type": "string"}},
                                    "privateKey": {
                                        "type": "object",
                                        "properties": {
                                            "algorithm": {"type": "string", "enum": ["ECDSA"]},
                                            "size": {"type": "integer"},
                                            "rotationPolicy": {
                                                "type": "string",
                                                "enum": ["Never", "Always"],
                                            },
                                        },
                                    },
                                    "issuerRef": {
                                        "type": "object",
                                        "required": ["name"],
                                        "properties": {
                                            "name": {"type": "string"},
                                            "kind": {"type": "string"},
                                            "group": {"type": "string"},
                                        },
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def namespace(kube_api: Kubernetes) -> Namespace:
    kube_api.kubectl("apply", "-f", str(CRDS))
    kube_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=100s")
    kube_api.kubectl("create", "namespace", "certificates")
    return Namespace(kube_api, "certificates")


@pytest.fixture(scope="module")
def operator(
    namespace: Namespace, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    log: Path = tmp_path_factory.mktemp("operator") / "operator.log"
    process = OperatorProcess(namespace.cluster.kubeconfig, namespace.name, log)
    process.settings = {"AUTHORITY_NOTICE_SECONDS": "0", "CERTIFICATE_SETTLE_SECONDS": "1"}
    with running(process):
        yield process


def data(namespace: Namespace, name: str) -> dict[str, bytes]:
    """What a Secret holds; nothing if it is not there."""
    found = namespace.get("secret", name) or {}
    return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}


def change(namespace: Namespace, name: str, **values: bytes | None) -> None:
    """Edit a Secret; `tls_crt` is tls.crt, None takes a key away."""
    encoded = {
        key.replace("_", "."): None if value is None else base64.b64encode(value).decode()
        for key, value in values.items()
    }
    patch = json.dumps({"data": encoded})
    namespace.cluster.kubectl(
        "-n", namespace.name, "patch", "secret", name, "--type=merge", "-p", patch
    )


def issuer(namespace: Namespace, name: str) -> bytes:
    """Which authority issued the certificate in a Secret; empty if none that the bundle holds."""
    held = data(namespace, name)
    if not held:
        return b""
    pair = certificates.read_pair(held["tls.crt"], held["tls.key"])
    return certificates.issuer_of(pair, certificates.read_bundle(held["ca.crt"]))


def of_cluster(namespace: Namespace, cluster: str, reason: str) -> list[str]:
    """Texts of Events of a reason."""
    return [
        event["message"]
        for event in namespace.events(reason)
        if event["involvedObject"]["name"] == cluster
    ]


def valid(namespace: Namespace, cluster: str) -> dict[str, Any]:
    return namespace.condition("brokercluster", cluster, "CertificatesValid")


def test_an_authority_of_seven_years_is_replaced_and_all_certificates_with_it(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    """Trust first, then the new certificates; with Events, condition and metric."""
    namespace.apply(resource("BrokerCluster", "old", replicas=1))
    wait_for("certificates", lambda: valid(namespace, "old").get("status") == "True")
    ca, key = certificates.make_ca("old", 10 * YEAR_S, time.time() - 7 * YEAR_S)
    change(namespace, "old-ca", ca_crt=ca, ca_key=key)

    def is_replaced() -> bool:
        held = data(namespace, "old-ca")
        newest = held.get("ca.crt", b"")
        secrets = ("old-tls", "old-peer-tls")
        is_switched = held.get("previous.crt", b"").startswith(ca)
        return is_switched and all(issuer(namespace, s) == newest for s in secrets)

    wait_for("new certificates of a new authority", is_replaced)
    held = data(namespace, "old-ca")
    assert "next.key" not in held
    for secret in ("old-tls", "old-peer-tls"):
        assert data(namespace, secret)["ca.crt"] == held["ca.crt"] + held["previous.crt"]
    for reason in ("AuthorityMade", "AuthoritySwitched", "CertificateRenewed"):
        wait_for(reason, lambda reason=reason: of_cluster(namespace, "old", reason))
    assert valid(namespace, "old")["status"] == "True"
    with urllib.request.urlopen(f"http://127.0.0.1:{operator.port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    labels = f'cluster="old",namespace="{namespace.name}",secret="old-tls"'
    [line] = [item for item in text.splitlines() if labels in item]
    assert float(line.split()[-1]) > time.time() + 300 * 86_400


def test_a_damaged_certificate_is_made_anew_with_an_event(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    namespace.apply(resource("BrokerCluster", "hurt", replicas=1))
    wait_for("certificates", lambda: data(namespace, "hurt-peer-tls"))
    change(namespace, "hurt-tls", tls_key=b"garbage")
    change(namespace, "hurt-peer-tls", tls_crt=Authority().issue("x").certificate)
    wait_for("both Events", lambda: len(of_cluster(namespace, "hurt", "CertificateReplaced")) == 2)
    for secret in ("hurt-tls", "hurt-peer-tls"):
        held = data(namespace, secret)
        certificates.read_pair(held["tls.crt"], held["tls.key"])


def test_a_users_certificate_that_expires_is_told_and_left_alone(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    authority = Authority()
    hosts = [f"users-{number}.users-nodes.{namespace.name}.svc" for number in range(3)]
    pair = authority.issue("mq.example.org", *hosts, seconds=3600)
    # Of a life of an hour and some minutes: not yet in its last sixth.
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": "corp"},
        "data": {
            "tls.crt": base64.b64encode(pair.certificate).decode(),
            "tls.key": base64.b64encode(pair.key).decode(),
        },
    }
    issuer = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "corp-ca"},
        "data": {"ca.crt": base64.b64encode(authority.certificate).decode()},
    }
    tls = {"secretName": "corp", "caSecretName": "corp-ca"}
    namespace.apply(secret, issuer, resource("BrokerCluster", "users", tls=tls))
    wait_for("a verdict", lambda: valid(namespace, "users").get("status") == "True")
    late = authority.issue("mq.example.org", *hosts, seconds=30)
    change(namespace, "corp", tls_crt=late.certificate, tls_key=late.key)
    before = data(namespace, "corp")
    wait_for(
        "a warning", lambda: valid(namespace, "users").get("reason") in ("Expiring", "Expired")
    )
    assert "does not renew it" in valid(namespace, "users")["message"]
    assert data(namespace, "corp") == before
    assert not data(namespace, "users-tls")
    reasons = ("CertificateExpiring", "CertificateExpired")
    wait_for("an Event", lambda: any(of_cluster(namespace, "users", name) for name in reasons))


def test_cert_manager_issues_where_the_spec_says_so(
    namespace: Namespace, operator: OperatorProcess
) -> None:
    """Without its kinds: a clear condition; with them a Certificate, and the cluster follows."""
    reference = {"name": "corp", "kind": "ClusterIssuer"}
    issued = {"issuerRef": reference, "caSecretName": "issued-issued-tls"}
    namespace.apply(resource("BrokerCluster", "issued", replicas=1, tls=issued))
    namespace.wait_reason("brokercluster", "issued", "CertManagerMissing")
    assert namespace.condition("brokercluster", "issued", "Stalled")["status"] == "True"
    kubectl = namespace.cluster.kubectl
    kubectl("apply", "-f", "-", input=yaml.safe_dump(CERT_MANAGER))
    kubectl("wait", "--for=condition=Established", f"crd/{CERT_MANAGER['metadata']['name']}")
    waiting = namespace.wait_reason("brokercluster", "issued", "WaitingForSecret")
    assert "cert-manager has not issued Secret issued-issued-tls yet" in waiting["message"]
    certificate = namespace.get("certificates.cert-manager.io", "issued")
    assert certificate is not None
    assert certificate["spec"]["issuerRef"] == {**reference, "group": "cert-manager.io"}
    assert f"issued.{namespace.name}.svc" in certificate["spec"]["dnsNames"]
    [owner] = certificate["metadata"]["ownerReferences"]
    assert owner["kind"] == "BrokerCluster"
    authority = Authority()
    pair = authority.issue(*certificate["spec"]["dnsNames"])
    values = {"tls.crt": pair.certificate, "tls.key": pair.key, "ca.crt": authority.certificate}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {"name": certificate["spec"]["secretName"]},
        "data": {key: base64.b64encode(value).decode() for key, value in values.items()},
    }
    namespace.apply(secret)
    wait_for("the members", lambda: namespace.get("statefulset", "issued"))
    wait_for("a verdict", lambda: valid(namespace, "issued").get("status") == "True")
    assert not data(namespace, "issued-tls"), "the operator makes none of its own besides"
    assert data(namespace, "issued-peer-tls")
    # Back to the operator's own.
    namespace.apply(resource("BrokerCluster", "issued", replicas=1))
    namespace.wait_gone("certificates.cert-manager.io", "issued")
    wait_for("its own certificate", lambda: data(namespace, "issued-tls"))
