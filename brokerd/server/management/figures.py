"""Rows of all members: each is asked, once a second at most for all who want to know.

A kind of rows has a maker on every member; the others' come by MemberCalls, in parts.  A member
that does not answer within ANSWER_S leaves its rows out, and is not waited for again for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from brokerd.server.members.member_calls import Handler
from brokerd.server.members.ports import Json

Rows: TypeAlias = list[Json]
#: May take turns of the loop (slices.py).
Maker: TypeAlias = Callable[[], Rows | Awaitable[Rows]]

#: How long rows are good for.
FRESH_S = 1.0
#: For all parts of a member's answer together; a walk over its queues rests most of the time.
ANSWER_S = 5.0
#: Seconds before a member that was silent is asked again.
SILENT_S = 10.0
#: Rows of one answer: connections have about a kilobyte each, and reading or writing as many keeps
#: clients waiting for a few milliseconds.  An answer has at most 16 MiB.
PART_ROWS = 250
_ASK = "management_rows"


class Calls(Protocol):
    """Questions to other members (member_calls.py)."""

    def serve(self, name: str, handler: Handler) -> None:
        """Answer questions of this name by `handler`."""
        ...

    async def ask(self, node: str, name: str, fields: Json | None = None) -> Json | None:
        """Return a member's answer, None if there is none."""
        ...


@dataclass(slots=True)
class _Cached:
    rows: Any
    made_at: float


@dataclass(slots=True, frozen=True)
class Found:
    """Rows by member; `silent` are up and did not answer."""

    rows: dict[str, Rows]
    silent: tuple[str, ...] = field(default=())

    def all(self) -> Rows:
        """Return the rows of all members, in the order of their names."""
        return [row for node in sorted(self.rows) for row in self.rows[node]]


class Figures:
    """State: makers by kind, what was made lately, who was silent.

    Invariant: at most one gathering of a kind runs at a time; all who ask meanwhile share it.
    """

    def __init__(self, node: str, alive: Callable[[], Collection[str]], calls: Calls) -> None:
        """alive(): the members that are up, this one among them or not."""
        self._node = node
        self._alive = alive
        self._calls = calls
        self._makers: dict[str, Maker] = {}
        self._own: dict[str, _Cached] = {}
        self._all: dict[str, _Cached] = {}
        self._running: dict[tuple[str, bool], asyncio.Task[Any]] = {}
        self._silent_until: dict[str, float] = {}
        calls.serve(_ASK, self._asked)

    def register(self, kind: str, maker: Maker) -> None:
        """Rows of this kind are made so, here and for the others."""
        assert kind not in self._makers, kind
        self._makers[kind] = maker

    async def everywhere(self, kind: str) -> Found:
        """Return the rows of all members, at most FRESH_S old."""
        found: Found = await self._shared(kind, True, self._all, lambda: self._gather(kind))
        return found

    async def here(self, kind: str) -> Rows:
        """Return this member's rows, at most FRESH_S old."""
        rows: Rows = await self._shared(kind, False, self._own, lambda: self._make(kind))
        return rows

    async def _shared(
        self,
        kind: str,
        everywhere: bool,
        cache: dict[str, _Cached],
        make: Callable[[], Awaitable[Any]],
    ) -> Any:
        loop = asyncio.get_running_loop()
        cached = cache.get(kind)
        if cached is not None and loop.time() - cached.made_at < FRESH_S:
            return cached.rows

        async def run() -> Any:
            began = loop.time()
            try:
                rows = await make()
                cache[kind] = _Cached(rows, began)
                # Without another request the rows, which may be megabytes, would stay.
                loop.call_later(2 * FRESH_S, _forget, cache, kind, began)
                return rows
            finally:
                del self._running[kind, everywhere]

        task = self._running.get((kind, everywhere))
        if task is None:
            task = self._running[kind, everywhere] = loop.create_task(run())
        # The first caller may go away; the others still want the rows.
        return await asyncio.shield(task)

    async def _make(self, kind: str) -> Rows:
        made = self._makers[kind]()
        return made if isinstance(made, list) else await made

    async def _gather(self, kind: str) -> Found:
        now = asyncio.get_running_loop().time()
        others = [node for node in self._alive() if node != self._node]
        asked = [node for node in others if self._silent_until.get(node, 0.0) <= now]
        own = self.here(kind)
        answers = await asyncio.gather(*(self._ask(node, kind) for node in asked))
        rows: dict[str, Rows] = {self._node: await own}
        for node, answer in zip(asked, answers, strict=True):
            if answer is not None:
                rows[node] = answer
        return Found(rows, tuple(sorted(set(others) - rows.keys())))

    async def _ask(self, node: str, kind: str) -> Rows | None:
        """Return a member's rows, part by part; None if it does not answer in time."""
        rows: Rows = []
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_S):
                while True:
                    fields = {"kind": kind, "from": len(rows)}
                    answer = await self._calls.ask(node, _ASK, fields)
                    if answer is None:
                        break
                    rows += answer["rows"]
                    if not answer["more"]:
                        self._silent_until.pop(node, None)
                        return rows
        except TimeoutError:
            pass
        self._silent_until[node] = loop.time() + SILENT_S
        return None

    async def _asked(self, question: Json) -> Json:
        kind = str(question["kind"])
        if kind not in self._makers:
            raise ValueError(kind)
        begin = int(question["from"])
        rows = await self.here(kind)
        end = begin + PART_ROWS
        return {"rows": rows[begin:end], "more": end < len(rows)}


def _forget(cache: dict[str, _Cached], kind: str, made_at: float) -> None:
    found = cache.get(kind)
    if found is not None and found.made_at == made_at:
        del cache[kind]
