"""Classic queues whose home member is down, as one member sees it.

A classic queue lives at one member, its home.  While the home is down, a queue that does not
outlive it (exclusive, transient, or auto-delete with a consumer) is as if it were not there, and a
durable queue refuses what it is asked.  Not replicated: each member judges by what it hears, and
only changes of the catalog that follow (a deletion, a new declaration) are the cluster's.

PURE.  Written by server/members/home_members.py; read by declares and routing through
`CatalogState`.  The catalog's machine never reads it.
"""

from __future__ import annotations

from brokerd.core.catalog.catalog_objects import Queue


class DownHomes:
    """State: the uids of these queues.

    Invariant: no uid is in both sets.
    """

    __slots__ = ("absent", "refusing")

    def __init__(self) -> None:
        #: Queues that do not outlive their home: as if they were not there.
        self.absent: set[int] = set()
        #: Queues that are kept: their home has them when it returns.
        self.refusing: set[int] = set()

    def has(self, uid: int) -> bool:
        """Tell whether the home of this queue is down."""
        return uid in self.absent or uid in self.refusing

    def forget(self, uid: int) -> None:
        """The queue's home is up, or the queue is gone."""
        self.absent.discard(uid)
        self.refusing.discard(uid)


def has_home(queue: Queue) -> bool:
    """Tell whether a queue lives at one member: a quorum queue does not, even with one replica."""
    return queue.type == "classic" and len(queue.members) == 1


def outlives_home(queue: Queue, has_consumers: bool) -> bool:
    """Tell whether a classic queue is kept when its home goes down.

    has_consumers: the queue had some when its home was last heard.  The home's end cancels them,
    and an auto-delete queue ends with its last consumer (R-Q-10).
    """
    if queue.exclusive_owner is not None or not queue.durable:
        return False
    return not (queue.auto_delete and has_consumers)
