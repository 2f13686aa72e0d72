"""The endpoint that shows a queue's messages and changes nothing (server/listings/browses.py)."""

from __future__ import annotations

import contextlib

from brokerd.server.listings import browses
from brokerd.server.listings.browses import Asked
from brokerd.server.listings.look_guard import BrowseRefused, TooManyBrowses
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

#: As of other doors' bodies, which have `encoding` with the same words.
ENCODINGS = ("auto", "base64")
#: Digits of a number in a query.
_DIGITS_MAX = 20


async def _messages(call: Call) -> Answer:
    if call.services.catalog.view.queue(call.vhost, call.parts["name"]) is None:
        raise not_found()
    return Answer(value=await messages(call, _asked(call)))


def _asked(call: Call) -> Asked:
    query = call.query
    encoding = query.get("encoding", "auto")
    if encoding not in ENCODINGS:
        raise bad_request(f"encoding: one of {', '.join(ENCODINGS)}")
    return Asked(
        vhost=call.vhost,
        name=call.parts["name"],
        start=query.get("from", ""),
        count=_number(call, "count"),
        state=query.get("state", ""),
        body_bytes=_number(call, "body_bytes"),
        filter=query.get("filter", ""),
        page_token=query.get("page_token", ""),
        is_base64=encoding == "base64",
    )


def _number(call: Call, name: str) -> int | None:
    text = call.query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX):
        raise bad_request(["not_int", name])
    return int(text)


async def messages(call: Call, asked: Asked) -> Json:
    """Return one answer of all pages of a look; HttpError."""
    found: list[Json] = []
    looked_at, token, counts = 0, "", {}
    caller = call.caller
    pages = call.services.browses.pages(asked, caller.identity, caller.author, call.is_gone)
    try:
        async with contextlib.aclosing(pages):
            async for page in pages:
                found += page.messages
                looked_at += page.looked_at
                token, counts = page.next_page_token, page.counts
    except BrowseRefused as error:
        raise refused(error.refused) from error
    except TooManyBrowses as error:
        raise HttpError(429, "too_many_requests", str(error)) from error
    except Overloaded as error:
        raise unavailable(str(error)) from error
    return {
        "messages": found,
        "looked_at": looked_at,
        "next_page_token": token or None,
        "counts": counts,
    }


_QUERY = (
    "`from` (`head`, `tail`, a number, a time), "
    f"`count` ({browses.COUNT_DEFAULT}, at most {browses.COUNT_MAX:,}), "
    "`state` (`ready`, `unacked`, `delayed`, `all`), "
    f"`body_bytes` ({browses.BODY_BYTES_DEFAULT}), "
    "`encoding` (`auto`, `base64`), `filter`, `page_token`"
)

ROUTES = (
    Route(
        "GET",
        "/api/queues/{vhost}/{name}/messages",
        Right.VHOST,
        _messages,
        f"A queue's messages, which stay as they are: {_QUERY}",
    ),
)
