"""Endpoints that show queues: all, of a vhost, one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

from brokerd.core.catalog import arguments, policy
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.listings import client_rows
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.management import encoding, listing, objects, queue_figures
from brokerd.server.management.call import Answer, Call, Json, not_found
from brokerd.server.management.figures import Rows
from brokerd.server.management.queue_figures import Figures
from brokerd.server.management.routes import Right, Route

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.management.ports import ManagementServices

#: Columns, as listing.columns_of returns them.
Columns: TypeAlias = list[list[str]] | None
#: What gives a queue's figures, None where none are known.
_Of: TypeAlias = Callable[[Queue], Figures | None]
#: Columns of the catalog alone: a list sorted by them, or by none, needs figures of a page only.
_PLAIN = frozenset({"name", "vhost", "type", "durable", "auto_delete", "arguments", "exclusive"})
#: Of them what a record has under the same name.
_OF_RECORDS = {name: attrgetter(name) for name in ("name", "vhost", "type", "durable")}
_OF_POLICIES = ("policy", "operator_policy", "effective_policy_definition")
_OF_CATALOG = _PLAIN.union(_OF_POLICIES, ("members", "online"))
_OF_GAUGES = tuple(name for gauge in queue_figures.GAUGES for name in (gauge, f"{gauge}_details"))
CONSUMERS = "consumers"
#: Rows at most that are taken as they were kept before clients have their turn.
KEPT_ROWS = 2_000
#: Rows at most that are made before clients have their turn: one takes 30 microseconds.
ROWS = 50


class Maker:
    """Makes the rows of one answer.

    State: what many queues have in common, made once.  Invariant: as of one turn of the loop for
    each queue; an answer takes some of them.
    """

    def __init__(self, services: ManagementServices, columns: Columns = None) -> None:
        """columns: what is not in them need not be made."""
        self._services = services
        self._view = services.catalog.view
        self._wanted = None if columns is None else {path[0] for path in columns}
        self._alive = services.listed.groups.alive() | {NodeId(services.node)}
        self._online: dict[tuple[str, ...], list[str]] = {}
        self.has_figures = self._wanted is None or not self._wanted <= _OF_CATALOG
        self._has_type = services.profile.management_as_4_3
        self._has_gauges = self._wants(_OF_GAUGES)
        self._has_stats = self._wants(("message_stats",))
        self._has_policies = self._wants(_OF_POLICIES)

    def _wants(self, columns: Collection[str]) -> bool:
        return self._wanted is None or not self._wanted.isdisjoint(columns)

    def plain(self, queue: Queue) -> Json:
        """Return a queue as it was declared, and where it is."""
        row: Json = {
            "name": queue.name,
            "vhost": queue.vhost,
            "type": queue.type,
            "durable": queue.durable,
            "auto_delete": queue.auto_delete,
            "exclusive": queue.exclusive_owner is not None,
            "arguments": self._arguments(queue),
            "node": queue.members[0] if queue.members else "",
        }
        if queue.type == "quorum":
            row["members"] = list(queue.members)
            row["online"] = self._online_of(queue)
            row["leader"] = row["node"]
        return row

    def _arguments(self, queue: Queue) -> Json:
        if not self._has_type:
            return queue.arguments
        return arguments.with_type(queue.arguments, queue.type)

    def _online_of(self, queue: Queue) -> list[str]:
        """Return the members of a queue that are up; thousands have the same."""
        members = tuple(queue.members)
        found = self._online.get(members)
        if found is None:
            found = [node for node in members if NodeId(node) in self._alive]
            self._online[members] = found
        return found

    def whole(self, queue: Queue, found: Figures | None) -> Json:
        """Return a queue with its policies and figures; without figures where none are known."""
        row = self.plain(queue)
        if self._has_policies:
            row |= self._policies(queue)
        row["state"] = _state(queue, found)
        if queue.exclusive_owner is not None:
            owner = queue.exclusive_owner
            row["owner_pid_details"] = {"name": client_rows.owner_pid(owner), "node": owner.node}
        if found is None:
            return row
        if found["leader"]:
            row["node"] = found["leader"]
            if queue.type == "quorum":
                row["leader"] = found["leader"]
        if self._has_gauges:
            row |= queue_figures.gauges(found["sample"], found["rates"])
        if self._has_stats:
            row["message_stats"] = queue_figures.stats(found["sample"], found["rates"])
        row |= _figures(queue, found)
        if queue.type == "quorum":
            row["delayed_retry"] = self._delayed_retry(queue)
        return row

    def _delayed_retry(self, queue: Queue) -> str:
        """Return the delays of what comes back (R-QQ-24) in the words of RabbitMQ 4.3."""
        values = policy.effective_queue(self._view, queue).values
        kind, least_ms, greatest_ms = policy.delayed_retry(values)
        if kind == "disabled":
            return kind
        return f"{kind} (min: {least_ms}ms, max: {greatest_ms}ms)"

    def _policies(self, queue: Queue) -> Json:
        settings = policy.effective_queue(self._view, queue)
        definition: Json = {}
        if settings.policy is not None or settings.operator_policy is not None:
            definition = policy.queue_policies(self._view, queue).definition
        return {
            "policy": settings.policy,
            "operator_policy": settings.operator_policy,
            "effective_policy_definition": definition,
        }


def _state(queue: Queue, found: Figures | None) -> str:
    """Return the state in RabbitMQ's words."""
    if found is None:
        return "down"
    if found["leader"]:
        return "running"
    return "minority" if queue.type == "quorum" else "down"


def _figures(queue: Queue, found: Figures) -> Json:
    messages, ready, *_ = found["sample"]
    size = found["ready_bytes"] + found["unacked_bytes"]
    # A durable queue's messages are all on disk, a transient one's all in memory.
    on_disk, in_memory = (1, 0) if queue.durable else (0, 1)
    consumers, head_ms, used_ms = found["consumers"], found["head_ms"], found["used_ms"]
    capacity = 0 if not consumers else 1.0 if not ready else 0.0
    row = {
        "messages_persistent": messages * on_disk,
        "messages_ram": messages * in_memory,
        "message_bytes": size,
        "message_bytes_ready": found["ready_bytes"],
        "message_bytes_unacknowledged": found["unacked_bytes"],
        "message_bytes_persistent": size * on_disk,
        "message_bytes_ram": size * in_memory,
        "consumers": consumers,
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        # Of plug-ins that keep a queue of their own.
        "internal": False,
        "internal_owner": False,
        "memory": found["memory"],
        "head_message_timestamp": None if head_ms is None else head_ms // 1000,
    }
    if not consumers and used_ms and not any(found["rates"]):
        row["idle_since"] = _moment(used_ms // 1000)
    if queue.type == "quorum":
        limit = found["limit"]
        row["messages_dlx"] = found["dlx"]
        row["messages_delayed"] = found["delayed"]
        row["messages_ready_returned"] = found["returned"]
        row["publishers"] = found["publishers"]
        levels = found["levels"]
        row["messages_by_priority"] = {str(priority): count for priority, count in levels}
        row["messages_active_priorities"] = len(levels)
        row["delivery_limit"] = "unlimited" if limit is None else limit
        # 3.10 calls it so, 4.3 as it does for classic queues.
        row["single_active_consumer_ctag"] = found["single"]
    else:
        row["exclusive_consumer_tag"] = None
    row["single_active_consumer_tag"] = found["single"]
    return row


@lru_cache(maxsize=1024)
def _moment(seconds: int) -> str:
    """Return a time as 3.10.8 writes it: 2026-01-31 12:34:56, UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


# ---- lists --------------------------------------------------------------------------------------


async def _list(call: Call) -> Answer:
    """All queues, or a page of them."""
    view, query, services = call.services.catalog.view, call.query, call.services
    if "vhost" in call.parts and call.vhost not in view.vhosts:
        raise not_found()
    services.rates.want()
    page = listing.page_of(query)
    revision = view.revision
    records = await _records(call, revision)
    total = len(records)
    wanted = await _named(call, records, revision)
    wanted = await _ordered(call, wanted, is_page=page is not None)
    if page is None:
        return Answer(raw=await _encoded(call, wanted))
    shown, said = listing.cut(wanted, page, total)
    rows = [row async for some in _rows(call, shown) for row in some]
    return Answer(value={**said, "items": rows})


async def _records(call: Call, revision: int) -> Sequence[Queue]:
    """Return the queues that the caller may see, in the order of vhosts and names."""
    view, lists = call.services.catalog.view, call.services.lists
    vhosts = tuple(call.visible_vhosts())
    kept = lists.get(vhosts, revision)
    if kept is not None:
        return kept
    records: list[Queue] = []
    for vhost in vhosts:
        queues = view.vhosts[vhost].queues if vhost in view.vhosts else {}
        async for names in in_chunks(sorted(queues)):
            records += [queues[name] for name in names if name in queues]
    if revision == view.revision:
        lists.keep(vhosts, revision, records)
    return records


async def _named(call: Call, records: Sequence[Queue], revision: int) -> Sequence[Queue]:
    """Return those whose names are asked for; the records are as of this revision."""
    query, lists = call.query, call.services.lists
    name, use_regex = query.get("name", ""), query.get("use_regex", "")
    if not name or "page" not in query:
        return records
    key = tuple(call.visible_vhosts()), name, use_regex
    kept = lists.get(key, revision)
    if kept is None:
        kept = await listing.named(records, query, lambda queue: str(queue.name))
        if revision == call.services.catalog.view.revision:
            lists.keep(key, revision, kept)
    return kept


async def _ordered(call: Call, queues: Sequence[Queue], *, is_page: bool) -> Sequence[Queue]:
    """Return the queues in the order that is asked for, by as little of them as that takes."""
    columns = listing.sort_columns(call.query)
    if not columns:
        # As there: a page is turned about, a whole list stays as it is.
        return queues[::-1] if is_page and call.is_on("sort_reverse") else queues
    keys: list[Sequence[Any]] = []
    if len(columns) == 1 and columns[0] in queue_figures.ORDERS:
        values = await queue_figures.column_of_all(call.services, queues, columns[0])
        return listing.by_value(queues, values, call.query)
    if len(columns) == 1 and columns[0] in _OF_RECORDS:
        texts: list[Any] = []
        async for some in in_chunks(queues, KEPT_ROWS):
            texts += map(_OF_RECORDS[columns[0]], some)
        return listing.by_value(queues, texts, call.query)
    maker = Maker(call.services, [column.split(".") for column in columns])
    of: _Of = _nothing
    if not _PLAIN.issuperset(columns):
        is_light = (_PLAIN | queue_figures.ORDERS.keys()).issuperset(columns)
        take = queue_figures.orders if is_light else queue_figures.figures
        of = await queue_figures.known(call.services, queues, take)
    async for some in in_chunks(queues, ROWS):
        keys += [_keys(maker, queue, of(queue), columns) for queue in some]
    return listing.by_values(queues, keys, call.query)


def _nothing(_: Queue) -> Figures | None:
    return None


def _keys(maker: Maker, queue: Queue, found: Figures | None, columns: list[str]) -> list[Any]:
    """Return what a queue has in these columns."""
    orders = queue_figures.ORDERS
    if found is None:
        row = maker.plain(queue)
        return [listing.dotted(row, column) for column in columns]
    row = maker.whole(queue, found) if "leader" in found else maker.plain(queue)
    return [
        orders[column](found) if column in orders else listing.dotted(row, column)
        for column in columns
    ]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the rows of a list have."""

    #: As the query has it.
    columns: str
    #: Without statistics (disable_stats); has_totals: but for the depths.
    is_plain: bool
    has_totals: bool


def _shape_of(call: Call) -> _Shape:
    is_plain = call.is_on("disable_stats")
    has_totals = is_plain and call.is_on("enable_queue_totals")
    return _Shape(call.query.get("columns", ""), is_plain, has_totals)


class _Rows:
    """Makes the rows of one list, in its shape."""

    def __init__(self, call: Call, shape: _Shape) -> None:
        self._services = call.services
        self._shape = shape
        self._columns = listing.columns_of(call.query)
        self._maker = Maker(call.services, self._columns)
        self._of: _Of = _nothing
        self.has_figures = shape.has_totals or (not shape.is_plain and self._maker.has_figures)

    async def know(self, queues: Sequence[Queue]) -> None:
        """Find out what is known of these queues."""
        if self.has_figures:
            take = queue_figures.orders if self._shape.has_totals else queue_figures.figures
            self._of = await queue_figures.known(self._services, queues, take)

    def make(self, queue: Queue) -> tuple[Json, bool]:
        """Return a queue's row, and whether it is the same as long as nothing moves."""
        found = self._of(queue)
        if self._shape.is_plain:
            row = _plain(self._maker, queue, found, self._shape.has_totals)
        else:
            row = self._maker.whole(queue, found)
        rests = not self.has_figures or (
            found is not None
            and self._services.listed.groups.has_group(queue.uid)
            and not any(found["rates"])
        )
        return listing.chosen(row, self._columns), rests


async def _encoded(call: Call, queues: Sequence[Queue]) -> list[bytes]:
    """Return a list as JSON, some rows in each part; those of queues that stand still as they were
    kept; of 10,000 other rows only those of a slice are there at a time.
    """
    services, shape = call.services, _shape_of(call)
    view, resting = services.catalog.view, services.resting
    made = _Rows(call, shape)
    began = view.revision, frozenset(services.listed.groups.alive())
    resting.begin(shape, began, services.rates.moving)
    # In the same turn: a row that somebody else makes meanwhile is to have what moved before.
    services.listed.queues.table.take()
    rows: list[bytes | None] = []
    missing: list[tuple[int, Queue]] = []
    async for some in in_chunks(queues, KEPT_ROWS):
        begin = len(rows)
        rows += resting.get(shape, [queue.uid for queue in some])
        missing += [each for each in enumerate(some, begin) if rows[each[0]] is None]
    await made.know([queue for _, queue in missing])
    async for unkept in in_chunks(missing, ROWS):
        for at, queue in unkept:
            if not _is_there(view, queue):
                continue
            row, rests = made.make(queue)
            encoded = rows[at] = encoding.items([row])
            if rests:
                resting.keep(shape, queue.uid, encoded, began)
    parts: list[bytes] = []
    async for places in in_chunks(range(len(rows)), KEPT_ROWS):
        # Who was deleted meanwhile is no queue.
        is_same = view.revision == began[0]
        there = places if is_same else [at for at in places if _is_there(view, queues[at])]
        parts.append(b"".join([kept for at in there if (kept := rows[at]) is not None]))
    return encoding.bracketed([part for part in parts if part])


async def _rows(call: Call, queues: Sequence[Queue]) -> AsyncIterator[list[Json]]:
    """Yield rows, some at a time: whole ones, or with disable_stats what is asked for of them."""
    made = _Rows(call, _shape_of(call))
    await made.know(queues)
    view = call.services.catalog.view
    async for listed in in_chunks(queues, ROWS):
        # The walk rests: who was deleted meanwhile is no queue that is down.
        some = [made.make(queue)[0] for queue in listed if _is_there(view, queue)]
        if some:
            yield some


def _is_there(view: CatalogState, queue: Queue) -> bool:
    vhost = view.vhosts.get(queue.vhost)
    found = None if vhost is None else vhost.queues.get(queue.name)
    return found is not None and found.uid == queue.uid


def _plain(maker: Maker, queue: Queue, found: Figures | None, has_totals: bool) -> Json:
    row = maker.plain(queue) | {"state": "running"}
    if has_totals:
        values = found["sample"] if found else (0,) * len(queue_figures.GAUGES)
        row |= zip(queue_figures.GAUGES, values, strict=False)
    return row


async def _get(call: Call) -> Answer:
    services, queue = call.services, objects.existing_queue(call)
    services.rates.want()
    found = [row async for rows in _rows(call, [queue]) for row in rows]
    if not found:
        raise not_found()
    [row] = found
    if not call.is_on("disable_stats"):
        consumers: Rows = (await services.figures.everywhere(CONSUMERS)).all()
        mine = [
            each
            for each in consumers
            if (each["vhost"], each["queue_name"]) == (queue.vhost, queue.name)
        ]
        row |= {
            "consumer_details": [consumer_row(services, each) for each in mine],
            "deliveries": [],
            "incoming": [],
        }
    return Answer(value=listing.chosen(row, listing.columns_of(call.query)))


def consumer_row(services: ManagementServices, row: Json) -> Json:
    """Return a consumer as RabbitMQ shows it; from listings/client_rows.py's row."""
    view = services.catalog.view
    queue = view.queue(row["vhost"], row["queue_name"])
    timeout_ms = services.config.queues.consumer_timeout_ms
    if queue is not None:
        values = policy.effective_queue(view, queue).values
        if queue.type != "quorum" and services.profile.queues_classic_consumer_timeout:
            # None unless the queue says so.
            timeout_ms = 0
        timeout_ms = values.get("consumer-timeout", timeout_ms)
    return {
        "queue": {"name": row["queue_name"], "vhost": row["vhost"]},
        "consumer_tag": row["consumer_tag"],
        "ack_required": row["ack_required"],
        "prefetch_count": row["prefetch_count"],
        "exclusive": row["exclusive"],
        "active": row["active"],
        "activity_status": row["activity_status"],
        "consumer_timeout": timeout_ms,
        "arguments": row["arguments"],
        "channel_details": row.get("channel_details", {"node": row["node"]}),
    }


ROUTES = (
    Route("GET", "/api/queues", Right.MANAGEMENT, _list, "All queues"),
    Route("GET", "/api/queues/detailed", Right.MANAGEMENT, _list, "The same, as 4.x has it"),
    Route("GET", "/api/queues/{vhost}", Right.VHOST_VISIBLE, _list, "Queues of a vhost"),
    Route(
        "GET",
        "/api/queues/{vhost}/{name}",
        Right.VHOST_VISIBLE,
        _get,
        "One queue, with its consumers",
    ),
)
