"""Certificates of a BrokerCluster over its whole life: a clock and Secrets of the test's own.

The operator's real code reads and writes Secrets; members load them late, as the kubelet lets them.
"""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from brokerd_operator import conditions
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.manifests.naming import Context
from brokerd_operator.reconcile import rotation
from brokerd_operator.reconcile.rotation import Lifetimes
from brokerd_operator.sources import certificates, cluster_certificates
from brokerd_operator.sources.api import ApiError
from brokerd_operator.sources.cluster_certificates import CertificateReport, ClusterCertificates
from brokerd_operator.sources.cluster_secrets import ClusterSecrets
from brokerd_operator.sources.secret_reads import SecretReads
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.verification import PolicyBuilder, Store

from tests.authorities import Authority
from tests.operator.manifests.test_manifests import context

START_S = 1_800_000_000.0
MINUTE_S, DAY_S = 60.0, 86_400.0
YEAR_S = 365 * DAY_S
#: A kubelet may be so late.
LAG_S = 5 * MINUTE_S


class FakeSecrets:
    """As much of an API server as Secrets need: versions, conflicts, merge patches."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self.writes = 0
        #: Called before a write: another operator, an error.
        self.before_write: Any = None
        self._version = 0

    async def get(self, path: str) -> dict[str, Any] | None:
        return copy.deepcopy(self.found.get(path.rpartition("/")[2]))

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any] | None:
        self._about_to_write()
        name = manifest["metadata"]["name"]
        if name in self.found:
            return None
        self.found[name] = copy.deepcopy(manifest)
        self._stamp(name)
        return manifest

    async def merge(self, path: str, patch: dict[str, Any]) -> dict[str, Any]:
        self._about_to_write()
        name = path.rpartition("/")[2]
        found = self.found[name]
        if patch["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            raise ApiError(409, "the object has been modified")
        _merge(found, patch)
        self._stamp(name)
        return found

    def _about_to_write(self) -> None:
        if self.before_write is not None:
            action, self.before_write = self.before_write, None
            action()

    def _stamp(self, name: str) -> None:
        self._version += 1
        self.writes += 1
        self.found[name]["metadata"]["resourceVersion"] = str(self._version)

    def data(self, name: str) -> dict[str, bytes]:
        values = self.found[name]["data"]
        return {key: base64.b64decode(value) for key, value in values.items()}

    def put(self, name: str, **values: bytes | None) -> None:
        """Somebody edits a Secret; `tls_crt` is tls.crt, None takes a key away."""
        data = self.found[name].setdefault("data", {})
        for key, value in values.items():
            if value is None:
                data.pop(key.replace("_", "."), None)
            else:
                data[key.replace("_", ".")] = base64.b64encode(value).decode()
        self._stamp(name)


def _merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            _merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


@dataclass
class World:
    """One BrokerCluster, its operator and a clock."""

    lifetimes: Lifetimes = field(default_factory=Lifetimes)
    spec: dict[str, Any] = field(default_factory=dict)
    now: float = START_S
    api: FakeSecrets = field(default_factory=FakeSecrets)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    body: dict[str, Any] = field(default_factory=lambda: {"metadata": {}, "status": {}})

    @property
    def context(self) -> Context:
        return context(**self.spec)

    async def _emit(self, body: Any, type_: str, reason: str, message: str) -> None:
        self.events.append((type_, reason, message))

    def run(self) -> CertificateReport:
        """One pass of an operator that has just started: it knows nothing from before."""
        api: Any = self.api
        secrets = ClusterSecrets(api, SecretReads(api))
        made = ClusterCertificates(api, secrets, self.lifetimes, self._emit, lambda: self.now)
        report = asyncio.run(made.make(self.context, self.body))
        self.body["status"] = {"conditions": [report.condition.to_json()]}
        return report

    def pair(self, secret: str) -> certificates.Pair:
        data = self.api.data(secret)
        return certificates.read_pair(data["tls.crt"], data["tls.key"])

    def reasons(self) -> list[str]:
        return [reason for _, reason, _ in self.events]

    def days(self, count: float, step: float = 1) -> CertificateReport:
        """Let days pass, with a pass after each."""
        for _ in range(int(count / step)):
            self.now += step * DAY_S
            report = self.run()
        return report


@dataclass
class Loaded:
    """What a member has loaded of a Secret, and what it will load when."""

    certificate: bytes
    bundle: bytes
    coming: list[tuple[float, bytes, bytes]] = field(default_factory=list)

    def look(self, now: float, data: Mapping[str, bytes], lag_s: float) -> None:
        while self.coming and self.coming[0][0] <= now:
            _, self.certificate, self.bundle = self.coming.pop(0)
        newest = self.coming[-1][1:] if self.coming else (self.certificate, self.bundle)
        if newest != (data["tls.crt"], data["ca.crt"]):
            # Updates reach a volume in their order.
            due = max([now + lag_s, *(item[0] for item in self.coming)])
            self.coming.append((due, data["tls.crt"], data["ca.crt"]))


def check(certificate: bytes, bundle: bytes, host: str, now: float) -> None:
    """Verify a server's certificate as a client that loaded this bundle; raises if it would not."""
    found = x509.load_pem_x509_certificate(certificate)
    moment = datetime.datetime.fromtimestamp(now, datetime.UTC)
    store = Store(x509.load_pem_x509_certificates(bundle))
    verifier = PolicyBuilder().store(store).time(moment).build_server_verifier(x509.DNSName(host))
    verifier.verify(found, [])


def test_members_always_trust_each_other_for_25_years() -> None:
    """The promise of a rotation: whatever each member has loaded, and however late, it verifies."""
    randomness = random.Random(5)
    world = World()
    world.run()
    secrets = ("orders-tls", "orders-peer-tls")
    members = [{name: Loaded(*_shown(world.api.data(name))) for name in secrets} for _ in range(3)]
    authorities, serials = set(), set()
    minutes_left, writes = 0, world.api.writes
    while world.now < START_S + 25 * YEAR_S:
        # By minutes while something is being loaded, else by days.
        world.now += MINUTE_S if minutes_left else DAY_S * randomness.uniform(5, 30)
        world.run()
        minutes_left = 12 if world.api.writes != writes else max(minutes_left - 1, 0)
        writes = world.api.writes
        for member in members:
            for name in secrets:
                member[name].look(world.now, world.api.data(name), randomness.uniform(0, LAG_S))
        authorities.add(world.api.data("orders-ca")["ca.crt"])
        for name, host in zip(secrets, ("orders.shop.svc", "orders-0"), strict=True):
            serials.add(world.api.data(name)["tls.crt"])
            # Members that have loaded the same need no check of their own.
            loaded = {(item[name].certificate, item[name].bundle) for item in members}
            for certificate, _ in loaded:
                for _, bundle in loaded:
                    check(certificate, bundle, host, world.now)
    # Every 243 days a certificate, twice; every 6.7 years an authority.
    assert len(authorities) == 4
    assert 74 <= len(serials) <= 84
    kinds = set(world.reasons())
    assert kinds == {"CertificateRenewed", "AuthorityMade", "AuthoritySwitched", "AuthorityDropped"}
    assert all(type_ == "Normal" for type_, _, _ in world.events)


def _shown(data: Mapping[str, bytes]) -> tuple[bytes, bytes]:
    return data["tls.crt"], data["ca.crt"]


def test_a_pass_writes_nothing_while_nothing_is_due() -> None:
    world = World()
    first = world.run()
    writes = world.api.writes
    assert writes == 3
    again = world.days(200, step=20)
    assert world.api.writes == writes
    assert first.condition == again.condition, "statuses are written on change only"
    assert again.condition.status == conditions.TRUE
    assert set(again.expiries) == {"orders-ca", "orders-tls", "orders-peer-tls"}
    assert world.events == []


def test_certificates_are_renewed_at_two_thirds_of_their_life() -> None:
    world = World()
    before = world.run()
    world.days(243, step=27)
    assert world.events == []
    report = world.days(1)
    assert world.reasons() == ["CertificateRenewed"] * 2
    assert report.expiries["orders-tls"] > before.expiries["orders-tls"] + 240 * DAY_S
    assert report.condition.message != before.condition.message
    assert "until 20" in world.events[0][2]


def test_trust_comes_before_a_new_authority_issues_and_goes_after_the_last_it_issued() -> None:
    world = World()
    world.run()
    first = world.api.data("orders-ca")["ca.crt"]
    while "AuthorityMade" not in world.reasons():
        world.days(10, step=10)
    coming = world.api.data("orders-ca")["next.crt"]
    made_at = world.now
    for name in ("orders-tls", "orders-peer-tls"):
        assert world.api.data(name)["ca.crt"] == first + coming
    while "AuthoritySwitched" not in world.reasons():
        assert world.api.data("orders-ca")["ca.crt"] == first
        world.days(5, step=5)
    assert world.now >= made_at + 30 * DAY_S
    ca = world.api.data("orders-ca")
    assert (ca["ca.crt"], ca["previous.crt"]) == (coming, first)
    assert "next.key" not in ca, "the old key is gone, the new one issues"
    for name in ("orders-tls", "orders-peer-tls"):
        pair = world.pair(name)
        assert certificates.issuer_of(pair, certificates.read_bundle(coming)) == coming
        assert world.api.data(name)["ca.crt"] == coming + first
    while "AuthorityDropped" not in world.reasons():
        world.days(10, step=10)
    assert world.api.data("orders-tls")["ca.crt"] == coming
    assert set(world.api.data("orders-ca")) == {"ca.crt", "ca.key"}


def test_an_operator_that_dies_after_any_write_is_followed_by_one_that_goes_on() -> None:
    """Each pass is one of a new operator; here it also does one write only."""
    whole, halting = World(), World()
    for world in (whole, halting):
        world.run()
    for _ in range(int(8 * YEAR_S / (40 * DAY_S))):
        whole.days(40, step=40)
        halting.now += 40 * DAY_S
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cluster_certificates, "STEPS_MAX", 1)
            writes = -1
            while writes != halting.api.writes:
                writes = halting.api.writes
                halting.run()
    assert sorted(whole.reasons()) == sorted(halting.reasons())
    assert "AuthorityDropped" in whole.reasons()


@pytest.mark.parametrize("secret", ["orders-tls", "orders-peer-tls"])
@pytest.mark.parametrize(
    "damage",
    [
        {"tls_key": None},
        {"tls_key": b"garbage"},
        {"tls_crt": b""},
        {"tls_crt": b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
        {"tls_key": Authority().issue("x").key},
        {"tls_crt": Authority().issue("x").certificate},
    ],
    ids=["no key", "garbage key", "no certificate", "garbage", "other key", "other certificate"],
)
def test_a_damaged_secret_is_made_anew_and_told(
    secret: str, damage: dict[str, bytes | None]
) -> None:
    world = World()
    world.run()
    world.api.put(secret, **damage)
    report = world.run()
    world.pair(secret)
    assert report.condition.status == conditions.TRUE
    [(type_, reason, message)] = world.events
    assert (type_, reason) == ("Warning", "CertificateReplaced")
    assert message.startswith(f"Secret {secret}: ")
    writes = world.api.writes
    world.run()
    assert world.api.writes == writes


def test_a_bundle_that_was_damaged_is_put_right() -> None:
    world = World()
    world.run()
    ca = world.api.data("orders-ca")["ca.crt"]
    certificate = world.api.data("orders-tls")["tls.crt"]
    for broken in (b"", b"garbage", ca + Authority().certificate):
        world.api.put("orders-tls", ca_crt=broken)
        world.run()
        assert world.api.data("orders-tls")["ca.crt"] == ca
    assert world.api.data("orders-tls")["tls.crt"] == certificate


@pytest.mark.parametrize("is_deleted", [True, False])
def test_a_lost_authority_is_replaced_and_the_old_stays_trusted_meanwhile(
    is_deleted: bool,
) -> None:
    world = World()
    world.run()
    world.days(1)
    old = world.api.data("orders-ca")["ca.crt"]
    leaf = world.api.data("orders-tls")["tls.crt"]
    if is_deleted:
        del world.api.found["orders-ca"]
    else:
        world.api.put("orders-ca", ca_key=b"garbage")
    world.run()
    new = world.api.data("orders-ca")["ca.crt"]
    assert new != old
    assert world.api.data("orders-tls")["ca.crt"] == new + old
    assert world.api.data("orders-tls")["tls.crt"] == leaf, "members do not know the new one yet"
    assert world.events[0][:2] == ("Warning", "AuthorityReplaced")
    world.now += 11 * MINUTE_S
    world.run()
    assert world.api.data("orders-tls")["tls.crt"] != leaf
    world.days(370, step=10)
    assert world.api.data("orders-tls")["ca.crt"] == new
    assert "previous.crt" not in world.api.data("orders-ca")


def test_new_names_get_a_new_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.run()
    world.days(1)
    names = secret_manifests.serving_names
    monkeypatch.setattr(
        secret_manifests, "serving_names", lambda found: (*names(found), "mq.example.org")
    )
    world.run()
    assert [message for _, _, message in world.events if "its names changed" in message]
    assert "mq.example.org" in world.pair("orders-tls").names


def test_two_operators_do_not_undo_each_others_work() -> None:
    """A write against what was read only; what the other wrote counts."""
    world, other = World(), World()
    other.api = world.api
    world.run()
    world.days(243, step=27)
    world.now = other.now = world.now + 2 * DAY_S
    world.api.before_write = lambda: _in_thread(other)
    world.run()
    assert sorted(other.reasons() + world.reasons()) == ["CertificateRenewed"] * 2
    fresh = World()
    fresh_other = World(api=fresh.api)
    fresh.api.before_write = lambda: _in_thread(fresh_other)
    fresh.run()
    assert fresh.api.writes == 3


def _in_thread(world: World) -> None:
    """Run a pass of another operator in the middle of one."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as threads:
        threads.submit(world.run).result()


@pytest.mark.parametrize("status", [403, 422])
def test_a_refusal_of_the_api_server_is_told_and_tried_again(status: int) -> None:
    """No right to write, or a Secret that somebody made immutable."""
    world = World()

    def refuse() -> None:
        raise ApiError(status, "field is immutable")

    world.run()
    world.now += 300 * DAY_S
    world.api.before_write = refuse
    report = world.run()
    assert report.condition.status == conditions.FALSE
    assert report.condition.message == "a Secret cannot be written: field is immutable"
    assert world.reasons() == ["CertificateRefused"]
    assert world.run().condition.status == conditions.TRUE


@pytest.mark.parametrize("status", [0, 429, 500])
def test_an_api_server_that_does_not_answer_is_no_refusal(status: int) -> None:
    world = World()

    def fail() -> None:
        raise ApiError(status, "busy")

    world.api.before_write = fail
    with pytest.raises(ApiError, match="busy"):
        world.run()


def users_secret(world: World, name: str, **data: bytes) -> None:
    world.api.found[name] = {"metadata": {"name": name, "resourceVersion": "u"}, "data": {}}
    world.api.put(name, **data)


def test_a_users_own_certificate_is_never_written_but_its_expiry_is_told() -> None:
    world = World(spec={"tls": {"secretName": "corp", "caSecretName": "corp-ca"}}, now=0)
    pair = Authority().issue("*.orders-nodes.shop.svc", seconds=60 * DAY_S)
    end = certificates.read_pair(pair.certificate, pair.key).validity.not_after
    world.now = end - 50 * DAY_S
    users_secret(world, "corp", tls_crt=pair.certificate, tls_key=pair.key)
    users_secret(world, "corp-ca", ca_crt=pair.certificate)
    before = copy.deepcopy(world.api.found["corp"])
    assert world.run().condition.status == conditions.TRUE
    assert "orders-tls" not in world.api.found
    world.now = end - 9 * DAY_S
    report = world.run()
    assert (report.condition.status, report.condition.reason) == (conditions.FALSE, "Expiring")
    assert "the operator does not renew it" in report.condition.message
    assert report.expiries["corp"] == end
    world.days(3)
    assert world.reasons() == ["CertificateExpiring"], "told once"
    world.now = end + 1
    assert world.run().condition.reason == "Expired"
    world.api.put("corp", tls_key=b"garbage")
    message = world.run().condition.message
    assert message.startswith("Secret corp: the key cannot be read: write both tls.crt and tls.key")
    assert "(TLS certificate: subject CN=*.orders-nodes.shop.svc, issuer CN=authority, " in message
    assert world.reasons() == ["CertificateExpiring", "CertificateExpired", "CertificateUnusable"]
    world.api.found["corp"]["metadata"]["resourceVersion"] = "x"
    before["metadata"]["resourceVersion"] = "x"
    before["data"]["tls.key"] = world.api.found["corp"]["data"]["tls.key"]
    assert world.api.found["corp"] == before


@pytest.mark.parametrize("name", ["orders-ca", "orders-tls", "orders-peer-tls"])
def test_a_secret_of_somebody_else_is_never_written(name: str) -> None:
    """By the names that the operator uses itself: made by hand before the cluster."""
    world = World()
    users_secret(world, name, tls_crt=b"garbage", ca_crt=b"garbage")
    before = copy.deepcopy(world.api.found[name])
    report = world.run()
    assert world.api.found[name] == before
    assert report.condition.reason == "Unusable"
    assert f"Secret {name}: " in report.condition.message


def test_an_authority_of_the_users_own_issues_and_is_not_rotated() -> None:
    world = World()
    ca, key = certificates.make_ca("corp", 3 * YEAR_S, START_S)
    other, _ = certificates.make_ca("corp", 3 * YEAR_S, START_S)
    users_secret(world, "orders-ca", ca_crt=ca + other, ca_key=key)
    world.run()
    assert world.api.data("orders-tls")["ca.crt"] == ca + other
    before = copy.deepcopy(world.api.found["orders-ca"])
    report = world.days(3 * 365 - 20, step=5)
    assert world.api.found["orders-ca"] == before
    assert 3 * 2 <= len(world.events) <= 6 * 2, "no storm of renewals before its end"
    report = world.days(10)
    assert report.condition.reason == "Expiring"
    report = world.days(15)
    assert report.condition.reason == "Expired"


def test_an_operator_that_slept_for_years_starts_anew() -> None:
    world = World()
    world.run()
    world.now += 11 * YEAR_S
    report = world.run()
    assert report.condition.status == conditions.TRUE
    assert "AuthorityReplaced" in world.reasons()


def test_marks_that_somebody_spoiled_delay_and_damage_nothing() -> None:
    world = World()
    world.run()
    certificate = world.api.data("orders-tls")["tls.crt"]
    for spoiled in ("", "soon", "-1", "9" * 40, "Ⅷ"):
        marks = world.api.found["orders-ca"]["metadata"]["annotations"]
        marks[cluster_certificates.CURRENT_SINCE] = spoiled
        marks[cluster_certificates.COMING_SINCE] = spoiled
        marks[cluster_certificates.PREVIOUS_UNTIL] = spoiled
        assert world.run().condition.status == conditions.TRUE
    assert world.api.data("orders-tls")["tls.crt"] == certificate


def test_a_coming_authority_that_was_damaged_is_made_anew_and_known_first() -> None:
    world = World()
    world.run()
    while "AuthorityMade" not in world.reasons():
        world.days(10, step=10)
    world.days(29)
    damaged = world.api.data("orders-ca")["next.crt"]
    world.api.put("orders-ca", next_key=None)
    world.days(5)
    ca = world.api.data("orders-ca")
    assert ca["next.crt"] != damaged
    assert world.reasons().count("AuthorityMade") == 2
    assert "AuthoritySwitched" not in world.reasons()
    assert world.api.data("orders-tls")["ca.crt"] == ca["ca.crt"] + ca["next.crt"]


def test_an_authority_that_will_not_live_through_the_notice_is_followed_at_once() -> None:
    """A life of weeks, by a setting: members still know the next one before it issues."""
    world = World(Lifetimes(authority_s=60 * DAY_S, certificate_s=20 * DAY_S))
    world.run()
    first = world.api.data("orders-ca")["ca.crt"]
    while "AuthorityMade" not in world.reasons():
        world.days(1)
    world.now += 9 * MINUTE_S
    world.run()
    assert world.api.data("orders-ca")["ca.crt"] == first
    world.now += 2 * MINUTE_S
    report = world.run()
    assert world.api.data("orders-ca")["previous.crt"] == first
    assert report.condition.status == conditions.TRUE


@pytest.mark.parametrize("kind", ["rsa", "leaf", "other"])
def test_an_authority_that_can_issue_nothing_is_replaced(kind: str) -> None:
    world = World()
    world.run()
    if kind == "rsa":
        key = rsa.generate_private_key(65537, 2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        world.api.put("orders-ca", ca_key=pem)
    elif kind == "leaf":
        pair = Authority().issue("x")
        world.api.put("orders-ca", ca_crt=pair.certificate, ca_key=pair.key)
    else:
        world.api.put("orders-ca", ca_key=Authority().issue("x").key)
    report = world.run()
    assert report.condition.status == conditions.TRUE
    assert world.reasons() == ["AuthorityReplaced"]


def test_it_is_known_when_to_look_again() -> None:
    """Lives of seconds are for tests of others; the engine looks every five minutes anyway."""
    assert rotation.health((), START_S) == (True, "Valid", "there are no certificates")
    world = World()
    report = world.run()
    assert report.again_s == pytest.approx(world.lifetimes.settle_s)
    world.now += 700
    report = world.run()
    assert report.again_s is not None
    assert 240 * DAY_S < report.again_s < 244 * DAY_S


def test_an_authority_that_somebody_put_in_place_is_known_before_it_issues() -> None:
    """Put back from a backup, or of the company: what is in use stays trusted."""
    world = World()
    world.run()
    world.days(1)
    old = world.api.data("orders-ca")["ca.crt"]
    leaf = world.api.data("orders-tls")["tls.crt"]
    new, key = certificates.make_ca("corp", now_s=world.now)
    world.api.put("orders-ca", ca_crt=new, ca_key=key)
    world.run()
    assert world.api.data("orders-tls")["ca.crt"] == new + old
    assert world.api.data("orders-tls")["tls.crt"] == leaf
    world.now += 11 * MINUTE_S
    world.run()
    for secret in ("orders-tls", "orders-peer-tls"):
        pair = world.pair(secret)
        assert certificates.issuer_of(pair, certificates.read_bundle(new)) == new
    assert world.reasons() == ["AuthorityReplaced", *["CertificateRenewed"] * 2]


def test_a_certificate_of_nobody_known_is_replaced() -> None:
    world = World()
    world.run()
    world.days(1)
    pair = Authority().issue("orders.shop.svc", seconds=10 * YEAR_S)
    world.api.put("orders-tls", tls_crt=pair.certificate, tls_key=pair.key)
    world.run()
    assert "nobody knows who issued it" in world.events[0][2]
