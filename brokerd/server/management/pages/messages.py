"""The page for people that shows a queue's messages, why they are there, and what its jobs did.

It shows what the API answers (management/browse.py, queue_jobs.py), with the caller's rights, and
changes nothing.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

from brokerd.server.listings.browses import Asked
from brokerd.server.listings.triages import TriageAsked
from brokerd.server.management import browse, queue_jobs
from brokerd.server.management.call import Answer, Call, HttpError, Json
from brokerd.server.management.pages import rendering
from brokerd.server.management.pages.rendering import as_bytes, as_count, segment
from brokerd.server.management.routes import Right, Route

#: Messages of a page, bytes of each body, characters of it that are shown, groups.
MESSAGES, BODY_BYTES, CHARACTERS_MAX, GROUPS_MAX = 20, 256, 80, 50
_MESSAGE_HEADINGS = ("Number", "Enqueued", "Deliveries", "Exchange", "Routing key", "Body", "Bytes")
_GROUP_HEADINGS = ("Fingerprint", "Messages", "Died again", "Why", "Published to", "What", "Last")
_JOB_HEADINGS = ("Job", "Group", "Sent", "Acknowledged", "Died again", "Waiting", "Else", "Stayed")
#: Groups of a job that are shown, the largest.
JOB_GROUPS_MAX = 20


async def _messages(call: Call) -> Answer:
    name = call.parts["name"]
    token = call.query.get("page_token", "")
    try:
        if call.services.catalog.view.queue(call.vhost, name) is None:
            return await _problem(call, 404, f"There is no queue '{name}' in vhost '{call.vhost}'.")
        asked = Asked(call.vhost, name, count=MESSAGES, body_bytes=BODY_BYTES, page_token=token)
        found = await browse.messages(call, asked)
        groups, jobs = None, []
        if not token:
            jobs = await queue_jobs.jobs(call)
            # A person waits for a second, not for all of a deep queue.
            groups = await queue_jobs.triage(call, TriageAsked(call.vhost, name), is_brief=True)
    except HttpError as error:
        return await _problem(call, error.status, f"This page cannot be shown: {error.reason}")
    here = f"/pages/queues/{segment(call.vhost)}/{segment(name)}"
    tables: list[tuple[Any, ...]] = [
        ("Next to be delivered", _MESSAGE_HEADINGS, _rows(found), "No messages are ready.")
    ]
    if groups is not None:
        lines = [_group(row) for row in groups["groups"][:GROUPS_MAX]]
        tables.insert(0, ("Why they are here", _GROUP_HEADINGS, lines, "No messages are ready."))
    if jobs:
        lines = [line for job in jobs for line in _job(job)]
        tables.append(("What was taken out of it by jobs", _JOB_HEADINGS, lines, ""))
    more = found["next_page_token"]
    return await rendering.page(
        "messages.html",
        user=call.caller.user,
        node=call.services.node,
        name=name,
        vhost=call.vhost,
        queue_link=here,
        verdict=_verdict(found, groups),
        tables=tables,
        more=f"{here}/messages?{urlencode({'page_token': more})}" if more else "",
    )


async def _problem(call: Call, status: int, text: str) -> Answer:
    answer = await rendering.page(
        "problem.html",
        user=call.caller.user,
        node=call.services.node,
        title="No messages to show",
        text=text,
    )
    return replace(answer, status=status)


def _verdict(found: Json, groups: Json | None) -> str:
    held = ", ".join(f"{value:,} {state}" for state, value in sorted(found["counts"].items()))
    text = f"Looking changes nothing. The queue has {held}."
    if groups is not None and groups["next_page_token"]:
        text += f" Groups are of the first {groups['looked_at']:,}: brokerctl triage looks at all."
    return text


def _rows(found: Json) -> list[tuple[Any, ...]]:
    return [
        (
            as_count(row["number"]),
            _time(row["enqueued_ms"]),
            row["acquired_count"] or row["delivery_count"],
            row["exchange"] or "(default exchange)",
            row["routing_key"],
            _body(row),
            as_bytes(row["payload_bytes"]),
        )
        for row in found["messages"]
    ]


def _body(row: Json) -> str:
    text: str = row["payload"]
    if row["payload_encoding"] != "string":
        text = f"base64: {text}"
    return text if len(text) <= CHARACTERS_MAX else f"{text[: CHARACTERS_MAX - 1]}…"


def _group(row: Json) -> tuple[Any, ...]:
    return (
        row["fingerprint"] or "all others",
        as_count(row["messages"]),
        as_count(row["sent_back"]),
        _why(row),
        " ".join(filter(None, (row.get("exchange"), row.get("routing_key")))),
        " ".join(filter(None, (row.get("type"), row.get("exception")))),
        _time(row["last_seen_ms"]),
    )


def _job(job: Json) -> list[tuple[Any, ...]]:
    """Return a line for the whole job, and one for each group."""
    why = f": {job['why']}" if job["why"] else ""
    title = f"{job['kind']} {job['id']}, {job['state']}{why}"
    groups = sorted(job["groups"].items(), key=lambda item: (-item[1]["sent"], item[0]))
    lines = [("", name, *_outcomes(group)) for name, group in groups[:JOB_GROUPS_MAX]]
    return [(title, "all", *_outcomes(job["total"])), *lines]


def _outcomes(row: Json) -> tuple[Any, ...]:
    rest = [f"{as_count(row[name])} {name}" for name in _RARE if row[name]]
    stayed = [f"{as_count(count)} {reason}" for reason, count in sorted(row["stayed"].items())]
    counts = (as_count(row[name]) for name in ("sent", "acknowledged", "died_again", "waiting"))
    return (*counts, ", ".join(rest), ", ".join(stayed))


#: Outcomes that are shown where there are some.
_RARE = ("removed", "duplicates", "unknown")


def _why(row: Json) -> str:
    if not row.get("reason") and not row.get("last_queue"):
        return "nothing says why"
    return f"{row.get('reason') or 'failed'} in {row.get('last_queue') or '?'}"


def _time(at_ms: int | None) -> str:
    if at_ms is None:
        return "–"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


ROUTES = (
    Route(
        "GET",
        "/pages/queues/{vhost}/{name}/messages",
        Right.VHOST,
        _messages,
        "For people: a queue's messages, and why they are there",
    ),
)
