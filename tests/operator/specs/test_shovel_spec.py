"""What a resource of the kind Shovel asks of the broker."""

from __future__ import annotations

import pytest
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import (
    ClusterAddress,
    Identity,
    Inputs,
    Meta,
    Reference,
    TopologySpec,
    Waiting,
)

from brokerd.federation import shovel
from brokerd.federation.errors import UpstreamError
from tests.operator.resources import resource

META = Meta("default", "thing")
AUTHORITY = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


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
                "unroutable": "keep",
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
        "dest-unroutable": "keep",
        "dest-publish-properties": {"delivery_mode": 2, "app_id": "a"},
        "ack-mode": "on-confirm",
        "reconnect-delay": 0.5,
    }
    # What the operator writes is what the broker takes.
    assert shovel.parse("a/b", "thing", value).delete_after == 5


def test_an_end_is_another_broker_by_its_resource() -> None:
    """Address, login and authority of a BrokerCluster are filled in, as for an upstream."""
    archive = ClusterAddress(
        ("archive.default.svc:5671",), "admin", "p/w", is_tls=True, authorities=AUTHORITY
    )
    spec = registry.parse(
        resource(
            "Shovel",
            vhost="a/b",
            source={"queue": "old"},
            destination={
                "endpoints": [
                    {"clusterRef": {"name": "archive"}},
                    {"clusterRef": {"name": "archive"}, "vhost": "kept"},
                ],
                "queue": "q",
            },
        )
    )
    assert isinstance(spec, TopologySpec)
    assert spec.references(META) == (Reference("BrokerCluster", "default", "archive"),)
    assert registry.desired(spec, META, Inputs()) == Waiting(
        "WaitingForUpstream", "BrokerCluster archive has no address"
    )
    inputs = Inputs(clusters={"default/archive": archive})
    (found,) = registry.desired(spec, META, inputs)  # type: ignore[misc]
    value = found.spec["value"]
    # Without a vhost the broker would take /, not the resource's.
    assert value["dest-uri"] == [
        "amqps://admin:p%2Fw@archive.default.svc:5671/a%2Fb",
        "amqps://admin:p%2Fw@archive.default.svc:5671/kept",
    ]
    assert value["dest-ca-certificates"] == AUTHORITY.decode()
    assert "src-ca-certificates" not in value
    taken = shovel.parse("a/b", "thing", value)
    assert taken.destination.authorities == AUTHORITY.decode()
    assert taken.authorities is None
    assert "CERTIFICATE" not in repr(taken)


def test_an_end_is_another_broker_by_host_and_login() -> None:
    spec = registry.parse(
        resource(
            "Shovel",
            source={
                "endpoints": [{"host": "h", "tls": True}, {"host": "::1", "port": 7, "vhost": "v"}],
                "credentialsSecretRef": {"name": "login"},
                "tls": {"caSecretRef": {"name": "trust", "key": "pem"}},
                "queue": "q",
            },
            destination={"vhost": "there", "queue": "q"},
        )
    )
    assert isinstance(spec, TopologySpec)
    assert {each.name for each in spec.references(META)} == {"login", "trust"}
    login = {"username": b"u", "password": b"p"}
    inputs = Inputs(secrets={"default/login": login})
    assert registry.desired(spec, META, inputs) == Waiting(
        "WaitingForSecret", "Secret trust does not exist"
    )
    inputs = Inputs(secrets={"default/login": login, "default/trust": {"pem": AUTHORITY}})
    (found,) = registry.desired(spec, META, inputs)  # type: ignore[misc]
    value = found.spec["value"]
    assert value["src-uri"] == ["amqps://u:p@h:5671/%2F", "amqp://u:p@[::1]:7/v"]
    assert value["src-ca-certificates"] == AUTHORITY.decode()
    assert value["dest-uri"] == "amqp:///there"
    taken = shovel.parse("/", "thing", value)
    # Other authorities: the shovel connects anew.
    assert taken != shovel.parse(
        "/", "thing", value | {"src-ca-certificates": AUTHORITY.decode() * 2}
    )


@pytest.mark.parametrize("value", ["no certificate", 5, "-----BEGIN PRIVATE KEY-----"])
def test_what_is_no_authority_is_refused(value: object) -> None:
    definition = {"src-uri": "amqp://", "src-queue": "a", "dest-uri": "amqp://", "dest-queue": "b"}
    with pytest.raises(UpstreamError, match="dest-ca-certificates"):
        shovel.parse("/", "thing", definition | {"dest-ca-certificates": value})
