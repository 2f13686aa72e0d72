"""Topic patterns in a trie, matched without backtracking (R-RT-T1 to R-RT-T3).

Pure; used by `bindings.py` only.  Matching keeps the set of trie nodes that the words read so far
can have led to, as one simulates a nondeterministic automaton: the work is bounded by words times
nodes reachable, for any number of `#`.
"""

from __future__ import annotations

from typing import Generic, TypeVar

T = TypeVar("T")


def words_of(key: str) -> list[str]:
    """Split a key; the empty string is zero words (R-RT-T1)."""
    return key.split(".") if key else []


class _Node(Generic[T]):
    """A pattern prefix.  `values` counts how often each value was added at this very pattern."""

    __slots__ = ("children", "hash", "is_hash", "star", "values")

    def __init__(self, is_hash: bool = False) -> None:
        self.children: dict[str, _Node[T]] = {}
        self.star: _Node[T] | None = None
        self.hash: _Node[T] | None = None
        #: True: the last word of the prefix is `#`, which may take any further word.
        self.is_hash = is_hash
        self.values: dict[T, int] = {}

    def is_empty(self) -> bool:
        return not (self.values or self.children or self.star or self.hash)

    def child(self, word: str) -> _Node[T] | None:
        if word == "*":
            return self.star
        if word == "#":
            return self.hash
        return self.children.get(word)


class TopicTrie(Generic[T]):
    """Patterns with values; a value may be added several times and counts as one in a match.

    Invariant: no node other than the root is empty.
    """

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def add(self, pattern: str, value: T) -> None:
        """Add a value under a pattern."""
        node = self._root
        for word in words_of(pattern):
            child = node.child(word)
            if child is None:
                child = _Node(is_hash=word == "#")
                if word == "*":
                    node.star = child
                elif word == "#":
                    node.hash = child
                else:
                    node.children[word] = child
            node = child
        node.values[value] = node.values.get(value, 0) + 1

    def remove(self, pattern: str, value: T) -> None:
        """Take back one `add` of the same pattern and value; KeyError if there was none."""
        path: list[tuple[_Node[T], str]] = []
        node = self._root
        for word in words_of(pattern):
            path.append((node, word))
            child = node.child(word)
            if child is None:
                raise KeyError(pattern)
            node = child
        count = node.values[value]
        if count > 1:
            node.values[value] = count - 1
            return
        del node.values[value]
        while path and node.is_empty():
            node, word = path.pop()
            if word == "*":
                node.star = None
            elif word == "#":
                node.hash = None
            else:
                del node.children[word]

    def match(self, key: str, found: dict[T, None]) -> None:
        """Add to `found` the values of all patterns that match the key, in a stable order."""
        # Dicts, not sets: their order is the order of discovery, so results are the same
        # everywhere.
        active: dict[_Node[T], None] = {}
        node: _Node[T] | None = self._root
        while node is not None:
            active[node] = None
            node = node.hash
        for word in words_of(key):
            following: dict[_Node[T], None] = {}
            for node in active:
                if node.is_hash:
                    following[node] = None
                step = node.children.get(word)
                while step is not None:
                    following[step] = None
                    step = step.hash
                step = node.star
                while step is not None:
                    following[step] = None
                    step = step.hash
            if not following:
                return
            active = following
        for node in active:
            if node.values:
                found.update(dict.fromkeys(node.values))

    def is_empty(self) -> bool:
        """Say whether nothing is in it."""
        return self._root.is_empty()

    def check_invariants(self) -> None:
        """Assert that removed patterns left nothing behind."""
        stack = [self._root]
        while stack:
            node = stack.pop()
            for child in (*node.children.values(), node.star, node.hash):
                if child is not None:
                    assert not child.is_empty()
                    stack.append(child)
