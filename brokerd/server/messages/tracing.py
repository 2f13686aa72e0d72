"""The firehose: copies of what clients publish and receive, for queues bound to the exchange
`amq.rabbitmq.trace` of a vhost that is traced (`brokerctl trace_on`).

Routing keys and headers are RabbitMQ's (rabbit_trace.erl): `publish.EXCHANGE` as a channel has
routed a message, `deliver.QUEUE` as a client is sent one.  Whether a vhost is traced is a setting
of the cluster.  `is_on` is all that a channel looks at while no vhost is traced.

Called by the channels of AMQP clients; copies are sent at most once and never confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Protocol

from brokerd.amqp import properties
from brokerd.amqp.values import Table, Value
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog import catalog_commands, catalog_effects
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.router import Router
from brokerd.core.message import Content
from brokerd.server.messages import ports
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.stream import UNNUMBERED

EXCHANGE = "amq.rabbitmq.trace"
_PROPERTIES = tuple(field.name for field in fields(properties.BasicProperties))


class Client(ports.Client, Protocol):
    """A client's connection."""

    @property
    def name(self) -> str:
        """Return what listings call it."""
        ...


class Tracer:
    """Knows which vhosts are traced, and publishes the copies.

    Invariant: `is_on` says whether `vhosts` is not empty.
    """

    __slots__ = ("_node", "_router", "_stream", "_view", "is_on", "vhosts")

    def __init__(self, view: CatalogState, router: Router, node: str, client: QueueClient) -> None:
        self._view = view
        self._router = router
        self._node = node
        self._stream = client.open_at_most_once()
        self.vhosts: frozenset[str] = frozenset()
        self.is_on = False

    def load(self) -> None:
        """Read the settings anew: at the start, after a snapshot, after one has changed."""
        self.vhosts = frozenset(
            record.name.removeprefix(catalog_commands.TRACING)
            for record in self._view.records("setting", None)
            if record.name.startswith(catalog_commands.TRACING) and record.spec()["value"]
        )
        self.is_on = bool(self.vhosts)

    def topology_changed(self, change: catalog_effects.TopologyChanged) -> None:
        """A setting may have been one of ours."""
        if change.kind == "setting" and change.name.startswith(catalog_commands.TRACING):
            self.load()

    def published(
        self,
        connection: Client,
        channel: int,
        queues: Sequence[object],
        contents: Sequence[Content],
    ) -> None:
        """A channel has routed these messages to these queues or direct reply-to names."""
        if connection.vhost not in self.vhosts:
            return
        extra = _who(connection, channel)
        extra["routed_queues"] = [getattr(queue, "name", str(queue)) for queue in queues]
        self._copy(connection.vhost, "publish", None, extra, contents)

    def delivered(
        self,
        connection: Client,
        channel: int,
        queue: str,
        redelivered: bool,
        contents: Sequence[Content],
    ) -> None:
        """A client is sent these messages of a queue."""
        if connection.vhost not in self.vhosts:
            return
        extra: Table = {"redelivered": int(redelivered)} | _who(connection, channel)
        self._copy(connection.vhost, "deliver", queue, extra, contents)

    def _copy(
        self, vhost: str, kind: str, about: str | None, extra: Table, contents: Sequence[Content]
    ) -> None:
        """Publish one copy per message; copies of copies are not made."""
        for content in contents:
            exchange = content[0][0]
            if exchange == EXCHANGE:
                continue
            key = f"{kind}.{exchange if about is None else about}"
            # A key is a short string; a long name is cut, as no pattern could name it in full.
            key = key.encode("utf-8", "surrogateescape")[:255].decode("utf-8", "surrogateescape")
            result = self._router.route(vhost, EXCHANGE, key, {}, [])
            if not result.queues:
                continue
            headers = _described(content, self._node) | extra
            header = properties.BasicProperties(headers=headers).encode()
            copy: Content = ((EXCHANGE, key), header, content[2], message_annotations.NONE)
            self._stream.publish(result.queues, [copy], UNNUMBERED)
        self._stream.flush()


def _who(connection: Client, channel: int) -> Table:
    return {
        "vhost": connection.vhost,
        "connection": connection.name,
        "channel": channel,
        "user": connection.user,
    }


def _described(content: Content, node: str) -> Table:
    """Return what rabbit_trace tells of a message itself."""
    (exchange, routing_key), header, _, kept = content
    decoded = properties.BasicProperties.decode(header)
    table: Table = {}
    for name in reversed(_PROPERTIES):
        value: Value = getattr(decoded, name)
        if value is not None:
            table[name] = value
    copies = (decoded.headers or {}).get("CC")
    keys: list[Value] = [routing_key]
    if isinstance(copies, list):
        keys += [item for item in copies if isinstance(item, str)]
    if kept:
        keys += message_annotations.decode(kept).bcc
    return {
        "exchange_name": exchange,
        "routing_keys": keys,
        "properties": table,
        "node": node,
    }
