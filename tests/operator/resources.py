"""Builders of resource bodies for the tests of the operator."""

from __future__ import annotations

from typing import Any

API_VERSION = "brokerd.io/v1alpha1"

#: The least that a resource of each kind must say.
MINIMAL: dict[str, dict[str, Any]] = {
    "BrokerCluster": {},
    "BrokerConnection": {
        "endpoints": ["broker.example:5680"],
        "credentialsSecretRef": {"name": "login"},
    },
    "Vhost": {"brokerRef": {"name": "prod"}},
    "User": {"brokerRef": {"name": "prod"}},
    "Permission": {"brokerRef": {"name": "prod"}, "user": "web"},
    "TopicPermission": {"brokerRef": {"name": "prod"}, "user": "web", "exchange": "orders.in"},
    "FederationUpstream": {
        "brokerRef": {"name": "prod"},
        "endpoints": [{"clusterRef": {"name": "warehouse"}}],
    },
    "FederationUpstreamSet": {"brokerRef": {"name": "prod"}, "upstreams": [{"name": "east"}]},
    "Shovel": {
        "brokerRef": {"name": "prod"},
        "source": {"queue": "orders"},
        "destination": {"vhost": "archive", "queue": "orders"},
    },
    "OperatorPolicy": {
        "brokerRef": {"name": "prod"},
        "pattern": "^a",
        "definition": {"maxLength": 10},
    },
    "Policy": {"brokerRef": {"name": "prod"}, "pattern": "^a", "definition": {"maxLength": 10}},
    "Exchange": {"brokerRef": {"name": "prod"}},
    "Queue": {"brokerRef": {"name": "prod"}},
    "Binding": {
        "brokerRef": {"name": "prod"},
        "source": "orders.in",
        "destination": {"name": "orders"},
    },
}


def resource(kind: str, metadata_name: str = "thing", /, **spec: Any) -> dict[str, Any]:
    """A body with the least spec of its kind, changed by keyword; None takes a field away."""
    merged = {**MINIMAL[kind], **spec}
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": metadata_name, "namespace": "default"},
        "spec": {key: value for key, value in merged.items() if value is not None},
    }
