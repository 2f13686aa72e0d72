"""Tokens of pages: every member takes those of the others, and none that was changed."""

from __future__ import annotations

import base64

import pytest

from brokerd.core.queue.browse import Place
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.listings import page_tokens
from brokerd.server.listings.page_tokens import BadToken
from brokerd.server.queues.browsing import Question

UID = 2**62 + 1
PLACE = Place(3, 0, 12, 1)
KEYS = [bytes([number]) * 32 for number in (1, 2)]


def token(ring: Keyring, cluster_id: str = "c", uid: int = UID) -> str:
    question = Question("all", first_number=3, first_ms=4, tail=9, count=7)
    return page_tokens.encode(ring, cluster_id, uid, question, PLACE)


@pytest.mark.parametrize("ring", [Keyring(KEYS[:1]), Keyring([])])
def test_a_token_brings_back_where_and_what_for(ring: Keyring) -> None:
    question = page_tokens.decode(ring, "c", UID, token(ring))
    assert (question.state, question.first_number, question.first_ms) == ("all", 3, 4)
    assert (question.place, question.tail) == (PLACE, 0)


def test_tokens_stay_good_while_keys_are_rotated() -> None:
    old, new = Keyring(KEYS[:1]), Keyring(KEYS[::-1])
    for made, read in ((old, new), (new, Keyring(KEYS))):
        assert page_tokens.decode(read, "c", UID, token(made)).place == PLACE
    with pytest.raises(BadToken, match="changed"):
        page_tokens.decode(old, "c", UID, token(new))


def test_who_has_keys_takes_no_token_that_has_none() -> None:
    with pytest.raises(BadToken, match="changed"):
        page_tokens.decode(Keyring(KEYS), "c", UID, token(Keyring([])))


def test_a_token_is_of_one_queue_and_one_cluster() -> None:
    ring = Keyring([])
    with pytest.raises(BadToken, match="another queue"):
        page_tokens.decode(ring, "c", UID + 1, token(ring))
    with pytest.raises(BadToken, match="another cluster"):
        page_tokens.decode(ring, "d", UID, token(ring))


def test_each_changed_byte_is_seen() -> None:
    ring = Keyring(KEYS)
    text = token(ring)
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    for at in range(len(raw)):
        changed = bytearray(raw)
        changed[at] ^= 1
        with pytest.raises(BadToken):
            page_tokens.decode(ring, "c", UID, base64.urlsafe_b64encode(changed).decode())


@pytest.mark.parametrize("text", ["x", "ü", "====", "", "A" * 5_000, "a b", "\udcff"])
def test_what_is_no_token_is_said_to_be_none(text: str) -> None:
    with pytest.raises(BadToken):
        page_tokens.decode(Keyring(KEYS), "c", UID, text)


def test_a_token_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Keyring(KEYS)
    text = token(ring)
    monkeypatch.setattr(page_tokens, "_VERSION", 2)
    with pytest.raises(BadToken, match="another version"):
        page_tokens.decode(ring, "c", UID, text)
