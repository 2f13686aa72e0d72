"""Deliveries of one channel that cannot be written yet: consume-ok is due, or the client does not
read.

What the queue's leader here can read again from its log is kept as numbers only, so that a consumer
that never reads costs no memory for messages (SEC-45).  Only channel_deliveries.py uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from brokerd.core.message import Content, Range
from brokerd.core.queue.effects import Run
from brokerd.server.queues.deliveries import LocalConsumer, Part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from brokerd.server.amqp.ports import Readable

#: One waiting part; None: read the contents again.
_Item = tuple[LocalConsumer, Run, "list[Content] | None"]


class Backlog:
    """Parts in the order in which they came; those of a held consumer are passed over."""

    def __init__(self, queues: Readable) -> None:
        self._queues = queues
        self._items: deque[_Item] = deque()

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, consumer: LocalConsumer, parts: Sequence[Part]) -> None:
        """Keep these for later."""
        is_readable = self._queues.leads(consumer.uid)
        for run, contents in parts:
            self._items.append((consumer, run, None if is_readable else contents))

    def add_numbers(self, consumer: LocalConsumer, runs: Sequence[Run]) -> None:
        """Keep messages for later that can be read here."""
        self._items.extend((consumer, run, None) for run in runs)

    def take(
        self, room: int | None = None
    ) -> tuple[LocalConsumer, Run, list[Content] | None] | None:
        """Return the first part that may go out now, with its contents.

        room: how many messages consumers that share a prefetch may have; a longer part is cut.
        None: there is none.  Contents None: the message can be read here no more (the leader has
        moved meanwhile); it must go back to its queue.
        """
        for i, (consumer, run, contents) in enumerate(self._items):
            if consumer.is_held:
                continue
            # R-QOS-3: auto-acknowledging consumers are not counted, yet wait for room as well.
            is_whole = room is None or run.length <= room or (room > 0 and consumer.no_ack)
            if is_whole or consumer.has_counts:
                del self._items[i]
            elif room is not None and room > 0:
                self._items[i] = (consumer, *_behind(run, contents, room))
                run = run._replace(length=room)
                contents = None if contents is None else contents[:room]
            else:
                continue
            if contents is None:
                contents = self._queues.contents_if_here(consumer.uid, run)
            return consumer, run, contents
        return None

    def drop(self, consumer: LocalConsumer) -> list[Range]:
        """Forget a consumer's parts; return their numbers."""
        gone = self.numbers_of(consumer)
        if gone:
            self._items = deque(item for item in self._items if item[0] is not consumer)
        return gone

    def numbers_of(self, consumer: LocalConsumer) -> list[Range]:
        """Return what waits for a consumer."""
        return list(self._ranges(consumer))

    def _ranges(self, consumer: LocalConsumer) -> Iterator[Range]:
        for owner, run, _ in self._items:
            if owner is consumer:
                yield run.first, run.first + run.length

    def clear(self) -> None:
        """The channel has ended."""
        self._items.clear()


def _behind(run: Run, contents: list[Content] | None, cut: int) -> tuple[Run, list[Content] | None]:
    """Return what is left of a part behind its first `cut` messages."""
    rest = run._replace(first=run.first + cut, length=run.length - cut, position=run.position + cut)
    return rest, None if contents is None else contents[cut:]
