"""Messages that are wrong, forged, late or huge never corrupt a group: ignored or refused."""

from __future__ import annotations

import pytest

from brokerd.raft.actions import Persist
from brokerd.raft.config import NUMBER_MAX
from brokerd.raft.inputs import Received
from brokerd.raft.membership import encode_configuration
from brokerd.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    Message,
    MessageKind,
    NodeId,
    Snapshot,
)
from tests.unit.raft.cluster import Cluster

A, B, C, X = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("x")
STAMP = bytes(8)
SNAPSHOT = Snapshot(9, 1, Configuration((A, B, C)), b"[]")


def command(index: int, term: int, data: bytes = STAMP + b"x") -> Entry:
    return Entry(index, term, EntryKind.COMMAND, data)


def append(term: int, index: int, log_term: int, *entries: Entry, commit: int = 0) -> Message:
    return Message(MessageKind.APPEND, A, B, term, index, log_term, commit, entries=list(entries))


def snapshot(value: Snapshot | None) -> Message:
    return Message(MessageKind.SNAPSHOT, A, B, 1, 9, 1, snapshot=value)


def elected() -> Cluster:
    cluster = Cluster()
    cluster.elect("a")
    cluster.propose("a", "kept")
    cluster.stabilize()
    return cluster


WRONG = {
    "not for this member": Message(MessageKind.HEARTBEAT, A, C, 5),
    "from itself": Message(MessageKind.HEARTBEAT, B, B, 5),
    "negative index": Message(MessageKind.APPEND, A, B, 1, -1),
    "term out of bounds": Message(MessageKind.HEARTBEAT, A, B, NUMBER_MAX + 1),
    "commit out of bounds": Message(MessageKind.HEARTBEAT, A, B, 1, 0, 0, NUMBER_MAX + 1),
    "log term above term": Message(MessageKind.VOTE, C, B, 5, 9, 6),
    "term zero": Message(MessageKind.HEARTBEAT, A, B, 0),
    "gap between entries": append(1, 2, 1, command(3, 1), command(5, 1)),
    "entries before their place": append(1, 2, 1, command(2, 1)),
    "terms that fall": append(3, 2, 1, command(3, 3), command(4, 2)),
    "entry of a later term": append(1, 2, 1, command(3, 2)),
    "command without stamp": append(1, 2, 1, command(3, 1, b"short")),
    "no-op with data": append(1, 2, 1, Entry(3, 1, EntryKind.NOOP, b"x")),
    "entry of unknown kind": append(1, 2, 1, Entry(3, 1, 9, b"")),
    "broken configuration": append(1, 2, 1, Entry(3, 1, EntryKind.CONFIG, b"\x01\x05")),
    "configuration without voters": append(
        1, 2, 1, Entry(3, 1, EntryKind.CONFIG, encode_configuration(Configuration(())))
    ),
    "too many entries": append(1, 2, 1, *(command(3 + i, 1) for i in range(10_241))),
    "entries in a heartbeat": Message(MessageKind.HEARTBEAT, A, B, 1, entries=[command(3, 1)]),
    "snapshot message without snapshot": snapshot(None),
    "snapshot of a later term": snapshot(Snapshot(9, 2, Configuration((A,)), b"[]")),
    "terms of a snapshot that fall": snapshot(
        Snapshot(9, 1, Configuration((A,)), b"[]", terms=((4, 1), (3, 1)))
    ),
    "terms of a snapshot that end elsewhere": snapshot(
        Snapshot(9, 1, Configuration((A,)), b"[]", terms=((10, 1),))
    ),
    "snapshot without voters": snapshot(Snapshot(9, 1, Configuration(()), b"[]")),
    "snapshot with later live entry": snapshot(
        Snapshot(9, 1, Configuration((A,)), b"[]", [command(10, 1)])
    ),
    "snapshot with unsorted live entries": snapshot(
        Snapshot(9, 1, Configuration((A,)), b"[]", [command(5, 1), command(4, 1)])
    ),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=list(WRONG))
def test_senseless_message_changes_nothing_and_is_counted(message: Message) -> None:
    cluster = elected()
    before = cluster.replicas[B].overview()
    actions = cluster.feed("b", Received(message))
    after = cluster.replicas[B].overview()
    assert actions == []
    assert after.pop("ignored_messages") == 1
    before.pop("ignored_messages")
    assert after == before


@pytest.mark.plain
def test_a_message_of_an_unknown_kind_changes_nothing_and_is_counted() -> None:
    """A compiled message has no place for it: the decoder refuses it before."""
    unknown = Message(99, A, B, 5)  # type: ignore[arg-type]
    test_senseless_message_changes_nothing_and_is_counted(unknown)


def test_gap_behind_the_log_is_refused_with_a_hint() -> None:
    cluster = elected()
    actions = cluster.feed("b", Received(append(1, 7, 1, command(8, 1))))
    assert [a for a in actions if isinstance(a, Persist)] == []
    (reply,) = cluster.wire
    assert (reply.kind, reply.reject, reply.hint) == (MessageKind.APPEND_REPLY, True, 2)


def test_second_leader_in_a_term_is_not_believed() -> None:
    """Raft thesis §3.2, election safety."""
    cluster = elected()
    forged = Message(MessageKind.APPEND, C, B, 1, 2, 1, 2, entries=[command(3, 1)])
    assert cluster.feed("b", Received(forged)) == []
    assert cluster.replicas[B].leader == A
    own = Message(MessageKind.HEARTBEAT, C, A, 1)
    assert cluster.feed("a", Received(own)) == []
    assert cluster.replicas[A].is_leader


def test_committed_entries_are_never_removed_whatever_a_leader_sends() -> None:
    cluster = elected()
    other = Message(MessageKind.APPEND, C, B, 9, 0, 0, 0, entries=[command(1, 9), command(2, 9)])
    cluster.feed("b", Received(other))
    cluster.stabilize("b")
    assert [entry.term for entry in cluster.disks[B].log] == [1, 1]


def test_commit_index_beyond_the_log_is_clamped() -> None:
    cluster = elected()
    cluster.feed("b", Received(Message(MessageKind.HEARTBEAT, A, B, 1, 0, 0, 1000)))
    assert cluster.replicas[B].commit_index == 2
    cluster.feed("b", Received(append(1, 2, 1, command(3, 1), commit=1000)))
    assert cluster.replicas[B].commit_index == 3


@pytest.mark.parametrize(
    "kind",
    [
        MessageKind.APPEND_REPLY,
        MessageKind.HEARTBEAT_REPLY,
        MessageKind.VOTE_REPLY,
        MessageKind.SNAPSHOT_REPLY,
    ],
)
def test_answers_of_strangers_neither_count_nor_depose(kind: MessageKind) -> None:
    cluster = elected()
    for term in (1, 50):
        cluster.feed("a", Received(Message(kind, X, A, term, 2)))
    assert cluster.replicas[A].is_leader
    assert cluster.replicas[A].term == 1


def test_acknowledgement_of_what_was_never_sent_is_ignored() -> None:
    cluster = elected()
    (token,) = cluster.propose("a", "x")
    cluster.drop()
    cluster.sync("a")
    cluster.feed("a", Received(Message(MessageKind.APPEND_REPLY, B, A, 1, 99)))
    assert token not in cluster.replies
    assert cluster.replicas[A].match_of(B) == 2


def test_votes_of_strangers_and_second_votes_do_not_elect() -> None:
    cluster = Cluster("abcde")
    cluster.feed("a", Received(Message(MessageKind.TIMEOUT_NOW, X, A, 1)))
    cluster.stabilize("a")
    for sender in (X, B, B):
        cluster.feed("a", Received(Message(MessageKind.VOTE_REPLY, sender, A, 2)))
    assert not cluster.replicas[A].is_leader


def test_vote_is_given_once_per_term_also_across_a_restart() -> None:
    """Raft thesis §3.8: the vote is on disk before the answer leaves."""
    cluster = Cluster()
    cluster.feed("b", Received(Message(MessageKind.VOTE, A, B, 3)))
    assert cluster.wire == []
    cluster.sync("b")
    assert [m.reject for m in cluster.wire] == [False]
    cluster.restart("b")
    cluster.feed("b", Received(Message(MessageKind.VOTE, C, B, 3)))
    cluster.sync("b")
    assert [(m.to, m.reject) for m in cluster.wire] == [(A, False), (C, True)]


def test_installed_snapshot_replaces_an_older_log_and_is_acknowledged_after_the_disk() -> None:
    cluster = elected()
    assert not cluster.replicas[B].is_installing
    cluster.feed("b", Received(snapshot(SNAPSHOT)))
    assert cluster.wire == []
    cluster.feed("b", Received(append(1, 9, 1, command(10, 1))))
    assert cluster.replicas[B].last_index == 9
    assert cluster.replicas[B].is_installing
    cluster.sync("b")
    assert not cluster.replicas[B].is_installing
    assert [(m.kind, m.index) for m in cluster.wire] == [(MessageKind.SNAPSHOT_REPLY, 9)]
    cluster.feed("b", Received(snapshot(SNAPSHOT)))
    assert cluster.wire[-1].index == 9
    assert cluster.replicas[B].applied_index == 9
