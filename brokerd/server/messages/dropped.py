"""Messages that went without a client's doing: counted by cause for the metrics, and logged.

A purge, the end of a queue, a policy, a shovel that gives up.  Not for what queues drop message by
message (their own counters), nor for what publishers are told of.
"""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

#: What takes messages away: a purge; a queue that was deleted, or that expired or was auto-deleted;
#: a policy or another setting of a queue that holds them; a shovel whose destination has no queue.
CAUSES = ("purge", "queue_deleted", "queue_expired", "policy", "shovel_unroutable")
#: Of the end of a queue (effects.QueueDeleted).
_OWN_ENDS = ("expired", "auto-delete")


def cause_of_end(cause: str) -> str:
    """Return how a queue's end is counted."""
    return "queue_expired" if cause in _OWN_ENDS else "queue_deleted"


class Dropped:
    """State: messages since this member's start, by cause."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = dict.fromkeys(CAUSES, 0)

    def of_queue(
        self, vhost: str, queue: str, cause: str, messages: int, letters: int, why: str
    ) -> None:
        """A queue lost messages, and dead letters that waited in it."""
        self.totals[cause] += messages + letters
        log.warning(
            "queue '%s' in vhost '%s' dropped %d messages cause=%s (%s) dead_letters=%d",
            *(queue, vhost, messages, cause, why, letters),
        )

    def of_shovel(self, link: str, count: int, exchange: str, routing_key: str) -> None:
        """A shovel gave up messages that no queue of its destination takes."""
        self.totals["shovel_unroutable"] += count
        log.warning(
            "%s dropped %d messages that no queue of its destination takes, the last one for "
            "exchange '%s', routing key '%s': bind a queue, or set dest-unroutable to keep",
            *(link, count, exchange, routing_key),
        )
