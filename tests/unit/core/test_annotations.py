"""What is kept beside a message, as bytes and back."""

from __future__ import annotations

import itertools

import pytest

from brokerd.core import annotations
from brokerd.core.annotations import Annotations, Death

OWN = [
    Annotations(ttl_ms=ttl_ms, priority=priority)
    for ttl_ms, priority in itertools.product((None, 0, 1, 60_000, 1 << 40), (None, 0, 9, 255))
]


@pytest.mark.parametrize("known", OWN, ids=repr)
def test_own_ttl_and_priority_are_packed(known: Annotations) -> None:
    raw = annotations.encode(known)
    assert annotations.decode(raw) == known
    assert raw[:1] != b"{"


@pytest.mark.parametrize(
    "known",
    [
        Annotations(bcc=["k"], ttl_ms=1),
        Annotations(deaths=[Death("q", "expired", 1, 5, "x", ["k"])], priority=1),
        Annotations(first_death=("expired", "q", "x"), ttl_ms=1),
        Annotations(delivery_count=3, ttl_ms=1),
        Annotations(rerouted=True, ttl_ms=1),
        Annotations(ttl_ms=1 << 64),
        Annotations(priority=256),
    ],
    ids=repr,
)
def test_what_the_packed_form_cannot_hold_stays_json(known: Annotations) -> None:
    raw = annotations.encode(known)
    assert raw[:1] == b"{"
    assert annotations.decode(raw) == known


def test_nothing_to_remember_is_no_bytes() -> None:
    assert annotations.encode(Annotations()) == b""


def test_a_packed_form_of_the_wrong_size_is_refused() -> None:
    raw = annotations.encode(Annotations(ttl_ms=5))
    for wrong in (raw[:-1], raw + b"x"):
        with pytest.raises(ValueError, match="packed annotations"):
            annotations.decode(wrong)
