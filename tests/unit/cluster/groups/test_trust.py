"""A replica with a loss neither votes nor leads, whatever comes in whatever order (G8).

What becomes of each loss stands in tests/transcripts/trust.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.groups import trust
from brokerd.cluster.groups.trust import REQUIRES_VOTE, Action, Loss, Trust
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
    st.builds(trust.LogOpened, flags),
    st.builds(trust.LogForgotten),
    st.builds(trust.Doubted),
    st.builds(trust.Contradicted),
    st.builds(trust.Released),
    st.builds(trust.FellBehind, flags, flags),
    st.builds(trust.LeaderSaid, terms, terms, numbers, flags),
    st.builds(trust.Progressed, terms, terms, numbers, st.just(OneTerm())),
    st.builds(trust.LiveCompared, flags),
    st.builds(trust.SnapshotInstalled, flags),
    st.builds(trust.RefillRecorded),
    st.builds(trust.DoubtsEnded, flags),
)
#: Which events may take which loss away; nothing does that for the others.
WAYS_BACK: dict[type[trust.Event], Loss] = {
    trust.SnapshotInstalled: Loss.ENTRIES,
    trust.DoubtsEnded: Loss.ENTRIES,
    trust.RefillRecorded: Loss.ENTRIES | Loss.PAST,
}


@given(st.lists(events, max_size=30))
def test_a_loss_lasts_until_something_makes_it_good(sequence: list[trust.Event]) -> None:
    replica = Trust()
    for event in sequence:
        before, could_vote = replica.losses, replica.may_vote
        action = replica.handle(event)
        replica.check_invariants()
        gone = before & ~replica.losses
        assert gone in WAYS_BACK.get(type(event), trust.NONE)
        is_asked = replica.may_vote and type(event) is not trust.RefillRecorded
        assert (action is Action.RUN) <= (replica.may_vote and (not could_vote or not is_asked))
        assert replica.is_doubted == (Loss.PAST in replica.losses)
        for kind in MessageKind:
            assert replica.admits(kind) == (replica.may_vote or kind not in REQUIRES_VOTE)


def test_a_whole_replica_asks_for_nothing() -> None:
    replica = Trust()
    replica.handle(trust.LeaderSaid(1, 1, 9))
    assert replica.heard == 0
    assert replica.handle(trust.Progressed(1, 1, 9, OneTerm())) is None
    assert replica.handle(trust.LiveCompared(is_complete=False)) is None
    assert replica.handle(trust.DoubtsEnded(is_log_damaged=False)) is None
    assert replica.may_vote
