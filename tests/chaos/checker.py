"""The checker of the chaos runs: a total queue, judged from what the clients saw.

Every confirmed message must have been received or dead-lettered, nothing may come that was never
published, and all queues must report 0 at the end (design/replication.md §5; G1 to G3, G6).
Duplicates are allowed by at-least-once delivery and counted; one that does not say `redelivered` is
an error. Pure: no socket, no clock.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from tests.chaos.history import PREFETCH, Delivery, History, MessageKey, must_be_rejected


@dataclass(slots=True)
class Verdict:
    """What a history shows.  The first group are violations, the second figures."""

    #: Confirmed and never received anywhere (G1).
    lost: list[MessageKey]
    #: Confirmed, rejected by policy, and never seen in the queue of dead letters (G6).
    unburied: list[MessageKey]
    #: Received without having been published, or in a queue it was not meant for (G2).
    unexpected: list[str]
    #: Came again from a work queue without the redelivered flag.
    unflagged: list[Delivery]
    #: Came before one that its connection had published earlier (G3), requeues aside.
    out_of_order: list[Delivery]
    #: Queues that do not report 0 at each member.
    left: list[str]
    #: Confirmed, received by nobody yet, and readable in less than a majority of logs (G1).
    scarce: list[MessageKey]
    broken: list[str]

    attempted: int
    confirmed: int
    received: int
    dead_lettered: int
    duplicates: int
    #: Never confirmed and received all the same: allowed.
    unconfirmed_received: int
    #: Messages that were looked for in the logs.
    looked_for: int
    #: The longest time in which some queue confirmed nothing, from each fault's begin to the next.
    gap_max_s: float
    #: From the heal to the first confirm of the slowest queue (G9).
    resume_max_s: float

    @property
    def violations(self) -> list[str]:
        """Say what is wrong, one sentence each with an example; empty: nothing."""
        found: dict[str, Sequence[object]] = {
            "confirmed and lost": self.lost,
            "confirmed, rejected and never dead-lettered": self.unburied,
            "never published and received": self.unexpected,
            "came again without the redelivered flag": self.unflagged,
            "out of order": self.out_of_order,
            "not empty at the end": self.left,
            "confirmed and not readable in a majority of logs": self.scarce,
            "broken": self.broken,
        }
        return [f"{len(cases)} {what}, as {cases[0]}" for what, cases in found.items() if cases]


def judge(history: History) -> Verdict:
    """Judge a complete history."""
    received: dict[MessageKey, int] = defaultdict(int)
    buried: dict[MessageKey, int] = defaultdict(int)
    for delivery in history.deliveries:
        counts = buried if delivery.queue == history.dead_queue else received
        counts[delivery.key] += 1
    seen = received.keys() | buried.keys()
    confirmed = history.confirmed.keys()
    gap_max_s, resume_max_s = _outages(history)
    return Verdict(
        lost=sorted(confirmed - seen),
        unburied=sorted(
            key for key in confirmed & seen if must_be_rejected(key.number) and key not in buried
        ),
        unexpected=_unexpected(history),
        unflagged=_unflagged(history),
        out_of_order=_out_of_order(history),
        left=[
            f"{queue}: {counts}"
            for queue, counts in sorted(history.left.items())
            if any(count != 0 for count in counts)
        ],
        scarce=list(history.scarce),
        broken=list(history.broken),
        attempted=len(history.attempted),
        confirmed=len(confirmed),
        received=len(received),
        dead_lettered=len(buried),
        duplicates=sum(count - 1 for counts in (received, buried) for count in counts.values()),
        unconfirmed_received=len(seen - confirmed),
        looked_for=history.looked_for,
        gap_max_s=gap_max_s,
        resume_max_s=resume_max_s,
    )


def missing(history: History) -> int:
    """Return how many confirmed messages have not come to their end yet: cheaper than `judge`."""
    deliveries = list(history.deliveries)
    buried = {delivery.key for delivery in deliveries if delivery.queue == history.dead_queue}
    seen = {delivery.key for delivery in deliveries if not must_be_rejected(delivery.key.number)}
    return sum(key not in seen and key not in buried for key in list(history.confirmed))


def _unexpected(history: History) -> list[str]:
    found = [f"body {body[:60]!r}" for body in history.strange]
    for delivery in history.deliveries:
        meant_for = history.attempted.get(delivery.key)
        if meant_for is None or delivery.queue not in (meant_for, history.dead_queue):
            found.append(f"{delivery.key} in {delivery.queue}, published to {meant_for}")
    return found


def _unflagged(history: History) -> list[Delivery]:
    """Return what came again from a work queue as if for the first time.

    A dead letter that is published again, because its first confirm was lost, is a new message.
    """
    found, seen = [], set()
    for delivery in sorted(history.deliveries, key=lambda d: (d.at_s, d.redelivered)):
        if delivery.queue == history.dead_queue:
            continue
        place = (delivery.queue, delivery.key)
        if place in seen and not delivery.redelivered:
            found.append(delivery)
        seen.add(place)
    return found


def _out_of_order(history: History) -> list[Delivery]:
    """First deliveries on one channel keep the order of each publishing connection.

    Dead letters are published by the broker itself, in the order of their deaths.  What a consumer
    held and was never sent, since its member was cut off, comes to another one behind younger
    messages and unflagged (ADR 69): of each other channel of the queue that has got its last
    message no more than a prefetch, and nothing before the first fault.
    """
    found = []
    began_s = min((span.begin_s for span in history.faults), default=math.inf)
    ends_s: dict[str, dict[int, float]] = defaultdict(dict)
    for delivery in history.deliveries:
        ends_s[delivery.queue][delivery.channel] = delivery.at_s
    unsent: dict[str, int] = defaultdict(int)
    highest: dict[tuple[int, str, int, int], int] = {}
    for delivery in history.deliveries:
        if delivery.redelivered or delivery.queue == history.dead_queue:
            continue
        stream = (delivery.channel, delivery.queue, delivery.key.publisher, delivery.epoch)
        if delivery.key.number < highest.get(stream, -1):
            unsent[delivery.queue] += delivery.at_s >= began_s
            ended = sum(end_s < delivery.at_s for end_s in ends_s[delivery.queue].values())
            if delivery.at_s < began_s or unsent[delivery.queue] > PREFETCH * ended:
                found.append(delivery)
        else:
            highest[stream] = delivery.key.number
    return found


def _outages(history: History) -> tuple[float, float]:
    """Return the longest silence of any queue around a fault, and the longest after a heal."""
    times: dict[str, list[float]] = {queue: [] for queue in set(history.attempted.values())}
    for key, at_s in history.confirmed.items():
        times[history.attempted.get(key, "")].append(at_s)
    for confirms in times.values():
        confirms.sort()
    gap_max_s = resume_max_s = 0.0
    for number, span in enumerate(history.faults, 1):
        is_last = number == len(history.faults)
        end_s = history.ended_s if is_last else history.faults[number].begin_s
        for confirms in times.values():
            inside = confirms[bisect_left(confirms, span.begin_s) : bisect_right(confirms, end_s)]
            marks = [span.begin_s, *inside, end_s]
            steps = itertools.pairwise(marks)
            gap_max_s = max(gap_max_s, *(after - before for before, after in steps))
            first = next((at_s for at_s in inside if at_s >= span.healed_s), end_s)
            resume_max_s = max(resume_max_s, first - span.healed_s)
    return gap_max_s, resume_max_s
