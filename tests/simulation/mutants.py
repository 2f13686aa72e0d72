"""Planted bugs: a simulator that misses one of them has a blind spot (design/replication.md §5).

Each mutant swaps one method of the raft room for a wrong one while the context manager is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from brokerd.raft import quorum
from brokerd.raft.following import Following
from brokerd.raft.log import RaftLog
from brokerd.raft.messages import Entry, HardState, Message, MessageKind
from brokerd.raft.node import RaftNode
from brokerd.raft.node_state import NodeState
from brokerd.raft.progress import Progress
from brokerd.raft.replication import Replication
from tests.simulation.world import World


def _too_small_majority(voter_count: int) -> int:
    return max(1, voter_count // 2)


def _acknowledge_before_sync(node: NodeState, message: Message) -> None:
    if message.kind == MessageKind.APPEND_REPLY:
        node.send(message)
    else:
        node._after_write.append(message)


_write_hard_state = RaftNode._hard_state_to_write


def _forget_vote(node: RaftNode, term_changed: bool) -> HardState | None:
    state = _write_hard_state(node, term_changed)
    return None if state is None else HardState(state.term, None, state.commit)


def _count_own_unsynced(replication: Replication) -> int:
    return replication._node.log.last


def _commit_any_term(replication: Replication, index: int) -> bool:
    return True


def _unclamped_heartbeat_commit(replication: Replication, progress: Progress) -> int:
    return replication._node.log.committed


def _no_previous_term_check(following: Following, message: Message) -> bool:
    return message.index <= following._node.log.last


def _blind_truncation(following: Following, entries: list[Entry]) -> None:
    node = following._node
    if entries[0].index <= node.log.last:
        node.truncate(entries[0].index)
    node.log.append(entries)
    node.configurations_appended(entries)


def _trust_overtaken_writes(node: NodeState, first: int) -> None:
    node.log.truncate(first)
    node._history.truncate(first)


def _always_up_to_date(log: RaftLog, last: int, last_term: int) -> bool:
    return True


#: Name -> (where, attribute, replacement).
MUTANTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "too-small-quorum": (quorum, "majority", _too_small_majority),
    "acknowledgement-before-sync": (NodeState, "send_after_write", _acknowledge_before_sync),
    "vote-not-persisted": (RaftNode, "_hard_state_to_write", _forget_vote),
    "leader-counts-own-unsynced": (Replication, "own_match", _count_own_unsynced),
    "commits-old-terms": (Replication, "may_commit", _commit_any_term),
    "unclamped-heartbeat-commit": (
        Replication,
        "heartbeat_commit",
        _unclamped_heartbeat_commit,
    ),
    "no-previous-term-check": (Following, "matches_previous", _no_previous_term_check),
    "blind-truncation": (Following, "take_entries", _blind_truncation),
    "overtaken-writes-trusted": (NodeState, "truncate", _trust_overtaken_writes),
    "votes-for-anyone": (RaftLog, "is_up_to_date", _always_up_to_date),
}

#: Name -> the profile in which it shows soonest, and how many seeds it may take.
BUDGETS = {
    "too-small-quorum": ("mixed", 5),
    "acknowledgement-before-sync": ("mixed", 10),
    "vote-not-persisted": ("duels", 400),
    "leader-counts-own-unsynced": ("duels", 10),
    "commits-old-terms": ("figure-8", 200),
    "unclamped-heartbeat-commit": ("figure-8", 40),
    "no-previous-term-check": ("figure-8", 40),
    "blind-truncation": ("duels", 60),
    "overtaken-writes-trusted": ("duels", 250),
    "votes-for-anyone": ("figure-8", 40),
}
#: The ones of every run: those that are found soon.
CI = {"too-small-quorum", "acknowledgement-before-sync", "leader-counts-own-unsynced"}


def hunt(name: str) -> tuple[int, str] | None:
    """Return how many seeds it took to find a planted bug, and how it showed; None: missed.

    A seed that fails without the bug as well has found something else, and does not count.
    """
    profile, budget = BUDGETS[name]
    for seed in range(1, budget + 1):
        with planted(name):
            failure = _failure(seed, profile)
        if failure is not None and _failure(seed, profile) is None:
            return seed, failure
    return None


def _failure(seed: int, profile: str) -> str | None:
    try:
        World(seed, profile=profile).run()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug for the length of a with-block."""
    owner, attribute, replacement = MUTANTS[name]
    original = getattr(owner, attribute)
    setattr(owner, attribute, replacement)
    try:
        yield
    finally:
        setattr(owner, attribute, original)
