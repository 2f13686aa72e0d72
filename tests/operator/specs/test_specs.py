"""Specs: a resource becomes objects in the broker's vocabulary (docs/reference/topology.md)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from brokerd_operator.specs import arguments, broker_cluster, registry, units
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
from brokerd_operator.validation import Admitted, Validator

from brokerd.core.catalog import catalog_specs, names
from tests.operator.resources import MINIMAL, resource

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


def invalid(kind: str, /, **spec: Any) -> Invalid:
    parsed = registry.parse(resource(kind, **spec))
    if not isinstance(parsed, Invalid):
        assert isinstance(parsed, TopologySpec)
        problem = registry.desired(parsed, META)
        assert isinstance(problem, Invalid), problem
        return problem
    return parsed


@pytest.mark.parametrize("kind", sorted(MINIMAL))
def test_least_resource_of_each_kind_parses(kind: str) -> None:
    assert not isinstance(registry.parse(resource(kind)), Invalid)


def test_delayed_type_is_an_argument_of_the_exchange() -> None:
    said = desired("Exchange", type="x-delayed-message", delayedType="topic")[0]
    table = [{"name": "x-delayed-type", "string": "topic"}]
    assert said.spec["arguments"] == {"x-delayed-type": "topic"}
    for more in ({}, {"delayedType": "topic"}):
        assert desired("Exchange", type="x-delayed-message", arguments=table, **more)[0] == said


def test_exchange_has_identity_arguments_and_inline_settings() -> None:
    (found,) = desired(
        "Exchange",
        name="orders.in",
        type="topic",
        alternateExchange="orders.unrouted",
        federation={"all": True},
        arguments=[{"name": "x-delayed-type", "string": "direct"}],
    )
    assert found.identity == Identity("exchange", "/", "orders.in")
    assert found.spec == {
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": {"x-delayed-type": "direct"},
        "settings": {"alternate-exchange": "orders.unrouted", "federation-upstream-set": "all"},
    }


def test_queue_settings_are_inline_and_units_are_the_brokers() -> None:
    queue, bound = desired(
        "Queue",
        vhost="/shop",
        deliveryLimit=3,
        overflow="reject-publish",
        deadLetter={"exchange": "orders.dead", "strategy": "at-least-once"},
        messageTTL="1h30m",
        expires="500ms",
        maxLength=7,
        maxLengthBytes="2Ki",
        consumerTimeout="30s",
        leaderLocator="balanced",
        singleActiveConsumer=True,
        replicas=3,
        bindings=[{"source": "orders.in", "routingKeys": ["order.*"]}],
    )
    assert queue.identity == Identity("queue", "/shop", "thing")
    assert queue.spec == {
        "type": "quorum",
        "durable": True,
        "auto_delete": False,
        "replicas": 3,
        "arguments": {"x-single-active-consumer": True},
        "settings": {
            "delivery-limit": 3,
            "overflow": "reject-publish",
            "dead-letter-exchange": "orders.dead",
            "dead-letter-strategy": "at-least-once",
            "message-ttl": 5_400_000,
            "expires": 500,
            "max-length": 7,
            "max-length-bytes": 2048,
            "consumer-timeout": 30_000,
            "queue-leader-locator": "balanced",
        },
    }
    assert bound.name == "orders.in|queue|thing|order.*|"
    assert parse("Queue", bindings=[{"source": "e"}]).identities(META) == (
        Identity("queue", "/", "thing"),
        Identity("binding", "/", "e|queue|thing||"),
    )


def test_queue_without_settings_leaves_everything_to_policies() -> None:
    (queue,) = desired("Queue")
    assert queue.spec["settings"] == {}
    assert queue.spec["arguments"] == {}


@pytest.mark.parametrize(
    ("source", "key", "table"),
    [
        ("orders.in", "order.*", {}),
        ("h", "", {"x-match": "all", "a": 1}),
        ("a|b", "k", {}),
        ("a", "k|l", {"n": True}),
        ("größe", "ключ", {"ü": "ö"}),
    ],
)
def test_binding_names_are_the_brokers_own(source: str, key: str, table: dict[str, Any]) -> None:
    """R-BND-1: operator and broker compute the identity of a binding each for themselves."""
    ours = arguments.binding_name(source, "queue", "q", key, table)
    assert ours == names.binding_name(source, "queue", "q", key, table)


def test_binding_makes_one_object_per_key() -> None:
    objects = desired(
        "Binding",
        destination={"kind": "Exchange", "name": "x"},
        routingKeys=["a", "b"],
        arguments=[{"name": "n", "integer": 5}],
    )
    assert [item.spec["routing_key"] for item in objects] == ["a", "b"]
    assert {item.spec["destination_kind"] for item in objects} == {"exchange"}
    assert len({item.name for item in objects}) == 2
    assert all(item.spec["arguments"] == {"n": 5} for item in objects)


def test_policy_definition_is_in_the_brokers_keys() -> None:
    (found,) = desired(
        "Policy",
        pattern="^orders\\.",
        applyTo="exchanges",
        priority=5,
        definition={
            "alternateExchange": "orders.unrouted",
            "federation": {"upstreamSet": "all"},
            "extra": [{"name": "stream-max-segment-size-bytes", "integer": 5}],
        },
    )
    assert found.spec == {
        "pattern": "^orders\\.",
        "apply-to": "exchanges",
        "priority": 5,
        "definition": {
            "alternate-exchange": "orders.unrouted",
            "federation-upstream-set": "all",
            "stream-max-segment-size-bytes": 5,
        },
    }


def test_operator_policy_holds_queue_bounds() -> None:
    """R-POL-7."""
    (found,) = desired("OperatorPolicy", definition={"messageTTL": "1m", "targetGroupSize": 5})
    assert found.kind == "operator_policy"
    assert found.spec["definition"] == {"message-ttl": 60_000, "target-group-size": 5}


def test_vhost_and_user_are_outside_of_vhosts() -> None:
    (vhost,) = desired("Vhost", name="/orders", limits={"maxQueues": 200}, tags=["b", "a"])
    assert vhost.identity == Identity("vhost", "", "/orders")
    assert vhost.spec == {
        "description": "",
        "tags": ["a", "b"],
        "default_queue_type": "",
        "limits": {"max-queues": 200},
    }
    inputs = Inputs(secrets={"default/thing-credentials": {"password": b"s3cret"}})
    (user,) = desired("User", inputs, tags=["monitoring"])
    assert user.identity == Identity("user", "", "thing")
    assert user.spec == {"tags": ["monitoring"], "limits": {}, "password": "s3cret"}
    assert user.write_only == ("password", "password_hash")
    # Only of its own namespace, however it is written.
    (user,) = desired("User", inputs, tags=["monitoring"], serviceAccounts=["orders", "b.c"])
    assert user.spec["tags"] == [
        "monitoring",
        "serviceaccount:default/b.c",
        "serviceaccount:default/orders",
    ]


def test_passwords_do_not_show_in_representations() -> None:
    """SEC-20: a log line with an object or its inputs holds no secret."""
    inputs = Inputs(
        secrets={"default/thing-credentials": {"password": b"s3cret"}},
        clusters={"default/c": ClusterAddress(("h:1",), "u", "s3cret")},
    )
    assert "s3cret" not in repr(inputs)
    assert "s3cret" not in repr(desired("User", inputs))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (None, "WaitingForSecret"),
        ({}, "WaitingForSecret"),
        ({"password": b""}, "WaitingForSecret"),
        ({"password": b"\xff"}, "InvalidSpec"),
        ({"username": b"other", "password": b"x"}, "InvalidSpec"),
    ],
)
def test_user_without_usable_secret_says_why(data: dict[str, bytes] | None, reason: str) -> None:
    secrets = {} if data is None else {"default/login": data}
    spec = parse("User", credentialsSecretRef={"name": "login"})
    assert spec.references(META) == (Reference("Secret", "default", "login"),)
    found = registry.desired(spec, META, Inputs(secrets=secrets))
    assert isinstance(found, Waiting | Invalid)
    assert found.reason == reason


def test_permission_is_named_by_its_user() -> None:
    (found,) = desired("Permission", vhost="/a", write="^x")
    assert found.identity == Identity("permission", "/a", "web")
    assert found.spec == {"configure": "", "write": "^x", "read": ""}
    spec = parse("Permission", user=None, userRef={"name": "web"})
    assert spec.identities(META) == ()
    assert isinstance(registry.desired(spec, META), Waiting)
    resolved = Inputs(users={"default/web": "www"})
    assert spec.identities(META, resolved) == (Identity("permission", "/", "www"),)


def test_topic_permission_is_named_by_user_and_exchange() -> None:
    """R-TP-1, R-TP-2."""
    (found,) = desired("TopicPermission", vhost="/a", exchange="x", write="^w", read="^r")
    assert found.identity == Identity("topic_permission", "/a", "web|x")
    assert found.spec == {"write": "^w", "read": "^r"}
    (plain,) = desired("TopicPermission")
    assert plain.spec == {"write": "", "read": ""}
    spec = parse("TopicPermission", user=None, userRef={"name": "web"})
    assert spec.references(META) == (Reference("User", "default", "web"),)
    assert spec.identities(META) == ()
    assert spec.subject(META) == ""
    waiting = registry.desired(spec, META)
    assert waiting == Waiting("WaitingForUser", "User web does not exist")
    resolved = Inputs(users={"default/web": "www"})
    assert spec.identities(META, resolved) == (Identity("topic_permission", "/", "www|orders.in"),)
    assert spec.subject(META, resolved) == "www"
    hard = [item.identity for item in spec.dependencies(META) if item.is_hard]
    soft = [item.identity for item in spec.dependencies(META) if not item.is_hard]
    assert hard == [Identity("vhost", "", "/")]
    assert soft == [Identity("exchange", "/", "orders.in")]


def test_topic_permission_of_a_user_with_the_separator_is_of_another_user() -> None:
    """The broker splits `a|b|x` into user a and exchange `b|x`: a grant for `a|b` is none for a."""
    spec = registry.parse(resource("TopicPermission", user="a|b"))
    assert isinstance(spec, Invalid)
    assert spec.reason == "InvalidName"
    by_reference = parse("TopicPermission", user=None, userRef={"name": "web"})
    inputs = Inputs(users={"default/web": "a|b"})
    assert by_reference.identities(META, inputs) == ()
    refused = registry.desired(by_reference, META, inputs)
    assert isinstance(refused, Invalid)
    assert refused.reason == "InvalidName"


@pytest.mark.parametrize("field", ["write", "read"])
def test_topic_permission_with_a_wrong_pattern_is_invalid(field: str) -> None:
    found = registry.parse(resource("TopicPermission", **{field: "("}))
    assert isinstance(found, Invalid)
    assert found.reason == "InvalidPattern"


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


def test_upstream_set_lists_members_with_overrides() -> None:
    (found,) = desired(
        "FederationUpstreamSet", upstreams=[{"name": "b"}, {"name": "a", "maxHops": 2}]
    )
    assert found.identity == Identity("parameter", "/", "federation-upstream-set/thing")
    assert found.spec == {"value": [{"upstream": "a", "max-hops": 2}, {"upstream": "b"}]}


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Queue", {"name": "ü" * 128}),
        ("Queue", {"vhost": "ü" * 128}),
        ("Queue", {"name": "a\x00"}),
        ("Queue", {"name": "\ud800"}),
        ("Queue", {"deadLetter": {"exchange": "ü" * 128}}),
        ("Exchange", {"alternateExchange": "ü" * 128}),
        ("Binding", {"routingKeys": ["ü" * 128]}),
        ("Binding", {"source": "ü" * 128}),
    ],
)
def test_names_are_bounded_in_bytes(kind: str, spec: dict[str, Any]) -> None:
    """R-NAM-1: 255 bytes; the schema can only count characters."""
    assert invalid(kind, **spec).reason == "InvalidName"


def test_name_of_exactly_255_bytes_is_right() -> None:
    assert parse("Queue", name="ü" * 127 + "x")


@pytest.mark.parametrize("kind", ["Policy", "OperatorPolicy"])
@pytest.mark.parametrize("pattern", ["(", "*", "(?P<a>x)(?P<a", "[z-a]"])
def test_pattern_that_does_not_compile_is_invalid(kind: str, pattern: str) -> None:
    assert invalid(kind, pattern=pattern).reason == "InvalidPattern"


@pytest.mark.parametrize(
    "text",
    ["{", "NaN", "[" * 100 + "]" * 100, "[" * 2000, "[9223372036854775808]", "1e999x"],
)
def test_json_argument_that_amqp_cannot_carry_is_invalid(text: str) -> None:
    """SEC-42: tables nest at most 16 deep, integers have 64 bits."""
    found = invalid("Queue", arguments=[{"name": "x-a", "json": text}])
    assert found.reason == "InvalidSpec"
    assert "x-a" in found.message


def test_argument_types_are_exact() -> None:
    """A text "5" and a number 5 are different things to an AMQP client."""
    (queue,) = desired(
        "Queue",
        arguments=[
            {"name": "text", "string": "5"},
            {"name": "number", "integer": 5},
            {"name": "flag", "boolean": False},
            {"name": "ratio", "number": 0.5},
            {"name": "nested", "json": '{"a": [1, null]}'},
        ],
    )
    assert json.dumps(queue.spec["arguments"]) == (
        '{"text": "5", "number": 5, "flag": false, "ratio": 0.5, "nested": {"a": [1, null]}}'
    )


def test_policy_key_twice_is_invalid() -> None:
    found = invalid(
        "Policy", definition={"maxLength": 1, "extra": [{"name": "max-length", "integer": 2}]}
    )
    assert "max-length" in found.message


def test_wrong_types_become_invalid_and_not_an_exception() -> None:
    assert invalid("Queue", replicas={"a": 1}).reason == "InvalidSpec"
    assert invalid("Queue", messageTTL="soon").reason == "InvalidSpec"
    assert isinstance(registry.parse({"kind": "Toaster"}), Invalid)
    assert isinstance(registry.parse({"kind": "Queue"}), Invalid)


def test_hard_and_soft_dependencies_are_told_apart() -> None:
    """design/operator.md §9: a missing dead letter exchange never blocks (R-AE-8)."""
    queue = parse("Queue", deadLetter={"exchange": "dead"}, bindings=[{"source": "in"}])
    found = {item.identity: item.is_hard for item in queue.dependencies(META)}
    assert found == {
        Identity("vhost", "", "/"): True,
        Identity("exchange", "/", "dead"): False,
        Identity("exchange", "/", "in"): True,
    }


@pytest.mark.parametrize(
    ("text", "expected"), [("1ms", 1), ("2s", 2000), ("1d1h1m1s1ms", 90_061_001), ("007s", 7000)]
)
def test_durations_are_milliseconds(text: str, expected: int) -> None:
    assert units.duration_ms(text) == expected


@pytest.mark.parametrize("text", ["", "5", "s", "1.5s", "-1s", "1s ", "9999999999999999999d"])
def test_wrong_durations_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|too long"):
        units.duration_ms(text)


def test_cluster_names_members_and_what_does_not_apply_locally() -> None:
    body = resource(
        "BrokerCluster",
        "orders",
        replicas=2,
        memory={"highWatermark": {"absolute": "2Gi"}},
        storage={"size": "20Gi"},
        telemetry={"enabled": True, "engine": "kubernetes"},
    )
    spec = registry.parse(body)
    assert isinstance(spec, broker_cluster.BrokerClusterSpec)
    assert spec.member_names(Meta.of(body)) == ("orders-0", "orders-1")
    assert spec.memory_high_watermark() == "2097152KiB"
    assert broker_cluster.not_applied_locally(spec) == ("spec.storage", "spec.telemetry.engine")


@pytest.mark.parametrize("interval", ["0s", "99ms", "2h"])
def test_interval_that_a_member_would_not_start_with_is_invalid(interval: str) -> None:
    found = registry.parse(resource("BrokerCluster", telemetry={"interval": interval}))
    assert isinstance(found, Invalid)
    assert "telemetry.interval" in found.message


def _as_stored(item: DesiredObject) -> dict[str, Any]:
    return catalog_specs.normalise(item.kind, item.vhost, item.name, item.spec)


@pytest.mark.parametrize(
    "kind", sorted(set(MINIMAL) - {"BrokerCluster", "BrokerConnection", "User"})
)
def test_broker_stores_specs_as_they_are(kind: str) -> None:
    """The hash of a stored object must equal the hash of the desired one, or drift never ends."""
    for item in desired(kind):
        assert _as_stored(item) == item.spec


#: Those of resources.
EXAMPLES = [
    path
    for path in sorted((Path(__file__).parents[3] / "examples").glob("*/*.yaml"))
    if path.parent.name != "compose"
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_examples_are_admitted_and_have_objects(path: Path) -> None:
    validator = Validator.from_directory()
    for document in yaml.safe_load_all(path.read_text()):
        admitted = validator.admit(document)
        assert isinstance(admitted, Admitted), admitted
        assert "namespace" not in document["metadata"], "examples go to the current namespace"
        spec = registry.parse(admitted.body)
        assert not isinstance(spec, Invalid), spec
        if isinstance(spec, TopologySpec):
            objects = spec.desired(Meta.of(admitted.body), WAREHOUSE)
            assert isinstance(objects, tuple)
            assert all(_as_stored(item) == item.spec for item in objects)


def test_orders_example_is_the_demo() -> None:
    documents = [
        item
        for path in EXAMPLES
        if path.parent.name == "orders"
        for item in yaml.safe_load_all(path.read_text())
    ]
    specs = {(item["kind"], item["metadata"]["name"]): item["spec"] for item in documents}
    assert len(specs) == len(documents)
    assert specs["BrokerCluster", "orders"]["replicas"] == 3
    assert specs["BrokerCluster", "warehouse"]["replicas"] == 1
    assert specs["Queue", "orders"]["deadLetter"]["strategy"] == "at-least-once"
    assert specs["Policy", "unrouted"]["definition"] == {"alternateExchange": "orders.unrouted"}
