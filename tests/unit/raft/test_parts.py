"""The small parts: quorum, configurations, progress, log."""

from __future__ import annotations

import random

import pytest

from brokerd.raft import membership, quorum
from brokerd.raft.errors import BrokenLogError, CorruptEntryError
from brokerd.raft.log import RaftLog
from brokerd.raft.messages import Configuration, Entry, EntryKind, NodeId
from brokerd.raft.progress import Progress, ProgressState
from brokerd.raft.quorum import VoteResult
from tests.simulation.disk import FakeDisk

A, B, C, D = (NodeId(n) for n in "abcd")
ABC = Configuration((A, B, C))


def entries(first: int, *terms: int) -> list[Entry]:
    return [Entry(first + i, term, EntryKind.COMMAND, bytes(9)) for i, term in enumerate(terms)]


@pytest.mark.parametrize(
    ("matches", "index"),
    [([], 0), ([7], 7), ([7, 5], 5), ([9, 5, 7], 7), ([9, 5, 7, 1], 5), ([1, 2, 3, 4, 5], 3)],
)
def test_committed_index_is_what_a_majority_holds(matches: list[int], index: int) -> None:
    assert quorum.committed_index(matches) == index


def test_election_is_won_or_lost_by_majority_of_voters_only() -> None:
    voters = (A, B, C)
    assert quorum.vote_result(voters, {A: True}) is VoteResult.PENDING
    assert quorum.vote_result(voters, {A: True, D: True}) is VoteResult.PENDING
    assert quorum.vote_result(voters, {A: True, B: True}) is VoteResult.WON
    assert quorum.vote_result(voters, {A: True, B: False, C: False}) is VoteResult.LOST
    assert quorum.vote_result((), {}) is VoteResult.LOST


def test_configuration_survives_its_codec() -> None:
    configuration = Configuration((A, B, C), (D, NodeId("n" * 255)))
    data = membership.encode_configuration(configuration)
    assert membership.decode_configuration(data) == configuration


def test_damaged_configuration_is_an_error_and_nothing_else() -> None:
    data = membership.encode_configuration(ABC)
    for length in range(len(data)):
        with pytest.raises(CorruptEntryError):
            membership.decode_configuration(data[:length])
    rng = random.Random(1)
    for _ in range(500):
        damaged = bytearray(data)
        damaged[rng.randrange(len(data))] = rng.randrange(256)
        try:
            configuration = membership.decode_configuration(bytes(damaged))
        except CorruptEntryError:
            continue
        assert membership.fault_of_configuration(configuration) is None
    with pytest.raises(CorruptEntryError):
        membership.decode_configuration(data + b"x")


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (Configuration((A, B)), None),
        (Configuration((A, B, C, D)), None),
        (Configuration((A, B, C), (D,)), None),
        (Configuration((A, B), (C,)), None),
        (ABC, "nothing changes"),
        (Configuration((A,)), "only one member"),
        (Configuration((A, B, D)), "only one member"),
        (Configuration(()), "at least one voter"),
        (Configuration((A, C, B, D)), "not sorted"),
        (Configuration((A, B, C), (C,)), "named twice"),
        (Configuration((NodeId(""), A, B, C)), "empty or too long"),
    ],
)
def test_only_one_member_changes_at_a_time(wanted: Configuration, fault: str | None) -> None:
    """Raft thesis §4.1."""
    found = membership.fault_of_change(ABC, wanted)
    assert found is None if fault is None else fault in (found or "")


def test_history_of_configurations_falls_back_when_truncated() -> None:
    history = membership.ConfigurationHistory(ABC)
    wider = Configuration((A, B, C, D))
    history.append(5, wider)
    assert history.current == wider
    assert history.at(4) == ABC
    history.truncate(5)
    assert history.current == ABC
    history.append(6, wider)
    history.settle(6)
    history.truncate(6)
    assert history.current == wider


def test_configuration_before_an_uncommitted_one_is_found_after_a_restart() -> None:
    wider = Configuration((A, B, C, D))
    disk = FakeDisk()
    disk.log = entries(1, 1, 1)
    disk.log.append(Entry(3, 1, EntryKind.CONFIG, membership.encode_configuration(wider)))
    log = RaftLog(disk, commit=1)
    history = membership.recover(log, disk, wider, ABC, 1 << 20)
    assert history.current == wider
    history.truncate(3)
    assert history.current == ABC


def test_progress_pipelines_up_to_its_window_and_frees_it_by_acknowledgements() -> None:
    progress = Progress(B, 1, inflight_max=2)
    progress.acknowledge(3)
    progress.become_replicate()
    progress.inflights.extend([4, 5])
    assert progress.is_paused
    assert progress.acknowledge(4)
    assert not progress.is_paused
    assert not progress.acknowledge(4)


def test_progress_steps_back_to_the_hint_and_never_behind_the_match() -> None:
    progress = Progress(B, 10, inflight_max=2)
    progress.probe_sent = True
    assert not progress.reject(4, 2)
    assert progress.reject(9, 5)
    assert (progress.next, progress.probe_sent) == (6, False)
    progress.acknowledge(5)
    progress.become_replicate()
    assert not progress.reject(5, 1)
    assert progress.reject(8, 1)
    assert (progress.state, progress.next) == (ProgressState.PROBE, 6)


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
