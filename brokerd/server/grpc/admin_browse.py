"""The part of the Admin service that shows a queue's messages (server/listings/browses.py).

Mixed into admin_service.AdminService.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from brokerd.rpc.v1 import admin_pb2
from brokerd.server.grpc import look_refusals, rpc_auth
from brokerd.server.listings.browses import Asked

if TYPE_CHECKING:
    from brokerd.server.grpc.ports import AdminServices

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


class BrowseAdmin:
    """State: `_services`, set by AdminService."""

    _services: AdminServices

    async def BrowseQueue(
        self, request: admin_pb2.BrowseQueueRequest, context: Context
    ) -> AsyncIterator[admin_pb2.BrowsePage]:
        """Show messages page by page; a client that goes away ends the walk."""
        caller = await self._services.callers.authenticate(context, rpc_auth.READERS)
        asked = Asked(
            vhost=request.vhost,
            name=request.name,
            # "from" is a word of Python.
            start=getattr(request, "from"),
            count=request.count if request.HasField("count") else None,
            state=request.state,
            body_bytes=request.body_bytes if request.HasField("body_bytes") else None,
            filter=request.filter,
            page_token=request.page_token,
            is_base64=request.base64,
        )
        author = rpc_auth.author_of(context)
        pages = self._services.browses.pages(asked, caller.identity, author)
        async with look_refusals.told(context), contextlib.aclosing(pages):
            async for page in pages:
                yield admin_pb2.BrowsePage(
                    messages=[json.dumps(row, separators=(",", ":")) for row in page.messages],
                    next_page_token=page.next_page_token,
                    looked_at=page.looked_at,
                    counts=page.counts,
                )
