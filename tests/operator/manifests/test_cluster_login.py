"""The operator's certificate for a BrokerCluster, and which Secrets it builds upon (ADR 21)."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from brokerd_operator.manifests import naming
from brokerd_operator.manifests import secrets as secret_manifests
from brokerd_operator.reconcile.rotation import Lifetimes
from brokerd_operator.sources import certificates
from brokerd_operator.sources.cluster_certificates import ClusterCertificates
from brokerd_operator.sources.cluster_secrets import BeingRemoved, ClusterSecrets
from brokerd_operator.sources.kubernetes_clusters import is_login, text_of
from brokerd_operator.sources.secret_reads import SecretReads
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.operator.manifests.test_manifests import context

LIFE_S = certificates.OPERATOR_LIFE.total_seconds()


class Api:
    """Secrets by their path."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self.patches: list[Any] = []

    async def get(self, path: str) -> Any:
        return self.objects.get(path.rpartition("/")[2])

    async def create(self, manifest: Any) -> None:
        self.objects.setdefault(manifest["metadata"]["name"], manifest)

    async def merge(self, path: str, patch: Any) -> None:
        self.patches.append((path.rpartition("/")[2], patch))


async def _say_nothing(*_: object) -> None:
    """No Events."""


class Rig:
    """What the driver has, over a fake API, and a clock."""

    def __init__(self) -> None:
        self.now_s = 1e9
        self.api = Api()
        api: Any = self.api
        self.secrets = ClusterSecrets(api, SecretReads(api))
        self.certificates = ClusterCertificates(
            api, self.secrets, Lifetimes(), _say_nothing, lambda: self.now_s
        )

    def put_authority(self, ca: bytes, key: bytes) -> None:
        manifest = secret_manifests.ca_secret(context(), {"ca.crt": ca, "ca.key": key})
        self.api.objects[manifest["metadata"]["name"]] = manifest

    async def shown(self) -> Any:
        return await self.certificates.of_operator(context())


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_certificate_is_renewed_at_two_thirds_and_with_another_authority(rig: Rig) -> None:
    rig.put_authority(*certificates.make_ca("one"))
    first = await rig.shown()
    assert first is not None
    rig.now_s += LIFE_S * 0.66
    assert await rig.shown() is first, "so that connections stand"
    rig.now_s += LIFE_S * 0.02
    second = await rig.shown()
    assert second != first
    rig.put_authority(*certificates.make_ca("one"))
    third = await rig.shown()
    assert third != second
    rig.certificates.forget(context().meta)
    assert await rig.shown() != third


@pytest.mark.parametrize(
    "pair", [(b"", b""), (b"no PEM", b"no PEM"), (certificates.make_ca("a")[0], b"x")]
)
async def test_authority_that_is_none_leaves_the_password(
    rig: Rig, pair: tuple[bytes, bytes]
) -> None:
    assert await rig.shown() is None
    rig.put_authority(*certificates.make_ca("one"))
    assert await rig.shown() is not None
    rig.put_authority(*pair)
    assert await rig.shown() is None


def test_certificate_can_nothing_but_be_shown_by_a_client_for_a_day() -> None:
    made = certificates.make_operator_certificate(*certificates.make_ca("one"))
    found = x509.load_pem_x509_certificate(made.certificate)
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [item.value for item in names] == ["brokerd://operator"]
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    life = found.not_valid_after_utc - found.not_valid_before_utc
    assert life == certificates.OPERATOR_LIFE + certificates.BACKDATED
    assert life < datetime.timedelta(hours=25)


async def test_secrets_of_the_cluster_before_are_waited_for_and_kept_ones_taken_up(
    rig: Rig,
) -> None:
    made = context()
    admin = secret_manifests.admin_secret(made, "of the data")
    assert admin is not None
    # As an earlier release made it: it would go with the BrokerCluster that is gone.
    owner = {**secret_manifests.cluster_secret(made, "")["metadata"]["ownerReferences"][0]}
    admin["metadata"]["ownerReferences"] = [{**owner, "uid": "before"}]
    rig.api.objects["orders-admin"] = admin
    stale = secret_manifests.cluster_secret(made, "stale")
    stale["metadata"]["ownerReferences"] = [{**owner, "uid": "before"}]
    rig.api.objects["orders-cluster"] = stale
    with pytest.raises(BeingRemoved):
        await rig.secrets.make(made)
    [(name, patch)] = rig.api.patches
    assert name == "orders-admin"
    assert patch["metadata"]["ownerReferences"] == []
    del admin["metadata"]["ownerReferences"]
    with pytest.raises(BeingRemoved, match="orders-cluster"):
        await rig.secrets.make(made)
    del rig.api.objects["orders-cluster"]
    await rig.secrets.make(made)
    assert (await rig.secrets.read(made, "orders-admin"))["password"] == b"of the data"
    assert (await rig.secrets.read(made, "orders-cluster"))["secret"] != b"stale"


async def test_a_secret_of_somebody_else_is_used_if_it_will_do_and_is_never_written(
    rig: Rig,
) -> None:
    made = context()
    theirs = {"metadata": {"name": "orders-admin"}, "data": naming.encoded({"token": "x"})}
    rig.api.objects["orders-admin"] = theirs
    assert "Secret orders-admin was not made by the operator" in await rig.secrets.conflict(made)
    theirs["data"] = naming.encoded({"username": "a", "password": "b"})
    assert await rig.secrets.conflict(made) == ""
    await rig.secrets.make(made)
    assert rig.api.patches == []
    # One that the spec names is the user's, whatever is in it.
    theirs["data"] = {}
    named = context(admin={"secretRef": {"name": "orders-admin"}})
    assert await rig.secrets.conflict(named) == ""


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("orders-tls", ()),
        # As cert-manager makes it for an Ingress, of an issuer without an authority to show.
        ("orders-tls", ("tls.crt", "tls.key")),
        ("orders-peer-tls", ("tls.crt", "tls.key")),
        ("orders-ca", ("ca.crt",)),
    ],
)
async def test_a_certificate_of_somebody_else_that_no_member_can_start_with_is_a_conflict(
    rig: Rig, name: str, keys: tuple[str, ...]
) -> None:
    # Given away it would be of no more use, so that is neither advised nor obeyed.
    given = {"name": name, "annotations": {naming.ADOPT: "orders"}}
    data = naming.encoded(dict.fromkeys(keys, "x"))
    theirs = {"kind": "Secret", "metadata": given, "data": data}
    rig.api.objects[name] = theirs
    said = await rig.secrets.conflict(context())
    assert f"Secret {name} was not made by the operator" in said
    assert naming.ADOPT not in said
    every = dict.fromkeys(("tls.crt", "tls.key", "ca.crt", "ca.key"), "x")
    theirs["data"] = naming.encoded(every)
    assert await rig.secrets.conflict(context()) == ""


async def test_the_name_of_a_certificate_that_is_not_made_is_free(rig: Rig) -> None:
    rig.api.objects["orders-tls"] = {"metadata": {"name": "orders-tls"}, "data": {}}
    assert await rig.secrets.conflict(context(tls={"secretName": "corp"})) == ""


def test_what_is_no_text_is_no_login() -> None:
    assert is_login({"username": b"a", "password": b"b"})
    assert not is_login({"username": b"a"})
    assert not is_login({"username": b"a", "password": b"\xff"})
    assert text_of({"password": b"\xff"}, "password") == ""
