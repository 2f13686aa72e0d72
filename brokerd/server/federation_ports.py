"""The broker as federation sees it: implements the ports of `federation/ports.py`.

Reads the catalog's view, policies and liveness; publishes through `publishing.py` as every channel
does.  Used by app.py, which gives it to the federation supervisor.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp import properties
from brokerd.amqp.values import Decimal, Table, Timestamp
from brokerd.core import annotations as message_annotations
from brokerd.core import arguments, effects, names, policy, queue_commands
from brokerd.federation import ports
from brokerd.federation.upstream import INTERNAL_PURPOSE, PURPOSE, Choice
from brokerd.raft.messages import NodeId
from brokerd.server import publishing, rerouting
from brokerd.server.message_checks import EXPIRATION_MS_MAX

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: What makes links come or go; operator policies know no exchanges.
_LINK_KINDS = frozenset({"exchange", "policy", "parameter", "vhost", "member"})


class LinkPublisher:
    """ports.Publisher: one publishing channel of the broker's own.

    Invariant: `_waiting` holds, per number without an outcome, the queues that have not answered.
    """

    def __init__(self, broker: Broker, vhost: str, exchange: str, outcome: ports.Outcome) -> None:
        self._broker = broker
        self._vhost = vhost
        self._exchange = exchange
        self._outcome = outcome
        self._channel = broker.next_uid()
        self._waiting: dict[int, int] = {}
        self._decided: list[tuple[int, bool]] = []
        self._closed = False
        self._publisher = publishing.Publisher(
            broker.groups, broker.node, broker.incarnation, self._channel, self._answered
        )

    def publish(self, number: int, routing_key: str, header: bytes, body: bytes) -> None:
        """Route and enqueue (R-FX-14)."""
        broker = self._broker
        try:
            table = properties.headers(header)
        except amqp_errors.AmqpError:
            # It cannot be routed by anyone; asking again would not help.
            self._decided.append((number, True))
            return
        kept, extra = _annotations(header, table)
        result = broker.router.route(self._vhost, self._exchange, routing_key, table, extra)
        if result.exchange is None:
            # Deleted just now: the link is about to end, the message stays upstream.
            self._decided.append((number, False))
            return
        broker.counters.internal_published(self._vhost, self._exchange, result, 1, len(body))
        if not result.queues:
            broker.unroutable(self._vhost, self._exchange, result)
            self._decided.append((number, True))
            return
        self._waiting[number] = len(result.queues)
        if "BCC" in table:
            # R-FX-13, R-RT-C2.
            rest = {key: value for key, value in table.items() if key != "BCC"}
            header = properties.with_headers(header, rest)
        content = ((self._exchange, routing_key), header, body, message_annotations.encode(kept))
        contents = rerouting.noted(broker, [content]) if result.alternates else [content]
        self._publisher.add(result.queues, contents, number)

    def flush(self) -> None:
        """Send what was added."""
        self._publisher.flush()
        self._report()

    def close(self) -> None:
        """Tell the queues that this enqueuer has ended."""
        if self._closed:
            return
        self._closed = True
        broker = self._broker
        command = queue_commands.encode_channel_down(broker.node, broker.incarnation, self._channel)
        self._publisher.leave(command)

    def _answered(self, runs: list[tuple[int, int, int]]) -> None:
        waiting = self._waiting
        for first, count, accepted in runs:
            for number in range(first, first + count):
                left = waiting.get(number)
                if left is None:
                    continue
                if number - first >= accepted:
                    # R-PC-3: the first refusal decides.
                    del waiting[number]
                    self._decided.append((number, False))
                elif left == 1:
                    del waiting[number]
                    self._decided.append((number, True))
                else:
                    waiting[number] = left - 1
        self._report()

    def _report(self) -> None:
        if self._decided and not self._closed:
            decided, self._decided = self._decided, []
            self._outcome(decided)


def _annotations(header: bytes, table: Table) -> tuple[message_annotations.Annotations, list[str]]:
    """What the broker keeps beside the message, and the keys of CC and BCC (R-FX-13).

    The upstream has checked these properties when they were published; what is wrong all the same
    counts as absent.
    """
    kept = message_annotations.Annotations()
    if properties.has_expiration(header):
        text = properties.expiration(header) or ""
        if text.isascii() and text.isdigit():
            kept.ttl_ms = min(int(text[:20]), EXPIRATION_MS_MAX)
    if properties.has_priority(header):
        kept.priority = properties.priority(header)
    kept.bcc = _keys(table.get("BCC"))
    return kept, _keys(table.get("CC")) + kept.bcc


def _keys(value: object) -> list[str]:
    return [key for key in value if isinstance(key, str)] if isinstance(value, list) else []


class BrokerTopology:
    """ports.Topology over one member's broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._listeners: dict[
            Callable[[ports.Change], None], Callable[[effects.TopologyChanged], None]
        ] = {}

    @property
    def node(self) -> str:
        """Return this member's name."""
        return self._broker.node

    @property
    def cluster_name(self) -> str:
        """R-FED-8."""
        return self._broker.config.cluster.name

    @property
    def revision(self) -> int:
        """Return a number that rises with every change of the catalog."""
        return self._broker.topology_revision

    @property
    def reconnect_delay_ms(self) -> int:
        """R-FED-2."""
        return self._broker.profile.federation_reconnect_delay * 1000

    def federated_exchanges(self) -> list[ports.Federated]:
        """R-FED-4."""
        view = self._broker.view
        found = []
        for vhost, topology in view.vhosts.items():
            for exchange in topology.exchanges.values():
                if (
                    exchange.name == names.DEFAULT_EXCHANGE
                    or exchange.internal
                    or exchange.arguments.get(INTERNAL_PURPOSE) == PURPOSE
                ):
                    continue
                options = policy.effective_exchange(view, exchange)
                choice = Choice(
                    options.federation_upstream,
                    options.federation_upstream_set,
                    options.federation_upstream_pattern,
                )
                if choice != Choice():
                    found.append(
                        ports.Federated(
                            vhost,
                            exchange.name,
                            exchange.type,
                            exchange.durable,
                            exchange.auto_delete,
                            choice,
                            _table(exchange.arguments),
                        )
                    )
        return found

    def parameters(self, vhost: str, component: str) -> Mapping[str, Any]:
        """Return a component's runtime parameters."""
        return self._broker.view.parameters(vhost, component)

    def bindings(self, vhost: str, exchange: str) -> list[tuple[str, Table]]:
        """R-FX-7: bindings to queues and to exchanges alike."""
        topology = self._broker.view.vhosts.get(vhost)
        if topology is None:
            return []
        return [
            (binding.routing_key, _table(binding.arguments))
            for binding in topology.bindings.from_source(exchange)
        ]

    def quorate_members(self) -> list[str]:
        """R-FED-7."""
        broker = self._broker
        alive = broker.host.alive() | {NodeId(broker.node)}
        members = sorted(broker.view.members())
        running = [name for name in members if NodeId(name) in alive]
        return running if 2 * len(running) > len(members) else []

    def alarm(self) -> str:
        """R-ALM-9."""
        broker = self._broker
        return broker.blocking_reason() if broker.profile.federation_honour_alarms else ""

    def open_publisher(self, vhost: str, exchange: str, outcome: ports.Outcome) -> ports.Publisher:
        """Return a publishing channel."""
        return LinkPublisher(self._broker, vhost, exchange, outcome)

    def listen(self, listener: Callable[[ports.Change], None]) -> None:
        """Translate the catalog's changes."""

        def changed(change: effects.TopologyChanged) -> None:
            if change.kind == "binding":
                listener(ports.Change(change.vhost, change.name))
            elif change.kind in _LINK_KINDS:
                listener(ports.Change(change.vhost))

        self._listeners[listener] = changed
        self._broker.topology_listeners.append(changed)

    def unlisten(self, listener: Callable[[ports.Change], None]) -> None:
        """End that."""
        changed = self._listeners.pop(listener, None)
        if changed is not None:
            self._broker.topology_listeners.remove(changed)

    def link_changed(self, link: str, state: str, error: str) -> None:
        """Note it for telemetry."""
        self._broker.counters.changed("link", link=link, state=state, error=error)


def _table(stored: Mapping[str, Any]) -> Table:
    table: Table = arguments.from_json(dict(stored), Timestamp, Decimal)
    return table
