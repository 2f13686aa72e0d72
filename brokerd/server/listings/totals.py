"""What came, went and passed through one member since its start, brought together from who counts.

The counters are a member's own and begin at 0 with it, as those of a node of RabbitMQ do.  Used by
metrics_rabbitmq.py and the management API, each of which has names of its own for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from brokerd.server.access.client_counts import ClientCounts
    from brokerd.server.queues.replicas import QueueGroups
    from brokerd.telemetry.client_totals import ClientTotals


class Connections(Protocol):
    """The register of who is connected (connections.py)."""

    counts: ClientCounts

    @property
    def closed_total(self) -> int:
        """Return how many have ended, calls included."""
        ...


@dataclass(slots=True, frozen=True)
class MemberTotals:
    """State: none of its own."""

    connections: Connections
    queue_groups: QueueGroups
    #: By protocol.
    clients: Mapping[str, ClientTotals]

    def churn(self) -> dict[str, int]:
        """Return how often what came and went, by RabbitMQ's names.

        Each queue counts at one member, the first that it has; calls of Messages count as a
        connection and a channel.
        """
        counts, groups = self.connections.counts, self.queue_groups
        return {
            "channel_closed": counts.channels_opened_total - counts.channel_count,
            "channel_created": counts.channels_opened_total,
            "connection_closed": self.connections.closed_total,
            "connection_created": counts.opened_total,
            "queue_created": groups.created_here_total,
            "queue_declared": sum(each.queues_declared for each in self.clients.values()),
            "queue_deleted": groups.deleted_here_total,
        }

    def messages(self) -> dict[str, int]:
        """Return messages by what became of them, over all protocols and queue types, by the names
        of RabbitMQ's message_stats.
        """
        clients = list(self.clients.values())
        queues = [each for totals in clients for each in (totals.classic, totals.quorum)]
        return {
            "ack": sum(each.acknowledged for each in queues),
            "confirm": sum(each.confirmed for each in clients),
            "deliver": sum(each.consume_manual_ack for each in queues),
            "deliver_get": sum(each.delivered_all for each in queues),
            "deliver_no_ack": sum(each.consume_auto_ack for each in queues),
            "drop_unroutable": sum(each.unroutable_dropped for each in clients),
            "get": sum(each.get_manual_ack for each in queues),
            "get_empty": sum(each.get_empty for each in queues),
            "get_no_ack": sum(each.get_auto_ack for each in queues),
            "publish": sum(each.received for each in clients),
            "redeliver": sum(each.redelivered for each in queues),
            "return_unroutable": sum(each.unroutable_returned for each in clients),
        }
