"""What RaftNode wants done (after etcd-io/raft's Ready, with asynchronous storage writes).

The caller may hand `messages` to the network at once and must write `hard_state`, `entries` and
`snapshot` in the order of the tokens; messages that need the disk come out of a later Ready, after
`RaftNode.advance_persisted(token)`.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.raft.messages import Entry, HardState, Message, Snapshot


@dataclass(slots=True)
class Ready:
    """One round of work."""

    #: Token of the write below; 0: nothing to write.
    token: int
    hard_state: HardState | None
    #: To be written; the first one's index truncates what stood there and behind.
    entries: list[Entry]
    #: To be installed instead of log and snapshot; then there are no entries.
    snapshot: Snapshot | None
    #: To be sent now: all that they promise is on disk already.
    messages: list[Message]
    #: To be applied, in order; then call `RaftNode.advance_applied`.
    committed: list[Entry]
