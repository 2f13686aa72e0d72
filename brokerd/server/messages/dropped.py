"""Messages that went without a delivery: counted by cause for the metrics, and logged.

A purge, the end of a queue, a policy, a shovel that gives up.  Not for what queues drop message by
message (their own counters), nor for what is reported to publishers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from brokerd.server.catalog import topology

log = logging.getLogger(__name__)

#: What takes messages away: a purge; a queue that was deleted, that expired or was auto-deleted, or
#: that the others deleted since they did not hear its home member; a policy or another setting of a
#: queue that holds them; a shovel whose destination has no queue; a dead letter exchange (at most
#: once), a queue's alternate exchange, or an exchange that has kept a message, that has none.
CAUSES = (
    *("purge", "queue_deleted", "queue_expired", "home_down", "policy", "shovel_unroutable"),
    *("dead_letter_unroutable", "reroute_unroutable", "delayed_unroutable"),
)
#: How the causes of effects.Dropped are counted; all others are those of deletions.
_COUNTED = {
    "purge": "purge",
    "policy": "policy",
    "expired": "queue_expired",
    "auto-delete": "queue_expired",
    topology.HOME_DOWN: "home_down",
}
#: Those of a queue's end.
_ENDS = ("queue_deleted", "queue_expired", "home_down")
#: Those that somebody has asked for.
_ASKED_FOR = ("purge", "queue_deleted")


#: Called when a queue ends: with vhost, queue, whether it went by itself, and messages.
Ended: TypeAlias = Callable[[str, str, bool, int], None]


def _nobody(vhost: str, queue: str, is_expired: bool, messages: int) -> None:
    """Ignore the end of a queue."""


class Dropped:
    """State: messages since this member's start, by cause."""

    def __init__(self, ended: Ended = _nobody) -> None:
        self.totals: dict[str, int] = dict.fromkeys(CAUSES, 0)
        self._ended = ended

    def of_queue(self, vhost: str, queue: str, cause: str, messages: int, letters: int) -> None:
        """A queue lost messages, and dead letters that waited in it (effects.Dropped)."""
        counted = _COUNTED.get(cause, "queue_deleted")
        if counted in _ENDS:
            self._ended(vhost, queue, counted == "queue_expired", messages)
        self._count(vhost, queue, counted, cause, messages, letters)

    def of_vanished(
        self, vhost: str, queue: str, cause: str, messages: int, *, was_away: bool
    ) -> None:
        """A queue is gone without its own word, with its vhost, say.

        cause: the catalog's, "" if it is not known.  was_away: it was deleted while this member was
        away, which has not opened it since; its last figures are not reported.
        """
        if not messages:
            return
        counted = _COUNTED.get(cause, "queue_deleted")
        if not was_away:
            self._ended(vhost, queue, counted == "queue_expired", messages)
        if counted == "home_down":
            cause = "a deletion by the other members, which did not hear this one"
        elif was_away:
            cause = f"{cause or 'deleted in the catalog'} while this member was away"
        self._count(vhost, queue, counted, cause or "deleted in the catalog", messages, 0)

    def _count(
        self, vhost: str, queue: str, counted: str, reason: str, messages: int, letters: int
    ) -> None:
        self.totals[counted] += messages + letters
        log.log(
            logging.INFO if counted in _ASKED_FOR else logging.WARNING,
            "queue '%s' in vhost '%s' dropped %d messages and %d dead letters that waited, "
            "for %s cause=%s",
            queue,
            vhost,
            messages,
            letters,
            reason,
            counted,
        )

    def unrouted(self, cause: str) -> None:
        """A message that a queue gave up found no other one."""
        self.totals[cause] += 1

    def of_shovel(self, link: str, count: int, exchange: str, routing_key: str) -> None:
        """A shovel gave up messages that no queue of its destination takes."""
        self.totals["shovel_unroutable"] += count
        log.warning(
            "%s dropped %d messages that no queue of its destination takes, the last one for "
            "exchange '%s', routing key '%s': bind a queue, or set dest-unroutable to keep",
            link,
            count,
            exchange,
            routing_key,
        )
