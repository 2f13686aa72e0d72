"""NAME=VALUE of the command line: JSON where it reads as JSON, else text."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.ctl import errors, typed_values
from brokerd.rpc.v1 import messages_pb2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ('"5"', "5"),
        ("-1.5", -1.5),
        ("true", True),
        ("plain text", "plain text"),
        ("a=b", "a=b"),
        ("", ""),
        ("null", None),
        ('[1, "a", [true]]', [1, "a", [True]]),
        ('{"a": {"b": 2}}', {"a": {"b": 2}}),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_a_value_is_json_or_text(text: str, value: Any) -> None:
    [(name, found)] = typed_values.values([f"n={text}"], "--header").items()
    assert (name, typed_values.plain(found)) == ("n", value)


@pytest.mark.parametrize(
    ("given", "says"),
    [("nothing", "takes NAME=VALUE"), ("=x", "takes NAME=VALUE"), (f"n={2**63}", "64 bits")],
)
def test_what_cannot_be_sent_is_told(given: str, says: str) -> None:
    with pytest.raises(errors.CtlError, match=says) as wrong:
        typed_values.values([given], "--header")
    assert wrong.value.exit_code == errors.EXIT_USAGE


def test_bytes_of_a_message_are_shown_as_text() -> None:
    raw = [messages_pb2.RawField(name=b"a\xff", value=messages_pb2.Value(binary=b"b\xff"))]
    assert typed_values.table({}, raw) == {"a\ufffd": "b\ufffd"}
