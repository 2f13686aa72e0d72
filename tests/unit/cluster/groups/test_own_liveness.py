"""What a node tells the others of itself: alarms that the server sets, and a stalled disk."""

from __future__ import annotations

from brokerd.cluster.groups.liveness import Liveness
from brokerd.cluster.groups.own_liveness import OwnLiveness
from brokerd.cluster.peer import transport
from brokerd.raft.messages import NodeId

ME = NodeId("me")


class Node:
    """A host and its streams in one; notes what they are to tell, and when at once."""

    node = ME

    def __init__(self) -> None:
        self.liveness = Liveness(1_500, 500)
        self.transport = self
        self.told: list[transport.Liveness] = []
        self.at_once = 0

    def set_liveness(self, liveness: transport.Liveness) -> bool:
        is_changed = not self.told or liveness.alarms != self.told[-1].alarms
        self.told.append(liveness)
        return is_changed

    def send_heartbeats(self) -> None:
        self.at_once += 1


def test_a_stalled_disk_is_told_at_once_beside_the_alarms() -> None:
    """ADR 68: whoever sets the one leaves the others as they are."""
    node = Node()
    own = OwnLiveness(node)  # type: ignore[arg-type]
    own.set_liveness(["memory"], 1, 2, 3)
    own.set_stalled(True)
    assert node.liveness.is_stalled(ME)
    # The server knows of the stall as well.
    own.set_liveness(["disk", "disk_stalled"], 4, 5, 6)
    own.set_liveness(["disk", "disk_stalled"], 4, 5, 7)
    own.set_stalled(False)
    assert not node.liveness.is_stalled(ME)
    assert [(told.alarms, told.disk_free) for told in node.told] == [
        (("memory",), 3),
        (("memory", "disk_stalled"), 3),
        (("disk", "disk_stalled"), 6),
        (("disk", "disk_stalled"), 7),
        (("disk",), 7),
    ]
    assert node.at_once == 4
