"""spec.tls of a running cluster: members get a certificate that the operator has seen to be good.

What is wrong with one is seen in test_serving_certificates.py; here is what becomes of the members.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import pytest
from brokerd_operator.manifests import cluster, naming
from brokerd_operator.reconcile import lifecycle
from brokerd_operator.reconcile.lifecycle import Pass
from brokerd_operator.reconcile.scaling import Step, StepKind
from brokerd_operator.settings import Settings
from brokerd_operator.sources.kubernetes_clusters import KubernetesClusters
from brokerd_operator.sources.secret_reads import SecretReads

from tests.authorities import Authority, Pair
from tests.operator.manifests.test_manifests import context

HOSTS = [f"orders-{ordinal}.orders-nodes.shop.svc" for ordinal in range(3)]
ROOT = Authority("corp root")
INTERMEDIATE = Authority("corp issuing", ROOT)
COMPANY = {"secretName": "company", "caSecretName": "company-ca"}
GOOD = ROOT.issue(*HOSTS)


class Secrets:
    """An API server that has nothing but Secrets."""

    def __init__(self, **secrets: dict[str, bytes]) -> None:
        self.found = {name.replace("_", "-"): data for name, data in secrets.items()}

    async def get(self, path: str) -> Any:
        data = self.found.get(path.rpartition("/")[2])
        return None if data is None else {"metadata": {}, "data": naming.encoded(data)}


def secret(pair: Pair, *behind: bytes) -> dict[str, bytes]:
    return {"tls.crt": b"".join((pair.certificate, *behind)), "tls.key": pair.key}


AUTHORITY = {"ca.crt": ROOT.certificate}


def stateful_set(made: naming.Context) -> dict[str, Any]:
    (found,) = (item for item in cluster.objects(made, 3) if item["kind"] == "StatefulSet")
    return found


async def decided(
    before: dict[str, str], wanted: dict[str, str], **secrets: dict[str, bytes]
) -> tuple[naming.Context, str]:
    """The certificate that members of a cluster get whose spec.tls was changed."""
    api: Any = Secrets(**secrets)
    nothing: Any = None
    driver = KubernetesClusters(api, Settings(), nothing, SecretReads(api))
    return await driver._tls(context(tls=wanted), stateful_set(context(tls=before)))


async def test_a_certificate_that_is_good_is_given_to_the_members() -> None:
    for before in ({}, {"secretName": "older", "caSecretName": "company-ca"}):
        found, problem = await decided(before, COMPANY, company=secret(GOOD), company_ca=AUTHORITY)
        assert (found.tls_secret, found.ca_secret, problem) == ("company", "company-ca", "")


async def test_both_secrets_may_change_at_once() -> None:
    other = Authority("other")
    pair = secret(other.issue(*HOSTS))
    second = {"secretName": "second", "caSecretName": "second-ca"}
    found, problem = await decided(
        COMPANY, second, second=pair, second_ca={"ca.crt": other.certificate}
    )
    assert (found.tls_secret, found.ca_secret, problem) == ("second", "second-ca", "")
    found, problem = await decided(COMPANY, second, second=pair, second_ca=AUTHORITY)
    assert (found.tls_secret, found.ca_secret) == ("company", "company-ca")
    assert "its issuer CN=other is neither in ca.crt of Secret second-ca" in problem


async def test_back_to_the_operators_own_needs_no_look() -> None:
    found, problem = await decided(COMPANY, {})
    assert (found.tls_secret, found.ca_secret, problem) == ("orders-tls", "orders-tls", "")


WRONG_KEY = Pair(GOOD.certificate, ROOT.issue("x").key)
#: By what is wrong: the Secrets, and what is said.
BAD: dict[str, tuple[dict[str, dict[str, bytes]], str]] = {
    "key": ({"company": secret(WRONG_KEY), "company_ca": AUTHORITY}, "the key is not the certifi"),
    "names": (
        {"company": secret(ROOT.issue("orders.shop.svc")), "company_ca": AUTHORITY},
        f"it does not name {HOSTS[0]} and 2 more",
    ),
    "expired": (
        {"company": secret(ROOT.issue(*HOSTS, seconds=-5)), "company_ca": AUTHORITY},
        "it expired at ",
    ),
    "intermediate": (
        {"company": secret(INTERMEDIATE.issue(*HOSTS)), "company_ca": AUTHORITY},
        "append the intermediate certificate to tls.crt",
    ),
    "gone": ({"company_ca": AUTHORITY}, "it does not exist: make it"),
    "authority gone": (
        {"company": secret(GOOD)},
        "Secret company-ca, its authority, does not exist: make it",
    ),
    "other authority": (
        {"company": secret(GOOD), "company_ca": {"ca.crt": INTERMEDIATE.certificate}},
        "its issuer CN=corp root is neither in ca.crt of Secret company-ca",
    ),
}


@pytest.mark.parametrize("case", BAD)
async def test_members_keep_what_they_have_while_the_new_certificate_is_bad(case: str) -> None:
    secrets, said = BAD[case]
    for before, kept in (
        ({}, ("orders-tls", "orders-tls")),
        ({"secretName": "older", "caSecretName": "older-ca"}, ("older", "older-ca")),
        ({"secretName": "public"}, ("public", None)),
    ):
        found, problem = await decided(before, COMPANY, **secrets)
        assert (found.tls_secret, found.ca_secret) == kept
        assert found.has_own_certificate == (not before)
        # An eviction brings a member back as it was.
        pod = stateful_set(found)["spec"]["template"]
        assert pod == stateful_set(context(tls=before))["spec"]["template"]
        assert problem.startswith("Secret company: ")
        assert said in problem
        assert problem.endswith(f"spec.tls is not in force, members keep Secret {kept[0]}")
        if "gone" not in case:
            assert "(TLS certificate: subject CN=" in problem
            assert ", issuer CN=corp" in problem
            assert ", expires 20" in problem


@pytest.mark.parametrize("case", BAD)
async def test_what_became_bad_in_place_restarts_nobody(case: str) -> None:
    """Members go on with what they have loaded; one that is restarted loads the new."""
    secrets, said = BAD[case]
    found, problem = await decided(COMPANY, COMPANY, **secrets)
    assert (found.tls_secret, found.ca_secret) == ("company", "company-ca")
    assert said in problem
    assert "members are not restarted before" in problem
    api: Any = Secrets(**secrets)
    nothing: Any = None
    driver = KubernetesClusters(api, Settings(), nothing, SecretReads(api))
    hold = await driver._bad_certificate(found)
    assert hold is not None
    assert hold.reason == "CertificateUnusable"
    assert said in hold.message
    api.found |= {"company": secret(GOOD), "company-ca": AUTHORITY}
    assert await driver._bad_certificate(found) is None
    assert await driver._bad_certificate(context()) is None, "its own is renewed in time"


async def test_a_new_cluster_is_made_with_what_there_is() -> None:
    """There is nothing to keep; CertificatesValid says what is wrong."""
    api: Any = Secrets(company=secret(WRONG_KEY), company_ca=AUTHORITY)
    nothing: Any = None
    driver = KubernetesClusters(api, Settings(), nothing, SecretReads(api))
    found, problem = await driver._tls(context(tls=COMPANY), None)
    assert (found.tls_secret, problem) == ("company", "")


async def test_the_certificate_that_expires_while_it_is_looked_at_is_seen_again() -> None:
    api: Any = Secrets(company=secret(GOOD), company_ca=AUTHORITY)
    nothing: Any = None
    driver = KubernetesClusters(api, Settings(), nothing, SecretReads(api))
    made = context(tls=COMPANY)
    assert (await driver._tls(made, stateful_set(made)))[1] == ""
    driver._certificates._clock = lambda: time.time() + 7200
    assert "it expired at" in (await driver._tls(made, stateful_set(made)))[1]


def test_an_unusable_certificate_is_ready_s_reason() -> None:
    state = Pass(
        3, Step(StepKind.DONE), ready=frozenset(("a", "b", "c")), unusable_certificate="bad"
    )
    reason, message = lifecycle.verdict(context().spec, state)
    assert reason == "CertificateUnusable"
    assert message == "bad; 3 of 3 members are ready"
    refused = dataclasses.replace(state, refused=("ApiRefused", "no"))
    assert lifecycle.verdict(context().spec, refused)[0] == "ApiRefused"
