"""A replica with a loss neither votes nor leads, whatever comes in whatever order (G8).

What becomes of each loss stands in tests/transcripts/replica_health.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.replica_health import REQUIRES_VOTE, Action, Loss, ReplicaHealth
from brokerd.raft.messages import MessageKind


class OneTerm:
    """A log of entries of term 1, from the first one on."""

    def first_index(self) -> int:
        return 1

    def term(self, index: int) -> int | None:
        return 1


numbers = st.integers(0, 5)
terms = st.integers(1, 2)
flags = st.booleans()
events = st.one_of(
    st.builds(replica_health.LogOpened, flags),
    st.builds(replica_health.LogForgotten),
    st.builds(replica_health.RegressionSuspected),
    st.builds(replica_health.Contradicted),
    st.builds(replica_health.Released),
    st.builds(replica_health.FellBehind, flags, flags),
    st.builds(replica_health.LeaderSaid, terms, terms, numbers, flags),
    st.builds(replica_health.Progressed, terms, terms, numbers, st.just(OneTerm())),
    st.builds(replica_health.LiveCompared, flags),
    st.builds(replica_health.SnapshotInstalled, flags),
    st.builds(replica_health.RefillRecorded),
    st.builds(replica_health.SuspicionEnded, flags),
)
#: Which events may take which loss away; nothing does that for the others.
WAYS_BACK: dict[type[replica_health.Event], Loss] = {
    replica_health.SnapshotInstalled: Loss.ENTRIES,
    replica_health.SuspicionEnded: Loss.ENTRIES,
    replica_health.RefillRecorded: Loss.ENTRIES | Loss.PAST,
}


@given(st.lists(events, max_size=30))
def test_a_loss_lasts_until_something_makes_it_good(sequence: list[replica_health.Event]) -> None:
    replica = ReplicaHealth()
    for event in sequence:
        before, could_vote = replica.losses, replica.may_vote
        action = replica.handle(event)
        replica.check_invariants()
        gone = before & ~replica.losses
        assert gone in WAYS_BACK.get(type(event), replica_health.NONE)
        is_asked = replica.may_vote and type(event) is not replica_health.RefillRecorded
        assert (action is Action.RUN) <= (replica.may_vote and (not could_vote or not is_asked))
        assert replica.is_suspected == (Loss.PAST in replica.losses)
        for kind in MessageKind:
            assert replica.admits(kind) == (replica.may_vote or kind not in REQUIRES_VOTE)


def test_a_whole_replica_asks_for_nothing() -> None:
    replica = ReplicaHealth()
    replica.handle(replica_health.LeaderSaid(1, 1, 9))
    assert replica.heard == 0
    assert replica.handle(replica_health.Progressed(1, 1, 9, OneTerm())) is None
    assert replica.handle(replica_health.LiveCompared(is_complete=False)) is None
    assert replica.handle(replica_health.SuspicionEnded(is_log_damaged=False)) is None
    assert replica.may_vote
