"""What an order would do, counted and not done: a dry run.

Rows by group and targets, within bounded memory.  Where a message goes is the caller's to say, as
the job itself would; so is what is known of the targets.  Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from brokerd.core.filters.ports import MessageView
from brokerd.core.triage.groups import GROUPS_MAX, Triage, fingerprint
from brokerd.core.triage.histories import history_of
from brokerd.core.triage.jobs import JobKind, JobOrder

#: Rows that are kept apart; a group may go to several places.
ROWS_MAX = 2 * GROUPS_MAX
#: Queues that a row names.
TARGETS_MAX = 100

#: Returns the names of the queues that a message would reach, or why it stays.
Way: TypeAlias = Callable[[MessageView], tuple[str, ...] | str]


@dataclass(slots=True)
class PreviewRow:
    """Messages of one group that fare alike."""

    #: "": of the groups that are not told apart.
    fingerprint: str
    targets: list[str] = field(default_factory=list)
    #: Why they stay; "": they go.
    stays: str = ""
    count: int = 0
    bytes: int = 0


class Preview:
    """State: groups, and rows; `sent` counts what would go, or be deleted."""

    __slots__ = ("_order", "_rows", "_way", "sent", "triage")

    def __init__(self, order: JobOrder, way: Way) -> None:
        """way: not asked where the order deletes."""
        self._order = order
        self._way = way
        self._rows: dict[tuple[str, tuple[str, ...], str], PreviewRow] = {}
        self.triage = Triage()
        self.sent = 0

    def add_message(self, message: MessageView, now_ms: int) -> None:
        """Count what would become of a message, if it is of the order's group."""
        order = self._order
        if order.group and fingerprint(history_of(message)) != order.group:
            return
        name = self.triage.add_message(message, now_ms) or ""
        way = () if order.kind is JobKind.DELETE else self._way(message)
        targets, stays = ([], way) if isinstance(way, str) else (list(way[:TARGETS_MAX]), "")
        self.add_row(PreviewRow(name, targets, stays, 1, message.size))

    @property
    def is_full(self) -> bool:
        """Tell whether the order asks for no more messages."""
        return bool(self._order.max) and self.sent >= self._order.max

    @property
    def row_count(self) -> int:
        """Return how many rows there are."""
        return len(self._rows)

    def add_row(self, row: PreviewRow) -> None:
        """Add messages that fare alike."""
        if not row.stays:
            self.sent += row.count
        key = (row.fingerprint, tuple(row.targets), row.stays)
        if key not in self._rows and len(self._rows) >= ROWS_MAX:
            # Of those beyond the bound only is told whether they stay.
            key = ("", (), row.stays)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = PreviewRow(key[0], list(key[1]), key[2])
        found.count += row.count
        found.bytes += row.bytes

    def rows(self) -> list[PreviewRow]:
        """Return the rows, those with the most messages first."""
        return sorted(
            self._rows.values(), key=lambda row: (-row.count, row.fingerprint, row.targets)
        )


def row_as_json(row: PreviewRow) -> dict[str, Any]:
    """Return all fields by their names; `row_of` reads them."""
    return asdict(row)


def row_of(fields: Mapping[str, Any]) -> PreviewRow:
    """Return the row that `row_as_json` wrote."""
    return PreviewRow(**fields)
