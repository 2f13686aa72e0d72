"""The way of a published message, the same for every publisher: check, route, mark, count, expect,
send; and what comes back when no queue or channel takes it.

A `Pipeline` belongs to one publishing channel of a client, whatever door it came in by; numbers,
transactions and the writing of confirms are the door's.  `send_own` is the second half for what the
member publishes by itself: dead letters, what a queue sends on, a link's messages.
Hot path: what is alike in one read is one call (`Target`, a run of contents).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from brokerd.amqp.methods import BasicPublish
from brokerd.core import annotations as message_annotations
from brokerd.core.catalog.router import RouteResult
from brokerd.core.confirms import Confirms
from brokerd.core.message import Content, Route
from brokerd.core.profiles import Profile
from brokerd.server.messages import delays, message_checks, ports
from brokerd.server.messages.message_checks import Client
from brokerd.server.messages.reply_to import Replies
from brokerd.server.queues import stream
from brokerd.telemetry.client_totals import ClientTotals
from brokerd.telemetry.counters import ConfirmClock

#: (code, text) of what comes back (R-PUB-7, R-AE-15).
NO_ROUTE = (312, "NO_ROUTE")
NO_CONSUMERS = (313, "NO_CONSUMERS")


class Channel(Protocol):
    """A client's publishing channel."""

    def returned(
        self, method: BasicPublish, contents: Sequence[Content], first: int, why: tuple[int, str]
    ) -> None:
        """Give messages back, numbered from `first`; a channel that has ended need not."""
        ...

    def answered(self, outcomes: list[tuple[int, int, int]]) -> None:
        """Take what became of some numbers (stream.Outcome)."""
        ...


class Taker(Protocol):
    """A channel's stream, as those see it who only publish."""

    def publish(self, queues: Sequence[stream.Target], contents: list[Content], first: int) -> None:
        """Put a run of messages into these queues (stream.ChannelStream)."""
        ...


@dataclass(slots=True)
class Target:
    """Where messages with one publish method go, checked; good for one revision of the topology."""

    method: BasicPublish
    revision: int
    #: One object for all its messages, so that batches see at once that they go the same way.
    route: Route
    #: None: each message's headers and rights decide.
    result: RouteResult | None
    #: Pseudo queues of direct reply-to that the key names (R-DRT-3).
    replies: tuple[str, ...] = ()


@dataclass(slots=True)
class Routed:
    """A route with pseudo queues among its targets, as telemetry counts it."""

    queues: Sequence[object]
    alternates: Sequence[tuple[str, str]] = ()
    ae_missing: tuple[str, str] | None = None
    ae_cycle: bool = False


#: A message as it goes to its queues, its route, and the channels that it is a reply to.
Checked = tuple[Content, RouteResult, tuple[str, ...]]


class Pipeline:
    """Owns nothing but what it was given: one client's publishes, step by step."""

    __slots__ = (
        "_channel",
        "_client",
        "_counters",
        "_replies",
        "_routing",
        "_stream",
        "_totals",
    )

    def __init__(
        self,
        routing: ports.Routing,
        replies: Replies,
        client: Client,
        stream: stream.ChannelStream,
        channel: Channel,
        totals: ClientTotals,
    ) -> None:
        self._totals = totals
        self._routing = routing
        self._counters = routing.counters
        self._replies = replies
        self._client = client
        self._stream = stream
        self._channel = channel

    def resolve(self, method: BasicPublish, revision: int) -> Target:
        """Check rights and existence for a method and route it (R-PUB-1); ProtocolError."""
        result = message_checks.check_exchange(self._routing, self._client, method)
        route = (method.exchange, method.routing_key)
        return Target(method, revision, route, result, message_checks.replies_of(*route))

    def check(
        self, target: Target, header: bytes, body: bytes, reply_name: str | None = None
    ) -> Checked:
        """Look at one message's properties and route it; ProtocolError.

        reply_name: the channel's own name of the pseudo queue, if it consumes that.
        """
        found = message_checks.check(self._routing, self._client, target.method, header, reply_name)
        kept = message_annotations.encode(found.annotations)
        return (target.route, found.header, body, kept), found.result, found.replies

    def send(
        self,
        method: BasicPublish,
        result: RouteResult,
        contents: list[Content],
        first: int,
        replies: tuple[str, ...],
        tracker: Confirms | None,
        clock: ConfirmClock | None,
        is_refused: bool = False,
    ) -> None:
        """Hand a run to its queues, or give it back; `tracker` and `clock` await the answers under
        the numbers from `first` on.

        is_refused: no queue can deliver at once, and the client wants to know (R-AE-15).
        """
        client, queues, count = self._client, result.queues, len(contents)
        if result.alternates:
            contents = marked(self._routing.profile, contents)
        if result.delays:
            contents = delays.annotated(contents)
        self._counters.published(
            client.vhost,
            client.user,
            method.exchange,
            Routed((*queues, *replies)) if replies else result,
            contents,
            method.mandatory,
            self._totals,
            len(replies),
        )
        if clock is not None:
            self._totals.received_confirm += count
            clock.published(first, count, method.exchange)
        if tracker is not None:
            tracker.expect(first, count, len(queues) + len(replies))
        if queues:
            self._stream.publish(queues, contents, first)
        if replies:
            may_return = method.mandatory and self._routing.profile.replies_return_undelivered
            is_returned = may_return and len(replies) == 1 and not queues
            self._reply(method, contents, first, replies, tracker is not None, is_returned)
        elif queues and method.mandatory and result.is_refused_by_all(self._routing.down_homes):
            self._channel.returned(method, contents, first, NO_ROUTE)
        elif not queues:
            self._routing.unroutable(client.vhost, method.exchange, result, count)
            if method.mandatory or is_refused:
                # R-PUB-7: it goes out before the confirm, which the door has yet to write.
                why = NO_CONSUMERS if is_refused else NO_ROUTE
                self._channel.returned(method, contents, first, why)

    def _reply(
        self,
        method: BasicPublish,
        contents: list[Content],
        first: int,
        replies: tuple[str, ...],
        is_numbered: bool,
        is_returned: bool,
    ) -> None:
        """Send a run to channels that await replies (R-DRT-3).

        A mandatory one comes back if no channel takes it: known once the other member has answered.
        """
        for name in replies:
            for number, content in enumerate(contents, first):
                done: Callable[[bool], None] | None = None
                if is_returned or is_numbered:
                    own = number if is_numbered else first
                    done = _Taken(self._channel, method, content, own, is_returned)
                self._replies.send(self._client.vhost, name, content, done)


@dataclass(slots=True)
class _Taken:
    """What follows the answer to one reply."""

    channel: Channel
    method: BasicPublish
    content: Content
    number: int
    is_returned: bool

    def __call__(self, taken: bool) -> None:
        if self.is_returned and not taken:
            self.channel.returned(self.method, [self.content], self.number, NO_ROUTE)
        self.channel.answered([(self.number, 1, 1)])


def send_own(
    routing: ports.Counting,
    taker: Taker,
    vhost: str,
    result: RouteResult,
    contents: list[Content],
    number: int,
    targets: Sequence[stream.Target] | None = None,
    *,
    is_again: bool = False,
) -> bool:
    """Mark, count and send messages of the member's own; False: no queue takes them.

    contents: of one exchange.  number: the first one's.
    targets: queues that really take it, where fewer than the route has (R-DLX-28).
    is_again: some of them had not taken it over; it was counted when it was sent first.
    """
    taken = result.queues if targets is None else targets
    if not is_again:
        exchange, size = contents[0][0][0], sum(len(content[2]) for content in contents)
        count = len(contents)
        routing.counters.internal_published(vhost, exchange, result, count, size, len(taken))
    if not taken:
        return False
    if result.alternates:
        contents = marked(routing.profile, contents)
    if result.delays:
        contents = delays.annotated(contents)
    taker.publish(taken, contents, number)
    return True


def marked(profile: Profile, contents: list[Content]) -> list[Content]:
    """Return messages that go over an exchange's alternate, marked where that counts (R-MQ-7,
    O-7).
    """
    if not (profile.queue_ae and profile.mrg_mark_on_exchange_ae):
        return contents
    return [_marked(content) for content in contents]


def _marked(content: Content) -> Content:
    route, header, body, raw = content
    kept = message_annotations.decode(raw)
    kept.rerouted = True
    return route, header, body, message_annotations.encode(kept)
