"""Specs of upstreams and shovels: where they connect, with what, and what they hide."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import (
    ClusterAddress,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    Meta,
    Reference,
    TopologySpec,
    Waiting,
)

from brokerd.federation import shovel
from tests.operator.resources import resource

META = Meta("default", "thing")
WAREHOUSE = Inputs(
    clusters={"default/warehouse": ClusterAddress(("10.0.0.1:5672",), "admin", "p@ss/1")}
)


def parse(kind: str, /, **spec: Any) -> TopologySpec:
    parsed = registry.parse(resource(kind, **spec))
    assert isinstance(parsed, TopologySpec), parsed
    return parsed


def desired(kind: str, inputs: Inputs = WAREHOUSE, /, **spec: Any) -> tuple[DesiredObject, ...]:
    objects = registry.desired(parse(kind, **spec), META, inputs)
    assert isinstance(objects, tuple), objects
    return objects


def test_upstream_of_a_cluster_takes_its_address_and_administrator() -> None:
    spec = parse("FederationUpstream", exchange="stock", reconnectDelay="1500ms")
    assert spec.references(META) == (Reference("BrokerCluster", "default", "warehouse"),)
    assert isinstance(registry.desired(spec, META), Waiting)
    (found,) = registry.desired(spec, META, WAREHOUSE)  # type: ignore[misc]
    assert found.identity == Identity("parameter", "/", "federation-upstream/thing")
    assert found.write_only == ("value.uri",)
    assert found.spec["value"] == {
        "uri": "amqp://admin:p%40ss%2F1@10.0.0.1:5672",
        "exchange": "stock",
        "prefetch-count": 1000,
        "ack-mode": "on-confirm",
        "max-hops": 1,
        "reconnect-delay": 1.5,
        "trust-user-id": False,
        "queue-type": "classic",
        "resource-cleanup-mode": "default",
        "channel-use-mode": "multiple",
    }


def test_upstream_with_hosts_quotes_vhost_and_addresses() -> None:
    inputs = Inputs(secrets={"default/login": {"username": b"u", "password": b"p"}})
    (found,) = desired(
        "FederationUpstream",
        inputs,
        credentialsSecretRef={"name": "login"},
        endpoints=[{"host": "::1", "vhost": "/"}, {"host": "b.example", "tls": True}],
    )
    assert found.spec["value"]["uri"] == ["amqp://u:p@[::1]:5672/%2F", "amqps://u:p@b.example:5671"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"amqp://a\namqps://b/v\n", ["amqp://a", "amqps://b/v"]),
        (b"amqp://a , amqp://b", ["amqp://a", "amqp://b"]),
        (b"http://a", None),
        (b"", None),
        (b"amqp://[", None),
        (b"\xff", None),
    ],
)
def test_upstream_secret_holds_one_or_more_uris(text: bytes, expected: list[str] | None) -> None:
    spec = parse("FederationUpstream", endpoints=None, uriSecretRef={"name": "s"})
    found = registry.desired(spec, META, Inputs(secrets={"default/s": {"uri": text}}))
    if expected is None:
        assert isinstance(found, Invalid)
        assert "amqp://a" not in found.message
    else:
        assert isinstance(found, tuple)
        assert found[0].spec["value"]["uri"] == expected


CA = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
OLD_CA = CA.replace(b"MIIB", b"MIIA")
KEY = b"-----BEGIN PRIVATE KEY-----\nMIIC\n-----END PRIVATE KEY-----\n"


def with_ca(data: dict[str, bytes] | None, **ref: str) -> object:
    """The objects of an upstream with a URI, whose authorities are in the Secret `trust`."""
    spec = parse(
        "FederationUpstream",
        endpoints=None,
        uriSecretRef={"name": "s"},
        tls={"caSecretRef": {"name": "trust", **ref}},
    )
    assert Reference("Secret", "default", "trust") in spec.references(META)
    secrets = {"default/s": {"uri": b"amqps://a"}}
    if data is not None:
        secrets["default/trust"] = data
    return registry.desired(spec, META, Inputs(secrets=secrets))


def test_authorities_of_an_upstream_come_from_a_secret_without_what_else_is_there() -> None:
    found = with_ca({"ca.crt": KEY + b"# ours\r\n" + CA + OLD_CA + CA, "bundle": OLD_CA})
    assert isinstance(found, tuple)
    assert found[0].spec["value"]["ca-certificates"] == (CA + OLD_CA).decode()
    found = with_ca({"bundle": OLD_CA}, key="bundle")
    assert isinstance(found, tuple)
    assert found[0].spec["value"]["ca-certificates"] == OLD_CA.decode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "WaitingForSecret"),
        ({"tls.crt": CA}, "WaitingForSecret"),
        ({"ca.crt": b""}, "InvalidSpec"),
        ({"ca.crt": KEY}, "InvalidSpec"),
        ({"ca.crt": b"\xff"}, "InvalidSpec"),
        ({"ca.crt": CA.replace(b"MIIB", b"A" * 65_536)}, "InvalidSpec"),
    ],
)
def test_authorities_that_cannot_be_used_say_why(
    data: dict[str, bytes] | None, reason: str
) -> None:
    found = with_ca(data)
    assert isinstance(found, Waiting | Invalid)
    assert found.reason == reason
    assert "trust" in found.message or "65536" in found.message


@pytest.mark.parametrize("is_tls", [True, False])
def test_authorities_of_a_named_cluster_are_trusted_where_it_has_tls(is_tls: bool) -> None:
    spec = parse("FederationUpstream")
    clusters = {"default/warehouse": ClusterAddress(("h:1",), "u", "p", is_tls, CA)}
    (found,) = registry.desired(spec, META, Inputs(clusters=clusters))  # type: ignore[misc]
    assert found.spec["value"]["uri"] == f"amqp{'s' if is_tls else ''}://u:p@h:1"
    assert found.spec["value"].get("ca-certificates") == (CA.decode() if is_tls else None)


def test_a_shovel_has_rabbitmqs_keys_and_hides_its_uris() -> None:
    spec = registry.parse(
        resource(
            "Shovel",
            source={
                "exchange": "e",
                "exchangeKey": "k.#",
                "deleteAfter": 5,
                "consumerArguments": [{"name": "x-priority", "integer": 4}],
            },
            destination={
                "uriSecretRef": {"name": "far"},
                "queue": "q",
                "queueArguments": [{"name": "x-queue-type", "string": "quorum"}],
                "addForwardHeaders": True,
                "publishProperties": {"deliveryMode": 2, "appId": "a"},
            },
            vhost="a/b",
            reconnectDelay="500ms",
        )
    )
    assert isinstance(spec, TopologySpec)
    assert registry.desired(spec, META, Inputs()) == Waiting(
        "WaitingForSecret", "Secret far does not exist"
    )
    inputs = Inputs(secrets={"default/far": {"uri": b"amqp://a:b@h/v,amqp://a:b@i/v"}})
    (found,) = registry.desired(spec, META, inputs)  # type: ignore[misc]
    assert found.identity == Identity("parameter", "a/b", "shovel/thing")
    assert found.write_only == ("value.src-uri", "value.dest-uri")
    value = found.spec["value"]
    assert value == {
        "src-uri": "amqp:///a%2Fb",
        "src-exchange": "e",
        "src-exchange-key": "k.#",
        "src-consumer-args": {"x-priority": 4},
        "src-prefetch-count": 1000,
        "src-delete-after": 5,
        "dest-uri": ["amqp://a:b@h/v", "amqp://a:b@i/v"],
        "dest-queue": "q",
        "dest-queue-args": {"x-queue-type": "quorum"},
        "dest-add-forward-headers": True,
        "dest-add-timestamp-header": False,
        "dest-publish-properties": {"delivery_mode": 2, "app_id": "a"},
        "ack-mode": "on-confirm",
        "reconnect-delay": 0.5,
    }
    # What the operator writes is what the broker takes.
    assert shovel.parse("a/b", "thing", value).delete_after == 5


def test_upstream_set_lists_members_with_overrides() -> None:
    (found,) = desired(
        "FederationUpstreamSet", upstreams=[{"name": "b"}, {"name": "a", "maxHops": 2}]
    )
    assert found.identity == Identity("parameter", "/", "federation-upstream-set/thing")
    assert found.spec == {"value": [{"upstream": "a", "max-hops": 2}, {"upstream": "b"}]}
