"""Tokens that say where the next page of a look at a queue begins.

A token holds the queue's uid, what the look was for, and the place.  It keeps nothing at any
member.  It is signed under the cluster's key, so that every member takes the others' tokens and
none that somebody made; what may be read is checked with each call all the same.
"""

from __future__ import annotations

import base64
import binascii
import json
from typing import Protocol

from brokerd.core.queue import browse
from brokerd.core.queue.browse import Place
from brokerd.server.queues.browsing import Question

_VERSION = 1
_SIGNATURE_BYTES = 32
_LENGTH_MAX = 1_024


class Signer(Protocol):
    """The keys of the cluster (catalog/keyring.py)."""

    def sign(self, data: bytes, cluster_id: str) -> bytes:
        """Return a signature of 32 bytes."""
        ...

    def is_signed(self, data: bytes, signature: bytes, cluster_id: str) -> bool:
        """Tell whether a member of this cluster has signed this."""
        ...


class BadToken(ValueError):
    """It is none, or not of this queue."""


def encode(signer: Signer, cluster_id: str, uid: int, question: Question, place: Place) -> str:
    """Return a token for what is behind a page."""
    fields = [_VERSION, uid, question.state, question.first_number, question.first_ms, list(place)]
    data = json.dumps(fields, separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(signer.sign(data, cluster_id) + data).rstrip(b"=").decode()


def decode(signer: Signer, cluster_id: str, uid: int, token: str) -> Question:
    """Return the question that goes on behind a page of this queue; BadToken."""
    try:
        if len(token) > _LENGTH_MAX:
            raise ValueError
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error) as error:
        raise BadToken("page_token: it is none of this broker's") from error
    signature, data = raw[:_SIGNATURE_BYTES], raw[_SIGNATURE_BYTES:]
    if not signer.is_signed(data, signature, cluster_id):
        raise BadToken("page_token: it was changed, or comes from another cluster")
    version, of_uid, state, first_number, first_ms, place = json.loads(data)
    if version != _VERSION or state not in browse.STATES:
        raise BadToken("page_token: it comes from another version; begin anew without it")
    if of_uid != uid:
        raise BadToken("page_token: it is of another queue, or of one of this name that is gone")
    return Question(state, first_number=first_number, first_ms=first_ms, place=Place(*place))
