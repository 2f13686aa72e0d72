"""Runs raft transcripts: a line per command, what came of it indented below.

    > group abc [learners=d] [joining=e] [append_entries_max=1 snapshot_entries=3 ...] [patient=1]
    > campaign a                    > propose a text ...         > tick a 3
    > deliver [b c]                 what is on the wire now (only to these)
    > lose [b]                      what is on the wire now (only to these)
    > repeat                        what is on the wire is there twice
    > sync a [1]                    writes reach the disk (only the oldest so many)
    > stabilize [a b]               sync and deliver until nothing moves (the rest is cut off)
    > crash a   > start a           unsynced writes are lost
    > roll_back a 3                 the disk of a, which is down, has lost what came behind entry 3
    > transfer a b                  > change a voters=abd learners=e
    > look a                        somebody looks at its machine (CatchUp)
    > unreachable a b               > alive b               > gone b a (a's process ended)
    > send VOTE c b term=2 index=5 log_term=1 commit=0      a message that nobody really sent
    > status                        > log a                 > members [a]
    > progress a                    what leader a knows of the others
    > patience                      ticks without a leader, of how many, at each member

Actions are shown as they come out, except under a quiet command (`quietly stabilize`).
"""

from __future__ import annotations

from collections.abc import Callable

from brokerd.raft.actions import (
    Action,
    Contradicted,
    InstallSnapshot,
    Persist,
    Realise,
    Reply,
    RoleChanged,
    SaveSnapshot,
    Send,
)
from brokerd.raft.config import RaftConfig
from brokerd.raft.inputs import (
    CatchUp,
    LeaderAlive,
    NodeGone,
    PeerUnreachable,
    Received,
    TransferLeadership,
)
from brokerd.raft.messages import Entry, EntryKind, Message, MessageKind, NodeId
from brokerd.raft.progress import ProgressState
from tests.transcripts.scenarios import Runner
from tests.unit.raft.cluster import Cluster


def show_entry(entry: Entry) -> str:
    """Return `index/term what`."""
    kind = EntryKind(entry.kind)
    what = entry.data[8:].decode() if kind is EntryKind.COMMAND else kind.name
    return f"{entry.index}/{entry.term} {what}"


def show_message(message: Message) -> str:
    """Return a message in one line; only fields that say something."""
    parts = [f"{message.sender}->{message.to} {message.kind.name} term={message.term}"]
    if message.kind in (MessageKind.APPEND, MessageKind.VOTE, MessageKind.PRE_VOTE):
        parts.append(f"at={message.index}/{message.log_term}")
    elif message.index:
        parts.append(f"index={message.index}")
    if message.commit:
        parts.append(f"commit={message.commit}")
    if message.reject:
        parts.append(f"REJECT hint={message.hint}/{message.log_term}")
    if message.force:
        parts.append("force")
    if message.entries:
        parts.append("[" + ", ".join(show_entry(entry) for entry in message.entries) + "]")
    return " ".join(parts)


def show_action(action: Action) -> str:
    """Return an action in one line."""
    return _SHOW[type(action)](action)


def _show_persist(action: Persist) -> str:
    parts = [f"persist #{action.token}"]
    if action.hard_state is not None:
        state = action.hard_state
        parts.append(f"term={state.term} vote={state.vote} commit={state.commit}")
    if action.entries:
        parts.append("[" + ", ".join(show_entry(entry) for entry in action.entries) + "]")
    return " ".join(parts)


def _show_reply(action: Reply) -> str:
    if action.accepted:
        return f"reply #{action.token} {action.reply.decode()}"
    return f"refuse #{action.token} leader={action.leader} {action.reply.decode()}".rstrip()


_SHOW: dict[type[object], Callable[..., str]] = {
    Persist: _show_persist,
    Send: lambda action: "send " + show_message(action.message),
    Reply: _show_reply,
    Realise: lambda action: f"realise {action.index}/{action.term} {action.effects}",
    SaveSnapshot: lambda action: f"save snapshot {action.snapshot.index}/{action.snapshot.term}",
    InstallSnapshot: lambda action: (
        f"install #{action.token} snapshot {action.snapshot.index}/{action.snapshot.term}"
    ),
    Contradicted: lambda action: (
        f"contradicted from {action.contradiction.first}/{action.contradiction.term} of "
        f"{action.contradiction.last}, by {action.contradiction.leader}"
    ),
    RoleChanged: lambda action: (
        f"term {action.term}, " + ("leads" if action.is_leader else f"leader {action.leader}")
    ),
}


class Transcript(Runner):
    """One group, driven by lines."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self._shown: list[str] = []

    def step(self, line: str) -> list[str]:
        """Run one command; return what came of it."""
        words = line.split()
        is_quiet = words[0] == "quietly"
        if is_quiet:
            del words[0]
        plain = [word for word in words[1:] if "=" not in word]
        options = dict(word.split("=") for word in words if "=" in word)
        self._shown = []
        _STEPS[words[0]](self, plain, options)
        return [] if is_quiet else self._shown

    def _note(self, node: NodeId, action: Action) -> None:
        self._shown.append(f"{node}: {show_action(action)}")

    def group(self, words: list[str], options: dict[str, str]) -> None:
        """Begin with a new group."""
        learners = options.pop("learners", "")
        joining = options.pop("joining", "")
        is_prompt = not options.pop("patient", "")
        config = RaftConfig(**{key: int(text) for key, text in options.items()})
        self.cluster = Cluster(
            words[0], learners=learners, joining=joining, config=config, is_prompt=is_prompt
        )
        self.cluster.watch = self._note

    def campaign(self, words: list[str], options: dict[str, str]) -> None:
        """Stand for election."""
        self.cluster.feed(words[0], TransferLeadership(NodeId(words[0])))

    def transfer(self, words: list[str], options: dict[str, str]) -> None:
        """Hand leadership over."""
        self.cluster.feed(words[0], TransferLeadership(NodeId(words[1])))

    def propose(self, words: list[str], options: dict[str, str]) -> None:
        """Propose commands."""
        self.cluster.propose(words[0], *words[1:])

    def tick(self, words: list[str], options: dict[str, str]) -> None:
        """Let time pass at one member."""
        self.cluster.tick(words[0], int(words[1]))

    def deliver(self, words: list[str], options: dict[str, str]) -> None:
        """Deliver what is on the wire."""
        self.cluster.deliver(*words)

    def lose(self, words: list[str], options: dict[str, str]) -> None:
        """Lose what is on the wire."""
        self.cluster.wire = [m for m in self.cluster.wire if words and m.to not in words]

    def repeat(self, words: list[str], options: dict[str, str]) -> None:
        """Let the network deliver everything twice."""
        self.cluster.wire += self.cluster.wire

    def sync(self, words: list[str], options: dict[str, str]) -> None:
        """Let writes reach the disk."""
        self.cluster.sync(words[0], int(words[1]) if len(words) > 1 else None)

    def stabilize(self, words: list[str], options: dict[str, str]) -> None:
        """Let everything happen that can."""
        self.cluster.stabilize(*words)

    def crash(self, words: list[str], options: dict[str, str]) -> None:
        """Stop a member."""
        self.cluster.crash(words[0])

    def start(self, words: list[str], options: dict[str, str]) -> None:
        """Boot a member."""
        self.cluster.start(words[0])

    def roll_back(self, words: list[str], options: dict[str, str]) -> None:
        """Take away what a disk had synced."""
        self.cluster.roll_back(words[0], int(words[1]))

    def change(self, words: list[str], options: dict[str, str]) -> None:
        """Change the membership."""
        self.cluster.change(words[0], options["voters"], options.get("learners", ""))

    def unreachable(self, words: list[str], options: dict[str, str]) -> None:
        """Report loss towards a peer."""
        self.cluster.feed(words[0], PeerUnreachable(NodeId(words[1])))

    def alive(self, words: list[str], options: dict[str, str]) -> None:
        """Report that the leader's node was heard."""
        self.cluster.feed(words[0], LeaderAlive())

    def look(self, words: list[str], options: dict[str, str]) -> None:
        """Have everything applied that is known to be committed."""
        self.cluster.feed(words[0], CatchUp())

    def gone(self, words: list[str], options: dict[str, str]) -> None:
        """Report that a node's process has ended."""
        self.cluster.feed(words[0], NodeGone(NodeId(words[1])))

    def send(self, words: list[str], options: dict[str, str]) -> None:
        """Hand a member a message that nobody really sent."""
        numbers = {key: int(text) for key, text in options.items()}
        message = Message(
            MessageKind[words[0]],
            NodeId(words[1]),
            NodeId(words[2]),
            numbers.pop("term"),
            reject="reject" in words,
            force="force" in words,
            **numbers,
        )
        self.cluster.feed(words[2], Received(message))

    def members(self, words: list[str], options: dict[str, str]) -> None:
        """Show the configuration in force."""
        for node, replica in self.cluster.replicas.items():
            if not words or node in words:
                configuration = replica.configuration
                learners = "".join(configuration.learners)
                self._shown.append(
                    f"{node} voters={''.join(configuration.voters)}"
                    + (f" learners={learners}" if learners else "")
                )

    def progress(self, words: list[str], options: dict[str, str]) -> None:
        """Show what a leader knows of the others."""
        for peer in self.cluster.replicas[NodeId(words[0])]._node.replication.peers.values():
            parts = [f"{peer.node} {peer.state.name} match={peer.match} next={peer.next}"]
            if peer.inflights:
                parts.append(f"inflight={list(peer.inflights)}")
            if peer.state is ProgressState.SNAPSHOT:
                parts.append(f"snapshot={peer.snapshot_index}")
            if peer.is_paused:
                parts.append("paused")
            self._shown.append(" ".join(parts))

    def patience(self, words: list[str], options: dict[str, str]) -> None:
        """Show how long each member has waited, and how long it will."""
        for node, replica in self.cluster.replicas.items():
            raft = replica._node
            suspect = " doubts" if raft.is_leader_suspect else ""
            self._shown.append(
                f"{node} waited={raft.election_elapsed} of {raft._election_timeout}{suspect}"
            )

    def status(self, words: list[str], options: dict[str, str]) -> None:
        """Show where everyone stands."""
        for node, replica in self.cluster.replicas.items():
            view = replica.overview()
            quiet = " quiet" if replica.is_quiet else ""
            self._shown.append(
                f"{node} {view['role']} term={view['term']} leader={view['leader']} "
                f"last={view['last_index']} commit={view['commit_index']} "
                f"applied={self.cluster.applied(node)}{quiet}"
            )

    def log(self, words: list[str], options: dict[str, str]) -> None:
        """Show what a member's disk holds."""
        disk = self.cluster.disks[NodeId(words[0])]
        if disk.saved is not None:
            self._shown.append(f"snapshot {disk.saved.index}/{disk.saved.term}")
        self._shown += [show_entry(entry) for entry in disk.log]


_STEPS: dict[str, Callable[[Transcript, list[str], dict[str, str]], None]] = {
    "alive": Transcript.alive,
    "campaign": Transcript.campaign,
    "change": Transcript.change,
    "crash": Transcript.crash,
    "deliver": Transcript.deliver,
    "gone": Transcript.gone,
    "group": Transcript.group,
    "log": Transcript.log,
    "look": Transcript.look,
    "lose": Transcript.lose,
    "members": Transcript.members,
    "patience": Transcript.patience,
    "progress": Transcript.progress,
    "propose": Transcript.propose,
    "repeat": Transcript.repeat,
    "roll_back": Transcript.roll_back,
    "send": Transcript.send,
    "stabilize": Transcript.stabilize,
    "start": Transcript.start,
    "status": Transcript.status,
    "sync": Transcript.sync,
    "tick": Transcript.tick,
    "transfer": Transcript.transfer,
    "unreachable": Transcript.unreachable,
}
