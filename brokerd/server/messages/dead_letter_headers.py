"""A message as it leaves a queue for its dead letter exchange: headers, keys, where it goes.

Renders what `core/queue/deaths.py` records (R-DLX-10..25).  dead_letter_publisher.py
publishes it; which message dies, and why, is the queue machine's.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp import properties
from brokerd.amqp.values import Long, Table, Timestamp
from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations, Death
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.core.profiles import Profile
from brokerd.core.queue import deaths
from brokerd.core.queue.certificates import Certificate
from brokerd.core.queue.effects import Run
from brokerd.core.triage import histories
from brokerd.server.messages import ports


def record_death(
    routing: ports.Routing,
    queue: Queue,
    content: Content,
    reason: str,
    time_s: int,
    target: tuple[str, str | None],
    run: Run,
    certificate: Certificate | None = None,
) -> tuple[Content, RouteResult]:
    """Return the message as it leaves a queue for its dead letter exchange, and where it goes.

    run: with its counts; certificate: of the consumer that had it, if one did.
    Rights are not checked, nor CC's type (R-DLX-16): it was published long ago.
    """
    (exchange, routing_key), header, body, raw = content
    dead_letter_exchange, dead_letter_key = target
    profile = routing.profile
    table = headers_of(header)
    copies = copies_of(table)
    before = message_annotations.decode(raw)
    if profile.dlx_trust_client_x_death and not before.deaths and "x-death" in table:
        _believe(routing, before, table)
    if deaths.has_new_key(before, routing_key):
        copies = []
    expiration = properties.expiration(header) if properties.has_expiration(header) else None
    if profile.dlx_original_expiration_only_on_expired and reason != "expired":
        expiration = None
    died = deaths.record(
        before,
        queue=queue.name,
        reason=reason,
        time_s=time_s,
        exchange=exchange,
        routing_keys=[routing_key, *copies],
        expiration=expiration,
        delivery_count=run.delivery_count if profile.dlx_carry_counts else 0,
        keeps_keys=dead_letter_key is None,
    )
    keys = deaths.keys(routing_key, copies, before.bcc, dead_letter_key)
    rendered = _rendered(profile, table, died, dead_letter_key is not None)
    if profile.dlx_emit_last_death_consumer:
        # ADR 88: of this death only, and never a client's.
        rendered.pop(histories.CONSUMER_HEADER, None)
        if certificate is not None:
            rendered[histories.CONSUMER_HEADER] = _consumer_table(certificate, run, reason)
            rendered = dict(sorted(rendered.items()))
    new_header = properties.with_headers(properties.without_expiration(header), rendered)
    result = routing.router.route(
        queue.vhost,
        dead_letter_exchange,
        keys[0],
        rendered,
        tuple(keys[1:]),
        new_header,
    )
    route = (dead_letter_exchange, keys[0])
    return (route, new_header, body, message_annotations.encode(died.annotations)), result


def _consumer_table(certificate: Certificate, run: Run, reason: str) -> Table:
    """Return who had a message when it died, without what is not known."""
    client = certificate.client
    table: Table = {}
    if client is not None:
        table["connection"] = client.connection
        table[histories.CONSUMER_CLIENT] = f"{client.product} {client.version}".strip()
    table["consumer-tag"] = certificate.tag
    if certificate.held_ms is not None:
        table["held-for"] = Long(certificate.held_ms)
    # One that came back is counted already.
    table["attempts"] = Long(run.acquired_count + (reason == "rejected"))
    table["outcome"] = certificate.outcome
    if certificate.reason:
        table[histories.CONSUMER_REASON] = certificate.reason
    return table


def headers_of(header: bytes) -> Table:
    """Return the headers table, an empty one for what cannot be read.

    It was checked when it was published; a message must not stop the queue all the same.
    """
    try:
        return properties.headers(header) if properties.has_headers(header) else {}
    except amqp_errors.AmqpError:
        return {}


def copies_of(table: Table) -> list[str]:
    """Return the keys of the CC header."""
    value = table.get("CC")
    return [key for key in value if isinstance(key, str)] if isinstance(value, list) else []


def _believe(routing: ports.Routing, before: Annotations, table: Table) -> None:
    """R-DLX-24: up to 3.13 a client's x-death is the message's history, count and cycles too."""
    found = table["x-death"]
    # Such a message keeps the headers of a first death that it came with, and never gets others.
    before.first_death = ("", "", "")
    if not isinstance(found, list):
        routing.warn(f"message has an invalid x-death header, which begins anew: {found!r:.100}")
        return
    known: dict[tuple[str, str], Death] = {}
    times: Counter[tuple[str, str]] = Counter()
    for entry in found:
        death = _death(entry)
        if death is not None:
            pair = (death.queue, death.reason)
            known.setdefault(pair, death)
            times[pair] += 1
    for pair, death in known.items():
        # Before 3.5 there was one entry for each death, and no count.
        death.count = death.count or times[pair]
    before.deaths = list(known.values())


def _death(entry: Any) -> Death | None:
    """Return an entry of x-death as a client sent it, None if it names no queue and reason.

    Without a count (or with one that is none) its count is 0.
    """
    if not isinstance(entry, dict):
        return None
    queue, reason = entry.get("queue"), entry.get("reason")
    if not isinstance(queue, str) or not isinstance(reason, str):
        return None
    count, time_s = entry.get("count"), entry.get("time")
    exchange, keys = entry.get("exchange"), entry.get("routing-keys")
    original = entry.get("original-expiration")
    return Death(
        queue=queue,
        reason=reason,
        count=count if type(count) is int and 0 < count < 2**62 else 0,
        time_s=max(0, int(time_s)) if isinstance(time_s, int) else 0,
        exchange=exchange if isinstance(exchange, str) else "",
        routing_keys=[k for k in keys if isinstance(k, str)] if isinstance(keys, list) else [],
        original_expiration=original if isinstance(original, str) else None,
    )


def _rendered(profile: Profile, table: Table, died: deaths.Died, has_key: bool) -> Table:
    """R-DLX-22..25: the broker's headers replace the client's of the same name; keys sorted."""
    rendered = dict(table)
    if has_key and profile.dlx_strip_cc_on_rk:
        rendered.pop("CC", None)
    entries: list[Any] = []
    for death in died.annotations.deaths:
        entry: dict[str, Any] = {}
        if death.original_expiration is not None:
            entry["original-expiration"] = death.original_expiration
        entry |= {
            "count": Long(death.count),
            "reason": death.reason,
            "queue": death.queue,
            "time": Timestamp(death.time_s),
            "exchange": death.exchange,
            "routing-keys": list(death.routing_keys),
        }
        entries.append(entry)
    rendered["x-death"] = entries
    first = died.annotations.first_death
    if first is not None and any(first):
        for name, value in zip(("reason", "queue", "exchange"), first, strict=True):
            rendered[f"x-first-death-{name}"] = value
    if profile.dlx_emit_last_death:
        for name, value in zip(("reason", "queue", "exchange"), died.last, strict=True):
            rendered[f"x-last-death-{name}"] = value
    return dict(sorted(rendered.items()))
