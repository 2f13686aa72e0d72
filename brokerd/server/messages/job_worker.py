"""The worker of one queue's job, beside the queue's leader: looks, takes, sends, settles.

It walks over the ready messages in slices, takes by number those that the order means, publishes
each to its targets, and settles it when all of them have confirmed.  The queue's state says which
messages the job holds, so that nothing is lost with a worker: the next leader's sends again what it
finds there, and each copy of a redrive says which message it is of.  A target that refuses or does
not answer has a window of its own, and holds up no other target's messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from brokerd.cluster.errors import GroupGone
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.permissions import Access
from brokerd.core.filters.message_filter import Filter, compile_filter
from brokerd.core.message import Content, Range
from brokerd.core.queue import browse
from brokerd.core.queue.browse import Browsed, Place, Wanted
from brokerd.core.queue.effects import Run
from brokerd.core.queue.queue_jobs import Job
from brokerd.core.ranges import normalize
from brokerd.core.triage.groups import fingerprint
from brokerd.core.triage.histories import history_of
from brokerd.core.triage.jobs import JobKind, JobState, JobStatus, To
from brokerd.server.catalog.audit import Audit, Author, job_ended
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.messages import pipeline, ports
from brokerd.server.messages.job_copies import NO_ROUTE, Address, Copies, Way
from brokerd.server.messages.job_progress import JobProgress
from brokerd.server.messages.message_view import StoredMessage
from brokerd.server.queues import ports as queue_ports
from brokerd.server.queues.bodies import MessageViews
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.stream import ChannelStream, Target

log = logging.getLogger(__name__)

#: Messages that one command takes, and bytes of their copies, behind which a slice ends.
SLICE_MESSAGES = 256
SLICE_BYTES = 4 * 1024 * 1024
#: Seconds of the loop that a slice is looked at without a rest, messages and spans of one walk.
SLICE_S = 0.002
WALK_MESSAGES = 64
WALK_SPANS = 500
#: Entries of the log that are kept parsed: messages of one entry stand together.
KEPT_BYTES = 1024 * 1024
#: Copies that one target has not answered, and their bytes.
WINDOW_MESSAGES = 512
WINDOW_BYTES = 8 * 1024 * 1024
#: Messages that are held at once; the queue holds no more than queue_jobs.HELD_MAX.
HELD_MAX = 2_048
#: A target that has not answered for so long holds up no other: its messages wait for another pass.
SLOW_S = 1.0
#: Pauses before a copy that was refused goes again; behind the last its message stays, and all
#: others of the target.
RETRIES_S = (0.5, 1.0, 2.0, 4.0, 8.0)
#: How long what is on its way is waited for when a job is stopped: after that it is ready again.
STOP_S = 30.0
#: Between two looks at what a pause is for, and after a majority was missing.
PAUSE_S = 0.5
#: Between two slices in which nothing was chosen: others have the loop, and the log's thread the
#: interpreter (loop/chunks.py).
REST_S = 0.001
REFUSED = "refused by its target"
UNANSWERED = "stopped while on its way"
NOT_READY = {"unacked": "with a consumer", "delayed": "waits for a delayed retry"}
NO_RIGHT = "no right to publish there"


class Queues(queue_ports.Queues, Protocol):
    """The queues, and the log of those that have a replica here."""

    def entry_data(self, uid: int, index: int) -> bytes | None:
        """Return a log entry, None where it is not here any more."""
        ...


@dataclass(slots=True, frozen=True)
class Around:
    """What workers need of the member."""

    node: str
    queues: Queues
    client: QueueClient
    routing: ports.Routing
    view: CatalogState
    audit: Audit
    #: The text of connection.blocked, "" without an alarm.
    alarm: Callable[[], str]
    #: The wall clock.
    clock_ms: Callable[[], int]


class Ended(Exception):
    """The worker has nothing to do any more: the job is over, or its leader is elsewhere."""


@dataclass(slots=True)
class Pending:
    """A message that waits for its targets."""

    run: Run
    group: str
    #: Queues that have not confirmed it; those that have are not sent it again.
    waiting: set[int] = field(default_factory=set)
    confirmed: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    size: int = 0
    tries: int = 0
    again_s: float = 0.0


@dataclass(slots=True)
class Window:
    """One target: copies without an answer."""

    name: str
    messages: int = 0
    bytes: int = 0
    #: Since when it owes an answer; it has given up: what is for it stays.
    since_s: float = 0.0
    is_given_up: bool = False
    refuses: bool = False

    def is_slow(self, now_s: float) -> bool:
        """Tell whether other targets' messages go on without it."""
        return self.refuses or (self.messages > 0 and now_s - self.since_s >= SLOW_S)

    def has_room(self) -> bool:
        """Tell whether it takes another copy."""
        return self.messages < WINDOW_MESSAGES and self.bytes < WINDOW_BYTES


@dataclass(slots=True)
class _Chosen:
    """A message that is to be taken."""

    run: Run
    group: str
    way: Way | None


@dataclass(slots=True)
class _Slice:
    """What a look has found, and where the next one begins; None: it was at the queue's end."""

    chosen: list[_Chosen]
    place: Place | None
    #: A target that answers has no room: it is waited for.
    is_held_up: bool = False
    #: Messages of targets that do not answer, which stay for another pass.
    has_passed_over: bool = False


@dataclass(slots=True, frozen=True)
class _EachNumbered:
    """Gives each copy of a message a number of its own, in the order of its targets."""

    stream: ChannelStream

    def publish(self, queues: Sequence[Target], contents: list[Content], first: int) -> None:
        """See pipeline.Taker."""
        for number, queue in enumerate(queues, first):
            self.stream.publish([queue], contents, number)


class JobWorker:
    """State: what is on its way, windows, where the walk is.

    `term`: in which this member leads the queue; later ones have workers of their own.
    """

    def __init__(self, uid: int, term: int, channel: int, around: Around) -> None:
        """channel: of the worker's own."""
        self.uid = uid
        self.term = term
        self._around = around
        self._clock = asyncio.get_running_loop().time
        self._woken = asyncio.Event()
        self._is_stopped = False
        # A queue that is gone has not taken a message, also where it is in the catalog still.
        self._stream = around.client.open(
            channel, self._answered, is_numbered=False, gone_takes=False
        )
        self._views = MessageViews(around.queues.entry_data)
        self._views.limit(KEPT_BYTES)
        self._pending: dict[int, Pending] = {}
        #: By number of the copy: the message and the target.
        self._copies: dict[int, tuple[int, int]] = {}
        self._next_copy = 0
        self._windows: dict[int, Window] = {}
        self._gone: list[Range] = []
        self._staying: list[Range] = []
        #: An answer was lost: the queue may hold more than is known here.
        self._is_unsure = True
        self._progress: JobProgress | None = None
        self._filter: Filter | None = None
        self._copies_of: Copies | None = None
        self._rights: Access | None = None
        #: When the next message may go, by the rate.
        self._next_s = 0.0

    @property
    def status(self) -> JobStatus | None:
        """Return how far the job is; None before it has begun here."""
        if self._progress is None:
            return None
        status = self._progress.status
        status.held = len(self._pending)
        return status

    def wake(self) -> None:
        """Look at the job again."""
        self._woken.set()

    def stop(self) -> None:
        """End; the next leader's worker goes on."""
        self._is_stopped = True
        self._woken.set()

    async def run(self) -> None:
        """Work until the job is over, or this is stopped."""
        with contextlib.suppress(Ended, GroupGone):
            await self._work()
        self._stream.close()

    # ---- the job --------------------------------------------------------------------------------

    def _job(self) -> Job:
        """Return the job as the queue has it; Ended where it is not this worker's any more."""
        queues = self._around.queues
        if self._is_stopped or not queues.leads(self.uid):
            raise Ended
        job = queues.machine(self.uid).query_job()
        if job is None or (self._progress is not None and job.id != self._progress.status.id):
            raise Ended
        return job

    async def _work(self) -> None:
        job = self._job()
        queue = self._around.queues.queue_of(self.uid)
        if queue is None:
            raise Ended
        try:
            progress = self._progress = JobProgress(job)
            order = progress.order
            self._filter = compile_filter(order.filter) if order.filter else None
        except (ValueError, TypeError, KeyError) as error:
            log.warning("job %d of queue '%s' cannot be read: %s", job.id, queue.name, error)
            await self._end_unread(job, queue, str(error))
            return
        if order.kind is not JobKind.DELETE:
            around = self._around
            self._copies_of = Copies(around.routing, around.view, queue, order)
        log.info("job %d of queue '%s' goes on here", job.id, queue.name)
        while await self._walk():
            await self._until_room()
        await self._drain()
        self._count_not_ready()
        await self._end(queue)

    async def _end(self, queue: Queue) -> None:
        job, progress = self._job(), self._progress
        assert progress is not None
        state, why = JobState.DONE, ""
        if job.stopped_by is not None:
            state, why = JobState.STOPPED, f"stopped by user '{job.stopped_by}'"
        receipt = progress.receipt(state, why, self._around.clock_ms())
        await self._around.client.end_job(self.uid, job.id, self.term, receipt)
        status = progress.status
        outcome = {"sent": status.total.sent, "stayed": sum(status.total.stayed.values())}
        log.info("job %d of queue '%s' has ended: %s", job.id, queue.name, outcome)
        author = Author(job.user, "job", self._around.node)
        self._around.audit.write(author, job_ended(queue.vhost, queue.name, job.id, state, outcome))

    async def _end_unread(self, job: Job, queue: Queue, why: str) -> None:
        # What it holds is ready again; what is known of it is written down as it is.
        order = {"kind": "delete", "vhost": queue.vhost, "queue": queue.name, "to": "nowhere"}
        text = f"its order cannot be read here: {why}"[:1000]
        total = {"sent": job.gone}
        fields: dict[str, Any] = {"id": job.id, "order": order, "user": job.user, "total": total}
        fields |= {"state": "stopped", "why": text, "ended_ms": self._around.clock_ms()}
        fields |= {"started_ms": job.started_ms, "groups": {}}
        await self._around.client.end_job(self.uid, job.id, self.term, json.dumps(fields))

    # ---- the walk -------------------------------------------------------------------------------

    async def _walk(self) -> bool:
        """Go over the queue once; return whether something was passed over that may go now."""
        progress = self._progress
        assert progress is not None
        progress.begin_pass()
        place: Place | None = None
        has_passed_over = False
        while True:
            await self._gate()
            job = self._job()
            if job.stopped_by is not None:
                return False
            room = self._room()
            if not room:
                if progress.order.max and progress.status.total.sent >= progress.order.max:
                    return False
                await self._breathe(self._pause_s())
                continue
            found = await self._choose(job, place, room)
            place = found.place
            has_passed_over = has_passed_over or found.has_passed_over
            if found.chosen:
                await self._take(job, found.chosen)
            elif found.is_held_up:
                await self._breathe()
            else:
                await asyncio.sleep(REST_S)
            if place is None:
                return has_passed_over

    async def _until_room(self) -> None:
        """Wait until targets that others went ahead of have answered, or are given up."""
        while self._pending:
            now_s = self._clock()
            slow = [each for each in self._windows.values() if each.is_slow(now_s)]
            if all(window.is_given_up for window in slow):
                return
            await self._gate()
            if self._job().stopped_by is not None:
                return
            await self._breathe()
        for window in self._windows.values():
            window.refuses = False

    def _room(self) -> int:
        """Return how many messages may be taken now: by the window, the rate and the limit."""
        progress = self._progress
        assert progress is not None
        order = progress.order
        room = min(SLICE_MESSAGES, HELD_MAX - len(self._pending))
        if order.max:
            room = min(room, order.max - progress.status.total.sent - len(self._pending))
        if order.rate:
            now_s = self._clock()
            # What was not used is lost, but for one message or a tenth of a second.
            self._next_s = max(self._next_s, now_s - max(0.1, 1 / order.rate))
            room = min(room, int((now_s - self._next_s) * order.rate + 1e-6))
        return max(0, room)

    def _pause_s(self) -> float:
        """Return how long it takes until another message may go, by the rate."""
        assert self._progress is not None
        rate = self._progress.order.rate
        if not rate:
            return PAUSE_S
        return min(PAUSE_S, max(0.01, self._next_s + 1 / rate - self._clock()))

    async def _choose(self, job: Job, place: Place | None, room: int) -> _Slice:
        """Look at messages from a place on, up to SLICE_S while none is chosen."""
        progress = self._progress
        assert progress is not None
        found = _Slice([], place)
        size = 0
        wanted = Wanted(browse.READY, self._around.clock_ms())
        began_s = self._clock()
        while True:
            machine = self._around.queues.machine(self.uid)
            walked = browse.walk(machine, wanted, found.place, WALK_MESSAGES, WALK_SPANS)
            for browsed in walked.found:
                if len(found.chosen) >= room or size >= SLICE_BYTES:
                    found.place = browsed.place
                    return found
                if browsed.number >= job.end:
                    continue
                each = await self._look(browsed)
                if each is None:
                    continue
                if each.way is not None and (slow := self._is_held_up(each.way)) is not None:
                    if not slow:
                        # It answers: its messages keep their order.
                        found.place, found.is_held_up = browsed.place, True
                        return found
                    progress.status.looked_at += 1
                    found.has_passed_over = True
                    continue
                progress.status.looked_at += 1
                found.chosen.append(each)
                if each.way is not None:
                    size += len(each.way.content[2])
                    self._count_in(each.way)
            found.place = walked.place
            if found.place is None or self._clock() - began_s >= SLICE_S:
                return found

    def _is_held_up(self, way: Way) -> bool | None:
        """Say whether a target has no room: True if others need not wait for it; None: it has."""
        now_s = self._clock()
        windows = [self._window(queue) for queue in way.targets]
        if any(window.is_slow(now_s) for window in windows):
            return True
        return None if all(window.has_room() for window in windows) else False

    def _window(self, queue: Queue) -> Window:
        return self._windows.setdefault(queue.uid, Window(queue.name))

    def _count_in(self, way: Way) -> None:
        for queue in way.targets:
            window = self._window(queue)
            if not window.messages:
                window.since_s = self._clock()
            window.messages += 1
            window.bytes += len(way.content[2])

    def _count_out(self, uid: int, size: int) -> None:
        window = self._windows[uid]
        window.messages -= 1
        window.bytes -= size
        window.since_s = self._clock()

    async def _look(self, browsed: Browsed) -> _Chosen | None:
        """Return a message if it is to be taken; what stays is counted."""
        progress = self._progress
        assert progress is not None
        order = progress.order
        # It may have been settled, and its entry forgotten, between two turns.
        found = self._views.contents(self.uid, browsed.run)
        if found is None:
            return None
        message = self._message(browsed, found[0])
        if self._filter is not None:
            matches = self._filter.matches
            if self._filter.searches:
                is_meant = await asyncio.to_thread(matches, message)
            else:
                is_meant = matches(message)
            if not is_meant:
                progress.status.looked_at += 1
                return None
        group = ""
        if order.kind is JobKind.REDRIVE or order.group:
            group = fingerprint(history_of(message))
            if order.group and group != order.group:
                progress.status.looked_at += 1
                return None
        if self._copies_of is None:
            return _Chosen(browsed.run, group, None)
        way = self._way(self._copies_of, message, found[0])
        if isinstance(way, str):
            progress.status.looked_at += 1
            progress.stayed(group, way)
            return None
        return _Chosen(browsed.run, group, way)

    def _message(self, browsed: Browsed, content: Content) -> StoredMessage:
        run = browsed.run
        return StoredMessage(
            content,
            browsed.number,
            state=browsed.state,
            delivery_count=run.delivery_count,
            redelivered=run.acquired_count > 0 or run.delivery_count > 0,
            age_ms=max(0, self._around.clock_ms() - browsed.enqueued_ms),
        )

    def _way(self, copies: Copies, message: StoredMessage, content: Content) -> Way | str:
        way = copies.way(message, content)
        if isinstance(way, str):
            return way
        if not self._may_publish(way.address):
            return NO_RIGHT
        if any(self._window(queue).is_given_up for queue in way.targets):
            return REFUSED
        return way

    def _count_not_ready(self) -> None:
        """What consumers hold, or waits to be ready, stays."""
        progress, job = self._progress, self._job()
        assert progress is not None
        machine = self._around.queues.machine(self.uid)
        held, delayed = machine.query_not_ready(job.end)
        for name, count in (("unacked", held), ("delayed", delayed)):
            if count and not progress.order.filter and not progress.order.group:
                progress.status.total.stayed[NOT_READY[name]] = count

    # ---- rights and pauses ----------------------------------------------------------------------

    def _access(self, user: str) -> Access:
        access = self._rights
        if access is None:
            queue = self._around.queues.queue_of(self.uid)
            if queue is None:
                raise Ended
            access = self._rights = Identity(user).access(self._around.view, queue.vhost)
        return access

    def _may_publish(self, address: Address) -> bool:
        access = self._access(self._job().user)
        if access.check("write", "exchange", address.exchange) is not None:
            return False
        exchange = self._around.view.exchange(access.vhost, address.exchange)
        return access.check_topic("write", exchange, address.routing_keys) is None

    def _pause(self) -> str:
        """Return why nothing may be taken now, "" if it may."""
        around, job = self._around, self._job()
        if alarm := around.alarm():
            return f"an alarm is on: {alarm}"
        queue = around.queues.queue_of(self.uid)
        if queue is None:
            raise Ended
        if around.view.user(job.user) is None:
            return f"user '{job.user}' has been deleted"
        access = self._access(job.user)
        refused = access.check_vhost() or access.check("read", "queue", queue.name)
        progress = self._progress
        assert progress is not None
        order = progress.order
        if refused is None and order.to in (To.ORIGIN, To.QUEUE, To.EXCHANGE):
            refused = access.check("write", "exchange", order.target * (order.to is To.EXCHANGE))
        return "" if refused is None else refused.text

    async def _gate(self) -> None:
        """Settle what has been answered, send again what was refused; wait while there is a pause.
        Ended.
        """
        progress = self._progress
        assert progress is not None
        status = progress.status
        while True:
            await self._settle()
            if self._is_unsure:
                await self._adopt()
            self._send_again()
            job = self._job()
            if job.stopped_by is not None:
                status.state, status.why = JobState.STOPPING, ""
                return
            why = self._pause()
            if not why:
                status.state, status.why = JobState.RUNNING, ""
                return
            if status.why != why:
                log.warning("job %d of group %x waits: %s", job.id, self.uid, why)
            status.state, status.why = JobState.PAUSED, why
            await self._breathe()

    async def _breathe(self, pause_s: float = PAUSE_S) -> None:
        """Wait for an answer, a word, or so long."""
        self._woken.clear()
        if self._gone or self._staying:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(max(0.001, pause_s)):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _drain(self) -> None:
        """Wait until every message on its way has its answers."""
        progress = self._progress
        assert progress is not None
        status = progress.status
        until_s = self._clock() + STOP_S
        while self._pending or self._gone or self._staying or self._is_unsure:
            await self._gate()
            if self._job().stopped_by is not None:
                if self._clock() >= until_s:
                    for number, pending in list(self._pending.items()):
                        self._stay(number, pending, UNANSWERED)
            elif owing := self._owing():
                status.state, status.why = JobState.PAUSED, owing
            if self._pending:
                await self._breathe()

    def _owing(self) -> str:
        now_s = self._clock()
        for window in self._windows.values():
            if window.messages and not window.refuses and now_s - window.since_s >= 5 * SLOW_S:
                return f"queue '{window.name}' does not answer"
        return ""

    # ---- taking, sending, settling --------------------------------------------------------------

    async def _take(self, job: Job, chosen: list[_Chosen]) -> None:
        """Take these in hand and send them off."""
        progress, around = self._progress, self._around
        assert progress is not None
        ranges = normalize([(each.run.first, each.run.first + 1) for each in chosen])
        try:
            pairs = await around.client.take_for_job(self.uid, job.id, self.term, ranges)
        except Unavailable as error:
            around.routing.warn(f"a job of group {self.uid:x} waits: {error}")
            self._is_unsure = True
            pairs = []
        taken = {number for low, high in pairs for number in range(low, high)}
        if progress.order.rate:
            self._next_s += len(taken) / progress.order.rate
        for each in chosen:
            if each.run.first in taken:
                self._send_off(each)
            elif each.way is not None:
                # Somebody else was faster.
                for queue in each.way.targets:
                    self._count_out(queue.uid, len(each.way.content[2]))
        self._stream.flush()

    def _send_off(self, chosen: _Chosen) -> None:
        number, way = chosen.run.first, chosen.way
        if way is None:
            self._done(number, chosen.group)
            return
        pending = self._pending[number] = Pending(chosen.run, chosen.group)
        pending.size = len(way.content[2])
        pending.waiting = {queue.uid for queue in way.targets}
        self._send(pending, way, way.targets)

    def _send(self, pending: Pending, way: Way, targets: Sequence[Queue]) -> None:
        around, first = self._around, self._next_copy
        for number, queue in enumerate(targets, first):
            around.client.make_known(queue.uid, queue.members)
            self._copies[number] = (pending.run.first, queue.uid)
        self._next_copy += len(targets)
        pipeline.send_own(
            around.routing,
            _EachNumbered(self._stream),
            targets[0].vhost,
            way.result,
            [way.content],
            first,
            targets,
            is_again=pending.tries > 0,
        )

    def _answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        """See stream.Outcome: targets have taken copies over, or refused them."""
        for first, count, accepted in outcomes:
            for copy in range(first, first + count):
                number, uid = self._copies.pop(copy, (-1, 0))
                pending = self._pending.get(number)
                if pending is None:
                    continue
                self._count_out(uid, pending.size)
                pending.waiting.discard(uid)
                if copy < first + accepted:
                    pending.confirmed.add(uid)
                    self._windows[uid].refuses = False
                else:
                    pending.refused.add(uid)
                    self._windows[uid].refuses = True
                    at = min(pending.tries, len(RETRIES_S) - 1)
                    pending.again_s = self._clock() + RETRIES_S[at]
                if not pending.waiting and not pending.refused:
                    del self._pending[number]
                    self._done(number, pending.group)
        self._woken.set()

    def _done(self, number: int, group: str) -> None:
        assert self._progress is not None
        self._gone.append((number, number + 1))
        self._progress.sent(group)
        self._woken.set()

    def _stay(self, number: int, pending: Pending, reason: str) -> None:
        assert self._progress is not None
        del self._pending[number]
        for uid in pending.waiting:
            self._count_out(uid, pending.size)
        self._staying.append((number, number + 1))
        self._progress.stayed(pending.group, reason)

    def _send_again(self) -> None:
        """Send what was refused a while ago, where it goes now; or give its target up."""
        now_s = self._clock()
        due = [
            (number, pending)
            for number, pending in self._pending.items()
            if pending.refused and not pending.waiting and pending.again_s <= now_s
        ]
        for number, pending in due:
            pending.tries += 1
            if pending.tries > len(RETRIES_S):
                for uid in pending.refused:
                    self._windows[uid].is_given_up = True
            if any(self._windows[uid].is_given_up for uid in pending.refused):
                self._stay(number, pending, REFUSED)
                continue
            pending.refused.clear()
            way = self._way_again(pending)
            if isinstance(way, str):
                self._stay(number, pending, way)
                continue
            # Those that were deleted meanwhile are not waited for.
            left = [queue for queue in way.targets if queue.uid not in pending.confirmed]
            if not left:
                del self._pending[number]
                self._done(number, pending.group)
                continue
            pending.waiting = {queue.uid for queue in left}
            for queue in left:
                self._count_in(Way(way.address, way.content, way.result, (queue,)))
            self._send(pending, way, left)
        if due:
            self._stream.flush()

    def _way_again(self, pending: Pending) -> Way | str:
        copies = self._copies_of
        found = self._views.contents(self.uid, pending.run)
        if copies is None or found is None:
            return NO_ROUTE
        message = StoredMessage(found[0], pending.run.first)
        return self._way(copies, message, found[0])

    async def _adopt(self) -> None:
        """Send what the queue says the job holds, and this worker knows nothing of: of an earlier
        leader's, or taken by a command whose answer was lost.
        """
        self._is_unsure = False
        known = {low for low, _ in self._gone} | {low for low, _ in self._staying}
        for span in list(self._job().held):
            run = span.run()
            for at in range(run.length):
                single = run._replace(first=run.first + at, length=1, position=run.position + at)
                if single.first not in known and single.first not in self._pending:
                    self._adopt_one(single)
        self._stream.flush()
        await asyncio.sleep(0)

    def _adopt_one(self, run: Run) -> None:
        progress, copies = self._progress, self._copies_of
        assert progress is not None
        found = self._views.contents(self.uid, run)
        assert found is not None, "a message that a job holds is not in the log"
        message = StoredMessage(found[0], run.first)
        is_grouped = progress.order.kind is JobKind.REDRIVE or bool(progress.order.group)
        group = fingerprint(history_of(message)) if is_grouped else ""
        if copies is None:
            self._send_off(_Chosen(run, group, None))
            return
        way = self._way(copies, message, found[0])
        if isinstance(way, str):
            self._staying.append((run.first, run.first + 1))
            return
        self._count_in(way)
        self._send_off(_Chosen(run, group, way))

    async def _settle(self) -> None:
        """Tell the queue what is done with; what is not heard in time is said again."""
        gone, staying = self._gone, self._staying
        if not gone and not staying:
            return
        progress, job = self._progress, self._job()
        assert progress is not None
        self._gone, self._staying = [], []
        text = progress.save()
        args = (normalize(gone), normalize(staying), text)
        try:
            await self._around.client.settle_job(self.uid, job.id, self.term, *args)
            return
        except Unavailable as error:
            self._around.routing.warn(f"a job of group {self.uid:x} waits: {error}")
        self._gone += gone
        self._staying += staying
        await self._breathe()
