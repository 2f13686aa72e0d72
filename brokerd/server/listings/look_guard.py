"""Who may look at a queue's messages, and how many looks there are at once: for pages and triage.

Used by browses.py and triages.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brokerd.core.catalog import names, refusals
from brokerd.core.catalog.refusals import Refused
from brokerd.server.catalog import audit
from brokerd.server.listings import page_tokens

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Queue
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.core.catalog.identity import Identity
    from brokerd.server.access.admission import Admission
    from brokerd.server.members import ports as members_ports

#: Calls of one user at a member at once, and of all users.
CALLS_PER_USER_MAX, CALLS_MAX = 2, 16
#: Of a filter.
FILTER_CHARACTERS_MAX = 4_096
_ADMINISTRATOR = "administrator"


class BrowseRefused(Exception):
    """The caller lacks the right, or the request makes no sense; an AMQP code says which."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.refused = refused


class TooManyBrowses(Exception):
    """The user, or all users, look at as many queues here as they may at once."""


@dataclass(slots=True, frozen=True)
class Sources:
    """What looks need of the member."""

    view: CatalogState
    admission: Admission
    members: members_ports.Cluster
    signer: page_tokens.Signer
    audit: audit.Audit
    #: Why a queue's commands are refused for now, "" if they are not.
    refusal: Callable[[int], str]
    #: Checks a filter's text; ValueError says what is wrong with it.
    check_filter: Callable[[str], object]


class LookGuard:
    """State: how many calls of whom are under way."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._running: Counter[str] = Counter()

    def queue(self, vhost: str, name: str, identity: Identity) -> Queue:
        """Return the queue if it may be read, as for basic.get; BrowseRefused."""
        access = self.sources.admission.access(identity, vhost)
        refused = access.check_vhost() or access.check("read", "queue", name)
        if refused is not None:
            raise BrowseRefused(Refused(refusals.ACCESS_REFUSED, refused.text))
        queue = self.sources.view.queue(vhost, name)
        resource = names.resource("queue", vhost, name)
        if queue is None:
            raise BrowseRefused(refusals.not_found(f"no {resource}"))
        if queue.exclusive_owner is not None and _ADMINISTRATOR not in identity.tags:
            # Its connection speaks AMQP, which has no such question.
            text = f"{resource} is exclusive: administrators alone may look at its messages"
            raise BrowseRefused(refusals.locked(text))
        return queue

    def refusal(self, queue: Queue, uid: int) -> str:
        """Return why a queue takes nothing for now, "" if it does; BrowseRefused if it is gone."""
        found = self.sources.view.queue(queue.vhost, queue.name)
        if found is None or found.uid != uid:
            resource = names.resource("queue", queue.vhost, queue.name)
            raise BrowseRefused(refusals.not_found(f"no {resource}: it was deleted meanwhile"))
        return self.sources.refusal(uid)

    def check_filter(self, text: str) -> None:
        """Raise ValueError for what is no filter."""
        if len(text) > FILTER_CHARACTERS_MAX:
            raise ValueError(f"filter: longer than {FILTER_CHARACTERS_MAX} characters")
        if text:
            self.sources.check_filter(text)

    @contextmanager
    def call(self, user: str) -> Iterator[None]:
        """Count a call of a user while it is under way; TooManyBrowses."""
        running = self._running
        if running[user] >= CALLS_PER_USER_MAX or running.total() >= CALLS_MAX:
            raise TooManyBrowses(
                f"user '{user}' looks at queues {running[user]} times at this moment, all "
                f"users {running.total()} times: at most {CALLS_PER_USER_MAX} and "
                f"{CALLS_MAX} at a member"
            )
        running[user] += 1
        try:
            yield
        finally:
            running[user] -= 1
            if not running[user]:
                del running[user]
