"""URIs of federation upstreams on their way into the catalog, and out of it."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.catalog import catalog_commands
from brokerd.federation import upstream
from brokerd.federation.errors import UpstreamError
from brokerd.server.catalog import sealed_parameters
from brokerd.server.catalog.keyring import Keyring
from tests.unit.core.catalog_driver import CatalogDriver

OLD, NEW = bytes(range(32)), bytes(reversed(range(32)))
URI = "amqp://user:hunter2@host"
NAME = "federation-upstream/up"


class Cluster:
    """A catalog whose parameters are written by members with some keys."""

    def __init__(self) -> None:
        self.catalog = CatalogDriver()
        self.view = self.catalog.view

    def put(self, value: Any, ring: Keyring, name: str = NAME, **more: Any) -> dict[str, Any]:
        put = catalog_commands.put("parameter", "/", name, {"value": value}, cause="admin", **more)
        operation = catalog_commands.batch([put])
        sealed_parameters.seal(operation, self.view, ring)
        (reply,) = self.catalog.do(operation)["results"]
        return dict(reply)

    def stored(self, name: str = NAME) -> Any:
        spec = self.view.spec("parameter", "/", name)
        assert spec is not None
        return spec["value"]

    def opened(self, ring: Keyring) -> Any:
        component, _, name = NAME.partition("/")
        found = self.view.parameters("/", component)
        return sealed_parameters.of_vhost("/", component, found, ring)[name]


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_the_catalog_holds_no_password(cluster: Cluster) -> None:
    """SEC-20: nor does its snapshot; links get it."""
    ring = Keyring([NEW])
    uris = [URI, "amqp://host/plain", "amqps://host?password=hunter2", 5]
    assert cluster.put({"uri": uris, "max-hops": 2}, ring)["code"] == catalog_commands.OK
    assert b"hunter2" not in cluster.catalog.machine.snapshot()
    assert cluster.stored()["uri"][1] == "amqp://host/plain"
    assert cluster.opened(ring) == {"uri": uris, "max-hops": 2}


def test_the_same_definition_again_is_no_change(cluster: Cluster) -> None:
    """R-FX-17: as for the operator, which writes what is there already."""
    ring = Keyring([NEW])
    cluster.put({"uri": URI}, ring)
    before = cluster.stored()
    assert cluster.put({"uri": URI}, ring)["code"] == catalog_commands.UNCHANGED
    assert cluster.stored() == before
    assert cluster.put({"uri": URI + "2"}, ring)["code"] == catalog_commands.OK
    assert cluster.opened(ring) == {"uri": URI + "2"}


@pytest.mark.parametrize("value", [{"max-hops": 3}, {"uri": None, "max-hops": 3}])
def test_a_definition_without_a_uri_keeps_the_one_that_is_there(
    cluster: Cluster, value: dict[str, Any]
) -> None:
    """An import of an export without passwords takes none away."""
    ring = Keyring([NEW])
    cluster.put({"uri": URI}, ring)
    assert cluster.put(value, ring)["code"] == catalog_commands.OK
    assert cluster.opened(ring) == {"uri": URI, "max-hops": 3}
    # It does not undo what somebody set meanwhile, either.
    put = catalog_commands.put("parameter", "/", NAME, {"value": {}}, cause="admin")
    sealed_parameters.seal(put, cluster.view, ring)
    cluster.put({"uri": URI + "2"}, ring)
    assert cluster.catalog.do(put)["code"] == catalog_commands.PRECONDITION
    cluster.put({}, ring, "federation-upstream/new")
    assert cluster.stored("federation-upstream/new") == {}


def test_plain_and_old_ones_are_sealed_anew_at_the_next_write(cluster: Cluster) -> None:
    """A cluster that had no keys, and one whose keys are rotated."""
    cluster.put({"uri": URI}, Keyring([]))
    assert cluster.stored() == {"uri": URI}
    assert cluster.opened(Keyring([OLD])) == {"uri": URI}
    for ring in (Keyring([OLD]), Keyring([NEW, OLD])):
        cluster.put({}, ring)
        assert ring.is_current(cluster.stored()["uri"])
    assert cluster.opened(Keyring([NEW])) == {"uri": URI}


def test_a_key_that_is_missing_is_an_error_of_the_link(cluster: Cluster) -> None:
    cluster.put({"uri": URI}, Keyring([OLD]))
    for ring in (Keyring([NEW]), Keyring([]), Keyring([], "no file")):
        with pytest.raises(UpstreamError, match="uri is encrypted with key") as refused:
            upstream.parse("up", cluster.opened(ring))
        assert "hunter2" not in str(refused.value)
    # A member without the key leaves what it cannot read as it is.
    before = cluster.stored()["uri"]
    assert cluster.put({"max-hops": 2}, Keyring([NEW]))["code"] == catalog_commands.OK
    assert cluster.stored() == {"uri": before, "max-hops": 2}
    assert cluster.opened(Keyring([OLD]))["uri"] == URI


def test_a_password_is_not_stored_otherwise_than_was_asked_for(cluster: Cluster) -> None:
    reply = cluster.put({"uri": URI}, Keyring([], "no file of keys"))
    assert reply["code"] == catalog_commands.REFUSED
    assert reply["text"] == "uri cannot be stored: no file of keys"
    assert cluster.put({"uri": "amqp://host"}, Keyring([], "no file"))["code"] == "OK"
    sealed = Keyring([NEW]).seal(URI, "another object")
    reply = cluster.put({"uri": sealed}, Keyring([NEW]))
    assert reply["code"] == catalog_commands.REFUSED


@pytest.mark.parametrize(
    ("name", "value"),
    [("federation-upstream-set/s", [{"upstream": "up"}]), ("other/x", {"uri": URI}), (NAME, "x")],
)
def test_other_parameters_are_left_alone(cluster: Cluster, name: str, value: Any) -> None:
    cluster.put(value, Keyring([NEW]), name)
    assert cluster.stored(name) == value
    spec = {"value": value}
    shown = sealed_parameters.exported(name, "/", spec, Keyring([NEW]), with_passwords=False)
    assert shown == spec


def test_an_export_has_passwords_only_if_it_is_asked_for_them(cluster: Cluster) -> None:
    """SEC-20: what holds none is always there; what cannot be opened never is."""
    ring = Keyring([NEW])

    def exported(with_passwords: bool, ring: Keyring = ring) -> Any:
        spec = {"value": cluster.stored()}
        return sealed_parameters.exported(NAME, "/", spec, ring, with_passwords=with_passwords)

    cluster.put({"uri": [URI], "max-hops": 2}, ring)
    assert exported(True) == {"value": {"uri": [URI], "max-hops": 2}}
    assert exported(False) == exported(True, Keyring([OLD])) == {"value": {"max-hops": 2}}
    cluster.put({"uri": "amqp://host"}, ring)
    assert exported(True) == exported(False) == {"value": {"uri": "amqp://host"}}
    cluster.put({"uri": URI}, Keyring([]))
    assert exported(False) == {"value": {}}


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        (URI, "amqp://host"),
        ("amqps://user:hunter2@[::1]:5671/a%2fb?password=hunter2", "amqps://[::1]:5671/a%2fb"),
        ("amqp://host/plain", "amqp://host/plain"),
        ("amqp://user@/v", "amqp:///v"),
        ([URI, "amqp://other"], ["amqp://host", "amqp://other"]),
        # A password that was not escaped: where the host begins is for nobody to guess.
        ("amqp://user:12/hunter2@host", None),
        ("amqp://user:12?hunter2@host", None),
        ("amqp://user:12#hunter2@host", None),
        ("amqp://host?password=hunter2@3", None),
        ("user:hunter2@host", None),
        ("amqp://[user:hunter2@host", None),
        ([URI, 5], None),
    ],
)
def test_listings_show_uris_without_who_logs_in(cluster: Cluster, uri: Any, shown: Any) -> None:
    """SEC-20: where a link goes is no secret; in doubt a URI is left out."""
    ring = Keyring([NEW])
    cluster.put({"uri": uri, "max-hops": 2}, ring)
    found = sealed_parameters.listed(NAME, "/", cluster.stored(), ring)
    assert found == {"max-hops": 2} | ({} if shown is None else {"uri": shown})


def test_what_no_key_opens_is_not_listed(cluster: Cluster) -> None:
    cluster.put({"uri": [URI, "amqp://host"]}, Keyring([NEW]))
    assert sealed_parameters.listed(NAME, "/", cluster.stored(), Keyring([OLD])) == {}
    assert sealed_parameters.listed(NAME, "/", "x", Keyring([OLD])) == "x"
