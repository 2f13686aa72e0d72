"""What a leader knows about one follower, and how fast it may send to it (after etcd-io/raft's
tracker).
"""

from __future__ import annotations

from bisect import bisect_right
from enum import IntEnum

from brokerd.raft.messages import NodeId


class ProgressState(IntEnum):
    """How the leader sends to a follower."""

    #: Unknown where the logs part: one APPEND at a time, the next after an answer or a heartbeat's.
    PROBE = 0
    #: Logs agree: APPENDs are pipelined, `next` runs ahead of `match`.
    REPLICATE = 1
    #: A snapshot is on its way: nothing else is sent.
    SNAPSHOT = 2


#: Looked up once: the way through the class costs more, per message.
_REPLICATE = ProgressState.REPLICATE


class Progress:
    """One follower or learner.  Invariant: match < next; inflights ascend and exceed match."""

    __slots__ = (
        "commit_sent",
        "inflight_max",
        "inflights",
        "is_active",
        "is_suspect",
        "match",
        "next",
        "node",
        "probe_sent",
        "snapshot_index",
        "snapshot_ticks",
        "state",
    )

    def __init__(self, node: NodeId, next_index: int, inflight_max: int) -> None:
        self.node = node
        #: Highest index known to be persisted there.
        self.match = 0
        #: Next index to send.
        self.next = next_index
        self.state = ProgressState.PROBE
        #: PROBE: an APPEND is out; wait for its answer or for a heartbeat's.
        self.probe_sent = False
        #: Last index of each APPEND on the way.
        self.inflights: list[int] = []
        self.inflight_max = inflight_max
        #: Heard since the last check of the quorum.
        self.is_active = False
        #: The host reported loss and nothing was heard since: the group is not quiet.
        self.is_suspect = False
        #: Highest commit index this follower was told.
        self.commit_sent = 0
        #: SNAPSHOT: index of the snapshot on the way, and for how many ticks.
        self.snapshot_index = 0
        self.snapshot_ticks = 0

    @property
    def is_paused(self) -> bool:
        """Whether nothing may be sent now."""
        if self.state is _REPLICATE:
            return len(self.inflights) >= self.inflight_max
        if self.state is ProgressState.PROBE:
            return self.probe_sent
        return True

    def become_probe(self) -> None:
        """Start over from what is known to match; forgets everything on the way."""
        self.next = self.match + 1
        self.state = ProgressState.PROBE
        self._reset()

    def become_replicate(self) -> None:
        """The logs agree up to `match`: pipeline from there."""
        self.state = ProgressState.REPLICATE
        self._reset()
        self.next = self.match + 1

    def become_snapshot(self, index: int) -> None:
        """A snapshot up to `index` was sent; wait for its answer."""
        self.state = ProgressState.SNAPSHOT
        self._reset()
        self.snapshot_index = index

    def _reset(self) -> None:
        self.probe_sent = False
        self.inflights.clear()
        self.commit_sent = 0
        self.snapshot_ticks = 0

    def acknowledge(self, index: int) -> bool:
        """Everything up to `index` is persisted there; return whether that is news."""
        inflights = self.inflights
        if inflights and inflights[0] <= index:
            del inflights[: bisect_right(inflights, index)]
        if self.next <= index:
            self.next = index + 1
        if index <= self.match:
            return False
        self.match = index
        return True

    def reject(self, rejected: int, hint: int) -> bool:
        """Step back after a refused APPEND at `rejected`; return False if the refusal is stale.

        `hint` is the highest index where the logs may agree.
        """
        if self.state is ProgressState.REPLICATE:
            if rejected <= self.match:
                return False
            self.become_probe()
            return True
        if self.next - 1 != rejected:
            return False
        self.next = max(min(rejected, hint + 1), self.match + 1)
        self.probe_sent = False
        return True
