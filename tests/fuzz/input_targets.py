"""What is fuzzed of people's input: federation upstreams and headers, configuration, definitions.

Used by `tests.fuzz` only.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

from brokerd import config
from brokerd.amqp import values
from brokerd.amqp.errors import AmqpError
from brokerd.config import ConfigError
from brokerd.core.catalog import definitions_json
from brokerd.core.catalog.definitions_json import BadDefinitions
from brokerd.federation import link_bindings, upstream
from brokerd.federation.errors import UpstreamError
from brokerd.federation.link_bindings import Ends
from tests.fuzz.target import Target

ENDS = Ends("down", "/", "x", "A", "up", "/", 3)
_FILE = Path(tempfile.gettempdir()) / "brokerd-fuzz.toml"


def uri(data: bytes) -> None:
    """An upstream's URI; what is told of a wrong one does not repeat it (SEC-22)."""
    text = data.decode("utf-8", "replace")
    try:
        address = upstream.parse_uri(text)
        address.integer("heartbeat", 10, 65_535)
    except UpstreamError:
        return
    assert 0 < address.port <= 65_535
    assert address.host


def upstream_definition(data: bytes) -> None:
    """A federation-upstream parameter."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(UpstreamError):
        upstream.parse("u", value)


def federation_headers(data: bytes) -> None:
    """The arguments of a binding downstream, which go into the binding upstream (R-FX-8)."""
    try:
        arguments, _ = values.decode_table(data, 0)
    except AmqpError:
        return
    carried = link_bindings.propagate("k", arguments, ENDS)
    if carried is not None:
        again = link_bindings.propagate("k", carried.arguments, ENDS)
        assert again is None or again.arguments is not carried.arguments


def configuration(data: bytes) -> None:
    """A configuration file and, behind a NUL, environment variables."""
    text, _, variables = data.partition(b"\0")
    _FILE.write_bytes(text)
    pairs = [each.partition(b"=") for each in variables.split(b"\n")]
    environ = {
        "BROKERD_" + name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
        for name, _, value in pairs
        if name
    }
    with contextlib.suppress(ConfigError):
        config.load(_FILE, environ, {})


def definitions(data: bytes) -> None:
    """A file of RabbitMQ's definitions."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    with contextlib.suppress(BadDefinitions):
        definitions_json.operations(value)


def uri_seeds() -> list[bytes]:
    """URIs that are right, and nearly so."""
    return [
        b"amqp://",
        b"amqp://user:p%40ss@host.example:5673/v%2fhost?heartbeat=10&channel_max=5",
        b"amqps://[::1]:5671/?verify=verify_none&server_name_indication=x",
        b"amqp://host:99999/a/b",
        b"http://host",
    ]


def upstream_seeds() -> list[bytes]:
    """Definitions with each key."""
    full = {
        "uri": ["amqp://a", "amqp://b"],
        "prefetch-count": 5,
        "reconnect-delay": 1.5,
        "ack-mode": "no-ack",
        "trust-user-id": True,
        "max-hops": 2,
        "expires": 1000,
        "message-ttl": 0,
        "exchange": "e",
        "queue-type": "quorum",
        "bind-nowait": False,
    }
    return [json.dumps(each).encode() for each in (full, {"uri": "amqp://"}, {}, [])]


def federation_seeds() -> list[bytes]:
    """Bindings that have come some way."""
    entry: values.Value = {"cluster-name": "up", "vhost": "/", "exchange": "x", "hops": 2}
    other: values.Value = {"cluster-name": "c", "vhost": "v", "exchange": "x", "hops": 1}
    return [
        values.encode_table({link_bindings.BOUND_FROM: found, "a": 1})
        for found in ([], [entry], [other], [other, entry], "text")
    ]


def configuration_seeds() -> list[bytes]:
    """Sections, and variables."""
    toml = b'[listeners]\namqp = 5672\n[memory]\nwatermark = 0.5\n[compat]\nprofile = "mrg"\n'
    return [toml, toml + b"\0LISTENERS_AMQP=1\nCOMPAT_PROFILE=reference", b"a = 1", b"[x]"]


def definition_seeds() -> list[bytes]:
    """Small files of definitions."""
    full = {
        "users": [{"name": "u", "password_hash": "aGFzaA==", "tags": ["administrator"]}],
        "vhosts": [{"name": "/", "limits": []}],
        "permissions": [
            {"user": "u", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}
        ],
        "parameters": [
            {
                "component": "vhost-limits",
                "vhost": "/",
                "name": "limits",
                "value": {"max-queues": 1},
            }
        ],
        "policies": [
            {
                "vhost": "/",
                "name": "p",
                "pattern": "",
                "apply-to": "all",
                "definition": {"expires": 1},
            }
        ],
        "queues": [{"name": "q", "vhost": "/", "durable": True, "arguments": {"x-max-length": 1}}],
        "exchanges": [{"name": "e", "vhost": "/", "type": "topic", "durable": True}],
        "bindings": [
            {"source": "e", "vhost": "/", "destination": "q", "destination_type": "queue"}
        ],
    }
    return [json.dumps(full).encode(), *(json.dumps({k: v}).encode() for k, v in full.items())]


TARGETS: dict[str, Target] = {
    "uris": Target(uri, uri_seeds, 512),
    "upstreams": Target(upstream_definition, upstream_seeds, 1024),
    "federation-headers": Target(federation_headers, federation_seeds, 1024),
    "configuration": Target(configuration, configuration_seeds, 1024),
    "definitions": Target(definitions, definition_seeds, 2048),
}
