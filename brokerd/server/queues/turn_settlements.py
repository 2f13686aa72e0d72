"""What all channels of a member acknowledge in one turn of its loop: one command per queue
(ADR 65).

Where hundreds of consumers acknowledge each message, what a command costs on its way through the
log, the peers and the queue machine is most of what an acknowledgement costs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from brokerd.cluster.groups.group_client import Answer, GroupClient, ReplyStatus
from brokerd.core.queue import joined_settlements

log = logging.getLogger(__name__)

#: Parts and bytes of one command, as of a batch that is published: an entry stays well below the
#: peer stream's frame.
PARTS_MAX = 1024
BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class _Waiting:
    """What waits for the end of the turn, for one queue; `answers` are in the order of `parts`."""

    is_lazy: bool
    parts: list[bytes] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    size: int = 0


class TurnSettlements:
    """State: what waits, by queue.

    Invariant: what was added is sent before whatever is sent for its queue behind a `send`.
    """

    def __init__(
        self,
        groups: GroupClient,
        before_flush: Callable[[Callable[[], None]], None],
        is_joining: Callable[[], bool] = lambda: True,
    ) -> None:
        """See Turn."""
        self.groups = groups
        self._before_flush = before_flush
        self._is_joining = is_joining
        self._waiting: dict[int, _Waiting] = {}

    def add(self, uid: int, command: bytes, answered: Answer, *, is_lazy: bool) -> None:
        """Send a SETTLE command with the turn (GroupClient.send)."""
        if not self._is_joining():
            self.groups.send(uid, command, answered, is_lazy=is_lazy)
            return
        if not self._waiting:
            self._before_flush(self._end)
        waiting = self._waiting.get(uid)
        if waiting is None:
            waiting = self._waiting[uid] = _Waiting(is_lazy)
        waiting.is_lazy = waiting.is_lazy and is_lazy
        waiting.parts.append(command)
        waiting.answers.append(answered)
        waiting.size += len(command)
        if len(waiting.parts) >= PARTS_MAX or waiting.size >= BYTES_MAX:
            self.send(uid)

    def send(self, uid: int) -> None:
        """Send what waits for a queue: what follows must not overtake it."""
        if self._waiting and (waiting := self._waiting.pop(uid, None)) is not None:
            self._send(uid, waiting)

    def _end(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for uid, each in waiting.items():
            self._send(uid, each)

    def _send(self, uid: int, waiting: _Waiting) -> None:
        parts, answers = waiting.parts, waiting.answers
        if len(parts) == 1:
            self.groups.send(uid, parts[0], answers[0], is_lazy=waiting.is_lazy)
            return

        def answered(status: ReplyStatus, reply: bytes) -> None:
            for each in answers:
                # One channel's fault is not the others'.
                try:
                    each(status, reply)
                except Exception:
                    log.exception("the answer to a settlement was not taken group=%x", uid)

        command = joined_settlements.encode(parts)
        self.groups.send(uid, command, answered, is_lazy=waiting.is_lazy)
