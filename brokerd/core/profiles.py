"""Compat profiles: every switch (docs/concepts/profiles.md) with its value per named profile.

Pure data.  The server reads `compat.profile` and single switches from its configuration, calls
`configured()` once and hands the result on.  Differences without a switch (O-15) are fixed to the
default and not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

DEFAULT_PROFILE = "brokerd"

_MIB = 1024 * 1024
_GIB = 1024 * _MIB


class UnknownProfile(ValueError):
    """No profile or switch of that name, or a value that the switch does not know."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The switches; a field's name is the switch's with `.` written as `_` (see `switch_name`)."""

    name: str = DEFAULT_PROFILE
    #: R-AE-4
    ae_warn_missing: bool = True
    #: R-AE-15
    immediate_emulate: bool = False
    #: R-DRT-3: a mandatory reply to who no longer waits for it comes back
    replies_return_undelivered: bool = True
    #: R-TTL-9: a message's expiration is delivered as the number that it is, `060000` as `60000`
    expiration_normalise: bool = True
    #: R-DLX-12
    dlx_strip_cc_on_rk: bool = False
    #: R-DLX-24
    dlx_trust_client_x_death: bool = False
    #: R-DLX-23
    dlx_emit_last_death: bool = True
    #: ADR 88: x-last-death-consumer
    dlx_emit_last_death_consumer: bool = True
    #: R-DLX-14
    dlx_original_expiration_only_on_expired: bool = False
    #: R-DLX-35: failures of a dead letter count on in the queue that it goes to
    dlx_carry_counts: bool = True
    #: R-DL-2: "3.x", "4.0" or "4.3"
    quorum_delivery_count_mode: str = "3.x"
    #: R-DL-1; None: none
    quorum_default_delivery_limit: int | None = 20
    #: R-DL-4: 4.x (x-acquired-count too), 3.13 or 3.10 (x-delivery-count also on a first basic.get)
    quorum_count_headers: str = "4.x"
    #: R-Q-3: what a basic.get or a cancelled consumer holds of a quorum queue counts as a consumer
    #: in declare-ok
    quorum_holders_are_consumers: bool = False
    #: R-ERR-35: the quorum queue itself judges queue.delete with if-unused or if-empty; False:
    #: 540, as in RabbitMQ
    quorum_conditional_delete: bool = True
    #: A message with an x-delay that no exchange keeps is refused; False: routed at once, as
    #: RabbitMQ's plug-in does it
    delays_bounded: bool = True
    #: Queues keep a message with a header x-opt-delivery-time until then (a preview)
    delivery_times: bool = True
    #: R-Q-11: a declare is a use of a quorum queue, as of a classic one
    quorum_declare_renews: bool = True
    #: R-PRI-2: levels; 0: none
    quorum_priorities: int = 32
    #: R-PRI-1: levels of a classic queue with an x-max-priority of 0
    classic_zero_priority_levels: int = 2
    #: R-QQ-22: queue or channel
    consumer_timeout_scope: str = "queue"
    #: R-QOS-3: deny or allow
    qos_global: str = "deny"
    #: R-Q-8, O-1: allow, warn or deny
    queues_transient_nonexclusive: str = "warn"
    #: R-Q-5: which arguments that only streams have are refused on other queues: those of 3.13, of
    #: 3.10, or none, with a warning
    queues_stream_arguments: str = "warn"
    #: R-Q-5: x-queue-master-locator of classic queues: allow, warn or deny; quorum queues refuse it
    #: unless this is warn
    queues_master_locator: str = "warn"
    #: R-Q-11: the expiry of an unused queue waits while messages in it have yet to expire to its
    #: dead letter exchange
    queues_expiry_waits: bool = True
    #: R-QQ-22: x-consumer-timeout and the policy key hold for classic queues too; False: there the
    #: argument is refused and the key does nothing, as in RabbitMQ
    queues_classic_consumer_timeout: bool = True
    #: R-Q-6, R-CS-5: values without effect that RabbitMQ 4.3.6 takes (x-delivery-limit that is no
    #: number, any x-queue-mode …) are taken, with a warning
    queues_idle_values: bool = True
    #: R-EX-3: 406 (channel) or 503 (connection)
    exchange_unknown_type_error: int = 406
    #: R-EX-5: any or none
    permissions_passive_declare: str = "any"
    #: R-RT-H4: strict or loose
    headers_numeric_equality: str = "strict"
    #: R-BND-8; 0: unlimited
    topic_max_hash_words: int = 2
    #: R-CON-8: smallest frame_max that a client may ask for, and largest frame before it does
    frame_min: int = 8192
    #: R-FRM-8
    max_message_size: int = 16 * _MIB
    #: R-MEM-4
    memory_watermark_default: float = 0.6
    #: R-MEM-7: block or disable
    memory_zero_means: str = "block"
    #: R-MEM-5: cap or allow
    memory_fraction_above_one: str = "cap"
    #: R-MEM-3: usable bytes of a 32-bit process
    memory_limit32: int = 2 * _GIB
    #: R-MEM-2
    memory_cgroup_aware: bool = True
    #: R-MEM-8, R-MEM-10: modern or 2009
    memory_log_style: str = "modern"
    #: R-OLD-2: blocked, channel_flow or both
    throttle_mode: str = "blocked"
    #: R-OLD-3
    throttle_flow_all_channels: bool = False
    #: O-17: pause or close
    throttle_enforce_flow: str = "pause"
    #: R-MQ: queue-level alternate exchanges
    queue_ae: bool = False
    #: R-MQ-3: all or unacked
    mrg_orphan_scope: str = "all"
    #: R-MQ-7
    mrg_mark_on_exchange_ae: bool = False
    #: R-MQ-11
    mrg_reroute_overflow: bool = False
    #: R-ALM-9
    federation_honour_alarms: bool = True
    #: R-FX-17: a change that loses what waits upstream is refused until it is confirmed
    federation_confirm_loss: bool = True
    #: R-FED-2, seconds
    federation_reconnect_delay: int = 5
    #: Whether the HTTP API and exported definitions are as 4.3's where 3.10's differ: x-queue-type
    #: among the arguments of every queue, pages of users, 404 for a vhost that one may not enter
    management_as_4_3: bool = True
    #: Whether shovels give up what no queue of their destination takes
    shovel_drop_unroutable: bool = False


_RABBITMQ_4_3 = {
    "ae_warn_missing": False,
    "dlx_emit_last_death_consumer": False,
    "replies_return_undelivered": False,
    "quorum_delivery_count_mode": "4.3",
    "quorum_holders_are_consumers": True,
    "quorum_conditional_delete": False,
    "delays_bounded": False,
    "delivery_times": False,
    "quorum_declare_renews": False,
    "queues_stream_arguments": "3.13",
    "queues_master_locator": "deny",
    "queues_expiry_waits": False,
    "queues_classic_consumer_timeout": False,
    "memory_cgroup_aware": False,
    "federation_confirm_loss": False,
    "shovel_drop_unroutable": True,
}

_RABBITMQ_3_10: dict[str, Any] = {
    "ae_warn_missing": False,
    "expiration_normalise": False,
    "dlx_strip_cc_on_rk": True,
    "dlx_trust_client_x_death": True,
    "dlx_emit_last_death": False,
    "dlx_emit_last_death_consumer": False,
    "dlx_carry_counts": False,
    "quorum_delivery_count_mode": "3.x",
    "quorum_default_delivery_limit": None,
    "quorum_count_headers": "3.10",
    "quorum_holders_are_consumers": True,
    "quorum_conditional_delete": False,
    "delays_bounded": False,
    "delivery_times": False,
    "quorum_declare_renews": False,
    "quorum_priorities": 0,
    "classic_zero_priority_levels": 1,
    "consumer_timeout_scope": "channel",
    "qos_global": "allow",
    "queues_transient_nonexclusive": "allow",
    "queues_stream_arguments": "3.10",
    "queues_master_locator": "allow",
    "queues_expiry_waits": False,
    "queues_classic_consumer_timeout": False,
    "queues_idle_values": False,
    "exchange_unknown_type_error": 503,
    "permissions_passive_declare": "none",
    "headers_numeric_equality": "loose",
    "topic_max_hash_words": 0,
    "frame_min": 4096,
    "max_message_size": 128 * _MIB,
    "memory_watermark_default": 0.4,
    "memory_cgroup_aware": False,
    "federation_honour_alarms": False,
    "federation_confirm_loss": False,
    "management_as_4_3": False,
    "shovel_drop_unroutable": True,
}

#: O-14: as 3.10 but for what 14.1's column of 3.13 says.
_RABBITMQ_3_13 = _RABBITMQ_3_10 | {
    "dlx_strip_cc_on_rk": False,
    "dlx_emit_last_death": True,
    "quorum_count_headers": "3.13",
    "queues_stream_arguments": "3.13",
    "exchange_unknown_type_error": 406,
    "headers_numeric_equality": "strict",
}

_REFERENCE = _RABBITMQ_3_10 | {
    "ae_warn_missing": True,
    "immediate_emulate": True,
    "dlx_original_expiration_only_on_expired": True,
    "memory_zero_means": "disable",
    "memory_fraction_above_one": "allow",
    "memory_limit32": 4 * _GIB,
    "memory_log_style": "2009",
    "throttle_mode": "channel_flow",
    "throttle_enforce_flow": "close",
    "federation_honour_alarms": True,
    "federation_reconnect_delay": 1,
}

#: R-MQ; O-7: routing through any alternate marks.
_MRG = {"queue_ae": True, "mrg_mark_on_exchange_ae": True}

_PROFILES: dict[str, dict[str, Any]] = {
    "brokerd": {},
    "rabbitmq-4.3": _RABBITMQ_4_3,
    "rabbitmq-3.13": _RABBITMQ_3_13,
    "rabbitmq-3.10": _RABBITMQ_3_10,
    "reference": _REFERENCE,
    "mrg": _MRG,
}
NAMES = tuple(_PROFILES)

_CHOICES = {
    "frame_min": (4096, 8192),
    "quorum_delivery_count_mode": ("3.x", "4.0", "4.3"),
    "quorum_count_headers": ("4.x", "3.13", "3.10"),
    "quorum_priorities": (0, 32),
    "classic_zero_priority_levels": (1, 2),
    "consumer_timeout_scope": ("queue", "channel"),
    "qos_global": ("deny", "allow"),
    "queues_transient_nonexclusive": ("allow", "warn", "deny"),
    "queues_stream_arguments": ("3.13", "3.10", "warn"),
    "queues_master_locator": ("allow", "warn", "deny"),
    "exchange_unknown_type_error": (406, 503),
    "permissions_passive_declare": ("any", "none"),
    "headers_numeric_equality": ("strict", "loose"),
    "memory_zero_means": ("block", "disable"),
    "memory_fraction_above_one": ("cap", "allow"),
    "memory_log_style": ("modern", "2009"),
    "throttle_mode": ("blocked", "channel_flow", "both"),
    "throttle_enforce_flow": ("pause", "close"),
    "mrg_orphan_scope": ("all", "unacked"),
}
_SWITCHES = frozenset(field.name for field in fields(Profile)) - {"name"}


def profile(name: str = DEFAULT_PROFILE, /, **overrides: Any) -> Profile:
    """Return a profile by name; `a+b` lays b over a (`reference+mrg`), then single switches.

    Raises UnknownProfile with a text for the person who wrote the configuration.
    """
    values: dict[str, Any] = {}
    for part in name.split("+"):
        if part not in _PROFILES:
            known = ", ".join(NAMES)
            raise UnknownProfile(f"unknown compat profile '{part}'; known: {known}")
        values |= _PROFILES[part]
    for switch, value in overrides.items():
        if switch not in _SWITCHES:
            raise UnknownProfile(f"unknown compat switch '{switch}'")
        choices = _CHOICES.get(switch)
        if choices is not None and value not in choices:
            allowed = ", ".join(map(str, choices))
            raise UnknownProfile(
                f"compat switch '{switch_name(switch)}' is {value!r}; allowed: {allowed}"
            )
        values[switch] = value
    return replace(Profile(name=name), **values)


#: Fields whose switch is not simply the first word, a dot and the rest.
_NAMES = {
    "consumer_timeout_scope": "consumer_timeout.scope",
    "max_message_size": "max_message_size",
    "queue_ae": "queue_ae",
}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_UNITS = {"": 1, "kib": 1024, "mib": _MIB, "gib": _GIB}


def switch_name(field: str) -> str:
    """Return the documented name of a field (`dlx_emit_last_death`: dlx.emit_last_death)."""
    return _NAMES.get(field) or field.replace("_", ".", 1)


def configured(name: str, switches: Mapping[str, Any]) -> Profile:
    """Return the profile with single switches of a configuration laid over it (R-VER-2).

    switches: by name, with dots or underscores; values typed or as text, as the environment has
    them.  Raises UnknownProfile with a text for the person who wrote the configuration.
    """
    overrides: dict[str, Any] = {}
    for switch, value in switches.items():
        field = switch.lower().replace(".", "_")
        if field not in _SWITCHES:
            known = ", ".join(map(switch_name, sorted(_SWITCHES)))
            raise UnknownProfile(f"unknown compat switch '{switch}'; known: {known}")
        overrides[field] = _parsed(field, value)
    return profile(name, **overrides)


def effective(chosen: Profile) -> dict[str, Any]:
    """Return every switch by its name, to show the configuration."""
    return {
        switch_name(field): value
        for field, value in sorted(asdict(chosen).items())
        if field in _SWITCHES
    }


def _parsed(field: str, value: Any) -> Any:
    """Return a configured value in the switch's type."""
    kind = _KINDS[field]
    found = _PARSERS[kind](value)
    if found is None and not (kind == "int | None" and _is_none(value)):
        what = _KIND_TEXTS[kind]
        raise UnknownProfile(
            f"compat switch '{switch_name(field)}' is {value!r}; it must be {what}"
        )
    return found


def _is_none(value: Any) -> bool:
    return value is None or str(value).lower() in ("none", "")


def _boolean(value: Any) -> bool | None:
    text = str(value).strip().lower()
    return True if text in _TRUE else False if text in _FALSE else None


def _integer(value: Any) -> int | None:
    """Return a whole number that is not negative, with a unit where it is a size."""
    if isinstance(value, bool):
        return None
    text = str(value).strip().lower()
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(digits) :].strip()
    # 18 digits are below 2**63, which every place that keeps the number can hold.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18) or unit not in _UNITS:
        return None
    return int(digits) * _UNITS[unit]


def _fraction(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if 0 <= number < 1e6 else None


def _text(value: Any) -> str | None:
    """Return the text; TOML may bring "2009" and 4.3 as numbers."""
    return None if isinstance(value, bool) else str(value)


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "bool": _boolean,
    "int": _integer,
    "int | None": _integer,
    "float": _fraction,
    "str": _text,
}
_KIND_TEXTS = {
    "bool": "true or false",
    "int": "a whole number, not negative",
    "int | None": "a whole number, not negative, or none",
    "float": "a number, not negative",
    "str": "text",
}
#: The type of each switch, as it stands in the class.
_KINDS: dict[str, str] = {field.name: str(field.type) for field in fields(Profile)}
