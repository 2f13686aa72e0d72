"""The history of a dead-lettered message: x-death entries, dead-letter keys, cycles.

Pure functions on `annotations.Death` records.  Headers as clients see them are rendered by the
server (R-DLX-22, R-DLX-25); routing to the dead letter exchange is the router's.  Used by both
publishers of dead letters: the at-most-once path and the at-least-once worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from brokerd.core.annotations import Annotations, Death

#: RabbitMQ's reason names (R-DLX-2).
REASONS = ("rejected", "expired", "maxlen", "delivery_limit")


class LastDeath(NamedTuple):
    """x-last-death-*: rewritten at each death (R-DLX-23)."""

    reason: str
    queue: str
    exchange: str


@dataclass(slots=True, frozen=True)
class Died:
    """What a message is after a death."""

    #: To be published along with it: history, carried delivery count, no TTL of its own.
    annotations: Annotations
    last: LastDeath


def record(
    before: Annotations,
    *,
    queue: str,
    reason: str,
    time_s: int,
    exchange: str,
    routing_keys: Sequence[str],
    expiration: str | None = None,
    delivery_count: int = 0,
    keeps_keys: bool = True,
) -> Died:
    """Return the message's annotations after one more death.

    exchange, routing_keys: as the message had been published before this death; RK and CC, not
    BCC (R-DLX-22).  expiration: its property, which the caller removes (R-DLX-14).
    keeps_keys: no dead-letter routing key is set, so BCC keys stay with it (R-DLX-10).
    """
    pair = next((d for d in before.deaths if (d.queue, d.reason) == (queue, reason)), None)
    if pair is None:
        newest = Death(
            queue=queue,
            reason=reason,
            count=1,
            time_s=time_s,
            exchange=exchange,
            routing_keys=list(routing_keys),
            original_expiration=plain_expiration(expiration),
        )
    else:
        # R-DLX-21: all but the count stays from the first time.
        newest = replace(pair, count=pair.count + 1, routing_keys=list(pair.routing_keys))
    deaths = [newest, *(death for death in before.deaths if death is not pair)]
    after = replace(
        before,
        bcc=list(before.bcc) if keeps_keys else [],
        deaths=deaths,
        first_death=before.first_death or (reason, queue, exchange),
        delivery_count=delivery_count,
        ttl_ms=None,
        redriven=None,
    )
    return Died(after, LastDeath(reason, queue, exchange))


def plain_expiration(expiration: str | None) -> str | None:
    """Return the TTL printed as a plain integer (R-DLX-22: "060000" becomes "60000")."""
    if expiration is None or not (expiration.isascii() and expiration.isdigit()):
        return expiration
    return expiration.lstrip("0") or "0"


def has_new_key(before: Annotations, routing_key: str) -> bool:
    """Say whether a dead-letter routing key has once replaced what the message was published with.

    From then on CC stands in its headers only: RabbitMQ 4.3 neither routes by it nor names it in
    later deaths (R-DLX-12, R-DLX-22).  A key that equals the first one is not told apart.
    routing_key: the present one.
    """
    pair = (before.first_death or ("", "", ""))[:2]
    first = next((d.routing_keys for d in before.deaths if (d.reason, d.queue) == pair), [])
    later = [death.routing_keys for death in before.deaths]
    return bool(first) and any(known[:1] != first[:1] for known in ([routing_key], *later))


def keys(
    routing_key: str, cc: Sequence[str], bcc: Sequence[str], dead_letter_routing_key: str | None
) -> list[str]:
    """Return the keys to route with (R-DLX-10); the first is the delivered one (R-DLX-11)."""
    if dead_letter_routing_key is not None:
        return [dead_letter_routing_key]
    return list(dict.fromkeys([routing_key, *cc, *bcc]))


def without_cycles(
    targets: Sequence[str], deaths: Sequence[Death], reason: str
) -> tuple[list[str], list[str]]:
    """Return (targets to publish to, targets dropped as cycles), for at-most-once dead letters.

    deaths: the list after this death was recorded, newest first.  A target in whose past no
    rejection stands is an automatic loop (R-DLX-28); rejections are never checked (R-DLX-30).
    """
    if reason == "rejected":
        return list(targets), []
    # Queues that died here without a rejection since: whatever is older than one is none.
    looping: set[str] = set()
    rejected_since = False
    seen: set[str] = set()
    for death in deaths:
        rejected_since = rejected_since or death.reason == "rejected"
        if death.queue not in seen:
            seen.add(death.queue)
            if not rejected_since:
                looping.add(death.queue)
    kept = [target for target in targets if target not in looping]
    return kept, [target for target in targets if target in looping]
