"""Bodies of requests (brokerd/server/management/call.py)."""

from __future__ import annotations

import asyncio
import json

import pytest

from brokerd.core.catalog.identity import Identity
from brokerd.core.catalog.refusals import Refused
from brokerd.server.management import call
from brokerd.server.management.call import Caller, HttpError


def test_nothing_is_an_empty_object() -> None:
    assert call.parse_object(b"") == call.parse_object(b" \n") == {}


@pytest.mark.parametrize(
    "raw",
    [
        b"{",
        b"[]",
        b"1",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": 1e999999999999999999999, "b": Infinity}',
        b'{"a": 9223372036854775808}',
        b'{"a": %s}' % (b"9" * 10_000),
        b'{"a": "\\ud800"}',
        b'{"\\udc80": 1}',
        b'{"a":' * 65 + b"1" + b"}" * 65,
        b'{"a":' * 200_000,
    ],
)
def test_what_is_no_sensible_object_is_refused(raw: bytes) -> None:
    with pytest.raises(HttpError) as caught:
        call.parse_object(raw)
    assert caught.value.status == 400


def test_the_deepest_body_is_taken() -> None:
    depth = call.DEPTH_MAX - 1
    assert call.parse_object(b'{"a":' * depth + b"1" + b"}" * depth)


def separators(count: int) -> bytes:
    return b'{"a":[%s1]}' % (b"1," * (count - 2))


def test_values_are_bounded_and_what_stands_in_strings_is_none() -> None:
    rows = b"[" + b",".join([b"{}"] * ((call.VALUES_MAX - 2) // 2)) + b"]"
    assert len(call.parse_object(b'{"a": ' + rows + b"}")["a"]) == (call.VALUES_MAX - 2) // 2
    for raw in (separators(call.VALUES_MAX + 1), b'{"a": [' + b"[],{}," * call.VALUES_MAX):
        with pytest.raises(HttpError, match="more than 1000000 values"):
            call.parse_object(raw)
    payload = '\\",[{' * call.VALUES_MAX
    raw = json.dumps({"payload": payload, "more": [1, 2]}).encode()
    assert call.parse_object(raw) == {"payload": payload, "more": [1, 2]}


def test_one_list_or_object_is_bounded() -> None:
    """C's parser lets nobody run before an object ends."""
    assert len(call.parse_object(separators(call.RUN_MAX))["a"]) == call.RUN_MAX - 1
    fields = b",".join(b'"%d":1' % number for number in range(call.RUN_MAX + 2))
    for raw in (separators(call.RUN_MAX + 2), b"{" + fields + b"}"):
        with pytest.raises(HttpError, match="more than 50000 values in one list or object"):
            call.parse_object(raw)


async def test_others_have_their_turn_while_a_large_body_is_read() -> None:
    body = {"queues": [{"name": f"queue-{i}", "arguments": {}} for i in range(30_000)]}
    raw = json.dumps(body).encode()
    assert len(raw) > call.PARSED_HERE_BYTES_MAX
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(turn())
    try:
        assert await call.parsed(raw) == body
    finally:
        beside.cancel()
    assert turns > 2


@pytest.mark.parametrize(("code", "status"), [(403, 401), (404, 404), (406, 400), (405, 400)])
def test_refusals_of_amqp_have_the_status_that_they_have_there(code: int, status: int) -> None:
    assert call.refused(Refused(code, "why")).status == status


@pytest.mark.parametrize(
    ("tags", "rights"),
    [
        ("", (False, False, False, False)),
        ("management", (True, False, False, False)),
        ("policymaker", (True, False, True, False)),
        ("monitoring", (True, True, False, False)),
        ("administrator", (True, True, True, True)),
        ("other", (False, False, False, False)),
    ],
)
def test_tags_give_rights(tags: str, rights: tuple[bool, ...]) -> None:
    """R-PERM-9."""
    who = Caller(Identity("u", tuple(filter(None, [tags]))))
    found = (who.is_management, who.is_monitor, who.is_policymaker, who.is_administrator)
    assert found == rights
