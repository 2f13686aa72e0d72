"""Which of the federated queues led here want messages from elsewhere (R-FQ-2).

Looks at the queues' machines now and then, and whenever a link asks: nothing is added to the way of
a message for the sake of the few queues that are federated.  For federation_ports.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from brokerd.core.queue.queue_machine import QueueMachine

#: How soon it is seen that a consumer came, or that all that was ready has been taken.
LOOK_S = 0.02
#: The same while the demand comes and goes, as it does when consumers have a small prefetch: each
#: pause in between is one in which they have nothing to do.
LOOK_RESTLESS_S = 0.001
#: Time after a change in which demand counts as coming and going.
RESTLESS_S = 1.0
#: With many queues the looks are further apart, so that they cost a member no more than 5000 a
#: second (about a hundredth of a core).
LOOK_S_PER_QUEUE = 0.0002


class Queues(Protocol):
    """The queues of this member."""

    def leads(self, uid: int) -> bool:
        """Tell whether the queue's leader is here."""
        ...

    def led_queues(self, uids: Sequence[int]) -> Sequence[tuple[object, QueueMachine]]:
        """Return those of these queues whose leader is here, with their state."""
        ...


class Watch:
    """One link's watch; see ports.DemandWatch."""

    def __init__(self, demand: QueueDemand, uid: int, changed: Callable[[bool], None]) -> None:
        self.uid = uid
        self._demand = demand
        self._changed = changed
        self._is_wanted: bool | None = None

    def check(self) -> None:
        """Look now."""
        if not self._demand.has(self):
            return
        is_wanted = self._demand.wants(self.uid)
        if is_wanted is not self._is_wanted:
            self._is_wanted = is_wanted
            self._demand.note_change()
            self._changed(is_wanted)

    def close(self) -> None:
        """End."""
        self._demand.discard(self)


class QueueDemand:
    """State: the watches, the timer that looks at them while there are some, and until when it
    looks more often.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._watches: dict[Watch, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._restless_until = 0.0

    def watch(self, uid: int, changed: Callable[[bool], None]) -> Watch:
        """Return a new watch, which has told what the queue wants now."""
        made = Watch(self, uid, changed)
        self._watches[made] = None
        made.check()
        self._arm()
        return made

    def has(self, watch: Watch) -> bool:
        """Tell whether a watch has not been closed."""
        return watch in self._watches

    def discard(self, watch: Watch) -> None:
        """End a watch."""
        self._watches.pop(watch, None)
        if not self._watches and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def wants(self, uid: int) -> bool:
        """Say what a queue wants now; nothing, where another member leads it."""
        return any(machine.wants_messages() for _, machine in self._queues.led_queues([uid]))

    def note_change(self) -> None:
        """Look more often for a while: what has changed may change back soon."""
        loop = asyncio.get_running_loop()
        is_calm = loop.time() > self._restless_until
        self._restless_until = loop.time() + RESTLESS_S
        if is_calm and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._watches:
            loop = asyncio.get_running_loop()
            shortest_s = LOOK_RESTLESS_S if loop.time() < self._restless_until else LOOK_S
            pause_s = max(shortest_s, LOOK_S_PER_QUEUE * len(self._watches))
            self._timer = loop.call_later(pause_s, self._look)

    def _look(self) -> None:
        self._timer = None
        # First: a listener that fails must not end the looks for all others.
        self._arm()
        for watch in list(self._watches):
            watch.check()
