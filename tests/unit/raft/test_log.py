"""The log in memory: what it holds, where it ends, what a write vouches for."""

from __future__ import annotations

import pytest

from brokerd.raft.errors import BrokenLogError
from brokerd.raft.log import RaftLog
from brokerd.raft.messages import Entry, EntryKind, Message, MessageKind, NodeId
from tests.simulation.disk import FakeDisk
from tests.unit.raft.cluster import command, one_node

A, B, C, D = NodeId("a"), NodeId("b"), NodeId("c"), NodeId("d")


def log_of(*terms: int, commit: int = 0) -> RaftLog:
    """Return a log of commands with these terms, all of it in memory."""
    log = RaftLog(FakeDisk(), commit=0)
    log.append([command(index, term) for index, term in enumerate(terms, 1)])
    log.committed = commit
    return log


def stored_log(*terms: int) -> RaftLog:
    """Return a log of commands with these terms, all of it on disk."""
    disk = FakeDisk()
    disk.log = [command(index, term) for index, term in enumerate(terms, 1)]
    return RaftLog(disk, commit=0)


def test_entries_end_where_they_are_asked_to_end() -> None:
    log = log_of(1, 1, 1, 1, 1)
    assert [e.index for e in log.entries(1, 3, 1 << 20, 99)] == [1, 2]
    assert [e.index for e in log.entries(2, 5, 1 << 20, 2)] == [2, 3]
    stored = stored_log(1, 1, 1, 1, 1)
    assert [e.index for e in stored.entries(1, 6, 1 << 20, 2)] == [1, 2]
    assert [e.index for e in stored.entries(2, 4, 1 << 20, 99)] == [2, 3]


def test_an_entry_that_fits_exactly_is_sent_along() -> None:
    log = log_of(1, 1, 1)
    assert len(log.entries(1, 4, 18, 99)) == 2
    assert len(log.entries(1, 4, 17, 99)) == 1


def test_the_term_before_what_is_in_memory_is_kept() -> None:
    log = log_of(1, 2, 3, commit=2)
    log.handed_out()
    log.persisted_to(3)
    log.applied_to(2)
    assert (log.offset, log.term(2)) == (3, 2)


def test_errors_of_the_log_name_the_index() -> None:
    log = log_of(1, 1, commit=1)
    for broken, index in (
        (lambda: log.truncate(1), 1),
        (lambda: log.append([command(5, 1)]), 5),
        (lambda: log.applied_to(2), 2),
    ):
        with pytest.raises(BrokenLogError) as caught:
            broken()
        assert caught.value.index == index
        assert f"(index {index})" in str(caught.value)


def test_a_write_that_was_cut_vouches_for_what_is_left_of_it() -> None:
    """Raft thesis §3.5 with asynchronous writes."""
    node = one_node()
    node.step(Message(MessageKind.HEARTBEAT, B, A, 1))
    entries = [command(index, 1) for index in (1, 2, 3)]
    node.step(Message(MessageKind.APPEND, B, A, 1, entries=entries))
    first = node.ready()
    assert first is not None
    node.step(Message(MessageKind.APPEND, C, A, 2, 2, 1, entries=[command(3, 2)]))
    assert node.ready() is not None
    node.advance_persisted(first.token)
    assert node.log.stable == 2


def test_a_round_of_messages_alone_writes_nothing() -> None:
    node = one_node()
    node.campaign()
    ready = node.ready()
    assert ready is not None
    assert len(ready.messages) == 2
    assert (ready.token, ready.hard_state, ready.entries, ready.snapshot) == (0, None, [], None)


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(first + i, term, EntryKind.COMMAND, bytes(9)) for i, term in enumerate(terms)]


def test_log_drops_from_memory_what_is_persisted_and_applied() -> None:
    disk = FakeDisk()
    log = RaftLog(disk, commit=0)
    log.append(entries(1, 1, 1, 2))
    assert [e.index for e in log.handed_out()] == [1, 2, 3]
    log.committed = 2
    disk.log = entries(1, 1, 1, 2)
    log.persisted_to(3)
    assert len(log.tail) == 3
    log.applied_to(2)
    assert [e.index for e in log.tail] == [3]
    assert [log.term(i) for i in range(5)] == [0, 1, 1, 2, None]
    assert [e.index for e in log.entries(1, 4, 1 << 20, 99)] == [1, 2]
    assert [e.index for e in log.entries(3, 4, 1, 99)] == [3]


def test_log_refuses_to_remove_committed_entries_or_to_leave_gaps() -> None:
    log = RaftLog(FakeDisk(), commit=0)
    log.append(entries(1, 1, 1))
    log.committed = 1
    with pytest.raises(BrokenLogError):
        log.truncate(1)
    with pytest.raises(BrokenLogError):
        log.append(entries(5, 1))
    with pytest.raises(BrokenLogError):
        log.applied_to(2)


def test_entries_are_bounded_by_bytes_and_count_but_never_empty() -> None:
    log = RaftLog(FakeDisk(), commit=0)
    log.append(entries(1, 1, 1, 1, 1))
    assert len(log.entries(1, 5, 18, 99)) == 2
    assert len(log.entries(1, 5, 1, 99)) == 1
    assert len(log.entries(1, 5, 999, 3)) == 3


def test_conflict_by_term_skips_a_whole_term() -> None:
    log = RaftLog(FakeDisk(), commit=0)
    log.append(entries(1, 1, 1, 4, 4, 4))
    assert log.find_conflict_by_term(5, 3) == 2
    assert log.find_conflict_by_term(99, 4) == 5
    assert log.find_conflict_by_term(2, 0) == 0
