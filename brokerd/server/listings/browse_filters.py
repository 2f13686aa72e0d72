"""Filters of looks at queues: what a text asks of each message, and where that is done."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.core.filters.message_filter import compile_filter
from brokerd.core.message import Content
from brokerd.core.queue import effects
from brokerd.core.queue.browse import Browsed
from brokerd.server.messages.message_view import StoredMessage
from brokerd.server.queues.walking import Matching


def view_of(browsed: Browsed, content: Content, now_ms: int) -> StoredMessage:
    """Return a message as filters and triage see it."""
    return StoredMessage(
        content,
        browsed.number,
        state=browsed.state,
        delivery_count=browsed.run.delivery_count,
        redelivered=effects.times_acquired(browsed.run) > 0,
        age_ms=max(0, now_ms - browsed.enqueued_ms),
    )


def compiler(clock_ms: Callable[[], int]) -> Callable[[str], Matching]:
    """Return what makes a filter of its text, FilterError (a ValueError) where it is none.

    clock_ms() is the wall clock: a filter may ask how old a message is.
    """

    def compiled(text: str) -> Matching:
        chosen = compile_filter(text)

        def matches(browsed: Browsed, content: Content) -> bool:
            return chosen.matches(view_of(browsed, content, clock_ms()))

        return Matching(matches, chosen.searches, chosen.needs_head)

    return compiled
