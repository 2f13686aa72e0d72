"""The login responses of PLAIN and AMQPLAIN, read and written.

Who may log in is decided elsewhere; these functions only take the bytes apart.
"""

from __future__ import annotations

from brokerd.amqp.errors import FieldSyntaxError
from brokerd.amqp.values import decode_table_body


def parse_plain(response: bytes) -> tuple[str, str]:
    """User and password of a PLAIN response: authzid NUL user NUL password (RFC 4616)."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or parts[0]:
        # No user may act for another one, so an authzid is refused as RabbitMQ does.
        raise FieldSyntaxError("response is not a PLAIN one")
    return _text(parts[1]), _text(parts[2])


def encode_plain(user: str, password: str) -> bytes:
    """A PLAIN response."""
    return b"\x00" + user.encode() + b"\x00" + password.encode()


def parse_amqplain(response: bytes) -> tuple[str, str]:
    """User and password of an AMQPLAIN response: a table without its length.

    A value that is not text is no user's name or password, and comes back empty.
    """
    table = decode_table_body(response, 0, len(response))
    if "LOGIN" not in table or "PASSWORD" not in table:
        raise FieldSyntaxError("AMQPLAIN auth info lacks LOGIN or PASSWORD")
    login, password = table["LOGIN"], table["PASSWORD"]
    return login if type(login) is str else "", password if type(password) is str else ""


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
