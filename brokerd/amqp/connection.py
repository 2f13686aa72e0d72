"""AMQP 0-9-1 connection as a machine: bytes in, events out, bytes to send; no socket, no clock.

Both roles.  The driver feeds `receive_data`, handles all events of a read in order, then writes
`data_to_send()`; it calls `tick` when `next_deadline_ms` is reached and closes the socket when
`wants_close` is set and everything is flushed.  The machine answers the handshake and broken rules
by itself; every other request is answered by the driver with `send`, in the order of the events.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from brokerd.amqp import events, handshake, methods, spec
from brokerd.amqp.channel import (
    Channel,
    ChannelPhase,
    decode_method,
    known_gets,
    method_class,
)
from brokerd.amqp.config import Role
from brokerd.amqp.content import walk_publishes
from brokerd.amqp.deliveries import DELIVER_KEY, walk_deliveries
from brokerd.amqp.endpoint import Endpoint
from brokerd.amqp.errors import (
    ChannelFault,
    FrameError,
    HardError,
    MisuseError,
    NotAllowed,
    SoftError,
    UnexpectedFrame,
    erlang_octets,
    erlang_snippet,
    reply_text,
)
from brokerd.amqp.events import Event
from brokerd.amqp.frames import (
    ACK_KEY,
    FRAME_HEAD,
    GET_KEY,
    PUBLISH_KEY,
    check_size,
    unknown_type,
    walk_acks,
    wrong_end,
)
from brokerd.amqp.methods import BasicDeliver
from brokerd.amqp.phases import DEAF, UNDECIDED, Phase

_NO_CHANNELS: Mapping[int, Channel] = MappingProxyType({})


class AmqpConnection(Endpoint):
    """One connection: reading and deciding; sending and time are in `Endpoint`.

    State changes only through the public methods; none of them blocks.  Invariant: `_unread` holds
    no complete frame unless reading waits for a decision or is held.
    """

    # What the driver calls: bytes and time.

    def receive_data(self, data: bytes, now_ms: int) -> list[Event]:
        """All events of one read."""
        self._now_ms = now_ms
        self._received_total += len(data)
        if self.phase in DEAF or self._is_desynchronised:
            return []
        if self._is_held or self.phase in UNDECIDED:
            self._unread += data
            return self._check_unread()
        if self._unread:
            if len(self._unread) + len(data) < self._need:
                self._unread += data
                return []
            data = b"".join((self._unread, data))
            self._unread.clear()
        out: list[Event] = []
        self._consume(data, out)
        return out

    # What the driver calls: decisions and methods.

    def authentication_challenge(self, challenge: bytes) -> None:
        """Server: asks once more; another `AuthenticationRequested` follows."""
        self._expect(Phase.AUTHENTICATING)
        self._out.append(methods.ConnectionSecure(challenge).encode(0))
        self.phase = Phase.AWAIT_SECURE_OK

    def authentication_succeeded(self) -> list[Event]:
        """Server: sends tune; returns the events of what the client sent without waiting."""
        if self.phase in DEAF:
            return []
        self._expect(Phase.AUTHENTICATING)
        config = self.config
        tune = methods.ConnectionTune(config.channel_max, config.frame_max, config.heartbeat_s)
        self._out.append(tune.encode(0))
        self.phase = Phase.AWAIT_TUNE_OK
        return self._read_on()

    def authentication_failed(self, text: str = "", is_readable: bool = True) -> None:
        """Server: refuses the login (R-CON-5); the socket closes after the delay.

        A response that cannot be read is a broken protocol, so it gets the silence of R-CON-6.
        """
        if self.phase in DEAF:
            return
        self._expect(Phase.AUTHENTICATING)
        if is_readable and self.client_has("authentication_failure_close"):
            explanation = text or (
                f"Login was refused using authentication mechanism {self.mechanism}. "
                "For details see the broker logfile."
            )
            refusal = methods.ConnectionClose(
                spec.ACCESS_REFUSED, reply_text(spec.ACCESS_REFUSED, explanation)
            )
            self._out.append(refusal.encode(0))
        self._go_silent()

    def open_accepted(self) -> list[Event]:
        """Server: sends open-ok; returns the events of what the client sent without waiting."""
        if self.phase in DEAF or self.phase is Phase.CLOSING:
            return []
        self._expect(Phase.OPENING)
        self._out.append(methods.ConnectionOpenOk().encode(0))
        self.opened()
        return self._read_on()

    def resume_publishes(self) -> list[Event]:
        """Server: the alarm is over; goes on where `PublishHeld` stopped (R-ALM-3)."""
        self.hold_publishes = False
        if not self._is_held:
            return []
        self._is_held = False
        self.resume_heartbeat_check()
        return self._read_on()

    # Reading.

    def _check_unread(self) -> list[Event]:
        size = len(self._unread)
        if self._is_held:
            if size > spec.HELD_UNREAD_BYTES_MAX:
                raise MisuseError("still reading a connection whose publishes are held")
        elif size > spec.HANDSHAKE_UNREAD_BYTES_MAX:
            out: list[Event] = []
            self._connection_fault(FrameError("too much sent before the handshake's end"), out)
            return out
        return []

    def _read_on(self) -> list[Event]:
        data = bytes(self._unread)
        self._unread.clear()
        out: list[Event] = []
        if data:
            self._consume(data, out)
        return out

    def _consume(self, buffer: bytes, out: list[Event]) -> None:
        """Walks the buffer, answers what is wrong in it, keeps what is incomplete."""
        pos = 0
        while True:
            self._next = len(buffer)
            try:
                pos = self._walk(buffer, pos, out)
                break
            except HardError as error:
                if self.phase is not Phase.CLOSING:
                    self._connection_fault(error, out)
                pos = self._next
                if isinstance(error, FrameError) and error.is_desynchronised:
                    # Without frame borders nothing more can be read: the socket ends by time.
                    self._is_desynchronised = True
                    return
        if self.phase not in DEAF:
            self._unread += buffer[pos:] if pos else buffer

    def _walk(self, buffer: bytes, pos: int, out: list[Event]) -> int:
        """Takes frames from `pos` on; returns where it stopped for want of bytes or of leave."""
        total = len(buffer)
        if self.phase is Phase.AWAIT_HEADER:
            pos = self._take_protocol_header(buffer, out)
            if not pos:
                return 0
        channels = self._channels if self.phase is Phase.OPEN else _NO_CHANNELS
        while True:
            if total - pos < spec.FRAME_HEAD_SIZE:
                self._need = spec.FRAME_HEAD_SIZE
                return pos
            kind, number, size = FRAME_HEAD.unpack_from(buffer, pos)
            if kind == spec.FRAME_METHOD and number in channels:
                after = self._walk_run(buffer, pos, channels[number], out)
                if after != pos:
                    pos = after
                    continue
            end = pos + spec.EMPTY_FRAME_SIZE + size
            if size > self._frame_max_in:
                check_size(kind, size, self._frame_max_in)
            if self.hold_publishes and kind in (2, 3) and self._hold(number, out):
                return pos
            if end > total:
                self._need = end - pos
                return pos
            if buffer[end - 1] != spec.FRAME_END:
                raise wrong_end(kind, buffer[pos + 7 : min(pos + 24, end - 1)], buffer[end - 1])
            if kind not in spec.FRAME_TYPES:
                raise unknown_type(kind, buffer[pos + 7 : min(pos + 24, end - 1)])
            self._next = end
            self._take_frame(kind, number, buffer[pos + 7 : end - 1], out)
            pos = end
            if self.phase is not Phase.OPEN:
                if self.phase in UNDECIDED or self.phase in DEAF:
                    return pos
                channels = _NO_CHANNELS
            elif channels is not self._channels:
                channels = self._channels

    def _walk_run(self, buffer: bytes, pos: int, channel: Channel, out: list[Event]) -> int:
        """The fast ways: runs of whole publishes, deliveries, acks, a get.  Judges nothing."""
        if channel.phase is not ChannelPhase.OPEN or channel.content is not None:
            return pos
        key = buffer[pos + 7 : pos + 11]
        last = out[-1] if out else None
        if key == PUBLISH_KEY:
            if self.hold_publishes or self.role is not Role.SERVER:
                return pos
            run: list[tuple[bytes, bytes, bytes]] = []
            is_new = type(last) is not events.PublishesReceived or last.channel != channel.number
            if type(last) is events.PublishesReceived and not is_new:
                run = last.items
            after = walk_publishes(
                buffer,
                pos,
                channel.number,
                self._frame_max_in,
                self.config.max_message_size,
                run,
            )
            if run and is_new:
                out.append(events.PublishesReceived(channel.number, run))
            return after
        if key == GET_KEY:
            # One that came before, byte by byte; the general way looks at the others.
            end = pos + spec.EMPTY_FRAME_SIZE + int.from_bytes(buffer[pos + 3 : pos + 7], "big")
            if self.role is not Role.SERVER or end > len(buffer) or buffer[end - 1] != 0xCE:
                return pos
            get = known_gets.get(buffer[pos + 7 : end - 1])
            if get is None:
                return pos
            out.append(events.MethodReceived(channel.number, get))
            return end
        if key == DELIVER_KEY and self.role is Role.CLIENT:
            limit = self.config.max_message_size
            return walk_deliveries(buffer, pos, channel.number, self._frame_max_in, limit, out)
        if key == ACK_KEY:
            # Every ack that is whole and right comes this way; the general one finds the fault.
            acks: list[tuple[int, bool]] = []
            after = walk_acks(buffer, pos, acks)
            if acks:
                out.append(events.AcksReceived(channel.number, acks))
            return after
        return pos

    def _take_protocol_header(self, buffer: bytes, out: list[Event]) -> int:
        if len(buffer) < spec.PROTOCOL_HEADER_SIZE:
            self._need = spec.PROTOCOL_HEADER_SIZE
            return 0
        if buffer[:8] not in spec.ACCEPTED_PROTOCOL_HEADERS:
            # R-CON-2.
            self._out.append(spec.PROTOCOL_HEADER)
            out.append(events.ConnectionFailed(f"bad protocol header {erlang_octets(buffer[:8])}"))
            self._finish()
            return len(buffer)
        self.queue(handshake.start_method(self))
        self.phase = Phase.AWAIT_START_OK
        return spec.PROTOCOL_HEADER_SIZE

    def _hold(self, number: int, out: list[Event]) -> bool:
        channel = self._channels.get(number)
        if channel is None or channel.content is None:
            return False
        self._is_held = True
        self.pause_heartbeat_check()
        out.append(events.PublishHeld(number))
        return True

    def _take_frame(self, kind: int, number: int, payload: bytes, out: list[Event]) -> None:
        """One whole frame that the fast ways did not take."""
        if self.phase is Phase.CLOSING:
            self._take_while_closing(kind, number, payload, out)
        elif kind == spec.FRAME_HEARTBEAT:
            if number:
                raise UnexpectedFrame(f"type {kind}, {erlang_snippet(payload)}")
            if payload:
                raise FrameError(f"type {kind}, {erlang_snippet(payload)}: unknown_frame")
        elif number == 0:
            if kind != spec.FRAME_METHOD:
                raise UnexpectedFrame(f"type {kind}, {erlang_snippet(payload)}")
            event = handshake.take_method(self, decode_method(method_class(payload), payload))
            if event is not None:
                out.append(event)
        elif self.phase is not Phase.OPEN:
            raise UnexpectedFrame(f"type {kind}, {erlang_snippet(payload)}")
        else:
            self._take_channel_frame(kind, number, payload, out)

    def _take_channel_frame(self, kind: int, number: int, payload: bytes, out: list[Event]) -> None:
        channel = self._channels.get(number)
        if channel is None:
            self._take_unopened(kind, number, payload, out)
            return
        if kind != spec.FRAME_METHOD:
            self._take_content(channel, kind, payload, out)
            return
        was_closing = channel.phase is ChannelPhase.CLOSING
        event = channel.take_method(payload)
        if channel.is_gone:
            del self._channels[number]
            if not was_closing:
                self._open_channel_count -= 1
        elif channel.needs_close_ok:
            channel.needs_close_ok = False
            self._out.append(methods.ChannelCloseOk().encode(number))
        if event is not None:
            out.append(event)

    def _take_unopened(self, kind: int, number: int, payload: bytes, out: list[Event]) -> None:
        if kind != spec.FRAME_METHOD:
            raise ChannelFault("expected 'channel.open'")
        found = method_class(payload)
        if self.role is Role.CLIENT or found is not methods.ChannelOpen:
            # R-CH-1.
            raise ChannelFault(
                "expected 'channel.open'", class_id=found.CLASS_ID, method_id=found.METHOD_ID
            )
        decode_method(found, payload)
        limit = self.channel_max or spec.CHANNEL_COUNT_CEILING
        if self._open_channel_count >= limit:
            # R-CH-2, SEC-37: the count, not the number.
            raise NotAllowed(
                f"number of channels opened ({self._open_channel_count}) has reached the "
                f"negotiated channel_max ({limit})"
            )
        self._add_channel(number, ChannelPhase.OPEN)
        out.append(events.ChannelOpened(number))

    def _take_content(self, channel: Channel, kind: int, payload: bytes, out: list[Event]) -> None:
        before = channel.unfinished_bytes
        try:
            done = channel.take_content(kind, payload, self.config.max_message_size)
        except SoftError as error:
            out += self.fail(error, channel.number)
            return
        self._unfinished_bytes += channel.unfinished_bytes - before
        if done is None:
            return
        assert done.header is not None
        number = channel.number
        if self.role is Role.CLIENT:
            method = done.method
            if isinstance(method, BasicDeliver):
                out.append(events.DeliveriesReceived(number, method, done.header, [done.body]))
            else:
                out.append(events.ContentReceived(number, method, done.header, done.body))
            return
        item = (done.payload, done.header, done.body)
        last = out[-1] if out else None
        if type(last) is events.PublishesReceived and last.channel == number:
            last.items.append(item)
        else:
            out.append(events.PublishesReceived(number, [item]))

    def _take_while_closing(self, kind: int, number: int, payload: bytes, out: list[Event]) -> None:
        """R-CON-14: only close-ok and close count."""
        if kind != spec.FRAME_METHOD or number:
            return
        found = method_class(payload)
        if found is methods.ConnectionCloseOk:
            self.is_settled = True
            self._finish()
            out.append(events.ConnectionClosed(False, self._close_code, self._close_text))
        elif found is methods.ConnectionClose:
            self.queue(methods.ConnectionCloseOk())

    def _expect(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise MisuseError(f"called in phase {self.phase.value}, not {phase.value}")
