"""Endpoints that show queues: all, of a vhost, one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from brokerd.core.catalog import policy
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.server.listings import client_rows
from brokerd.server.management import listing, objects, queue_figures
from brokerd.server.management.call import Answer, Call, Json, not_found
from brokerd.server.management.figures import Rows
from brokerd.server.management.queue_figures import Figures
from brokerd.server.management.routes import Right, Route
from brokerd.server.slices import in_slices

if TYPE_CHECKING:
    from brokerd.server.management.ports import ManagementServices

#: Columns of the catalog alone: whoever sorts by them, or by none, needs figures of a page only.
_PLAIN = frozenset({"name", "vhost", "type", "durable", "auto_delete", "arguments", "exclusive"})
CONSUMERS = "consumers"
#: Rows that are made before clients have their turn: one takes 30 microseconds, so 1.5 ms.
ROWS = 50


def plain(services: ManagementServices, queue: Queue) -> Json:
    """Return a queue as it was declared, and where it is."""
    row: Json = {
        "name": queue.name,
        "vhost": queue.vhost,
        "type": queue.type,
        "durable": queue.durable,
        "auto_delete": queue.auto_delete,
        "exclusive": queue.exclusive_owner is not None,
        "arguments": queue.arguments,
        "node": queue.members[0] if queue.members else "",
    }
    if queue.type == "quorum":
        row |= {
            "members": list(queue.members),
            "online": queue_figures.online(services, queue),
            "leader": row["node"],
        }
    return row


def whole(services: ManagementServices, queue: Queue, found: Figures | None) -> Json:
    """Return a queue with its policies and figures; without figures where nobody has any."""
    row = plain(services, queue)
    settings = policy.effective_queue(services.catalog.view, queue)
    definition: Json = {}
    if settings.policy is not None or settings.operator_policy is not None:
        definition = policy.queue_policies(services.catalog.view, queue).definition
    row |= {
        "policy": settings.policy,
        "operator_policy": settings.operator_policy,
        "effective_policy_definition": definition,
        "state": _state(queue, found),
    }
    if queue.exclusive_owner is not None:
        owner = queue.exclusive_owner
        row["owner_pid_details"] = {"name": client_rows.owner_pid(owner), "node": owner.node}
    if found is None:
        return row
    if found["leader"]:
        row["node"] = found["leader"]
        if queue.type == "quorum":
            row["leader"] = found["leader"]
    return row | _figures(queue, found)


def _state(queue: Queue, found: Figures | None) -> str:
    """Return the state in RabbitMQ's words."""
    if found is None:
        return "down"
    if found["leader"]:
        return "running"
    return "minority" if queue.type == "quorum" else "down"


def _figures(queue: Queue, found: Figures) -> Json:
    values, rates = found["sample"], found["rates"]
    size = found["ready_bytes"] + found["unacked_bytes"]
    # A durable queue's messages are all on disk, a transient one's all in memory.
    on_disk, in_memory = (1, 0) if queue.durable else (0, 1)
    consumers = found["consumers"]
    capacity = 0 if not consumers else 1.0 if not values[1] else 0.0
    limit = found["limit"]
    row = {
        **queue_figures.gauges(values, rates),
        "messages_persistent": values[0] * on_disk,
        "messages_ram": values[0] * in_memory,
        "message_bytes": size,
        "message_bytes_ready": found["ready_bytes"],
        "message_bytes_unacknowledged": found["unacked_bytes"],
        "message_bytes_persistent": size * on_disk,
        "message_bytes_ram": size * in_memory,
        "message_stats": queue_figures.stats(values, rates),
        "consumers": consumers,
        "consumer_capacity": capacity,
        "consumer_utilisation": capacity,
        "memory": found["memory"],
        "head_message_timestamp": _seconds(found["head_ms"]),
    }
    if not consumers and not any(rates) and found["used_ms"]:
        row["idle_since"] = _moment(found["used_ms"])
    if queue.type == "quorum":
        row |= {
            "messages_dlx": found["dlx"],
            "delivery_limit": "unlimited" if limit is None else limit,
            "single_active_consumer_ctag": found["single"],
        }
    else:
        row["single_active_consumer_tag"] = found["single"]
        row["exclusive_consumer_tag"] = None
    return row


def _seconds(moment_ms: int | None) -> int | None:
    return None if moment_ms is None else moment_ms // 1000


def _moment(moment_ms: int) -> str:
    """Return a time as 3.10.8 writes it: 2026-01-31 12:34:56, UTC."""
    seconds = moment_ms // 1000
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


# ---- lists --------------------------------------------------------------------------------------


async def _list(call: Call) -> Answer:
    """All queues, or a page of them."""
    view, query, services = call.services.catalog.view, call.query, call.services
    if "vhost" in call.parts and call.vhost not in view.vhosts:
        raise not_found()
    services.rates.want()
    page = listing.page_of(query)
    records: list[Queue] = []
    for vhost in call.visible_vhosts():
        queues = view.vhosts[vhost].queues
        records += [queues[name] for name in sorted(queues)]
    total = len(records)
    wanted: Sequence[Queue] = await listing.named(records, query, lambda queue: str(queue.name))
    columns = listing.columns_of(query)
    sort = set(listing.sort_columns(query))
    if page is not None and sort <= _PLAIN:
        # Figures of those only that are shown.
        if sort:
            rows = [plain(services, queue) for queue in wanted]
            by_name = {(row["vhost"], row["name"]): row for row in rows}
            ordered = listing.ordered(list(by_name.values()), query)
            at = {(queue.vhost, queue.name): queue for queue in wanted}
            wanted = [at[row["vhost"], row["name"]] for row in ordered]
        elif call.is_on("sort_reverse"):
            wanted = list(reversed(wanted))
        shown, said = listing.cut(wanted, page, total)
        rows = await _rows(call, shown)
        return Answer(value={**said, "items": [listing.chosen(row, columns) for row in rows]})
    rows = list(listing.ordered(await _rows(call, wanted), query))
    if page is None:
        return Answer(value=await _chosen(rows, columns))
    shown_rows, said = listing.cut(rows, page, total)
    return Answer(value={**said, "items": await _chosen(shown_rows, columns)})


async def _chosen(rows: Sequence[Json], columns: list[list[str]] | None) -> list[Json]:
    if columns is None:
        return list(rows)
    found: list[Json] = []
    async for part in in_slices(range(len(rows)), ROWS):
        found += [listing.chosen(rows[i], columns) for i in part]
    return found


async def _rows(call: Call, queues: Sequence[Queue]) -> list[Json]:
    """Return whole rows, or with disable_stats what is asked for of them."""
    services = call.services
    made: list[Json] = []
    if call.is_on("disable_stats"):
        has_totals = call.is_on("enable_queue_totals")
        found: dict[int, Figures] = {}
        records = list(queues)
        if has_totals:
            records, found = await queue_figures.of_all(services, queues)
        async for part in in_slices(range(len(records)), ROWS):
            for i in part:
                row = plain(services, records[i]) | {"state": "running"}
                if has_totals:
                    figures = found.get(records[i].uid)
                    values = figures["sample"] if figures else (0,) * len(queue_figures.GAUGES)
                    row |= dict(zip(queue_figures.GAUGES, values, strict=False))
                made.append(row)
        return made
    records, found = await queue_figures.of_all(services, queues)
    async for part in in_slices(range(len(records)), ROWS):
        made += [whole(services, records[i], found.get(records[i].uid)) for i in part]
    return made


async def _get(call: Call) -> Answer:
    services, queue = call.services, objects.existing_queue(call)
    services.rates.want()
    [row] = await _rows(call, [queue])
    if not call.is_on("disable_stats"):
        consumers: Rows = (await services.figures.everywhere(CONSUMERS)).all()
        mine = [
            each
            for each in consumers
            if (each["vhost"], each["queue_name"]) == (queue.vhost, queue.name)
        ]
        row |= {
            "consumer_details": [consumer_row(each) for each in mine],
            "deliveries": [],
            "incoming": [],
        }
    return Answer(value=listing.chosen(row, listing.columns_of(call.query)))


def consumer_row(row: Json) -> Json:
    """Return a consumer as RabbitMQ shows it; from listings/client_rows.py's row."""
    return {
        "queue": {"name": row["queue_name"], "vhost": row["vhost"]},
        "consumer_tag": row["consumer_tag"],
        "ack_required": row["ack_required"],
        "prefetch_count": row["prefetch_count"],
        "exclusive": row["exclusive"],
        "active": row["active"],
        "activity_status": "up" if row["active"] else "waiting",
        "arguments": row["arguments"],
        "channel_details": row.get("channel_details", {"node": row["node"]}),
    }


ROUTES = (
    Route("GET", "/api/queues", Right.MANAGEMENT, _list, "All queues"),
    Route("GET", "/api/queues/{vhost}", Right.VHOST_VISIBLE, _list, "Queues of a vhost"),
    Route(
        *("GET", "/api/queues/{vhost}/{name}", Right.VHOST_VISIBLE, _get),
        "One queue, with its consumers",
    ),
)
