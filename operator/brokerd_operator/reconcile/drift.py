"""Differences between what a resource asks for and what the broker holds. PURE; for the planner.

Keys that listings leave out (passwords, URIs: SEC-20) are not compared here; `plan.py` compares
them by the hash that the broker answered to our own last write.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from brokerd_operator.specs import arguments
from brokerd_operator.specs.model import DesiredObject, JsonObject

#: Differences that a status holds at most (design/operator.md §6).
DIFFERENCES_MAX = 16
#: The CRD's bound on a value in `status.drift`; values are for reading.
VALUE_MAX = 256

#: What the broker may add to a spec by itself.
_BROKERS_OWN = frozenset(("exclusive",))
#: What a client may have said once more: the type of its queue, as an argument (R-Q-4).
_SAID_TWICE = {"queue": frozenset(("arguments.x-queue-type",))}
#: What a parameter means that does not say it, as RabbitMQ's, which leave out what is the default.
_DEFAULTS: dict[str, JsonObject] = {
    "federation-upstream": {
        "prefetch-count": 1000,
        "ack-mode": "on-confirm",
        "max-hops": 1,
        "reconnect-delay": 5,
        "trust-user-id": False,
        "queue-type": "classic",
        "resource-cleanup-mode": "default",
        "channel-use-mode": "multiple",
    },
    "shovel": {
        "src-protocol": "amqp091",
        "src-prefetch-count": 1000,
        "src-delete-after": "never",
        "src-queue-args": {},
        "src-consumer-args": {},
        "dest-protocol": "amqp091",
        "dest-queue-args": {},
        "dest-add-forward-headers": False,
        "dest-add-timestamp-header": False,
        "dest-publish-properties": {},
        "ack-mode": "on-confirm",
        "reconnect-delay": 5,
    },
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs. An absent value is None."""

    path: str
    desired: str | None
    observed: str | None

    def to_json(self) -> JsonObject:
        found: JsonObject = {"path": self.path}
        if self.desired is not None:
            found["desired"] = self.desired
        if self.observed is not None:
            found["observed"] = self.observed
        return found


def differences(desired: DesiredObject, observed: JsonObject) -> tuple[Difference, ...]:
    """Fields that differ, write-only ones aside."""
    hidden = frozenset(desired.write_only) | _SAID_TWICE.get(desired.kind, frozenset())
    defaults = _DEFAULTS.get(desired.name.partition("/")[0], {})
    if desired.kind != "parameter" or not defaults:
        return tuple(_compare("", desired.spec, observed, hidden))
    left, right = (_with(defaults, spec) for spec in (desired.spec, observed))
    return tuple(_compare("", left, right, hidden))


def _with(defaults: JsonObject, spec: JsonObject) -> JsonObject:
    value = spec.get("value")
    return {**spec, "value": defaults | value} if isinstance(value, dict) else spec


def _compare(
    prefix: str, desired: JsonObject, observed: JsonObject, hidden: frozenset[str]
) -> Iterator[Difference]:
    for key in sorted(set(desired) | set(observed)):
        path = f"{prefix}.{key}" if prefix else key
        if path in hidden or (not prefix and key in _BROKERS_OWN):
            continue
        left, right = desired.get(key), observed.get(key)
        if isinstance(left, dict) and isinstance(right, dict):
            yield from _compare(path, left, right, hidden)
        elif not _is_same(left, right):
            yield Difference(path, shown(left), shown(right))


def _is_same(left: Any, right: Any) -> bool:
    """Equal as JSON: 1 and true are not, 1 and 1.0 are."""
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    if isinstance(left, dict | list) or isinstance(right, dict | list):
        return arguments.canonical_json(left) == arguments.canonical_json(right)
    return bool(left == right)


def shown(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else arguments.canonical_json(value)
    return text if len(text) <= VALUE_MAX else text[: VALUE_MAX - 1] + "…"
