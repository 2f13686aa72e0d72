"""Endpoints for triage of a queue, and for its jobs: redrive, move, delete (server/listings)."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from brokerd.core.triage.groups import Triage
from brokerd.core.triage.jobs import JobError, JobOrder, order_of
from brokerd.core.triage.previews import Preview
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.listings import job_rows, triages
from brokerd.server.listings.job_ports import JobRefused
from brokerd.server.listings.look_guard import BrowseRefused, TooManyBrowses
from brokerd.server.listings.target_rooms import Room
from brokerd.server.listings.triages import TriageAsked
from brokerd.server.management.call import (
    Answer,
    Call,
    HttpError,
    Json,
    bad_request,
    not_found,
    refused,
    unavailable,
)
from brokerd.server.management.routes import Right, Route
from brokerd.server.members.browse_calls import Overloaded


@contextlib.asynccontextmanager
async def _refusals() -> AsyncIterator[None]:
    """Translate what was refused; HttpError."""
    try:
        yield
    except (BrowseRefused, JobRefused) as error:
        raise refused(error.refused) from error
    except JobError as error:
        raise bad_request(str(error)) from error
    except TooManyBrowses as error:
        raise HttpError(429, "too_many_requests", str(error)) from error
    except (Unavailable, Overloaded) as error:
        raise unavailable(str(error)) from error


def _check_there(call: Call) -> None:
    if call.services.catalog.view.queue(call.vhost, call.parts["name"]) is None:
        raise not_found()


@dataclass(slots=True)
class _Seen:
    """What the pieces of one call found together."""

    triage: Triage = field(default_factory=Triage)
    looked_at: int = 0
    token: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, shown: triages.TriageShown) -> None:
        for name, group in shown.groups:
            self.triage.add_group(name, group)
        self.triage.others.add_group(shown.others)
        self.looked_at += shown.looked_at
        self.token, self.counts = shown.next_page_token, shown.counts

    def as_json(self) -> Json:
        groups = [triages.group_row(*item) for item in self.triage.largest_first()]
        if self.triage.others.count:
            groups.append(triages.group_row("", self.triage.others))
        return {
            "groups": groups,
            "looked_at": self.looked_at,
            "next_page_token": self.token or None,
            "counts": self.counts,
        }


async def triage(call: Call, asked: TriageAsked, *, is_brief: bool = False) -> Json:
    """Return one answer of all pieces of a triage, or of the first; HttpError."""
    seen, caller = _Seen(), call.caller
    pieces = call.services.triages.pieces(asked, caller.identity, caller.author, call.is_gone)
    async with _refusals(), contextlib.aclosing(pieces):
        async for shown in pieces:
            seen.add(shown)
            if is_brief:
                break
    return seen.as_json()


async def _triage(call: Call) -> Answer:
    _check_there(call)
    query = call.query
    asked = TriageAsked(
        vhost=call.vhost,
        name=call.parts["name"],
        state=query.get("state", ""),
        filter=query.get("filter", ""),
        page_token=query.get("page_token", ""),
    )
    return Answer(value=await triage(call, asked))


async def _start(call: Call) -> Answer:
    _check_there(call)
    fields = await call.body()
    fields = {**fields, "vhost": call.vhost, "queue": call.parts["name"]}
    dry_run, token = fields.pop("dry_run", False), fields.pop("page_token", "")
    if not isinstance(dry_run, bool):
        raise bad_request("dry_run: true or false is expected")
    if not isinstance(token, str):
        raise bad_request("page_token: a text is expected")
    async with _refusals():
        order = order_of(fields)
        if dry_run:
            return Answer(value=await preview(call, order, token))
        caller = call.caller
        status = await call.services.jobs.start(order, caller.identity, caller.author)
    return Answer(201, value=job_rows.job(status))


async def preview(call: Call, order: JobOrder, page_token: str) -> Json:
    """Return what a job would do."""
    seen, caller = _Seen(), call.caller
    whole = Preview(order, lambda _: ())
    rooms: dict[str, Room] = {}
    pieces = call.services.triages.preview(
        order, page_token, caller.identity, caller.author, call.is_gone
    )
    async with contextlib.aclosing(pieces):
        async for shown in pieces:
            seen.add(shown)
            rooms |= shown.targets
            for row in shown.rows:
                whole.add_row(row)
    return {
        **seen.as_json(),
        "rows": [triages.preview_row(row) for row in whole.rows()],
        "targets": {job_rows.text(name): room.as_json() for name, room in rooms.items()},
        "messages": whole.sent,
        "seconds": -(-whole.sent // order.rate) if order.rate else None,
    }


async def _stop(call: Call) -> Answer:
    _check_there(call)
    caller = call.caller
    async with _refusals():
        status = await call.services.jobs.stop(
            call.vhost, call.parts["name"], caller.identity, caller.author
        )
    return Answer(value=job_rows.job(status))


async def jobs(call: Call) -> list[Json]:
    """Return the jobs of a queue, a vhost or all; HttpError."""
    name = call.parts.get("name")
    if name is not None:
        _check_there(call)
    async with _refusals():
        found = await call.services.jobs.statuses(call.vhost or None, name, call.caller.identity)
    return [job_rows.job(status) for status in found]


async def _list(call: Call) -> Answer:
    return Answer(value=await jobs(call))


ROUTES = (
    Route(
        "GET",
        "/api/queues/{vhost}/{name}/triage",
        Right.VHOST,
        _triage,
        "A queue's messages in groups, by what became of them: `filter`, "
        "`state` (`ready`, `unacked`, `delayed`, `all`), `page_token`",
    ),
    Route(
        "GET",
        "/api/queues/{vhost}/{name}/jobs",
        Right.VHOST,
        _list,
        "A queue's job and the last that ended, with what became of the messages",
    ),
    Route(
        "POST",
        "/api/queues/{vhost}/{name}/jobs",
        Right.VHOST,
        _start,
        "Start a job that sends a queue's messages back (`kind`: `redrive`), on (`move`), or "
        "deletes them (`delete`); with `dry_run` only show what it would do",
    ),
    Route(
        "DELETE",
        "/api/queues/{vhost}/{name}/jobs",
        Right.VHOST,
        _stop,
        "Stop a queue's job: what is on its way is waited for, nothing more is taken",
    ),
    Route(
        "GET",
        "/api/queue-jobs",
        Right.MANAGEMENT,
        _list,
        "Jobs of all queues that the caller may read",
    ),
    Route(
        "GET",
        "/api/queue-jobs/{vhost}",
        Right.VHOST,
        _list,
        "Jobs of a vhost's queues",
    ),
)
