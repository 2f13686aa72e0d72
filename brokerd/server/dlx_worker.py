"""Publishing dead letters: at most once as they come, at least once with confirms from all targets.

The queue machine decides who dies and why; burial.py makes the message that goes.  For the
at-least-once strategy a worker beside the leader settles only what every target has taken over
(R-ALO-4..7).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from brokerd.cluster.errors import GroupGone
from brokerd.core import annotations as message_annotations
from brokerd.core import deaths, effects, queue_commands
from brokerd.core.annotations import Death
from brokerd.core.catalog_objects import Queue
from brokerd.core.effects import Run
from brokerd.core.message import Content
from brokerd.core.queue_commands import QueueOptions
from brokerd.core.router import RouteResult
from brokerd.server import rerouting
from brokerd.server.burial import bury
from brokerd.server.catalog_writer import Unavailable
from brokerd.server.publishing import Publisher

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: R-ALO-4: dead_letter_worker_consumer_prefetch.
PREFETCH = 32
#: R-ALO-6: dead_letter_worker_publisher_confirm_timeout.
RETRY_S = 180.0
#: After a majority was missing.
UNAVAILABLE_S = 5.0
#: R-DLX-32: lists of queues that were logged as a cycle; beyond this many no more are.
CYCLES_MAX = 1000


class DeadLetterer:
    """At-most-once publishing of one member, and its at-least-once workers by queue."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._workers: dict[int, Worker] = {}
        self._publisher: Publisher | None = None
        self._cycles: set[tuple[str, ...]] = set()

    def _at_most_once(self) -> Publisher:
        broker = self._broker
        if self._publisher is None:
            self._publisher = Publisher(
                broker.groups, broker.node, broker.incarnation, 0, _forget, deduplicate=False
            )
        return self._publisher

    def reroute(self, uid: int, effect: effects.Reroute) -> None:
        """To the queue's alternate exchange (R-MQ-2)."""
        rerouting.reroute(self._broker, self._at_most_once(), uid, effect)

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
        broker = self._broker
        queue = broker.queue_of(uid)
        if queue is None:
            return
        publisher = self._at_most_once()
        for run in effect.runs:
            for content in broker.contents(uid, run):
                letter, result = bury(
                    broker,
                    queue,
                    content,
                    effect.reason,
                    effect.now_ms // 1000,
                    (effect.exchange, effect.routing_key),
                    run.delivery_count,
                )
                history = message_annotations.decode(letter[3]).deaths
                names = [target.name for target in result.queues]
                kept, cycling = deaths.without_cycles(names, history, effect.reason)
                if cycling:
                    self.log_cycle(cycling, history)
                targets = [target for target in result.queues if target.name in kept]
                broker.counters.internal_published(
                    queue.vhost, effect.exchange, result, 1, len(letter[2]), len(targets)
                )
                broker.counters.dead_lettered(
                    queue.vhost,
                    queue.name,
                    effect.reason,
                    effect.exchange,
                    effect.routing_key or "",
                    "at-most-once",
                    _outcome(result, bool(targets), bool(cycling)),
                    1,
                    len(letter[2]),
                )
                if targets:
                    publisher.add(targets, [letter], 1)
        publisher.flush()

    def wake(self, uid: int) -> None:
        """There are dead letters of an at-least-once queue whose leader is here."""
        worker = self._workers.get(uid)
        if worker is None:
            worker = self._workers[uid] = Worker(self._broker, uid)
            self._broker.spawn(worker.run())
        worker.wake()

    def stop(self, uid: int) -> None:
        """The leader is elsewhere now, or the queue is gone."""
        worker = self._workers.pop(uid, None)
        if worker is not None:
            worker.stop()

    def topology_changed(self) -> None:
        """Something may be routable now: letters that nobody took are tried again."""
        for worker in self._workers.values():
            if worker.has_refused:
                worker.wake()


@dataclass(slots=True)
class Letter:
    """One message that waits for its targets."""

    run: Run
    reason: str
    time_s: int
    #: Groups that have it: not sent there again in this worker's life (R-ALO-6).
    confirmed: set[int] = field(default_factory=set)


class Worker:
    """One at-least-once queue: checks letters out, publishes, settles after all confirms.

    `has_refused`: letters wait that had no route or were refused.
    """

    def __init__(self, broker: Broker, uid: int) -> None:
        self._broker = broker
        self._uid = uid
        self._woken = asyncio.Event()
        self._stopped = False
        self.has_refused = False
        self._channel = broker.next_uid()

    def wake(self) -> None:
        """Look for letters."""
        self._woken.set()

    def stop(self) -> None:
        """End; what is unsettled is published again by the next leader's worker (R-ALO-10)."""
        self._stopped = True
        self._woken.set()

    async def run(self) -> None:
        """Work until stopped or the queue is gone."""
        letters: list[Letter] = []
        while not self._stopped:
            self._woken.clear()
            pause_s = RETRY_S
            try:
                letters = await self._checkout(letters)
                # Before the round: what changes while it runs counts as changed after it.
                self.has_refused = bool(letters)
                left = await self._round(letters) if letters else []
                self.has_refused = bool(left)
                if len(left) < len(letters):
                    # There is room for more, and what was refused has been asked just now.
                    letters = left
                    continue
            except GroupGone:
                return
            except Unavailable as error:
                self._broker.warn(f"dead letters of group {self._uid} wait: {error}")
                pause_s = UNAVAILABLE_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _checkout(self, known: list[Letter]) -> list[Letter]:
        """Take letters up to PREFETCH; return all that are taken, with what is known of them.

        Read from the leader's state, which is beside us: an answer that got lost loses no letter,
        and what a purge or another strategy has deleted meanwhile is not there (R-ALO-9).
        """
        broker = self._broker
        if not broker.leads(self._uid):
            # What is taken at another leader, its own worker would not get.
            return []
        if len(known) < PREFETCH:
            command = queue_commands.encode_dead_letters_checkout(PREFETCH - len(known))
            await broker.ask_queue(self._uid, command)
        by_number = {letter.run.first: letter for letter in known}
        found = []
        for taken in broker.machine(self._uid).letters.held():
            run = taken.span.run()
            for i in range(run.length):
                single = run._replace(first=run.first + i, length=1, position=run.position + i)
                fresh = Letter(single, taken.reason, taken.time_ms // 1000)
                found.append(by_number.get(single.first, fresh))
        return found

    async def _round(self, letters: list[Letter]) -> list[Letter]:
        """Publish each letter to the targets that have not got it; settle those that all have, and
        one at least; return the others: none is dropped for want of a route (R-ALO-6) or for a
        cycle (R-ALO-8).
        """
        broker = self._broker
        if not broker.leads(self._uid):
            return []
        # R-ALO-9: pending ones follow a change of exchange or key.
        options = broker.machine(self._uid).options
        routed = [(letter, *self._addressed(letter, options)) for letter in letters]
        missing = [
            (letter, target, content)
            for letter, targets, content in routed
            for target in targets
            if target.uid not in letter.confirmed
        ]
        await self._send(missing)
        settled: list[Letter] = []
        kept: list[Letter] = []
        for letter, targets, _ in routed:
            # R-ALO-7: who was deleted meanwhile is not waited for.
            waiting = [each.uid for each in targets if broker.queue_of(each.uid) is not None]
            is_taken = letter.confirmed and letter.confirmed.issuperset(waiting)
            (settled if is_taken else kept).append(letter)
        if settled and not self._stopped:
            ranges = [(letter.run.first, letter.run.first + 1) for letter in settled]
            command = queue_commands.encode_dead_letters_settle(ranges)
            await broker.ask_queue(self._uid, command)
        return kept

    def _addressed(
        self, letter: Letter, options: QueueOptions
    ) -> tuple[tuple[Queue, ...], Content]:
        """Return where a letter goes, and the message that goes there."""
        broker = self._broker
        content = broker.contents(self._uid, letter.run)[0]
        queue = broker.queue_of(self._uid)
        exchange = options.dead_letter_exchange
        if queue is None or exchange is None:
            return (), content
        target = (exchange, options.dead_letter_routing_key)
        count = letter.run.delivery_count
        buried, result = bury(broker, queue, content, letter.reason, letter.time_s, target, count)
        history = message_annotations.decode(buried[3]).deaths
        names = [each.name for each in result.queues]
        kept, cycling = deaths.without_cycles(names, history, letter.reason)
        if cycling:
            # R-ALO-8: not there, but not dropped either.
            broker.dead_letterer.log_cycle(cycling, history)
        targets = tuple(each for each in result.queues if each.name in kept)
        if targets:
            size = len(buried[2])
            broker.counters.internal_published(queue.vhost, exchange, result, 1, size, len(targets))
        elif not cycling:
            broker.warn(
                f"dead letters of queue '{queue.name}' in vhost '{queue.vhost}' wait: "
                f"exchange '{exchange}' "
                + ("does not exist" if result.exchange is None else "has no route for them")
            )
        return targets, buried

    async def _send(self, copies: list[tuple[Letter, Queue, Content]]) -> None:
        """Publish these, and note which targets have them when all have answered."""
        if not copies:
            return
        broker = self._broker
        done = asyncio.Event()
        open_count = len(copies)

        def outcome(outcomes: list[tuple[int, int, int]]) -> None:
            nonlocal open_count
            for first, count, accepted in outcomes:
                open_count -= count
                for letter, target, _ in copies[first : first + accepted]:
                    # A queue that is gone counts as having taken it (R-PC-7), but not here.
                    if broker.queue_of(target.uid) is not None:
                        letter.confirmed.add(target.uid)
            if open_count <= 0:
                done.set()

        # Channel 0 is for at-most-once letters, which pass length limits (R-QQ-26); these must not.
        publisher = Publisher(
            broker.groups,
            broker.node,
            broker.incarnation,
            self._channel,
            outcome,
            deduplicate=False,
        )
        for number, (_, target, content) in enumerate(copies):
            publisher.add([target], [content], number)
        publisher.flush()
        try:
            async with asyncio.timeout(RETRY_S):
                await done.wait()
        except TimeoutError:
            publisher.close()


def _forget(_: list[tuple[int, int, int]]) -> None:
    """Nobody waits for at-most-once dead letters."""


def _outcome(result: RouteResult, is_taken: bool, is_cycling: bool) -> str:
    """Name what became of a dead letter (telemetry.md section 6.6, event `dl`)."""
    if is_taken:
        return "routed"
    if is_cycling:
        return "cycle_dropped"
    return "dlx_missing" if result.exchange is None else "unroutable"
