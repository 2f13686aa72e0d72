"""When the collector looks at what, and what it leaves alone."""

from __future__ import annotations

import gc
import weakref

from brokerd.server.memory.gc_policy import LONG_S, NEW_QUEUES, QUIET_SHARE, WHOLE_S, GcPolicy

SECOND = 1.0


class Collector:
    """The clock goes on by what a collection takes."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.queues = 0
        self.takes_s = 0.001
        self.calls: list[str] = []
        self.policy = GcPolicy(lambda: self.queues, lambda: self.now_s, self)

    def collect(self) -> int:
        self.now_s += self.takes_s
        self.calls.append("collect")
        return 0

    def freeze(self) -> None:
        self.calls.append("freeze")

    def unfreeze(self) -> None:
        self.calls.append("unfreeze")

    def after(self, seconds: float, *, is_short: bool = False) -> list[str]:
        """Look after so long; return what was done."""
        self.now_s += seconds
        self.calls = []
        self.policy.collect(is_short=is_short)
        return self.calls


def test_a_look_takes_a_small_share_of_the_time_and_more_where_memory_is_short() -> None:
    rig = Collector()
    assert rig.after(0) == ["collect"]
    assert rig.after(rig.takes_s / QUIET_SHARE - 0.01) == []
    assert rig.after(0.01) == ["collect"]
    assert rig.after(2 * rig.takes_s) == []
    assert rig.after(18 * rig.takes_s, is_short=True) == ["unfreeze", "collect", "freeze"]


def test_what_came_with_many_queues_is_not_looked_at() -> None:
    rig = Collector()
    rig.after(0)
    rig.queues = NEW_QUEUES - 1
    assert rig.after(SECOND) == ["collect"]
    rig.queues = NEW_QUEUES
    assert rig.after(SECOND / 2) == ["freeze"]
    rig.queues += NEW_QUEUES - 1
    assert rig.after(SECOND / 2) == ["collect"]
    # Of those that take the place of deleted ones nothing is frozen yet.
    rig.queues = 0
    assert rig.after(SECOND) == ["collect"]
    rig.queues = NEW_QUEUES
    assert rig.after(SECOND) == ["freeze", "collect"]


def test_what_took_long_to_look_at_is_looked_at_once() -> None:
    rig = Collector()
    rig.takes_s = 2 * LONG_S
    assert rig.after(0) == ["collect", "freeze"]


def test_all_is_looked_at_once_an_hour_if_something_was_frozen() -> None:
    rig = Collector()
    assert rig.after(2 * WHOLE_S) == ["collect"]
    rig.queues = NEW_QUEUES
    assert rig.after(2 * SECOND) == ["freeze", "collect"]
    assert rig.after(WHOLE_S - 3 * SECOND) == ["collect"]
    rig.takes_s = 0.3
    assert rig.after(3 * SECOND) == ["unfreeze", "collect", "freeze"]
    rig.takes_s = 0.001
    assert rig.after(SECOND) == [], "nobody is kept waiting again soon"
    assert rig.after(2 * WHOLE_S) == ["collect"], "nothing was frozen since"


def test_a_cycle_that_was_frozen_goes_when_memory_is_short() -> None:
    """With the collector itself."""

    class Node:
        itself: Node | None = None

    was = gc.get_freeze_count()
    node = Node()
    node.itself = node
    seen = weakref.ref(node)
    queues = [NEW_QUEUES]
    policy = GcPolicy(lambda: queues[0])
    policy.collect(is_short=False)
    try:
        del node
        policy._ended_s = policy._took_s = 0.0
        policy.collect(is_short=False)
        assert seen() is not None, "frozen"
        policy._took_s = 0.0
        policy.collect(is_short=True)
        assert seen() is None
    finally:
        if not was:
            gc.unfreeze()
