"""Found a cluster, join one, or take one's place in it again?  PURE.

Asked once at each start, with what the other nodes answered (join_request.py).  The danger is a
second cluster beside the first, and a node whose disk was lost voting for a leader that knows less
than the node itself had once acknowledged.  So:

- a node with data of its own goes on with them, unless a node that knows says that it was removed;
- a node without data founds a cluster only if it is one of the founders, a majority of the founders
  (itself among them) has no data either, and no node that answers has any: while a majority's disks
  survive, these cannot be the founders of a cluster that exists;
- in all other cases it joins the cluster that is there, without a vote until it has been refilled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import Enum

from brokerd.raft.messages import NodeId


class Standing(Enum):
    """What one node knows of the one that asks (peer.proto: Description.Standing)."""

    UNKNOWN = 0
    UNFOUNDED = 1
    MEMBER = 2
    REMOVED = 3
    FOREIGN = 4
    REFUSED = 5


class Course(Enum):
    """What a starting node does."""

    #: No node knows enough: ask again.
    WAIT = "wait"
    FOUND = "found"
    #: Take part, without a vote until refilled: the disk is new, the cluster is not.
    REFILL = "refill"
    #: Go on with the data that are there.
    CONTINUE = "continue"
    #: Not a member any more.
    REMOVED = "removed"
    #: The data are of another cluster of the same name.
    FOREIGN = "foreign"
    REFUSED = "refused"


@dataclass(slots=True, frozen=True)
class Answer:
    """One node's answer."""

    standing: Standing
    #: Its disk is not empty.
    has_data: bool = False


_FINAL = {
    Standing.REMOVED: Course.REMOVED,
    Standing.FOREIGN: Course.FOREIGN,
    Standing.REFUSED: Course.REFUSED,
}


def course(
    node: NodeId,
    founders: Collection[NodeId],
    has_data: bool,
    answers: Mapping[NodeId, Answer],
) -> Course:
    """Decide; `answers` are those of other nodes, as far as they answered."""
    standings = {answer.standing for answer in answers.values()}
    # These are confirmed by a majority of the catalog; MEMBER may be old news.
    for standing, end in _FINAL.items():
        if standing in standings:
            return end
    if Standing.MEMBER in standings:
        return Course.CONTINUE if has_data else Course.REFILL
    if has_data:
        return Course.CONTINUE
    if node not in founders or any(answer.has_data for answer in answers.values()):
        return Course.WAIT
    empty = {node}
    for other in founders:
        if other in answers and answers[other].standing is Standing.UNFOUNDED:
            empty.add(other)
    return Course.FOUND if len(empty) > len(founders) // 2 else Course.WAIT
