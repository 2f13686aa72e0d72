"""The trie against the definition of topic matching, word by word (R-RT-T1)."""

from __future__ import annotations

from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from brokerd.core.catalog.topic_trie import TopicTrie

WORDS = st.sampled_from(["a", "b", "", "*", "#"])
PATTERNS = st.lists(WORDS, max_size=6).map(".".join)
KEYS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=7).map(".".join)


def is_match(pattern: str, key: str) -> bool:
    """The definition: `#` stands for any number of words, `*` for one."""
    wanted = pattern.split(".") if pattern else []
    words = key.split(".") if key else []

    @cache
    def holds(at: int, word: int) -> bool:
        if at == len(wanted):
            return word == len(words)
        if wanted[at] == "#":
            return holds(at + 1, word) or (word < len(words) and holds(at, word + 1))
        if word == len(words):
            return False
        return wanted[at] in ("*", words[word]) and holds(at + 1, word + 1)

    return holds(0, 0)


@given(st.lists(PATTERNS, max_size=20), st.lists(KEYS, min_size=1, max_size=5), st.data())
def test_trie_matches_what_the_definition_matches(
    patterns: list[str], keys: list[str], data: st.DataObject
) -> None:
    trie: TopicTrie[tuple[str, int]] = TopicTrie()
    there = [(pattern, number % 3) for number, pattern in enumerate(patterns)]
    for pattern, number in there:
        trie.add(pattern, (pattern, number))
    removed = data.draw(st.lists(st.sampled_from(there), unique_by=id)) if there else []
    left = list(there)
    for entry in removed:
        if entry in left:
            left.remove(entry)
            trie.remove(entry[0], entry)
    trie.check_invariants()
    for key in keys:
        found: dict[tuple[str, int], None] = {}
        trie.match(key, found)
        assert set(found) == {entry for entry in left if is_match(entry[0], key)}
    for entry in left:
        trie.remove(entry[0], entry)
    assert trie.is_empty()
