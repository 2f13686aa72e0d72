"""What a publish must pass before it is routed (R-PUB-1), and what its headers say.

The ordinary message (no headers table, no expiration, priority, user-id, reply-to) is recognised by
two bytes of its flag word and not looked at any further (hot-path rule 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokerd.amqp import errors, methods, properties
from brokerd.amqp.values import Table, type_name
from brokerd.core import declare
from brokerd.core.annotations import Annotations
from brokerd.core.refusals import Refused
from brokerd.core.router import RouteResult

if TYPE_CHECKING:
    from brokerd.server.broker import Broker
    from brokerd.server.connection import ClientConnection

#: Flags of headers, priority, reply-to, expiration and user-id in the first flag word.
_SPECIAL_HIGH = 0x20 | 0x08 | 0x02 | 0x01
_SPECIAL_LOW = 0x10
#: Pseudo queue of direct reply-to (R-DRT).
REPLY_QUEUE = "amq.rabbitmq.reply-to"
#: Ten years (R-PUB-4).
EXPIRATION_MS_MAX = 315_360_000_000


@dataclass(slots=True)
class Checked:
    """One message with something special: its route and what the broker keeps beside it."""

    header: bytes
    annotations: Annotations
    result: RouteResult


def all_plain(items: list[tuple[bytes, bytes, bytes]]) -> bool:
    """Tell whether nothing in these messages' properties concerns the broker."""
    last: bytes | None = None
    for _, header, _ in items:
        if header is last or header == last:
            continue
        if header[0] & _SPECIAL_HIGH or header[1] & _SPECIAL_LOW:
            return False
        last = header
    return True


def refuse(refused: Refused) -> errors.ProtocolError:
    """Turn a refusal into the error that closes channel or connection."""
    if refused.connection_level:
        return errors.HardError(refused.text, code=refused.code)
    return errors.SoftError(refused.text, code=refused.code)


def check_exchange(
    broker: Broker, connection: ClientConnection, method: methods.BasicPublish
) -> RouteResult | None:
    """Check rights and existence; return the route, None where each message is looked at."""
    if method.immediate:
        raise errors.NotImplementedByServer("immediate=true")
    result = broker.router.route(connection.vhost, method.exchange, method.routing_key)
    refused = declare.check_publish(connection.access, method.exchange, result.exchange)
    if refused is not None:
        raise refuse(refused)
    if connection.access.check_topic("write", result.exchange, (method.routing_key,)) is not None:
        # R-PUB-1: refused by `check`, after what comes before it.
        return None
    return None if result.needs_headers else result


def check(
    broker: Broker,
    connection: ClientConnection,
    method: methods.BasicPublish,
    header: bytes,
) -> Checked:
    """Look at the properties of one message and route it."""
    kept = Annotations()
    table: Table = {}
    if properties.has_reply_to(header) and _reply_to(header) == REPLY_QUEUE:
        # R-DRT-2: no channel has such a consumer.
        raise errors.PreconditionFailed("fast reply consumer does not exist")
    if properties.has_expiration(header):
        kept.ttl_ms = _expiration_ms(properties.expiration(header) or "")
    extra: list[str] = []
    if properties.has_headers(header):
        table = properties.headers(header)
        copies = _keys(table, "CC")
        kept.bcc = _keys(table, "BCC")
        extra = copies + kept.bcc
        if "BCC" in table:
            # R-RT-C2: removed before storing, kept inside for dead lettering (R-DLX-10).
            rest = {key: value for key, value in table.items() if key != "BCC"}
            header = properties.with_headers(header, rest)
    result = broker.router.route(
        connection.vhost, method.exchange, method.routing_key, table, extra
    )
    keys = (method.routing_key, *extra)
    refused = connection.access.check_topic("write", result.exchange, keys)
    if refused is not None:
        raise refuse(refused)
    if properties.has_user_id(header):
        _check_user(connection, properties.user_id(header) or "")
    if properties.has_priority(header):
        kept.priority = properties.priority(header)
    return Checked(header, kept, result)


def _reply_to(header: bytes) -> str | None:
    return properties.BasicProperties.decode(header).reply_to


def _keys(table: Table, name: str) -> list[str]:
    """R-RT-C1: CC and BCC are arrays; elements that are no strings are skipped."""
    value: Any = table.get(name)
    if name not in table:
        return []
    if not isinstance(value, list):
        raise errors.PreconditionFailed(
            f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}'
        )
    return [item for item in value if isinstance(item, str)]


def _expiration_ms(text: str) -> int:
    """R-PUB-4, R-ERR-31."""
    digits = text.lstrip("-")
    if text.startswith("-") and digits.isascii() and digits.isdigit():
        raise errors.PreconditionFailed(f"invalid expiration '{text}': {{value_negative,{text}}}")
    length = len(text) - len(text.lstrip("0123456789"))
    if not length:
        raise errors.PreconditionFailed(f"invalid expiration '{text}': no_integer")
    if length < len(text):
        raise errors.PreconditionFailed(
            f"invalid expiration '{text}': {{leftover_string,\"{text[length:]}\"}}"
        )
    # 20 digits are more than any limit; longer text must not cost conversion time.
    value = int(text[:20])
    if value > EXPIRATION_MS_MAX:
        raise errors.PreconditionFailed(f"invalid expiration '{text}': {{value_too_large,{text}}}")
    return value


def _check_user(connection: ClientConnection, user_id: str) -> None:
    """R-PUB-3."""
    if user_id != connection.user and "impersonator" not in connection.tags:
        raise errors.PreconditionFailed(
            f"user_id property set to '{user_id}' but authenticated user was '{connection.user}'"
        )
