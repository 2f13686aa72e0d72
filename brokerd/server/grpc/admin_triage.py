"""The part of the Admin service for triage of queues, and for their jobs: redrive, move, delete.

Over server/listings/triages.py and job_ports.py.  Mixed into admin_service.AdminService.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from brokerd.core.triage.groups import Group
from brokerd.core.triage.jobs import JobError, JobOrder, order_of
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.grpc import look_refusals, rpc_auth
from brokerd.server.listings import job_rows, triages
from brokerd.server.listings.triages import TriageAsked

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import AdminServices

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

#: Of an order as JSON: its filter has at most 4,096 characters, its names 255 bytes.
ORDER_CHARACTERS_MAX = 64 * 1024


class TriageAdmin:
    """State: `_services`, set by AdminService."""

    _services: AdminServices

    async def TriageQueue(
        self, request: admin_pb2.TriageQueueRequest, context: Context
    ) -> AsyncIterator[admin_pb2.TriagePage]:
        """Show groups as they are found; a client that goes away ends the walk."""
        caller = await self._services.callers.authenticate(context, rpc_auth.READERS)
        asked = TriageAsked(
            vhost=request.vhost,
            name=request.name,
            state=request.state,
            filter=request.filter,
            page_token=request.page_token,
        )
        author = rpc_auth.author_of(context)
        pieces = self._services.triages.pieces(asked, caller.identity, author)
        async with look_refusals.told(context), contextlib.aclosing(pieces):
            async for shown in pieces:
                yield admin_pb2.TriagePage(
                    groups=_groups(shown.groups, shown.others),
                    next_page_token=shown.next_page_token,
                    looked_at=shown.looked_at,
                    counts=shown.counts,
                )

    async def PreviewQueueJob(
        self, request: admin_pb2.PreviewQueueJobRequest, context: Context
    ) -> AsyncIterator[admin_pb2.QueueJobPreviewPage]:
        """Show what a job would do."""
        caller = await self._services.callers.authenticate(context, rpc_auth.READERS)
        author = rpc_auth.author_of(context)
        async with look_refusals.told(context):
            order = _order(request.order)
            pieces = self._services.triages.preview(
                order, request.page_token, caller.identity, author
            )
            async with contextlib.aclosing(pieces):
                async for shown in pieces:
                    targets = {name: _json(room.as_json()) for name, room in shown.targets.items()}
                    yield admin_pb2.QueueJobPreviewPage(
                        groups=_groups(shown.groups, shown.others),
                        rows=[_json(triages.preview_row(row)) for row in shown.rows],
                        targets={job_rows.text(name): room for name, room in targets.items()},
                        next_page_token=shown.next_page_token,
                        looked_at=shown.looked_at,
                        counts=shown.counts,
                    )

    async def StartQueueJob(
        self, request: admin_pb2.StartQueueJobRequest, context: Context
    ) -> admin_pb2.StartQueueJobResponse:
        """Start a job; it goes on without this call."""
        caller = await self._services.callers.authenticate(context, rpc_auth.READERS)
        author = rpc_auth.author_of(context)
        async with look_refusals.told(context):
            order = _order(request.order)
            status = await self._services.jobs.start(order, caller.identity, author)
            return admin_pb2.StartQueueJobResponse(job=_json(job_rows.job(status)))
        raise AssertionError("a refusal ends the call")

    async def StopQueueJob(
        self, request: admin_pb2.StopQueueJobRequest, context: Context
    ) -> admin_pb2.StopQueueJobResponse:
        """Stop a queue's job."""
        caller = await self._services.callers.authenticate(context, rpc_auth.READERS)
        author = rpc_auth.author_of(context)
        async with look_refusals.told(context):
            jobs = self._services.jobs
            status = await jobs.stop(request.vhost, request.name, caller.identity, author)
            return admin_pb2.StopQueueJobResponse(job=_json(job_rows.job(status)))
        raise AssertionError("a refusal ends the call")

    async def ListQueueJobs(
        self, request: admin_pb2.ListQueueJobsRequest, context: Context
    ) -> admin_pb2.ListQueueJobsResponse:
        """Show jobs under way and the last that ended."""
        caller = await self._services.callers.authenticate(context, rpc_auth.READERS)
        async with look_refusals.told(context):
            found = await self._services.jobs.statuses(
                request.vhost or None, request.name or None, caller.identity
            )
            jobs = [_json(job_rows.job(status)) for status in found]
            return admin_pb2.ListQueueJobsResponse(jobs=jobs)
        raise AssertionError("a refusal ends the call")


def _order(text: str) -> JobOrder:
    if len(text) > ORDER_CHARACTERS_MAX:
        raise JobError(f"order: longer than {ORDER_CHARACTERS_MAX} characters")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise JobError("order: a JSON object") from error
    if not isinstance(fields, dict):
        raise JobError("order: a JSON object")
    return order_of(fields)


def _groups(groups: list[tuple[str, Group]], others: Group) -> Iterator[str]:
    for name, group in groups:
        yield _json(triages.group_row(name, group))
    if others.count:
        yield _json(triages.group_row("", others))


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
