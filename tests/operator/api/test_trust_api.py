"""Authorities of upstreams from a real API server into a broker: of a Secret, and of a cluster."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from brokerd_operator.specs.model import Identity

from tests.authorities import Authority
from tests.operator.api import test_operator_api
from tests.operator.broker_thread import BrokerThread
from tests.operator.operator_process import Namespace, of_connection, wait_for
from tests.operator.resources import resource

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(400)]

api = test_operator_api.api
broker = test_operator_api.broker
namespace = test_operator_api.namespace
operator = test_operator_api.operator
connected = test_operator_api.connected


def secret(name: str, **data: bytes) -> dict[str, Any]:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def trusted(broker: BrokerThread, name: str) -> bytes | None:
    """The authorities in the broker's definition of an upstream."""
    found = broker.broker.objects.get(Identity("parameter", "/", f"federation-upstream/{name}"))
    text = None if found is None else found["value"].get("ca-certificates")
    return None if text is None else text.encode()


def test_a_rotated_secret_becomes_the_definition_and_its_key_never_does(
    connected: Namespace, broker: BrokerThread
) -> None:
    """SEC-20."""
    old, new = Authority(), Authority()
    pair = old.issue("localhost")
    upstream = of_connection(
        "FederationUpstream",
        "east",
        endpoints=None,
        uriSecretRef={"name": "uri"},
        tls={"caSecretRef": {"name": "trust", "key": "bundle"}},
    )
    connected.apply(secret("uri", uri=b"amqps://u:p@east.example"), upstream)
    connected.wait_reason("federationupstream", "east", "WaitingForSecret")
    connected.apply(secret("trust", bundle=pair.key + old.certificate))
    connected.wait_reason("federationupstream", "east", "Applied")
    assert trusted(broker, "east") == old.certificate
    connected.apply(secret("trust", bundle=old.certificate + new.certificate))
    both = old.certificate + new.certificate
    wait_for("both are trusted", lambda: trusted(broker, "east") == both)
    connected.apply(secret("trust", bundle=pair.key))
    connected.wait_reason("federationupstream", "east", "InvalidSpec")
    assert trusted(broker, "east") == both


def test_the_authority_of_a_named_cluster_is_filled_in(
    connected: Namespace, broker: BrokerThread
) -> None:
    """A cluster without plain AMQP: without its authority every link would be refused."""
    connected.apply(
        resource("BrokerCluster", "warehouse", replicas=1, tls={"disablePlain": True}),
        of_connection("FederationUpstream", "west"),
    )
    connected.wait_reason("federationupstream", "west", "Applied")
    made = connected.get("secret", "warehouse-tls")
    assert made is not None
    assert trusted(broker, "west") == base64.b64decode(made["data"]["ca.crt"])
    parameter = Identity("parameter", "/", "federation-upstream/west")
    uri = broker.broker.objects[parameter]["value"]["uri"]
    assert uri.startswith("amqps://admin:")
    assert f"@warehouse.{connected.name}.svc:5671" in uri
