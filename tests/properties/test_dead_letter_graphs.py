"""R-TEST-7: messages that die their way through random graphs of queues, against a plain model.

The model keeps every event of a message and works out x-death and cycles from that (R-DLX-21,
R-DLX-28); `deaths.py` keeps one entry per queue and reason.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerd.core import deaths
from brokerd.core.annotations import Annotations

QUEUES = ("q1", "q2", "q3", "q4")
#: Queue to the queues that its dead letter exchange reaches.
GRAPHS = st.fixed_dictionaries(
    {queue: st.lists(st.sampled_from(QUEUES), unique=True, max_size=3) for queue in QUEUES}
)
REASONS = st.sampled_from(deaths.REASONS)
#: Events that one message may go through before the test ends; rejections can go on for ever.
EVENTS_MAX = 40

Event = tuple[str, str]


def model_history(events: list[Event]) -> list[tuple[str, str, int]]:
    """Return x-death as R-DLX-21 says: newest pair first, each with its count."""
    pairs = list(dict.fromkeys(reversed(events)))
    return [(queue, reason, events.count((queue, reason))) for queue, reason in pairs]


def model_is_cycle(events: list[Event], target: str, reason: str) -> bool:
    """Return whether a target is dropped as R-DLX-28 says."""
    if reason == "rejected":
        return False
    entries = model_history(events)
    at = next((i for i, entry in enumerate(entries) if entry[0] == target), None)
    return at is not None and all(entry[1] != "rejected" for entry in entries[: at + 1])


def die(before: Annotations, queue: str, reason: str, time_s: int) -> Annotations:
    return deaths.record(
        before, queue=queue, reason=reason, time_s=time_s, exchange="dlx", routing_keys=["k"]
    ).annotations


@given(GRAPHS, st.sampled_from(QUEUES), st.lists(REASONS, min_size=1, max_size=30), st.data())
def test_history_and_cycles_are_the_models(
    graph: dict[str, list[str]], start: str, reasons: list[str], data: st.DataObject
) -> None:
    """R-DLX-21, R-DLX-23, R-DLX-28, R-DLX-29, R-DLX-30"""
    events: list[Event] = []
    kept = Annotations()
    first_times: dict[Event, int] = {}
    queue = start
    for time_s, reason in enumerate(reasons):
        events.append((queue, reason))
        first_times.setdefault((queue, reason), time_s)
        kept = die(kept, queue, reason, time_s)
        entries = [(death.queue, death.reason, death.count) for death in kept.deaths]
        assert entries == model_history(events)
        # Nothing but the count changes, and every death is counted once.
        assert sum(count for _, _, count in entries) == len(events)
        assert all(d.time_s == first_times[d.queue, d.reason] for d in kept.deaths)
        assert kept.first_death == (reasons[0], start, "dlx")
        targets, cycling = deaths.without_cycles(graph[queue], kept.deaths, reason)
        dropped = [each for each in graph[queue] if model_is_cycle(events, each, reason)]
        assert cycling == dropped
        assert targets == [each for each in graph[queue] if each not in dropped]
        if not targets:
            break
        queue = data.draw(st.sampled_from(targets))


@given(GRAPHS, st.sampled_from(QUEUES), st.sampled_from(["expired", "maxlen", "delivery_limit"]))
def test_automatic_deaths_alone_come_to_an_end(
    graph: dict[str, list[str]], start: str, reason: str
) -> None:
    """R-DLX-28, R-DLX-31, R-DLX-34: no way through the queues is longer than there are queues."""
    ways = [(start, Annotations(), 0)]
    seen = 0
    while ways:
        queue, before, length = ways.pop()
        assert length < len(QUEUES)
        seen += 1
        assert seen <= EVENTS_MAX**2, "copies without end"
        kept = die(before, queue, reason, 0)
        targets, _ = deaths.without_cycles(graph[queue], kept.deaths, reason)
        ways += [(target, kept, length + 1) for target in targets]


@given(st.integers(1, EVENTS_MAX))
def test_a_loop_of_rejections_goes_on_for_ever(rounds: int) -> None:
    """R-DLX-30: one entry, whose count grows"""
    kept = Annotations()
    for _ in range(rounds):
        kept = die(kept, "q1", "rejected", 0)
        assert deaths.without_cycles(["q1"], kept.deaths, "rejected") == (["q1"], [])
    assert [death.count for death in kept.deaths] == [rounds]
