"""GroupClient: commands to any group of the cluster, in order, until they are taken.

The server's way to quorum queues and the catalog, wherever their leaders are: the local replica, or
the leader's node over the transport.  A command may reach the machine twice (its answer was lost);
commands are made for that (replication.md §2.6), and those of a queue that are not go in an
envelope (core/queue/client_sessions.py).  Commands of one group go out in the order of `send`,
again after a change of leader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from brokerd.cluster.config import ClientConfig
from brokerd.cluster.errors import GroupGone, GroupStuck, GroupUnavailable
from brokerd.cluster.groups.asked import Answer, Asked, Deadlines, ReplyStatus
from brokerd.cluster.groups.commit_times import CommitTimes
from brokerd.cluster.groups.driver import Done
from brokerd.cluster.groups.group_commands import Command, Group
from brokerd.core.interner import Interner
from brokerd.core.queue import client_sessions as envelopes
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import peer_pb2

__all__ = ["Answer", "GroupClient", "Network", "ReplyStatus"]

#: Numbers of commands begin at random below this many bits, so that those of two lives of a node
#: do not meet; on the wire they have 64 bits.
FIRST_ID_BITS = 62
#: So many groups that have no commands are remembered at least.
IDLE_MAX = 1_000


class Network(Protocol):
    """What the client needs of the host."""

    node: NodeId

    def has_group(self, uid: int) -> bool:
        """Tell whether a replica is here."""
        ...

    def leader_of(self, uid: int) -> NodeId | None:
        """Return the leader as the replica here knows it."""
        ...

    def propose(self, uid: int, command: bytes, done: Done, *, is_lazy: bool = False) -> None:
        """Propose to the replica here."""
        ...

    def send_request(self, node: NodeId, request_id: int, uid: int, command: bytes) -> bool:
        """Send to another node; False: not now."""
        ...

    def alive(self) -> set[NodeId]:
        """Return the nodes that are up, this one included."""
        ...

    def listen(self, client: GroupClient) -> None:
        """Tell `client` about replies, leaders and nodes."""
        ...


class GroupClient:
    """Queues, windows and retries per group.

    Invariant: each command's answer is called exactly once, unless its `request` gave up on it.

    In one piece: a command moves between all of its states (waiting, sent, asked again, answered)
    in one turn; the commands of a group are a class of their own.
    """

    def __init__(
        self,
        network: Network,
        rng: random.Random,
        config: ClientConfig | None = None,
        command_bytes_max: int = 129 * 1024 * 1024,
        incarnation: int = 0,
    ) -> None:
        """incarnation: of this process; in each only one client sends commands of `once`."""
        self._network = network
        self._rng = rng
        self._config = config or ClientConfig()
        self._command_bytes_max = command_bytes_max
        self._incarnation = incarnation
        self.commit_times = CommitTimes()
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        #: The members of all groups, and those that have commands or had some lately.
        self._members: dict[int, tuple[NodeId, ...]] = {}
        self._groups: dict[int, Group] = {}
        #: With more of these those that have none are dropped.
        self._groups_max = IDLE_MAX
        self._interned: Interner[tuple[NodeId, ...]] = Interner()
        self._by_id: dict[int, tuple[Group, Command]] = {}
        #: Nodes that are down, with what says why a group that lives there alone takes nothing.
        self._down: dict[NodeId, Callable[[int], str]] = {}
        #: Since when groups have taken nothing; those that wait for nothing may be among them.
        self._stalled: dict[int, float] = {}
        # An earlier life of this node may still be answered: its numbers must not be ours.
        self._next_id = rng.getrandbits(FIRST_ID_BITS)
        network.listen(self)

    # ---- callers --------------------------------------------------------------------------------

    def set_members(self, uid: int, nodes: Iterable[NodeId]) -> None:
        """Make a group known, or its members anew."""
        members = self._members[uid] = self._interned.intern(tuple(nodes))
        if (group := self._groups.get(uid)) is not None:
            group.members = members

    def _group(self, uid: int) -> Group | None:
        """Return a group for commands to it, None if it is not known."""
        group = self._groups.get(uid)
        if group is None and (members := self._members.get(uid)) is not None:
            if len(self._groups) >= self._groups_max:
                self._groups = {u: each for u, each in self._groups.items() if not each.is_idle}
                self._groups_max = 2 * len(self._groups) + IDLE_MAX
            group = self._groups[uid] = Group(uid, members)
            if reason := self._reason_of_home(uid):
                group.refusal, group.refuses_lines = reason, True
        return group

    def forget(self, uid: int) -> None:
        """The group is gone: everything that waits is answered so."""
        self._members.pop(uid, None)
        group = self._groups.pop(uid, None)
        self._stalled.pop(uid, None)
        if group is None:
            return
        if group.retry is not None:
            group.retry.cancel()
        for command in group.commands():
            self._by_id.pop(command.id, None)
            if not command.is_finished:
                command.is_finished = True
                self._loop.call_soon(command.answer, ReplyStatus.GONE, b"")

    def knows(self, uid: int) -> bool:
        """Tell whether the group has been made known."""
        return uid in self._members

    def pending_bytes(self, uid: int) -> int:
        """Return the bytes of the group's commands that have no answer yet."""
        group = self._groups.get(uid)
        return 0 if group is None else group.pending_bytes

    # ---- groups without a leader ----------------------------------------------------------------

    def stalled(self, since: float) -> list[int]:
        """Return the groups that have taken nothing since then (loop time) and have commands."""
        found = []
        for uid, began in list(self._stalled.items()):
            group = self._groups.get(uid)
            if group is None or (
                not group.sent and all(command.is_finished for command in group.waiting or ())
            ):
                del self._stalled[uid]
            elif began <= since:
                found.append(uid)
        return found

    def refuse(self, uid: int, reason: str, is_lasting: bool) -> None:
        """No member will take this group's commands for now: those with a waiting caller are
        refused, from now on at once.  is_lasting: publishes, too.  All else (settlements, ends of
        channels) waits.
        """
        group = self._group(uid)
        if group is None:
            return
        group.refusal, group.refuses_lines = reason, is_lasting
        refused = [
            command
            for command in group.commands()
            if not command.is_finished and _is_refused(group, command)
        ]
        for command in refused:
            self._finish(group, command)
        for command in refused:
            command.answer(ReplyStatus.REFUSED, reason.encode())
        self._pump(group)

    def accept(self, uid: int) -> None:
        """The group may have a leader again."""
        group = self._groups.get(uid)
        if group is not None:
            group.refusal, group.refuses_lines = "", False

    def home_down(self, node: NodeId, reason_of: Callable[[int], str]) -> None:
        """Refuse the commands of groups that live on this node alone, published ones included.

        reason_of(uid): why; "": the group's commands wait.
        """
        self._down[node] = reason_of
        for group in list(self._groups.values()):
            if group.members == (node,) and (reason := reason_of(group.uid)):
                self.refuse(group.uid, reason, is_lasting=True)

    def home_up(self, node: NodeId) -> None:
        """The groups of this node take commands again."""
        if self._down.pop(node, None) is not None:
            for group in self._groups.values():
                if group.members == (node,):
                    group.refusal, group.refuses_lines = "", False

    def _reason_of_home(self, uid: int) -> str:
        members = self._members.get(uid, ())
        reason_of = self._down.get(members[0]) if len(members) == 1 else None
        return "" if reason_of is None else reason_of(uid)

    def refusal(self, uid: int) -> str:
        """Return why no member takes this group's commands, "" if one may."""
        group = self._groups.get(uid)
        if group is not None:
            return group.refusal
        return self._reason_of_home(uid) if self._down else ""

    def refuses_lines(self, uid: int) -> bool:
        """Tell whether what is published would wait in vain."""
        group = self._groups.get(uid)
        if group is not None:
            return group.refuses_lines
        return bool(self._down) and bool(self._reason_of_home(uid))

    # ---- commands -------------------------------------------------------------------------------

    def send(
        self,
        uid: int,
        command: bytes,
        done: Answer,
        once: bool = False,
        early: bytes = b"",
        line: object = None,
        is_lazy: bool = False,
    ) -> None:
        """Send a command; `done` is called later, never from within.

        once: a command of a queue that must not be applied twice (client_sessions.is_once).
        early: an answer that begins so says that a copy of the command overtook what it follows:
        it goes again, behind that.
        line: whose commands follow each other.  Where what one of them follows will never arrive
        (the group has lost its state), all of the line get that answer (config.early_max).
        is_lazy: its sender ends with this process, and its effect may (raft/inputs.py).
        ValueError for a command that no group would ever take.
        """
        early = envelopes.EARLY if once else early
        self._send(uid, command, done, once, early, line, is_lazy=is_lazy)

    async def request(
        self, uid: int, command: bytes, timeout_s: float, once: bool = False
    ) -> bytes:
        """Send a command as `send` does, and return its reply.

        GroupGone: there is no such group.  GroupUnavailable: no answer in time.  GroupStuck: there
        will be none for now.  With the last two, the command may take effect all the same.
        """
        future: asyncio.Future[tuple[ReplyStatus, bytes]] = self._loop.create_future()

        def answered(status: ReplyStatus, reply: bytes) -> None:
            if not future.done():
                future.set_result((status, reply))

        asked = self.ask(uid, command, timeout_s, answered, once)
        try:
            status, reply = await future
        finally:
            asked.withdraw()
        if status is ReplyStatus.LATE:
            raise GroupUnavailable(uid, timeout_s)
        if status is ReplyStatus.GONE:
            raise GroupGone(uid)
        if status is ReplyStatus.REFUSED:
            raise GroupStuck(uid, reply.decode())
        return reply

    def ask(
        self,
        uid: int,
        command: bytes,
        timeout_s: float,
        done: Answer,
        once: bool = False,
        is_lazy: bool = False,
    ) -> Asked:
        """Send a command as `send` does; `done` hears in time, perhaps that it is late."""
        asked = Asked(done)
        early = envelopes.EARLY if once else b""
        sent = self._send(uid, command, asked.answered, once, early, None, True, is_lazy)
        if sent is not None:
            asked.withdrawn = partial(self._withdraw, uid, sent)
        self._deadlines.add(asked, timeout_s)
        return asked

    def _send(
        self,
        uid: int,
        data: bytes,
        answer: Answer,
        once: bool,
        early: bytes,
        line: object = None,
        is_asked: bool = False,
        is_lazy: bool = False,
    ) -> Command | None:
        if len(data) > self._command_bytes_max:
            raise ValueError(f"a command of {len(data)} bytes is too large")
        group = self._group(uid)
        if group is None:
            self._loop.call_soon(answer, ReplyStatus.GONE, b"")
            return None
        self._next_id += 1
        command = Command(self._next_id, data, answer, once, early, line, is_asked, is_lazy)
        if group.refusal and _is_refused(group, command):
            self._loop.call_soon(answer, ReplyStatus.REFUSED, group.refusal.encode())
            return None
        self._by_id[command.id] = (group, command)
        group.add(command)
        group.pending_bytes += len(data)
        self._pump(group)
        return command

    def _withdraw(self, uid: int, command: Command) -> None:
        """The caller waits no more: do not send it again."""
        group = self._groups.get(uid)
        if group is not None and not command.is_finished:
            self._finish(group, command)
            self._pump(group)

    # ---- sending --------------------------------------------------------------------------------

    def _pump(self, group: Group) -> None:
        """Send what waits, as far as the window allows."""
        if group.retry is not None or not group.waiting:
            return
        if group.target is None:
            group.target = self._choose_target(group)
            group.is_confirmed = group.target == group.leader
            if group.target is None:
                self._retry_later(group)
                return
        config = self._config
        waiting, sent = group.waiting, group.sent
        while waiting:
            command = waiting[0]
            if command.is_finished:
                waiting.popleft()
                continue
            size = len(command.data)
            # One command finds out who leads; the others follow when it was taken.
            if sent and (
                not group.is_confirmed
                or group.sent_bytes + size > config.inflight_bytes
                or len(sent) >= config.inflight_commands
            ):
                return
            if not self._dispatch(group, command):
                self._stall(group)
                return
            waiting.popleft()
            sent[command.id] = command
            group.sent_bytes += size
        if not group.waiting:
            group.waiting = None

    def _dispatch(self, group: Group, command: Command) -> bool:
        target = group.target
        assert target is not None
        network = self._network
        data = self._enveloped(group, command) if command.is_once else command.data
        if target != network.node:
            return network.send_request(target, command.id, group.uid, data)

        def done(accepted: bool, reply: bytes, leader: NodeId | None) -> None:
            if accepted:
                self._accepted(command.id, reply)
            elif leader == network.node:
                self._refused(command.id, target, peer_pb2.GroupReply.OVERLOADED, None)
            else:
                self._refused(command.id, target, peer_pb2.GroupReply.NOT_LEADER, leader)

        network.propose(group.uid, data, self.commit_times.timed(done), is_lazy=command.is_lazy)
        return True

    def _enveloped(self, group: Group, command: Command) -> bytes:
        after, group.once_sent = group.once_sent, command.id
        assert group.once is not None
        first = group.once[0].id
        return envelopes.encode(
            self._network.node, self._incarnation, command.id, after, first, command.data
        )

    def _choose_target(self, group: Group) -> NodeId | None:
        network = self._network
        alive = network.alive()
        if network.has_group(group.uid) and not group.is_replica_wrong:
            group.leader = network.leader_of(group.uid) or group.leader
        if group.leader in alive:
            return group.leader
        # Without a hint ask the members in turn, the living ones first.
        candidates = [node for node in group.members if node in alive] or list(group.members)
        if not candidates:
            return None
        group.next_member += 1
        return candidates[group.next_member % len(candidates)]

    def _stall(self, group: Group) -> None:
        group.take_back()
        self._retry_later(group)

    def _retry_later(self, group: Group) -> None:
        if group.retry is not None:
            return
        config = self._config
        delay_ms = min(config.retry_max_ms, config.retry_min_ms << min(group.failures, 10))
        group.failures += 1
        self._stalled.setdefault(group.uid, self._loop.time())
        delay_s = delay_ms * (0.5 + self._rng.random() / 2) / 1000
        group.retry = self._loop.call_later(delay_s, self._retry_now, group)

    def _retry_now(self, group: Group) -> None:
        if group.retry is not None:
            group.retry.cancel()
            group.retry = None
        if self._groups.get(group.uid) is group:
            self._pump(group)

    # ---- answers --------------------------------------------------------------------------------

    def reply_received(
        self, sender: NodeId, request_id: int, status: int, leader: NodeId | None, reply: bytes
    ) -> None:
        """Take an answer that came over the transport."""
        if status == peer_pb2.GroupReply.OK:
            self._accepted(request_id, reply)
        else:
            self._refused(request_id, sender, status, leader)

    def _accepted(self, command_id: int, reply: bytes) -> None:
        # Also an answer to an earlier attempt counts: the command was applied.
        found = self._by_id.get(command_id)
        if found is None:
            return
        group, command = found
        if command.early and reply.startswith(command.early):
            # An earlier one was refused or withdrawn, or a copy of this one was still on the way to
            # the member that leads now: all go again from there.
            if command_id in group.sent:
                self._too_early(group, command, reply)
            return
        self._finish(group, command)
        self._taken(group)
        command.answer(ReplyStatus.OK, reply)
        if group.waiting:
            self._pump(group)

    def _taken(self, group: Group) -> None:
        """The target leads: it has answered a command."""
        group.failures = 0
        if self._stalled:
            self._stalled.pop(group.uid, None)
        if group.target is not None:
            group.is_confirmed = True
            group.leader = group.target

    def _too_early(self, group: Group, command: Command, reply: bytes) -> None:
        """Have all go again, or give up a line of which something is missing for good."""
        if next(iter(group.sent)) == command.id:
            command.early_count += 1
        if command.line is None or command.early_count < self._config.early_max:
            self._stall(group)
            return
        lost = [
            other
            for other in group.commands()
            if other.line is command.line and not other.is_finished
        ]
        for other in lost:
            self._finish(group, other)
        self._taken(group)
        for other in lost:
            other.answer(ReplyStatus.OK, reply)
        self._pump(group)

    def _finish(self, group: Group, command: Command) -> None:
        command.is_finished = True
        self._by_id.pop(command.id, None)
        group.drop_finished()
        size = len(command.data)
        group.pending_bytes -= size
        if group.sent.pop(command.id, None) is not None:
            group.sent_bytes -= size

    def _refused(self, command_id: int, sender: NodeId, status: int, leader: NodeId | None) -> None:
        found = self._by_id.get(command_id)
        # With the first refusal everything on the way was taken back; the others are old news.
        if found is None or found[0].target != sender or command_id not in found[0].sent:
            return
        group = found[0]
        if status == peer_pb2.GroupReply.OVERLOADED:
            group.leader = sender
            self._stall(group)
            return
        group.take_back()
        if sender == self._network.leader_of(group.uid):
            group.is_replica_wrong = True
        is_hint_new = leader is not None and leader != sender
        group.leader = leader if is_hint_new else None
        if is_hint_new and group.failures < len(group.members):
            # Follow the hint at once, but not in circles.
            group.failures += 1
            group.target = leader
            group.is_confirmed = False
            self._pump(group)
        else:
            self._retry_later(group)

    # ---- news -----------------------------------------------------------------------------------

    def leader_changed(self, uid: int, leader: NodeId | None) -> None:
        """A replica here learnt who leads."""
        group = self._group(uid)
        if group is None:
            return
        group.leader = leader
        group.is_replica_wrong = False
        if leader is None or leader == group.target:
            return
        group.take_back()
        group.failures = 0
        self._retry_now(group)

    def peer_lost(self, node: NodeId) -> None:
        """Requests to a node, or its answers, may be lost: they go again."""
        for group in self._groups.values():
            if group.target == node and group.sent:
                self._stall(group)

    def peer_connected(self, node: NodeId) -> None:
        """A node can be reached again: no need to wait for the next try."""
        for group in list(self._groups.values()):
            if group.retry is not None and group.leader in (node, None):
                self._retry_now(group)


def _is_refused(group: Group, command: Command) -> bool:
    return command.is_asked or (group.refuses_lines and command.line is not None)
