"""What federation does to a message on its way: headers of federated exchanges and queues.

PURE.  Each class is a `link_state.Passage`; the link owns it.  Headers are people's: what is not as
federation writes it counts as absent.
"""

from __future__ import annotations

from brokerd.amqp import properties
from brokerd.amqp.values import Long, Table, Value
from brokerd.core.catalog.federation_type import already_seen
from brokerd.federation.link_counts import Drop
from brokerd.federation.link_events import Delivered
from brokerd.federation.upstream import RECEIVED_FROM, Upstream


class Last:
    """What became of the last message: many programs send the same properties again and again, and
    headers cost more than all else of a message's way (design/hot-path.md rule 2).
    """

    __slots__ = ("header", "key")

    def __init__(self) -> None:
        #: All that the new header depends on, beside who is at the other end; () at first.
        self.key: tuple[object, ...] = ()
        self.header = b""

    def keep(self, key: tuple[object, ...], header: bytes) -> bytes:
        """Note what a message goes on with, and return it."""
        self.key = key
        self.header = header
        return header

    def forget(self) -> None:
        """Somebody else is at the other end."""
        self.key = ()


class ExchangePassage:
    """R-FX-12, R-FX-13: messages of a federated exchange keep their routing key."""

    def __init__(self, cluster: str, vhost: str, exchange: str, upstream: Upstream) -> None:
        """cluster, vhost, exchange: ours."""
        self._cluster = cluster
        self._vhost = vhost
        self._exchange = exchange
        self._upstream = upstream
        self._uri = ""
        self._upstream_cluster = ""
        self._upstream_vhost = ""
        self._last = Last()

    def introduce(self, uri: str, cluster: str, vhost: str) -> None:
        """See Passage."""
        self._uri = uri
        self._upstream_cluster = cluster
        self._upstream_vhost = vhost
        self._last.forget()

    def forward(self, message: Delivered, table: Table) -> tuple[str, bytes] | Drop:
        """Put our entry first, unless the message must not go on (R-FX-12)."""
        key = (message.header, message.redelivered)
        if key == self._last.key:
            return message.routing_key, self._last.header
        previous = _entries(table)
        if len(previous) >= self._upstream.max_hops:
            return Drop.MAX_HOPS
        if already_seen(previous, self._cluster, self._vhost):
            return Drop.LOOP
        entry: Value = {
            "uri": self._uri,
            "exchange": self._upstream.exchange_name(self._exchange),
            "redelivered": message.redelivered,
            "cluster-name": self._upstream_cluster,
            "vhost": self._upstream_vhost,
        }
        header = _believed(message.header, self._upstream)
        carried = {**table, RECEIVED_FROM: [entry, *previous]}
        return message.routing_key, self._last.keep(key, properties.with_headers(header, carried))

    def row(self) -> dict[str, str]:
        """See Passage."""
        return {
            "type": "exchange",
            "vhost": self._vhost,
            "exchange": self._exchange,
            "upstream_exchange": self._upstream.exchange_name(self._exchange),
            "queue": "",
            "upstream_queue": "",
        }


#: Where a message was published before it first moved (R-FQ-5).
ORIGINAL_EXCHANGE = "x-original-exchange"
ORIGINAL_ROUTING_KEY = "x-original-routing-key"
#: What CC becomes: a message that moves must not be routed to its other queues again.
ORIGINAL_CC = "x-original-cc"
VISIT_COUNT = "visit-count"
#: More visits than anybody will see; beyond it a count is somebody's invention.
VISITS_MAX = 2**62


class QueuePassage:
    """R-FQ-4, R-FQ-5: messages of a federated queue go to the queue here, however often."""

    def __init__(self, vhost: str, queue: str, upstream: Upstream) -> None:
        """vhost, queue: ours."""
        self._vhost = vhost
        self._queue = queue
        self._upstream = upstream
        self._place: Table = {}
        self._last = Last()

    def introduce(self, uri: str, cluster: str, vhost: str) -> None:
        """See Passage."""
        queue = self._upstream.queue_name(self._queue)
        self._place = {"uri": uri, "queue": queue, "cluster-name": cluster, "vhost": vhost}
        self._last.forget()

    def forward(self, message: Delivered, table: Table) -> tuple[str, bytes] | Drop:
        """Note the visit; a second one to the same queue is counted, not added."""
        key = (message.header, message.redelivered, message.exchange, message.routing_key)
        if key == self._last.key:
            return self._queue, self._last.header
        carried = {key: value for key, value in table.items() if key not in ("CC", "BCC")}
        if "CC" in table:
            carried[ORIGINAL_CC] = table["CC"]
        if not isinstance(table.get(RECEIVED_FROM), list):
            carried[ORIGINAL_EXCHANGE] = message.exchange
            carried[ORIGINAL_ROUTING_KEY] = message.routing_key
        visits = 0
        others: list[Value] = []
        for entry in _entries(table):
            if isinstance(entry, dict) and self._is_here(entry):
                count = entry.get(VISIT_COUNT)
                visits = max(visits, count if type(count) is int else 0)
            else:
                others.append(entry)
        visit: Value = {
            **self._place,
            "redelivered": message.redelivered,
            VISIT_COUNT: Long(min(max(visits, 0) + 1, VISITS_MAX)),
        }
        carried[RECEIVED_FROM] = [visit, *others]
        header = _believed(message.header, self._upstream)
        return self._queue, self._last.keep(key, properties.with_headers(header, carried))

    def _is_here(self, entry: Table) -> bool:
        # Not by the names of cluster and vhost: RabbitMQ's own entries lack them.
        return entry.get("uri") == self._place["uri"] and entry.get("queue") == self._place["queue"]

    def row(self) -> dict[str, str]:
        """See Passage."""
        return {
            "type": "queue",
            "vhost": self._vhost,
            "exchange": "",
            "upstream_exchange": "",
            "queue": self._queue,
            "upstream_queue": self._upstream.queue_name(self._queue),
            "consumer_tag": self._upstream.tag(),
        }


def _entries(table: Table) -> list[Value]:
    received = table.get(RECEIVED_FROM)
    return received if isinstance(received, list) else []


def _believed(header: bytes, upstream: Upstream) -> bytes:
    """Return the properties without the user-id, which is the upstream's word (R-FX-13)."""
    if upstream.trust_user_id or not properties.has_user_id(header):
        return header
    fields = properties.BasicProperties.decode(header)
    fields.user_id = None
    return fields.encode()
