"""Events as Kubernetes has them, and their recorder, for kubernetes_store.py and the namespaces.

Nothing depends on Events, so no pass waits for them: they are sent one after another beside the
work, namespaces in turns. Where there are more than can be sent, the newest ones of each namespace
are: one that has thousands takes none of another's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

from brokerd_operator.engine.status import now_text
from brokerd_operator.sources.api import Api, ApiError, Json

log = logging.getLogger(__name__)

#: The operator, as `kubectl get events` names it.
COMPONENT = "brokerd-operator"
MESSAGE_MAX = 1024
#: Events of each type that wait, of all namespaces. Ten thousand resources that become ready at the
#: same moment are no news that anybody reads one by one; client-go's recorder drops them as well
#: (1,000 wait there).
WAITING_MAX = 256
#: Between two Events, and between those behind the first ones of many: the API server has better
#: things to do.
PAUSE_S = 0.05
BURST = 20
PAUSE_OF_MANY_S = 0.2
#: At the end of the process.
CLOSE_S = 1.0
#: The API server puts some characters of its own behind the name.
NAME_MAX = 200


def event(involved: Json, type_: str, reason: str, message: str) -> Json:
    """An Event about an object; `involved` has at least its namespace and name."""
    now = now_text()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "generateName": f"{involved['name'][:NAME_MAX]}.",
            "namespace": involved["namespace"],
        },
        "involvedObject": involved,
        "type": type_,
        "reason": reason,
        "message": message[:MESSAGE_MAX],
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }


class _Waiting:
    """Owns Events of one type, by namespace; the one whose turn is next stands first.

    Invariant: no namespace is empty, and `_count` is how many there are of all.
    """

    def __init__(self) -> None:
        self._namespaces: dict[str, deque[Json]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._namespaces)

    def push(self, told: Json) -> bool:
        """Take an Event; whether the oldest one of the namespace that has most is left out."""
        waiting = self._namespaces.setdefault(told["metadata"]["namespace"], deque())
        waiting.append(told)
        self._count += 1
        is_full = self._count > WAITING_MAX
        if is_full:
            self._take(max(self._namespaces, key=lambda name: len(self._namespaces[name])))
        return is_full

    def pop(self) -> Json:
        """The oldest one of the next namespace, whose next turn comes after those of the others."""
        return self._take(next(iter(self._namespaces)))

    def _take(self, namespace: str) -> Json:
        waiting = self._namespaces.pop(namespace)
        self._count -= 1
        told = waiting.popleft()
        if waiting:
            self._namespaces[namespace] = waiting
        return told


class EventRecorder:
    """Owns the Events that wait, and the task that sends them while there are some."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._warnings, self._others = _Waiting(), _Waiting()
        self._task: asyncio.Task[None] | None = None
        self._left_out = 0

    def tell(self, told: Json) -> None:
        """Send an Event soon; of too many the oldest ones are left out."""
        waiting = self._warnings if told["type"] == "Warning" else self._others
        self._left_out += waiting.push(told)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        """Send what waits, as much as there is time for; nothing may be told after that."""
        if self._task is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._task

    async def _send(self) -> None:
        sent = 0
        while self._warnings or self._others:
            told = (self._warnings or self._others).pop()
            try:
                await self._api.create(told)
            except ApiError as error:
                # A namespace that goes takes none.
                log.info("no Event %s of %s: %s", told["reason"], _shown(told), error)
            sent += 1
            await asyncio.sleep(PAUSE_S if sent < BURST else PAUSE_OF_MANY_S)
        if self._left_out:
            log.info("Events were left out count=%d", self._left_out)
            self._left_out = 0


def _shown(told: Json) -> str:
    involved = told["involvedObject"]
    return f"{involved['kind']} {involved['namespace']}/{involved['name']}"
