"""What definitions describe that is not here is left out, with a line each."""

from __future__ import annotations

from typing import Any

from brokerd.core.catalog import definitions_json, unsupported


def queue(name: str, kind: str) -> dict[str, Any]:
    arguments = {"x-queue-type": kind}
    return {
        "name": name,
        "vhost": "/",
        "durable": True,
        "auto_delete": False,
        "arguments": arguments,
    }


def exchange(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "vhost": "/", "type": kind, "durable": True, "auto_delete": False}


def binding(source: str, destination: str, kind: str = "queue") -> dict[str, Any]:
    return {
        "source": source,
        "vhost": "/",
        "destination": destination,
        "destination_type": kind,
    }


def policy(name: str, definition: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "vhost": "/", "pattern": "", "definition": definition}


DEFINITIONS = {
    "queues": [queue("q", "quorum"), queue("s", "stream")],
    "exchanges": [exchange("x", "topic"), exchange("later", "x-recent-history")],
    "bindings": [
        binding("x", "q"),
        binding("x", "s"),
        binding("later", "q"),
        binding("x", "later", "exchange"),
    ],
    "policies": [
        policy("age", {"max-age": "1D"}),
        policy("both", {"max-age": "1D", "max-length": 9}),
        policy("mirrored", {"ha-mode": "all", "max-length": 9}),
        policy("mirrors", {"ha-mode": "all"}),
    ],
    "parameters": [
        {"component": "shovel", "name": "old", "vhost": "/", "value": {"src-protocol": "amqp10"}},
        # Of RabbitMQ 4.2.
        {"component": "shovel", "name": "near", "vhost": "/", "value": {"dest-protocol": "local"}},
        {"component": "shovel", "name": "new", "vhost": "/", "value": {"src-protocol": "amqp091"}},
        {"component": "other", "name": "text", "vhost": "/", "value": "amqp10"},
    ],
}


def test_all_that_is_here_is_taken_and_the_rest_is_listed() -> None:
    wanted = definitions_json.operations(DEFINITIONS)
    found, left = unsupported.taken(wanted, skips=True)
    names = [(kind, name) for kind, _, name, _ in found if kind != "binding"]
    assert sorted(names) == [
        ("exchange", "x"),
        ("parameter", "other/text"),
        ("parameter", "shovel/new"),
        ("policy", "age"),
        ("policy", "both"),
        ("policy", "mirrored"),
        ("queue", "q"),
    ]
    assert [spec["destination"] for kind, _, _, spec in found if kind == "binding"] == ["q"]
    definitions = [spec["definition"] for kind, _, _, spec in found if kind == "policy"]
    assert definitions == [
        {"max-age": "1D"},
        {"max-age": "1D", "max-length": 9},
        {"max-length": 9},
    ]
    assert "queue 's' in vhost '/': queue type stream is not here" in left
    keys = "keys that are not here: ha-mode"
    assert f"policy 'mirrored' in vhost '/': {keys}; the rest is taken" in left
    assert f"policy 'mirrors' in vhost '/': {keys}; it has no others" in left
    assert "parameter 'shovel/near' in vhost '/': shovel protocol local is not here" in left
    assert len(left) == 3 + 4 + 2


def test_without_skipping_nothing_is_left() -> None:
    wanted = definitions_json.operations(DEFINITIONS)
    assert unsupported.taken(wanted, skips=False) == (wanted, [])


def test_a_delayed_exchange_is_taken_where_the_type_by_which_it_routes_is_here() -> None:
    """As a RabbitMQ with the plug-in exports them, and its bindings with them."""
    definitions = {
        "exchanges": [
            exchange("later", "x-delayed-message") | {"arguments": {"x-delayed-type": "topic"}},
            exchange("odd", "x-delayed-message") | {"arguments": {"x-delayed-type": "x-rtopic"}},
        ],
        "queues": [queue("q", "quorum")],
        "bindings": [binding("later", "q"), binding("odd", "q")],
    }
    found, left = unsupported.taken(definitions_json.operations(definitions), skips=True)
    assert [name for kind, _, name, _ in found if kind == "exchange"] == ["later"]
    assert [spec["source"] for kind, _, _, spec in found if kind == "binding"] == ["later"]
    assert any("exchange type x-rtopic is not here" in line for line in left)
