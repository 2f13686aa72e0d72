"""What failed, in the status of the resource that it is about, with an Event.

One way for all that the operator writes: a pass that ends with an error comes here, and so does a
status that is not taken. Owns how often passes failed in a row and which statuses rest. For the
engine and running.py; what a BrokerCluster's driver collects in a pass comes in its report.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine import status
from brokerd_operator.engine.keys import Body, Key
from brokerd_operator.engine.ports import StoreError

#: Failed passes, some seconds, after which an error that may pass by itself is reported.
TOLD_FROM = 3
#: Between two tries to write a status that is refused.
REST_FIRST_S = 2.0
REST_MAX_S = 300.0


@dataclass(frozen=True, slots=True)
class Reported:
    """Reason and message for what failed."""

    reason: str
    message: str
    #: To be reported at once: only a person can end it.
    is_lasting: bool = False


def told(error: Exception) -> Reported | None:
    """What to say of an error; None: without an answer nothing could be written, either."""
    if isinstance(error, StoreError):
        if not error.is_answer:
            return None
        text = f"{error.what}: {error}"
        return (
            Reported("WaitingForApi", text)
            if error.is_passing
            else Reported(status.REFUSED, text, True)
        )
    if isinstance(error, BrokerError):
        return Reported("BrokerError", str(error))
    return Reported("InternalError", f"{type(error).__name__}; the operator's log has more")


def failed_status(body: Body, said: Reported) -> dict[str, Any]:
    """The status after a pass that came to no other end: all else in it stays."""
    previous = body.get("status") or {}
    kept = conditions.carried(body, sorted(conditions.OWNED - conditions.STANDARD))
    generation = int(body["metadata"].get("generation") or 0)
    return status.plain_status(previous, generation, said.reason, said.message, kept)


@dataclass(slots=True)
class _Rest:
    generation: int
    count: int
    until_s: float


class Refusals:
    """Owns the counts, by resource; a resource that is well has none."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: dict[Key, int] = {}
        self._rests: dict[Key, _Rest] = {}

    def forget(self, key: Key) -> None:
        """A resource that is gone."""
        self._failures.pop(key, None)
        self._rests.pop(key, None)

    def succeeded(self, key: Key) -> None:
        """A pass came to its end."""
        self._failures.pop(key, None)

    def failed(self, key: Key, error: Exception) -> Reported | None:
        """What is to be told of a pass that failed; None: nothing yet."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        said = told(error)
        return said if said is not None and (said.is_lasting or count >= TOLD_FROM) else None

    def is_resting(self, key: Key, body: Body) -> bool:
        """Whether a status is left alone; a new generation is a reason to try at once."""
        rest = self._rests.get(key)
        if rest is None or rest.generation != _generation(body):
            return False
        return self._clock() < rest.until_s

    def status_taken(self, key: Key) -> None:
        self._rests.pop(key, None)

    def status_refused(self, key: Key, body: Body) -> float:
        """Seconds until the next try."""
        before, generation = self._rests.get(key), _generation(body)
        # Somebody who changes the resource waits for an answer: the pauses begin anew.
        count = before.count + 1 if before and before.generation == generation else 0
        pause: float = min(REST_MAX_S, REST_FIRST_S * 2 ** min(count, 16))
        self._rests[key] = _Rest(generation, count, self._clock() + pause)
        return pause


def _generation(body: Mapping[str, Any]) -> int:
    return int(body["metadata"].get("generation") or 0)
