"""What members of brokers keep aside, as conditions and Events of queues and brokers.

A replica that knew more to be committed than its leader keeps it aside until somebody decides
(docs/operations.md); users who only read resources must not miss that.  The engine fetches the
rows now and then.
"""

from __future__ import annotations

from brokerd_operator import conditions
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.ports import Store
from brokerd_operator.specs.model import JsonObject, Reference

#: Reason of the condition and of the Event.
REASON = "LeaderLacksCommitted"
#: Rows that one message names.
NAMED_MAX = 5


class KeptAside:
    """Owns the rows that were fetched last, by broker."""

    def __init__(self) -> None:
        self._rows: dict[Reference, list[JsonObject]] = {}

    def replace(
        self, broker: Reference, rows: list[JsonObject], unanswered: frozenset[str] = frozenset()
    ) -> bool:
        """Take rows; whether they differ from those before.

        What a member that does not answer now has said before stands.
        """
        before = self._rows.get(broker, [])
        alarming = [row for row in rows if row.get("state") != "done"]
        alarming += [row for row in before if row.get("member") in unanswered]
        alarming.sort(key=lambda row: (row.get("time", 0), row.get("member"), row.get("id")))
        changed = before != alarming
        self._rows[broker] = alarming
        return changed

    def is_known(self, broker: Reference) -> bool:
        """Whether a broker ever answered; what it says before that is not said to be nothing."""
        return broker in self._rows

    def of_broker(self, broker: Reference, generation: int) -> tuple[conditions.Condition, ...]:
        """The condition of a broker; nothing while nothing is kept aside."""
        return _condition(self._rows.get(broker, []), generation)

    def of_queue(
        self, broker: Reference, vhost: str, name: str, generation: int
    ) -> tuple[conditions.Condition, ...]:
        """The condition of a queue; nothing while nothing of it is kept aside."""
        rows = [
            row
            for row in self._rows.get(broker, [])
            if row.get("kind") != "catalog" and (row.get("vhost"), row.get("name")) == (vhost, name)
        ]
        return _condition(rows, generation)


async def tell(store: Store, body: Body, found: tuple[conditions.Condition, ...]) -> None:
    """Emit an Event for what was not in the resource's conditions before."""
    for condition in found:
        before = conditions.find(body, conditions.KEPT_ASIDE)
        if before is None or before.status != condition.status:
            await store.emit(body, "Warning", REASON, condition.message)


def _condition(rows: list[JsonObject], generation: int) -> tuple[conditions.Condition, ...]:
    if not rows:
        return ()
    named = "; ".join(map(_in_words, rows[:NAMED_MAX]))
    rest = f"; and {len(rows) - NAMED_MAX} more" if len(rows) > NAMED_MAX else ""
    message = f"{named}{rest}: see brokerctl list_kept_aside"
    return (conditions.build(conditions.KEPT_ASIDE, True, REASON, message, generation),)


def _in_words(row: JsonObject) -> str:
    what = "the catalog" if row.get("kind") == "catalog" else f"queue '{row.get('name')}'"
    return (
        f"member {row.get('member')} keeps {row.get('messages')} messages of {what} aside, which "
        f"its leader lacks"
    )
