"""Errors of the AMQP room.

`ProtocolError` means: the peer broke a rule, and its wire code says how we answer.  `SoftError`
closes the channel, `HardError` the connection (docs/reference/rules.md §13).  The server raises
them too, for broken broker rules such as a missing queue, and hands them to `AmqpConnection.fail`.
`MisuseError` means: our own code called this room wrongly; it never depends on what a peer sent.
"""

from __future__ import annotations

from typing import ClassVar

from brokerd.amqp import spec


def reply_text(code: int, explanation: str) -> str:
    """`CODE_NAME - explanation`, cut to 255 bytes without splitting a character (R-CON-15).

    An explanation that brings its code's name along keeps it once.
    """
    name = f"{spec.REPLY_NAMES.get(code, str(code))} - "
    text = explanation if explanation.startswith(name) else name + explanation
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) <= spec.REPLY_TEXT_BYTES_MAX:
        return text
    return raw[: spec.REPLY_TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."


class AmqpError(Exception):
    """Base class of the room's errors."""


class MisuseError(AmqpError):
    """Our own code broke the contract of this room."""


class EncodeError(MisuseError):
    """A value cannot be written on the wire: too long, out of range, or of no AMQP type."""


class ProtocolError(AmqpError):
    """The peer broke a rule; `code` is the reply code it gets."""

    default_code: ClassVar[int] = spec.INTERNAL_ERROR

    def __init__(
        self,
        explanation: str,
        *,
        code: int | None = None,
        class_id: int = 0,
        method_id: int = 0,
    ) -> None:
        super().__init__(explanation)
        self.code = self.default_code if code is None else code
        self.explanation = explanation
        self.class_id = class_id
        self.method_id = method_id

    @property
    def text(self) -> str:
        """The reply text as it goes on the wire."""
        return reply_text(self.code, self.explanation)


class SoftError(ProtocolError):
    """Closes the channel."""

    default_code = spec.PRECONDITION_FAILED


class AccessRefused(SoftError):
    """403 on a channel."""

    default_code = spec.ACCESS_REFUSED


class NotFound(SoftError):
    """404."""

    default_code = spec.NOT_FOUND


class ResourceLocked(SoftError):
    """405."""

    default_code = spec.RESOURCE_LOCKED


class PreconditionFailed(SoftError):
    """406."""

    default_code = spec.PRECONDITION_FAILED


class HardError(ProtocolError):
    """Closes the connection."""


class ConnectionForced(HardError):
    """320: an operator, a shutdown, a deleted vhost."""

    default_code = spec.CONNECTION_FORCED


class FrameError(HardError):
    """501.  `is_desynchronised` says that frame borders are lost: nothing after it can be read."""

    default_code = spec.FRAME_ERROR
    is_desynchronised = False


class FramingLost(FrameError):
    """501 where the end of the frame is not known."""

    is_desynchronised = True


class FieldSyntaxError(HardError):
    """502: a table, an array or a property list that cannot be read."""

    default_code = spec.SYNTAX_ERROR


class CommandInvalid(HardError):
    """503."""

    default_code = spec.COMMAND_INVALID


class ChannelFault(HardError):
    """504: the number or the state does not allow this method."""

    default_code = spec.CHANNEL_ERROR


class UnexpectedFrame(HardError):
    """505."""

    default_code = spec.UNEXPECTED_FRAME


class NotAllowed(HardError):
    """530."""

    default_code = spec.NOT_ALLOWED


class NotImplementedByServer(HardError):
    """540: the method is known, this use of it is not offered."""

    default_code = spec.NOT_IMPLEMENTED


class InternalError(HardError):
    """541."""

    default_code = spec.INTERNAL_ERROR


#: Octets of a payload that an error text shows.
_SHOWN_MAX = 16
#: Further octets would not fit into a reply text (R-CON-15).
_LISTED_MAX = 128
#: What Erlang prints as text: printable Latin-1 and the usual control characters.
_TEXT = frozenset((*range(8, 14), 27, *range(32, 127), *range(160, 256)))
_ESCAPED = {34: '\\"', 92: "\\\\", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r"}
_ESCAPED[27] = "\\e"


def erlang_octets(raw: bytes) -> str:
    """Octets as RabbitMQ's error texts list them: `<<0,60,0,40>>`."""
    return "<<" + ",".join(str(octet) for octet in raw[:_LISTED_MAX]) + ">>"


def erlang_snippet(raw: bytes) -> str:
    """The start of a payload as RabbitMQ's error texts show it: `all octets = <<"xx">>`."""
    is_whole = len(raw) <= _SHOWN_MAX
    shown = raw[:_SHOWN_MAX]
    if shown and _TEXT.issuperset(shown):
        text = '<<"' + "".join(_ESCAPED.get(octet, chr(octet)) for octet in shown) + '">>'
    else:
        text = erlang_octets(shown)
    return f"{'all' if is_whole else f'first {_SHOWN_MAX}'} octets = {text}"
