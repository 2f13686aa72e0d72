"""One AMQP connection: a socket on one side, the sans-IO machine and the sessions on the other.

Executes: bytes in, events to sessions, bytes out; reads pause when the connection holds too much
(flow.py) or is blocked by an alarm (R-ALM-2).  Decides nothing about AMQP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from brokerd.amqp import config as amqp_config
from brokerd.amqp import connection as amqp_connection
from brokerd.amqp import errors as amqp_errors
from brokerd.amqp import events, methods
from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.permissions import Access
from brokerd.server.amqp import session_consumers
from brokerd.server.amqp.channel_connection import ChannelConnection
from brokerd.server.amqp.client_login import ClientLogin
from brokerd.server.amqp.flow import ReadGate
from brokerd.server.amqp.session import Session
from brokerd.server.amqp.throttle import Throttle
from brokerd.server.amqp.token_life import TokenLife
from brokerd.server.catalog.audit import Author
from brokerd.server.loop.tasks import Tasks
from brokerd.server.messages import partial_messages

if TYPE_CHECKING:
    from brokerd.server.amqp.ports import ConnectionServices

log = logging.getLogger(__name__)

#: How long a closed connection's socket waits for the client's end of it; RabbitMQ waits for the
#: heartbeat's period, 30 s at most.
LEAVE_MS = 5_000


class ClientConnection(ChannelConnection, asyncio.Protocol):
    """State: the machine, the sessions by channel number, what is known of the client.

    Invariant: everything the machine wants to send is written at the end of each turn (`_flush`).

    In one piece: it is asyncio's protocol and the machine's driver, and all it knows belongs to the
    same turn of the loop; what has a life of its own (login, sessions, gate, budget, tasks) is in
    classes of their own.
    """

    #: Of the lines that say that it came and went.
    log_level = logging.INFO

    def __init__(
        self,
        services: ConnectionServices[ClientConnection],
        config: amqp_config.ConnectionConfig,
        tls: bool,
        client: tuple[str, int] | None = None,
    ) -> None:
        """client: its address, where that is not the socket's peer (proxied_listener.py)."""
        channels, now_ms = services.channels, services.wheel.now_ms
        role = amqp_config.Role.SERVER
        super().__init__(
            amqp_connection.AmqpConnection(role, config, now_ms()),
            Access(channels.catalog.view, "", ""),
            channels.identity.next_uid(),
            ReadGate(self._pause_reading, self._resume_reading, now_ms),
            channels.config.limits.unconfirmed_bytes,
            services.call_after_flush,
        )
        self._services = services
        self._connections = services.connections
        self._wheel = services.wheel
        self._partial_messages = services.partial_messages
        self._view = channels.catalog.view
        self._limits = channels.config.limits
        self.sessions: dict[int, Session] = {}
        self.tls = tls
        self._client = client
        self._login = ClientLogin(services.authenticator, channels.config.auth, tls)
        self._token = TokenLife(self, self._login, self.sessions)
        self.connected_ms = services.clock_ms()
        self.throttle = Throttle(self, services, self.sessions)
        self._transport: asyncio.Transport | None = None
        self._tasks = Tasks(self._task_ended)
        self._flush_scheduled = False
        self._lost = False
        #: We have closed it: what the client sent after that is not looked at any more.
        self._is_closed = False
        #: The client's connection.close, while channels still do what came before it.
        self._goodbye: events.ConnectionClosed | None = None
        #: The client has sent connection.close.
        self._took_leave = False
        #: The machine's phase when its deadline was last entered; None: it must be entered again.
        self._watched_phase: object = None
        #: What the socket had not taken when it was last looked at.
        self._untaken_bytes = 0
        #: What was last said of frames and bodies that have not come whole.
        self._held_bytes = 0
        self.received_bytes = self.sent_bytes = 0

    # ---- the socket -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client dialled."""
        # uvloop's transports are no subclasses of asyncio's, they only act like them.
        self._transport = cast(asyncio.Transport, transport)
        self.peer = self._client or _address(self._transport, "peername")
        self.sock = _address(self._transport, "sockname")
        if not self._connections.admit(self):
            self._transport.abort()
            return
        machine = self.machine
        machine.config = self._login.offer(machine.config, self._transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes)
        self.watch()

    def data_received(self, data: bytes) -> None:
        """Bytes from the client: the batch unit of everything that follows."""
        if self._lost:
            return
        self.received_bytes += len(data)
        try:
            self._handle(self.machine.receive_data(data, self._wheel.now_ms()))
        except Exception as error:
            # A defect of ours costs this one connection, with an answer.
            self.broken(error)

    def eof_received(self) -> bool:
        """The client closed its side; False: so do we."""
        if self._lost:
            return False
        self._handle(self.machine.receive_eof(self._wheel.now_ms()))
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone, for whatever reason: channels end, exclusive queues go."""
        self._wheel.forget(self)
        self._connections.left(self)
        if self._lost:
            return
        self._lost = True
        self.gate.close()
        self._end_sessions()
        self._connections.gone(self)
        self._partial_messages.note(self, 0)
        self._tasks.cancel()
        if self.user:
            self._log("closed AMQP connection")
        self._ended()

    def pause_writing(self) -> None:
        """The client does not take what it is sent: stop making more (SEC-45)."""
        if self._lost:
            return
        self.write_paused_ms = self._wheel.now_ms()
        self._untaken_bytes = self._buffered()
        for session in self.sessions.values():
            session.writable(False)
        self.watch()

    def resume_writing(self) -> None:
        """There is room again."""
        self.write_paused_ms = None
        for session in list(self.sessions.values()):
            session.writable(True)
        if self.write_paused_ms is None:
            self.gate.release("output")

    @property
    def held_bytes(self) -> int:
        """Return the bytes of what has not come whole, and of what the client has not taken."""
        return self.machine.held_bytes + self._buffered()

    @property
    def author(self) -> Author:
        """Return on whose behalf changes are made."""
        return Author(self.user, "amqps" if self.tls else "amqp", f"{self.peer[0]}:{self.peer[1]}")

    def _log(self, what: str) -> None:
        log.log(self.log_level, "%s %s user=%s vhost=%s", what, self.name, self.user, self.vhost)

    def _pause_reading(self) -> None:
        # R-HB-2: what the client sends meanwhile is not read, and neither are its heartbeats.
        self.machine.pause_heartbeat_check()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        self.machine.resume_heartbeat_check()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    # ---- events -----------------------------------------------------------------------------

    def _handle(self, batch: list[events.Event]) -> None:
        sent_before = self.sent_bytes
        for event in batch:
            if self._is_closed and type(event) not in _LAST_EVENTS:
                # R-CON-14: what came behind the error is not done.
                continue
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)
        held = self.machine.held_bytes
        if held > partial_messages.COUNTED_BYTES_MIN or self._held_bytes:
            self._held_bytes = held
            self._partial_messages.note(self, held)
        self.flush_now()
        is_paused = self.write_paused_ms is not None
        if is_paused and self.sent_bytes != sent_before and not self.machine.is_closing:
            # It asks for more (gets, returns) and takes none of it: its requests wait.
            self.gate.hold("output")

    def session_event(self, channel: int, event: events.Event) -> None:
        """Hand an event to its channel; a channel that is gone swallows it (R-CH-4)."""
        session = self.sessions.get(channel)
        if session is not None:
            session.handle(event)
        elif self.throttle.is_unopened(channel):
            self.fail(amqp_errors.ChannelFault("expected 'channel.open'"))

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a slow operation beside the connection; it ends with the connection."""
        return self._tasks.spawn(work)

    def _task_ended(self, error: BaseException | None) -> None:
        if error is not None:
            self.broken(error)
        self.flush_now()

    def broken(self, error: BaseException) -> None:
        """A defect of ours: this connection ends, and the log says why."""
        log.error("internal error on connection %s", self.name, exc_info=error)
        self.close(541, "internal error; see the log of the member")

    def _on_authentication(self, event: events.AuthenticationRequested) -> None:
        self.spawn(self._authenticate(event))

    async def _authenticate(self, event: events.AuthenticationRequested) -> None:
        verdict, is_readable = await self._login.verdict(event, self.peer[0], self.name)
        if self._lost:
            return
        if verdict is None:
            self.machine.authentication_failed(
                f"Login was refused using authentication mechanism {event.mechanism}. "
                "For details see the broker logfile.",
                is_readable=is_readable,
            )
            return
        self.become(verdict)
        self._connections.logged_in(self)
        self._handle(self.machine.authentication_succeeded())

    def _on_secret(self, event: events.SecretUpdated) -> None:
        self._token.secret_updated(event)

    def become(self, identity: Identity) -> None:
        """Go on as this user, with these rights."""
        self.identity = identity
        self.user, self.tags = identity.user, identity.tags
        self.access = self._services.admission.access(identity, self.vhost)

    def _on_open(self, event: events.OpenRequested) -> None:
        refusal = self._services.admission.may_open(self.identity, event.vhost)
        if refusal is not None:
            self.close(530, refusal, 10, 40)
            return
        self.vhost = event.vhost
        self.become(self.identity)
        self._look_up_tags()
        self.is_open = True
        self._connections.opened(self)
        self.throttle.alarms_changed(self._services.blocking_reason())
        self._log("accepted AMQP connection")
        self._handle(self.machine.open_accepted())

    def _on_channel_opened(self, event: events.ChannelOpened) -> None:
        if event.channel in self.sessions:
            # Its close is still waiting for what came before it; the number is not free yet.
            self.fail(amqp_errors.ChannelFault("second 'channel.open' seen", **_CHANNEL_OPEN))
            return
        if not self.throttle.delays_open(event.channel):
            self.open_channel(event.channel)

    def open_channel(self, channel: int) -> None:
        """Begin a channel that the client has opened."""
        refusal = self._services.admission.may_open_channel(self.user)
        if refusal is not None:
            self.close(530, refusal)
            return
        self._connections.counts.channel_opened(self.user)
        self.sessions[channel] = Session(self._services.channels, self, channel)
        self.machine.send(channel, methods.ChannelOpenOk())

    def _on_channel_closed(self, event: events.ChannelClosed) -> None:
        session = self.sessions.get(event.channel)
        if session is not None:
            # In its turn: what the client sent before is done first.
            session.handle(event)
        elif event.by_peer:
            self.throttle.channel_gone(event.channel)
            self.machine.send(event.channel, methods.ChannelCloseOk())

    def channel_closed(self, channel: int) -> None:
        """A session has done all that came before channel.close."""
        session = self.sessions.pop(channel, None)
        if session is not None:
            session.ended()
        self.machine.send(channel, methods.ChannelCloseOk())

    def channel_failed(self, channel: int) -> None:
        """A session has closed its channel for an error."""
        self.sessions.pop(channel, None)

    def channel_ended(self, channel: int) -> None:
        """A channel is gone, for whatever reason."""
        self.throttle.channel_gone(channel)
        self._connections.counts.channel_closed(self.user)

    def _on_channel_error(self, event: events.ChannelError) -> None:
        text = "channel error on connection %s channel %d: %s"
        log.log(self.fault_level, text, self.name, event.channel, event.text)
        session = self.sessions.pop(event.channel, None)
        if session is not None:
            session.ended()

    def _on_method(self, event: events.MethodReceived) -> None:
        if type(event.method) is methods.ChannelFlowOk:
            # At once, whatever the channel is busy with: the answer has a deadline.
            self.throttle.flow_ok(event.channel, event.method.active)
        else:
            self.session_event(event.channel, event)

    def _on_publishes(self, event: events.PublishesReceived) -> None:
        if self.throttle.watches:
            self.throttle.published(event.channel)
        self.session_event(event.channel, event)

    def _on_acks(self, event: events.AcksReceived) -> None:
        self.session_event(event.channel, event)

    def _on_publish_held(self, _: events.PublishHeld) -> None:
        self.throttle.publish_held()

    def _on_closed(self, event: events.ConnectionClosed) -> None:
        self._took_leave = event.by_peer
        if event.by_peer and any(session.is_busy for session in self.sessions.values()):
            # What the client sent before is done first; the machine has a deadline for it.
            self._goodbye = event
            return
        self._end_sessions()
        going = self._ended()
        if not event.by_peer:
            return
        if going is None:
            self.machine.send(0, methods.ConnectionCloseOk())
        else:
            # R-Q-9: a client that learns of the end may declare queues of the same names.
            going.add_done_callback(self._say_goodbye)

    def _say_goodbye(self, _: asyncio.Task[None]) -> None:
        self.machine.send(0, methods.ConnectionCloseOk())
        self.flush_now()

    def session_idle(self) -> None:
        """A session has done what it had."""
        goodbye, self._goodbye = self._goodbye, None
        if goodbye is not None:
            self._on_closed(goodbye)

    def _on_failed(self, event: events.ConnectionFailed) -> None:
        text = f"error on AMQP connection {self.name}: {event.reason}"
        if self.user and not event.code:
            # The client left or fell silent: no mistake of it or of ours.
            self._connections.lost_total += 1
            log.warning("lost AMQP connection %s: %s", self.name, event.reason)
        elif self.user:
            log.error("%s", text)
        elif self.received_bytes:
            self._connections.handshake_broken(text)
        self._end_sessions()

    def _end_sessions(self) -> None:
        for session in list(self.sessions.values()):
            session.ended()
        self.sessions.clear()

    def _ended(self) -> asyncio.Task[None] | None:
        """The client's objects that live as long as the connection go (R-Q-9)."""
        if not self.is_open:
            return None
        self.is_open = False
        self.throttle.ended()
        catalog = self._services.channels.catalog
        return catalog.exclusive_queues_end(self.uid) if self.has_exclusive else None

    # ---- from the broker --------------------------------------------------------------------

    def alarms_changed(self, reason: str) -> None:
        """Block or unblock publishing; reason "" means no alarm (R-ALM-2..7)."""
        if not self.is_open:
            return
        self.throttle.alarms_changed(reason)
        self.flush_now()

    def publishes_resumed(self) -> None:
        """The alarm that held the client's publishes is over: go on where reading stopped."""
        self._handle(self.machine.resume_publishes())
        if self.gate.is_held:
            self.machine.pause_heartbeat_check()

    def rights_changed(self) -> None:
        """Rights of the user are others now: consumers that may not read any more end."""
        if not self.is_open:
            return
        view = self._view
        if self.identity.is_gone(view):
            self.close(320, f"user '{self.user}' is deleted")
            return
        if self.vhost not in view.vhosts:
            self.close(320, f"vhost '{self.vhost}' is deleted")
            return
        self._look_up_tags()
        for session in list(self.sessions.values()):
            session_consumers.check_rights(session)
        self.flush_soon()

    def _look_up_tags(self) -> None:
        """R-PERM-9: only impersonator matters here, and it may come and go."""
        self.tags = self.identity.tags_in(self._view)

    def close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Close from our side, with the reason for the client and the log."""
        log.error("closing AMQP connection %s: %d %s", self.name, code, text)
        self._is_closed = True
        self.machine.close(code, text, class_id, method_id)
        self._held_bytes = self.machine.held_bytes
        self._partial_messages.note(self, self._held_bytes)
        self._end_sessions()
        self._ended()
        # close-ok must be read, whatever reading waited for.
        self.gate.open()
        self.flush_now()

    def fail(self, error: amqp_errors.HardError) -> None:
        """Close for a connection error that a session found."""
        self.close(error.code, error.explanation, error.class_id, error.method_id)

    def abort(self) -> None:
        """Drop the socket at once."""
        if self._transport is not None:
            self._transport.abort()

    # ---- output and time --------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write when all groups have said what they have: many deliveries, one write."""
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.call_after_flush(self._scheduled_flush)

    def _scheduled_flush(self) -> None:
        self._flush_scheduled = False
        self.flush_now()

    def flush_now(self) -> None:
        """Write what the machine wants to send."""
        transport = self._transport
        if transport is None or self._lost:
            return
        data = self.machine.data_to_send()
        if data:
            self.sent_bytes += len(data)
            transport.write(data)
            if not transport.is_closing():
                self.flush_count += 1
        if self.machine.wants_close and not transport.is_closing():
            self._part(transport)
            return
        machine = self.machine
        # Within a phase a deadline only moves away, and then the wheel's look at the old one does;
        # what brings it nearer is that somebody closes or takes nothing.
        if (
            machine.phase is not self._watched_phase
            or machine.close_at_ms is not None
            or self.write_paused_ms is not None
        ):
            self.watch()

    def _part(self, transport: asyncio.Transport) -> None:
        """Close the socket; all else of the connection ends at once.

        A client that took its leave closes first, as with RabbitMQ: an end of ours right behind
        close-ok is an error to those that read on (amqp091-go).  After our own leave the client
        hears the end at once, since there are those that wait for it (the Java client).  In both
        cases it may still be writing (amqplib is), and a socket that is closed with unread bytes
        answers with a reset, which takes the last answer from the client: so what comes is read
        and dropped until its end, or until `deadline_reached`.
        """
        # Whatever reading waited for, it waits no more.
        self.gate.open()
        self.connection_lost(None)
        self._connections.leaves(self)
        self._wheel.watch(self, self._wheel.now_ms() + LEAVE_MS)
        if self.machine.is_settled and self._took_leave:
            return
        if self.machine.is_settled and transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()

    def watch(self) -> None:
        """Have `deadline_reached` called when there is something to look at."""
        self._watched_phase = self.machine.phase
        limits = [self.machine.next_deadline_ms, self.throttle.next_deadline_ms]
        if self.write_paused_ms is not None:
            limits.append(self.write_paused_ms + self._limits.write_timeout_ms)
        left_ms = self._token.left_ms(self._services.clock_ms())
        if left_ms is not None:
            limits.append(self._wheel.now_ms() + left_ms)
        self._wheel.watch(self, min((it for it in limits if it is not None), default=None))

    def deadline_reached(self, now_ms: int) -> int | None:
        """Heartbeats, handshake time-outs, clients that take nothing or do not end."""
        if self._lost:
            self.abort()
            return None
        self._watched_phase = None
        self._token.end_if_over(self._services.clock_ms())
        if self.write_paused_ms is not None:
            untaken = self._buffered()
            if untaken < self._untaken_bytes:
                # Slow, not dead.
                self.write_paused_ms = now_ms
            self._untaken_bytes = untaken
            if now_ms - self.write_paused_ms >= self._limits.write_timeout_ms:
                log.error("closing AMQP connection %s: it takes no data", self.name)
                self.abort()
                return None
        try:
            self.throttle.tick(now_ms)
            self._handle(self.machine.tick(now_ms))
        except Exception as error:
            # The timers of all other connections go on.
            self.broken(error)
        return None

    @property
    def is_lost(self) -> bool:
        """Tell whether nothing can be sent any more."""
        return self._lost

    @property
    def untaken_bytes(self) -> int:
        """Return what was written and the socket has not taken."""
        return self._buffered()

    def _buffered(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()


#: What still counts after we have closed.
_LAST_EVENTS = frozenset({events.ConnectionClosed, events.ConnectionFailed})
_CHANNEL_OPEN = {"class_id": 20, "method_id": 10}


def _address(transport: asyncio.Transport, kind: str) -> tuple[str, int]:
    info = transport.get_extra_info(kind)
    return (str(info[0]), int(info[1])) if info else ("?", 0)


_HANDLERS: dict[type, Callable[[ClientConnection, Any], None]] = {
    events.AuthenticationRequested: ClientConnection._on_authentication,
    events.SecretUpdated: ClientConnection._on_secret,
    events.OpenRequested: ClientConnection._on_open,
    events.ChannelOpened: ClientConnection._on_channel_opened,
    events.ChannelClosed: ClientConnection._on_channel_closed,
    events.MethodReceived: ClientConnection._on_method,
    events.PublishesReceived: ClientConnection._on_publishes,
    events.AcksReceived: ClientConnection._on_acks,
    events.PublishHeld: ClientConnection._on_publish_held,
    events.ChannelError: ClientConnection._on_channel_error,
    events.ConnectionClosed: ClientConnection._on_closed,
    events.ConnectionFailed: ClientConnection._on_failed,
}
