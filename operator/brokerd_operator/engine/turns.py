"""Fair turns among keys that are due: first by namespace, then by broker (design/operator.md §9).

Pure: knows neither time nor what keys mean. For work_queue.py only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")


class Line(NamedTuple):
    """Where a key waits for its turn."""

    namespace: str
    #: The broker that a pass over the key asks; "": none.
    broker: str = ""


class Turns(Generic[K]):
    """Owns the keys that wait, each with its mark, by line.

    Namespaces take turns, and the brokers of one namespace among themselves: a namespace that names
    a thousand brokers has the same share as one that names one. Within a line the order is that of
    arrival. Invariant: no line and no namespace is empty.
    """

    def __init__(self) -> None:
        #: Who is next stands first.
        self._namespaces: dict[str, dict[str, deque[tuple[float, K]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._namespaces)

    def push(self, line: Line, mark: float, key: K) -> None:
        """Wait at the end of a line."""
        brokers = self._namespaces.setdefault(line.namespace, {})
        brokers.setdefault(line.broker, deque()).append((mark, key))

    def pop(
        self, is_wanted: Callable[[float, K], bool], is_open: Callable[[Line], bool]
    ) -> tuple[Line, K] | None:
        """The next key of a line that is open. Keys that are not wanted any more are let go of."""
        for namespace in list(self._namespaces):
            brokers = self._namespaces[namespace]
            for broker in list(brokers):
                line = Line(namespace, broker)
                if not is_open(line):
                    continue
                waiting = brokers.pop(broker)
                key = _first_wanted(waiting, is_wanted)
                if waiting:
                    # Its next turn comes after those of the others.
                    brokers[broker] = waiting
                if key is not None:
                    self._put_last(namespace)
                    return line, key
            if not brokers:
                del self._namespaces[namespace]
        return None

    def _put_last(self, namespace: str) -> None:
        brokers = self._namespaces.pop(namespace)
        if brokers:
            self._namespaces[namespace] = brokers


def _first_wanted(
    waiting: deque[tuple[float, K]], is_wanted: Callable[[float, K], bool]
) -> K | None:
    while waiting:
        mark, key = waiting.popleft()
        if is_wanted(mark, key):
            return key
    return None
