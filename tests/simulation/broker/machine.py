"""The real queue machine, watched."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from brokerd.core.machine import Meta, Outcome
from brokerd.core.queue.queue_commands import Kind
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.messages import NodeId
from tests.simulation.broker.oracle import Oracle


class WatchedQueue(QueueMachine):
    """A QueueMachine that tells the oracle what it does."""

    def __init__(
        self,
        oracle: Oracle,
        node: NodeId,
        uid: int,
        options: QueueOptions | None = None,
        folded_at: int = 0,
        folded: bytes = b"",
    ) -> None:
        """folded_at, folded: what it had applied, and looked like, whose snapshot `restore` is to
        bring; 0, empty: not known.
        """
        super().__init__(options or QueueOptions(queue_type="quorum"))
        self._oracle = oracle
        self._node = node
        self._uid = uid
        #: The last command's index.
        self.applied_index = 0
        self._folded_at = folded_at
        self._folded = folded
        #: Its term; None: a snapshot's, which is not known.
        self._term: int | None = 0

    def apply(self, meta: Meta, command: bytes) -> Outcome:
        """See QueueMachine."""
        # A message that came before the first leader's options would have no limits and no dead
        # letter exchange.
        self._oracle.require(
            self._term in (None, meta.term) or command[1] == Kind.UPDATE_OPTIONS,
            f"queue {self._uid} got command {command[1]} before the options of term {meta.term}",
        )
        self._term = meta.term
        before = self._oracle.before(self, self._uid, meta.index, command)
        outcome = super().apply(meta, command)
        self.applied_index = meta.index
        self._oracle.after(
            self._node,
            self,
            self._uid,
            meta,
            command,
            outcome.reply,
            outcome.effects,
            before,
        )
        return outcome

    def snapshot(self) -> bytes:
        """See QueueMachine."""
        data = super().snapshot()
        if self.applied_index:
            self._oracle.on_snapshot(self._node, self._uid, self.applied_index, data)
        return data

    def factory(self) -> tuple[Callable[[], QueueMachine], bytes]:
        """See QueueMachine: another one that is watched, whatever is in this one."""
        who, summary = (self._oracle, self._node, self._uid), self.summary()
        make = partial(WatchedQueue, *who, folded_at=self.applied_index, folded=summary)
        return make, summary

    def restore(self, data: bytes) -> None:
        """See QueueMachine."""
        super().restore(data)
        self.applied_index, self._folded_at = self._folded_at, 0
        self._term = None
        self._oracle.require(
            super().snapshot() == data, f"{self._node}: a snapshot does not bring its state back"
        )
        self._oracle.require(
            self._folded in (b"", self.summary()), f"{self._node}: what is listed of it is other"
        )
        self._folded = b""
