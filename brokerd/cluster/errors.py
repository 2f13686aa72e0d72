"""Errors of the cluster room.

Expected outcomes on the hot path (not the leader, overloaded) are statuses, not exceptions.
"""

from __future__ import annotations

from brokerd.raft.messages import CATALOG_GROUP


class ClusterError(Exception):
    """Base of everything this room raises."""


class AddressError(ClusterError):
    """A peer list or an address cannot be read."""


class DeliveryFormatError(ClusterError):
    """A delivery's payload is not what `deliveries` encodes."""


class FrameError(ClusterError):
    """A peer's frame breaks the protocol: its stream is closed."""


class PeerRefusedError(ClusterError):
    """A peer is not who we expected, or does not take us for a member."""


class CallRefused(ClusterError):
    """A call is ended with a status of gRPC."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class SnapshotUnreadable(ClusterError):
    """Entries that a snapshot refers to cannot be read back while it is sent."""

    def __init__(self, uid: int) -> None:
        super().__init__(f"group {uid:x}: its snapshot cannot be read")
        self.uid = uid


class GroupUnavailable(ClusterError):
    """No member took the command in time.  It may still take effect."""

    def __init__(self, uid: int, timeout_s: float) -> None:
        which = "the catalog" if uid == CATALOG_GROUP else f"group {uid}"
        super().__init__(f"no leader of {which} answered within {timeout_s:g} s")
        self.uid = uid


class GroupGone(ClusterError):
    """The group has been deleted or was never known here."""

    def __init__(self, uid: int) -> None:
        super().__init__(f"group {uid} does not exist")
        self.uid = uid


class GroupStuck(ClusterError):
    """The group has no leader, and somebody found out that waiting is in vain for now; the text
    says why.  The command may still take effect.
    """

    def __init__(self, uid: int, reason: str) -> None:
        super().__init__(reason)
        self.uid = uid
