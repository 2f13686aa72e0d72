"""Commands to one group: what GroupClient knows of each, and in which order they go out.

No I/O; only group_client.py uses this.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from brokerd.cluster.groups.asked import Answer
from brokerd.raft.messages import NodeId


@dataclass(slots=True, eq=False)
class Command:
    id: int
    data: bytes
    answer: Answer
    #: Goes in an envelope, with `id` as its number.
    is_once: bool = False
    #: How an answer begins that says: not applied, what was sent before it has not arrived.
    early: bytes = b""
    #: What its sender's commands to this group have in common that follow one another.
    line: object | None = None
    #: Somebody waits for the answer, and would rather have a refusal than wait in vain.
    is_asked: bool = False
    #: At a replica here it may be lazy (raft/replication.py).
    is_lazy: bool = False
    #: How often it was told so with nothing before it on the way.
    early_count: int = 0
    is_finished: bool = False


@dataclass(slots=True, eq=False)
class Group:
    """Commands of one group: first those on the way (`sent`), then those that wait.

    Empty ones are None: each member knows all groups, and an empty deque has 760 bytes.
    """

    uid: int
    members: tuple[NodeId, ...]
    leader: NodeId | None = None
    #: Where `sent` went; None while nothing is on the way.
    target: NodeId | None = None
    sent: dict[int, Command] = field(default_factory=dict)
    sent_bytes: int = 0
    waiting: deque[Command] | None = None
    pending_bytes: int = 0
    #: Those of `sent` and `waiting` that go in envelopes; a finished one may be among them, but
    #: not in front.
    once: deque[Command] | None = None
    #: The last of them that went out since `target` was chosen.
    once_sent: int = 0
    #: The target has taken a command since it was chosen: it is the leader, the window opens.
    is_confirmed: bool = False
    #: Whom the replica here takes for the leader has refused: until the replica has news, others
    #: know better.  One that has been left out of its group gets no news.
    is_replica_wrong: bool = False
    failures: int = 0
    next_member: int = 0
    retry: asyncio.TimerHandle | None = None
    #: Why no member takes anything for now; "": as far as is known, one does.
    refusal: str = ""
    #: Waiting does not help: what is published is refused as well.
    refuses_lines: bool = False

    @property
    def is_idle(self) -> bool:
        """Nothing is on its way or waits, and nothing is known that others do not know."""
        is_used = self.sent or self.waiting or self.once or self.pending_bytes
        return not (is_used or self.retry or self.refusal or self.is_replica_wrong)

    def add(self, command: Command) -> None:
        """Put one behind those that wait."""
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(command)
        if command.is_once:
            if self.once is None:
                self.once = deque()
            self.once.append(command)

    def take_back(self) -> None:
        """What is on the way waits again, in order, before what waits."""
        if self.sent:
            if self.waiting is None:
                self.waiting = deque()
            self.waiting.extendleft(reversed(self.sent.values()))
            self.sent = {}
        self.sent_bytes = 0
        self.target = None
        self.is_confirmed = False
        self.once_sent = 0

    def drop_finished(self) -> None:
        """Remove finished ones from the front of `once`."""
        if self.once is None:
            return
        while self.once and self.once[0].is_finished:
            self.once.popleft()
        if not self.once:
            self.once = None

    def commands(self) -> list[Command]:
        """Return all that have no answer yet, and finished ones that are not removed yet."""
        return [*self.sent.values(), *(self.waiting or ())]
