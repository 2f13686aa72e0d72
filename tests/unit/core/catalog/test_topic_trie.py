"""Topic patterns: RabbitMQ's vectors, and what must not blow up."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from brokerd.core.catalog.topic_trie import TopicTrie

PATTERNS = ("", "#", "#.#", "*", "*.*", "*.#.*", "a", "a.*", "a.#", "#.a", ".", "..", "a.", ".a")

#: R-RT-T2, all rows as seen on RabbitMQ.
VECTORS = {
    "": ("", "#", "#.#"),
    "a": ("#", "*", "#.#", "a", "a.#", "#.a"),
    ".": ("#", "#.#", "*.*", "*.#.*", "."),
    "..": ("#", "#.#", "..", "*.#.*"),
    "a.": ("#", "#.#", "*.*", "a.*", "a.#", "*.#.*", "a."),
    ".a": ("#", "#.#", "*.*", "#.a", "*.#.*", ".a"),
    "a.b.c": ("#", "#.#", "a.#", "*.#.*"),
}


def trie_of(*patterns: str) -> TopicTrie[str]:
    trie: TopicTrie[str] = TopicTrie()
    for pattern in patterns:
        trie.add(pattern, pattern)
    trie.check_invariants()
    return trie


def matched(trie: TopicTrie[str], key: str) -> set[str]:
    found: dict[str, None] = {}
    trie.match(key, found)
    return set(found)


@pytest.mark.parametrize("key", VECTORS)
def test_vectors_of_rabbitmq_match(key: str) -> None:
    """R-RT-T1, R-RT-T2."""
    assert matched(trie_of(*PATTERNS), key) == set(VECTORS[key])


def test_wildcards_count_only_as_whole_words() -> None:
    """R-RT-T1: `a*` is literal."""
    trie = trie_of("a*", "b#", "*")
    assert matched(trie, "a*") == {"a*", "*"}
    assert matched(trie, "ab") == {"*"}
    assert matched(trie, "b#") == {"b#", "*"}


def test_wildcards_in_a_routing_key_are_plain_words() -> None:
    assert matched(trie_of("a.b", "a.*"), "a.#") == {"a.*"}
    assert matched(trie_of("a.b", "#"), "*.b") == {"#"}


def test_a_value_added_twice_goes_with_the_second_removal() -> None:
    trie = trie_of("a.#")
    trie.add("a.#", "a.#")
    trie.remove("a.#", "a.#")
    assert matched(trie, "a") == {"a.#"}
    trie.remove("a.#", "a.#")
    assert trie.is_empty()


def test_removal_leaves_nothing_behind_and_other_patterns_in_place() -> None:
    trie = trie_of("a.b.c", "a.b", "a.*.#", "#")
    trie.remove("a.b.c", "a.b.c")
    trie.check_invariants()
    assert matched(trie, "a.b") == {"a.b", "a.*.#", "#"}
    for pattern in ("a.b", "a.*.#", "#"):
        trie.remove(pattern, pattern)
        trie.check_invariants()
    assert trie.is_empty()


def test_removing_what_is_not_there_is_an_error() -> None:
    trie = trie_of("a.b")
    with pytest.raises(KeyError):
        trie.remove("a.c", "a.c")


def test_many_hashes_against_a_long_key_stay_cheap() -> None:
    """R-RT-T3: backtracking would need more steps here than there are atoms."""
    pattern = ".".join(["#", "a"] * 60) + ".z"
    trie = trie_of(pattern)
    assert matched(trie, ".".join(["a"] * 128)) == set()
    assert matched(trie, ".".join(["a"] * 127 + ["z"])) == {pattern}


def steps_of(trie: TopicTrie[str], key: str) -> int:
    """Return how many lines a match runs through."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code is not TopicTrie.match.__code__:
            return None
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        trie.match(key, {})
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.plain
def test_a_match_takes_as_many_steps_beside_a_hundred_thousand_bindings() -> None:
    """R-RT-T3: what does not match is not looked at."""
    trie = trie_of("orders.*.7", "orders.#")
    few = steps_of(trie, "orders.eu.7")
    for number in range(100_000):
        trie.add(f"region.{number % 300}.{'*' if number % 2 else '#'}.{number}", "other")
    assert few > 0
    assert steps_of(trie, "orders.eu.7") == few
    assert matched(trie, "orders.eu.7") == {"orders.*.7", "orders.#"}
    assert steps_of(trie, "region.7.x.100007") < 40 * few
