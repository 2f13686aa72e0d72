"""The pages for people: whether all is well, members, queues; and one page for each queue.

They show what the API's handlers answer, with the caller's rights, and change nothing, so that
they need no protection against forged requests.  A page is a handler here, a template, and a line
in ROUTES.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from brokerd.core.catalog import policy
from brokerd.core.catalog.catalog_state import VhostTopology
from brokerd.server.listings import rows as listings
from brokerd.server.management import bindings, identity, listing, nodes, queues
from brokerd.server.management.call import Answer, Call, Handler, HttpError, Json
from brokerd.server.management.pages import rendering
from brokerd.server.management.pages.rendering import as_bytes, as_count, as_rate
from brokerd.server.management.routes import Right, Route

PAGE_SIZE = 50
#: Problems that are listed; of more their number is said.
PROBLEMS_MAX = 20
#: A report is below 2 MB; the job may hand in 16 MiB.
REPORT_BYTES_MAX = 16 * 1024 * 1024
#: The report has its styles and scripts in itself; it runs apart from this origin.
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "frame-ancestors 'none'; sandbox allow-scripts allow-downloads"
)
_NUMBERS = frozenset(
    {
        *("messages_ready", "messages_unacknowledged", "consumers"),
        *("message_stats.publish_details.rate", "message_stats.deliver_get_details.rate"),
    }
)
_SORTS = _NUMBERS | {"name", "vhost", "type"}
_HANDLERS: Mapping[str, Handler] = {
    route.path: route.handler
    for route in (*queues.ROUTES, *nodes.ROUTES, *bindings.ROUTES)
    if route.method == "GET"
}


async def _ask(call: Call, path: str, query: Mapping[str, str] | None = None) -> Any:
    """Return what the API answers this caller."""
    return (await _HANDLERS[path](replace(call, query=query or {}))).value


async def _page(call: Call, template: str, **values: Any) -> Answer:
    return await rendering.page(template, user=call.caller.user, node=call.services.node, **values)


# ---- the overview -------------------------------------------------------------------------------


async def _overview(call: Call) -> Answer:
    asked = _asked(call)
    # Together: the last two wait for other members while the first counts here.
    (found, page), members, totals = await asyncio.gather(
        _queues(call, asked), _members_of(call), _ask(call, "/api/overview")
    )
    problems = await _problems(call, members)
    problems += await _found_by_telemetry(call)
    if not problems:
        running = "" if members is None else f"{_members(len(members))}, "
        verdict = f"All is well: {running}no alarm is on, every queue has a leader."
    elif len(problems) == 1:
        verdict = problems[0]
    else:
        verdict = f"{problems[0]} {_more(len(problems) - 1)} a look, see below."
    return await _page(
        call,
        "overview.html",
        cluster=identity.name_of(call),
        verdict=verdict,
        problems=_shown(problems),
        tiles=_tiles(totals),
        members=None if members is None else [_member(row) for row in members],
        rows=[_row(row) for row in found["items"]],
        name=asked["name"],
        sort=asked["sort"],
        reverse=asked["sort_reverse"] == "true",
        numbers=_NUMBERS,
        page=page,
        page_count=max(1, found["page_count"]),
        filtered=found["filtered_count"],
        total=found["total_count"],
        link=_linker(asked),
    )


async def _members_of(call: Call) -> list[Json] | None:
    """Return the members, None if the caller may not see them."""
    if not call.caller.is_monitor:
        return None
    rows: list[Json] = await _ask(call, "/api/nodes")
    return rows


def _asked(call: Call) -> dict[str, str]:
    """Return what of the query means something; whatever else is in it has no effect."""
    sort = call.query.get("sort", "name")
    return {
        "name": call.query.get("name", "")[:255],
        "sort": sort if sort in _SORTS else "name",
        "sort_reverse": "true" if call.query.get("sort_reverse") == "true" else "false",
        "page": call.query.get("page", "1"),
    }


async def _queues(call: Call, asked: Mapping[str, str]) -> tuple[Any, int]:
    """Return the API's page of queues, and its number; of one that is not there, the first."""
    query = {**asked, "page_size": str(PAGE_SIZE)}
    try:
        found = await _ask(call, "/api/queues", query)
    except HttpError as error:
        if error.status != 400:
            raise
        found = await _ask(call, "/api/queues", {**query, "page": "1"})
    return found, found["page"]


def _linker(asked: Mapping[str, str]) -> Callable[..., str]:
    def link(**changes: Any) -> str:
        query = {**asked, **{name: str(value) for name, value in changes.items()}}
        return f"/?{urlencode(query, errors='surrogateescape')}#queues"

    return link


async def _problems(call: Call, members: list[Json] | None) -> list[str]:
    """Return what is wrong and where, the worst first."""
    found = []
    for row in members or ():
        if not row["running"]:
            found.append(f"Member {row['name']} is not running.")
        if row.get("disk_stalled_alarm"):
            found.append(f"The disk of {row['name']} does not answer: its classic queues refuse.")
        for alarm, what in (("mem_alarm", "memory"), ("disk_free_alarm", "disk")):
            if row.get(alarm):
                found.append(f"Publishers are blocked: the {what} alarm of {row['name']} is on.")
    if members is None and (reason := call.services.blocking_reason()):
        found.append(f"Publishers are blocked: {reason}.")
    queues, visible = call.services.listed.queues, set(call.visible_vhosts())
    known = [queues.queue_of(uid) for uid in await queues.table.leaderless()]
    without = sorted(
        (queue.vhost, queue.name) for queue in known if queue is not None and queue.vhost in visible
    )
    found += [f"Queue '{name}' in vhost '{vhost}' has no leader." for vhost, name in without]
    return found


async def _found_by_telemetry(call: Call) -> list[str]:
    """Return in a line what the report that was handed in here raises, for those who may read it.

    A report grows old where the job has stopped, so the line says what time it is of.
    """
    if not call.caller.is_monitor:
        return []
    for document in await listings.findings(call.services.listed, ""):
        try:
            severities = [
                item["severity"] for item in document["findings"] if item["status"] == "RAISED"
            ]
            until = datetime.fromtimestamp(document["as_of_us"] / 1e6, UTC)
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            return ["The findings of the audit report cannot be read: run the telemetry job anew."]
        critical, warnings = (severities.count(name) for name in ("critical", "warning"))
        counts = [
            f"{as_count(count)} {name}{'' if count == 1 else 's'}"
            for count, name in ((critical, "critical finding"), (warnings, "warning"))
            if count
        ]
        if counts:
            return [f"The audit report up to {until:%Y-%m-%d %H:%M} has {' and '.join(counts)}."]
    return []


def _shown(problems: list[str]) -> list[str]:
    more = len(problems) - PROBLEMS_MAX
    return problems if more <= 0 else [*problems[:PROBLEMS_MAX], f"And {as_count(more)} more."]


def _more(count: int) -> str:
    return "One more thing needs" if count == 1 else f"{as_count(count)} more things need"


def _members(count: int) -> str:
    return "one member runs" if count == 1 else f"{count} members run"


def _member(row: Json) -> Json:
    figures = ("mem_used", "mem_limit", "disk_free", "disk_free_limit")
    return {
        "name": row["name"],
        "running": row["running"],
        **{name: row.get(name) for name in figures},
        "mem_alarm": row.get("mem_alarm", False),
        "disk_free_alarm": row.get("disk_free_alarm", False),
        "disk_stalled_alarm": row.get("disk_stalled_alarm", False),
    }


def _tiles(totals: Json) -> list[tuple[str, str]]:
    depths, objects, stats = (
        totals[name] for name in ("queue_totals", "object_totals", "message_stats")
    )
    return [
        ("Ready", as_count(depths["messages_ready"])),
        ("Unacknowledged", as_count(depths["messages_unacknowledged"])),
        ("In", as_rate(stats["publish_details"]["rate"])),
        ("Out", as_rate(stats["deliver_get_details"]["rate"])),
        ("Queues", as_count(objects["queues"])),
        ("Exchanges", as_count(objects["exchanges"])),
        ("Connections", as_count(objects["connections"])),
        ("Channels", as_count(objects["channels"])),
        ("Consumers", as_count(objects["consumers"])),
    ]


def _row(row: Json) -> Json:
    """Return a line of the table, without figures for a queue of which none are known."""
    shown = {name: row[name] for name in ("name", "vhost", "type", "state")}
    for name in ("messages_ready", "messages_unacknowledged", "consumers"):
        shown[name] = row.get(name)
    shown["into"] = listing.dotted(row, "message_stats.publish_details.rate")
    shown["out"] = listing.dotted(row, "message_stats.deliver_get_details.rate")
    return shown


# ---- a queue ------------------------------------------------------------------------------------


async def _queue(call: Call) -> Answer:
    try:
        row = await _ask(call, "/api/queues/{vhost}/{name}")
        bound = await _ask(call, "/api/queues/{vhost}/{name}/bindings")
    except HttpError as error:
        if error.status != 404:
            raise
        text = f"There is no queue '{call.parts['name']}' in vhost '{call.vhost}'."
        answer = await _page(call, "problem.html", title="No such queue", text=text)
        return replace(answer, status=404)
    row["effective_settings"] = _effective_settings(call)
    problem = _problem(row, _dead_letters_to(row), call.services.catalog.view.vhosts)
    return await _page(
        call,
        "queue.html",
        row=row,
        problem=problem,
        verdict=problem or _said(row),
        tiles=[
            ("Type", row["type"]),
            ("Leader", row["node"] or "–"),
            ("Ready", as_count(row.get("messages_ready"))),
            ("Unacknowledged", as_count(row.get("messages_unacknowledged"))),
            ("In", as_rate(listing.dotted(row, "message_stats.publish_details.rate"))),
            ("Out", as_rate(listing.dotted(row, "message_stats.deliver_get_details.rate"))),
            ("Bytes", as_bytes(row.get("message_bytes"))),
            ("Consumers", as_count(row.get("consumers"))),
        ],
        tables=_tables(row, bound),
    )


def _problem(row: Json, target: str | None, vhosts: Mapping[str, VhostTopology]) -> str:
    """Return what is wrong with a queue, "" if nothing is."""
    if row["state"] != "running":
        return f"This queue is in the state {row['state']}: no leader takes or hands out messages."
    vhost = vhosts.get(row["vhost"])
    if target and vhost is not None and target not in vhost.exchanges:
        # R-DLX-4: no client is notified when it happens.
        return f"There is no exchange '{target}' in this vhost, where dead letters are to go."
    return ""


def _said(row: Json) -> str:
    if row.get("messages_ready") and not row.get("consumers"):
        return "This queue runs; messages wait, and nobody consumes them."
    return "This queue runs."


def _tables(row: Json, bound: list[Json]) -> list[tuple[str, tuple[str, ...], list[Any], str]]:
    """Return title, headings, lines and what stands there without lines."""
    policies = [
        (kind, name)
        for kind, name in (("Policy", row["policy"]), ("Operator policy", row["operator_policy"]))
        if name
    ]
    consumers = [
        (
            each["consumer_tag"],
            each["channel_details"].get("connection_name", each["channel_details"].get("node", "")),
            each["prefetch_count"] or "no limit",
            "yes" if each["ack_required"] else "no",
            each["activity_status"],
        )
        for each in row["consumer_details"]
    ]
    return [
        (
            "Bindings",
            ("From", "Routing key", "Arguments"),
            [
                (each["source"] or "(default exchange)", each["routing_key"], _json(each))
                for each in bound
            ],
            "Nothing leads here.",
        ),
        (
            "Consumers",
            ("Tag", "From", "Prefetch", "Acknowledges", "State"),
            consumers,
            "Nobody consumes.",
        ),
        (
            "Policy",
            (),
            [*policies, *_sorted(row["effective_policy_definition"])],
            "No policy applies.",
        ),
        ("Dead letters", (), _dead_letters(row), "They are dropped: no dead letter exchange."),
        ("Arguments", (), _sorted(row["arguments"]), "None."),
        (
            "Members",
            ("Member", "State"),
            [
                (name, "online" if name in row.get("online", ()) else "offline")
                for name in row.get("members", ())
            ],
            f"One replica, on {row['node'] or 'a member that is down'}.",
        ),
    ]


def _effective_settings(call: Call) -> Json:
    """Return what holds for the queue, of its arguments, its resource and policies (R-POL)."""
    queue = call.services.catalog.view.vhosts[call.vhost].queues.get(call.parts["name"])
    if queue is None:
        return {}
    return dict(policy.effective_queue(call.services.catalog.view, queue).values)


def _source(row: Json, key: str) -> str:
    """Return where a setting of a queue comes from."""
    if f"x-{key}" in row["arguments"]:
        return "argument of the queue"
    if key in row["effective_policy_definition"]:
        return "policy"
    return "inline setting of its resource"


def _dead_letters_to(row: Json) -> str | None:
    """Return the exchange, None if they are dropped."""
    exchange: str | None = row["effective_settings"].get("dead-letter-exchange")
    return exchange


def _dead_letters(row: Json) -> list[tuple[str, str]]:
    """Return where they go."""
    settings = row["effective_settings"]
    if "dead-letter-exchange" not in settings:
        return []
    lines = [
        ("Exchange", settings["dead-letter-exchange"] or "(default exchange)"),
        ("Routing key", settings.get("dead-letter-routing-key", "that of the message")),
        ("Strategy", settings.get("dead-letter-strategy", "at-most-once")),
        ("Set by", _source(row, "dead-letter-exchange")),
    ]
    if "messages_dlx" in row:
        lines.append(("Waiting for their confirm", as_count(row["messages_dlx"])))
    return lines


def _sorted(fields: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(name, str(value)) for name, value in sorted(fields.items())]


def _json(row: Json) -> str:
    return json.dumps(row["arguments"], ensure_ascii=False) if row["arguments"] else ""


# ---- the rest -----------------------------------------------------------------------------------


async def _style(_: Call) -> Answer:
    text = (rendering.TEMPLATES / "style.css").read_text()
    return Answer(text=text, content_type="text/css; charset=utf-8")


async def _report(call: Call) -> Answer:
    file = call.services.config.data_dir / "results" / "report.html"
    text = await asyncio.to_thread(_read, file)
    if text is None:
        answer = await _page(
            call,
            "problem.html",
            title="No report yet",
            text="No telemetry job has handed a report in to this member.",
        )
        return replace(answer, status=404)
    headers = {"Content-Security-Policy": _REPORT_POLICY}
    return Answer(text=text, content_type="text/html; charset=utf-8", headers=headers)


def _read(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            return opened.read(REPORT_BYTES_MAX).decode("utf-8", "replace")
    except FileNotFoundError:
        return None


ROUTES = (
    Route("GET", "/", Right.MANAGEMENT, _overview, "For people: is all well, members, queues"),
    Route(
        "GET",
        "/pages/queues/{vhost}/{name}",
        Right.VHOST_VISIBLE,
        _queue,
        "For people: one queue with bindings, consumers, policy, dead letters",
    ),
    Route("GET", "/pages/style.css", Right.ANYONE, _style, "The pages' style sheet"),
    Route("GET", "/telemetry/report", Right.MONITORING, _report, "The telemetry job's report"),
)
