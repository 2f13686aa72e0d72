"""BasicProperties on raw bytes: questions, edits, full decode, malformed input."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from brokerd.amqp import errors, properties, values
from brokerd.amqp.errors import EncodeError, FieldSyntaxError
from brokerd.amqp.properties import BasicProperties

FULL = BasicProperties(
    content_type="text/plain",
    content_encoding="gzip",
    headers={"a": 1},
    delivery_mode=2,
    priority=7,
    correlation_id="c",
    reply_to="r",
    expiration="60000",
    message_id="m",
    timestamp=1_700_000_000,
    type="t",
    user_id="guest",
    app_id="app",
    cluster_id="cl",
)


def test_vector() -> None:
    raw = BasicProperties(content_type="a", delivery_mode=2, expiration="5").encode()
    assert raw == b"\x91\x00\x01a\x02\x015"


def test_all_properties_survive() -> None:
    assert BasicProperties.decode(FULL.encode()) == FULL
    assert FULL.encode()[:2] == b"\xff\xfc"
    assert BasicProperties.decode(properties.EMPTY) == BasicProperties()


def test_questions_are_answered_from_the_flag_word() -> None:
    """design/hot-path.md rule 2."""
    full, empty = FULL.encode(), properties.EMPTY
    for question in (
        properties.has_headers,
        properties.has_expiration,
        properties.has_priority,
        properties.has_user_id,
        properties.has_reply_to,
    ):
        assert question(full)
        assert not question(empty)
    for name, question in (
        ("headers", properties.has_headers),
        ("expiration", properties.has_expiration),
        ("priority", properties.has_priority),
        ("user_id", properties.has_user_id),
        ("reply_to", properties.has_reply_to),
    ):
        alone = BasicProperties(**{name: getattr(FULL, name)}).encode()
        assert question(alone), name


def test_single_values_are_read_without_the_rest() -> None:
    full, empty = FULL.encode(), properties.EMPTY
    assert properties.delivery_mode(full) == 2
    assert properties.priority(full) == 7
    assert properties.expiration(full) == "60000"
    assert properties.user_id(full) == "guest"
    assert properties.headers(full) == {"a": 1}
    assert properties.delivery_mode(empty) == properties.priority(empty) == 0
    assert properties.expiration(empty) is None
    assert properties.user_id(empty) is None
    assert properties.headers(empty) == {}


def test_headers_are_replaced_added_and_removed() -> None:
    changed = properties.with_headers(FULL.encode(), {"x-death": [{"count": 1}]})
    assert properties.headers(changed) == {"x-death": [{"count": 1}]}
    without = properties.with_headers(changed, None)
    assert not properties.has_headers(without)
    assert properties.with_headers(without, {"a": 1}) == FULL.encode()
    assert properties.with_headers(properties.EMPTY, None) == properties.EMPTY
    assert (
        properties.with_headers(changed, {})
        == BasicProperties(**{**asdict(FULL), "headers": {}}).encode()
    )
    added = properties.with_headers(properties.EMPTY, {"a": 1})
    assert BasicProperties.decode(added) == BasicProperties(headers={"a": 1})


def test_headers_that_stay_keep_their_types() -> None:
    """R-FRM-11, R-DLX-25: what Python's values do not tell apart is not changed by an edit."""
    fields = {
        "b": b"b\x01",
        "s": b"s\x00\x01",
        "l": b"l" + bytes(7) + b"\x01",
        "f": b"f\x3f\x80\x00\x00",
        "A": b"A\x00\x00\x00\x02b\x01",
    }
    table = b"".join(b"\x01" + name.encode() + value for name, value in fields.items())
    raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    changed = properties.with_headers(raw, {**properties.headers(raw), "new": 1, "s": True})
    rest = b"".join(b"\x01" + name.encode() + fields[name] for name in ("l", "f", "A"))
    body = b"\x01b" + fields["b"] + b"\x01st\x01" + rest + b"\x03newI\x00\x00\x00\x01"
    assert changed == b"\x20\x00" + len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("table", [b"\x05a", b"\x01a?", b"\x01ab", b"\x01aA\x00\x00\x00\x09"])
def test_headers_replace_what_cannot_be_read(table: bytes) -> None:
    raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert properties.headers(properties.with_headers(raw, {"a": 1})) == {"a": 1}


def test_a_long_goes_out_as_a_long() -> None:
    """R-DLX-22: a count is an int64, however small."""
    raw = properties.with_headers(properties.EMPTY, {"n": values.Long(2)})
    assert raw.endswith(b"\x01nl" + bytes(7) + b"\x02")
    assert values.type_name(values.Long(2)) == "long"


def test_expiration_is_removed() -> None:
    without = properties.without_expiration(FULL.encode())
    assert not properties.has_expiration(without)
    assert BasicProperties.decode(without).message_id == "m"
    assert properties.without_expiration(without) == without


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x80",
        b"\x80\x00",
        b"\x80\x00\x05abc",
        b"\x80\x00\x01ab",
        b"\x00\x01",
        b"\x00\x02",
        b"\x00\x00\x00",
        b"\x20\x00\xff\xff\xff\xff",
        b"\x20\x00\x00\x00",
        b"\x10\x00",
        b"\x00\x40\x00\x00",
    ],
)
def test_malformed_properties_are_refused(raw: bytes) -> None:
    """SEC-41, SEC-42: lengths must meet the end, unknown flags mean nothing."""
    assert not properties.is_well_formed(raw)
    with pytest.raises(FieldSyntaxError):
        BasicProperties.decode(raw)


def test_questions_on_malformed_bytes_raise_the_protocol_error() -> None:
    with pytest.raises(FieldSyntaxError):
        properties.delivery_mode(b"\x90\x00\xff")
    with pytest.raises(FieldSyntaxError):
        properties.expiration(b"\x01\x00\x09a")


def test_headers_that_cannot_be_read_are_found_at_decode() -> None:
    raw = b"\x20\x00\x00\x00\x00\x03\x01kZ"
    assert properties.is_well_formed(raw)
    with pytest.raises(FieldSyntaxError):
        BasicProperties.decode(raw)


@pytest.mark.parametrize(
    "wrong",
    [
        BasicProperties(priority=256),
        BasicProperties(timestamp=-1),
        BasicProperties(message_id="x" * 256),
    ],
)
def test_values_out_of_range_cannot_be_written(wrong: BasicProperties) -> None:
    with pytest.raises(EncodeError):
        wrong.encode()


def test_reply_to_is_read_and_replaced_in_place() -> None:
    """R-DRT-2: all other properties stay as they are."""
    raw = FULL.encode()
    changed = properties.with_reply_to(raw, "elsewhere")
    assert properties.reply_to(changed) == "elsewhere"
    expected = FULL.encode().replace(
        values.encode_shortstr(FULL.reply_to or ""), values.encode_shortstr("elsewhere")
    )
    assert changed == expected
    assert properties.reply_to(properties.EMPTY) is None
    assert properties.with_reply_to(properties.EMPTY, "x") == BasicProperties(reply_to="x").encode()


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x00",
        b"\xa0\x00\x05ab",
        b"\x20\x00\x00",
        b"\x20\x00",
    ],
    ids=["no length", "short text", "short size", "nothing"],
)
def test_properties_that_are_cut_off_are_malformed(raw: bytes) -> None:
    """R-FRM-5."""
    with pytest.raises(errors.FieldSyntaxError, match="malformed"):
        properties.with_reply_to(raw, "x")


def test_a_header_table_cut_off_inside_is_malformed() -> None:
    """R-FRM-5: its size is right, what is in it is not."""
    table = b"\x01k" + b"S\x00\x00\x00\x09ab"
    raw = b"\x20\x00" + len(table).to_bytes(4, "big") + table
    assert properties.is_well_formed(raw)
    with pytest.raises(errors.FieldSyntaxError, match="field table cut short"):
        properties.BasicProperties.decode(raw)


def test_given_fields_replace_and_all_others_keep_their_bytes() -> None:
    """A shovel's publish-properties: header types that another client wrote stay."""
    # A signed byte, which our encoder would write as another type.
    odd = b"\x00\x00\x00\x04\x01nb\x05"
    raw = b"\x30\x08" + odd + b"\x01" + b"\x03app"
    after = properties.with_fields(raw, {"delivery_mode": 2, "app_id": "shovel", "message_id": "m"})
    assert after == b"\x30\x88" + odd + b"\x02" + b"\x01m" + b"\x06shovel"
    assert (
        properties.with_fields(properties.EMPTY, {"timestamp": 7, "content_type": "t"})
        == BasicProperties(timestamp=7, content_type="t").encode()
    )


def test_a_user_id_can_be_taken_away_and_nothing_else_goes() -> None:
    """R-PUB-3: another broker's users are not ours."""
    raw = BasicProperties(message_id="m", user_id="guest", app_id="a").encode()
    assert properties.without_user_id(raw) == BasicProperties(message_id="m", app_id="a").encode()
    assert properties.without_user_id(properties.EMPTY) is properties.EMPTY
