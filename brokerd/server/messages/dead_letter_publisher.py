"""Publishing dead letters: at most once as they come, at least once with confirms from all targets.

The queue machine decides who dies and why; dead_letter_headers.py makes the message that goes.  For
the at-least-once strategy a worker beside the leader settles only what every target has taken over
(R-ALO-4..7).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from brokerd.cluster.errors import GroupGone
from brokerd.core import annotations as message_annotations
from brokerd.core.annotations import Death
from brokerd.core.catalog import names
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.router import RouteResult
from brokerd.core.message import Content
from brokerd.core.queue import deaths, effects
from brokerd.core.queue.certificates import Certificate
from brokerd.core.queue.effects import Run
from brokerd.core.queue_options import QueueOptions
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.messages import delays, pipeline, ports, rerouting
from brokerd.server.messages.dead_letter_headers import record_death
from brokerd.server.queues import ports as queue_ports
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.stream import ChannelStream, Target

log = logging.getLogger(__name__)

#: R-ALO-4: dead_letter_worker_consumer_prefetch.
PREFETCH = 32
#: R-ALO-6: dead_letter_worker_publisher_confirm_timeout.
RETRY_S = 180.0
#: Of a queue in which an exchange keeps messages until they are due: many are due at once, and one
#: that its queue refuses comes soon again.
DUE_PREFETCH, DUE_RETRY_S = 1024, 2.0
#: Why messages that are due have not been handed on: the disk of a member is full, or a target
#: refuses them or does not answer.
DISK_ALARM, TARGET = "disk_alarm", "target"
#: All that a leader says; "": nothing keeps them, more are due than go out in a moment.
LATE_REASONS = ("", DISK_ALARM, TARGET)
#: After a majority was missing.
UNAVAILABLE_S = 5.0
#: R-DLX-32: lists of queues that were logged as a cycle; beyond this many no more are.
CYCLES_MAX = 1000
#: What a warning adds for letters that wait though the queue's settings no longer have it so.
_OLD_TERMS = (
    "; they wait under settings that the queue no longer has: make it, or give them up with "
    "brokerctl purge_queue --dead-letters"
)
#: What telemetry says of a message for which there is no letter.
DROPPED = "dropped"


@dataclass(slots=True)
class Pending:
    """One message that waits for its targets."""

    run: Run
    reason: str
    time_s: int
    #: Who had it; None: no consumer, or it is not said.
    certificate: Certificate | None = None
    #: Groups that have it: not sent there again in this worker's life (R-ALO-6).
    confirmed: set[int] = field(default_factory=set)
    #: It went off once, and is counted.
    is_sent: bool = False


@dataclass(slots=True, frozen=True)
class Addressed:
    """Where a letter goes now."""

    vhost: str
    result: RouteResult
    #: The message as it goes.
    content: Content
    #: Those of the route's queues that it goes to (R-ALO-8).
    targets: Sequence[Target] = ()
    #: Nothing takes it, and it is not kept for that.
    is_dropped: bool = False


#: A letter, where it goes, and the targets that do not have it yet.
Missing = tuple[Pending, Addressed, Sequence[Target]]


class DeadLetterPublisher:
    """At-most-once publishing of one member, and its at-least-once workers by queue."""

    def __init__(
        self,
        queues: queue_ports.Queues,
        client: QueueClient,
        routing: ports.Routing,
        sender: queue_ports.Sender,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        has_disk_alarm: Callable[[], bool] = lambda: False,
    ) -> None:
        """spawn(work) runs a worker until it has ended, or the member does.

        has_disk_alarm(): of any member; what exchanges keep is not handed on then.
        """
        self._queues = queues
        self._client = client
        self._routing = routing
        self._sender = sender
        self._spawn = spawn
        self._has_disk_alarm = has_disk_alarm
        self._workers: dict[int, Worker] = {}
        self._stream = client.open_at_most_once()
        self._cycles: set[tuple[str, ...]] = set()

    def reroute(self, uid: int, effect: effects.Reroute) -> None:
        """To the queue's alternate exchange (R-MQ-2)."""
        rerouting.reroute(self._queues, self._routing, self._stream, uid, effect)

    def log_cycle(self, cycling: list[str], history: list[Death]) -> None:
        """R-DLX-32: each list of queues once."""
        queues = cycling + [death.queue for death in history]
        if tuple(queues) in self._cycles or len(self._cycles) >= CYCLES_MAX:
            return
        self._cycles.add(tuple(queues))
        log.warning(
            "Message dropped because the following list of queues (ordered by death recency) "
            "contains a dead letter cycle without reason 'rejected'. This list will not be logged "
            "again: %s",
            queues,
        )

    def publish(self, uid: int, effect: effects.DeadLetter) -> None:
        """At most once: route and forget (R-DLX-4, -18, -19)."""
        routing, stream = self._routing, self._stream
        queue = self._queues.queue_of(uid)
        if queue is None:
            return
        for run in effect.runs:
            for content in self._queues.contents(uid, run):
                letter, result = record_death(
                    routing,
                    queue,
                    content,
                    reason=effect.reason,
                    time_s=effect.now_ms // 1000,
                    target=(effect.exchange, effect.routing_key),
                    run=run,
                    certificate=effect.certificate,
                )
                history = message_annotations.decode(letter[3]).deaths
                names = [target.name for target in result.queues]
                kept, cycling = deaths.without_cycles(names, history, effect.reason)
                if cycling:
                    self.log_cycle(cycling, history)
                targets = [target for target in result.queues if target.name in kept]
                self._make_known(targets)
                pipeline.send_own(routing, stream, queue.vhost, result, [letter], 1, targets)
                outcome = _outcome(result, bool(targets), bool(cycling))
                routing.counters.dead_lettered(
                    vhost=queue.vhost,
                    queue=queue.name,
                    reason=effect.reason,
                    dlx=effect.exchange,
                    routing_key=effect.routing_key or "",
                    strategy="at-most-once",
                    outcome=outcome,
                    n=1,
                    size_bytes=len(letter[2]),
                    targets=[target.name for target in targets],
                )
                self._give_up(queue, effect.reason, run, content, outcome)
                if not targets and not cycling:
                    self._unrouted(queue, effect.exchange, result)
        stream.flush()

    def _unrouted(self, queue: Queue, exchange: str, result: RouteResult) -> None:
        """R-DLX-18: letters without a route are dropped, counted, and logged once a minute."""
        self._routing.dropped.unrouted("dead_letter_unroutable")
        self._routing.warn(
            f"dead letters of queue '{queue.name}' in vhost '{queue.vhost}' are dropped: "
            f"exchange '{exchange}' "
            + ("does not exist" if result.exchange is None else "has no route for them")
        )

    def _make_known(self, targets: Sequence[Queue]) -> None:
        for target in targets:
            self._client.make_known(target.uid, target.members)

    def _addressed(self, uid: int, letter: Pending, options: QueueOptions) -> Addressed:
        """Return where a letter of a queue goes, and the message that goes there."""
        routing = self._routing
        content = self._queues.contents(uid, letter.run)[0]
        queue = self._queues.queue_of(uid)
        exchange, routing_key = options.letters_target()
        if queue is None or exchange is None:
            return Addressed("", RouteResult(None), content)
        if options.holds_delayed:
            return self._due(queue.vhost, exchange, content)
        target = (exchange, routing_key)
        dead, result = record_death(
            routing,
            queue,
            content,
            reason=letter.reason,
            time_s=letter.time_s,
            target=target,
            run=letter.run,
            certificate=letter.certificate,
        )
        history = message_annotations.decode(dead[3]).deaths
        names = [each.name for each in result.queues]
        kept, cycling = deaths.without_cycles(names, history, letter.reason)
        if cycling:
            # R-ALO-8: not there, but not dropped either.
            self.log_cycle(cycling, history)
        targets = tuple(each for each in result.queues if each.name in kept)
        if targets:
            self._make_known(targets)
            if not letter.is_sent:
                self._count(queue, letter, target, targets, len(dead[2]))
                self._give_up(queue, letter.reason, letter.run, content, "routed")
        elif not cycling:
            routing.warn(
                f"dead letters of queue '{queue.name}' in vhost '{queue.vhost}' wait: "
                f"exchange '{exchange}' "
                + ("does not exist" if result.exchange is None else "has no route for them")
                + ("" if options.at_least_once else _OLD_TERMS)
            )
        return Addressed(queue.vhost, result, dead, targets)

    def _due(self, vhost: str, exchange: str, content: Content) -> Addressed:
        """Return where a message goes that an exchange has kept until now."""
        handed_on, result = delays.due(self._routing, vhost, exchange, content)
        if not result.queues:
            # As anything without a route; it was confirmed long ago, and nobody takes it back.
            self._routing.dropped.unrouted("delayed_unroutable")
            self._routing.unroutable(vhost, exchange, result, 1)
        self._make_known(result.queues)
        return Addressed(vhost, result, handed_on, result.queues, not result.queues)

    def _count(
        self,
        queue: Queue,
        letter: Pending,
        to: tuple[str, str | None],
        targets: Sequence[Queue],
        size_bytes: int,
    ) -> None:
        """Tell the telemetry of a letter that goes off for the first time."""
        self._routing.counters.dead_lettered(
            vhost=queue.vhost,
            queue=queue.name,
            reason=letter.reason,
            dlx=to[0],
            routing_key=to[1] or "",
            strategy="at-least-once",
            outcome="routed",
            n=1,
            size_bytes=size_bytes,
            targets=[target.name for target in targets],
        )

    def _give_up(self, queue: Queue, reason: str, run: Run, content: Content, outcome: str) -> None:
        """Tell the telemetry what kind of message was given up for the delivery limit."""
        if reason == "delivery_limit":
            (_, routing_key), header, *_ = content
            poison = self._routing.counters.poison
            tries = run.acquired_count
            poison.given_up(queue.vhost, queue.name, tries, routing_key, header, outcome)

    def given_up(self, uid: int, effect: effects.GivenUp) -> None:
        """Tell the telemetry of messages that have no letter; their leader reads no more of them
        than it looks at.
        """
        queue = self._queues.queue_of(uid)
        if queue is None:
            return
        poison = self._routing.counters.poison
        for run in effect.runs:
            looks = min(run.length, poison.looks_left(queue.vhost, queue.name))
            contents = self._queues.contents(uid, run._replace(length=looks)) if looks else []
            for content in contents:
                self._give_up(queue, "delivery_limit", run, content, DROPPED)
            if unseen := run.length - len(contents):
                poison.unseen(queue.vhost, queue.name, run.acquired_count, unseen, DROPPED)

    def dropped(self, uid: int, effect: effects.Dropped) -> None:
        """Count and log messages that a purge, a setting or the queue's end took away."""
        queue = self._queues.queue_of(uid)
        vhost, name = ("", f"group={uid:x}") if queue is None else (queue.vhost, queue.name)
        self._routing.dropped.of_queue(vhost, name, effect.cause, effect.messages, effect.letters)

    def wake(self, uid: int) -> None:
        """There are dead letters of an at-least-once queue whose leader is here."""
        worker = self._workers.get(uid)
        if worker is None:
            queue = self._queues.queue_of(uid)
            pace, waits = DEFAULT_PACE, _never
            if queue is not None and names.is_delayed_queue(queue.name):
                pace, waits = Pace(DUE_PREFETCH, DUE_RETRY_S), self._has_disk_alarm
            worker = self._workers[uid] = Worker(
                uid,
                self._queues,
                self._client,
                channel=self._sender.next_uid(),
                counting=self._routing,
                addressed=partial(self._addressed, uid),
                pace=pace,
                waits=waits,
            )
            self._spawn(worker.run())
        worker.wake()

    def stop(self, uid: int) -> None:
        """The leader is elsewhere now, or the queue is gone."""
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.stop()

    def late_reason(self, uid: int) -> str:
        """Say why a queue that is led here has not handed on what is due: DISK_ALARM, TARGET, or ""
        where nothing keeps it from doing so.
        """
        if self._has_disk_alarm():
            return DISK_ALARM
        worker = self._workers.get(uid)
        return TARGET if worker is not None and worker.is_held_up else ""

    def topology_changed(self) -> None:
        """Something may be routable now: letters that no queue took are tried again."""
        for worker in self._workers.values():
            if worker.has_refused:
                worker.wake()


class Counting(ports.Counting, Protocol):
    """What counts letters, and logs why some wait."""

    def warn(self, text: str) -> None:
        """Log a warning, the same one now and then only."""
        ...


@dataclass(slots=True, frozen=True)
class Pace:
    """How many letters a worker has at once, and after how long it tries again."""

    prefetch: int = PREFETCH
    retry_s: float = RETRY_S


DEFAULT_PACE = Pace()


def _never() -> bool:
    return False


class Worker:
    """One at-least-once queue: checks letters out, publishes, settles after all confirms.

    `has_refused`: letters wait that had no route or were refused; `is_held_up`: of the last round
    some were left.
    """

    def __init__(
        self,
        uid: int,
        queues: queue_ports.Queues,
        client: QueueClient,
        channel: int,
        counting: Counting,
        addressed: Callable[[Pending, QueueOptions], Addressed],
        pace: Pace = DEFAULT_PACE,
        waits: Callable[[], bool] = _never,
    ) -> None:
        """channel: of the worker's own.

        addressed(letter, the queue's options) says where a letter goes now; waits(): nothing is to
        be published now.
        """
        self._uid = uid
        self._queues = queues
        self._client = client
        self._channel = channel
        self._counting = counting
        self._addressed = addressed
        self._pace = pace
        self._waits = waits
        self._woken = asyncio.Event()
        self._stopped = False
        self.has_refused = False
        self.is_held_up = False

    def wake(self) -> None:
        """Look for letters."""
        self._woken.set()

    def stop(self) -> None:
        """End; what is unsettled is published again by the next leader's worker (R-ALO-10)."""
        self._stopped = True
        self._woken.set()

    async def run(self) -> None:
        """Work until stopped or the queue is gone."""
        letters: list[Pending] = []
        while not self._stopped:
            self._woken.clear()
            pause_s = self._pace.retry_s
            try:
                if not self._waits():
                    letters, has_room = await self._settle_some(letters)
                    if has_room:
                        # And what was refused has been asked just now.
                        continue
            except GroupGone:
                return
            except Unavailable as error:
                self._counting.warn(f"dead letters of group {self._uid} wait: {error}")
                pause_s = UNAVAILABLE_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _settle_some(self, known: list[Pending]) -> tuple[list[Pending], bool]:
        """Work at letters for a round; return those that are left, and whether there is room for
        others.
        """
        letters = await self._checkout(known)
        # Before the round: what changes while it runs counts as changed after it.
        self.has_refused = bool(letters)
        left = await self._round(letters) if letters else []
        self.has_refused = self.is_held_up = bool(left)
        return left, len(left) < len(letters)

    async def _checkout(self, known: list[Pending]) -> list[Pending]:
        """Take letters up to the prefetch; return all that are taken, with what is known of them.

        Read from the leader's state, which is beside us: an answer that got lost loses no letter,
        and what a purge or another strategy has deleted meanwhile is not there (R-ALO-9).
        """
        queues = self._queues
        if not queues.leads(self._uid):
            # What is taken at another leader, its own worker would not get.
            return []
        prefetch = self._pace.prefetch
        if len(known) < prefetch:
            await self._client.take_dead_letters(self._uid, prefetch - len(known))
            if not queues.leads(self._uid):
                # The replica here may have gone with its leadership.
                return []
        by_number = {letter.run.first: letter for letter in known}
        found = []
        for taken in queues.machine(self._uid).query_letters_taken():
            run = taken.span.run()
            for i in range(run.length):
                single = run._replace(first=run.first + i, length=1, position=run.position + i)
                time_s = taken.time_ms // 1000
                fresh = Pending(single, taken.reason, time_s, taken.certificate)
                found.append(by_number.get(single.first, fresh))
        return found

    async def _round(self, letters: list[Pending]) -> list[Pending]:
        """Publish each letter to the targets that have not got it; settle those that all have, and
        one at least; return the others: none is dropped for want of a route (R-ALO-6) or for a
        cycle (R-ALO-8).
        """
        queues = self._queues
        if not queues.leads(self._uid):
            return []
        # R-ALO-9: pending ones follow a change of exchange or key.
        options = queues.machine(self._uid).options
        routed = [(letter, self._addressed(letter, options)) for letter in letters]
        missing: list[Missing] = []
        for letter, way in routed:
            if left := [each for each in way.targets if each.uid not in letter.confirmed]:
                missing.append((letter, way, left))
        await self._send(missing)
        settled: list[Pending] = []
        kept: list[Pending] = []
        for letter, way in routed:
            # R-ALO-7: who was deleted meanwhile is not waited for.
            waiting = [each.uid for each in way.targets if queues.queue_of(each.uid) is not None]
            is_taken = letter.confirmed and letter.confirmed.issuperset(waiting)
            (settled if is_taken or way.is_dropped else kept).append(letter)
        if settled and not self._stopped:
            ranges = [(letter.run.first, letter.run.first + 1) for letter in settled]
            await self._client.settle_dead_letters(self._uid, ranges)
        return kept

    async def _send(self, missing: list[Missing]) -> None:
        """Publish these, and note which targets have them when all have answered."""
        if not missing:
            return
        done = asyncio.Event()
        #: By number: each copy has one of its own, so that the answers say which target it was.
        copies = [(letter, target.uid) for letter, _, targets in missing for target in targets]
        open_count = len(copies)

        def outcome(outcomes: list[tuple[int, int, int]]) -> None:
            nonlocal open_count
            for first, count, accepted in outcomes:
                open_count -= count
                for letter, uid in copies[first : first + accepted]:
                    letter.confirmed.add(uid)
            if open_count <= 0:
                done.set()

        # Channel 0 is for at-most-once letters, which pass length limits (R-QQ-26); these must not.
        # A queue that is gone has not taken a letter, also where it is in the catalog still.
        stream = self._client.open(self._channel, outcome, is_numbered=False, gone_takes=False)
        taker = _EachNumbered(stream)
        number = 0
        for letter, way, targets in missing:
            pipeline.send_own(
                self._counting,
                taker,
                way.vhost,
                way.result,
                [way.content],
                number,
                targets,
                is_again=letter.is_sent,
            )
            letter.is_sent = True
            number += len(targets)
        stream.flush()
        try:
            async with asyncio.timeout(self._pace.retry_s):
                await done.wait()
        except TimeoutError:
            stream.close()


@dataclass(slots=True, frozen=True)
class _EachNumbered:
    """Gives each copy of a message a number of its own, in the order of its targets."""

    stream: ChannelStream

    def publish(self, queues: Sequence[Target], contents: list[Content], first: int) -> None:
        """See pipeline.Taker."""
        for number, queue in enumerate(queues, first):
            self.stream.publish([queue], contents, number)


def _outcome(result: RouteResult, is_taken: bool, is_cycling: bool) -> str:
    """Name what became of a dead letter (telemetry.md §6.6, event `dl`)."""
    if is_taken:
        return "routed"
    if is_cycling:
        return "cycle_dropped"
    return "dlx_missing" if result.exchange is None else "unroutable"
