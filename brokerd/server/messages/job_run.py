"""One life of a job at its leader: looks for messages, takes them, and has them sent.

It walks over the ready messages in slices, takes by number those that the order means, and tells
the queue what has become of them.  What is on its way is job_sending.py's; the beginning and the
end are job_worker.py's.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.catalog_state import CatalogState
from brokerd.core.catalog.identity import Identity
from brokerd.core.filters.message_filter import Filter, compile_filter
from brokerd.core.message import Content
from brokerd.core.queue import browse
from brokerd.core.queue.browse import Browsed, Place, Wanted
from brokerd.core.queue.effects import Run
from brokerd.core.queue.queue_jobs import Job
from brokerd.core.ranges import normalize
from brokerd.core.triage.gates import CANARY_WAITS
from brokerd.core.triage.groups import fingerprint
from brokerd.core.triage.histories import history_of
from brokerd.core.triage.jobs import JobKind, JobState, To
from brokerd.server.catalog.audit import Audit
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.messages import ports
from brokerd.server.messages.job_copies import NO_ROUTE, Address, Copies, Way
from brokerd.server.messages.job_gates import JobGates
from brokerd.server.messages.job_outcomes import Asking
from brokerd.server.messages.job_progress import JobProgress
from brokerd.server.messages.job_sending import REFUSED, Sending
from brokerd.server.messages.message_view import StoredMessage
from brokerd.server.queues import ports as queue_ports
from brokerd.server.queues.bodies import MessageViews
from brokerd.server.queues.client import QueueClient

log = logging.getLogger(__name__)

#: Messages that one command takes, and bytes of their copies, behind which a slice ends.
SLICE_MESSAGES = 256
SLICE_BYTES = 4 * 1024 * 1024
#: Seconds of the loop that a slice is looked at without a rest, messages and spans of one walk.
SLICE_S = 0.002
WALK_MESSAGES = 64
WALK_SPANS = 500
#: Between two slices in which nothing was chosen: others have the loop, and the log's thread the
#: interpreter (loop/chunks.py).
REST_S = 0.001
#: Entries of the log that are kept parsed: messages of one entry stand together.
KEPT_BYTES = 1024 * 1024
#: Messages that are held at once; the queue holds no more than queue_jobs.HELD_MAX.
HELD_MAX = 2_048
#: How long what is on its way is waited for when a job is stopped: after that it is ready again.
STOP_S = 30.0
#: Between two looks at what a pause is for, and after a majority was missing.
PAUSE_S = 0.5
UNANSWERED = "stopped while on its way"
WITH_A_CONSUMER, DELAYED = "with a consumer", "waits for a delayed retry"
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
    #: Says what became of copies.
    outcomes: Asking


class Ended(Exception):
    """The worker has nothing to do any more: the job is over, or its leader is elsewhere."""


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
    #: How many of each group are in `chosen`.
    groups: Counter[str] = field(default_factory=Counter)


class JobRun:
    """State: how far the job is, where the walk is, what it may.

    `status` tells it.  In one piece: walk, taking and settling share what is on its way, what the
    queue may hold beyond it, and the pauses.
    """

    def __init__(
        self, uid: int, term: int, channel: int, around: Around, job: Job, source: Queue
    ) -> None:
        """term: in which this member leads the queue.  ValueError, KeyError or TypeError for an
        order that cannot be read: a later release's.
        """
        self.uid = uid
        self._term = term
        self._around = around
        self._woken = asyncio.Event()
        self._is_stopped = False
        self._clock = asyncio.get_running_loop().time
        progress = self.progress = JobProgress(job)
        order = self._order = progress.order
        self._filter: Filter | None = compile_filter(order.filter) if order.filter else None
        self._copies: Copies | None = None
        if order.kind is not JobKind.DELETE:
            self._copies = Copies(around.routing, around.view, source, order, job.id)
        self.sending = Sending(around.client, around.routing, channel, progress, self._woken.set)
        self._gates = JobGates(around.outcomes, self.uid, progress, self.sending, self._woken.set)
        self._views = MessageViews(around.queues.entry_data)
        self._views.limit(KEPT_BYTES)
        self._rights = Identity(job.user).access(around.view, source.vhost)
        #: An answer was lost: the queue may hold more than is known here.
        self._is_unsure = True
        #: When the next message may go, by the rate.
        self._next_s = 0.0

    def wake(self) -> None:
        """Look at the job again."""
        self._woken.set()

    def stop(self) -> None:
        """End; the next leader's worker goes on."""
        self._is_stopped = True
        self._woken.set()

    def job(self) -> Job:
        """Return the job as the queue has it; Ended where it is not this worker's any more."""
        queues = self._around.queues
        if self._is_stopped or not queues.leads(self.uid):
            raise Ended
        job = queues.machine(self.uid).query_job()
        if job is None or job.id != self.progress.status.id:
            raise Ended
        return job

    async def go(self) -> None:
        """Work until all that the job covers has been looked at, and nothing is on its way; Ended,
        GroupGone.
        """
        gates = self._gates
        await gates.look()
        watching = asyncio.create_task(gates.watch())
        try:
            while True:
                changes = gates.changes
                has_passed_over = await self._walk()
                if not (has_passed_over or gates.waiting):
                    break
                if not await self._wait_to_walk(changes, has_passed_over):
                    break
            await self._drain()
        finally:
            watching.cancel()
        await asyncio.wait([watching])
        await gates.look()
        self._count_not_ready()

    async def _wait_to_walk(self, changes: int, has_passed_over: bool) -> bool:
        """Wait until something that stayed for another pass may go, or stays for good; False: the
        job has been stopped.

        changes: of the gates when the last pass began.  has_passed_over: messages of slow targets.
        """
        gates, sending = self._gates, self.sending
        while changes == gates.changes and (not has_passed_over or sending.waits_for_slow()):
            await self._gate()
            if self.job().stopped_by is not None:
                return False
            status = self.progress.status
            if gates.waiting and status.state is JobState.RUNNING:
                status.why = gates.why()
            await self.breathe()
        return True

    # ---- the walk -------------------------------------------------------------------------------

    async def _walk(self) -> bool:
        """Go over the queue once; return whether messages of slow targets were passed over."""
        self.progress.begin_pass()
        self._gates.begin_pass()
        place: Place | None = None
        has_passed_over = False
        while True:
            await self._gate()
            job = self.job()
            room = self._room()
            is_full = self._order.max and self.progress.status.total.sent >= self._order.max
            if job.stopped_by is not None or is_full:
                # No other pass: nothing waits for one.
                self._gates.begin_pass()
                return False
            if not room:
                await self.breathe(self._pause_s())
                continue
            found = await self._choose(job, place, room)
            place = found.place
            has_passed_over = has_passed_over or found.has_passed_over
            if found.chosen:
                await self._take(job, found.chosen)
            elif found.is_held_up:
                await self.breathe()
            else:
                await asyncio.sleep(REST_S)
            if place is None:
                return has_passed_over

    def _room(self) -> int:
        """Return how many messages may be taken now: by the window, the rate and the limit."""
        order, pending = self._order, self.sending.count
        room = min(SLICE_MESSAGES, HELD_MAX - pending)
        if order.max:
            room = min(room, order.max - self.progress.status.total.sent - pending)
        if order.rate:
            now_s = self._clock()
            # What was not used is lost, but for one message or a tenth of a second.
            self._next_s = max(self._next_s, now_s - max(0.1, 1 / order.rate))
            room = min(room, int((now_s - self._next_s) * order.rate + 1e-6))
        return max(0, room)

    def _pause_s(self) -> float:
        """Return how long it takes until another message may go, by the rate."""
        rate = self._order.rate
        if not rate:
            return PAUSE_S
        return min(PAUSE_S, max(0.01, self._next_s + 1 / rate - self._clock()))

    async def _choose(self, job: Job, place: Place | None, room: int) -> _Slice:
        """Look at messages from a place on, for SLICE_S."""
        found = _Slice([], place)
        size = 0
        wanted = Wanted(browse.READY, self._around.clock_ms())
        until_s = self._clock() + SLICE_S
        while True:
            machine = self._around.queues.machine(self.uid)
            walked = browse.walk(machine, wanted, found.place, WALK_MESSAGES, WALK_SPANS)
            for browsed in walked.found:
                is_full = len(found.chosen) >= room or size >= SLICE_BYTES
                if is_full or (browsed is not walked.found[0] and self._clock() >= until_s):
                    found.place = browsed.place
                    return found
                if browsed.number >= job.end:
                    continue
                each = await self._look(browsed, found)
                if each is not None:
                    held_up = (
                        None if each.way is None else self.sending.windows.is_held_up(each.way)
                    )
                    if held_up is False:
                        # It answers: its messages keep their order.
                        found.place, found.is_held_up = browsed.place, True
                        return found
                    if held_up:
                        found.has_passed_over = True
                    else:
                        found.chosen.append(each)
                        found.groups[each.group] += 1
                        if each.way is not None:
                            size += len(each.way.content[2])
                            self.sending.windows.reserve(each.way)
                self.progress.status.looked_at += 1
            found.place = walked.place
            if found.place is None or self._clock() >= until_s:
                return found

    async def _look(self, browsed: Browsed, slice_: _Slice) -> _Chosen | None:
        """Return a message if it is to be taken; what stays is counted."""
        # It may have been settled, and its entry forgotten, between two turns.
        found = self._views.contents(self.uid, browsed.run)
        if found is None:
            return None
        run = browsed.run
        message = StoredMessage(
            found[0],
            browsed.number,
            state=browsed.state,
            delivery_count=run.delivery_count,
            redelivered=run.acquired_count > 0 or run.delivery_count > 0,
            age_ms=max(0, self._around.clock_ms() - browsed.enqueued_ms),
        )
        if self._filter is not None:
            matches = self._filter.matches
            if self._filter.searches:
                is_meant = await asyncio.to_thread(matches, message)
            else:
                is_meant = matches(message)
            if not is_meant:
                return None
        group = self._group_of(message)
        if group is None:
            return None
        if self._copies is None:
            return _Chosen(run, group, None)
        way = self._gates.stays(group) or self._way(self._copies, message, found[0], group)
        if isinstance(way, str):
            self.progress.stayed(group, way)
            return None
        if self._gates.waits(group, slice_.groups):
            self.progress.stayed(group, CANARY_WAITS)
            return None
        return _Chosen(run, group, way)

    def _group_of(self, message: StoredMessage) -> str | None:
        """Return the name under which a message is counted, "" where groups are not told apart;
        None: it is of a group that is not meant.
        """
        order = self._order
        if order.kind is not JobKind.REDRIVE and not order.group:
            return ""
        group = fingerprint(history_of(message))
        if order.group and group != order.group:
            return None
        return self.progress.name_of(group)

    def _way(
        self, copies: Copies, message: StoredMessage, content: Content, group: str
    ) -> Way | str:
        way = copies.way(message, content, group)
        if isinstance(way, str):
            return way
        if not self._may_publish(way.address):
            return NO_RIGHT
        return REFUSED if self.sending.is_given_up(way) else way

    def _count_not_ready(self) -> None:
        """What consumers hold, or waits to be ready, stays; which of it was meant, is not known."""
        if self._order.filter or self._order.group or self._order.max:
            return
        machine = self._around.queues.machine(self.uid)
        held, delayed = machine.query_not_ready(self.job().end)
        stayed = self.progress.status.total.stayed
        stayed |= {reason: n for reason, n in ((WITH_A_CONSUMER, held), (DELAYED, delayed)) if n}

    # ---- rights and pauses ----------------------------------------------------------------------

    def _may_publish(self, address: Address) -> bool:
        access = self._rights
        if access.check("write", "exchange", address.exchange) is not None:
            return False
        exchange = self._around.view.exchange(access.vhost, address.exchange)
        return access.check_topic("write", exchange, address.routing_keys) is None

    def _pause(self, user: str) -> str:
        """Return why nothing may be taken now, "" if it may."""
        around, order, access = self._around, self._order, self._rights
        if alarm := around.alarm():
            return f"an alarm is on: {alarm}"
        if around.view.user(user) is None:
            return f"user '{user}' has been deleted"
        refused = access.check_vhost() or access.check("read", "queue", order.queue)
        if refused is None and order.to in (To.ORIGIN, To.QUEUE, To.EXCHANGE):
            exchange = order.target if order.to is To.EXCHANGE else ""
            refused = access.check("write", "exchange", exchange)
        return "" if refused is None else refused.text

    async def _gate(self) -> None:
        """Settle what has been answered, send again what was refused; wait while there is a pause.
        Ended.
        """
        status = self.progress.status
        while True:
            await self._settle()
            if self._is_unsure:
                self._adopt()
            self.sending.send_again(self._way_again)
            job = self.job()
            if job.stopped_by is not None:
                status.state, status.why = JobState.STOPPING, ""
                return
            why = self._pause(job.user)
            if not why:
                status.state, status.why = JobState.RUNNING, ""
                return
            if status.why != why:
                log.warning("job %d of queue '%s' waits: %s", job.id, self._order.queue, why)
            status.state, status.why = JobState.PAUSED, why
            await self.breathe()

    async def breathe(self, pause_s: float = PAUSE_S) -> None:
        """Wait for an answer, a word, or so long."""
        self._woken.clear()
        if self.sending.has_answers:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(max(0.001, pause_s)):
                await self._woken.wait()
        except TimeoutError:
            return

    async def _drain(self) -> None:
        """Wait until every message on its way has its answers."""
        status = self.progress.status
        until_s = self._clock() + STOP_S
        while self._is_unsure or not self.sending.is_done:
            await self._gate()
            if self.job().stopped_by is not None:
                if self._clock() >= until_s:
                    self.sending.give_up(UNANSWERED)
            elif silent := self.sending.windows.silent():
                status.state = JobState.PAUSED
                status.why = f"queue '{silent}' does not answer"
            if self.sending.count:
                await self.breathe()

    # ---- taking and settling --------------------------------------------------------------------

    async def _take(self, job: Job, chosen: list[_Chosen]) -> None:
        """Take these in hand and send them off."""
        around = self._around
        ranges = normalize([(each.run.first, each.run.first + 1) for each in chosen])
        try:
            pairs = await around.client.take_for_job(self.uid, job.id, self._term, ranges)
        except Unavailable as error:
            self._warn(error)
            self._is_unsure = True
            pairs = []
        taken = {number for low, high in pairs for number in range(low, high)}
        if self._order.rate:
            self._next_s += len(taken) / self._order.rate
        for each in chosen:
            if each.run.first in taken:
                self.sending.send_off(each.run, each.group, each.way)
            elif each.way is not None:
                # Somebody else was faster.
                self.sending.windows.release(each.way)
        self.sending.flush()

    def _warn(self, error: Unavailable) -> None:
        self._around.routing.warn(f"a job of queue '{self._order.queue}' waits: {error}")

    def _way_again(self, run: Run) -> Way | str:
        found = self._views.contents(self.uid, run)
        if self._copies is None or found is None:
            return NO_ROUTE
        message = StoredMessage(found[0], run.first)
        return self._way(self._copies, message, found[0], self._group_of(message) or "")

    def _adopt(self) -> None:
        """Send what the queue says the job holds, and this worker knows nothing of: of an earlier
        leader's, or taken by a command whose answer was lost.
        """
        self._is_unsure = False
        for span in list(self.job().held):
            run = span.run()
            for at in range(run.length):
                single = run._replace(first=run.first + at, length=1, position=run.position + at)
                if not self.sending.knows(single.first):
                    self._adopt_one(single)
        self.sending.flush()

    def _adopt_one(self, run: Run) -> None:
        found = self._views.contents(self.uid, run)
        assert found is not None, "a message that a job holds is not in the log"
        message = StoredMessage(found[0], run.first)
        group = self._group_of(message) or ""
        way = None
        if self._copies is not None:
            way = self._way(self._copies, message, found[0], group)
        if isinstance(way, str):
            # The walk comes to it, and counts it.
            self.sending.put_back(run.first)
            return
        if way is not None:
            self.sending.windows.reserve(way)
        self.sending.send_off(run, group, way)

    async def _settle(self) -> None:
        """Tell the queue what is done with; what is not heard in time is said again."""
        changes = self._gates.changes
        if not self.sending.has_answers and changes == self._gates.told:
            return
        job, (gone, staying) = self.job(), self.sending.take_answers()
        text = self.progress.save()
        ranges = normalize(gone), normalize(staying)
        try:
            await self._around.client.settle_job(self.uid, job.id, self._term, *ranges, text)
        except Unavailable as error:
            self._warn(error)
            self.sending.give_answers_back(gone, staying)
            return
        self._gates.told = changes
