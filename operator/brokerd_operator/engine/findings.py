"""What the telemetry job found, as conditions and Events of the resources that it is about.

ADR 33, 41.  The job hands its findings to the members; the engine fetches them now and then.  A
finding of a queue or exchange shows on its resource and on the policy in force for it, one of a
link on its FederationUpstream, all on the broker.  Nothing is said where no job has run, and of
topology resources only what is raised, so that an hour without news writes no status.  What a job
found that has stopped since stays, as unknown: nothing says that it is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import regex

from brokerd_operator import conditions
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.ports import Store
from brokerd_operator.specs.model import Identity, JsonObject, Reference

#: Findings that one message names, and how much of each.
NAMED_MAX = 3
TEXT_MAX = 240
#: What a document may hold; the job writes 200.
FINDINGS_MAX = 1000
HOUR_US = 3_600_000_000
#: For how long findings count that say nothing of it: the job of an earlier release wrote them.
FRESH_US = 25 * HOUR_US
#: A document may not ask for more.
FRESH_US_MAX = 40 * 24 * HOUR_US

_REASONS = {"critical": "CriticalFinding", "warning": "WarningFinding"}
STALE = "Stale"
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


@dataclass(frozen=True, slots=True)
class Reported:
    """What a run handed in, as it is to be taken now."""

    raised: tuple[Finding, ...]
    #: The end of what it evaluated.
    as_of_us: int
    is_fresh: bool

    @property
    def as_of(self) -> str:
        """To the hour: a text that changed with each run would write the status each time."""
        try:
            at = datetime.fromtimestamp(self.as_of_us // HOUR_US * 3600, UTC)
        except (ValueError, OverflowError, OSError):
            return "an impossible time"
        return f"{at:%Y-%m-%dT%H}h UTC"


class Findings:
    """Owns what was fetched last, by broker: None where no job has handed anything in."""

    def __init__(self) -> None:
        self._found: dict[Reference, Reported | None] = {}

    def replace(
        self, broker: Reference, documents: Iterable[JsonObject], now_us: int
    ) -> set[Finding]:
        """Take what members hold, each of which may have missed the last run.

        now_us: the time, by which a document becomes stale.  Returns the findings whose objects
        have something else to show.
        """
        newest = max(documents, key=_age, default=None)
        before = self._found.get(broker)
        after = None if newest is None else _told(newest, now_us)
        self._found[broker] = after
        old, new = (() if told is None else told.raised for told in (before, after))
        if before is not None and after is not None and before.is_fresh != after.is_fresh:
            return set(old) | set(new)
        return set(old) ^ set(new)

    def is_known(self, broker: Reference) -> bool:
        """Whether a broker ever answered."""
        return broker in self._found

    def forget(self, broker: Reference) -> None:
        self._found.pop(broker, None)

    def of_broker(
        self, broker: Reference, generation: int, is_expected: bool = False
    ) -> tuple[conditions.Condition, ...]:
        """The conditions of a broker; nothing where there is no job.

        is_expected: there is to be one, so silence is worth a word.
        """
        told = self._found.get(broker)
        if told is None:
            text = "no run of the telemetry job has handed in anything yet"
            fresh = (conditions.TELEMETRY_FRESH, conditions.UNKNOWN, "NothingYet", text)
            return (conditions.build(*fresh, generation),) if is_expected else ()
        return (*self._healthy(told, generation), _fresh(told, generation))

    @staticmethod
    def _healthy(told: Reported, generation: int) -> tuple[conditions.Condition, ...]:
        if any(item.severity in _REASONS for item in told.raised):
            return _condition(told, told.raised, generation)
        if not told.is_fresh:
            text = f"{_unknown_since(told)}; nothing was raised then"
            return (
                conditions.build(conditions.HEALTHY, conditions.UNKNOWN, STALE, text, generation),
            )
        text = "the telemetry job found nothing"
        return (conditions.build(conditions.HEALTHY, True, "NothingFound", text, generation),)

    def of_object(
        self, broker: Reference, identity: Identity, generation: int
    ) -> tuple[conditions.Condition, ...]:
        """The condition of a queue or exchange; nothing while nothing is raised."""
        return self._of(broker, generation, lambda item: item.identity == identity)

    def of_upstream(
        self, broker: Reference, vhost: str, name: str, generation: int
    ) -> tuple[conditions.Condition, ...]:
        """The condition of an upstream: its links'."""
        link = ("link", vhost, name)
        return self._of(
            broker, generation, lambda item: (item.object_type, item.vhost, item.upstream) == link
        )

    def of_policy(
        self, broker: Reference, identity: Identity, winners: Mapping[Identity, Identity],
        generation: int,
    ) -> tuple[conditions.Condition, ...]:  # fmt: skip
        """The condition of a policy: what is found of objects that it is in force for."""
        return self._of(broker, generation, lambda item: winners.get(item.identity) == identity)

    def _of(
        self, broker: Reference, generation: int, is_meant: Callable[[Finding], bool]
    ) -> tuple[conditions.Condition, ...]:
        told = self._found.get(broker)
        return () if told is None else _condition(told, filter(is_meant, told.raised), generation)


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
    """Emit an Event for each finding that the message names for the first time, or no more, and
    when the job of a broker has stopped or is back.
    """
    for fresh in (item for item in found if item.type == conditions.TELEMETRY_FRESH):
        known = conditions.find(body, conditions.TELEMETRY_FRESH)
        was = known.status if known is not None else conditions.UNKNOWN
        if fresh.status == conditions.FALSE != was:
            await store.emit(body, "Warning", "TelemetryStale", fresh.message)
        elif fresh.status == conditions.TRUE and was == conditions.FALSE:
            await store.emit(body, "Normal", "TelemetryBack", fresh.message)
    healthy = tuple(item for item in found if item.type == conditions.HEALTHY)
    before, after = _named(conditions.find(body, conditions.HEALTHY)), _named(*healthy)
    for name, text in after.items():
        if name not in before:
            await store.emit(body, "Warning", "FindingRaised", text)
    for name in before:
        if name not in after:
            await store.emit(body, "Normal", "FindingCleared", f"{name} is over")


def _age(document: JsonObject) -> tuple[int, str]:
    as_of_us = document.get("as_of_us")
    return (as_of_us if type(as_of_us) is int else 0, str(document.get("run_id")))


def _told(document: JsonObject, now_us: int) -> Reported:
    as_of_us, _ = _age(document)
    until_us = document.get("fresh_until_us")
    if type(until_us) is not int:
        until_us = as_of_us + FRESH_US
    is_fresh = now_us < min(until_us, as_of_us + FRESH_US_MAX)
    return Reported(raised(document), as_of_us, is_fresh)


def _fresh(told: Reported, generation: int) -> conditions.Condition:
    if told.is_fresh:
        text = f"evaluated up to {told.as_of}"
        return conditions.build(conditions.TELEMETRY_FRESH, True, "Fresh", text, generation)
    text = (
        f"nothing newer than {told.as_of} has been evaluated: the telemetry job does not run, "
        "fails, or reaches no member"
    )
    return conditions.build(conditions.TELEMETRY_FRESH, False, STALE, text, generation)


def _unknown_since(told: Reported) -> str:
    return f"not looked at since {told.as_of}, for the telemetry job has stopped"


def _text(row: JsonObject, name: str) -> str:
    value: Any = row.get(name)
    return value[:1024] if isinstance(value, str) else ""


def _condition(
    told: Reported, found: Iterable[Finding], generation: int
) -> tuple[conditions.Condition, ...]:
    """Healthy: False with the worst ones, Unknown if they are old; what is only for information
    makes nothing unhealthy.
    """
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
    status, reason = conditions.FALSE, _REASONS[bad[0].severity]
    if not told.is_fresh:
        status, reason = conditions.UNKNOWN, STALE
        pieces.insert(0, _unknown_since(told))
    text = _SEPARATOR.join(pieces)
    return (conditions.build(conditions.HEALTHY, status, reason, text, generation),)


def _named(*found: conditions.Condition | None) -> dict[str, str]:
    """The findings that conditions name, each with its piece of the message."""
    names: dict[str, str] = {}
    for condition in found:
        if condition is not None and condition.status != conditions.TRUE:
            for piece in condition.message.split(_SEPARATOR):
                match = _NAME.match(piece)
                if match is not None:
                    names[match[1]] = piece
    return names
