"""Resources that the CRDs must admit or refuse, for the embedded validator and the API server.

Both must give the same verdict for each (design/operator.md §14); the message is the rule's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Case:
    """One resource; `spec` changes the least spec of its kind, None takes a field away."""

    id: str
    kind: str
    spec: dict[str, Any]
    message: str = ""
    metadata_name: str = "thing"


def arg(name: str, **value: Any) -> dict[str, Any]:
    return {"name": name, **value}


AT_LEAST_ONCE = {"exchange": "dead", "strategy": "at-least-once"}
DELAYED = {"type": "x-delayed-message"}
DELAYED_TOPIC = arg("x-delayed-type", string="topic")
HOST = [{"host": "b.example"}]
LOGIN = {"name": "login"}

ACCEPTED = (
    Case("plugin-exchange-type", "Exchange", {"type": "x-somebody-s"}),
    Case("delayed-exchange", "Exchange", {**DELAYED, "delayedType": "topic"}),
    Case("delayed-by-argument", "Exchange", {**DELAYED, "arguments": [DELAYED_TOPIC]}),
    Case(
        "delayed-by-both",
        "Exchange",
        {**DELAYED, "delayedType": "topic", "arguments": [DELAYED_TOPIC]},
    ),
    Case("federated-exchange", "Exchange", {"federation": {"upstream": "east"}}),
    Case("full-queue", "Queue", {"deadLetter": AT_LEAST_ONCE, "overflow": "reject-publish"}),
    Case("classic-queue", "Queue", {"type": "classic", "durable": False, "maxPriority": 10}),
    Case("bytes-as-number", "Queue", {"maxLengthBytes": 5}),
    Case("bytes-as-quantity", "Queue", {"maxLengthBytes": "5Gi"}),
    Case("default-exchange-as-dlx", "Queue", {"deadLetter": {"exchange": ""}}),
    Case("dead-letter-key-alone", "Queue", {"deadLetter": {"routingKey": "k"}}),
    Case("unlimited-deliveries", "Queue", {"deliveryLimit": -1}),
    Case("argument", "Queue", {"arguments": [arg("x-a", json="[1]"), arg("x-b", number=0.5)]}),
    Case("empty-key", "Binding", {"routingKeys": [""]}),
    Case("policy-for-all", "Policy", {"definition": {"alternateExchange": "a", "maxLength": 1}}),
    Case(
        "policy-federation",
        "Policy",
        {"applyTo": "exchanges", "definition": {"federation": {"upstreamSet": "all"}}},
    ),
    Case(
        "upstream-with-hosts",
        "FederationUpstream",
        {"endpoints": HOST, "credentialsSecretRef": LOGIN},
    ),
    Case(
        "upstream-with-secret",
        "FederationUpstream",
        {"endpoints": None, "uriSecretRef": {"name": "uri"}},
    ),
    Case(
        "upstream-with-authorities",
        "FederationUpstream",
        {
            "endpoints": HOST,
            "credentialsSecretRef": LOGIN,
            "tls": {"caSecretRef": {"name": "ca"}},
        },
    ),
    Case("root-vhost", "Vhost", {"name": "/"}),
    Case("user-ref", "Permission", {"user": None, "userRef": {"name": "web"}}),
    Case("topic-user-ref", "TopicPermission", {"user": None, "userRef": {"name": "web"}}),
    Case("topic-of-the-user", "TopicPermission", {"write": "^{username}[.]", "read": ".*"}),
    Case("stopped-cluster", "BrokerCluster", {"replicas": 0}),
    Case(
        "life",
        "BrokerCluster",
        {
            "upgradePolicy": "OnApproval",
            "maintenanceWindows": [{"days": ["Sat"], "start": "23:30", "duration": "1h30m"}],
            "progressDeadlineSeconds": 30,
            "fenced": ["prod-0"],
            "hibernated": True,
        },
    ),
    Case("watermark", "BrokerCluster", {"memory": {"highWatermark": {"fraction": "0.4"}}}),
    Case(
        "load-balancer-with-tls",
        "BrokerCluster",
        {"listeners": {"serviceType": "LoadBalancer"}, "tls": {"disablePlain": True}},
    ),
    Case(
        "route-by-name",
        "BrokerCluster",
        {"gateway": {"parentRefs": [{"name": "edge"}], "hostnames": ["*.orders.example"]}},
    ),
    Case(
        "route-of-a-listener",
        "BrokerCluster",
        {"gateway": {"parentRefs": [{"name": "edge", "port": 5671}], "route": "TCP"}},
    ),
    Case(
        "grant",
        "BrokerCluster",
        {"access": [{"namespaces": {"names": ["b"]}, "kinds": ["Queue"], "vhosts": [".*"]}]},
    ),
    Case(
        "telemetry",
        "BrokerCluster",
        {
            "telemetry": {
                "enabled": True,
                "schedule": "*/15 2-4 * * MON-FRI",
                "engine": "kubernetes",
                "executors": 4,
                "resources": {"requests": {"cpu": 1, "memory": "2Gi"}},
            }
        },
    ),
)

EXACTLY_ONE_VALUE = "exactly one of string, integer, boolean, number and json must be set"
SAME_MEANING = "an argument and the field of the same meaning exclude each other"

#: What is wrong with a Shovel: name of the case, fields, part of the refusal.
SHOVELS: tuple[tuple[str, dict[str, Any], str], ...] = (
    ("from-two", {"source": {"queue": "a", "exchange": "b"}}, "exactly one of queue and exchange"),
    ("to-two", {"destination": {"queue": "a", "exchange": "b"}}, "at most one of queue and"),
    (
        "vhost-and-uri",
        {"source": {"queue": "a", "vhost": "v", "uriSecretRef": {"name": "b"}}},
        "the URIs of uriSecretRef name their own",
    ),
    (
        "host-and-cluster",
        {"source": {"queue": "a", "endpoints": [{"clusterRef": {"name": "c"}, "host": "h"}]}},
        "exactly one of clusterRef and host must be set",
    ),
    (
        "port-of-cluster",
        {"source": {"queue": "a", "endpoints": [{"clusterRef": {"name": "c"}, "port": 5}]}},
        "port and tls go with host; a BrokerCluster knows its own",
    ),
    (
        "host-without-login",
        {"source": {"queue": "a", "endpoints": [{"host": "h"}]}},
        "endpoints with a host need credentialsSecretRef",
    ),
    (
        "vhost-and-endpoints",
        {"source": {"queue": "a", "vhost": "v", "endpoints": [{"clusterRef": {"name": "c"}}]}},
        "endpoints name their own",
    ),
    (
        "uri-and-endpoints",
        {
            "destination": {
                "uriSecretRef": {"name": "b"},
                "endpoints": [{"clusterRef": {"name": "c"}}],
            }
        },
        "at most one of uriSecretRef and endpoints",
    ),
    (
        "login-alone",
        {"destination": {"credentialsSecretRef": {"name": "b"}}},
        "credentialsSecretRef goes with endpoints",
    ),
    (
        "tls-of-this-broker",
        {"destination": {"tls": {"caSecretRef": {"name": "b"}}}},
        "tls goes with another broker",
    ),
    ("key-of-queue", {"source": {"queue": "a", "exchangeKey": "k"}}, "exchangeKey goes with an"),
    (
        "argument",
        {"source": {"queue": "a", "queueArguments": [{"name": "x"}]}},
        "exactly one of string, integer and boolean must be set",
    ),
    ("sometime", {"source": {"queue": "a", "deleteAfter": "sometime"}}, "deleteAfter must be"),
    ("counts", {"source": {"queue": "a", "deleteAfter": 5}, "ackMode": "no-ack"}, "needs ack"),
    (
        "empties",
        {"source": {"queue": "a", "deleteAfter": "queue-length"}, "ackMode": "no-ack"},
        "needs ack",
    ),
)
REFUSED = (
    Case("reserved-name", "Exchange", {"name": "amq.mine"}, "reserved for the broker"),
    Case(
        "reserved-metadata-name",
        "Exchange",
        {},
        "reserved for the broker",
        "amq.mine",
    ),
    Case("exchange-type", "Exchange", {"type": "toppic"}, "type must be direct, fanout"),
    Case("delayed-without-type", "Exchange", DELAYED, "x-delayed-message needs delayedType"),
    Case(
        "delayed-type-of-another",
        "Exchange",
        {"type": "topic", "delayedType": "direct"},
        "delayedType is for type x-delayed-message only",
    ),
    Case(
        "delayed-types-differ",
        "Exchange",
        {**DELAYED, "delayedType": "direct", "arguments": [DELAYED_TOPIC]},
        "delayedType and the argument x-delayed-type contradict each other",
    ),
    Case("delayed-by-itself", "Exchange", {**DELAYED, "delayedType": "x-delayed-message"}, "spec"),
    Case(
        "alternate-exchange-twice",
        "Exchange",
        {"alternateExchange": "a", "arguments": [arg("alternate-exchange", string="b")]},
        "alternateExchange and the argument alternate-exchange exclude each other",
    ),
    Case(
        "two-upstreams",
        "Exchange",
        {"federation": {"upstream": "a", "all": True}},
        "exactly one of upstream, upstreamSet and all must be set",
    ),
    Case("no-value", "Exchange", {"arguments": [arg("x-a")]}, EXACTLY_ONE_VALUE),
    Case("no-value-of-queue", "Queue", {"arguments": [arg("x-a")]}, EXACTLY_ONE_VALUE),
    Case(
        "two-values",
        "Binding",
        {"arguments": [arg("a", integer=1, string="1")]},
        EXACTLY_ONE_VALUE,
    ),
    Case(
        "policy-extra-without-value",
        "Policy",
        {"definition": {"extra": [arg("a")]}},
        EXACTLY_ONE_VALUE,
    ),
    Case("reserved-queue-name", "Queue", {"name": "amq.gen"}, "reserved for the broker"),
    Case("reserved-queue-metadata", "Queue", {}, "reserved for the broker", "amq.q"),
    Case("quorum-not-durable", "Queue", {"durable": False}, "a quorum queue is durable"),
    Case("quorum-auto-delete", "Queue", {"autoDelete": True}, "a quorum queue is durable"),
    Case("quorum-priority", "Queue", {"maxPriority": 5}, "a quorum queue is durable"),
    Case(
        "classic-delivery-limit",
        "Queue",
        {"type": "classic", "deliveryLimit": 3},
        "replicas and deliveryLimit are for quorum queues only",
    ),
    Case(
        "at-least-once-without-overflow",
        "Queue",
        {"deadLetter": AT_LEAST_ONCE},
        "deadLetter.strategy at-least-once needs type quorum",
    ),
    Case(
        "at-least-once-classic",
        "Queue",
        {"type": "classic", "deadLetter": AT_LEAST_ONCE, "overflow": "reject-publish"},
        "deadLetter.strategy at-least-once needs type quorum",
    ),
    Case(
        "quorum-reject-publish-dlx",
        "Queue",
        {"overflow": "reject-publish-dlx"},
        "a quorum queue cannot use overflow reject-publish-dlx",
    ),
    Case("expires-at-once", "Queue", {"expires": "0s"}, "expires must be at least one millisecond"),
    Case(
        "queue-type-argument",
        "Queue",
        {"arguments": [arg("x-queue-type", string="classic")]},
        "use the field type in place of the argument x-queue-type",
    ),
    Case(
        "setting-twice",
        "Queue",
        {"messageTTL": "1s", "arguments": [arg("x-message-ttl", integer=5)]},
        SAME_MEANING,
    ),
    Case(
        "dead-letter-twice",
        "Queue",
        {
            "deadLetter": {"exchange": "a"},
            "arguments": [arg("x-dead-letter-routing-key", string="k")],
        },
        SAME_MEANING,
    ),
    Case("default-exchange", "Binding", {"source": ""}, "the default exchange cannot be bound"),
    Case(
        "reply-to",
        "Binding",
        {"destination": {"name": "amq.rabbitmq.reply-to.abc"}},
        "a direct reply-to pseudo queue cannot be bound",
    ),
    Case(
        "queue-settings-for-exchanges",
        "Policy",
        {"applyTo": "exchanges"},
        "a policy that applies to exchanges cannot hold queue settings",
    ),
    Case(
        "alternate-exchange-for-queues",
        "Policy",
        {"applyTo": "queues", "definition": {"alternateExchange": "a"}},
        "alternateExchange is for exchanges; this policy applies to queues",
    ),
    Case(
        "void-for-classic",
        "Policy",
        {"applyTo": "classic_queues", "definition": {"deliveryLimit": 1}},
        "would void the whole policy for classic queues",
    ),
    Case(
        "policy-two-upstreams",
        "Policy",
        {"definition": {"federation": {"upstream": "a", "pattern": "b"}}},
        "exactly one of federation.upstream, federation.upstreamSet and federation.pattern",
    ),
    Case(
        "policy-expires",
        "Policy",
        {"definition": {"expires": "0ms"}},
        "expires must be at least one millisecond",
    ),
    Case(
        "operator-void-for-classic",
        "OperatorPolicy",
        {"applyTo": "classic_queues", "definition": {"targetGroupSize": 3}},
        "would void the whole policy for classic queues",
    ),
    Case(
        "operator-expires",
        "OperatorPolicy",
        {"definition": {"expires": "0ms"}},
        "expires must be at least one millisecond",
    ),
    Case(
        "no-upstream-address",
        "FederationUpstream",
        {"endpoints": None},
        "exactly one of uriSecretRef and endpoints must be set",
    ),
    Case(
        "credentials-of-uri",
        "FederationUpstream",
        {"endpoints": None, "uriSecretRef": {"name": "a"}, "credentialsSecretRef": LOGIN},
        "credentialsSecretRef goes with endpoints",
    ),
    Case(
        "host-without-credentials",
        "FederationUpstream",
        {"endpoints": HOST},
        "endpoints with a host need credentialsSecretRef",
    ),
    Case(
        "host-and-cluster",
        "FederationUpstream",
        {
            "endpoints": [{"host": "a", "clusterRef": {"name": "b"}}],
            "credentialsSecretRef": LOGIN,
        },
        "exactly one of clusterRef and host must be set",
    ),
    Case(
        "port-of-cluster",
        "FederationUpstream",
        {"endpoints": [{"port": 5, "clusterRef": {"name": "b"}}]},
        "port and tls go with host",
    ),
    Case(
        "upstream-expires",
        "FederationUpstream",
        {"expires": "0s"},
        "expires must be at least one millisecond",
    ),
    Case(
        "set-of-all",
        "FederationUpstreamSet",
        {"name": "all"},
        "the set all is made by the broker itself",
    ),
    *(Case(f"shovel-{name}", "Shovel", spec, text) for name, spec, text in SHOVELS),
    Case(
        "delete-root-vhost",
        "Vhost",
        {"name": "/", "deletionPolicy": "Delete"},
        "the virtual host / can only be retained",
    ),
    Case(
        "topic-user-twice",
        "TopicPermission",
        {"userRef": {"name": "web"}},
        "exactly one of user and userRef must be set",
    ),
    Case("topic-user-with-bar", "TopicPermission", {"user": "a|b"}, "user must not hold a |"),
    Case(
        "user-twice",
        "Permission",
        {"userRef": {"name": "web"}},
        "exactly one of user and userRef must be set",
    ),
    Case(
        "plain-load-balancer",
        "BrokerCluster",
        {"listeners": {"serviceType": "LoadBalancer"}},
        "never exposes plain AMQP; set tls.disablePlain: true",
    ),
    Case(
        "route-by-no-name",
        "BrokerCluster",
        {"gateway": {"parentRefs": [{"name": "edge"}]}},
        "route TLS needs hostnames",
    ),
    Case(
        "two-watermarks",
        "BrokerCluster",
        {"memory": {"highWatermark": {"fraction": "0.4", "absolute": "1Gi"}}},
        "exactly one of fraction and absolute must be set",
    ),
    Case(
        "ca-without-certificate",
        "BrokerCluster",
        {"tls": {"caSecretName": "ca"}},
        "caSecretName goes with secretName or issuerRef",
    ),
    Case(
        "certificate-and-issuer",
        "BrokerCluster",
        {"tls": {"secretName": "mine", "issuerRef": {"name": "corp"}}},
        "secretName and issuerRef exclude each other",
    ),
    Case(
        "operators-own-variable",
        "BrokerCluster",
        {"podTemplate": {"env": [{"name": "BROKERD_NODE_NAME", "value": "x"}]}},
        "env cannot set BROKERD_ variables",
    ),
    Case(
        "setting-below-its-minimum",
        "BrokerCluster",
        {"settings": {"limits": {"connections": 0}}},
        "spec.settings.limits.connections",
    ),
    Case(
        "setting-of-another-type",
        "BrokerCluster",
        {"settings": {"queues": {"consumer_timeout_ms": "long"}}},
        "spec.settings.queues.consumer_timeout_ms",
    ),
    Case("control-character-in-a-name", "Queue", {"name": "a\nb"}, "spec.name"),
    Case("control-character-in-a-vhost", "Exchange", {"vhost": "a\x7f"}, "spec.vhost"),
    Case("control-character-in-a-users-name", "User", {"name": "\x1b[31mroot"}, "spec.name"),
    Case(
        "variable-with-two-values",
        "BrokerCluster",
        {"podTemplate": {"env": [{"name": "A", "value": "x", "valueFrom": {"fieldRef": {}}}]}},
        "a variable has value or valueFrom",
    ),
    Case(
        "operators-own-volume",
        "BrokerCluster",
        {"podTemplate": {"spec": {"volumes": [{"name": "data", "emptyDir": {}}]}}},
        "are volumes of the operator; choose another name",
    ),
    Case(
        "operators-own-container-as-init-container",
        "BrokerCluster",
        {"podTemplate": {"spec": {"initContainers": [{"name": "broker", "image": "x"}]}}},
        "broker is the operator's container",
    ),
    Case(
        "operators-own-optional-variable",
        "BrokerCluster",
        {"podTemplate": {"env": [{"name": "OPTIONAL_BROKERD_NODE_NAME", "value": "x"}]}},
        "env cannot set BROKERD_ variables",
    ),
    Case(
        "grant-for-nobody",
        "BrokerCluster",
        {"access": [{"namespaces": {}, "kinds": ["Queue"]}]},
        "namespaces needs names, a selector or an explicit from",
    ),
    Case(
        "connection-grant-for-nobody",
        "BrokerConnection",
        {"access": [{"kinds": ["Queue"]}]},
        "namespaces needs names, a selector or an explicit from",
    ),
    Case("long-cluster-name", "BrokerCluster", {}, "a DNS label of at most 40", "a" * 41),
    # The schema itself.
    Case("no-broker", "Queue", {"brokerRef": None}, "spec.brokerRef"),
    Case("queue-type", "Queue", {"type": "stream"}, "spec.type"),
    Case("pascal-case", "Queue", {"overflow": "RejectPublish"}, "reject-publish"),
    Case("duration", "Queue", {"messageTTL": "1.5s"}, "spec.messageTTL"),
    Case("duration-with-line-end", "Queue", {"messageTTL": "1s\n"}, "spec.messageTTL"),
    Case("negative", "Queue", {"maxLength": -1}, "spec.maxLength"),
    Case("negative-bytes", "Queue", {"maxLengthBytes": -1}, "spec.maxLengthBytes"),
    Case("bytes-flag", "Queue", {"maxLengthBytes": True}, "spec.maxLengthBytes"),
    Case("not-an-integer", "Queue", {"deliveryLimit": "3"}, "spec.deliveryLimit"),
    Case("boolean-is-no-integer", "Queue", {"deliveryLimit": True}, "spec.deliveryLimit"),
    Case("int32", "Policy", {"priority": 2**31}, "spec.priority"),
    Case("long-name", "Queue", {"name": "x" * 256}, "spec.name"),
    Case("empty-name", "Queue", {"name": ""}, "spec.name"),
    Case("key-twice", "Binding", {"routingKeys": ["a", "a"]}, "spec.routingKeys[1]"),
    Case("no-key", "Binding", {"routingKeys": []}, "spec.routingKeys"),
    Case("too-many-keys", "Binding", {"routingKeys": [str(n) for n in range(129)]}, "128"),
    Case(
        "argument-twice",
        "Queue",
        {"arguments": [arg("x", integer=1), arg("x", integer=2)]},
        "spec.arguments[1]",
    ),
    Case("too-many-members", "BrokerCluster", {"replicas": 32}, "spec.replicas"),
    Case(
        "window-day",
        "BrokerCluster",
        {"maintenanceWindows": [{"days": ["Monday"], "start": "02:00", "duration": "1h"}]},
        "spec.maintenanceWindows[0].days[0]",
    ),
    Case(
        "window-hour",
        "BrokerCluster",
        {"maintenanceWindows": [{"start": "24:00", "duration": "1h"}]},
        "spec.maintenanceWindows[0].start",
    ),
    Case("fenced-twice", "BrokerCluster", {"fenced": ["a-0", "a-0"]}, "spec.fenced[1]"),
    Case("cron", "BrokerCluster", {"telemetry": {"schedule": "every day"}}, "telemetry.schedule"),
    Case("empty-policy", "Policy", {"definition": {}}, "spec.definition"),
    Case("list-for-object", "Queue", {"deadLetter": []}, "spec.deadLetter"),
)
