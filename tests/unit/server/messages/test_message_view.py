"""A stored message as filters see it: each part from its bytes, nothing of what is broken."""

from __future__ import annotations

import pytest

from brokerd.amqp.properties import EMPTY, BasicProperties
from brokerd.core import annotations
from brokerd.core.annotations import Annotations, Death
from brokerd.core.filters.fields import BODY_BYTES_MAX
from brokerd.core.filters.message_filter import compile_filter
from brokerd.server.messages.message_view import StoredMessage

DEATH = Death("work", "rejected", 2, 100, "ex", ["key"])


def stored(
    header: bytes = EMPTY, body: bytes = b"", remembered: bytes = b"", **more: object
) -> StoredMessage:
    return StoredMessage((("ex", "key"), header, body, remembered), 7, **more)  # type: ignore[arg-type]


def test_filters_read_all_of_a_stored_message() -> None:
    header = BasicProperties(type="a", headers={"n": 1}).encode()
    remembered = annotations.encode(
        Annotations(deaths=[DEATH], first_death=("rejected", "work", "ex"))
    )
    view = stored(
        *(header, b"text", remembered),
        state="unacked",
        delivery_count=3,
        redelivered=True,
        age_ms=5000,
    )
    for text in (
        'number == 7 && state == "unacked" && delivery_count == 3 && redelivered',
        'age == duration("5s") && exchange == "ex" && routing_key == "key" && size == 4',
        'type == "a" && headers.n == 1 && body == "text"',
        'death.queue == "work" && first_death.queue == "work" && first_death.count == 2',
    ):
        assert compile_filter(text).matches(view)
    assert view.properties is view.properties
    assert view.deaths is view.deaths


def test_plain_message_has_neither_properties_nor_deaths() -> None:
    view = stored()
    assert view.properties == BasicProperties()
    assert (list(view.deaths), view.first_death, view.body) == ([], None, "")


@pytest.mark.parametrize("raw", [b"", b"\xff\xff", b"\x80\x00\x09a", b"\x20\x00\x00\x00\x00\x02zz"])
def test_properties_that_cannot_be_read_are_not_there(raw: bytes) -> None:
    assert stored(header=raw).properties == BasicProperties()


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"deaths": [{}]}', b'{"other": 1}', b"\x02"])
def test_annotations_that_cannot_be_read_are_not_there(raw: bytes) -> None:
    view = stored(remembered=raw)
    assert (list(view.deaths), view.first_death) == ([], None)


def test_believed_history_has_no_first_death() -> None:
    """R-DLX-24: such a message never gets the headers of a first death."""
    raw = annotations.encode(Annotations(deaths=[DEATH], first_death=("", "", "")))
    view = stored(remembered=raw)
    assert (list(view.deaths), view.first_death) == ([DEATH], None)


def test_body_is_text_or_absent() -> None:
    assert stored(body="ä".encode()).body == "ä"
    assert stored(body=b"\xff").body is None
    assert stored(body=b"a" * BODY_BYTES_MAX).body == "a" * BODY_BYTES_MAX
    assert stored(body=b"a" * (BODY_BYTES_MAX + 1)).body is None
