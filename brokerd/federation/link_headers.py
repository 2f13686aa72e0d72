"""What federation does to a message on its way: headers of federated exchanges.

PURE.  Each class is a `link_state.Passage`; the link owns it.  Headers are people's: what is not as
federation writes it counts as absent.
"""

from __future__ import annotations

from brokerd.amqp import properties
from brokerd.amqp.values import Table, Value
from brokerd.federation.link_bindings import already_seen
from brokerd.federation.link_state import Delivered, Drop
from brokerd.federation.upstream import RECEIVED_FROM, Upstream


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

    def introduce(self, uri: str, cluster: str, vhost: str) -> None:
        """See Passage."""
        self._uri = uri
        self._upstream_cluster = cluster
        self._upstream_vhost = vhost

    def forward(self, message: Delivered, table: Table) -> tuple[str, bytes] | Drop:
        """Put our entry first, unless the message must not go on (R-FX-12)."""
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
        return message.routing_key, properties.with_headers(header, carried)

    def row(self) -> dict[str, str]:
        """See Passage."""
        return {
            "type": "exchange",
            "vhost": self._vhost,
            "exchange": self._exchange,
            "upstream_exchange": self._upstream.exchange_name(self._exchange),
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
