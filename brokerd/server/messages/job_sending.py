"""What a job has on its way: copies that their targets have not answered, and what became of them.

Each target has a window of its own, so that one that refuses or does not answer holds up no other's
messages.  For job_run.py, which chooses the messages and tells the queue what is done with.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.message import Content, Range
from brokerd.core.queue.effects import Run
from brokerd.server.messages import pipeline, ports
from brokerd.server.messages.job_copies import Way
from brokerd.server.messages.job_progress import JobProgress
from brokerd.server.queues.client import QueueClient
from brokerd.server.queues.stream import ChannelStream, Target

#: Copies that one target has not answered, and their bytes.
WINDOW_MESSAGES = 512
WINDOW_BYTES = 8 * 1024 * 1024
#: A target that has not answered for so long holds up no other: its messages wait for another pass;
#: and for so long, the job says so.
SLOW_S, SILENT_S = 1.0, 5.0
#: Pauses before a copy that was refused goes again; behind the last its message stays, and all
#: others of the target.
#: (Of any length: as a final tuple of five numbers, the compiled form takes it to be unset.)
RETRIES_S: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
REFUSED = "refused by its target"


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


@dataclass(slots=True, frozen=True)
class _EachNumbered:
    """Gives each copy of a message a number of its own, in the order of its targets."""

    stream: ChannelStream

    def publish(self, queues: Sequence[Target], contents: list[Content], first: int) -> None:
        """See pipeline.Taker."""
        for number, queue in enumerate(queues, first):
            self.stream.publish([queue], contents, number)


class Windows:
    """State: the windows of a job's targets, by uid."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._windows: dict[int, Window] = {}

    def __getitem__(self, uid: int) -> Window:
        """Return the window of a queue that something was reserved for."""
        return self._windows[uid]

    def of(self, queue: Queue) -> Window:
        """Return a queue's window."""
        return self._windows.setdefault(queue.uid, Window(queue.name))

    def is_held_up(self, way: Way) -> bool | None:
        """Say whether a target has no room: True if others need not wait for it; None: it has."""
        now_s = self._clock()
        windows = [self.of(queue) for queue in way.targets]
        if any(window.is_slow(now_s) for window in windows):
            return True
        return None if all(window.has_room() for window in windows) else False

    def has_slow(self) -> bool:
        """Tell whether a target is slow that has not been given up."""
        now_s = self._clock()
        slow = [window for window in self._windows.values() if window.is_slow(now_s)]
        return not all(window.is_given_up for window in slow)

    def forgive(self) -> None:
        """Nothing waits to go again: who refused something is asked anew."""
        for window in self._windows.values():
            window.refuses = False

    def silent(self) -> str:
        """Return the name of a queue that has owed an answer for long, "" if there is none."""
        now_s = self._clock()
        for window in self._windows.values():
            if window.messages and not window.refuses and now_s - window.since_s >= SILENT_S:
                return window.name
        return ""

    def reserve(self, way: Way) -> None:
        """A message is about to be taken: count it in its targets' windows."""
        for queue in way.targets:
            window = self.of(queue)
            if not window.messages:
                window.since_s = self._clock()
            window.messages += 1
            window.bytes += len(way.content[2])

    def release(self, way: Way) -> None:
        """It could not be taken."""
        for queue in way.targets:
            self.count_out(queue.uid, len(way.content[2]))

    def count_out(self, uid: int, size: int) -> None:
        """A copy has its answer, or none is waited for."""
        window = self._windows[uid]
        window.messages -= 1
        window.bytes -= size
        window.since_s = self._clock()


class Sending:
    """State: messages on their way, and what is to be told to the queue.

    Invariant: `windows` count the copies in `_copies`, and those that are about to go.
    """

    def __init__(
        self,
        client: QueueClient,
        counting: ports.Counting,
        channel: int,
        progress: JobProgress,
        changed: Callable[[], None],
    ) -> None:
        """channel: of the worker's own.  changed(): something has been answered."""
        # A queue that is gone has not taken a message, also where it is in the catalog still.
        self._stream = client.open(channel, self._answered, is_numbered=False, gone_takes=False)
        self._client = client
        self._counting = counting
        self._progress = progress
        self._changed = changed
        self._clock = asyncio.get_running_loop().time
        self._pending: dict[int, Pending] = {}
        #: Of those: how many of each group.
        self.groups: Counter[str] = Counter()
        #: By number of the copy: the message and the target.
        self._copies: dict[int, tuple[int, int]] = {}
        self._next_copy = 0
        self.windows = Windows()
        self._gone: list[Range] = []
        self._staying: list[Range] = []

    @property
    def count(self) -> int:
        """Return how many messages are on their way."""
        return len(self._pending)

    @property
    def is_done(self) -> bool:
        """Tell whether nothing is on its way, or is still to be told."""
        return not (self._pending or self._gone or self._staying)

    @property
    def has_answers(self) -> bool:
        """Tell whether the queue is to be told something."""
        return bool(self._gone or self._staying)

    def knows(self, number: int) -> bool:
        """Tell whether a message is on its way, or the queue is about to be told of it."""
        told = (number, number + 1)
        return number in self._pending or told in self._gone or told in self._staying

    def take_answers(self) -> tuple[list[Range], list[Range]]:
        """Return what every target has, and what stays, and forget it."""
        answers = self._gone, self._staying
        self._gone, self._staying = [], []
        return answers

    def give_answers_back(self, gone: Iterable[Range], staying: Iterable[Range]) -> None:
        """The queue has not heard."""
        self._gone += gone
        self._staying += staying

    def close(self) -> None:
        """Nothing more is heard of what is on its way."""
        self._stream.close()

    def is_given_up(self, way: Way) -> bool:
        """Tell whether a target has refused too often."""
        return any(self.windows.of(queue).is_given_up for queue in way.targets)

    def waits_for_slow(self) -> bool:
        """Tell whether targets are waited for that others went ahead of."""
        if self._pending:
            return self.windows.has_slow()
        self.windows.forgive()
        return False

    # ---- on the way -----------------------------------------------------------------------------

    def send_off(self, run: Run, group: str, way: Way | None) -> None:
        """Publish a message that has been taken, and reserved; None: it is deleted."""
        number = run.first
        if way is None:
            self._done(number, group)
            return
        pending = self._pending[number] = Pending(run, group)
        self.groups[group] += 1
        pending.size = len(way.content[2])
        pending.waiting = {queue.uid for queue in way.targets}
        self._send(pending, way, way.targets)

    def flush(self) -> None:
        """Let it go."""
        self._stream.flush()

    def _send(self, pending: Pending, way: Way, targets: Sequence[Queue]) -> None:
        first = self._next_copy
        for number, queue in enumerate(targets, first):
            self._client.make_known(queue.uid, queue.members)
            self._copies[number] = (pending.run.first, queue.uid)
        self._next_copy += len(targets)
        pipeline.send_own(
            self._counting,
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
                if pending is not None:
                    self._copy_answered(pending, uid, copy < first + accepted)
        self._changed()

    def _copy_answered(self, pending: Pending, uid: int, is_taken: bool) -> None:
        self.windows.count_out(uid, pending.size)
        pending.waiting.discard(uid)
        self.windows[uid].refuses = not is_taken
        if is_taken:
            pending.confirmed.add(uid)
        else:
            pending.refused.add(uid)
            pause_s = RETRIES_S[min(pending.tries, len(RETRIES_S) - 1)]
            pending.again_s = self._clock() + pause_s
        if not pending.waiting and not pending.refused:
            self._forget(pending)
            self._done(pending.run.first, pending.group, pending.confirmed)

    def _forget(self, pending: Pending) -> None:
        del self._pending[pending.run.first]
        self.groups[pending.group] -= 1
        if not self.groups[pending.group]:
            del self.groups[pending.group]

    def _done(self, number: int, group: str, targets: Collection[int] = ()) -> None:
        self._gone.append((number, number + 1))
        self._progress.sent(group, targets)
        self._changed()

    def put_back(self, number: int) -> None:
        """A message that was taken is to be ready again."""
        self._staying.append((number, number + 1))

    def give_up(self, reason: str) -> None:
        """What is on its way stays, whatever its targets say later."""
        for number, pending in list(self._pending.items()):
            self._stays(number, pending, reason)

    def _stays(self, number: int, pending: Pending, reason: str) -> None:
        self._forget(pending)
        for uid in pending.waiting:
            self.windows.count_out(uid, pending.size)
        self.put_back(number)
        self._progress.stayed(pending.group, reason)

    def send_again(self, way_of: Callable[[Run], Way | str]) -> None:
        """Send what was refused a while ago, where it goes now; or give its target up.

        way_of(a message) says where, or why it stays.
        """
        now_s = self._clock()
        due = [
            (number, pending)
            for number, pending in self._pending.items()
            if pending.refused and not pending.waiting and pending.again_s <= now_s
        ]
        for number, pending in due:
            self._send_one_again(number, pending, way_of)
        if due:
            self._stream.flush()

    def _send_one_again(
        self, number: int, pending: Pending, way_of: Callable[[Run], Way | str]
    ) -> None:
        pending.tries += 1
        if pending.tries > len(RETRIES_S):
            for uid in pending.refused:
                self.windows[uid].is_given_up = True
        if any(self.windows[uid].is_given_up for uid in pending.refused):
            self._stays(number, pending, REFUSED)
            return
        pending.refused.clear()
        way = way_of(pending.run)
        if isinstance(way, str):
            self._stays(number, pending, way)
            return
        # Those that were deleted meanwhile are not waited for.
        left = [queue for queue in way.targets if queue.uid not in pending.confirmed]
        if not left:
            self._forget(pending)
            self._done(number, pending.group, pending.confirmed)
            return
        pending.waiting = {queue.uid for queue in left}
        self.windows.reserve(Way(way.address, way.content, way.result, left))
        self._send(pending, way, left)
