"""Changes of resources that the CRDs must admit or refuse; one alone: crd_cases.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.operator.crd_cases import DELAYED, DELAYED_TOPIC, arg


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a resource that was right before."""

    id: str
    kind: str
    old: dict[str, Any]
    new: dict[str, Any]
    message: str = ""


REF = {"name": "prod"}
CLASSIC = {"type": "classic"}
TOPOLOGY_WITH_VHOST = (
    "Exchange",
    "Queue",
    "Binding",
    "Policy",
    "OperatorPolicy",
    "FederationUpstream",
    "FederationUpstreamSet",
    "Shovel",
    "Permission",
    "TopicPermission",
)
TOPOLOGY_WITH_NAME = (
    "Exchange",
    "Queue",
    "Policy",
    "OperatorPolicy",
    "FederationUpstream",
    "FederationUpstreamSet",
    "Shovel",
    "Vhost",
    "User",
)
TOPOLOGY = tuple(dict.fromkeys([*TOPOLOGY_WITH_VHOST, *TOPOLOGY_WITH_NAME]))

TRANSITIONS_ACCEPTED = (
    Change("queue-settings", "Queue", {"maxLength": 1}, {"maxLength": 2, "messageTTL": "1s"}),
    Change("queue-policies", "Queue", {}, {"deletionPolicy": "Retain", "driftPolicy": "Report"}),
    Change(
        "queue-replacement",
        "Queue",
        {},
        {**CLASSIC, "onImmutableChange": "RecreateIfEmpty", "durable": False},
    ),
    Change(
        "field-beside-its-argument",
        "Exchange",
        {**DELAYED, "arguments": [DELAYED_TOPIC]},
        {**DELAYED, "arguments": [DELAYED_TOPIC], "delayedType": "topic"},
    ),
    Change(
        "arguments-in-another-order",
        "Queue",
        {"arguments": [arg("a", integer=1), arg("b", integer=2)]},
        {"arguments": [arg("b", integer=2), arg("a", integer=1)]},
    ),
    Change(
        "alternate-exchange", "Exchange", {"alternateExchange": "a"}, {"alternateExchange": "b"}
    ),
    Change("keys", "Binding", {"routingKeys": ["a"]}, {"routingKeys": ["b", "c"]}),
    Change("binding-arguments", "Binding", {}, {"arguments": [arg("a", integer=1)]}),
    Change("scale", "BrokerCluster", {"replicas": 3}, {"replicas": 5}),
    Change("a-setting", "BrokerCluster", {}, {"settings": {"limits": {"connections": 9}}}),
    Change(
        "profile-while-stopped",
        "BrokerCluster",
        {"replicas": 0, "settings": {"compat": {"profile": "rabbitmq-3.13"}}},
        {"replicas": 0, "settings": {"compat": {"profile": "rabbitmq-4.3"}}},
    ),
    Change("grow", "BrokerCluster", {"storage": {"size": "1Gi"}}, {"storage": {"size": "2Gi"}}),
    Change("policy", "Policy", {"priority": 1}, {"priority": 2, "applyTo": "queues"}),
)

TRANSITIONS_REFUSED = (
    *(
        Change(
            f"broker-of-{kind}", kind, {}, {"brokerRef": {"name": "b"}}, "brokerRef is immutable"
        )
        for kind in TOPOLOGY
    ),
    *(
        Change(
            f"broker-namespace-of-{kind}",
            kind,
            {},
            {"brokerRef": {**REF, "namespace": "b"}},
            "brokerRef.namespace is immutable",
        )
        for kind in TOPOLOGY
    ),
    *(
        Change(f"vhost-of-{kind}", kind, {}, {"vhost": "/b"}, "vhost is immutable")
        for kind in TOPOLOGY_WITH_VHOST
    ),
    *(
        Change(f"name-of-{kind}", kind, {"name": "a"}, {"name": "b"}, "name is immutable")
        for kind in TOPOLOGY_WITH_NAME
    ),
    Change("name-removed", "Queue", {"name": "a"}, {}, "name is immutable"),
    Change("name-added", "Queue", {}, {"name": "thing"}, "name is immutable"),
    Change("exchange-type", "Exchange", {}, {"type": "topic"}, "type is immutable; delete"),
    Change(
        "exchange-delayed-type",
        "Exchange",
        {**DELAYED, "delayedType": "direct"},
        {**DELAYED, "delayedType": "topic"},
        "delayedType is immutable; delete",
    ),
    Change("exchange-durable", "Exchange", {}, {"durable": False}, "durable is immutable; delete"),
    Change(
        "exchange-auto", "Exchange", {}, {"autoDelete": True}, "autoDelete is immutable; delete"
    ),
    Change(
        "exchange-internal", "Exchange", {}, {"internal": True}, "internal is immutable; delete"
    ),
    Change(
        "exchange-arguments",
        "Exchange",
        {},
        {"arguments": [arg("a", integer=1)]},
        "arguments are immutable; delete",
    ),
    Change("queue-type", "Queue", {}, CLASSIC, "type is immutable unless"),
    Change(
        "queue-durable",
        "Queue",
        CLASSIC,
        {**CLASSIC, "durable": False},
        "durable and autoDelete are immutable unless",
    ),
    Change(
        "queue-priority",
        "Queue",
        {**CLASSIC, "maxPriority": 1},
        {**CLASSIC, "maxPriority": 2},
        "maxPriority is immutable unless",
    ),
    Change(
        "queue-single",
        "Queue",
        {},
        {"singleActiveConsumer": True},
        "singleActiveConsumer is immutable unless",
    ),
    Change(
        "queue-arguments",
        "Queue",
        {"arguments": [arg("a", integer=1)]},
        {"arguments": [arg("a", integer=2)]},
        "arguments are immutable unless",
    ),
    Change("binding-source", "Binding", {}, {"source": "b"}, "source is immutable"),
    Change(
        "binding-destination",
        "Binding",
        {},
        {"destination": {"name": "orders", "kind": "Exchange"}},
        "destination is immutable",
    ),
    Change("permission-user", "Permission", {}, {"user": "b"}, "user is immutable"),
    Change("topic-user", "TopicPermission", {}, {"user": "b"}, "user is immutable"),
    Change("topic-exchange", "TopicPermission", {}, {"exchange": "b"}, "exchange is immutable"),
    Change(
        "topic-user-ref",
        "TopicPermission",
        {"user": None, "userRef": {"name": "a"}},
        {"user": None, "userRef": {"name": "b"}},
        "userRef is immutable",
    ),
    Change(
        "permission-user-ref",
        "Permission",
        {"user": None, "userRef": {"name": "a"}},
        {"user": None, "userRef": {"name": "b"}},
        "userRef is immutable",
    ),
    Change(
        "storage-class",
        "BrokerCluster",
        {},
        {"storage": {"className": "fast"}},
        "storage.className is immutable",
    ),
    Change(
        "profile-of-running-members",
        "BrokerCluster",
        {"settings": {"limits": {"connections": 9}}},
        {"settings": {"compat": {"profile": "rabbitmq-4.3"}}},
        "settings.compat.profile changes while no member runs only",
    ),
)
