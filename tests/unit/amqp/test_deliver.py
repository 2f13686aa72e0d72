"""DeliverEncoder against the plain way of writing the same frames; SASL responses."""

from __future__ import annotations

import pytest

from brokerd.amqp import methods
from brokerd.amqp.deliver import DeliverEncoder
from brokerd.amqp.errors import EncodeError, FieldSyntaxError
from brokerd.amqp.frames import content_frames
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.sasl import encode_plain, parse_amqplain, parse_plain
from brokerd.amqp.values import encode_table

RAW = [b"\x00\x00", BasicProperties(delivery_mode=2, headers={"a": 1}).encode()]


@pytest.mark.parametrize("frame_max", [0, 8192, 131072])
@pytest.mark.parametrize("redelivered", [False, True])
def test_frames_equal_the_plain_encoding(frame_max: int, redelivered: bool) -> None:
    """R-FRM-9, R-FRM-10: empty, just fitting, split; equal and changing neighbours."""
    sizes = [5, 5, 0, 0, 8184, 8185, 5, 20_000, 20_000, 131_064, 131_065, 1]
    items = [(RAW[n % 3 == 0], bytes([n]) * size) for n, size in enumerate(sizes)]
    encoder = DeliverEncoder(300, "ctag", "ex", "rk", frame_max)
    expected = b"".join(
        methods.BasicDeliver("ctag", 7 + n, redelivered, "ex", "rk").encode(300)
        + b"".join(content_frames(300, 60, raw, body, frame_max))
        for n, (raw, body) in enumerate(items)
    )
    assert encoder.frames(7, redelivered, items) == expected
    for end in range(len(items)):
        part = encoder.frames(7, redelivered, items[:end])
        assert expected.startswith(part)
        assert b"".join(encoder.parts(7, redelivered, items[:end])) == part


def test_no_frame_exceeds_frame_max() -> None:
    """R-FRM-10."""
    data = DeliverEncoder(1, "c", "e", "k", 8192).frames(1, False, [(RAW[0], bytes(30_000))])
    pos = 0
    sizes = []
    while pos < len(data):
        size = 8 + int.from_bytes(data[pos + 3 : pos + 7], "big")
        sizes.append(size)
        pos += size
    assert max(sizes) == 8192
    assert pos == len(data)


def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(EncodeError):
        DeliverEncoder(1, "c" * 256, "e", "k", 8192)


def test_plain_responses() -> None:
    """SEC-6: nobody may act for somebody else."""
    assert parse_plain(b"\0user\0pass") == ("user", "pass")
    assert parse_plain(b"\0user\0") == ("user", "")
    assert parse_plain(encode_plain("ü", "p w")) == ("ü", "p w")
    for wrong in (b"", b"user", b"\0user", b"other\0user\0pass", b"\0b\0c\0d"):
        with pytest.raises(FieldSyntaxError):
            parse_plain(wrong)


def test_amqplain_responses() -> None:
    """SEC-6: a table without its length."""
    good = encode_table({"LOGIN": "user", "PASSWORD": "pass"})[4:]
    assert parse_amqplain(good) == ("user", "pass")
    assert parse_amqplain(encode_table({"LOGIN": "u", "PASSWORD": 1})[4:]) == ("u", "")
    assert parse_amqplain(encode_table({"LOGIN": 1, "PASSWORD": "p"})[4:]) == ("", "p")
    for wrong in (b"", good[:-1], encode_table({"LOGIN": "user"})[4:]):
        with pytest.raises(FieldSyntaxError):
            parse_amqplain(wrong)
