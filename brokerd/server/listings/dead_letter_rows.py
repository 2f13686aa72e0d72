"""Rows of the queues that dead-letter: to which exchange, what queues that leads to, what waits.

One question for all queues of the cluster, since a resource's status tells of each: definitions are
the catalog's, figures those of the replicas here, and other members are asked for the rest.  It
says where a letter of a queue would go now, not which queue the letters that lie there are from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from brokerd.core.catalog import names, policy
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.router import Router
from brokerd.server.loop.chunks import in_chunks

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.listings.client_calls import Answers
    from brokerd.server.listings.ports import Sources
    from brokerd.server.members.ports import Calls

Json: TypeAlias = dict[str, Any]

#: The kind of List.
KIND = "dead_letters"
_ASK = "queue_figures"
#: Queues that one member asks another about at once.
ASKED_MAX = 50_000
#: Queues that one exchange may lead to here; what lies in more of them is not counted.
QUEUES_MAX = 1_000
#: Queues that one row names, those with most messages.
NAMED_MAX = 8
#: Exchange types by which the routing key alone decides.
_BY_KEY = frozenset(("direct", "fanout", "topic"))

#: By uid of a queue: messages in it, and the dead letters that it still holds itself.
Figures: TypeAlias = dict[int, tuple[int, int]]


class Table(Protocol):
    """The figures of the replicas here (queues/table.py)."""

    async def values_of(self, uids: Sequence[int], name: str) -> list[int | None]:
        """Return what each of these queues has in a column; None: no replica is here."""
        ...


def serve(calls: Answers, services: Sources) -> None:
    """Answer other members' questions."""

    async def figures(question: Json) -> Json:
        uids = [int(uid) for uid in question["uids"][:ASKED_MAX]]
        return {"figures": await _figures_here(services.queues.table, uids)}

    calls.serve(_ASK, figures)


async def rows(services: Sources, calls: Calls, vhost: str) -> list[Json]:
    """Return one row for each queue that has a dead letter exchange now."""
    view = services.catalog.view
    ways = Ways(view)
    found: list[tuple[Queue, str, str | None, tuple[Queue, ...]]] = []
    async for some in in_chunks(view.records("queue", vhost or None)):
        for record in some:
            queue = view.queue(record.vhost, record.name)
            if queue is None or names.is_delayed_queue(queue.name):
                continue
            values = policy.effective_queue(view, queue).values
            exchange = values.get("dead-letter-exchange")
            if exchange is not None:
                key = values.get("dead-letter-routing-key")
                found.append((queue, exchange, key, ways.of(queue.vhost, exchange, key)))
    uids = {queue.uid for source, _, _, targets in found for queue in (source, *targets)}
    others = services.groups.alive() - {services.node}
    figures = await _figures(services.queues.table, calls, others, sorted(uids))
    made: list[Json] = []
    async for part in in_chunks(found):
        made += [_row(*each, figures) for each in part]
    return made


class Ways:
    """Where letters go, by virtual host, exchange and key; many queues have the same."""

    def __init__(self, view: CatalogState) -> None:
        self._view = view
        self._router = Router(view)
        self._known: dict[tuple[str, str, str | None], tuple[Queue, ...]] = {}

    def of(self, vhost: str, exchange: str, key: str | None) -> tuple[Queue, ...]:
        """Return the queues; without a key of the queue's own, all that the exchange leads to."""
        way = (vhost, exchange, key)
        known = self._known.get(way)
        if known is None:
            known = self._known[way] = self._find(vhost, exchange, key)
        return known

    def _find(self, vhost: str, name: str, key: str | None) -> tuple[Queue, ...]:
        exchange = self._view.exchange(vhost, name)
        if exchange is None:
            return ()
        if key is not None and (name == names.DEFAULT_EXCHANGE or exchange.type in _BY_KEY):
            result = self._router.route(vhost, name, key)
            if not result.needs_headers:
                return result.queues[:QUEUES_MAX]
        return self._bound(vhost, name)

    def _bound(self, vhost: str, start: str) -> tuple[Queue, ...]:
        """Return all queues that are bound to an exchange, over others too."""
        bindings = self._view.vhosts[vhost].bindings
        seen, work = {start}, deque([start])
        queues: dict[int, Queue] = {}
        while work and len(queues) < QUEUES_MAX:
            for binding in bindings.from_source(work.popleft()):
                if binding.destination_kind == "queue":
                    queue = self._view.queue(vhost, binding.destination)
                    if queue is not None:
                        queues[queue.uid] = queue
                elif binding.destination not in seen:
                    seen.add(binding.destination)
                    work.append(binding.destination)
        return tuple(queues.values())[:QUEUES_MAX]


async def _figures(
    table: Table, calls: Calls, others: Collection[str], uids: Sequence[int]
) -> Figures:
    """Return what is known; of queues whose members do not answer nothing is."""
    found = await _figures_here(table, uids)
    missing = [uid for uid in uids if uid not in found][:ASKED_MAX]
    if missing and others:
        answers = await calls.ask_all(others, _ASK, {"uids": missing})
        for answer in answers.values():
            for uid, (messages, held) in answer["figures"].items():
                found[int(uid)] = (messages, held)
    return found


async def _figures_here(table: Table, uids: Sequence[int]) -> Figures:
    messages = await table.values_of(uids, "messages")
    held = await table.values_of(uids, "dl_pending")
    return {
        uid: (count, waiting)
        for uid, count, waiting in zip(uids, messages, held, strict=True)
        if count is not None and waiting is not None
    }


def _row(
    queue: Queue,
    exchange: str,
    key: str | None,
    targets: Sequence[Queue],
    figures: Mapping[int, tuple[int, int]],
) -> Json:
    """Return a row; `waiting` is what lies in all targets and what the queue still holds."""
    lie = [(target.name, figures.get(target.uid, (None, 0))[0]) for target in targets]
    lie.sort(key=lambda each: (-(each[1] or 0), each[0]))
    _, held = figures.get(queue.uid, (0, 0))
    return {
        "vhost": queue.vhost,
        "name": queue.name,
        "exchange": exchange,
        "routing_key": key,
        "queues": [{"name": name, "messages": messages} for name, messages in lie[:NAMED_MAX]],
        "queues_more": max(0, len(lie) - NAMED_MAX),
        "held": held,
        "waiting": held + sum(messages or 0 for _, messages in lie),
    }
