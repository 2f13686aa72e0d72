"""What a publish must pass before it is routed (R-PUB-1), and what its headers say.

The ordinary message (no headers table, no expiration, priority, user-id, reply-to) is recognised by
two bytes of its flag word and not looked at any further (hot-path.md rule 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from brokerd.amqp import errors, methods, properties
from brokerd.amqp.values import Table, type_name
from brokerd.core.annotations import Annotations
from brokerd.core.catalog import declare, delayed_type, delivery_time
from brokerd.core.catalog.permissions import Access
from brokerd.core.catalog.refusals import Refused
from brokerd.core.catalog.router import RouteResult
from brokerd.server.messages import ports
from brokerd.server.messages.reply_to import PREFIX, PSEUDO_QUEUE

#: Flags of headers, priority, reply-to, expiration and user-id in the first flag word.
_SPECIAL_HIGH = 0x20 | 0x08 | 0x02 | 0x01
_SPECIAL_LOW = 0x10
#: Ten years (R-PUB-4).
EXPIRATION_MS_MAX = 315_360_000_000
#: What a queue machine refuses with, when it is not a reply code of AMQP.
_INTERNAL_CODES_BELOW = 403


class Client(ports.Client, Protocol):
    """Who publishes, and what it may."""

    @property
    def access(self) -> Access:
        """Return its rights."""
        ...

    @property
    def tags(self) -> Sequence[str]:
        """Return its user's tags."""
        ...


@dataclass(slots=True)
class Checked:
    """One message with something special: its route and what the broker keeps beside it."""

    header: bytes
    annotations: Annotations
    result: RouteResult
    #: Pseudo queues of direct reply-to among its keys (R-DRT-3).
    replies: tuple[str, ...] = ()


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


def machine_refusal(refused: Refused, resource: str) -> errors.ProtocolError:
    """Turn a queue machine's refusal into the error that closes channel or connection."""
    code, text = refused.code, refused.text
    if code < _INTERNAL_CODES_BELOW:
        return errors.InternalError(f"{resource}: {text}")
    subject = f"cannot obtain access to locked {resource}." if code == 405 else resource
    return refuse(Refused(code, f"{subject} {text}", code >= 500))


def check_exchange(
    routing: ports.Routing, client: Client, method: methods.BasicPublish
) -> RouteResult | None:
    """Check rights and existence; return the route, None where each message is looked at."""
    if method.immediate and not routing.profile.immediate_emulate:
        # R-PUB-9: before all other checks; R-AE-15
        raise errors.NotImplementedByServer("immediate=true")
    result = routing.router.route(client.vhost, method.exchange, method.routing_key)
    refused = declare.check_publish(client.access, method.exchange, result.exchange)
    if refused is not None:
        raise refuse(refused)
    if client.access.check_topic("write", result.exchange, (method.routing_key,)) is not None:
        # R-PUB-1: refused by `check`, after what comes before it.
        return None
    return None if result.needs_headers else result


def check(
    routing: ports.Routing,
    client: Client,
    method: methods.BasicPublish,
    header: bytes,
    reply_name: str | None = None,
) -> Checked:
    """Look at the properties of one message and route it.

    reply_name: the channel's own name of the pseudo queue, if it consumes that.
    """
    kept = Annotations()
    table: Table = {}
    if properties.has_reply_to(header) and properties.reply_to(header) == PSEUDO_QUEUE:
        # R-DRT-2
        if reply_name is None:
            raise errors.PreconditionFailed("fast reply consumer does not exist")
        header = properties.with_reply_to(header, reply_name)
    if properties.has_expiration(header):
        text = properties.expiration(header) or ""
        kept.ttl_ms = _expiration_ms(text)
        if routing.profile.expiration_normalise and text != str(kept.ttl_ms):
            # R-TTL-9
            header = properties.with_fields(header, {"expiration": str(kept.ttl_ms)})
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
    result = routing.router.route(
        client.vhost, method.exchange, method.routing_key, table, extra, header
    )
    keys = (method.routing_key, *extra)
    refused = client.access.check_topic("write", result.exchange, keys)
    if refused is not None:
        raise refuse(refused)
    if delayed_type.DELAY in table:
        _check_delay(routing, result, table)
    if delivery_time.HEADER in table and routing.profile.delivery_times:
        kept.deliver_at_ms = delivery_time.deliver_at_ms(table)
        if kept.deliver_at_ms is None:
            routing.warn(
                f"exchange '{method.exchange}' in vhost '{client.vhost}' routes a message whose "
                f"header {delivery_time.HEADER} is not an integer of milliseconds since 1970: "
                "no queue keeps it"
            )
    if properties.has_user_id(header):
        _check_user(client, properties.user_id(header) or "")
    if properties.has_priority(header):
        kept.priority = properties.priority(header)
    return Checked(header, kept, result, replies_of(method.exchange, method.routing_key, *extra))


def replies_of(exchange: str, *keys: str) -> tuple[str, ...]:
    """Return the keys that name channels awaiting replies: the default exchange's only."""
    if exchange:
        return ()
    return tuple(dict.fromkeys(key for key in keys if key.startswith(PREFIX)))


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
    # As Erlang reads an integer: one sign, digits, and what is left over.
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    left_over = unsigned.lstrip("0123456789")
    digits = unsigned[: len(unsigned) - len(left_over)]
    error = ""
    # 20 digits are more than any limit; longer text must not cost conversion time.
    value = int(digits[:20] or "0")
    if not digits:
        error = "no_integer"
    elif left_over:
        error = f'{{leftover_string,"{left_over}"}}'
    elif value and text.startswith("-"):
        error = f"{{value_negative,-{digits}}}"
    elif value > EXPIRATION_MS_MAX:
        error = f"{{value_too_large,{digits}}}"
    if error:
        raise errors.PreconditionFailed(f"invalid expiration '{text}': {error}")
    return value


def _check_delay(routing: ports.Routing, result: RouteResult, table: Table) -> None:
    """Refuse a delay that no exchange keeps, warn of one that is none."""
    exchange = result.exchange
    if exchange is None or exchange.type != delayed_type.TYPE:
        return
    if delayed_type.is_overlong(table.get(delayed_type.DELAY_KEY)):
        raise errors.PreconditionFailed(
            f"header {delayed_type.DELAY_KEY} is longer than {delayed_type.KEY_BYTES_MAX} bytes"
        )
    said = delayed_type.said_ms(table)
    if said is None:
        routing.warn(
            f"exchange '{exchange.name}' in vhost '{exchange.vhost}' routes a message at once "
            f"whose header {delayed_type.DELAY} is not a number of milliseconds"
        )
    elif said > delayed_type.DELAY_MS_MAX and routing.profile.delays_bounded:
        raise errors.PreconditionFailed(
            f"header {delayed_type.DELAY} is {said} ms; at most {delayed_type.DELAY_MS_MAX}"
        )


def _check_user(client: Client, user_id: str) -> None:
    """R-PUB-3."""
    if user_id != client.user and "impersonator" not in client.tags:
        raise errors.PreconditionFailed(
            f"user_id property set to '{user_id}' but authenticated user was '{client.user}'"
        )
