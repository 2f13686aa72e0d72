"""The settings in force of one queue: the catalog's policies make them, its machine keeps them."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.core.interner import Interner


@dataclass(slots=True, frozen=True)
class QueueOptions:
    """Effective settings: argument, inline setting and policy already merged (R-POL-6).

    The leader proposes them (UPDATE_OPTIONS) as the first command of its term and after each
    change.
    """

    queue_type: str = "classic"
    dead_letter_exchange: str | None = None
    dead_letter_routing_key: str | None = None
    #: True only if all of R-ALO-1 holds.
    at_least_once: bool = False
    #: The queue's own, not set from outside: where letters go that wait while the settings name no
    #: dead letter exchange.
    letters_exchange: str | None = None
    letters_routing_key: str | None = None
    #: None: no limit (classic queues always).
    delivery_limit: int | None = None
    #: "3.x", "4.0" or "4.3" (R-DL-2), or "failures": as 4.3, and only a failure ends a message;
    #: without a limit, what comes back is served first.
    delivery_count_mode: str = "3.x"
    #: The limit is the default: what is dropped for it is counted.
    delivery_limit_is_default: bool = False
    max_length: int | None = None
    max_length_bytes: int | None = None
    #: drop-head, reject-publish or reject-publish-dlx
    overflow: str = "drop-head"
    message_ttl_ms: int | None = None
    expires_ms: int | None = None
    #: R-Q-11: a declare is a use.
    declare_renews: bool = True
    #: R-Q-11: the queue does not expire while messages in it have yet to expire to its dead letter
    #: exchange.
    expiry_waits: bool = False
    single_active_consumer: bool = False
    auto_delete: bool = False
    max_priority: int = 0
    #: How long messages of a consumer on an unreachable node stay checked out (R-QQ-16).
    disconnected_timeout_ms: int = 60_000
    #: How long a consumer may hold a message (R-QQ-22); None: for ever.
    consumer_timeout_ms: int | None = None
    #: Which returns wait before they are ready again: disabled, all, failed or returned (R-QQ-24).
    delayed_retry: str = "disabled"
    delayed_retry_min_ms: int = 0
    delayed_retry_max_ms: int = 0
    #: Of profile mrg (R-MQ): where rejected messages go that have no dead letter exchange, and what
    #: is left when the queue ends.
    alternate_exchange: str | None = None
    #: R-MQ-3: all or unacked.
    orphan_scope: str = "all"
    #: R-MQ-11: what the length limit drops goes there too.
    reroute_overflow: bool = False
    #: The queue of an exchange that delays messages: each becomes a dead letter when it is due.
    holds_delayed: bool = False
    #: What dies says which consumer had it, where there is a dead letter exchange.
    names_consumers: bool = False

    def letters_target(self) -> tuple[str | None, str | None]:
        """Return exchange and routing key of dead letters that wait (R-ALO-9)."""
        if self.dead_letter_exchange is not None:
            return self.dead_letter_exchange, self.dead_letter_routing_key
        return self.letters_exchange, self.letters_routing_key


_kept: Interner[QueueOptions] = Interner()


def kept(options: QueueOptions) -> QueueOptions:
    """Return options that a queue is to keep: one object for all that have the same."""
    return _kept.intern(options)
