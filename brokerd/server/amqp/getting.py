"""basic.get: one message for a client that waits for it.

The only slow method without a task of its own: a task, a future and their turns of the loop cost
more than all that the queue does for a get.  Used by session.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.amqp import errors, methods
from brokerd.cluster.groups.asked import Asked, ReplyStatus
from brokerd.core.catalog import names
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.core.catalog.refusals import Refused
from brokerd.core.message import Range
from brokerd.core.queue.effects import ConsumerId
from brokerd.server.amqp.channel_publishes import ChannelPublishes
from brokerd.server.messages import message_checks
from brokerd.server.queues.gets import message_of

if TYPE_CHECKING:
    pass


class Getting:
    """Gets of a channel from one queue; the channel's later events wait for each.

    Invariant: the session hears once that a get is over, unless it has ended before.
    """

    __slots__ = (
        "_access",
        "_asked",
        "_no_ack",
        "_queue",
        "_revision",
        "_session",
        "_settled",
        "_timeout_s",
        "holder",
    )

    def __init__(self, session: ChannelPublishes, queue: Queue, no_ack: bool) -> None:
        services = session.services
        identity = services.identity
        self._session = session
        self._queue = queue
        self._no_ack = no_ack
        self._revision = session.catalog.topology_revision
        self._access = session.connection.access
        holder = ConsumerId(identity.node, identity.incarnation, session.uid, "")
        #: Who holds at the queue what it hands out.
        self.holder = (queue.uid, holder)
        self._timeout_s = services.config.limits.operation_timeout_ms / 1000
        self._asked: Asked | None = None
        #: What the get under way settles besides.
        self._settled: list[Range] = []

    @property
    def is_good(self) -> bool:
        """Tell whether the queue is still the one that was found, and may be read."""
        session = self._session
        return (
            self._revision == session.catalog.topology_revision
            and self._access is session.connection.access
        )

    def ask(self, settled: list[Range]) -> None:
        """Send one get to the queue, which settles first what was got from it before."""
        self._settled = settled
        self._asked = self._session.stream.get(
            self.holder, self._no_ack, settled, self._timeout_s, self._answered
        )

    def withdraw(self) -> None:
        """The channel has ended: no client waits for the answer."""
        if self._asked is not None:
            self._asked.withdraw()
            self._settle_again()

    def _settle_again(self) -> None:
        """The get may never arrive; what is settled twice is passed over."""
        settled, self._settled = self._settled, []
        if settled:
            self._session.settle_again(self.holder, settled)

    def _answered(self, status: ReplyStatus, reply: bytes) -> None:
        session = self._session
        self._asked = None
        if status is not ReplyStatus.OK:
            self._settle_again()
        try:
            self._take(status, reply)
        except errors.ProtocolError as error:
            session.fail(error, methods.BasicGet.CLASS_ID, methods.BasicGet.METHOD_ID)
        except Exception as fault:
            session.connection.broken(fault)
        session.slow_is_over()

    def _take(self, status: ReplyStatus, reply: bytes) -> None:
        session, queue = self._session, self._queue
        services = session.services
        if status is ReplyStatus.REFUSED:
            # The queue waits with damage (see Session._run).
            raise errors.NotFound(reply.decode())
        if status is ReplyStatus.LATE:
            resource = names.resource("queue", queue.vhost, queue.name)
            raise errors.InternalError(
                f"no leader of {resource} answered within {self._timeout_s:g} s"
            )
        got = None
        if status is ReplyStatus.OK:
            got = message_of(services.queues.contents_if_here, queue.uid, reply)
        if got is None:
            session.totals.of(queue.type).get_empty += 1
            session.send(methods.BasicGetEmpty())
        elif isinstance(got, Refused):
            text = f"queue '{queue.name}' in vhost '{queue.vhost}'"
            raise message_checks.machine_refusal(got, text)
        else:
            session.send_got(queue.uid, self.holder[1], got, self._no_ack)
