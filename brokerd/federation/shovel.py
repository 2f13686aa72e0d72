"""Shovels as definitions: what a `shovel` parameter says, and what a shovel writes into messages.

PURE.  Values come from catalog parameters, that is from people: everything is checked and bounded
here, with RabbitMQ's keys and rules (docs/concepts/shovels.md).  For those who set parameters, the
supervisor and the shovel's link; not for connecting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from brokerd.amqp import properties
from brokerd.amqp.values import Table, Value
from brokerd.core.catalog import names
from brokerd.federation import upstream
from brokerd.federation.errors import UpstreamError, unknown_key
from brokerd.federation.upstream import Address

COMPONENT = "shovel"
SOURCE_URI = "src-uri"
DESTINATION_URI = "dest-uri"
#: The keys that may hold a password.
URI_KEYS = (SOURCE_URI, DESTINATION_URI)
PROTOCOL = "amqp091"
NEVER = "never"
KEEP = "keep"
DROP = "drop"
#: What hops a message has made, the last one first.
SHOVELLED = "x-shovelled"
#: Seconds since 1970 when the message passed.
SHOVELLED_TIMESTAMP = "x-shovelled-timestamp"
#: Entries kept in x-shovelled: a ring of shovels must not grow its messages without end.
SHOVELLED_MAX = 64
DEFAULT_VHOST = "/"
ARGUMENTS_MAX = 64
COUNT_MAX = 2**53


@dataclass(slots=True, frozen=True)
class End:
    """One end: where it is, and which queue or exchange of it.  At most one of the two is set."""

    #: Every (re)connect takes one of them at random.  An empty host means this cluster itself, with
    #: the rights of the user, or all rights without one.
    addresses: tuple[Address, ...]
    queue: str | None = None
    exchange: str | None = None
    #: Source: what the exchange is bound with.  Destination: the key of all messages, None to
    #: leave it as it is.
    exchange_key: str | None = None
    queue_arguments: Mapping[str, Any] = field(default_factory=dict)
    #: The queue is not made where it is missing: the shovel tries again until it is there.
    is_predeclared: bool = False
    #: PEM of certificates, trusted besides the URIs' cacertfile; None: those of the system.
    authorities: str | None = field(default=None, repr=False)


@dataclass(slots=True, frozen=True)
class Shovel:
    """A usable definition.  Equal definitions mean equal shovels."""

    vhost: str
    name: str
    source: End
    destination: End
    ack_mode: str = "on-confirm"
    prefetch_count: int = 1000
    reconnect_delay_ms: int = 5000
    consumer_arguments: Mapping[str, Any] = field(default_factory=dict)
    #: Messages after which the shovel deletes itself, upstream.QUEUE_LENGTH for as many as were in
    #: the queue when it connected; None: never.
    delete_after: int | str | None = None
    adds_forward_headers: bool = False
    adds_timestamp_header: bool = False
    #: What is written over the properties of every message.
    properties: Mapping[str, str | int] = field(default_factory=dict)
    #: Whether messages that no queue takes are given up; None: as the profile has it.
    drops_unroutable: bool | None = None

    #: Definition (link_state.py): what a shovel has declared stays.
    cleans_up: bool = False

    @property
    def link_id(self) -> str:
        """Return the name of its link."""
        return link_id(self.vhost, self.name)

    @property
    def authorities(self) -> str | None:
        """Return whom the source's certificate may be signed by."""
        return self.source.authorities

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Return where the source is."""
        return self.source.addresses

    @property
    def publishes_here(self) -> bool:
        """Return whether all messages go to one exchange of this cluster, with all rights."""
        to = self.destination
        return (to.queue is not None or bool(to.exchange)) and not any(
            address.host or address.user for address in to.addresses
        )

    def forwarded(
        self, cluster: str, source_uri: str, destination_uri: str, header: bytes, now_s: int
    ) -> bytes:
        """Return a message's properties as the destination gets them.

        cluster: this one's name.  The URIs are as they are shown, without credentials.  Raises
        AmqpError if the properties cannot be read.
        """
        if not (self.properties or self.adds_forward_headers or self.adds_timestamp_header):
            return header
        if self.properties:
            header = properties.with_fields(header, self.properties)
        if not (self.adds_forward_headers or self.adds_timestamp_header):
            return header
        table = dict(properties.headers(header))
        if self.adds_forward_headers:
            before = table.get(SHOVELLED)
            entries: list[Value] = [self._entry(cluster, source_uri, destination_uri)]
            entries += before if isinstance(before, list) else []
            table[SHOVELLED] = entries[:SHOVELLED_MAX]
        if self.adds_timestamp_header:
            table[SHOVELLED_TIMESTAMP] = now_s
        return properties.with_headers(header, table)

    def _entry(self, cluster: str, source_uri: str, destination_uri: str) -> Table:
        entry: Table = {
            "shovelled-by": cluster,
            "shovel-type": "dynamic",
            "shovel-name": self.name,
            "shovel-vhost": self.vhost,
            SOURCE_URI: source_uri,
            DESTINATION_URI: destination_uri,
        }
        for prefix, end in (("src", self.source), ("dest", self.destination)):
            for suffix, value in (
                ("exchange", end.exchange),
                ("exchange-key", end.exchange_key if end.queue is None else None),
                ("queue", end.queue),
            ):
                if value is not None:
                    entry[f"{prefix}-{suffix}"] = value
        return entry


def link_id(vhost: str, name: str) -> str:
    """Return the name of a shovel's link."""
    return f"shovel {vhost}:{name}"


def parse(vhost: str, name: str, value: Any) -> Shovel:
    """Read a shovel parameter.  Raises UpstreamError, whose text names the key."""
    if not isinstance(value, dict):
        raise UpstreamError("the definition must be a table")
    for key in ("src-protocol", "dest-protocol"):
        if (protocol := value.get(key, PROTOCOL)) != PROTOCOL:
            raise UpstreamError(f"{key} '{_short(protocol)}' is not supported, only '{PROTOCOL}'")
    found: dict[str, Any] = {}
    for key, item in value.items():
        reader = _READERS.get(key)
        if reader is None:
            raise unknown_key(_short(key), _READERS)
        try:
            known = None if item is None else reader[1](item)
        except UpstreamError as error:
            raise UpstreamError(f"{key}: {error}") from None
        # The name of today counts where the old one is there as well; null counts as absent.
        if item is not None and reader[0] and (key not in _LEGACY or reader[0] not in found):
            found[reader[0]] = known
    source, destination = _end("src", found), _end("dest", found)
    if source.queue is None and source.exchange is None:
        raise UpstreamError("must specify 'src-exchange' or 'src-queue'")
    result = Shovel(vhost, name, source, destination, **found)
    if result.ack_mode == "no-ack" and result.delete_after is not None:
        # What the source sends before it reads of the end would be in neither queue.
        raise UpstreamError(
            "cannot specify 'no-ack' and 'src-delete-after': what is under way when the shovel "
            "ends would be lost; set 'ack-mode' to 'on-confirm'"
        )
    return result


def _end(prefix: str, found: dict[str, Any]) -> End:
    """Take one end's fields out of what was read."""
    fields = {
        key.removeprefix(f"{prefix} "): found.pop(key)
        for key in list(found)
        if key.startswith(f"{prefix} ")
    }
    if "addresses" not in fields:
        raise UpstreamError(f"{prefix}-uri is missing")
    if "queue" in fields and "exchange" in fields:
        raise UpstreamError(f"cannot specify '{prefix}-exchange' and '{prefix}-queue'")
    if prefix == "src":
        fields.setdefault("exchange_key", "")
    return End(**fields)


def _short(value: object) -> str:
    return str(value)[:64]


def _uris(value: Any) -> tuple[Address, ...]:
    texts = value if isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        raise UpstreamError("must be a text or a list of texts")
    if len(texts) > upstream.URIS_MAX:
        raise UpstreamError(f"lists more than {upstream.URIS_MAX} URIs")
    return tuple(_address(text) for text in texts)


def _address(text: str) -> Address:
    """A URI without a host means this cluster itself; without a vhost it means the vhost /."""
    address = upstream.parse_uri(text)
    parts = urlsplit(text)
    if not parts.hostname:
        if address.tls:
            raise UpstreamError("uri without a host must begin with amqp://")
        user = address.user if parts.username else ""
        address = replace(address, host="", user=user, shown=f"amqp://{parts.path}")
    return replace(address, vhost=address.vhost or DEFAULT_VHOST)


def _name(value: Any) -> str:
    if not isinstance(value, str) or names.is_too_long(value):
        raise UpstreamError("must be a name of at most 255 bytes")
    return value


def _some_name(value: Any) -> str:
    if not _name(value):
        raise UpstreamError("must not be empty")
    return str(value)


def _boolean(value: Any) -> bool:
    if type(value) is not bool:
        raise UpstreamError("must be true or false")
    return value


def _ack_mode(value: Any) -> str:
    if value not in upstream.ACK_MODES:
        raise UpstreamError(f"must be one of {', '.join(upstream.ACK_MODES)}")
    return str(value)


def _unroutable(value: Any) -> bool:
    if value not in (KEEP, DROP):
        raise UpstreamError(f"must be {KEEP} or {DROP}")
    return bool(value == DROP)


def _integer(value: Any, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise UpstreamError(f"must be a number from {low} to {high}")
    return value


def _prefetch(value: Any) -> int:
    return _integer(value, 0, upstream.PREFETCH_MAX)


def _delay_ms(value: Any) -> int:
    """Seconds, fractions allowed."""
    maximum = upstream.RECONNECT_DELAY_MS_MAX
    if type(value) not in (int, float) or not 0 <= value * 1000 <= maximum:
        raise UpstreamError("must be a number of seconds, at most a day")
    return int(value * 1000)


def _delete_after(value: Any) -> int | str | None:
    if value == NEVER:
        return None
    if value == upstream.QUEUE_LENGTH:
        return upstream.QUEUE_LENGTH
    if type(value) is not int or not 0 <= value <= COUNT_MAX:
        raise UpstreamError(f"must be a number, '{NEVER}' or '{upstream.QUEUE_LENGTH}'")
    return value


def _protocol(_: Any) -> None:
    return None


def _arguments(value: Any) -> Mapping[str, Any]:
    """Arguments of a declare or a consumer: numbers, texts and booleans, as an AMQP table has."""
    if not isinstance(value, dict) or len(value) > ARGUMENTS_MAX:
        raise UpstreamError(f"must be a table of at most {ARGUMENTS_MAX} arguments")
    for key, item in value.items():
        if names.is_too_long(key):
            raise UpstreamError("has a key longer than 255 bytes")
        if type(item) not in (bool, int, str) or (
            type(item) is int and not -(2**63) <= item < 2**63
        ):
            raise UpstreamError(f"'{_short(key)}' must be a number, a text or a boolean")
    return value


#: Properties that a shovel may set, and their shapes.
_PROPERTIES: dict[str, type] = {
    "content_type": str,
    "content_encoding": str,
    "delivery_mode": int,
    "priority": int,
    "correlation_id": str,
    "reply_to": str,
    "expiration": str,
    "message_id": str,
    "timestamp": int,
    "type": str,
    "user_id": str,
    "app_id": str,
    "cluster_id": str,
}
_PROPERTY_MAX = {"delivery_mode": 2, "priority": 255, "timestamp": COUNT_MAX}


def _properties(value: Any) -> Mapping[str, str | int]:
    if not isinstance(value, dict):
        raise UpstreamError("must be a table")
    for key, item in value.items():
        shape = _PROPERTIES.get(key)
        if shape is None:
            raise unknown_key(_short(key), _PROPERTIES)
        if shape is str:
            if not isinstance(item, str) or names.is_too_long(item):
                raise UpstreamError(f"{key} must be a text of at most 255 bytes")
        else:
            low = 1 if key == "delivery_mode" else 0
            if type(item) is not int or not low <= item <= _PROPERTY_MAX[key]:
                raise UpstreamError(f"{key} must be a number from {low} to {_PROPERTY_MAX[key]}")
    return value


#: Keys of versions before 3.7, which RabbitMQ still takes.
_LEGACY = frozenset(
    {
        "prefetch-count",
        "delete-after",
        "add-forward-headers",
        "add-timestamp-header",
        "publish-properties",
    }
)
#: Parameter key to (field, reader); fields of an end begin with its name.
_READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "src-protocol": ("", _protocol),
    "dest-protocol": ("", _protocol),
    SOURCE_URI: ("src addresses", _uris),
    "src-ca-certificates": ("src authorities", upstream.authorities),
    "src-queue": ("src queue", _some_name),
    "src-queue-args": ("src queue_arguments", _arguments),
    "src-predeclared": ("src is_predeclared", _boolean),
    "src-exchange": ("src exchange", _some_name),
    "src-exchange-key": ("src exchange_key", _name),
    "src-consumer-args": ("consumer_arguments", _arguments),
    "src-prefetch-count": ("prefetch_count", _prefetch),
    "prefetch-count": ("prefetch_count", _prefetch),
    "src-delete-after": ("delete_after", _delete_after),
    "delete-after": ("delete_after", _delete_after),
    DESTINATION_URI: ("dest addresses", _uris),
    "dest-ca-certificates": ("dest authorities", upstream.authorities),
    "dest-queue": ("dest queue", _some_name),
    "dest-queue-args": ("dest queue_arguments", _arguments),
    "dest-predeclared": ("dest is_predeclared", _boolean),
    "dest-exchange": ("dest exchange", _name),
    "dest-exchange-key": ("dest exchange_key", _name),
    "dest-add-forward-headers": ("adds_forward_headers", _boolean),
    "add-forward-headers": ("adds_forward_headers", _boolean),
    "dest-add-timestamp-header": ("adds_timestamp_header", _boolean),
    "add-timestamp-header": ("adds_timestamp_header", _boolean),
    "dest-publish-properties": ("properties", _properties),
    "publish-properties": ("properties", _properties),
    "dest-unroutable": ("drops_unroutable", _unroutable),
    "ack-mode": ("ack_mode", _ack_mode),
    "reconnect-delay": ("reconnect_delay_ms", _delay_ms),
}
