"""The list of HTTP API calls that both servers get, in order, in a vhost of the scenario's own.

`{v}` stands for the vhost.  `differs` names the row of docs/compatibility.md (H-…) that says why
the answers are not alike, and `only` what of the answer it is about.  For test_http_api.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

#: What is compared of an answer.
Part = Literal["status", "error", "reason", "value"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call; user: whose name is its password."""

    method: str
    path: str
    body: Any = None
    user: str = "guest"
    #: Row of docs/compatibility.md, and the parts that are not compared for its sake.
    differs: str = ""
    parts: tuple[Part, ...] = ()
    #: Whether the value of a 200 is deterministic, not only its shape.
    exact: bool = False


def h(name: str, *parts: Part) -> dict[str, Any]:
    """Return the fields of a call whose answers differ so."""
    return {"differs": name, "parts": parts}


Q, X, B = "/api/queues/{v}", "/api/exchanges/{v}", "/api/bindings/{v}"
GET_ALL = {"count": 10, "encoding": "auto"}
PLAIN = {"properties": {}, "payload_encoding": "string"}

CALLS: tuple[Call, ...] = (
    # Who calls.
    Call("GET", "/api/whoami", exact=True),
    Call("GET", "/api/whoami", user="nobody"),
    Call("GET", "/api/whoami", user="untagged"),
    Call("GET", "/api/nodes", user="manager"),
    Call("GET", "/api/feature-flags", user="manager"),
    Call("GET", Q, user="outsider"),
    Call("PUT", f"{Q}/no", {}, user="outsider"),
    Call("GET", Q, user="monitor", **h("H-1", "status", "error", "reason")),
    # Paths and methods.
    Call("GET", "/api/nope"),
    Call("DELETE", "/api/overview"),
    Call("PUT", "/api/queues", {}),
    Call("GET", f"{Q}/q/contents"),
    Call("OPTIONS", "/api/queues"),
    Call("GET", "/api/version", **h("H-2", "status", "error", "reason")),
    Call("GET", "/api/deprecated-features", **h("H-2", "status", "error", "reason")),
    Call("GET", "/api/nodes/nope", **h("H-3", "status", "error", "reason")),
    Call("GET", "/api/nodes/nope/memory"),
    # Queues.
    Call("PUT", f"{Q}/q", {"durable": True}),
    Call("PUT", f"{Q}/q", {"durable": True}),
    Call("PUT", f"{Q}/q", {"durable": False}),
    Call("PUT", f"{Q}/transient"),
    Call("PUT", f"{Q}/quorum", {"durable": True, "arguments": {"x-queue-type": "quorum"}}),
    Call("PUT", f"{Q}/a%2Fb%20%C3%A9%22", {"durable": True}),
    Call("GET", f"{Q}/a%2Fb%20%C3%A9%22?columns=name,durable", exact=True),
    Call("DELETE", f"{Q}/a%2Fb%20%C3%A9%22"),
    Call("PUT", f"{Q}/bad", {"arguments": {"x-max-length": "a"}}),
    Call("PUT", f"{Q}/bad", {"auto_delete": 1}),
    Call("PUT", f"{Q}/bad", {"arguments": {"a": None}}),
    Call("PUT", f"{Q}/amq.bad", {}, **h("H-5", "reason")),
    Call("PUT", f"{Q}/bad", b"{"),
    Call("PUT", f"{Q}/bad", b"[]"),
    Call("PUT", "/api/queues/no-vhost/q", {}),
    Call("GET", "/api/queues/no-vhost"),
    Call("GET", f"{Q}/nope"),
    Call("DELETE", f"{Q}/nope"),
    Call("GET", f"{Q}?columns=name,type,durable", exact=True),
    Call("GET", f"{Q}?sort=name&sort_reverse=true&columns=name", exact=True),
    Call("GET", f"{Q}?page=1&page_size=2&columns=name", exact=True),
    Call("GET", f"{Q}?page=2&page_size=2&columns=name", exact=True),
    Call("GET", f"{Q}?page=1&name=Q&columns=name", exact=True),
    Call("GET", f"{Q}?page=1&name=%5Eq&use_regex=true&pagination=false&columns=name", exact=True),
    Call("GET", f"{Q}?page=1&name=(&use_regex=true", exact=True),
    Call("GET", f"{Q}?page=9"),
    Call("GET", f"{Q}?page=0"),
    Call("GET", f"{Q}?page=x"),
    Call("GET", f"{Q}?page=1&page_size=501"),
    Call("GET", f"{Q}?disable_stats=true&columns=name,state", **h("H-6", "value")),
    # Exchanges.
    Call("PUT", f"{X}/x", {}),
    Call("PUT", f"{X}/x", {"type": "direct"}),
    Call("PUT", f"{X}/x", {"type": "topic"}),
    Call("PUT", f"{X}/x", {"type": "never heard of"}),
    Call("PUT", f"{X}/amq.bad", {}, **h("H-5", "reason")),
    Call("PUT", f"{X}/t", {"type": "topic", "durable": True}),
    Call("GET", f"{X}?columns=name,type,durable,internal,auto_delete", exact=True),
    Call("GET", f"{X}/x?columns=name,type,arguments,incoming,outgoing", exact=True),
    Call("GET", f"{X}/amq.default?columns=name,type", exact=True),
    Call("GET", f"{X}/nope"),
    Call("DELETE", f"{X}/amq.topic", **h("H-5", "reason")),
    Call("DELETE", f"{X}/nope"),
    # Bindings.
    Call("POST", f"{B}/e/x/q/q", {}),
    Call("POST", f"{B}/e/x/q/q", {"routing_key": "a b/c~d"}),
    Call("POST", f"{B}/e/x/q/q", {"routing_key": "k", "arguments": {"x": 1}}),
    Call("POST", f"{B}/e/x/e/t", {"routing_key": "k"}),
    Call("POST", f"{B}/e/x/q/nope", {}),
    Call("POST", f"{B}/e/nope/q/q", {}),
    Call("POST", f"{B}/e/amq.default/q/q", {}, **h("H-5", "reason")),
    Call("GET", f"{B}/e/x/q/q/~", exact=True),
    Call("GET", f"{B}/e/x/q/q/a%2Bb%252Fc%257Ed", exact=True),
    Call("GET", f"{B}/e/x/q/q/nope"),
    Call("GET", f"{B}/e/amq.default/q/q", exact=True),
    Call("GET", f"{B}/e/x/e/t", exact=True),
    Call("GET", f"{B}/e/nope/q/q", exact=True),
    Call("GET", f"{X}/x/bindings/source?sort=routing_key&columns=destination,routing_key"),
    Call("GET", f"{X}/t/bindings/destination", exact=True),
    Call("GET", f"{Q}/q/bindings?sort=source,routing_key&columns=source,routing_key", exact=True),
    Call("GET", f"{Q}/nope/bindings", exact=True),
    Call("DELETE", f"{X}/x?if-unused=true"),
    Call("DELETE", f"{B}/e/x/q/q/a%2Bb%252Fc%257Ed"),
    Call("DELETE", f"{B}/e/x/q/q/nope"),
    # Messages.
    Call("POST", f"{X}/x/publish", PLAIN | {"routing_key": "", "payload": "hi"}, exact=True),
    Call("POST", f"{X}/x/publish", PLAIN | {"routing_key": "no", "payload": "hi"}, exact=True),
    Call("POST", f"{X}/nope/publish", PLAIN | {"routing_key": "", "payload": "hi"}),
    Call("POST", f"{X}/x/publish", {"routing_key": "", "payload": "hi"}),
    Call(
        "POST",
        f"{X}/amq.default/publish",
        {
            "properties": {"delivery_mode": 2, "headers": {"a": 1}, "content_type": "t", "odd": 1},
            "routing_key": "q",
            "payload": "/w==",
            "payload_encoding": "base64",
        },
        exact=True,
    ),
    Call(
        *("POST", f"{X}/x/publish"),
        {"properties": {}, "routing_key": "", "payload": "x", "payload_encoding": "odd"},
    ),
    Call(
        *("POST", f"{X}/x/publish"),
        {
            "properties": {"priority": "x"},
            "routing_key": "",
            "payload": "x",
            "payload_encoding": "string",
        },
    ),
    Call("POST", f"{Q}/q/get", GET_ALL | {"ackmode": "ack_requeue_true"}, exact=True),
    Call(
        *("POST", f"{Q}/q/get"),
        {"count": 2, "encoding": "base64", "ackmode": "reject_requeue_true", "truncate": 1},
        exact=True,
    ),
    Call("POST", f"{Q}/q/get", {"count": 1, "encoding": "auto"}),
    Call(
        *("POST", f"{Q}/q/get", {"count": 1, "encoding": "odd", "ackmode": "ack_requeue_true"}),
    ),
    Call(
        *("POST", f"{Q}/q/get", GET_ALL | {"ackmode": "odd"}),
        **h("H-3", "status", "error", "reason"),
    ),
    Call("POST", f"{Q}/q/get", GET_ALL | {"ackmode": "reject_requeue_false"}, exact=True),
    Call("POST", f"{Q}/q/get", GET_ALL | {"ackmode": "ack_requeue_false"}, exact=True),
    Call("POST", f"{Q}/nope/get", GET_ALL | {"ackmode": "ack_requeue_false"}),
    Call("POST", f"{Q}/q/get", GET_ALL | {"ackmode": "ack_requeue_true"}, user="outsider"),
    Call("POST", f"{Q}/q/actions", {"action": "sync"}),
    Call("POST", f"{Q}/q/actions", {"action": "odd"}),
    Call("DELETE", f"{Q}/q/contents"),
    Call("DELETE", f"{Q}/nope/contents"),
    Call("DELETE", f"{Q}/q?if-empty=true"),
    Call("DELETE", f"{X}/x"),
)
