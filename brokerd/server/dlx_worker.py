"""Publishing dead letters: at most once as they come, at least once with confirms from all targets.

The queue machine decides who dies and why; here headers are rendered (R-DLX-21..25), the dead
letter exchange routes, and, for the at-least-once strategy, a worker beside the leader settles only
what every target has taken over (R-ALO-4..6).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp import properties
from brokerd.amqp.values import Table, Timestamp
from brokerd.cluster.errors import GroupGone
from brokerd.core import annotations as message_annotations
from brokerd.core import deaths, effects, queue_commands
from brokerd.core.catalog_objects import Queue
from brokerd.core.confirms import Confirms
from brokerd.core.message import Content
from brokerd.core.router import RouteResult
from brokerd.server.publishing import Publisher

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

log = logging.getLogger(__name__)

#: R-ALO-4: dead_letter_worker_consumer_prefetch.
PREFETCH = 32
#: R-ALO-6: dead_letter_worker_publisher_confirm_timeout.
RETRY_S = 180.0


class DeadLetterer:
    """At-most-once publishing of one member, and its at-least-once workers by queue."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._workers: dict[int, Worker] = {}
        self._publisher: Publisher | None = None

    def publish(self, uid: int, effect: effects.DeadLetter) -> None:
        """At most once: route and forget (R-DLX-4, -18, -19)."""
        broker = self._broker
        queue = broker.queue_of(uid)
        if queue is None:
            return
        publisher = self._publisher
        if publisher is None:
            publisher = self._publisher = Publisher(
                broker.groups, broker.node, broker.incarnation, 0, _forget, deduplicate=False
            )
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
                    broker.warn(
                        "Message dropped because the following list of queues (ordered by death "
                        "recency) contains a dead letter cycle without reason 'rejected': "
                        f"{cycling + [death.queue for death in history]}"
                    )
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


class Worker:
    """One at-least-once queue: checks letters out, publishes, settles after all confirms.

    `_unsettled` holds what is published and not confirmed by everyone, by message number.
    """

    def __init__(self, broker: Broker, uid: int) -> None:
        self._broker = broker
        self._uid = uid
        self._woken = asyncio.Event()
        self._stopped = False
        #: True while letters wait that had no route or were refused.
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
        retry: list[dict[str, Any]] = []
        while not self._stopped:
            self._woken.clear()
            try:
                fresh = await self._checkout(PREFETCH - len(retry))
                letters = retry + fresh
                # Before the round: what changes while it runs counts as changed after it.
                self.has_refused = bool(letters)
                retry = await self._round(letters) if letters else []
                self.has_refused = bool(retry)
            except GroupGone:
                return
            if fresh and not retry:
                continue
            try:
                async with asyncio.timeout(RETRY_S):
                    await self._woken.wait()
            except TimeoutError:
                continue

    async def _checkout(self, count: int) -> list[dict[str, Any]]:
        if count <= 0:
            return []
        command = queue_commands.encode_dead_letters_checkout(count)
        fields = queue_commands.decode_reply(await self._broker.ask_queue(self._uid, command))
        target = (fields.get("exchange"), fields.get("routing_key"))
        return [{**letter, "target": target} for letter in fields.get("letters", [])]

    async def _round(self, letters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Publish each letter; settle those that all targets took; return the others."""
        outcomes = await asyncio.gather(*(self._publish(letter) for letter in letters))
        taken = [
            (run.first, run.first + run.length)
            for letter, is_taken in zip(letters, outcomes, strict=True)
            if is_taken
            for run in [queue_commands.run_of(letter["run"])]
        ]
        if taken and not self._stopped:
            command = queue_commands.encode_dead_letters_settle(taken)
            await self._broker.ask_queue(self._uid, command)
        return [letter for letter, is_taken in zip(letters, outcomes, strict=True) if not is_taken]

    async def _publish(self, letter: dict[str, Any]) -> bool:
        """Publish the messages of one letter; True when every target of each has confirmed."""
        broker = self._broker
        queue = broker.queue_of(self._uid)
        run = queue_commands.run_of(letter["run"])
        exchange, routing_key = letter["target"]
        if queue is None or exchange is None:
            return False
        batches = []
        for content in broker.contents(self._uid, run):
            buried, result = bury(
                broker,
                queue,
                content,
                letter["reason"],
                letter["time_ms"] // 1000,
                (exchange, routing_key),
                run.delivery_count,
            )
            if not result.queues:
                broker.warn(
                    f"dead letters of queue '{queue.name}' in vhost '{queue.vhost}' wait: "
                    f"exchange '{exchange}' "
                    + ("does not exist" if result.exchange is None else "has no route for them")
                )
                return False
            broker.counters.internal_published(queue.vhost, exchange, result, 1, len(buried[2]))
            batches.append((result.queues, buried))
        return await self._confirmed(batches)

    async def _confirmed(self, batches: Sequence[tuple[Sequence[Queue], Content]]) -> bool:
        confirms = Confirms()
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def outcome(outcomes: list[tuple[int, int, int]]) -> None:
            for first, count, accepted in outcomes:
                confirms.answered(first, count, accepted)
            if not done.done():
                _, nacks = confirms.take()
                if nacks:
                    done.set_result(False)
                elif not confirms.outstanding:
                    done.set_result(True)

        broker = self._broker
        # Channel 0 is for at-most-once letters, which pass length limits (R-QQ-26); these must not.
        publisher = Publisher(
            broker.groups,
            broker.node,
            broker.incarnation,
            self._channel,
            outcome,
            deduplicate=False,
        )
        for targets, content in batches:
            number = confirms.published()
            confirms.expect(number, 1, len(targets))
            publisher.add(targets, [content], number)
        publisher.flush()
        try:
            async with asyncio.timeout(RETRY_S):
                return await done
        except TimeoutError:
            return False


def _forget(_: list[tuple[int, int, int]]) -> None:
    """Nobody waits for at-most-once dead letters."""


def bury(
    broker: Broker,
    queue: Queue,
    content: Content,
    reason: str,
    time_s: int,
    target: tuple[str, str | None],
    delivery_count: int,
) -> tuple[Content, RouteResult]:
    """Return the message as it leaves a queue for its dead letter exchange, and where it goes."""
    (exchange, routing_key), header, body, raw = content
    dead_letter_exchange, dead_letter_key = target
    table = _headers(header)
    copies = [key for key in _list(table.get("CC")) if isinstance(key, str)]
    before = message_annotations.decode(raw)
    died = deaths.record(
        before,
        queue=queue.name,
        reason=reason,
        time_s=time_s,
        exchange=exchange,
        routing_keys=[routing_key, *copies],
        expiration=properties.expiration(header) if properties.has_expiration(header) else None,
        delivery_count=delivery_count,
        keeps_keys=dead_letter_key is None,
    )
    keys = deaths.keys(routing_key, copies, before.bcc, dead_letter_key)
    rendered = _rendered(broker, table, died, dead_letter_key is not None)
    new_header = properties.with_headers(properties.without_expiration(header), rendered)
    result = broker.router.route(
        queue.vhost, dead_letter_exchange, keys[0], rendered, tuple(keys[1:])
    )
    route = (dead_letter_exchange, keys[0])
    return (route, new_header, body, message_annotations.encode(died.annotations)), result


def _headers(header: bytes) -> Table:
    try:
        return properties.headers(header) if properties.has_headers(header) else {}
    except amqp_errors.AmqpError:
        # Checked when it was published; a message must not stop the queue all the same.
        return {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _rendered(broker: Broker, table: Table, died: deaths.Died, has_key: bool) -> Table:
    """R-DLX-22..25: the broker's headers replace the client's of the same name; keys sorted."""
    rendered = dict(table)
    profile = broker.profile
    if has_key and profile.dlx_strip_cc_on_rk:
        rendered.pop("CC", None)
    entries: list[Any] = []
    for death in died.annotations.deaths:
        entry: dict[str, Any] = {}
        if death.original_expiration is not None:
            entry["original-expiration"] = death.original_expiration
        entry |= {
            "count": death.count,
            "reason": death.reason,
            "queue": death.queue,
            "time": Timestamp(death.time_s),
            "exchange": death.exchange,
            "routing-keys": list(death.routing_keys),
        }
        entries.append(entry)
    rendered["x-death"] = entries
    if died.annotations.first_death is not None:
        for name, value in zip(
            ("reason", "queue", "exchange"), died.annotations.first_death, strict=True
        ):
            rendered[f"x-first-death-{name}"] = value
    if profile.dlx_emit_last_death:
        for name, value in zip(("reason", "queue", "exchange"), died.last, strict=True):
            rendered[f"x-last-death-{name}"] = value
    return dict(sorted(rendered.items()))


def _outcome(result: RouteResult, is_taken: bool, is_cycling: bool) -> str:
    """Name what became of a dead letter (telemetry.md section 6.6, event `dl`)."""
    if is_taken:
        return "routed"
    if is_cycling:
        return "cycle_dropped"
    return "dlx_missing" if result.exchange is None else "unroutable"
