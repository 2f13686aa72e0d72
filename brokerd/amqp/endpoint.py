"""One end of a connection without its reading: state, time, sending, ending.

The lower half of `AmqpConnection`, which alone may use it.
"""

from __future__ import annotations

from brokerd.amqp import events, methods, spec
from brokerd.amqp.channel import Channel, ChannelPhase
from brokerd.amqp.config import ConnectionConfig, Role
from brokerd.amqp.errors import MisuseError, ProtocolError, SoftError, reply_text
from brokerd.amqp.events import Event
from brokerd.amqp.frames import content_frames
from brokerd.amqp.heartbeat import Heartbeats
from brokerd.amqp.methods import Method
from brokerd.amqp.phases import DEAF, UNAUTHENTICATED, Phase
from brokerd.amqp.values import Table

#: Phases in which ordinary methods may still go out.  After the peer's connection.close the answers
#: to what it sent before are still written; it may ignore them.
_SENDABLE = frozenset({Phase.OPEN, Phase.PEER_CLOSING})


class Endpoint:
    """State of one end.  Changes only through the public methods; none of them blocks.

    Invariants: a channel is in `_channels` from its opening to the moment its number is free again;
    in a deaf phase nothing unread is kept.
    """

    def __init__(self, role: Role, config: ConnectionConfig, now_ms: int) -> None:
        self.role = role
        self.config = config
        self.phase = Phase.AWAIT_HEADER if role is Role.SERVER else Phase.AWAIT_START
        #: Negotiated values; the configured ones until tune-ok.
        self.frame_max = config.frame_max
        self.channel_max = config.channel_max
        self.heartbeat_s = 0
        self.mechanism = ""
        self.client_properties: Table = {}
        self.server_properties: Table = {}
        #: Set by the server during an alarm: the next content stops the reading (R-ALM-2).
        self.hold_publishes = False
        #: The driver closes the socket after flushing.
        self.wants_close = False
        #: Both sides have taken their leave: only the end of the sockets is left.
        self.is_settled = False
        #: When `wants_close` will be set by `tick`.
        self.close_at_ms: int | None = None
        self._now_ms = now_ms
        self._frame_max_in = config.initial_frame_max
        self._channels: dict[int, Channel] = {}
        self._open_channel_count = 0
        self._out: list[bytes] = []
        self._unread = bytearray()
        #: What all channels hold of bodies that have not come whole.
        self._unfinished_bytes = 0
        #: Unread bytes that make looking again worthwhile.
        self._need = 0
        self._is_held = False
        #: A framing error: no frame can be found any more.
        self._is_desynchronised = False
        #: Where the frame after the one being handled starts.
        self._next = 0
        self._received_total = 0
        self._handshake_deadline_ms: int | None = now_ms + config.handshake_timeout_ms
        self._heartbeats: Heartbeats | None = None
        self._close_code = 0
        self._close_text = ""
        if role is Role.CLIENT:
            self._out.append(spec.PROTOCOL_HEADER)

    def receive_eof(self, now_ms: int) -> list[Event]:
        """The peer closed its side of the socket, or the socket failed."""
        self._now_ms = now_ms
        phase = self.phase
        self._finish()
        if phase is Phase.CLOSING:
            return [events.ConnectionClosed(False, self._close_code, self._close_text)]
        if phase in DEAF:
            return []
        return [events.ConnectionFailed("socket closed by the peer without connection.close")]

    def tick(self, now_ms: int) -> list[Event]:
        """Heartbeats and deadlines; call it at `next_deadline_ms` or later."""
        self._now_ms = now_ms
        if self.close_at_ms is not None and now_ms >= self.close_at_ms:
            was_closing = self.phase is Phase.CLOSING
            self._finish()
            if was_closing:
                return [events.ConnectionClosed(False, self._close_code, self._close_text)]
            return []
        deadline = self._handshake_deadline_ms
        if deadline is not None and now_ms >= deadline:
            # R-CON-4, SEC-32: no method is sent, to any kind of peer.
            self._finish()
            return [events.ConnectionFailed("handshake timeout")]
        beats = self._heartbeats
        if beats is None:
            return []
        if beats.is_peer_silent(now_ms, self._received_total):
            # R-HB-1: no connection.close.
            self._finish()
            return [events.ConnectionFailed(f"missed heartbeats, timeout: {self.heartbeat_s}s")]
        if beats.is_send_due(now_ms):
            self._out.append(spec.HEARTBEAT_FRAME)
        return []

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None when nothing is awaited."""
        found = self.close_at_ms
        if self._handshake_deadline_ms is not None:
            deadline = self._handshake_deadline_ms
            found = deadline if found is None else min(found, deadline)
        if self._heartbeats is not None:
            deadline = self._heartbeats.next_deadline_ms
            found = deadline if found is None else min(found, deadline)
        return found

    def data_to_send(self) -> bytes:
        """Everything queued since the last call."""
        out = self._out
        if not out:
            return b""
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def send(self, channel: int, method: Method) -> None:
        """Queues a method without content and notes what it changes.

        What comes too late, for a channel or connection that is being closed, is dropped.
        """
        if channel == 0:
            self._send_on_connection(method)
        elif self._may_send(channel, method):
            self._out.append(method.encode(channel))

    def send_content(self, channel: int, method: Method, header_raw: bytes, body: bytes) -> None:
        """Queues a method with its content, the body cut to frame_max (R-FRM-10)."""
        if self._may_send(channel, method):
            self._out.append(method.encode(channel))
            self._out += content_frames(channel, method.CLASS_ID, header_raw, body, self.frame_max)

    def send_raw(self, frames: bytes, channel: int = 0) -> None:
        """Queues frames encoded elsewhere; with `channel`, dropped if that one is closing."""
        if self.phase in _SENDABLE:
            state = self._channels.get(channel)
            if state is None or state.phase is not ChannelPhase.CLOSING:
                self._out.append(frames)

    def open_channel(self, channel: int) -> None:
        """Client: channel.open; `ChannelOpened` follows."""
        self.send(channel, methods.ChannelOpen())

    def close_channel(
        self, channel: int, code: int, text: str, class_id: int = 0, method_id: int = 0
    ) -> None:
        """Queues channel.close; from now on the channel's frames are dropped (R-CH-4)."""
        if code != spec.REPLY_SUCCESS:
            text = reply_text(code, text)
        self.send(channel, methods.ChannelClose(code, text, class_id, method_id))

    def close(self, code: int, text: str, class_id: int = 0, method_id: int = 0) -> None:
        """Queues connection.close; `ConnectionClosed` follows.  Unknown peers get silence."""
        if self.phase in DEAF or self.phase is Phase.CLOSING:
            return
        if code != spec.REPLY_SUCCESS:
            text = reply_text(code, text)
        self._close_code, self._close_text = code, text
        if self.role is Role.SERVER and self.phase in UNAUTHENTICATED:
            self._go_silent()
            return
        if self.role is Role.CLIENT and self.phase is not Phase.OPEN:
            self._finish()
            return
        self._out.append(methods.ConnectionClose(code, text, class_id, method_id).encode(0))
        # R-CON-14; 30 s when heartbeats are off (decision on O-22).
        heartbeat_ms = self.heartbeat_s * 1000 or spec.CLOSING_TIMEOUT_MS
        self.close_at_ms = self._now_ms + min(heartbeat_ms, spec.CLOSING_TIMEOUT_MS)
        self._leave_open(Phase.CLOSING)

    def fail(self, error: ProtocolError, channel: int = 0) -> list[Event]:
        """Answers a broken rule found outside this room; returns what that means as events."""
        if isinstance(error, SoftError) and channel:
            self.close_channel(
                channel, error.code, error.explanation, error.class_id, error.method_id
            )
            return [
                events.ChannelError(
                    channel, error.code, error.text, error.class_id, error.method_id
                )
            ]
        out: list[Event] = []
        self._connection_fault(error, out)
        return out

    def pause_heartbeat_check(self) -> None:
        """The driver has stopped reading the socket (R-HB-2)."""
        if self._heartbeats is not None:
            self._heartbeats.pause()

    def resume_heartbeat_check(self) -> None:
        """The driver reads again."""
        if self._heartbeats is not None:
            self._heartbeats.resume(self._now_ms)

    def client_has(self, capability: str) -> bool:
        """Whether the client's capability table says true to it."""
        capabilities = self.client_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    def server_has(self, capability: str) -> bool:
        """Whether the server's capability table says true to it."""
        capabilities = self.server_properties.get("capabilities")
        return isinstance(capabilities, dict) and capabilities.get(capability) is True

    @property
    def is_open(self) -> bool:
        """Whether channels can be used."""
        return self.phase is Phase.OPEN

    @property
    def is_closing(self) -> bool:
        """Whether our connection.close waits for its answer."""
        return self.phase is Phase.CLOSING

    @property
    def held_bytes(self) -> int:
        """What is kept of frames and bodies that have not come whole."""
        return len(self._unread) + self._unfinished_bytes

    @property
    def is_held(self) -> bool:
        """Whether reading has stopped at a publish."""
        return self._is_held

    def overview(self) -> dict[str, int | str | bool]:
        """State in short, for people."""
        return {
            "role": self.role.value,
            "phase": self.phase.value,
            "channels": self._open_channel_count,
            "frame_max": self.frame_max,
            "channel_max": self.channel_max,
            "heartbeat_s": self.heartbeat_s,
            "unread_bytes": len(self._unread),
            "held_bytes": self.held_bytes,
            "is_held": self._is_held,
        }

    def check_invariants(self) -> None:
        """Raises AssertionError when the state contradicts itself."""
        open_now = [c for c in self._channels.values() if c.phase is not ChannelPhase.CLOSING]
        assert self._open_channel_count == len(open_now)
        assert self._unfinished_bytes == sum(c.unfinished_bytes for c in self._channels.values())
        assert not any(c.is_gone for c in self._channels.values())
        assert not self._channels or self.phase is Phase.OPEN
        assert self.phase is not Phase.CLOSED or self.wants_close
        assert self.phase is not Phase.SILENT or self.close_at_ms is not None
        assert not (self._unread and self.phase in DEAF)

    # What `handshake.py` calls.

    def queue(self, method: Method) -> None:
        """Queues a method on channel 0."""
        self._out.append(method.encode(0))

    def tuned(self, frame_max: int, channel_max: int, heartbeat_s: int) -> None:
        """tune-ok: the values are agreed (R-CON-9, R-CON-10)."""
        self.frame_max = self._frame_max_in = frame_max
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s
        if heartbeat_s:
            self._heartbeats = Heartbeats(heartbeat_s, self._now_ms)

    def opened(self) -> None:
        """open-ok: the handshake is over."""
        self.phase = Phase.OPEN
        self._handshake_deadline_ms = None

    def peer_closes(self) -> None:
        """connection.close came; the answer has as long as ours would have."""
        self.close_at_ms = self._now_ms + spec.CLOSING_TIMEOUT_MS
        self._leave_open(Phase.PEER_CLOSING)

    def _may_send(self, number: int, method: Method) -> bool:
        if self.phase not in _SENDABLE:
            return False
        kind = type(method)
        channel = self._channels.get(number)
        if channel is None:
            if kind is methods.ChannelOpen and self.role is Role.CLIENT and self.is_open:
                self._add_channel(number, ChannelPhase.OPENING)
            elif kind is methods.ChannelClose and self.role is Role.SERVER:
                # The client's own channel.close was read before the driver found what it did
                # wrong: its close-ok to ours is still to come (R-CH-4).
                self._channels[number] = Channel(number, self.role, ChannelPhase.CLOSING)
            return True
        if channel.phase is ChannelPhase.CLOSING:
            return kind is methods.ChannelCloseOk
        if kind is methods.ChannelClose:
            self._unfinished_bytes -= channel.unfinished_bytes
            channel.begin_closing()
            self._open_channel_count -= 1
        elif kind is methods.ChannelOpen:
            raise MisuseError(f"channel {number} is in use")
        return True

    def _send_on_connection(self, method: Method) -> None:
        kind = type(method)
        if kind is methods.ConnectionCloseOk:
            if self.phase is Phase.PEER_CLOSING:
                self.queue(method)
                self.is_settled = True
                self._finish()
        elif isinstance(method, methods.ConnectionClose):
            self.close(method.reply_code, method.reply_text, method.class_id, method.method_id)
        elif self.phase in _SENDABLE:
            self.queue(method)

    def _add_channel(self, number: int, phase: ChannelPhase) -> None:
        self._channels[number] = Channel(number, self.role, phase)
        self._open_channel_count += 1

    def _connection_fault(self, error: ProtocolError, out: list[Event]) -> None:
        """The peer broke a rule that costs it the connection (R-CON-15)."""
        if self.phase in DEAF or self.phase is Phase.CLOSING:
            return
        self.close(error.code, error.explanation, error.class_id, error.method_id)
        code = error.code if self.is_closing else 0
        out.append(events.ConnectionFailed(error.text, code, error.class_id, error.method_id))

    def _go_silent(self) -> None:
        self.close_at_ms = self._now_ms + self.config.silent_close_delay_ms
        self._leave_open(Phase.SILENT)

    def _finish(self) -> None:
        self.wants_close = True
        self.close_at_ms = None
        self._leave_open(Phase.CLOSED)

    def _leave_open(self, phase: Phase) -> None:
        self.phase = phase
        self._handshake_deadline_ms = None
        self._heartbeats = None
        self._is_held = False
        self.hold_publishes = False
        self._channels.clear()
        self._unfinished_bytes = 0
        self._open_channel_count = 0
        self._need = 0
        if phase in DEAF:
            self._unread.clear()
