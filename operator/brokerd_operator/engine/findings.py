"""What the telemetry job found, as conditions and Events of the resources that it is about.

ADR 33.  The job hands its findings to the members; the engine fetches them now and then.  A finding
of a queue or exchange shows on its resource and on the policy in force for it, one of a link on its
FederationUpstream, all on the broker.  Nothing is said where no job has run, and of topology
resources only what is raised, so that an hour without news writes no status.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import regex

from brokerd_operator import conditions
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.shell import Store
from brokerd_operator.specs.model import Identity, JsonObject, Reference

#: Findings that one message names, and how much of each.
NAMED_MAX = 3
TEXT_MAX = 240
#: What a document may hold; the job writes 200.
FINDINGS_MAX = 1000

_REASONS = {"critical": "CriticalFinding", "warning": "WarningFinding"}
_SEPARATOR = " | "
#: The name of each finding in a message, up to when it began.
_NAME = regex.compile(r"(?:^| \| )([A-Z0-9-]+ of [^|]*?), since ")


@dataclass(frozen=True, slots=True)
class Finding:
    """One that is raised."""

    rule: str
    severity: str
    since: str
    object_type: str
    vhost: str
    name: str
    upstream: str
    #: What was found, what to do, and the table that shows it.
    text: str

    @property
    def title(self) -> str:
        """Its name in messages and Events."""
        where = f" in vhost '{self.vhost}'" if self.vhost and self.object_type != "vhost" else ""
        return f"{self.rule} of {self.object_type} '{self.name}'{where}".replace("|", "¦")

    @property
    def identity(self) -> Identity:
        return Identity(self.object_type, self.vhost, self.name)


class Findings:
    """Owns what was fetched last, by broker: None where no job has handed anything in."""

    def __init__(self) -> None:
        self._found: dict[Reference, tuple[Finding, ...] | None] = {}

    def replace(self, broker: Reference, documents: Iterable[JsonObject]) -> set[Finding]:
        """Take what members hold, each of which may have missed the last run; what changed."""
        newest = max(documents, key=_age, default=None)
        before = self._found.get(broker) or ()
        after = None if newest is None else raised(newest)
        self._found[broker] = after
        return set(before) ^ set(after or ())

    def is_known(self, broker: Reference) -> bool:
        """Whether a broker ever answered."""
        return broker in self._found

    def forget(self, broker: Reference) -> None:
        self._found.pop(broker, None)

    def of_broker(self, broker: Reference, generation: int) -> tuple[conditions.Condition, ...]:
        """The condition of a broker; nothing where there is no job."""
        found = self._found.get(broker)
        if found is None:
            return ()
        if not any(item.severity in _REASONS for item in found):
            text = "the telemetry job found nothing"
            return (conditions.build(conditions.HEALTHY, True, "NothingFound", text, generation),)
        return _condition(found, generation)

    def of_object(
        self, broker: Reference, identity: Identity, generation: int
    ) -> tuple[conditions.Condition, ...]:
        """The condition of a queue or exchange; nothing while nothing is raised."""
        found = [item for item in self._found.get(broker) or () if item.identity == identity]
        return _condition(found, generation)

    def of_upstream(
        self, broker: Reference, vhost: str, name: str, generation: int
    ) -> tuple[conditions.Condition, ...]:
        """The condition of an upstream: its links'."""
        found = [
            item
            for item in self._found.get(broker) or ()
            if (item.object_type, item.vhost, item.upstream) == ("link", vhost, name)
        ]
        return _condition(found, generation)

    def of_policy(
        self, broker: Reference, identity: Identity, winners: Mapping[Identity, Identity],
        generation: int,
    ) -> tuple[conditions.Condition, ...]:  # fmt: skip
        """The condition of a policy: what is found of objects that it is in force for."""
        found = [
            item for item in self._found.get(broker) or () if winners.get(item.identity) == identity
        ]
        return _condition(found, generation)


def raised(document: JsonObject) -> tuple[Finding, ...]:
    """The findings of a document that are raised, the worst first; what is no finding is none."""
    rows = document.get("findings")
    if not isinstance(rows, list):
        return ()
    found = []
    for row in rows[:FINDINGS_MAX]:
        if isinstance(row, dict) and row.get("status") == "RAISED":
            table = f" (table {row['evidence']})" if row.get("evidence") else ""
            text = f"{_text(row, 'message')}: {_text(row, 'action')}{table}"
            found.append(
                Finding(
                    rule=_text(row, "rule"),
                    severity=_text(row, "severity"),
                    since=_text(row, "since"),
                    object_type=_text(row, "object_type"),
                    vhost=_text(row, "vhost"),
                    name=_text(row, "object"),
                    upstream=_text(row, "upstream"),
                    text=text,
                )
            )
    return tuple(found)


async def tell(store: Store, body: Body, found: tuple[conditions.Condition, ...]) -> None:
    """Emit an Event for each finding that the message names for the first time, or no more."""
    before, after = _named(conditions.find(body, conditions.HEALTHY)), _named(*found)
    for name, text in after.items():
        if name not in before:
            await store.emit(body, "Warning", "FindingRaised", text)
    for name in before:
        if name not in after:
            await store.emit(body, "Normal", "FindingCleared", f"{name} is over")


def _age(document: JsonObject) -> tuple[int, str]:
    as_of_us = document.get("as_of_us")
    return (as_of_us if type(as_of_us) is int else 0, str(document.get("run_id")))


def _text(row: JsonObject, name: str) -> str:
    value: Any = row.get(name)
    return value[:1024] if isinstance(value, str) else ""


def _condition(found: Iterable[Finding], generation: int) -> tuple[conditions.Condition, ...]:
    """Healthy: False with the worst ones; what is only for information makes nothing unhealthy."""
    order = list(_REASONS)
    bad = [item for item in found if item.severity in order]
    if not bad:
        return ()
    bad.sort(key=lambda item: (order.index(item.severity), item.since, item.title))
    pieces = [
        f"{item.title}, since {item.since}: {item.text}".replace("|", "¦")[:TEXT_MAX]
        for item in bad[:NAMED_MAX]
    ]
    if len(bad) > NAMED_MAX:
        pieces.append(f"and {len(bad) - NAMED_MAX} more")
    reason = _REASONS[bad[0].severity]
    text = _SEPARATOR.join(pieces)
    return (conditions.build(conditions.HEALTHY, False, reason, text, generation),)


def _named(*found: conditions.Condition | None) -> dict[str, str]:
    """The findings that conditions name, each with its piece of the message."""
    names: dict[str, str] = {}
    for condition in found:
        if condition is not None and condition.status == conditions.FALSE:
            for piece in condition.message.split(_SEPARATOR):
                match = _NAME.match(piece)
                if match is not None:
                    names[match[1]] = piece
    return names
