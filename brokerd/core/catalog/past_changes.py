"""The last changes of the catalog, for watchers that resume; older ones packed into blocks.

An object each would keep the memory around it: ten thousand small ones that stay, made between the
parts of queues that go, hold on to all the pages that those lay in.  Only `catalog_state.py` uses
it.
"""

from __future__ import annotations

import dataclasses
import json
from array import array
from collections import deque
from operator import attrgetter

from brokerd.core.catalog.catalog_effects import TopologyChanged

#: Changes in a packed block: its text is some 30 KB, which the allocator keeps by itself.
BLOCK_CHANGES = 256

#: As dataclasses.astuple, which takes forty times as long: a deletion may be 100,000 changes.
_values = attrgetter(*(each.name for each in dataclasses.fields(TopologyChanged)))


class PastChanges:
    """Invariant: at most `changes_max` changes, in ascending order of revision; all of those behind
    `compacted_revision`.
    """

    __slots__ = ("_blocks", "_changes_max", "_last_revisions", "_newest", "compacted_revision")

    def __init__(self, changes_max: int) -> None:
        self._changes_max = changes_max
        #: BLOCK_CHANGES changes each as a JSON array, and the last revision of each: no object of
        #: a block's own is small.
        self._blocks: list[str] = []
        self._last_revisions = array("Q")
        self._newest: deque[TopologyChanged] = deque()
        #: What came up to here is forgotten.
        self.compacted_revision = 0

    def add(self, change: TopologyChanged) -> None:
        """Remember a change; the oldest ones go where there are too many."""
        newest, blocks = self._newest, self._blocks
        if len(blocks) * BLOCK_CHANGES + len(newest) == self._changes_max:
            if blocks:
                self.compacted_revision = self._last_revisions[0]
                del blocks[0], self._last_revisions[0]
            else:
                self.compacted_revision = newest.popleft().revision
        newest.append(change)
        if len(newest) == 2 * BLOCK_CHANGES:
            packed = [newest.popleft() for _ in range(BLOCK_CHANGES)]
            text = json.dumps([_values(one) for one in packed], separators=(",", ":"))
            blocks.append(text)
            self._last_revisions.append(packed[-1].revision)

    def since(self, revision: int) -> list[TopologyChanged] | None:
        """Return the changes after a revision, oldest first; None if it is compacted."""
        if revision < self.compacted_revision:
            return None
        found = [
            TopologyChanged(*fields)
            for last, text in zip(self._last_revisions, self._blocks, strict=True)
            if last > revision
            for fields in json.loads(text)
        ]
        found += self._newest
        return [change for change in found if change.revision > revision]

    def clear(self, revision: int) -> None:
        """Start anew behind a snapshot of this revision."""
        self._blocks = []
        self._last_revisions = array("Q")
        self._newest.clear()
        self.compacted_revision = revision
