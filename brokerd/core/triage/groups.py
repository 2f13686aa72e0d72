"""Dead letters by what became of them: groups with a fingerprint, within bounded memory.

For whatever walks over a queue (triage, dry runs and canaries of redrives).  The caller walks and
rests; this counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from typing import Any

from brokerd.core.filters.ports import MessageView
from brokerd.core.triage.histories import (
    History,
    Source,
    client_reason_of,
    history_of,
    was_sent_back,
)

#: Groups that are kept apart, each of some kilobytes at most; the rest is counted together.
GROUPS_MAX = 1000
#: Bytes of a fingerprint: 12 digits to type, and 1,000 groups meet by chance once in 10^9 times.
FINGERPRINT_BYTES = 6


@dataclass(slots=True)
class Group:
    """Messages of one history, as far as was looked."""

    #: None of those beyond the bound.
    history: History | None
    count: int = 0
    #: Of their bodies.
    bytes: int = 0
    #: How many a redrive sent back, so that they died again.
    sent_back: int = 0
    #: Number of the first that was met.
    example: int | None = None
    #: When the queue took the oldest and the newest, ms since 1970; None where that is not known.
    first_seen_ms: int | None = None
    last_seen_ms: int | None = None
    #: Of the example: why its consumer rejected it; "": it did not say.
    client_reason: str = ""

    def add_message(self, message: MessageView, now_ms: int) -> None:
        """Count one more."""
        self.count += 1
        self.bytes += message.size
        self.sent_back += was_sent_back(message)
        if self.example is None:
            self.example = message.number
            self.client_reason = client_reason_of(message)
        if message.age_ms is not None:
            seen_ms = now_ms - message.age_ms
            if self.first_seen_ms is None or seen_ms < self.first_seen_ms:
                self.first_seen_ms = seen_ms
            if self.last_seen_ms is None or seen_ms > self.last_seen_ms:
                self.last_seen_ms = seen_ms

    def add_group(self, other: Group) -> None:
        """Count what another look has counted, of other messages of the same history."""
        self.count += other.count
        self.bytes += other.bytes
        self.sent_back += other.sent_back
        if self.example is None:
            self.example, self.client_reason = other.example, other.client_reason
        first, last = other.first_seen_ms, other.last_seen_ms
        if first is not None and (self.first_seen_ms is None or first < self.first_seen_ms):
            self.first_seen_ms = first
        if last is not None and (self.last_seen_ms is None or last > self.last_seen_ms):
            self.last_seen_ms = last

    def as_json(self) -> dict[str, Any]:
        """Return all fields by their names; `group_of` reads them."""
        fields = asdict(self)
        if self.history is not None:
            fields["history"]["source"] = self.history.source.value
        return fields


def group_of(fields: Mapping[str, Any]) -> Group:
    """Return the group that `Group.as_json` wrote."""
    values = dict(fields)
    history = values.pop("history")
    if history is None:
        return Group(None, **values)
    return Group(History(**{**history, "source": Source(history["source"])}), **values)


def fingerprint(history: History) -> str:
    """Return the name of a history's group: the same on each member and in each version."""
    parts = [part.value if isinstance(part, Source) else part for part in astuple(history)]
    # Lengths keep ("ab", "c") and ("a", "bc") apart.
    text = "".join(f"{len(part)}:{part}" for part in parts)
    raw = text.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(raw, digest_size=FINGERPRINT_BYTES).hexdigest()


class Triage:
    """Groups by fingerprint.  Invariant: at most `groups_max` of them; all else is in `others`."""

    __slots__ = ("_fingerprints", "_groups_max", "groups", "others")

    def __init__(self, groups_max: int = GROUPS_MAX) -> None:
        self._groups_max = groups_max
        #: Of the histories in `groups`: a look-up is cheaper than a digest.
        self._fingerprints: dict[History, str] = {}
        self.groups: dict[str, Group] = {}
        self.others = Group(None)

    def add_message(self, message: MessageView, now_ms: int) -> str | None:
        """Count a message in its group and return its fingerprint; None: it is with the others,
        since there are too many groups.
        """
        history = history_of(message)
        name = self._fingerprints.get(history)
        if name is None:
            if len(self.groups) >= self._groups_max:
                self.others.add_message(message, now_ms)
                return None
            name = self._fingerprints[history] = fingerprint(history)
            self.groups.setdefault(name, Group(history))
        self.groups[name].add_message(message, now_ms)
        return name

    def add_group(self, name: str, group: Group) -> None:
        """Add what another look has found of a group; with the others where there are too many."""
        found = self.groups.get(name)
        if found is None:
            if len(self.groups) >= self._groups_max:
                self.others.add_group(group)
                return
            found = self.groups[name] = Group(group.history)
        found.add_group(group)

    def largest_first(self) -> list[tuple[str, Group]]:
        """Return fingerprints and groups, the largest first."""
        return sorted(self.groups.items(), key=lambda item: (-item[1].count, item[0]))
