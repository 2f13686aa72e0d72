"""Which policy holds for an object, and what holds for it in the end.

Winners (R-POL-3, -5, -9), the merge of operator and user policy (R-POL-8), and per key the meeting
of declared values with policies (R-POL-6).  Declared is the literal argument, else the inline
setting, which ranks as an argument.

Pure; reads `CatalogState`.  Results are remembered in the vhost's topology until a policy or the
object changes.  For router, sessions, queue leaders (QueueOptions) and federation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from brokerd.core.catalog import names, patterns, policy_keys
from brokerd.core.catalog.catalog_objects import Entry, Exchange, Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.profiles import Profile
from brokerd.core.queue_options import QueueOptions, kept

Json = dict[str, Any]


@dataclass(slots=True)
class QueueDefaults:
    """What a member's configuration says for queues that say nothing."""

    #: R-QQ-16
    disconnected_timeout_ms: int = 60_000
    #: R-QQ-22; None: no limit.
    consumer_timeout_ms: int | None = None


@dataclass(slots=True)
class Winners:
    """The policies that hold for an object, and their merged definition."""

    policy: str | None = None
    operator_policy: str | None = None
    definition: Json = field(default_factory=dict)


@dataclass(slots=True)
class ExchangeOptions:
    """What holds for an exchange beyond its declaration."""

    alternate_exchange: str | None = None
    federation_upstream: str | None = None
    federation_upstream_set: str | None = None
    federation_upstream_pattern: str | None = None
    #: Name of the policy that applies, whether or not it contributed.
    policy: str | None = None


@dataclass(slots=True, frozen=True)
class QueueSettings:
    """What holds for a queue: values by policy key, and which policies apply."""

    policy: str | None = None
    operator_policy: str | None = None
    values: Json = field(default_factory=dict)


#: Of most queues; one for all of them.
_NOTHING_SAID = QueueSettings()


def _best(candidates: Iterable[Entry], name: str, fits: Callable[[Json], bool]) -> Entry | None:
    """Return the policy that wins: highest priority, then smallest name (R-POL-3)."""
    best: Entry | None = None
    best_rank: tuple[int, str] | None = None
    for candidate in candidates:
        spec = candidate.value
        rank = (-spec["priority"], candidate.name)
        if best_rank is not None and rank > best_rank:
            continue
        if fits(spec) and patterns.matches(spec["pattern"], name):
            best, best_rank = candidate, rank
    return best


def _fits_exchange(spec: Json) -> bool:
    return spec["apply-to"] in ("all", "exchanges")


def _fits_queue(queue: Queue) -> Callable[[Json], bool]:
    """Return what says whether a policy is one for such a queue, whatever its name."""
    unsupported = policy_keys.UNSUPPORTED[queue.type]
    apply_to = ("all", "queues", f"{queue.type}_queues")

    def fits(spec: Json) -> bool:
        # R-POL-9: one key that the type does not support voids the whole policy.
        return spec["apply-to"] in apply_to and unsupported.isdisjoint(spec["definition"])

    return fits


def exchange_policy(view: CatalogState, exchange: Exchange) -> Entry | None:
    """Return the policy of an exchange; the default exchange never has one (R-POL-4)."""
    if exchange.name == names.DEFAULT_EXCHANGE:
        return None
    topology = view.vhosts[exchange.vhost]
    return _best(topology.policies.values(), exchange.name, _fits_exchange)


def matching(view: CatalogState, record: Exchange | Queue) -> list[Entry]:
    """Return the policies, of a queue the operator policies too, whose apply-to and pattern fit an
    object: who wins, and those it wins over.  For `policy_coverage.py`.
    """
    topology = view.vhosts[record.vhost]
    if isinstance(record, Queue):
        fits = _fits_queue(record)
        candidates = [*topology.policies.values(), *topology.operator_policies.values()]
    elif record.name == names.DEFAULT_EXCHANGE:
        return []
    else:
        fits = _fits_exchange
        candidates = list(topology.policies.values())
    return [
        each
        for each in candidates
        if fits(each.value) and patterns.matches(each.value["pattern"], record.name)
    ]


def queue_policies(view: CatalogState, queue: Queue) -> Winners:
    """Return a queue's user and operator policy, merged; an exchange's own queue has none."""
    if names.is_delayed_queue(queue.name):
        return Winners(None, None, {})
    fits = _fits_queue(queue)
    topology = view.vhosts[queue.vhost]
    user = _best(topology.policies.values(), queue.name, fits)
    operator = _best(topology.operator_policies.values(), queue.name, fits)
    return Winners(
        policy=None if user is None else user.name,
        operator_policy=None if operator is None else operator.name,
        definition=merge(
            {} if user is None else user.value["definition"],
            {} if operator is None else operator.value["definition"],
        ),
    )


def limit_of(left: int, right: int) -> int:
    """Return the smaller; where one is negative (no limit), the other (R-DL-1, R-POL-8)."""
    return max(left, right) if left < 0 or right < 0 else min(left, right)


def _second(left: Any, right: Any) -> Any:
    return right


def _first(left: Any, right: Any) -> Any:
    return left


_Merge = Callable[[Any, Any], Any]

#: (user's value, operator's value) to what holds, for keys in both (R-POL-8, R-QQ-23, O-20).
#: Keys that are not here: the operator's.
_OPERATOR_MERGE: dict[str, _Merge] = {
    "message-ttl": min,
    "expires": min,
    "max-length": min,
    "max-length-bytes": min,
    "max-in-memory-length": min,
    "max-in-memory-bytes": min,
    "delivery-limit": limit_of,
    "target-group-size": max,
    "delayed-retry-min": max,
    "delayed-retry-max": min,
}

#: (declared value, policy's value) to what holds, for keys in both (R-POL-6).
#: Keys that are not here: what was declared.
_DECLARED_MERGE: dict[str, _Merge] = {
    "message-ttl": min,
    "expires": min,
    "max-length": min,
    "max-length-bytes": min,
    "consumer-timeout": min,
    "consumer-disconnected-timeout": min,
    "delayed-retry-min": min,
    "delayed-retry-max": min,
    "delivery-limit": limit_of,
    "queue-leader-locator": _second,
    "delayed-retry-type": _second,
    "target-group-size": max,
}

_ARGUMENTS = {key: f"x-{key}" for key in policy_keys.QUEUE_KEYS} | {
    "target-group-size": "x-quorum-target-group-size",
    "queue-alternate-exchange": "qpid.alternate-exchange",
}


def merge(user: Json, operator: Json) -> Json:
    """Merge a user policy's definition with an operator policy's (R-POL-8)."""
    merged = dict(user)
    for key, value in operator.items():
        if key in user:
            value = _OPERATOR_MERGE.get(key, _second)(user[key], value)
        merged[key] = value
    return merged


def declared(queue: Queue) -> Json:
    """Return what the declaration itself says, by policy key: argument, else inline setting."""
    values = dict(queue.settings)
    for key, argument in _ARGUMENTS.items():
        if argument not in queue.arguments:
            continue
        value = queue.arguments[argument]
        check = policy_keys.QUEUE_KEYS[key]
        # Arguments that the type does not know are stored and ignored (R-Q-5).
        if check(value) is None:
            values[key] = value
    return values


def effective_queue(view: CatalogState, queue: Queue) -> QueueSettings:
    """Return the values that hold for a queue."""
    memory = view.vhosts[queue.vhost].effective
    known: QueueSettings | None = memory.get(("queue", queue.name))
    if known is not None:
        return known
    winners = queue_policies(view, queue)
    values = declared(queue)
    for key, value in winners.definition.items():
        if key == "consumer-timeout" and value == 0:
            # As in x-consumer-timeout, no limit is said (feature flag `idle_values`).
            continue
        if key in values:
            combine = _DECLARED_MERGE.get(key, _first)
            if key == "overflow" and queue.type == "quorum":
                # R-LEN-6
                combine = _second
            value = combine(values[key], value)
        values[key] = value
    settings = QueueSettings(winners.policy, winners.operator_policy, values)
    if settings == _NOTHING_SAID:
        settings = _NOTHING_SAID
    memory["queue", queue.name] = settings
    return settings


def effective_exchange(view: CatalogState, exchange: Exchange) -> ExchangeOptions:
    """Return what holds for an exchange: argument, inline setting, policy (R-AE-1)."""
    memory = view.vhosts[exchange.vhost].effective
    known: ExchangeOptions | None = memory.get(("exchange", exchange.name))
    if known is not None:
        return known
    winner = exchange_policy(view, exchange)
    values: Json = dict(winner.value["definition"]) if winner is not None else {}
    if any(key in exchange.settings for key in policy_keys.FEDERATION_KEYS):
        # They exclude each other (R-POL-11), so any one of them replaces any one of the policy.
        for key in policy_keys.FEDERATION_KEYS:
            values.pop(key, None)
    values |= exchange.settings
    if exchange.name == names.DEFAULT_EXCHANGE:
        # R-AE-13
        values = {}
    alternate = exchange.arguments.get("alternate-exchange", values.get("alternate-exchange"))
    options = ExchangeOptions(
        alternate_exchange=alternate,
        federation_upstream=values.get("federation-upstream"),
        federation_upstream_set=values.get("federation-upstream-set"),
        federation_upstream_pattern=values.get("federation-upstream-pattern"),
        policy=None if winner is None else winner.name,
    )
    memory["exchange", exchange.name] = options
    return options


def _delivery_limit(values: Json, profile: Profile) -> tuple[int | None, str, bool]:
    """Return the limit, what counts against it, and whether it is the default (R-DL-1, R-DL-2).

    Against a configured limit every return counts, where the profile says so; against the
    default only failures do: without a configured limit no message is dropped because its
    consumers give it back.
    """
    mode = profile.quorum_delivery_count_mode
    limit = values.get("delivery-limit")
    default = profile.quorum_default_delivery_limit
    if limit is not None and limit >= 0:
        return int(limit), mode, False
    if limit is not None and default is not None:
        # R-DL-7: as 4.3.6 a queue whose limit is switched off serves first what has come back.
        # Versions before 4.0, which have no default, put it to the back.
        return None, "failures", False
    if limit is not None or default is None:
        return None, mode, False
    if mode == "3.x":
        # Of RabbitMQ, no version that counts every return has a default.
        mode = "failures"
    return default, mode, True


def _max_priority(queue: Queue, profile: Profile) -> int:
    """Return the highest priority that the queue tells apart (R-PRI-1, R-PRI-2)."""
    if queue.type == "quorum":
        return max(0, profile.quorum_priorities - 1)
    declared_max = queue.arguments.get("x-max-priority")
    if type(declared_max) is not int:
        return 0
    # 0 is one level to 3.10.8 and two to 4.3.6 (both tried).
    return declared_max or profile.classic_zero_priority_levels - 1


def delayed_retry(values: Json) -> tuple[str, int, int]:
    """Return type, least and greatest delay (R-QQ-24); without a least one there is none."""
    least = values.get("delayed-retry-min")
    if least is None:
        return "disabled", 0, 0
    greatest = values.get("delayed-retry-max", least)
    return values.get("delayed-retry-type", "disabled"), least, max(least, greatest)


def consumer_timeout_ms(
    values: Json, queue_type: str, profile: Profile, defaults: QueueDefaults
) -> int | None:
    """Return how long a consumer may hold a message (R-QQ-22); None: for ever.

    The member's default is for quorum queues only: long tasks of a framework on classic queues end
    no consumer that did not ask for it.
    """
    if queue_type == "quorum":
        timeout: int | None = values.get("consumer-timeout", defaults.consumer_timeout_ms)
        return timeout
    return values.get("consumer-timeout") if profile.queues_classic_consumer_timeout else None


def effective_queue_options(
    view: CatalogState, queue: Queue, profile: Profile, defaults: QueueDefaults | None = None
) -> QueueOptions:
    """Return the options that a queue's leader proposes to its group."""
    if names.is_delayed_queue(queue.name):
        return _delayed_queue_options(queue)
    defaults = defaults or QueueDefaults()
    values = effective_queue(view, queue).values
    is_quorum = queue.type == "quorum"
    overflow = values.get("overflow", "drop-head")
    if is_quorum and overflow == "reject-publish-dlx":
        # R-LEN-4: accepted, behaves as the default.
        overflow = "drop-head"
    dead_letter_exchange = values.get("dead-letter-exchange")
    # R-ALO-1: all three, else at most once.
    at_least_once = (
        is_quorum
        and dead_letter_exchange is not None
        and values.get("dead-letter-strategy") == "at-least-once"
        and overflow == "reject-publish"
    )
    timeout_ms = None
    if profile.consumer_timeout_scope == "queue":
        timeout_ms = consumer_timeout_ms(values, queue.type, profile, defaults)
    retry, retry_min_ms, retry_max_ms = delayed_retry(values if is_quorum else {})
    limit, count_mode, is_default = None, profile.quorum_delivery_count_mode, False
    if is_quorum:
        limit, count_mode, is_default = _delivery_limit(values, profile)
    options = QueueOptions(
        queue_type=queue.type,
        dead_letter_exchange=dead_letter_exchange,
        dead_letter_routing_key=values.get("dead-letter-routing-key"),
        at_least_once=at_least_once,
        delivery_limit=limit,
        delivery_count_mode=count_mode,
        delivery_limit_is_default=is_default,
        max_length=values.get("max-length"),
        max_length_bytes=values.get("max-length-bytes"),
        overflow=overflow,
        message_ttl_ms=values.get("message-ttl"),
        expires_ms=values.get("expires"),
        declare_renews=not is_quorum or profile.quorum_declare_renews,
        expiry_waits=profile.queues_expiry_waits,
        single_active_consumer=queue.arguments.get("x-single-active-consumer") is True,
        auto_delete=queue.auto_delete,
        max_priority=_max_priority(queue, profile),
        disconnected_timeout_ms=values.get(
            "consumer-disconnected-timeout", defaults.disconnected_timeout_ms
        ),
        consumer_timeout_ms=timeout_ms,
        delayed_retry=retry,
        delayed_retry_min_ms=retry_min_ms,
        delayed_retry_max_ms=retry_max_ms,
        alternate_exchange=values.get("queue-alternate-exchange") if profile.queue_ae else None,
        orphan_scope=profile.mrg_orphan_scope,
        reroute_overflow=profile.mrg_reroute_overflow,
        names_consumers=profile.dlx_emit_last_death_consumer,
    )
    return kept(options)


def first_queue_options(queue: Queue) -> QueueOptions:
    """Return what a queue's machine begins with, before its leader tells it the rest."""
    if names.is_delayed_queue(queue.name):
        return _delayed_queue_options(queue)
    return kept(QueueOptions(queue_type=queue.type))


def _delayed_queue_options(queue: Queue) -> QueueOptions:
    """Return the options of a queue in which an exchange keeps what is not due: no policy's."""
    options = QueueOptions(
        queue_type=queue.type,
        dead_letter_exchange=names.exchange_of(queue.name),
        at_least_once=True,
        holds_delayed=True,
    )
    return kept(options)


def option_warnings(view: CatalogState, queue: Queue) -> list[str]:
    """Return what a person should know about a queue's settings (R-ALO-1, R-LEN-4)."""
    values = effective_queue(view, queue).values
    if queue.type != "quorum":
        return []
    resource = names.resource("queue", queue.vhost, queue.name)
    warnings = []
    overflow = values.get("overflow", "drop-head")
    if overflow == "reject-publish-dlx":
        warnings.append(
            f"{resource}: overflow reject-publish-dlx is not supported by quorum queues"
        )
    if values.get("dead-letter-strategy") == "at-least-once":
        if values.get("dead-letter-exchange") is None:
            warnings.append(f"{resource}: at-least-once needs a dead-letter-exchange")
        elif overflow != "reject-publish":
            warnings.append(f"{resource}: at-least-once needs overflow reject-publish")
    if values.get("delayed-retry-type", "disabled") != "disabled" and (
        "delayed-retry-min" not in values
    ):
        warnings.append(f"{resource}: delayed retry needs delayed-retry-min")
    return warnings


def queues_with_alternate(view: CatalogState, vhost: str, exchange: str) -> list[str]:
    """Return the queues that name this exchange as their alternate (R-MQ-9)."""
    topology = view.vhosts.get(vhost)
    if topology is None:
        return []
    return [
        queue.name
        for queue in topology.queues.values()
        if effective_queue(view, queue).values.get("queue-alternate-exchange") == exchange
    ]
