"""The way of a look at a queue to its leader, from any member.

A question by member_calls.py, not a command: nothing of it stands in a log.  The leader's answer is
made by server/queues/browsing.py; who may ask is decided at the front doors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.queue.browse import Place
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.members import ports
from brokerd.server.members.member_calls import MemberCalls
from brokerd.server.queues import browsing
from brokerd.server.queues.browsing import Page, Question, QueueBrowser
from brokerd.server.queues.walking import Busy, Matching, NotHere

Json: TypeAlias = dict[str, Any]
#: Makes of a filter's text what is asked about each message; ValueError.
Compile: TypeAlias = Callable[[str], Matching]

_ASK = "browse"
#: How long a leader is looked for, and how often: an election takes a second or two.
PATIENCE_S = 5.0
AGAIN_S = 0.1


class Overloaded(Exception):
    """The queue's leader makes as many pages as it may."""


def serve(
    calls: MemberCalls, host: ports.Replicas, browser: QueueBrowser, compile_filter: Compile
) -> None:
    """Answer other members' questions, and this one's."""

    async def browse(asked: Json) -> Json:
        uid, question = int(asked["uid"]), _question(asked)
        matching = compile_filter(str(asked["filter"])) if asked.get("filter") else None
        try:
            return _encoded(await browser.page(uid, question, matching))
        except NotHere:
            return {"elsewhere": host.leader_of(uid) or ""}
        except Busy:
            return {"busy": True}

    calls.serve(_ASK, browse)


def _question(asked: Json) -> Question:
    """Return what another member asks for, whatever it sent: within the bounds of a page."""
    place = asked["place"]
    return Question(
        state=str(asked["state"]),
        tail=max(0, min(int(asked["tail"]), browsing.COUNT_MAX)),
        first_number=int(asked["first_number"]),
        first_ms=int(asked["first_ms"]),
        place=None if place is None else Place(*map(int, place)),
        count=max(1, min(int(asked["count"]), browsing.PAGE_MAX)),
        body_bytes=max(0, min(int(asked["body_bytes"]), browsing.BODY_BYTES_MAX)),
    )


def _encoded(page: Page) -> Json:
    return {
        "messages": page.messages,
        "place": page.place,
        "looked": page.looked,
        "counts": page.counts,
    }


def _decoded(answer: Json) -> Page:
    place = answer["place"]
    return Page(
        messages=answer["messages"],
        place=None if place is None else Place(*place),
        looked=answer["looked"],
        counts=answer["counts"],
    )


async def ask_leader(
    cluster: ports.Neighbours,
    queue: Queue,
    question: Question,
    filter_text: str,
    refusal: Callable[[int], str],
) -> Page:
    """Return a page of a queue from its leader, whichever member that is.

    refusal(uid): why no member takes the queue's commands for now, "" if one may.  QueueStuck for
    that; Unavailable where no leader answers in time; Overloaded.
    """
    fields = {
        "state": question.state,
        "tail": question.tail,
        "first_number": question.first_number,
        "first_ms": question.first_ms,
        "place": question.place,
        "count": question.count,
        "body_bytes": question.body_bytes,
        "filter": filter_text,
    }
    return _decoded(await leaders_answer(cluster, queue, _ASK, fields, refusal))


async def leaders_answer(
    cluster: ports.Neighbours,
    queue: Queue,
    question: str,
    fields: Json,
    refusal: Callable[[int], str],
) -> Json:
    """Return what a queue's leader answers to a question about its messages, whichever member that
    is; the errors are those of `ask_leader`.

    An answer has `counts`, or says where the leader is (`elsewhere`), or that it is `busy`.
    """
    fields = {"uid": queue.uid, **fields}
    clock = asyncio.get_running_loop().time
    deadline = clock() + PATIENCE_S
    hint = cluster.host.leader_of(queue.uid) or ""
    while True:
        if reason := refusal(queue.uid):
            raise QueueStuck(reason)
        asked: set[str] = set()
        waiting = [hint, *queue.members]
        while waiting:
            node = waiting.pop(0)
            if node in asked or node not in cluster.host.alive():
                continue
            asked.add(node)
            answer = await cluster.calls.ask(node, question, fields)
            if answer is not None and "counts" in answer:
                return answer
            if answer is not None and answer.get("busy"):
                raise Overloaded(f"member '{node}' shows as many queues as it may at once")
            if answer is not None and answer["elsewhere"]:
                waiting.insert(0, answer["elsewhere"])
        if clock() >= deadline:
            text = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise Unavailable(f"no leader of {text} has answered in time")
        await asyncio.sleep(AGAIN_S)
        hint = cluster.host.leader_of(queue.uid) or ""
