"""The broker as federation sees it: implements the ports of `federation/ports.py`.

Reads the catalog's view, policies and liveness; publishes through `queues/stream.py` as every
channel does.  Used by app.py, which gives it to the federation supervisor.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp import properties
from brokerd.amqp.values import Decimal, Table, Timestamp
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog import (
    arguments,
    catalog_commands,
    catalog_effects,
    names,
    patterns,
    policy,
)
from brokerd.core.catalog.catalog_objects import Entry, Exchange, Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.policy_keys import FEDERATION_KEYS
from brokerd.core.confirms import SequenceConfirms
from brokerd.federation import ports
from brokerd.federation.link_events import Unrouted
from brokerd.federation.shovel import COMPONENT, Shovel, parse
from brokerd.federation.upstream import INTERNAL_PURPOSE, PURPOSE, Choice
from brokerd.raft.messages import NodeId
from brokerd.server.catalog import cluster_name, sealed_parameters
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.messages import pipeline
from brokerd.server.messages.federation_demand import QueueDemand, Queues
from brokerd.server.messages.message_checks import EXPIRATION_MS_MAX
from brokerd.server.messages.ports import Routing
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.ports import Members, Sender

log = logging.getLogger(__name__)

#: What makes links come or go; operator policies know no exchanges.
_LINK_KINDS = frozenset({"exchange", "policy", "parameter", "vhost", "member", "setting"})


class LinkPublisher:
    """ports.Publisher: one publishing channel of the broker's own.

    The link's numbers, which rise and have gaps, are confirmed as a client's are (R-PC-3).
    """

    def __init__(
        self,
        client: QueueClient,
        channel: int,
        routing: Routing,
        vhost: str,
        exchange: str,
        outcome: ports.Outcome,
        returned: ports.Returned | None = None,
    ) -> None:
        """returned: takes what no queue takes; None: that counts as taken over (R-FX-14)."""
        self._routing = routing
        self._vhost = vhost
        self._exchange = exchange
        self._outcome = outcome
        self._returned = returned
        self._unrouted: list[Unrouted] = []
        self._confirms = SequenceConfirms()
        self._closed = False
        #: What `_look` found in the last header, which many programs send again and again.
        self._last_header: bytes | None = None
        self._kept_header = b""
        self._table: Table = {}
        self._keys: list[str] = []
        self._annotations = b""
        self._stream = client.open(channel, self._answered)

    def publish(
        self,
        number: int,
        routing_key: str,
        header: bytes,
        bodies: list[bytes],
        exchange: str | None = None,
    ) -> None:
        """Route and enqueue (R-FX-14)."""
        routing = self._routing
        confirms, count = self._confirms, len(bodies)
        is_again = not confirms.number(number, count)
        if is_again:
            confirms.again(number, count)
        if header != self._last_header:
            try:
                self._look(header)
            except amqp_errors.AmqpError:
                # It cannot be routed by anyone; asking again would not help.
                confirms.expect(number, count, 0)
                return
        result = routing.router.route(
            self._vhost,
            self._exchange,
            routing_key,
            self._table,
            self._keys,
            header,
        )
        if result.exchange is None:
            # Deleted just now: the link is about to end, the message stays upstream.
            confirms.rejected(number, count)
            return
        if not result.queues and self._returned is not None and self._exchange:
            confirms.withdraw(number, count)
            place = (self._exchange, routing_key, header)
            self._unrouted += [Unrouted(at, *place, body) for at, body in enumerate(bodies, number)]
            if is_again:
                # It was counted when it came first.
                return
        route = (self._exchange, routing_key)
        header, annotations = self._kept_header, self._annotations
        contents = [(route, header, body, annotations) for body in bodies]
        if result.queues or self._exchange != names.DEFAULT_EXCHANGE:
            confirms.expect(number, count, len(result.queues))
        else:
            # A queue that was deleted just now gets nothing; the messages stay where they are.
            confirms.rejected(number, count)
        taken = pipeline.send_own(routing, self._stream, self._vhost, result, contents, number)
        if not taken and self._exchange != names.DEFAULT_EXCHANGE:
            routing.unroutable(self._vhost, self._exchange, result, count)

    def _look(self, header: bytes) -> None:
        """Read what a header says.  Raises AmqpError; what is known stays as it was then."""
        table = properties.headers(header)
        kept, keys = _annotations(header, table)
        kept_header = header
        if "BCC" in table:
            # R-FX-13, R-RT-C2.
            rest = {key: value for key, value in table.items() if key != "BCC"}
            kept_header = properties.with_headers(header, rest)
        self._annotations = message_annotations.encode(kept)
        self._table, self._keys, self._kept_header = table, keys, kept_header
        self._last_header = header

    def flush(self) -> None:
        """Send what was added."""
        self._stream.flush()
        self._report()

    def close(self) -> None:
        """Tell the queues that this enqueuer has ended."""
        if self._closed:
            return
        self._closed = True
        self._stream.leave()

    def _answered(self, runs: list[tuple[int, int, int]]) -> None:
        for first, count, accepted in runs:
            self._confirms.answered(first, count, accepted)
        self._report()

    def _report(self) -> None:
        if self._unrouted and self._returned is not None and not self._closed:
            unrouted, self._unrouted = self._unrouted, []
            self._returned(unrouted)
        if self._confirms and not self._closed:
            taken, refused = self._confirms.due_ranges()
            self._confirms.take()
            answers = [(low, high - low, True) for low, high in taken]
            self._outcome(answers + [(low, high - low, False) for low, high in refused])


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


class Catalog(Protocol):
    """The catalog, and who hears of its changes."""

    @property
    def view(self) -> CatalogState:
        """Return what this member has applied."""
        ...

    @property
    def keyring(self) -> Keyring:
        """Return what opens sealed parameters."""
        ...

    @property
    def topology_revision(self) -> int:
        """Return a number that rises with every change."""
        ...

    @property
    def topology_listeners(self) -> list[Callable[[catalog_effects.TopologyChanged], None]]:
        """Return the listeners called after a change; a component adds its own."""
        ...

    async def write(self, operation: dict[str, Any]) -> dict[str, Any]:
        """Propose an operation; return its reply, or raise Unavailable."""
        ...


class MemberTopology:
    """ports.Topology over one member."""

    def __init__(
        self,
        configured_name: str,
        catalog: Catalog,
        members: Members,
        sender: Sender,
        client: QueueClient,
        routing: Routing,
        queues: Queues,
        alarm: Callable[[], str],
        connect_here: Callable[[Identity], Awaitable[socket.socket]],
    ) -> None:
        """configured_name: the setting cluster.name.  alarm() says why publishers are held back
        anywhere, "" if they are not.
        """
        self._configured_name = configured_name
        self._catalog = catalog
        self._members = members
        self._sender = sender
        self._client = client
        self._routing = routing
        self._queues = queues
        self._demand = QueueDemand(queues)
        self._alarm = alarm
        self._connect_here = connect_here
        self._listeners: dict[
            Callable[[ports.Change], None], Callable[[catalog_effects.TopologyChanged], None]
        ] = {}

    @property
    def node(self) -> str:
        """Return this member's name."""
        return self._sender.node

    @property
    def cluster_name(self) -> str:
        """R-FED-8."""
        return cluster_name.of(self._configured_name, self._catalog.view)

    @property
    def revision(self) -> int:
        """Return a number that rises with every change of the catalog."""
        return self._catalog.topology_revision

    @property
    def reconnect_delay_ms(self) -> int:
        """R-FED-2."""
        return self._routing.profile.federation_reconnect_delay * 1000

    def federated_exchanges(self) -> list[ports.Federated]:
        """R-FED-4."""
        view = self._catalog.view
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

    def vhosts(self) -> list[str]:
        """Return the names of all vhosts."""
        return list(self._catalog.view.vhosts)

    async def connect_here(self, user: str) -> socket.socket:
        """See ports.Topology."""
        return await self._connect_here(Identity(user))

    async def delete_shovel(self, shovel: Shovel) -> bool:
        """Delete the parameter, if it still says the same."""
        name = f"{COMPONENT}/{shovel.name}"
        record = self._catalog.view.get("parameter", shovel.vhost, name)
        value = self.parameters(shovel.vhost, COMPONENT).get(shovel.name)
        if record is None or parse(shovel.vhost, shovel.name, value) != shovel:
            return True
        operation = catalog_commands.delete(
            "parameter",
            shovel.vhost,
            name,
            cause="auto-delete",
            precondition={"hash": record.hash()},
        )
        try:
            reply = await self._catalog.write(operation)
        except Unavailable:
            return False
        return bool(reply["code"] in (catalog_commands.OK, catalog_commands.NOT_FOUND))

    def federated_queues(self) -> list[ports.FederatedQueue]:
        """R-FQ-7; vhosts without a policy that federates queues cost nothing."""
        view = self._catalog.view
        found = []
        for vhost, topology in view.vhosts.items():
            if not any(map(_federates_queues, topology.policies.values())):
                continue
            for queue in topology.queues.values():
                if queue.exclusive_owner is not None or INTERNAL_PURPOSE in queue.arguments:
                    continue
                values = policy.effective_queue(view, queue).values
                choice = Choice(
                    values.get("federation-upstream"),
                    values.get("federation-upstream-set"),
                    values.get("federation-upstream-pattern"),
                )
                if choice != Choice():
                    found.append(
                        ports.FederatedQueue(
                            vhost,
                            queue.name,
                            queue.uid,
                            queue.durable,
                            choice,
                            _queue_arguments(queue),
                        )
                    )
        return found

    def leads(self, queue: ports.FederatedQueue) -> bool:
        """Tell whether the queue's leader is here."""
        return self._queues.leads(queue.uid)

    def watch_demand(
        self, queue: ports.FederatedQueue, changed: Callable[[bool], None]
    ) -> ports.DemandWatch:
        """R-FQ-2."""
        return self._demand.watch(queue.uid, changed)

    def parameters(self, vhost: str, component: str) -> Mapping[str, Any]:
        """Return a component's runtime parameters."""
        found = self._catalog.view.parameters(vhost, component)
        return sealed_parameters.of_vhost(vhost, component, found, self._catalog.keyring)

    def bindings(self, vhost: str, exchange: str) -> list[tuple[str, Table]]:
        """R-FX-7: bindings to queues and to exchanges alike."""
        topology = self._catalog.view.vhosts.get(vhost)
        if topology is None:
            return []
        return [
            (binding.routing_key, _table(binding.arguments))
            for binding in topology.bindings.from_source(exchange)
        ]

    def quorate_members(self) -> list[str]:
        """R-FED-7."""
        alive = self._members.alive() | {NodeId(self._sender.node)}
        members = sorted(self._catalog.view.members())
        running = [name for name in members if NodeId(name) in alive]
        return running if 2 * len(running) > len(members) else []

    def refusal(self, kind: str, vhost: str, name: str) -> str:
        """See ports.Topology."""
        record = self._catalog.view.get(kind, vhost, name)
        if record is None:
            return f"no {kind} {name!r} in vhost {vhost!r}"
        if isinstance(record, Exchange) and record.internal:
            return f"exchange {name!r} in vhost {vhost!r} is internal"
        return ""

    @property
    def honours_alarms(self) -> bool:
        """R-ALM-9."""
        return self._routing.profile.federation_honour_alarms

    def alarm(self) -> str:
        """See ports.Topology."""
        return self._alarm()

    @property
    def drops_unroutable(self) -> bool:
        """See ports.Topology."""
        return self._routing.profile.shovel_drop_unroutable

    def open_publisher(
        self,
        vhost: str,
        exchange: str,
        outcome: ports.Outcome,
        returned: ports.Returned | None = None,
    ) -> ports.Publisher:
        """Return a publishing channel."""
        channel = self._sender.next_uid()
        return LinkPublisher(
            self._client, channel, self._routing, vhost, exchange, outcome, returned
        )

    def listen(self, listener: Callable[[ports.Change], None]) -> None:
        """Translate the catalog's changes."""

        def changed(change: catalog_effects.TopologyChanged) -> None:
            if change.kind == "binding":
                listener(ports.Change(change.vhost, change.name))
            elif change.kind in _LINK_KINDS or (
                change.kind == "queue" and self._may_federate(change.vhost, change.name)
            ):
                listener(ports.Change(change.vhost))

        self._listeners[listener] = changed
        self._catalog.topology_listeners.append(changed)

    def _may_federate(self, vhost: str, queue: str) -> bool:
        """Say whether a queue's coming or going may matter; by its name, as it may be gone."""
        topology = self._catalog.view.vhosts.get(vhost)
        return topology is not None and any(
            _federates_queues(entry) and patterns.matches(entry.value["pattern"], queue)
            for entry in topology.policies.values()
        )

    def unlisten(self, listener: Callable[[ports.Change], None]) -> None:
        """End that."""
        changed = self._listeners.pop(listener, None)
        if changed is not None:
            self._catalog.topology_listeners.remove(changed)

    def link_changed(self, link: str, state: str, error: str) -> None:
        """Note it for telemetry."""
        self._routing.counters.changed("link", link=link, state=state, error=error)

    def messages_dropped(self, link: str, count: int, exchange: str, routing_key: str) -> None:
        """See ports.Host."""
        self._routing.dropped.of_shovel(link, count, exchange, routing_key)


def _federates_queues(entry: Entry) -> bool:
    spec = entry.value
    is_federating = not FEDERATION_KEYS.keys().isdisjoint(spec["definition"])
    return is_federating and spec["apply-to"] != "exchanges"


def _queue_arguments(queue: Queue) -> Table:
    """Return how a queue is declared that is to be like this one."""
    # Where the vhost's default type made it, the arguments do not say it.
    kind: Table = {} if queue.type == "classic" else {"x-queue-type": queue.type}
    return kind | _table(queue.arguments)


def _table(stored: Mapping[str, Any]) -> Table:
    table: Table = arguments.from_json(dict(stored), Timestamp, Decimal)
    return table
