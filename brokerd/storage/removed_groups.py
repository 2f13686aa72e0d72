"""The groups that a log has forgotten, packed: for the writer and the cleaning of segments.

They are remembered for as long as a segment holds records of theirs.  An object each would keep the
memory around it: ten thousand numbers that stay, made between the parts of queues that go, hold on
to all the pages that those lay in.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping

#: Removals after which a table is built anew: it never shrinks by itself.
REBUILD_EVERY = 1024


class RemovedGroups:
    """By uid, ascending: the segment of the record that says so."""

    __slots__ = ("_segments", "_uids")

    def __init__(self) -> None:
        self._uids = array("Q")
        self._segments = array("Q")

    def __contains__(self, uid: int) -> bool:
        uids = self._uids
        at = bisect_left(uids, uid)
        return at < len(uids) and uids[at] == uid

    def __len__(self) -> int:
        return len(self._uids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._uids)

    def add(self, uid: int, segment: int) -> None:
        """The newest record of it is in this segment."""
        at = bisect_left(self._uids, uid)
        if at < len(self._uids) and self._uids[at] == uid:
            self._segments[at] = segment
        else:
            self._uids.insert(at, uid)
            self._segments.insert(at, segment)

    def discard(self, uid: int) -> None:
        """Nothing of it is left."""
        at = bisect_left(self._uids, uid)
        if at < len(self._uids) and self._uids[at] == uid:
            del self._uids[at], self._segments[at]

    def said_in(self, segments: Iterable[int]) -> list[int]:
        """Return those whose record is in one of these."""
        wanted = set(segments)
        pairs = zip(self._uids, self._segments, strict=True)
        return [uid for uid, segment in pairs if segment in wanted]


class SegmentGroups:
    """Groups with any record in a segment: what must be repeated before the segment goes."""

    __slots__ = ("_alive", "_removed")

    def __init__(self) -> None:
        self._alive: dict[int, set[int]] = {}
        #: Those of groups that were removed since, in any order.
        self._removed: dict[int, array[int]] = {}

    def of(self, segment: int) -> set[int]:
        """Return those of a segment that are not removed, to be added to."""
        members = self._alive.get(segment)
        if members is None:
            members = self._alive[segment] = set()
        return members

    def removed(self, uid: int) -> None:
        """A group is no more; its records stay where they are."""
        for segment, members in self._alive.items():
            if uid in members:
                members.discard(uid)
                packed = self._removed.setdefault(segment, array("Q"))
                packed.append(uid)
                if len(packed) % REBUILD_EVERY == 0:
                    self._alive[segment] = set(members)

    def drop(self, segment: int) -> set[int]:
        """The segment goes; return its groups that are not removed."""
        self._removed.pop(segment, None)
        return self._alive.pop(segment, set())

    def of_removed(self) -> set[int]:
        """Return the groups that are removed and have records somewhere."""
        found = {uid for packed in self._removed.values() for uid in packed}
        return found.union(*self._alive.values())


def packed(
    removed: Mapping[int, int], segment_groups: Mapping[int, Iterable[int]]
) -> tuple[RemovedGroups, SegmentGroups]:
    """Return what recovery found, packed."""
    groups, places = RemovedGroups(), SegmentGroups()
    for segment, uids in segment_groups.items():
        places.of(segment).update(uids)
    for uid, segment in removed.items():
        groups.add(uid, segment)
        places.removed(uid)
    return groups, places
