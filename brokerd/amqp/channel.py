"""One channel: its phase, and which method is legal in which phase, as tables.

`Channel.take_method` and `take_content` are called by `connection.py` with whole frames; what they
return is an event, or nothing.  Errors are raised for the connection to answer.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from brokerd.amqp import events, methods, spec
from brokerd.amqp.config import Role
from brokerd.amqp.content import ContentAssembly, parse_publish
from brokerd.amqp.errors import (
    ChannelFault,
    CommandInvalid,
    FrameError,
    HardError,
    UnexpectedFrame,
    erlang_snippet,
)
from brokerd.amqp.methods import METHODS, Method


class ChannelPhase(Enum):
    """Where a channel is in its life."""

    #: Client: channel.open went out.
    OPENING = "opening"
    OPEN = "open"
    #: channel.close went out; only close-ok and close count (R-CH-4).
    CLOSING = "closing"


#: What a client may send on an open channel, content and channel.open/close aside.
_FROM_CLIENT: frozenset[type[Method]] = frozenset(
    {
        methods.ChannelFlow,
        methods.ChannelFlowOk,
        methods.AccessRequest,
        methods.ExchangeDeclare,
        methods.ExchangeDelete,
        methods.ExchangeBind,
        methods.ExchangeUnbind,
        methods.QueueDeclare,
        methods.QueueBind,
        methods.QueuePurge,
        methods.QueueDelete,
        methods.QueueUnbind,
        methods.BasicQos,
        methods.BasicConsume,
        methods.BasicCancel,
        methods.BasicCancelOk,
        methods.BasicPublish,
        methods.BasicGet,
        methods.BasicAck,
        methods.BasicReject,
        methods.BasicRecoverAsync,
        methods.BasicRecover,
        methods.BasicNack,
        methods.ConfirmSelect,
        methods.TxSelect,
        methods.TxCommit,
        methods.TxRollback,
    }
)
#: What a server may send on an open channel.
_FROM_SERVER: frozenset[type[Method]] = frozenset(
    {
        methods.ChannelFlow,
        methods.ChannelFlowOk,
        methods.AccessRequestOk,
        methods.ExchangeDeclareOk,
        methods.ExchangeDeleteOk,
        methods.ExchangeBindOk,
        methods.ExchangeUnbindOk,
        methods.QueueDeclareOk,
        methods.QueueBindOk,
        methods.QueuePurgeOk,
        methods.QueueDeleteOk,
        methods.QueueUnbindOk,
        methods.BasicQosOk,
        methods.BasicConsumeOk,
        methods.BasicCancel,
        methods.BasicCancelOk,
        methods.BasicReturn,
        methods.BasicDeliver,
        methods.BasicGetOk,
        methods.BasicGetEmpty,
        methods.BasicAck,
        methods.BasicNack,
        methods.BasicRecoverOk,
        methods.ConfirmSelectOk,
        methods.TxSelectOk,
        methods.TxCommitOk,
        methods.TxRollbackOk,
    }
)
_ACCEPTED: dict[Role, frozenset[type[Method]]] = {
    Role.SERVER: _FROM_CLIENT,
    Role.CLIENT: _FROM_SERVER,
}


#: Payloads of basic.get that were found right: clients send the same bytes again and again
#: (design/hot-path.md rule 2).  A method that was received is never changed.
known_gets: dict[bytes, methods.BasicGet] = {}
#: Each is 262 bytes at most.
KNOWN_GETS_MAX = 1024


def method_class(payload: bytes) -> type[Method]:
    """The class of the method in a frame payload; 501 when cut short, 503 if unknown (R-FRM-5)."""
    if len(payload) < 4:
        raise FrameError(f"type 1, {erlang_snippet(payload)}: unknown_frame")
    found = METHODS.get(int.from_bytes(payload[:4], "big"))
    if found is None:
        class_id = int.from_bytes(payload[:2], "big")
        method_id = int.from_bytes(payload[2:4], "big")
        raise CommandInvalid(
            f"unknown method {{{class_id},{method_id}}}", class_id=class_id, method_id=method_id
        )
    return found


def decode_method(kind: type[Method], payload: bytes) -> Method:
    """Decodes, and names the method in errors that come from inside its fields."""
    try:
        return kind.decode(payload, 4)
    except HardError as error:
        error.class_id, error.method_id = kind.CLASS_ID, kind.METHOD_ID
        raise


def refused(error: type[HardError], kind: type[Method], explanation: str) -> HardError:
    """An error about a method that is known but not legal here."""
    return error(explanation, class_id=kind.CLASS_ID, method_id=kind.METHOD_ID)


class Channel:
    """State of one channel number.  `is_gone` says that the number is free again."""

    __slots__ = ("_accepted", "content", "is_gone", "needs_close_ok", "number", "phase")

    def __init__(self, number: int, role: Role, phase: ChannelPhase) -> None:
        self.number = number
        self.phase = phase
        #: The message in the making; None between messages.
        self.content: ContentAssembly | None = None
        self.is_gone = False
        #: The peer closed while we were closing: its channel.close wants an answer (R-CH-4).
        self.needs_close_ok = False
        self._accepted = _ACCEPTED[role]

    @property
    def unfinished_bytes(self) -> int:
        """What has come of the body of the message in the making."""
        return 0 if self.content is None else self.content.size

    def begin_closing(self) -> None:
        """channel.close goes out; what comes of unfinished content is swallowed (R-ERR-47)."""
        self.phase = ChannelPhase.CLOSING
        self.content = None

    def take_method(self, payload: bytes) -> events.Event | None:
        """A method frame."""
        if self.content is not None:
            raise self.content.refuse_method()
        kind = method_class(payload)
        rule = _RULES.get((self.phase, kind))
        if rule is not None:
            return rule(self, kind, payload)
        return _DEFAULTS[self.phase](self, kind, payload)

    def take_content(
        self, frame_kind: int, payload: bytes, message_size_max: int
    ) -> ContentAssembly | None:
        """A header or body frame; returns the assembly when its message is complete."""
        if self.phase is ChannelPhase.CLOSING:
            return None
        content = self.content
        if content is None:
            raise UnexpectedFrame("expected method frame, got non method frame instead")
        if frame_kind == spec.FRAME_HEADER:
            content.take_header(payload, message_size_max)
        else:
            content.take_body(payload)
        if not content.is_complete:
            return None
        self.content = None
        return content

    def _take_open_method(self, kind: type[Method], payload: bytes) -> events.Event | None:
        if kind not in self._accepted:
            raise refused(CommandInvalid, kind, "unimplemented method")
        method = decode_method(kind, payload)
        if type(method) is methods.BasicGet:
            if len(known_gets) >= KNOWN_GETS_MAX:
                known_gets.clear()
            known_gets[payload] = method
        return events.MethodReceived(self.number, method)

    def _take_content_method(self, kind: type[Method], payload: bytes) -> events.Event | None:
        if kind not in self._accepted:
            raise refused(CommandInvalid, kind, "unimplemented method")
        self.content = ContentAssembly(payload, decode_method(kind, payload))
        return None

    def _take_publish(self, kind: type[Method], payload: bytes) -> events.Event | None:
        if kind not in self._accepted:
            raise refused(CommandInvalid, kind, "unimplemented method")
        self.content = ContentAssembly(payload, parse_publish(payload))
        return None

    def _take_close(self, kind: type[Method], payload: bytes) -> events.Event | None:
        close = decode_method(kind, payload)
        assert isinstance(close, methods.ChannelClose)
        self.is_gone = True
        return events.ChannelClosed(
            self.number,
            True,
            close.reply_code,
            close.reply_text,
            close.class_id,
            close.method_id,
        )

    def _take_second_open(self, kind: type[Method], payload: bytes) -> events.Event | None:
        raise refused(ChannelFault, kind, "second 'channel.open' seen")

    def _take_open_ok(self, kind: type[Method], payload: bytes) -> events.Event | None:
        decode_method(kind, payload)
        self.phase = ChannelPhase.OPEN
        return events.ChannelOpened(self.number)

    def _take_close_ok(self, kind: type[Method], payload: bytes) -> events.Event | None:
        self.is_gone = True
        return events.ChannelClosed(self.number, False)

    def _take_close_while_closing(self, kind: type[Method], payload: bytes) -> events.Event | None:
        self.needs_close_ok = True
        return None

    def _swallow(self, kind: type[Method], payload: bytes) -> events.Event | None:
        return None

    def _refuse_unopened(self, kind: type[Method], payload: bytes) -> events.Event | None:
        raise refused(ChannelFault, kind, "expected 'channel.open-ok'")


_Rule = Callable[[Channel, type[Method], bytes], events.Event | None]

#: Exceptions to the phase's default.
_RULES: dict[tuple[ChannelPhase, type[Method]], _Rule] = {
    (ChannelPhase.OPEN, methods.ChannelOpen): Channel._take_second_open,
    (ChannelPhase.OPEN, methods.ChannelClose): Channel._take_close,
    (ChannelPhase.OPEN, methods.BasicPublish): Channel._take_publish,
    (ChannelPhase.OPEN, methods.BasicDeliver): Channel._take_content_method,
    (ChannelPhase.OPEN, methods.BasicReturn): Channel._take_content_method,
    (ChannelPhase.OPEN, methods.BasicGetOk): Channel._take_content_method,
    (ChannelPhase.OPENING, methods.ChannelOpenOk): Channel._take_open_ok,
    (ChannelPhase.OPENING, methods.ChannelClose): Channel._take_close,
    (ChannelPhase.CLOSING, methods.ChannelCloseOk): Channel._take_close_ok,
    (ChannelPhase.CLOSING, methods.ChannelClose): Channel._take_close_while_closing,
}
_DEFAULTS: dict[ChannelPhase, _Rule] = {
    ChannelPhase.OPEN: Channel._take_open_method,
    ChannelPhase.OPENING: Channel._refuse_unopened,
    ChannelPhase.CLOSING: Channel._swallow,
}
