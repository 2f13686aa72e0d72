"""Who had a message when it died: what a queue remembers of its consumers' clients, and of a death.

The header that says so to clients is rendered by the server.  Texts are a client's: bounded, and
without characters that a terminal or a log would act on.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

#: Characters of a client's names; a program may call its connection anything.
NAME_CHARACTERS_MAX = 255
#: Bytes of a reason that a client gives, as UTF-8.
REASON_BYTES_MAX = 255
#: Clients of which one copy each is kept: all consumers of a connection have the same.
CLIENTS_KEPT = 1_024

REJECTED = "rejected"
REQUEUED = "requeued"
TIMED_OUT = "timed out"
#: The channel ended, with its connection perhaps.
CLOSED = "closed"
#: The client's member is gone, or was unreachable for too long.
LOST = "lost"


class Client(NamedTuple):
    """A consumer's client."""

    #: As the client calls its connection, or as listings do.
    connection: str
    product: str
    version: str


class Details(NamedTuple):
    """What a client's member says beside a rejection or a return, or at a channel's end."""

    reason: str = ""
    #: Of one that has no consumer, since it gets; the others are known by their checkout.
    client: Client | None = None


NO_DETAILS = Details()


class Certificate(NamedTuple):
    """Of messages that died, or came back once too often."""

    client: Client | None
    #: "": taken by basic.get.
    tag: str
    #: None: not known, since the queue had no dead letter exchange when they were taken.
    held_ms: int | None
    #: How they left the consumer's hands.
    outcome: str
    #: The client's; "": it gave none.
    reason: str


def plain(text: str, characters_max: int = NAME_CHARACTERS_MAX) -> str:
    """Return the beginning of a client's text, with U+FFFD for what cannot be printed."""
    return "".join([c if c.isprintable() else "\ufffd" for c in text[:characters_max]])


def plain_reason(text: str) -> str:
    """Return a client's reason, as far as it has room."""
    raw = plain(text, REASON_BYTES_MAX).encode()[:REASON_BYTES_MAX]
    return raw.decode("utf-8", "ignore")


@lru_cache(CLIENTS_KEPT)
def client(connection: str, product: str, version: str) -> Client:
    """Return a client by what it says of itself, whatever that is."""
    return Client(plain(connection), plain(product), plain(version))
