"""What waits in exchanges of type x-delayed-message: how many messages, when the next is due, and
what of them is late.

From the replica of the exchange's queue that is here; why messages are late its leader alone knows.
For listings, the HTTP API and the metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from brokerd.core.catalog import delayed_type, names
from brokerd.core.queue.queue_summary import UNKNOWN
from brokerd.server.queues.table import AT

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Exchange, Queue
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.raft.messages import NodeId
    from brokerd.server.queues.table import QueueTable

#: Why messages are late, beside what `late_reason` says of a queue that is led here.
NO_LEADER = "no_leader"
_MESSAGES, _DELAYED, _DUE = AT["messages"], AT["delayed"], AT["due_ms"]


@dataclass(slots=True, frozen=True)
class Waiting:
    """What waits in one exchange."""

    #: Those that are due and not handed on included.
    messages: int
    #: When the first of them is due, or was, in ms since 1970; None: nothing waits.
    due_ms: int | None
    #: For how long one has been due.
    late_ms: int
    #: Why; "": nothing keeps it, or only the leader knows.
    reason: str

    def as_json(self) -> dict[str, int | str | None]:
        """Return it under the names of listings."""
        return {
            "messages_delayed": self.messages,
            "next_due_ms": self.due_ms,
            "late_ms": self.late_ms,
            "late_reason": self.reason,
        }


class Groups(Protocol):
    """The replicas of this member."""

    def has_group(self, uid: int) -> bool:
        """Tell whether a replica is here."""
        ...

    def leader_of(self, uid: int) -> NodeId | None:
        """Return who leads a group, None where that is not known here."""
        ...


class Queues(Protocol):
    """The queues of this member."""

    @property
    def table(self) -> QueueTable:
        """Return their figures."""
        ...


class Sources(Protocol):
    """What is needed of the member."""

    @property
    def groups(self) -> Groups:
        """Return the replicas here."""
        ...

    @property
    def queues(self) -> Queues:
        """Return the queues."""
        ...

    @property
    def late_reason(self) -> Callable[[int], str]:
        """Return what says why a queue led here has not handed on what is due (uid)."""
        ...


def queue_of(view: CatalogState, exchange: Exchange) -> Queue | None:
    """Return the queue in which an exchange keeps messages; None: it is of another type."""
    if exchange.type != delayed_type.TYPE:
        return None
    return view.queue(exchange.vhost, names.delayed_queue(exchange.name))


def waiting(sources: Sources, uid: int, now_ms: int) -> Waiting | None:
    """Return what waits in an exchange's queue; None where no replica of it is here.

    now_ms: the wall clock.  Who asks has told the table so in this turn of the loop
    (`QueueTable.take`).
    """
    row = sources.queues.table.row_of(uid) if sources.groups.has_group(uid) else None
    if row is None:
        return None
    due_ms = None if row[_DUE] == UNKNOWN else row[_DUE]
    late_ms = 0 if due_ms is None else max(0, now_ms - due_ms)
    reason = ""
    if late_ms:
        is_led = sources.groups.leader_of(uid) is not None
        reason = sources.late_reason(uid) if is_led else NO_LEADER
    return Waiting(row[_MESSAGES] + row[_DELAYED], due_ms, late_ms, reason)
