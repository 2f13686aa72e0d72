"""RabbitMQ's definitions to objects and back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brokerd.core.catalog import definitions_json
from brokerd.core.catalog.definitions_json import BadDefinitions

OBJECTS: list[definitions_json.Wanted] = [
    (
        "vhost",
        "",
        "/",
        {
            "description": "d",
            "tags": ["t"],
            "default_queue_type": "quorum",
            "limits": {"max-queues": 3},
        },
    ),
    ("user", "", "new", {"tags": ["administrator"], "password_hash": "scrypt$1$a$b", "limits": {}}),
    ("user", "", "old", {"tags": [], "password_hash": "rabbitmq-sha512$abc", "limits": {}}),
    ("user", "", "none", {"tags": [], "password_hash": "", "limits": {"max-channels": 1}}),
    ("permission", "/", "new", {"configure": "a", "write": "b", "read": "c"}),
    ("topic_permission", "/", "new|amq.topic", {"write": "b", "read": "c"}),
    ("parameter", "/", "federation-upstream/up", {"value": {"uri": "amqp://a:b@c"}}),
    (
        "operator_policy",
        "/",
        "op",
        {"pattern": "x", "apply-to": "queues", "priority": 1, "definition": {"max-length": 1}},
    ),
    (
        "policy",
        "/",
        "p",
        {"pattern": "x", "apply-to": "all", "priority": 0, "definition": {"max-length": 1}},
    ),
    (
        "exchange",
        "/",
        "ex",
        {
            "type": "topic",
            "durable": True,
            "auto_delete": False,
            "internal": True,
            "arguments": {"alternate-exchange": "amq.fanout"},
            "settings": {"alternate-exchange": "other"},
        },
    ),
    (
        "queue",
        "/",
        "q",
        {
            "type": "quorum",
            "durable": True,
            "auto_delete": False,
            "arguments": {"x-queue-type": "quorum"},
            "settings": {},
            "replicas": 3,
        },
    ),
    (
        "binding",
        "/",
        "ex|queue|q|a.#|",
        {
            "source": "ex",
            "destination_kind": "queue",
            "destination": "q",
            "routing_key": "a.#",
            "arguments": {},
        },
    ),
]
PLAIN = {"durable": True, "auto_delete": False, "internal": False, "arguments": {}, "settings": {}}


def test_what_goes_out_comes_in_again() -> None:
    exported = json.loads(json.dumps(definitions_json.exported(OBJECTS, "4.3.6")))
    found = {
        (kind, vhost, name): spec
        for kind, vhost, name, spec in definitions_json.operations(exported)
    }
    expected = {(kind, vhost, name): spec for kind, vhost, name, spec in OBJECTS}
    # Empty settings are not written.
    expected["queue", "/", "q"] = {
        key: value for key, value in expected["queue", "/", "q"].items() if key != "settings"
    }
    assert found == expected


def test_transient_exclusive_and_built_in_objects_stay_behind() -> None:
    objects: list[definitions_json.Wanted] = [
        ("exchange", "/", "", PLAIN | {"type": "direct"}),
        ("exchange", "/", "amq.topic", PLAIN | {"type": "topic"}),
        ("exchange", "/", "passing", PLAIN | {"type": "topic", "durable": False}),
        ("queue", "/", "gone", PLAIN | {"type": "classic", "durable": False}),
        ("queue", "/", "mine", PLAIN | {"type": "classic", "exclusive": True}),
        ("queue", "/", "kept", PLAIN | {"type": "classic"}),
    ]
    for source, destination in (("amq.topic", "kept"), ("amq.topic", "gone"), ("passing", "kept")):
        spec = {
            "source": source,
            "destination_kind": "queue",
            "destination": destination,
            "routing_key": "",
            "arguments": {},
        }
        objects.append(("binding", "/", "", spec))
    exported = definitions_json.exported(objects, "4.3.6")
    assert exported["exchanges"] == []
    assert [row["name"] for row in exported["queues"]] == ["kept"]
    assert [(row["source"], row["destination"]) for row in exported["bindings"]] == [
        ("amq.topic", "kept")
    ]


def test_older_files_and_files_of_one_vhost_are_understood() -> None:
    """Tags as text, limits as pairs, a password, no vhost, RabbitMQ's own objects."""
    wanted = definitions_json.operations(
        {
            "users": [
                {"name": "a", "password": "pw", "tags": "y, x, y"},
                {"name": "b", "password_hash": "h", "tags": ""},
                {"name": "c", "password_hash": ""},
            ],
            "vhosts": [{"name": "v", "tracing": False, "limits": [["max-queues", 1]]}],
            "parameters": [
                {
                    "component": "policy",
                    "name": "p",
                    "value": {"pattern": ".", "definition": [["max-length", 1]]},
                },
            ],
            "exchanges": [
                {"name": "amq.direct", "type": "direct", "durable": True, "auto_delete": False}
            ],
            "queues": [{"name": "q", "durable": True, "auto_delete": False, "type": "quorum"}],
            "bindings": [{"source": "", "destination": "q", "destination_type": "queue"}],
        },
        "mine",
    )
    by_name = {(kind, name): (vhost, spec) for kind, vhost, name, spec in wanted}
    assert by_name["user", "a"][1] == {"tags": ["y", "x"], "limits": {}, "password": "pw"}
    assert by_name["user", "b"][1]["password_hash"] == "rabbitmq-sha256$h"
    assert by_name["user", "c"][1]["password_hash"] == ""
    assert by_name["vhost", "v"][1]["limits"] == {"max-queues": 1}
    assert by_name["policy", "p"] == (
        "mine",
        {"pattern": ".", "apply-to": "all", "priority": 0, "definition": {"max-length": 1}},
    )
    assert by_name["queue", "q"][0] == "mine"
    assert by_name["queue", "q"][1]["type"] == "quorum"
    assert {kind for kind, _ in by_name} == {"user", "vhost", "policy", "queue"}


@pytest.mark.parametrize(
    ("definitions", "text"),
    [
        ([], "JSON object"),
        ({"users": {}}, "users: expected a list"),
        ({"users": ["x"]}, r"users\[0\]: expected an object"),
        ({"queues": [{"name": "q"}]}, r"queues\[0\]: 'durable' is missing"),
        ({"vhosts": [{"name": "v", "limits": [1]}]}, r"vhosts\[0\]"),
        (
            {"users": [{"name": "u", "password_hash": "h", "hashing_algorithm": "md5"}]},
            "md5 is not accepted",
        ),
        ({"parameters": [{"component": "operator_policy", "name": "o", "value": 1}]}, "parameters"),
        # The second where it is compiled, which looks at a type sooner.
        ({"vhosts": [{"name": []}]}, r"vhosts\[0\]: (a name is a text|str object expected)"),
        ({"queues": [{"name": "q", "vhost": 1}]}, "a name is a text"),
        ({"parameters": [{"component": "vhost-limits", "vhost": [], "value": {}}]}, "limits"),
        ({"parameters": [{"component": "vhost-limits", "vhost": "/", "value": 5}]}, "limits"),
    ],
)
def test_what_is_wrong_is_named(definitions: Any, text: str) -> None:
    with pytest.raises(BadDefinitions, match=text):
        definitions_json.operations(definitions)


def test_what_says_nothing_of_limits_types_and_passwords_stays_so() -> None:
    spec = {"description": "", "tags": [], "default_queue_type": "", "limits": {}}
    exported = definitions_json.exported([("vhost", "", "plain", spec)], "4.3.6")
    assert exported["vhosts"] == [
        {"name": "plain", "limits": [], "metadata": {"description": "", "tags": []}}
    ]
    assert exported["parameters"] == []
    user = {"name": "external", "tags": []}
    assert definitions_json.operations({"users": [user]}) == [
        ("user", "", "external", {"tags": [], "limits": {}})
    ]


def test_an_operator_policy_for_everything_is_one_for_queues() -> None:
    """RabbitMQ writes `all`, its default, and can only mean queues."""
    value = {"pattern": ".*", "apply-to": "all", "definition": {"max-length": 5}}
    entry = {"component": "operator_policy", "name": "o", "vhost": "/", "value": value}
    ((_, _, _, spec),) = definitions_json.operations({"parameters": [entry]})
    assert spec["apply-to"] == "queues"
