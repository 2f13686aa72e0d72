"""What a resource of the kind Shovel asks of the broker."""

from __future__ import annotations

from brokerd_operator.specs import registry
from brokerd_operator.specs.model import Identity, Inputs, Meta, TopologySpec, Waiting

from brokerd.federation import shovel
from tests.operator.resources import resource

META = Meta("default", "thing")


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
