"""R-TEST-7: queues that dead-letter to each other at random, against a plain reading of the rules.

The queues, the router and the rendering of headers are the real ones; what carries a dead letter
from one queue to the next is a loop in this file. The model knows of each copy only in which queue
and for which reason it died, event by event.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from brokerd.amqp import properties
from brokerd.core import annotations
from brokerd.core.message import Content
from brokerd.core.queue import deaths, effects
from brokerd.server.messages.dead_letter_headers import record_death
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.core.queue_driver import QueueDriver, consumer
from tests.unit.server.messages.fakes import Routing

QUEUES = ("a", "b", "c", "d")
#: More deaths than this in one operation: it would not have ended.
DEATHS_MAX = 2_000
TTL_MS = 10
Event = tuple[str, str]


@dataclass(frozen=True)
class Shape:
    """What one queue is like."""

    targets: frozenset[str]
    ttl: bool
    max_length: int | None
    delivery_limit: int | None


SHAPES = st.builds(
    Shape,
    targets=st.frozensets(st.sampled_from(QUEUES), max_size=3),
    ttl=st.booleans(),
    max_length=st.sampled_from([None, None, 0, 1, 2]),
    delivery_limit=st.sampled_from([None, 0, 1]),
)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["publish", "publish", "reject", "requeue", "time"]),
        st.sampled_from(QUEUES),
    ),
    min_size=5,
    max_size=40,
)


class World:
    """The queues with what is in them, and the model's history of each copy by its body."""

    def __init__(self, shapes: dict[str, Shape]) -> None:
        self.catalog = CatalogDriver()
        self.queues: dict[str, QueueDriver] = {}
        #: Contents by queue and number; numbers are dense (docs/adr/0003).
        self.contents: dict[str, list[Content]] = {name: [] for name in QUEUES}
        self.history: dict[bytes, list[Event]] = {}
        self.deaths = 0
        self.routing = Routing(self.catalog)
        for name, shape in shapes.items():
            self.catalog.queue(name)
            self.catalog.exchange(f"dead-{name}", "fanout")
            self.queues[name] = QueueDriver(
                queue_type="classic" if shape.delivery_limit is None else "quorum",
                message_ttl_ms=TTL_MS if shape.ttl else None,
                max_length=shape.max_length,
                delivery_limit=shape.delivery_limit,
                dead_letter_exchange=f"dead-{name}" if shape.targets else None,
            )
        for name, shape in shapes.items():
            for target in sorted(shape.targets):
                self.catalog.bind(f"dead-{name}", target)

    def put(self, queue: str, content: Content, past: list[Event]) -> list[Any]:
        """Publish a copy with a body of its own; return what it sets off."""
        body = b"%d" % len(self.history)
        self.history[body] = past
        route, header, _, kept = content
        self.contents[queue].append((route, header, body, kept))
        return self.queues[queue].publish(self.contents[queue][-1]).effects

    def do(self, operation: str, queue: str) -> None:
        """Do one operation and all deaths that follow from it."""
        driver = self.queues[queue]
        todo: list[Any] = []
        if operation == "publish":
            todo = self.put(queue, (("", queue), b"\0\0", b"", b""), [])
        elif operation == "time":
            for name in QUEUES:
                self.bury_all(name, self.queues[name].tick(2 * TTL_MS).effects)
            return
        elif (run := driver.get()["run"]) is not None:
            number = (run[0], run[0] + 1)
            settle = driver.discard if operation == "reject" else driver.requeue
            todo = settle(number, who=consumer("")).effects
        self.bury_all(queue, todo)

    def bury_all(self, queue: str, todo: list[Any]) -> None:
        """Carry dead letters to their targets until none is left."""
        work = deque((queue, effect) for effect in todo if isinstance(effect, effects.DeadLetter))
        deaths_before = self.deaths
        while work:
            name, letter = work.popleft()
            for run in letter.runs:
                for number in range(run.first, run.first + run.length):
                    work += self.record_death(name, letter, self.contents[name][number], run)
                    self.deaths += 1
            assert self.deaths - deaths_before < DEATHS_MAX, "it does not end (R-DLX-28)"

    def record_death(
        self, name: str, letter: effects.DeadLetter, content: Content, run: effects.Run
    ) -> list[tuple[str, effects.DeadLetter]]:
        """Check one death against the model; return the deaths that it sets off."""
        past = [*self.history[content[2]], (name, letter.reason)]
        queue = self.catalog.found(name)
        target = (letter.exchange, letter.routing_key)
        dead, result = record_death(
            self.routing, queue, content, letter.reason, 1, target, run, letter.certificate
        )
        shown = [
            ((entry["queue"], entry["reason"]), entry["count"])
            for entry in properties.headers(dead[1])["x-death"]  # type: ignore[union-attr, index, call-overload]
        ]
        assert shown == model_x_death(past)
        assert sum(count for _, count in shown) == len(past)
        found = [each.name for each in result.queues]
        history = annotations.decode(dead[3]).deaths
        kept, cut = deaths.without_cycles(found, history, letter.reason)
        assert set(cut) == {each for each in found if model_is_cycle(each, past)}
        assert len(since_rejection(past)) <= len(QUEUES)
        if cut:
            event("a cycle was cut")
        return [
            (each, effect)
            for each in kept
            for effect in self.put(each, dead, past)
            if isinstance(effect, effects.DeadLetter)
        ]


def model_x_death(past: list[Event]) -> list[tuple[Event, int]]:
    """R-DLX-21: one entry per pair, the pair that died last comes first."""
    newest_first = list(dict.fromkeys(reversed(past)))
    return [(pair, past.count(pair)) for pair in newest_first]


def model_is_cycle(target: str, past: list[Event]) -> bool:
    """R-DLX-28, R-DLX-30: no rejection among the entries up to the last one of the target."""
    if past[-1][1] == "rejected":
        return False
    for (queue, reason), _ in model_x_death(past):
        if reason == "rejected":
            return False
        if queue == target:
            return True
    return False


def since_rejection(past: list[Event]) -> list[Event]:
    """Return the automatic deaths since somebody rejected it."""
    rejections = [i for i, (_, reason) in enumerate(past) if reason == "rejected"]
    return past[rejections[-1] + 1 :] if rejections else past


@settings(max_examples=250, deadline=None)
@given(st.fixed_dictionaries(dict.fromkeys(QUEUES, SHAPES)), OPERATIONS)
def test_dead_letters_do_as_the_model_says_and_automatic_cycles_end(
    shapes: dict[str, Shape], operations: list[tuple[str, str]]
) -> None:
    """R-TEST-7, R-DLX-21, R-DLX-28, R-DLX-29, R-DLX-30, R-DLX-31, R-DLX-34."""
    world = World(shapes)
    for operation, queue in operations:
        world.do(operation, queue)
    # Nobody touches it any more: what expires has left after as many rounds as there are queues.
    for _ in range(len(QUEUES) + 1):
        world.do("time", QUEUES[0])
    for name, shape in shapes.items():
        assert not (shape.ttl and world.queues[name].ready), name
