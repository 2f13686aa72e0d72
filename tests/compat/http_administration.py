"""The list of HTTP API calls about administration: vhosts, users, rights, policies, parameters,
definitions, clients, health checks, federation and shovels.

In the form of http_calls.py; for test_http_administration.py.  Users and vhosts of its own begin
with `adm-` and are deleted at the end.
"""

from __future__ import annotations

from typing import Any

from tests.compat.http_calls import Call, Part, h

V, W = "/api/vhosts/adm-v", "/api/vhosts/adm-w"
U, PERMISSION, TOPIC = "/api/users", "/api/permissions", "/api/topic-permissions"
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
HASH = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
CHECKS = "/api/health/checks"
UPSTREAM = "/api/parameters/federation-upstream/adm-v"
SHOVEL = {"src-uri": "amqp://", "src-queue": "s", "dest-uri": "amqp://", "dest-queue": "d"}
ANSWER: tuple[Part, ...] = ("status", "error", "reason", "value")


def differs(name: str) -> dict[str, Any]:
    """Return the fields of a call that is answered in another way altogether."""
    return h(name, *ANSWER)


WORDS = h("H-101", "reason")
LATER = differs("H-102")
BROKEN = differs("H-103")

_VHOSTS = (
    Call("PUT", V, {}),
    Call("PUT", V, {}),
    Call("PUT", V, b""),
    Call("PUT", V, b"[1]"),
    Call("PUT", V, b"{x"),
    Call("PUT", W, {"description": "d", "tags": "a, b", "tracing": True}),
    Call("GET", f"{W}?columns=name,description,tags,metadata,tracing", exact=True),
    Call("PUT", W, {"tags": ["b", "a"]}),
    Call("GET", f"{W}?columns=description,tags,tracing", exact=True),
    Call("PUT", W, {"tracing": "false"}),
    Call("GET", f"{W}?columns=tags,tracing", exact=True),
    Call("PUT", W, {"tracing": "maybe"}),
    Call("PUT", W, {"description": 5}, **differs("H-104")),
    Call("PUT", W, {"default_queue_type": "nope"}, **differs("H-104")),
    Call("GET", f"{V}?columns=name,default_queue_type", exact=True),
    Call("GET", "/api/vhosts/adm-none"),
    Call("GET", "/api/vhosts?columns=name,tracing", exact=True),
    Call("GET", "/api/vhosts?page=1&page_size=1&columns=name", exact=True),
    Call("GET", f"{V}/permissions", exact=True),
    Call("GET", "/api/vhosts/adm-none/permissions"),
    Call("GET", f"{V}/topic-permissions", exact=True),
    Call("POST", f"{V}/start/nowhere"),
    Call("GET", f"{V}/start/nowhere"),
    Call("POST", f"{V}/deletion/protection", **LATER),
    Call("DELETE", f"{V}/deletion/protection", **LATER),
    Call("DELETE", "/api/vhosts/adm-none"),
    Call("POST", "/api/vhosts"),
    Call("OPTIONS", "/api/vhosts"),
    Call("PUT", "/api/vhost-limits/adm-v/max-connections", {"value": 5}),
    Call("PUT", "/api/vhost-limits/adm-v/max-queues", {"value": -1}),
    Call("PUT", "/api/vhost-limits/adm-v/nope", {"value": 5}, **WORDS),
    Call("PUT", "/api/vhost-limits/adm-v/max-queues", {"value": "x"}, **WORDS),
    Call("PUT", "/api/vhost-limits/adm-v/max-queues", {}),
    Call("PUT", "/api/vhost-limits/adm-none/max-queues", {"value": 5}),
    Call("GET", "/api/vhost-limits/adm-v", exact=True),
    Call("GET", "/api/vhost-limits/adm-w", exact=True),
    Call("GET", "/api/vhost-limits/adm-none"),
    Call("GET", "/api/vhost-limits/adm-v/max-queues"),
    Call("DELETE", "/api/vhost-limits/adm-v/max-queues"),
    Call("DELETE", "/api/vhost-limits/adm-v/max-queues"),
    Call("GET", "/api/vhost-limits", exact=True),
    Call("DELETE", "/api/vhost-limits/adm-none/max-queues", **BROKEN),
)

_USERS = (
    Call("PUT", f"{U}/adm-u", {}),
    Call("PUT", f"{U}/adm-u", {"password": "adm-u", "tags": "management"}),
    Call("PUT", f"{U}/adm-u", {"password": "adm-u", "tags": ["management", "x y"]}),
    Call("GET", f"{U}/adm-u?columns=name,tags,limits", exact=True),
    Call("PUT", f"{U}/adm-p", {"password": "adm-p", "tags": "policymaker"}),
    Call("PUT", f"{U}/adm-h", {"password_hash": HASH, "tags": "policymaker, monitoring"}),
    Call("GET", f"{U}/adm-h", exact=True),
    Call("GET", "/api/whoami", user="adm-h"),
    Call("PUT", f"{U}/adm-h", {"tags": ""}),
    Call("GET", f"{U}/adm-h", exact=True),
    Call("PUT", f"{U}/adm-h", {"password_hash": "not base64!", "tags": ""}),
    Call("PUT", f"{U}/adm-h", {"password_hash": HASH, "password": "x", "tags": ""}),
    Call(
        *("PUT", f"{U}/adm-h"),
        {"password_hash": HASH, "hashing_algorithm": "rabbit_password_hashing_sha512", "tags": "a"},
    ),
    Call("GET", f"{U}/adm-h", exact=True),
    Call("PUT", f"{U}/adm-h", {"password": 5, "tags": ""}, **BROKEN),
    Call("PUT", f"{U}/adm-h", {"password": "x", "tags": 7}, **BROKEN),
    Call("PUT", f"{U}/adm-h", {"password": "x", "tags": [1]}, **differs("H-104")),
    Call("PUT", f"{U}/adm%2F%C3%A9", {"password": "x", "tags": ""}),
    Call("GET", f"{U}/adm%2F%C3%A9?columns=name", exact=True),
    Call("DELETE", f"{U}/adm%2F%C3%A9"),
    Call("GET", f"{U}/adm-none"),
    Call("DELETE", f"{U}/adm-none"),
    Call("GET", f"{U}?columns=name", exact=True),
    Call("GET", f"{U}?page=1&page_size=2&columns=name", exact=True),
    Call("GET", f"{U}/without-permissions?columns=name", exact=True),
    Call("POST", f"{U}/bulk-delete", {"users": ["adm-none"]}),
    Call("POST", f"{U}/bulk-delete", {"users": ["adm-h"]}),
    Call("POST", f"{U}/bulk-delete", {}),
    Call("POST", f"{U}/bulk-delete", {"users": "adm-u"}, **BROKEN),
    Call("PUT", "/api/user-limits/adm-u/max-connections", {"value": 5}),
    Call("PUT", "/api/user-limits/adm-u/max-channels", {"value": -7}),
    Call("PUT", "/api/user-limits/adm-u/nope", {"value": 5}, **WORDS),
    Call("PUT", "/api/user-limits/adm-u/max-channels", {"value": "x"}, **WORDS),
    Call("PUT", "/api/user-limits/adm-u/max-channels", {}),
    Call("PUT", "/api/user-limits/adm-none/max-channels", {"value": 5}),
    Call("GET", "/api/user-limits", exact=True),
    Call("GET", "/api/user-limits/adm-u", exact=True),
    Call("GET", "/api/user-limits/adm-p", exact=True),
    Call("GET", "/api/user-limits/adm-none"),
    Call("GET", f"{U}/adm-u?columns=limits", exact=True),
    Call("DELETE", "/api/user-limits/adm-u/max-channels"),
    Call("DELETE", "/api/user-limits/adm-u/max-channels"),
    Call("DELETE", "/api/user-limits/adm-none/max-channels", **BROKEN),
)

_RIGHTS = (
    Call("PUT", f"{PERMISSION}/adm-v/adm-u", ALL),
    Call("PUT", f"{PERMISSION}/adm-v/adm-p", ALL),
    Call("PUT", f"{PERMISSION}/adm-v/adm-u", ALL | {"configure": "a", "more": 1}),
    Call("PUT", f"{PERMISSION}/adm-v/adm-none", ALL),
    Call("PUT", f"{PERMISSION}/adm-none/adm-u", ALL),
    Call("PUT", f"{PERMISSION}/adm-v/adm-u", {"configure": "a"}),
    Call("PUT", f"{PERMISSION}/adm-v/adm-u", ALL | {"configure": "["}, **WORDS),
    Call("PUT", f"{PERMISSION}/adm-v/adm-u", ALL | {"configure": 5}, **BROKEN),
    Call("GET", f"{PERMISSION}/adm-v/adm-u", exact=True),
    Call("GET", f"{PERMISSION}/adm-v/adm-none"),
    Call("GET", f"{PERMISSION}/adm-none/adm-u"),
    Call("GET", f"{U}/adm-u/permissions", exact=True),
    Call("GET", f"{U}/adm-none/permissions"),
    Call("GET", f"{PERMISSION}?columns=user,vhost", exact=True),
    Call("DELETE", f"{PERMISSION}/adm-v/adm-none"),
    Call("PUT", f"{TOPIC}/adm-v/adm-u", {"exchange": "amq.topic", "write": "^a", "read": ".*"}),
    Call("PUT", f"{TOPIC}/adm-v/adm-u", {"exchange": "amq.topic", "write": "^b", "read": ".*"}),
    Call("PUT", f"{TOPIC}/adm-v/adm-u", {"exchange": "t", "write": "^a", "read": ".*"}),
    Call("PUT", f"{TOPIC}/adm-v/adm-none", {"exchange": "t", "write": "^a", "read": ".*"}),
    Call("PUT", f"{TOPIC}/adm-v/adm-u", {"write": "^a", "read": ".*"}),
    Call("GET", f"{TOPIC}/adm-v/adm-u?sort=exchange", exact=True),
    Call("GET", f"{TOPIC}/adm-v/adm-p"),
    Call("GET", f"{V}/topic-permissions?sort=exchange", exact=True),
    Call("GET", f"{U}/adm-u/topic-permissions?sort=exchange", exact=True),
    Call("GET", f"{TOPIC}?sort=exchange", exact=True),
    Call("DELETE", f"{TOPIC}/adm-v/adm-u"),
    Call("DELETE", f"{TOPIC}/adm-v/adm-u"),
)


def _policies(path: str) -> tuple[Call, ...]:
    one, two = f"{path}/adm-v/p", f"{path}/adm-v/q"
    plain = {"pattern": "^a", "definition": {"max-length": 5}}
    return (
        Call("PUT", one, plain | {"apply-to": "queues"}),
        Call("PUT", one, plain | {"priority": 2, "apply-to": "queues", "more": 1}),
        Call("PUT", two, {"pattern": "^a"}),
        Call("PUT", two, plain | {"pattern": "["}, **WORDS),
        Call("PUT", two, plain | {"pattern": 5}, **WORDS),
        Call("PUT", two, plain | {"definition": {"nope": 5}}, **WORDS),
        Call("PUT", two, plain | {"definition": {"max-length": "x"}}, **WORDS),
        Call("PUT", two, plain | {"definition": {}}, **WORDS),
        Call("PUT", two, plain | {"definition": "x"}, **BROKEN),
        Call("PUT", two, plain | {"priority": "x"}, **WORDS),
        Call("PUT", two, plain | {"apply-to": "x"}, **WORDS),
        Call("PUT", f"{path}/adm-none/q", plain),
        Call("GET", one, exact=True),
        Call("GET", two),
        Call("GET", f"{path}/adm-none/p"),
        Call("GET", f"{path}/adm-v", exact=True),
        Call("GET", f"{path}/adm-none"),
        Call("GET", f"{path}?columns=name,vhost", exact=True),
        Call("GET", f"{path}/adm-v", user="adm-u", exact=True),
        Call("GET", f"{path}/adm-w", user="adm-u"),
        Call("GET", f"{path}/adm-v", user="monitor", **differs("H-1")),
        Call("PUT", two, plain, user="adm-u"),
        Call("DELETE", one, user="adm-u"),
        Call("PUT", two, plain, user="adm-p"),
        Call("PUT", f"{path}/adm-w/q", plain, user="adm-p"),
        Call("DELETE", two, user="adm-p"),
        Call("DELETE", one),
        Call("DELETE", one),
    )


_POLICIES = (
    *_policies("/api/policies"),
    Call("GET", "/api/policies/adm-v/none", user="adm-u"),
    Call(
        *("PUT", "/api/policies/adm-v/p"),
        {"pattern": "a", "definition": {"ha-mode": "all"}},
        **differs("H-105"),
    ),
    *_policies("/api/operator-policies"),
    Call(
        *("PUT", "/api/operator-policies/adm-v/p"),
        {"pattern": "a", "definition": {"alternate-exchange": "x"}},
        **WORDS,
    ),
)

_GLOBAL = "/api/global-parameters"
_PARAMETERS = (
    Call("PUT", f"{_GLOBAL}/adm-g", {"value": {"a": [1, "b", None]}}),
    Call("PUT", f"{_GLOBAL}/adm-g", {"value": 5}),
    Call("PUT", f"{_GLOBAL}/adm-g", {}),
    Call("GET", f"{_GLOBAL}/adm-g", exact=True),
    Call("GET", f"{_GLOBAL}?columns=name", exact=True),
    Call("GET", _GLOBAL, user="adm-u"),
    Call("GET", f"{_GLOBAL}/adm-none"),
    Call("DELETE", f"{_GLOBAL}/adm-g", user="monitor"),
    Call("DELETE", f"{_GLOBAL}/adm-g"),
    Call("DELETE", f"{_GLOBAL}/adm-g"),
    Call("PUT", f"{UPSTREAM}/up", {"value": {"uri": "amqp://127.0.0.1:1", "max-hops": 2}}),
    Call("PUT", f"{UPSTREAM}/up", {"value": {"uri": "amqp://u:pw@127.0.0.1:1"}}),
    Call("PUT", f"{UPSTREAM}/no", {"value": {}}, **WORDS),
    Call("PUT", f"{UPSTREAM}/no", {"value": {"uri": 5}}, **WORDS),
    Call("PUT", f"{UPSTREAM}/no", {"value": {"uri": "http://x"}}, **WORDS),
    Call("PUT", f"{UPSTREAM}/no", {"value": {"uri": "amqp://", "nope": 5}}, **WORDS),
    Call("PUT", f"{UPSTREAM}/no", {}),
    Call("PUT", "/api/parameters/nope/adm-v/x", {"value": {}}),
    Call("PUT", "/api/parameters/policy/adm-v/x", {"value": {}}),
    Call("PUT", "/api/parameters/federation-upstream/adm-none/x", {"value": {"uri": "amqp://"}}),
    Call(
        *("PUT", "/api/parameters/federation-upstream-set/adm-v/s"),
        {"value": [{"upstream": "up"}]},
    ),
    Call("PUT", "/api/parameters/vhost-limits/adm-v/limits", {"value": {"max-queues": 30}}),
    Call("GET", "/api/vhost-limits/adm-v", exact=True),
    Call("GET", "/api/parameters?columns=name,component", exact=True),
    Call("GET", "/api/parameters/federation-upstream", exact=True),
    Call("GET", UPSTREAM, exact=True),
    Call("GET", "/api/parameters/nope", exact=True),
    Call("GET", "/api/parameters/federation-upstream/adm-none"),
    Call("GET", f"{UPSTREAM}/up", exact=True),
    Call("GET", f"{UPSTREAM}/up", user="adm-p", **h("H-106", "value")),
    Call("GET", UPSTREAM, user="adm-u"),
    Call("GET", f"{UPSTREAM}/none"),
    Call("DELETE", f"{UPSTREAM}/none"),
    Call("DELETE", f"{UPSTREAM}/up", user="adm-u"),
    Call("GET", "/api/federation-links/adm-v", exact=True),
    Call("GET", "/api/federation-links/adm-none"),
    Call("GET", "/api/federation-links", user="adm-u"),
    Call("PUT", "/api/parameters/shovel/adm-v/sh", {"value": SHOVEL}),
    Call("PUT", "/api/parameters/shovel/adm-v/no", {"value": {"src-uri": "amqp://"}}, **WORDS),
    Call("GET", "/api/shovels/adm-none"),
    Call("GET", "/api/shovels/vhost/adm-v/none"),
    Call("DELETE", "/api/shovels/vhost/adm-v/none/restart"),
    Call("DELETE", "/api/shovels/vhost/adm-v/none", user="monitor", **differs("H-107")),
    Call("DELETE", "/api/shovels/vhost/adm-v/sh"),
    Call("DELETE", "/api/shovels/vhost/adm-v/sh"),
    Call("DELETE", f"{UPSTREAM}/up"),
    Call("DELETE", "/api/parameters/federation-upstream-set/adm-v/s"),
)

_QUEUE = {"name": "dq", "durable": True, "auto_delete": False, "arguments": {}}
_FILE = {
    "users": [{"name": "adm-f", "password_hash": "", "tags": ""}],
    "vhosts": [{"name": "adm-f"}],
    "permissions": [{"user": "adm-f", "vhost": "adm-f", "configure": "", "write": "", "read": ""}],
    "queues": [_QUEUE | {"vhost": "adm-f", "arguments": {"x-max-length": 5}}],
    "exchanges": [
        {
            "name": "dx",
            "vhost": "adm-f",
            "type": "topic",
            "durable": False,
            "auto_delete": False,
            "internal": False,
            "arguments": {},
        }
    ],
    "bindings": [
        {
            "source": "dx",
            "vhost": "adm-f",
            "destination": "dq",
            "destination_type": "queue",
            "routing_key": "a.b",
            "arguments": {"k": 1},
        }
    ],
}
_DEFINITIONS = (
    Call("POST", "/api/definitions", _FILE),
    Call("POST", "/api/definitions", _FILE),
    Call("GET", f"{PERMISSION}/adm-f/adm-f", exact=True),
    Call("GET", "/api/vhosts/adm-f/permissions?columns=user", exact=True),
    Call("GET", "/api/definitions/adm-f", **h("H-111", "value")),
    Call("GET", "/api/definitions/adm-none"),
    Call("GET", "/api/definitions?columns=rabbit_version,rabbitmq_version", exact=True),
    Call("GET", "/api/definitions", user="adm-p"),
    Call("POST", "/api/definitions", {}),
    Call("POST", "/api/definitions", b""),
    Call("POST", "/api/definitions", {"nope": 5}),
    Call("POST", "/api/definitions", b"[]", **h("H-101", "reason")),
    Call("POST", "/api/definitions", {"queues": 5}, **BROKEN),
    Call("POST", "/api/definitions", {"queues": [_QUEUE | {"vhost": "adm-none"}]}),
    Call("POST", "/api/definitions", {"queues": [_QUEUE]}),
    Call("POST", "/api/definitions/adm-f", {"queues": [_QUEUE | {"name": "dq2"}]}),
    Call("POST", "/api/definitions/adm-none", {"queues": [_QUEUE]}),
    Call("POST", "/api/definitions/adm-f", {}, user="adm-u"),
    Call("GET", "/api/queues/adm-f?columns=name,arguments&sort=name", exact=True),
    Call("PUT", "/api/definitions", {}),
    Call("DELETE", "/api/vhosts/adm-f"),
    Call("DELETE", f"{U}/adm-f"),
)

_CLIENTS = (
    Call("GET", "/api/connections/adm-none"),
    Call("GET", "/api/connections/adm-none/channels", **BROKEN),
    Call("GET", "/api/connections/adm-none", user="adm-u", **BROKEN),
    Call("GET", "/api/connections/username/guest", user="adm-u", **BROKEN),
    Call("GET", "/api/connections/username/adm-none", exact=True),
    Call("DELETE", "/api/connections/adm-none"),
    Call("DELETE", "/api/connections/username/adm-none"),
    Call("GET", "/api/vhosts/adm-none/connections"),
    Call("GET", f"{V}/connections", exact=True),
    Call("GET", f"{W}/connections", user="adm-u"),
    Call("GET", "/api/vhosts/adm-none/channels"),
    Call("GET", f"{V}/channels", exact=True),
    Call("GET", "/api/channels/adm-none"),
    Call("GET", "/api/consumers/adm-v", exact=True),
    Call("GET", "/api/consumers/adm-none"),
)

_HEALTH = (
    Call("GET", f"{CHECKS}/alarms", exact=True),
    Call("GET", f"{CHECKS}/local-alarms", exact=True),
    Call("GET", f"{CHECKS}/node-is-quorum-critical", exact=True),
    Call("GET", f"{CHECKS}/virtual-hosts", exact=True),
    Call("GET", f"{CHECKS}/is-in-service", **LATER),
    Call("GET", f"{CHECKS}/ready-to-serve-clients", **LATER),
    Call("GET", f"{CHECKS}/quorum-queues-without-elected-leaders/all-vhosts", **LATER),
    Call("GET", f"{CHECKS}/port-listener/1"),
    Call("GET", f"{CHECKS}/port-listener/x"),
    Call("GET", f"{CHECKS}/protocol-listener/amqp", exact=True),
    Call("GET", f"{CHECKS}/protocol-listener/nope"),
    Call("GET", f"{CHECKS}/certificate-expiration/1/months", exact=True),
    Call("GET", f"{CHECKS}/certificate-expiration/x/months"),
    Call("GET", f"{CHECKS}/certificate-expiration/1/eons"),
    Call("GET", f"{CHECKS}/nope"),
    Call("GET", "/api/healthchecks/node", exact=True),
    Call("GET", "/api/aliveness-test/adm-v", exact=True),
    Call("GET", "/api/aliveness-test/adm-none"),
    Call("GET", "/api/aliveness-test/adm-w", user="adm-u"),
    Call("GET", f"{CHECKS}/alarms", user="untagged"),
    Call("GET", "/api/auth/attempts/adm-none"),
    Call("GET", "/api/auth/attempts/adm-none", user="adm-u"),
    Call("GET", "/api/login"),
    Call("POST", "/api/login", b"username=guest&password=guest", **differs("H-109")),
    Call("POST", "/api/login", b"username=guest&password=wrong"),
    Call("POST", "/api/rebalance/queues", {}),
    Call("POST", "/api/rebalance/queues", {}, user="monitor"),
    Call("GET", "/api/rebalance/queues"),
)

_OTHERS = tuple(
    Call(method, path, body, user=user)
    for user in ("adm-u", "adm-p", "monitor", "untagged", "nobody")
    for method, path, body in (
        ("GET", V, None),
        ("PUT", V, {}),
        ("DELETE", V, None),
        ("GET", f"{V}/permissions", None),
        ("GET", U, None),
        ("PUT", f"{U}/adm-u", {"tags": "administrator", "password": "adm-u"}),
        ("DELETE", f"{U}/guest", None),
        ("POST", f"{U}/bulk-delete", {"users": ["guest"]}),
        ("GET", PERMISSION, None),
        ("PUT", f"{PERMISSION}/adm-w/adm-u", ALL),
        ("PUT", "/api/user-limits/adm-u/max-channels", {"value": 1}),
        ("PUT", "/api/vhost-limits/adm-v/max-queues", {"value": 1}),
        ("DELETE", "/api/vhost-limits/adm-v/max-queues", None),
        ("POST", "/api/definitions", {}),
        ("GET", "/api/definitions/adm-v", None),
    )
)

_END = (
    Call("DELETE", f"{U}/adm-u"),
    Call("DELETE", f"{U}/adm-p"),
    Call("DELETE", V),
    Call("DELETE", W),
)

CALLS: tuple[Call, ...] = (
    *_VHOSTS,
    *_USERS,
    *_RIGHTS,
    *_POLICIES,
    *_PARAMETERS,
    *_DEFINITIONS,
    *_CLIENTS,
    *_HEALTH,
    *_OTHERS,
    *_END,
)
