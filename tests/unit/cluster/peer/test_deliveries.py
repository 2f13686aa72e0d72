"""The codec of delivered batches: round trip, and nothing but DeliveryFormatError for the rest."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerd.cluster.errors import DeliveryFormatError
from brokerd.cluster.peer import deliveries
from brokerd.core.message import Content
from brokerd.core.queue.effects import ConsumerId, Run

CONSUMER = ConsumerId("brokerd-0", 2**63, 17, "ctag-ä")
names = st.text(max_size=20)
contents = st.tuples(
    st.tuples(names, names),
    st.binary(max_size=20),
    st.binary(max_size=50),
    st.sampled_from([b"", b'{"ttl_ms":1}']),
)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[Run, list[Content]]]:
    found = []
    for messages in draw(st.lists(st.lists(contents, min_size=1, max_size=6), max_size=4)):
        numbers = [draw(st.integers(0, 2**32 - 1)) for _ in range(5)]
        found.append((Run(numbers[0], len(messages), *numbers[1:]), messages))
    return found


@given(batches())
def test_batch_comes_back(batch: list[tuple[Run, list[Content]]]) -> None:
    assert deliveries.decode(deliveries.encode(CONSUMER, batch)) == (CONSUMER, batch)


def batch_of_two() -> bytes:
    messages: list[Content] = [
        (("e", "k"), b"head", b"body", b""),
        (("e", "other"), b"", b"", b"{}"),
    ]
    return deliveries.encode(CONSUMER, [(Run(1, 2, 3, 4, 5, 6), messages)])


def test_every_truncation_is_refused() -> None:
    data = batch_of_two()
    for size in range(len(data)):
        with pytest.raises(DeliveryFormatError):
            deliveries.decode(data[:size])


def test_longer_payload_is_refused() -> None:
    with pytest.raises(DeliveryFormatError):
        deliveries.decode(batch_of_two() + b"x")


def test_every_flipped_byte_is_harmless() -> None:
    data = batch_of_two()
    for at in range(len(data)):
        with contextlib.suppress(DeliveryFormatError):
            deliveries.decode(data[:at] + bytes((data[at] ^ 0xFF,)) + data[at + 1 :])


def test_counts_beyond_the_size_are_refused_before_anything_is_built() -> None:
    head = deliveries._HEAD.pack(1, 0, 0, 0, 1, 1, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    with pytest.raises(DeliveryFormatError, match="counts"):
        deliveries.decode(head)


@given(names)
def test_cancellation_comes_back(cause: str) -> None:
    data = deliveries.encode_cancelled(CONSUMER, cause)
    assert deliveries.decode_cancelled(data) == (CONSUMER, cause)


def test_cut_cancellation_is_refused() -> None:
    with pytest.raises(DeliveryFormatError):
        deliveries.decode_cancelled(deliveries.encode_cancelled(CONSUMER, "deleted")[:-1])
