"""What a job sends of a message, and where: its address, its headers, the queues that get a copy.

For job_worker.py.  A redrive's copies begin anew: what is known of the deaths moves into a header
that consumers do not count by, and each copy says which message it is of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from brokerd.amqp import properties
from brokerd.amqp.values import Table
from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Annotations, RedrivenFrom
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.core.triage import histories
from brokerd.core.triage.histories import NoOrigin, Source
from brokerd.core.triage.jobs import JobKind, JobOrder, To
from brokerd.server.messages import ports
from brokerd.server.messages.dead_letter_headers import headers_of
from brokerd.server.messages.message_view import StoredMessage

#: A list of tables, the newest first: what stood in a message's headers of its deaths before it was
#: sent back.
HISTORY_HEADER = "x-redrive-history"
#: Tables in it: a message that dies again and again does not grow without end.
HISTORY_MAX = 10
_DEATHS = "x-death"
_DEATH_PREFIXES = ("x-first-death-", "x-last-death-")

_REASONS = {
    NoOrigin.NO_HISTORY: "no history",
    NoOrigin.NOT_TRUSTED: "only headers tell of it",
    NoOrigin.NO_QUEUE: "headers name no queue",
}
IS_HERE = "goes to this queue"
NO_ROUTE = "no route"
NO_EXCHANGE = "no such exchange"
ORIGIN_GONE = "origin is gone"
#: Nothing is known of copies there (ADR 87): canaries would be replaced by others for ever.
DELAYS = "an exchange would delay it, where its deaths are not seen"


@dataclass(slots=True, frozen=True)
class Address:
    """Where a message is published; the first key is the delivered one."""

    exchange: str
    routing_keys: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Way:
    """A message as it goes, and the queues that get it."""

    address: Address
    content: Content
    result: RouteResult
    targets: Sequence[Queue]


class Copies:
    """Of one job; owns nothing."""

    def __init__(
        self, routing: ports.Routing, view: CatalogState, source: Queue, order: JobOrder, job: int
    ) -> None:
        """job: its number; of a dry run: 0."""
        self._job = job
        self._routing = routing
        self._view = view
        self._source = source
        self._order = order

    def way(self, message: StoredMessage, content: Content, group: str) -> Way | str:
        """Return where a message goes, as the catalog is now, or why it stays.

        group: its fingerprint, by which its targets count.
        """
        address = self._address(message)
        if isinstance(address, str):
            return address
        sent = self._copy(message.number, content, address, group)
        keys = address.routing_keys
        result = self._routing.router.route(
            self._source.vhost,
            address.exchange,
            keys[0],
            headers_of(sent[1]),
            tuple(keys[1:]),
            sent[1],
        )
        if result.exchange is None:
            return NO_EXCHANGE
        if not result.queues:
            return NO_ROUTE
        if any(queue.uid == self._source.uid for queue in result.queues):
            # It would be behind the end of the job: a message that goes round in a circle.
            return IS_HERE
        if result.delays and (self._order.canary or self._order.stop_after_deaths):
            return DELAYS
        return Way(address, sent, result, result.queues)

    def _address(self, message: StoredMessage) -> Address | str:
        order = self._order
        if order.to is To.QUEUE:
            return Address("", (order.target,))
        if order.to is To.EXCHANGE:
            key = message.routing_key if order.routing_key is None else order.routing_key
            return Address(order.target, (key,))
        if order.to is To.REPUBLISH:
            return self._first_address(message)
        name = histories.origin_of(message, order.trusts_headers)
        if isinstance(name, NoOrigin):
            return _REASONS[name]
        if self._view.queue(self._source.vhost, name) is None:
            return ORIGIN_GONE
        return Address("", (name,))

    def _first_address(self, message: StoredMessage) -> Address | str:
        history = histories.history_of(message)
        if history.source is Source.NONE:
            return _REASONS[NoOrigin.NO_HISTORY]
        if history.source is not Source.BROKER:
            if not self._order.trusts_headers:
                return _REASONS[NoOrigin.NOT_TRUSTED]
            return Address(history.exchange, (history.routing_key,))
        first = message.first_death or ("", "", "")
        oldest = message.deaths[-1]
        for death in message.deaths:
            if (death.reason, death.queue) == first[:2]:
                oldest = death
        return Address(first[2], tuple(oldest.routing_keys) or ("",))

    def _copy(self, number: int, content: Content, address: Address, group: str) -> Content:
        _, header, body, raw = content
        order = self._order
        route = (address.exchange, address.routing_keys[0])
        if order.kind is JobKind.MOVE:
            return route, header, body, _moved(raw)
        before = message_annotations.decode(raw)
        redriven = RedrivenFrom(self._source.uid, self._job, number, group)
        after = replace(before, bcc=[], delivery_count=0, rerouted=False, redriven=redriven)
        table = dict(headers_of(header))
        if not order.keeps_history:
            after.deaths, after.first_death = [], None
            _move_history(table)
        table[histories.REDRIVE_HEADER] = f"{self._source.uid}:{number}"
        header = properties.with_headers(header, dict(sorted(table.items())))
        if order.restores_expiration and (expiration := _first_expiration(before)) is not None:
            header = properties.with_fields(header, {"expiration": expiration})
            after.ttl_ms = int(expiration)
        return route, header, body, message_annotations.encode(after)


def _moved(raw: bytes) -> bytes:
    """Return the annotations of a message that goes on as it is: it is no job's copy any more."""
    kept = message_annotations.decode(raw)
    if kept.redriven is None:
        return raw
    kept.redriven = None
    return message_annotations.encode(kept)


def _move_history(table: Table) -> None:
    moved: dict[str, Any] = {
        name: table.pop(name)
        for name in list(table)
        if name == _DEATHS or name.startswith(_DEATH_PREFIXES)
    }
    if not moved:
        return
    earlier = table.get(HISTORY_HEADER)
    known = earlier if isinstance(earlier, list) else []
    table[HISTORY_HEADER] = [moved, *known][:HISTORY_MAX]


def _first_expiration(before: Annotations) -> str | None:
    """Return the TTL that the message had when it died first; None: it had none."""
    for death in reversed(before.deaths):
        value = death.original_expiration
        if value is not None and value.isascii() and value.isdigit():
            return value
    return None
