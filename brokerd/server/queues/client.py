"""What a member tells a queue, wherever its leader is: the questions and answers of its machine.

Callers name queues by uid and know nothing of commands, their bytes or the group behind a queue.
What a channel sends in its own order goes through the stream that `open` returns (stream.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from brokerd.cluster.errors import GroupGone, GroupStuck, GroupUnavailable
from brokerd.cluster.groups.group_client import GroupClient, ReplyStatus
from brokerd.core.catalog import names
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.refusals import Refused
from brokerd.core.message import Range
from brokerd.core.queue import client_sessions, queue_commands
from brokerd.core.queue.certificates import Client
from brokerd.core.queue.client_shapes import Checkout, Counts, Deleted
from brokerd.core.queue.effects import ConsumerId
from brokerd.raft.messages import NodeId
from brokerd.server.catalog.catalog_writer import QueueStuck, Unavailable
from brokerd.server.queues.in_flight import Source
from brokerd.server.queues.stream import ChannelStream, Outcome
from brokerd.server.queues.turn import Turn

#: Reply code of a refusal that names none.
_INTERNAL_ERROR = 541

#: The channel of what a member publishes at most once: it passes length limits (R-QQ-26).
_AT_MOST_ONCE = 0


class QueueClient:
    """One for a member.  In one piece: a method for each thing that queues are told.

    Invariant: what the member's channels have settled so far goes before each operation.
    Every coroutine raises QueueStuck while the queue takes nothing (its home member is down, or its
    group waits with damage) and Unavailable when no leader answers in time; the operation may take
    effect all the same.
    """

    def __init__(
        self,
        turn: Turn,
        timeout_s: float,
        queue_of: Callable[[int], Queue | None] = lambda _: None,
    ) -> None:
        """timeout_s: how long an operation waits for its answer.

        queue_of(uid): the catalog's record, for what errors say.
        """
        self._turn = turn
        self._queue_of = queue_of
        self._groups: GroupClient = turn.groups
        self._settlements = turn.settlements
        self._timeout_s = timeout_s
        #: How much of what is published may be in flight, and is.
        self.in_flight = turn.in_flight

    # ---- channels -------------------------------------------------------------------------------

    def open(
        self,
        channel: int,
        outcome: Outcome | None = None,
        *,
        source: Source | None = None,
        in_flight: Callable[[int], None] | None = None,
        is_numbered: bool = True,
        gone_takes: bool = True,
        client: Client | None = None,
    ) -> ChannelStream:
        """Return the way of one channel to its queues.

        channel: its number in this life of the member.
        outcome: takes what became of the channel's publishes; None: it is not awaited.
        source: where they are read from, and held back while too much is in flight; None for the
        member's own messages, which never are (R-ALM-9).
        in_flight(bytes): hears when bytes are published (positive) and have arrived (negative).
        is_numbered: queues look for duplicates of what goes again.
        gone_takes: whether a queue that was deleted counts as having taken over (R-PC-7).
        client: whose channel it is, for what is said at a death; None: nothing is.
        """
        return ChannelStream(
            self._turn,
            channel,
            outcome,
            source=source,
            in_flight=in_flight,
            is_numbered=is_numbered,
            gone_takes=gone_takes,
            client=client,
        )

    def open_at_most_once(self) -> ChannelStream:
        """Return a stream for messages of the member's own whose outcomes are not awaited."""
        return self.open(_AT_MOST_ONCE, is_numbered=False)

    def make_known(self, uid: int, members: Iterable[str]) -> None:
        """Have what goes to a queue that is in the catalog wait for it.

        While a member starts, a queue may have expired messages before this one has been opened: a
        group that has not been made known counts as deleted, and takes everything over.
        """
        if not self._groups.knows(uid):
            self._groups.set_members(uid, map(NodeId, members))

    # ---- the queue itself -----------------------------------------------------------------------

    async def declared(self, uid: int) -> Counts | None:
        """Tell the queue that it was declared again (R-Q-3, R-Q-11); None: it has ended."""
        fields = await self._ask(uid, queue_commands.encode_declared())
        if fields is None or fields.get("deleted"):
            return None
        return Counts(fields["ready"], fields["consumers"], fields.get("holders", 0))

    async def purge(self, uid: int) -> int:
        """Remove the ready messages; return how many."""
        return _messages(await self._ask(uid, queue_commands.encode_purge()))

    async def discard_dead_letters(self, uid: int) -> int:
        """Remove the dead letters that wait for their targets; return how many."""
        return _messages(await self._ask(uid, queue_commands.encode_dead_letters_discard()))

    async def delete(
        self, uid: int, *, if_empty: bool, if_unused: bool, cause: str
    ) -> Deleted | None:
        """End the queue unless its own machine says that it is in use; None: it is gone already.

        The catalog's record is the caller's business.
        """
        fields = await self._ask(uid, queue_commands.encode_delete(if_empty, if_unused, cause))
        if fields is None:
            return None
        messages, consumers = fields.get("messages", 0), fields.get("consumers", 0)
        return Deleted(fields.get("deleted", True), messages, consumers)

    async def has_takers(self, uid: int) -> bool:
        """Tell whether a consumer could have a message now (R-AE-15)."""
        fields = await self._ask(uid, queue_commands.encode_tick())
        return fields is not None and bool(fields.get("takers"))

    async def wait_for_leader(self, uid: int) -> None:
        """Wait until the queue's leader works, with its options."""
        # A tick changes nothing.
        await self._ask(uid, queue_commands.encode_tick())

    def nudge(self, uid: int) -> None:
        """Have the queue's leader send something, if nothing is on its way to it."""
        if self._groups.pending_bytes(uid) == 0:
            self._send(uid, queue_commands.encode_tick())

    # ---- consumers ------------------------------------------------------------------------------

    async def check_out(self, uid: int, checkout: Checkout) -> Refused | None:
        """Register a consumer, or grant it credit; None: done.  GroupGone: there is no queue."""
        fields = await self._ask_existing(uid, queue_commands.encode_checkout(checkout))
        return None if fields.get("ok") else _refused(fields)

    async def drain(self, uid: int, checkout: Checkout) -> int | Refused:
        """Have what is ready handed out to a consumer, up to its credit, and withdraw the rest of
        that; return how much it was.  What is handed out may come after the answer.  GroupGone:
        there is no queue.
        """
        assert checkout.drains
        fields = await self._ask_existing(uid, queue_commands.encode_checkout(checkout))
        return int(fields.get("credit", 0)) if fields.get("ok") else _refused(fields)

    def change_consumer(self, uid: int, checkout: Checkout) -> None:
        """Give a consumer another prefetch."""
        self._send(uid, queue_commands.encode_checkout(checkout))

    async def cancel(self, uid: int, consumer: ConsumerId) -> None:
        """Remove a consumer; what it has not settled stays with its channel (R-CS-3)."""
        await self._ask(uid, queue_commands.encode_cancel(consumer))

    def resume(
        self, uid: int, consumer: ConsumerId, held: list[Range], done: Callable[[bool], None]
    ) -> None:
        """Tell a queue's new leader what a consumer holds; done(whether the consumer goes on)."""

        def answered(status: ReplyStatus, reply: bytes) -> None:
            # The consumers of a deleted queue are ended by its deletion.
            gone = status is ReplyStatus.OK and "refused" in queue_commands.decode_reply(reply)
            done(not gone or not self._groups.knows(uid))

        # What is settled and has not been sent is held no more: the queue would send it again.
        self._settlements.send(uid)
        self._groups.send(uid, queue_commands.encode_resume(consumer, held), answered, once=True)

    # ---- dead letters that wait for their targets (R-ALO) ---------------------------------------

    async def take_dead_letters(self, uid: int, count: int) -> None:
        """Have the queue hand out up to `count` more; its leader's state names them.  GroupGone:
        there is no queue.
        """
        await self._ask_existing(uid, queue_commands.encode_dead_letters_checkout(count))

    async def settle_dead_letters(self, uid: int, ranges: Sequence[Range]) -> None:
        """Every target has confirmed these (R-ALO-5).  GroupGone: there is no queue."""
        await self._ask_existing(uid, queue_commands.encode_dead_letters_settle(ranges))

    # ---- jobs (redrive, move, delete) -----------------------------------------------------------

    async def start_job(self, uid: int, order: str, user: str) -> int | Refused:
        """Begin a job; return its number.  GroupGone: there is no queue."""
        fields = await self._ask_existing(uid, queue_commands.encode_job_start(order, user))
        return int(fields["id"]) if fields.get("ok") else _refused(fields)

    async def stop_job(self, uid: int, user: str) -> int | Refused:
        """Have the queue's job take nothing more; return its number.  GroupGone: as above."""
        fields = await self._ask_existing(uid, queue_commands.encode_job_stop(user))
        return int(fields["id"]) if fields.get("ok") else _refused(fields)

    async def take_for_job(
        self, uid: int, job: int, term: int, ranges: Sequence[Range]
    ) -> list[Range]:
        """Have a job take messages in hand; return those that it got.  GroupGone: as above."""
        command = queue_commands.encode_job_take(job, term, ranges)
        fields = await self._ask_existing(uid, command)
        return [(low, high) for low, high in fields.get("taken", ())]

    async def settle_job(
        self,
        uid: int,
        job: int,
        term: int,
        gone: Sequence[Range],
        staying: Sequence[Range],
        progress: str | None,
    ) -> None:
        """Say what a job has done with, and how far it is.  GroupGone: as above."""
        command = queue_commands.encode_job_settle(job, term, gone, staying, progress)
        await self._ask_existing(uid, command)

    async def end_job(self, uid: int, job: int, term: int, receipt: str) -> None:
        """Say that a job is over.  GroupGone: as above."""
        await self._ask_existing(uid, queue_commands.encode_job_end(job, term, receipt))

    # ---- the way there --------------------------------------------------------------------------

    async def _ask(self, uid: int, command: bytes) -> dict[str, Any] | None:
        """Return the fields of the answer; None: the queue is deleted."""
        self._settlements.send(uid)
        is_once = client_sessions.is_once(command)
        try:
            reply = await self._groups.request(uid, command, self._timeout_s, is_once)
        except GroupGone:
            return None
        except GroupStuck as stuck:
            raise QueueStuck(str(stuck)) from stuck
        except GroupUnavailable as error:
            queue = self._queue_of(uid)
            if queue is None:
                raise Unavailable(str(error)) from error
            resource = names.resource("queue", queue.vhost, queue.name)
            text = f"no leader of {resource} answered within {self._timeout_s:g} s"
            raise Unavailable(text) from error
        return queue_commands.decode_reply(reply)

    async def _ask_existing(self, uid: int, command: bytes) -> dict[str, Any]:
        fields = await self._ask(uid, command)
        if fields is None:
            raise GroupGone(uid)
        return fields

    def _send(self, uid: int, command: bytes) -> None:
        self._settlements.send(uid)
        self._groups.send(uid, command, _ignore, client_sessions.is_once(command))


def _refused(fields: dict[str, Any]) -> Refused:
    code = int(fields.get("refused", _INTERNAL_ERROR))
    return Refused(code, str(fields.get("text", "refused")))


def _messages(fields: dict[str, Any] | None) -> int:
    return 0 if fields is None else int(fields.get("messages", 0))


def _ignore(_status: ReplyStatus, _reply: bytes) -> None:
    """The command needs no answer."""
