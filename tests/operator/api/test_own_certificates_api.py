"""A certificate of the company's own for a running BrokerCluster, against a real API server.

Good and bad ones, mended, changed in place, and back. Pods are made and never run here; end to end
goes tests/e2e/test_own_certificate.py.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from tests.authorities import Authority, Pair
from tests.cluster_fixtures import Kubernetes
from tests.operator.api.test_cluster_lifecycle_api import Members
from tests.operator.api_fixtures import api as api
from tests.operator.operator_process import Namespace, OperatorProcess, running, wait_for

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

NAMESPACE = "op-own-certificates"
ROOT = Authority("corp root")
INTERMEDIATE = Authority("corp issuing", ROOT)
HOSTS = [f"shop-{ordinal}.shop-nodes.{NAMESPACE}.svc" for ordinal in range(2)]


@pytest.fixture(scope="module")
def space(api: Kubernetes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespace]:
    api.kubectl("create", "namespace", NAMESPACE)
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with running(OperatorProcess(api.kubeconfig, NAMESPACE, log)):
        yield Namespace(api, NAMESPACE)
    api.kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def secret(name: str, **data: bytes) -> dict[str, Any]:
    encoded = {
        key.replace("_", "."): base64.b64encode(value).decode() for key, value in data.items()
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def company(pair: Pair, *behind: bytes) -> dict[str, Any]:
    return secret("company", tls_crt=b"".join((pair.certificate, *behind)), tls_key=pair.key)


def mounted(made: Members) -> tuple[str, str]:
    """Secrets of the certificate and of its authority that new pods get."""
    volumes = made.stateful_set["spec"]["template"]["spec"]["volumes"]
    found = {item["name"]: item["secret"]["secretName"] for item in volumes if "secret" in item}
    return found["tls"], found["tls-ca"]


def said(made: Members, text: str) -> str:
    """Until Ready says so; the operator sees by itself that a Secret changed."""

    def check() -> str:
        found = made.wait("CertificateUnusable")["message"]
        return str(found) if text in found else ""

    return str(wait_for(text, check))


def test_members_get_a_certificate_when_it_is_good_and_not_before(space: Namespace) -> None:
    made = Members(space, "shop", replicas=2)
    made.serve(0, 1)
    made.wait("WaitingForBroker")
    own, uids = mounted(made), made.uids(2)
    assert own == ("shop-tls", "shop-tls")
    made.patch(tls={"secretName": "company", "caSecretName": "company-ca"})
    said(made, "Secret company: it does not exist: make it")
    good = ROOT.issue(*HOSTS)
    wrong = Pair(good.certificate, ROOT.issue("x").key)
    space.apply(company(wrong))
    said(made, "Secret company-ca, its authority, does not exist")
    space.apply(secret("company-ca", ca_crt=ROOT.certificate))
    for pair, text in (
        (wrong, "the key is not the certificate's"),
        (ROOT.issue(f"shop.{NAMESPACE}.svc"), f"it does not name {HOSTS[0]} and 1 more"),
        (ROOT.issue(*HOSTS, seconds=-5), "it expired at "),
        (INTERMEDIATE.issue(*HOSTS), "append the intermediate certificate to tls.crt"),
    ):
        space.apply(company(pair))
        message = said(made, text)
        assert "spec.tls is not in force, members keep Secret shop-tls" in message
        assert "(TLS certificate: subject CN=" in message
        condition = made.condition("CertificatesValid")
        assert (condition["status"], condition["reason"]) == ("False", "Unusable")
        assert text in condition["message"]
        assert mounted(made) == own
        # Everything else of the spec goes on.
        image = f"localhost/brokerd:{len(text)}"
        made.patch(image=image)
        wait_image(made, image)
        assert mounted(made) == own
    assert made.uids(2) == uids
    assert space.events("CertificateUnusable")
    space.apply(company(INTERMEDIATE.issue(*HOSTS), INTERMEDIATE.certificate))
    wait_for("it is given", lambda: mounted(made) == ("company", "company-ca"))
    wait_for("it is valid", lambda: made.condition("CertificatesValid").get("status") == "True")
    assert not made.condition("Stalled")
    # In place: whoever was restarted now would load it.
    space.apply(company(ROOT.issue(*HOSTS, seconds=-5)))
    message = said(made, "it expired at ")
    assert "members are not restarted before" in message
    space.delete("secret", "company")
    said(made, "Secret company: it does not exist")
    made.patch(tls=None)
    wait_for("back again", lambda: mounted(made) == own)
    wait_for("it is valid", lambda: made.condition("CertificatesValid").get("status") == "True")
    assert not made.condition("Stalled")
    made.delete()


def wait_image(made: Members, image: str) -> None:
    def is_there() -> bool:
        (container,) = made.stateful_set["spec"]["template"]["spec"]["containers"]
        return bool(container["image"] == image)

    wait_for("the image", is_there)
