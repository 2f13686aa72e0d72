"""Upstream definitions: what a parameter says, which upstreams an exchange has, generated names.

PURE.  Values come from catalog parameters, that is from people: everything is checked and bounded
here (R-FED-2, R-FED-3, R-FED-9).  For the supervisor and the link; not for connecting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from brokerd.amqp.values import Table
from brokerd.core.catalog import federation_type, names, patterns
from brokerd.federation.errors import UpstreamError, unknown_key

#: Every (re)connect takes one of them at random (R-FED-2).
URIS_MAX = 64
URI_CHARACTERS_MAX = 2048
#: Query parameters of a URI.
OPTIONS_MAX = 32
#: Authorities of one upstream, PEM: some forty of them.  The catalog holds it on every member.
AUTHORITIES_CHARACTERS_MAX = 65_536
#: Links of one exchange; more is a mistake in a set or pattern.
UPSTREAMS_OF_EXCHANGE_MAX = 256
#: The longest useful path; x-received-from grows by one table per hop.
HOPS_MAX = 255
#: basic.qos has 16 bits.
PREFETCH_MAX = 65_535
RECONNECT_DELAY_MS_MAX = 86_400_000
ALL = "all"
ACK_MODES = ("on-confirm", "on-publish", "no-ack")
INTERNAL_PURPOSE = "x-internal-purpose"
PURPOSE = "federation"
#: The header that each link adds itself to, newest first (R-FED-11).
RECEIVED_FROM = federation_type.RECEIVED_FROM
#: A link that ends when it has moved what was in the queue (shovels).
QUEUE_LENGTH = "queue-length"
SUFFIXES = ("A", "B")

#: Key of a definition to argument of the upstream queue (R-FX-3).
_QUEUE_ARGUMENTS = {
    "expires": "x-expires",
    "message-ttl": "x-message-ttl",
    "queue-type": "x-queue-type",
}

#: How a URI begins that is kept encrypted (ADR 19); behind it stands the key's name.
SEALED = "sealed:1:"

_PORTS = {"amqp": 5672, "amqps": 5671}

#: Before the name of the upstream.
CONSUMER_TAG_PREFIX = "federation-link-"


@dataclass(slots=True, frozen=True)
class Address:
    """One AMQP URI taken apart.  The password is not shown."""

    host: str
    port: int
    tls: bool
    #: None: the URI names no vhost, the downstream's name is used (R-FED-2).
    vhost: str | None
    user: str
    password: str = field(repr=False)
    #: Query parameters (R-FED-9).
    options: tuple[tuple[str, str], ...] = ()
    #: The URI without credentials and query, for headers and listings (R-FX-13, SEC-22).
    shown: str = ""

    def option(self, name: str, default: str = "") -> str:
        """Return a query parameter, the first of that name."""
        return next((value for key, value in self.options if key == name), default)

    def integer(self, name: str, default: int, maximum: int) -> int:
        """Return a numeric query parameter."""
        text = self.option(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= 9 and int(text) <= maximum):
            raise UpstreamError(f"{self.shown}: {name} must be a number up to {maximum}")
        return int(text)


@dataclass(slots=True, frozen=True)
class Upstream:
    """A usable definition, overrides of a set applied.  Equal definitions mean equal links."""

    name: str
    addresses: tuple[Address, ...]
    #: "": the name of the federated exchange (R-FED-2).
    exchange: str = ""
    #: "": the name of the federated queue (R-FED-2).
    queue: str = ""
    #: "": federation-link and the upstream's name; of federated queues only.
    consumer_tag: str = ""
    prefetch_count: int = 1000
    reconnect_delay_ms: int = 5000
    max_hops: int = 1
    expires_ms: int | None = None
    message_ttl_ms: int | None = None
    ack_mode: str = "on-confirm"
    trust_user_id: bool = False
    queue_type: str | None = None
    bind_nowait: bool = False
    cleans_up: bool = True
    single_channel: bool = False
    #: PEM: who may have signed the upstream's certificate, besides a URI's cacertfile; None: the
    #: system's.  Not compared: another one counts from the next connection on, and must not cost
    #: the link its queue (R-FX-17).
    authorities: str | None = field(default=None, compare=False, repr=False)

    def exchange_name(self, downstream: str) -> str:
        """Return the exchange to follow."""
        return self.exchange or downstream

    def queue_name(self, downstream: str) -> str:
        """Return the queue to take messages from (R-FQ-1)."""
        return self.queue or downstream

    def tag(self) -> str:
        """Return the tag with which the link of a queue consumes (R-FQ-2)."""
        return self.consumer_tag or f"{CONSUMER_TAG_PREFIX}{self.name}"

    def of_exchange(self) -> Upstream:
        """Return it without what only federated queues read: a change of that must not cost the
        link of an exchange its queue (R-FX-17).
        """
        return replace(self, queue="", consumer_tag="")

    def of_queue(self) -> Upstream:
        """Return it without what only federated exchanges read."""
        return replace(
            self,
            exchange="",
            max_hops=1,
            expires_ms=None,
            message_ttl_ms=None,
            queue_type=None,
            bind_nowait=False,
            cleans_up=True,
            single_channel=False,
        )

    def queue_arguments(self) -> Table:
        """Return the upstream queue's arguments (R-FX-3)."""
        arguments: Table = {INTERNAL_PURPOSE: PURPOSE}
        if self.expires_ms is not None:
            arguments["x-expires"] = self.expires_ms
        if self.message_ttl_ms is not None:
            arguments["x-message-ttl"] = self.message_ttl_ms
        if self.queue_type is not None:
            arguments["x-queue-type"] = self.queue_type
        return arguments


def parse_uri(text: str) -> Address:
    """Take an amqp:// or amqps:// URI apart; errors never repeat the text, it has a password."""
    if text.startswith(SEALED):
        key = text.removeprefix(SEALED).partition(":")[0][:8]
        raise UpstreamError(
            f"uri is encrypted with key {key}, which this member does not have or which does not "
            "fit (secrets.key_file): add the key, or set the upstream again"
        )
    if len(text) > URI_CHARACTERS_MAX:
        raise UpstreamError(f"uri is longer than {URI_CHARACTERS_MAX} characters")
    try:
        parts = urlsplit(text)
        port = parts.port
        options = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=OPTIONS_MAX)
    except ValueError:
        raise UpstreamError("uri cannot be read") from None
    if parts.scheme not in _PORTS:
        raise UpstreamError("uri must begin with amqp:// or amqps://")
    if "/" in parts.path[1:]:
        raise UpstreamError("uri names a vhost with a slash in it: write it as %2f")
    host = parts.hostname or "localhost"
    shown_host = f"[{host}]" if ":" in host else host
    shown_port = f":{port}" if port else ""
    vhost = unquote(parts.path[1:]) if parts.path else None
    if vhost is not None and names.is_too_long(vhost):
        raise UpstreamError("uri names a vhost longer than 255 bytes")
    return Address(
        host=host,
        port=port or _PORTS[parts.scheme],
        tls=parts.scheme == "amqps",
        vhost=vhost,
        user=unquote(parts.username) if parts.username is not None else "guest",
        password=unquote(parts.password) if parts.password is not None else "guest",
        options=tuple(options),
        shown=f"{parts.scheme}://{shown_host}{shown_port}{parts.path}",
    )


def _uris(value: Any) -> tuple[Address, ...]:
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UpstreamError("uri must be a text or a list of texts")
    if len(texts) > URIS_MAX:
        raise UpstreamError(f"uri lists more than {URIS_MAX} URIs")
    return tuple(parse_uri(text) for text in texts)


def _integer(low: int, high: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if type(value) is not int or not low <= value <= high:
            raise UpstreamError(f"must be a number from {low} to {high}")
        return value

    return read


def _delay_ms(value: Any) -> int:
    """Seconds, fractions allowed."""
    if type(value) not in (int, float) or not 0 <= value * 1000 <= RECONNECT_DELAY_MS_MAX:
        raise UpstreamError("must be a number of seconds, at most a day")
    return int(value * 1000)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise UpstreamError("must be true or false")
    return value


def _one_of(*allowed: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in allowed:
            raise UpstreamError(f"must be one of {', '.join(allowed)}")
        return str(value)

    return read


def _name(value: Any) -> str:
    if not isinstance(value, str) or names.is_too_long(value):
        raise UpstreamError("must be a name of at most 255 bytes")
    return value


def authorities(value: Any) -> str:
    """PEM of certificates.  Whether they can be read is seen when a link connects."""
    if not isinstance(value, str) or len(value) > AUTHORITIES_CHARACTERS_MAX:
        raise UpstreamError(
            f"must be certificates in PEM, at most {AUTHORITIES_CHARACTERS_MAX} characters"
        )
    if "PRIVATE KEY-----" in value:
        raise UpstreamError(
            "holds a private key, which anybody can list: set it without, and replace that key"
        )
    if "-----BEGIN CERTIFICATE-----" not in value:
        raise UpstreamError("holds no certificate in PEM")
    return value


_EXPIRY = _integer(0, 4_294_967_295)
_CLEANUP = _one_of("default", "never")
_CHANNEL_USE = _one_of("multiple", "single")

#: Parameter key to (field, reader); null counts as absent.
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "uri": ("addresses", _uris),
    "exchange": ("exchange", _name),
    "queue": ("queue", _name),
    "consumer-tag": ("consumer_tag", _name),
    "prefetch-count": ("prefetch_count", _integer(0, PREFETCH_MAX)),
    "reconnect-delay": ("reconnect_delay_ms", _delay_ms),
    "max-hops": ("max_hops", _integer(1, HOPS_MAX)),
    "expires": ("expires_ms", _EXPIRY),
    "message-ttl": ("message_ttl_ms", _EXPIRY),
    "ack-mode": ("ack_mode", _one_of(*ACK_MODES)),
    "trust-user-id": ("trust_user_id", _boolean),
    "queue-type": ("queue_type", _one_of("classic", "quorum")),
    "bind-nowait": ("bind_nowait", _boolean),
    "resource-cleanup-mode": ("cleans_up", lambda value: _CLEANUP(value) == "default"),
    "channel-use-mode": ("single_channel", lambda value: _CHANNEL_USE(value) == "single"),
    "ca-certificates": ("authorities", authorities),
}
#: Known and of no use here (legacy mirrored queues).
_IGNORED = frozenset({"ha-policy"})
_OVERRIDES = frozenset(_READERS.keys() - {"uri"})


def _fields(value: Mapping[str, Any], allowed: frozenset[str] | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, item in value.items():
        if key in _IGNORED or item is None:
            continue
        reader = _READERS.get(key)
        if reader is None or (allowed is not None and key not in allowed):
            raise unknown_key(key, _READERS.keys() if allowed is None else allowed)
        try:
            fields[reader[0]] = reader[1](item)
        except UpstreamError as error:
            text = str(error)
            raise UpstreamError(text if key == "uri" else f"{key} {text}") from None
    return fields


def parse(name: str, value: Any, reconnect_delay_ms: int = 5000) -> Upstream:
    """Read a federation-upstream parameter (R-FED-2)."""
    if not isinstance(value, dict):
        raise UpstreamError("the definition must be a table")
    fields = {"reconnect_delay_ms": reconnect_delay_ms} | _fields(value)
    if "addresses" not in fields:
        raise UpstreamError("uri is missing")
    return Upstream(name=name, **fields)


@dataclass(slots=True, frozen=True)
class Problem:
    """An upstream that cannot be used, for the listing."""

    upstream: str
    text: str


@dataclass(slots=True, frozen=True)
class Choice:
    """What the policy of an exchange or queue says; at most one is set (R-POL-11)."""

    upstream: str | None = None
    upstream_set: str | None = None
    pattern: str | None = None


def select(
    choice: Choice,
    upstreams: Mapping[str, Any],
    sets: Mapping[str, Any],
    reconnect_delay_ms: int = 5000,
) -> tuple[list[Upstream], list[Problem]]:
    """Return the upstreams of an exchange or queue (R-FED-3), and what is wrong with others.

    upstreams, sets: the vhost's parameters by name.  An upstream or set may be named before it is
    made.
    """
    if choice.upstream is not None:
        wanted: list[tuple[str, dict[str, Any]]] = [(choice.upstream, {})]
    elif choice.upstream_set == ALL:
        wanted = [(name, {}) for name in upstreams]
    elif choice.upstream_set is not None:
        wanted = _entries(sets.get(choice.upstream_set))
    elif choice.pattern is not None:
        wanted = [(name, {}) for name in upstreams if patterns.matches(choice.pattern, name)]
    else:
        wanted = []
    found: dict[tuple[str, str, str], Upstream] = {}
    problems = []
    if choice.upstream_set not in (None, ALL) and choice.upstream_set not in sets:
        problems.append(Problem("", f"there is no set '{choice.upstream_set}'"))
    for name, overrides in wanted[:UPSTREAMS_OF_EXCHANGE_MAX]:
        if name not in upstreams:
            problems.append(Problem(name, "there is no upstream of this name"))
            continue
        try:
            upstream = parse(name, upstreams[name], reconnect_delay_ms)
            if overrides:
                upstream = replace(upstream, **_fields(overrides, _OVERRIDES))
        except UpstreamError as error:
            problems.append(Problem(name, str(error)))
            continue
        found.setdefault((upstream.name, upstream.exchange, upstream.queue), upstream)
    return list(found.values()), problems


def _entries(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """A set: a list of tables {upstream, overrides…}; what is no such table is passed over."""
    result = []
    for entry in value if isinstance(value, list) else []:
        if isinstance(entry, dict) and isinstance(entry.get("upstream"), str):
            overrides = {key: item for key, item in entry.items() if key != "upstream"}
            result.append((entry["upstream"], overrides))
    return result


def new_queue_keys(before: Upstream, after: Upstream, vhost: str, exchange: str) -> list[str]:
    """Return the keys because of whose change the link of a downstream exchange needs another
    upstream queue; with any other change it keeps the one it has, and what waits there.
    """
    old, new = before.queue_arguments(), after.queue_arguments()
    keys = [
        key for key, argument in _QUEUE_ARGUMENTS.items() if old.get(argument) != new.get(argument)
    ]
    if before.exchange_name(exchange) != after.exchange_name(exchange):
        keys.append("exchange")
    if _vhosts(before, vhost) - _vhosts(after, vhost):
        keys.append("uri")
    return sorted(keys)


def _vhosts(upstream: Upstream, vhost: str) -> set[str]:
    return {vhost if each.vhost is None else each.vhost for each in upstream.addresses}


def queue_name(
    upstream_exchange: str, upstream_vhost: str, cluster: str, vhost: str, exchange: str
) -> str:
    """Return the upstream queue's name (R-FX-2); too long ones end in a digest of the whole."""
    base = f"federation: {upstream_exchange} -> {cluster}"
    if upstream_vhost != vhost:
        base += f":{vhost}:{exchange}"
    elif upstream_exchange != exchange:
        base += f":{exchange}"
    # Two more bytes for the suffix of the internal exchange.
    if not names.is_too_long(base + " A"):
        return base
    keep = base.encode("utf-8", "surrogateescape")[: names.NAME_BYTES_MAX - 2 - 17]
    return f"{keep.decode('utf-8', 'ignore')}~{names.digest(base)}"


def internal_exchange_arguments(max_hops: int, cluster: str, vhost: str) -> Table:
    """Return the arguments of the internal exchange (R-FX-4)."""
    return {
        federation_type.MAX_HOPS: max_hops,
        federation_type.DOWNSTREAM_NAME: cluster,
        federation_type.DOWNSTREAM_VHOST: vhost,
        INTERNAL_PURPOSE: PURPOSE,
    }


def owner(link_id: str, members: list[str]) -> str | None:
    """Return which of these members runs a link (R-FED-7): rendezvous hashing, so that a member
    that comes or goes moves only its own links.
    """
    return min(members, key=lambda node: (names.digest([link_id, node]), node), default=None)
