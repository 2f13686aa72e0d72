"""One broker as the engine sees it: the gate, the mirror of its topology, and the batcher.

The gate: while the broker does not answer, one probe asks again and all its resources are parked
(design/operator.md §9). The mirror follows WatchTopology, so that drift is known at once. The
batcher joins what several workers want to write into messages of at most 256 operations.
Owned by the engine; one task per session.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brokerd_operator.broker.client import OPERATIONS_MAX, AdminClient, Change, Info, Result, Target
from brokerd_operator.broker.errors import BrokerDenied, BrokerError
from brokerd_operator.engine.keys import Key
from brokerd_operator.reconcile import ordering
from brokerd_operator.reconcile.actions import Action
from brokerd_operator.reconcile.plan import Written
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs.model import Identity, Reference

log = logging.getLogger(__name__)

PROBE_FIRST_S = 0.25
PROBE_MAX_S = 15.0
#: A watch is silent for 30 s at most: bookmarks come then.
WATCH_SILENCE_S = 75.0
#: Slow full compare (design/operator.md §8).
RELIST_S = 1800.0
RELIST_JITTER = 0.2
#: Submissions that may wait in the batcher; one per worker, so the number of workers bounds it.
SUBMISSIONS_MAX = 1024


class State(enum.Enum):
    """What is known about the broker."""

    #: Not asked yet, or asked for the first time: no status says yet that it does not answer.
    CONNECTING = "connecting"
    UP = "up"
    DOWN = "down"


class NotKnownYet(Exception):
    """No pass has looked at the broker's resource since the start: there is nothing to say yet."""


class Listener(Protocol):
    """What the engine wants to hear."""

    def broker_synced(self, session: BrokerSession) -> None: ...

    def broker_down(self, session: BrokerSession) -> None: ...

    def object_changed(
        self,
        session: BrokerSession,
        identity: Identity,
        before: ObservedObject | None,
        cause: str,
        author: Key | None = None,
    ) -> None: ...


@dataclass(slots=True)
class _Submission:
    actions: Sequence[Action]
    answer: asyncio.Future[list[Result]]

    @property
    def rank(self) -> int:
        return min((ordering.rank(item.identity.kind) for item in self.actions), default=0)


@dataclass(slots=True)
class BrokerSession:
    """Owns the client and the mirror of one broker."""

    reference: Reference
    resolve: Callable[[Reference], Awaitable[Target | None]]
    listener: Listener
    randomness: random.Random
    state: State = State.CONNECTING
    #: Why it is down, in a sentence.
    problem: str = ""
    #: It answers, and refuses the operator's login.
    is_denied: bool = False
    info: Info | None = None
    topology: Topology = field(default_factory=Topology)
    #: What we wrote to objects whose specs cannot be read back.
    written: dict[Identity, Written] = field(default_factory=dict)
    client: AdminClient | None = None
    #: The client was closed so that another login is taken: no news of the broker.
    _is_renewed: bool = False
    _nudge: asyncio.Event = field(default_factory=asyncio.Event)
    _submissions: list[_Submission] = field(default_factory=list)
    _flushing: bool = False
    #: Who writes an object just now.
    _authors: dict[Identity, Key] = field(default_factory=dict)
    #: Revisions of such objects that the author was not told of.
    _unreported: dict[Identity, int] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def account(self) -> str:
        """The user that the operator logs in as, which no resource may have."""
        return "" if self.client is None else self.client.target.username

    async def renew(self) -> None:
        """The login has changed: connect with what it is now."""
        if self.client is not None:
            self._is_renewed = True
            await self.client.close()

    def nudge(self) -> None:
        """Something about the broker changed: probe now."""
        self._nudge.set()

    def start(self) -> None:
        self._spawn(self._run())

    def _spawn(self, work: Awaitable[None]) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all tasks; waiting submissions fail."""
        # It may be one of them, and would wait for itself.
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_submissions("the operator stops")
        if self.client is not None:
            await self.client.close()

    # ---- the mirror ---------------------------------------------------------------------------

    async def _run(self) -> None:
        delay = PROBE_FIRST_S
        while True:
            self._nudge.clear()
            try:
                target = await self.resolve(self.reference)
                if target is None:
                    self._is_down(f"{self.reference.kind} {self.reference.key} is not running")
                else:
                    await self._connect(target)
                    delay = PROBE_FIRST_S
                    continue
            except NotKnownYet:
                log.debug("broker is not known yet broker=%s", self.reference.key)
            except BrokerError as error:
                if self._is_renewed:
                    self._is_renewed = False
                    continue
                was_up = self.state is State.UP
                if was_up:
                    # One member less is no news: say so only if no other answers either.
                    was_up = await self._answers()
                if was_up:
                    delay = PROBE_FIRST_S
                else:
                    self._is_down(str(error), is_denied=isinstance(error, BrokerDenied))
            except Exception:
                log.exception("session of %s failed", self.reference.key)
                self._is_down("internal error, see the operator's log")
            try:
                async with asyncio.timeout(delay * (1 + self.randomness.uniform(0, 0.2))):
                    await self._nudge.wait()
            except TimeoutError:
                delay = min(delay * 2, PROBE_MAX_S)

    async def _answers(self) -> bool:
        try:
            assert self.client is not None
            await self.client.info()
        except BrokerError:
            return False
        return True

    def _is_down(self, problem: str, *, is_denied: bool = False) -> None:
        changed = self.state is not State.DOWN or self.problem != problem
        self.state, self.problem, self.is_denied = State.DOWN, problem, is_denied
        if changed:
            log.info("broker is down broker=%s problem=%s", self.reference.key, problem)
            self.listener.broker_down(self)

    async def _connect(self, target: Target) -> None:
        """Follow the broker until the listing is due again or the connection breaks."""
        if self.client is None or self.client.target != target:
            if self.client is not None:
                await self.client.close()
            self.client = AdminClient(target)
        client = self.client
        info = await client.info()
        if not info.cluster_id:
            # The member waits for a majority: it knows no topology yet.
            raise BrokerError(f"{client.address}: the members have not formed a cluster yet")
        if self.info is not None and self.info.cluster_id != info.cluster_id:
            # Made anew behind our back (MTO#624): nothing that we wrote is there.
            self.written.clear()
        items, revision, ended = await client.list_with_ended()
        self.info = info
        self.topology.replace(items, revision, ended)
        self.state, self.problem, self.is_denied = State.UP, "", False
        self.listener.broker_synced(self)
        await self._watch(client, revision)

    async def _watch(self, client: AdminClient, revision: int) -> None:
        jitter = self.randomness.uniform(1 - RELIST_JITTER, 1 + RELIST_JITTER)
        loop = asyncio.get_running_loop()
        until = loop.time() + RELIST_S * jitter
        changes = client.watch(revision)
        try:
            while loop.time() < until:
                async with asyncio.timeout(WATCH_SILENCE_S):
                    change = await anext(changes, None)
                if change is None or change.change == "COMPACTED":
                    return
                self._take(change)
        except TimeoutError:
            log.warning("watch of %s was silent for %s s", self.reference.key, WATCH_SILENCE_S)
        finally:
            await changes.aclose()  # type: ignore[attr-defined]

    def _take(self, change: Change) -> None:
        item = change.item
        if item is None:
            return
        before = self.topology.get(item.identity)
        if change.change == "DELETED":
            if self.topology.remove(item.identity, change.revision) is None:
                return
        elif not self.topology.put(item):
            return
        # News of a write of our own may come here before its answer.
        author = self._authors.get(item.identity)
        if author is not None:
            self._unreported[item.identity] = change.revision
        self.listener.object_changed(self, item.identity, before, change.cause, author)

    # ---- the batcher --------------------------------------------------------------------------

    async def apply(self, actions: Sequence[Action], author: Key | None = None) -> list[Result]:
        """Write; raises BrokerError. The mirror knows the outcome when this returns.

        The author is not told of what it wrote itself: its pass knows that from the answer.
        """
        if not actions:
            return []
        written = [action.identity for action in actions]
        if author is not None:
            self._authors.update(dict.fromkeys(written, author))
        try:
            results = await self._submit(actions)
        except BaseException:
            for identity in written:
                self._end_writing(identity)
            raise
        for identity, result in zip(written, results, strict=True):
            unreported = self._end_writing(identity)
            self._learn(result, author)
            own = result.current.revision if result.is_done and result.current else 0
            if unreported > own:
                # Somebody else changed it at the same time.
                before = self.topology.get(identity)
                self.listener.object_changed(self, identity, before, "admin")
        return results

    def _end_writing(self, identity: Identity) -> int:
        """The newest revision that the author was not told of."""
        self._authors.pop(identity, None)
        return self._unreported.pop(identity, 0)

    async def _submit(self, actions: Sequence[Action]) -> list[Result]:
        if len(self._submissions) >= SUBMISSIONS_MAX:
            raise BrokerError("too many operations wait for the broker")
        answer: asyncio.Future[list[Result]] = asyncio.get_running_loop().create_future()
        self._submissions.append(_Submission(actions, answer))
        if not self._flushing:
            self._flushing = True
            self._spawn(self._flush())
        return await answer

    def _learn(self, result: Result, author: Key | None) -> None:
        """News of our own write may come here first, and then the watch has none to tell."""
        item = result.current
        if item is None:
            return
        before = self.topology.get(item.identity)
        if self.topology.put(item):
            author = author if result.is_done else None
            self.listener.object_changed(self, item.identity, before, "admin", author)

    async def _flush(self) -> None:
        try:
            # Let every worker that is ready hand in its part first.
            await asyncio.sleep(0)
            while self._submissions:
                batch = self._next_batch()
                await self._send(batch)
        finally:
            self._flushing = False

    def _next_batch(self) -> list[_Submission]:
        self._submissions.sort(key=lambda item: item.rank)
        batch: list[_Submission] = []
        size = 0
        while self._submissions:
            size += len(self._submissions[0].actions)
            if batch and size > OPERATIONS_MAX:
                break
            batch.append(self._submissions.pop(0))
        return batch

    async def _send(self, batch: list[_Submission]) -> None:
        actions = [action for item in batch for action in item.actions]
        try:
            if self.client is None:
                raise BrokerError("the broker is not connected")
            results = await self.client.apply(actions)
        except BrokerError as error:
            _fail(batch, error)
            return
        except BaseException:
            # Whatever ended this task: no caller may wait for an answer for ever.
            _fail(batch, BrokerError("the operator stops"))
            raise
        start = 0
        for item in batch:
            end = start + len(item.actions)
            if not item.answer.done():
                item.answer.set_result(results[start:end])
            start = end

    def _fail_submissions(self, message: str) -> None:
        _fail(self._submissions, BrokerError(message))
        self._submissions.clear()


def _fail(batch: list[_Submission], error: BrokerError) -> None:
    for item in batch:
        if not item.answer.done():
            item.answer.set_exception(error)
