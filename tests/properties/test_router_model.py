"""R-TEST-6: random topologies against a plain reading of R-RT-1, while they change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.properties.test_topic_trie import is_match
from tests.unit.core.catalog_driver import CatalogDriver

EXCHANGES = ("x1", "x2", "x3", "x4", "x5")
QUEUES = ("q1", "q2", "q3")
KEYS = ("", "a", "a.b", "b")
PATTERNS = ("", "a", "a.*", "#", "#.b", "*")
HEADERS: tuple[dict[str, Any], ...] = ({}, {"n": 1}, {"n": 2, "m": "x"})
TYPES = ("direct", "fanout", "topic", "headers")


@dataclass
class ModelExchange:
    """An exchange with its bindings as a plain list."""

    type: str
    alternate: str | None
    bindings: list[tuple[str, str, str, int]] = field(default_factory=list)


def model_matches(type_: str, key: str, number: int, keys: list[str], headers: int) -> bool:
    if type_ == "direct":
        return key in keys
    if type_ == "topic":
        return any(is_match(key, each) for each in keys)
    if type_ == "headers":
        return all(HEADERS[headers].get(k) == v for k, v in HEADERS[number].items())
    return True


class RouterAgainstModel(RuleBasedStateMachine):
    """R-RT-1, R-TEST-6: the model walks all bindings and knows no index and no cache."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = CatalogDriver()
        self.model: dict[str, ModelExchange] = {}
        self.queues: set[str] = set()

    @rule(
        name=st.sampled_from(EXCHANGES),
        type_=st.sampled_from(TYPES),
        alternate=st.none() | st.sampled_from(EXCHANGES),
    )
    def declare(self, name: str, type_: str, alternate: str | None) -> None:
        if name in self.model:
            return
        arguments = {} if alternate is None else {"alternate-exchange": alternate}
        self.catalog.exchange(name, type_, arguments=arguments)
        self.model[name] = ModelExchange(type_, alternate)

    @rule(name=st.sampled_from(QUEUES))
    def queue(self, name: str) -> None:
        self.catalog.queue(name)
        self.queues.add(name)

    @rule(
        source=st.sampled_from(EXCHANGES),
        kind_and_destination=st.tuples(st.just("queue"), st.sampled_from(QUEUES))
        | st.tuples(st.just("exchange"), st.sampled_from(EXCHANGES)),
        key=st.sampled_from(PATTERNS),
        number=st.integers(0, 2),
        removes=st.booleans(),
    )
    def bind(
        self,
        source: str,
        kind_and_destination: tuple[str, str],
        key: str,
        number: int,
        removes: bool,
    ) -> None:
        kind, destination = kind_and_destination
        arguments = HEADERS[number]
        there = self.model if kind == "exchange" else self.queues
        binding = (kind, destination, key, number)
        if removes:
            self.catalog.unbind(source, destination, key, arguments, kind)
            if source in self.model and binding in self.model[source].bindings:
                self.model[source].bindings.remove(binding)
            return
        self.catalog.bind(source, destination, key, arguments, kind)
        is_bound = source in self.model and destination in there
        if is_bound and binding not in self.model[source].bindings:
            self.model[source].bindings.append(binding)

    @rule(name=st.sampled_from(EXCHANGES))
    def delete_exchange(self, name: str) -> None:
        self.catalog.delete("exchange", name)
        self.model.pop(name, None)
        self._unbind("exchange", name)

    @rule(name=st.sampled_from(QUEUES))
    def delete_queue(self, name: str) -> None:
        self.catalog.delete("queue", name)
        self.queues.discard(name)
        self._unbind("queue", name)

    @rule()
    def restore(self) -> None:
        self.catalog.machine.restore(self.catalog.machine.snapshot())

    def _unbind(self, kind: str, name: str) -> None:
        for exchange in self.model.values():
            exchange.bindings = [each for each in exchange.bindings if each[:2] != (kind, name)]

    @invariant()
    def routes_as_the_model(self) -> None:
        for name in self.model:
            for key in KEYS:
                for extra in ((), ("b",)):
                    self._compare(name, [key, *extra], 0)
            for headers in (1, 2):
                self._compare(name, ["a"], headers)

    def _compare(self, name: str, keys: list[str], headers: int) -> None:
        result = self.catalog.route(
            name, keys[0], headers=HEADERS[headers], extra_keys=tuple(keys[1:])
        )
        found = [queue.name for queue in result.queues]
        assert len(found) == len(set(found))
        assert set(found) == self._model_route(name, keys, headers)

    def _model_route(self, start: str, keys: list[str], headers: int) -> set[str]:
        seen, work, queues = {start}, [start], set()
        while work:
            exchange = self.model[work.pop()]
            matched = [
                (kind, destination)
                for kind, destination, key, number in exchange.bindings
                if model_matches(exchange.type, key, number, keys, headers)
            ]
            if not matched and exchange.alternate is not None:
                matched = [("exchange", exchange.alternate)]
            for kind, destination in matched:
                if kind == "queue":
                    queues.add(destination)
                elif destination not in seen:
                    seen.add(destination)
                    if destination in self.model:
                        work.append(destination)
        return queues


TestRouterAgainstModel = RouterAgainstModel.TestCase
TestRouterAgainstModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
