"""Commands that change a queue once, however often they arrive.

A sender that saw no answer sends again, to the next leader or on the next stream
(design/replication.md §2.6), and a copy on a stream that was cut may arrive long after.  Most
commands may be applied twice: a settlement finds nothing, publishes have numbers of their own
(enqueuers.py).  The others (`KINDS`) go in an envelope: who sends, a number that rises, and the
number before it, so that the queue applies them in order and each of them once (client sessions,
Raft thesis §6.3).  `Senders` is what a queue remembers of that: one row per member, whatever its
channels do. Only the queue machine and those who send to it use this module.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from brokerd.core.queue.queue_commands import VERSION, Kind

#: Twice these would hand out twice, count twice, bring back what has ended, or answer wrongly.
KINDS = frozenset(
    {
        Kind.RETURN,
        Kind.CHECKOUT,
        Kind.CANCEL,
        Kind.RESUME,
        Kind.GET,
        Kind.PURGE,
        Kind.DELETE,
        Kind.CHANNEL_DOWN,
        Kind.JOB_START,
    }
)

#: Not applied: what the sender sent before has not arrived.  It sends both again.
EARLY = b'{"early":true}'

#: Not applied: of a life of the sender that is over.  As a rule no process is left to read it; a
#: member that lost its disk and whose clock is behind does, and must not wait in silence.
OUTLIVED = b'{"refused":400,"text":"the member has sent from a later life"}'

#: Members that a queue remembers; above it the one that came first is forgotten.
SENDERS_MAX = 1024
#: Answers kept per member: as many as its group client has commands on the way (ClientConfig).
ANSWERS_MAX = 4096

_HEAD = struct.Struct("<BBBQQQQ")
_ENVELOPE = bytes((VERSION, Kind.ONCE))
_DECLARED = bytes((Kind.DECLARED,))
#: Of one that settles nothing (settling_gets.py).
_PLAIN_GET = bytes((Kind.GET, ord("{")))


@dataclass(slots=True)
class Once:
    """An envelope: `sequence` rises with each of the sender's commands to this queue.

    after: the number before it that must have been applied, 0 if every one has its answer.
    unanswered_from: the sender has the answers to all that are lower.
    """

    node: str
    incarnation: int
    sequence: int
    after: int
    unanswered_from: int
    kind: int
    command: Any


def is_once(command: bytes) -> bool:
    """Tell whether a command must go in an envelope."""
    return command[1] in KINDS


def is_look(command: bytes) -> bool:
    """Tell whether a command most often changes nothing (raft/inputs.py: Look): a declaration of a
    queue that is there.
    """
    return command[1:2] == _DECLARED


def is_lazy(command: bytes) -> bool:
    """Tell whether another member's command may be lazy (raft/inputs.py): a get.

    A settlement may not, alone or with a get: it must not be lost where the channel lives on that
    sent it.
    """
    return command[:2] == _ENVELOPE and inside(command)[1:3] == _PLAIN_GET


def kind_of(command: bytes) -> int:
    """Return the kind of a command, looking into the envelope."""
    return inside(command)[1] if command[1] == Kind.ONCE else command[1]


def encode(
    node: str, incarnation: int, sequence: int, after: int, unanswered_from: int, command: bytes
) -> bytes:
    """Put a command into its envelope."""
    name = node.encode()
    head = _HEAD.pack(VERSION, Kind.ONCE, len(name), incarnation, sequence, after, unanswered_from)
    return b"".join((head, name, command))


def inside(data: bytes) -> bytes:
    """Return the command in an envelope."""
    return data[_HEAD.size + data[2] :]


def decode_envelope(data: bytes) -> Once:
    """Return all but the command; ValueError or struct.error for what is no envelope."""
    _, _, size, incarnation, sequence, after, unanswered_from = _HEAD.unpack_from(data)
    start = _HEAD.size + size
    kind = data[start + 1]
    if kind not in KINDS:
        raise ValueError(f"a command of kind {kind} has no envelope")
    if not after < sequence >= unanswered_from:
        raise ValueError(f"command {sequence} cannot follow {after} and {unanswered_from}")
    node = data[_HEAD.size : start].decode()
    return Once(node, incarnation, sequence, after, unanswered_from, kind, None)


class _Sender:
    __slots__ = ("answers", "incarnation", "last")

    def __init__(self, incarnation: int, last: int = 0) -> None:
        self.incarnation = incarnation
        #: The number of the last command that was applied.
        self.last = last
        #: By number: answers that say more than that it was done, while the sender may ask again.
        self.answers: dict[int, bytes] = {}


class Senders:
    """The members that have sent to a queue, each in its latest life.

    Invariant: whatever has a number up to `last` has been applied, or never will be.
    """

    __slots__ = ("_by_node",)

    def __init__(self) -> None:
        self._by_node: dict[str, _Sender] = {}

    def answer(self, command: Once, plain: bytes) -> bytes | None:
        """Return what to answer to a command that is not to be applied now, None if it is.

        plain: the answer to a repeated command of which none was kept.
        """
        sender = self._by_node.get(command.node)
        if sender is None or sender.incarnation < command.incarnation:
            return EARLY if command.after else None
        if sender.incarnation > command.incarnation:
            return OUTLIVED
        if command.sequence <= sender.last:
            return sender.answers.get(command.sequence, plain)
        return EARLY if command.after > sender.last else None

    def applied(self, command: Once, reply: bytes, plain: bytes) -> None:
        """Remember that a command was applied, and its answer if that is worth it."""
        self.started(command.node, command.incarnation)
        sender = self._by_node[command.node]
        sender.last = command.sequence
        answers = sender.answers
        # They came in order.
        while answers and (oldest := next(iter(answers))) < command.unanswered_from:
            del answers[oldest]
        if reply != plain:
            answers[command.sequence] = reply
            if len(answers) > ANSWERS_MAX:
                del answers[next(iter(answers))]

    def started(self, node: str, incarnation: int) -> None:
        """A member lives in this incarnation: what its earlier ones sent is not applied any more.

        A word about an earlier life than the known one is old news.
        """
        sender = self._by_node.get(node)
        if sender is not None and sender.incarnation >= incarnation:
            return
        self._by_node[node] = _Sender(incarnation)
        if len(self._by_node) > SENDERS_MAX:
            del self._by_node[next(iter(self._by_node))]

    def nodes(self) -> Iterable[str]:
        """Return the members that have sent something."""
        return self._by_node.keys()

    def rows(self) -> Iterator[tuple[str, int, int, list[tuple[int, str]]]]:
        """Return the state for a snapshot."""
        for node, sender in self._by_node.items():
            answers = [(number, reply.decode()) for number, reply in sender.answers.items()]
            yield node, sender.incarnation, sender.last, answers

    def restore(
        self, node: str, incarnation: int, last: int, answers: Iterable[Sequence[Any]]
    ) -> None:
        """Put one row of a snapshot back; `answers` are pairs of a number and a text."""
        sender = self._by_node[node] = _Sender(incarnation, last)
        sender.answers = {number: reply.encode() for number, reply in answers}
