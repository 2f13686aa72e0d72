"""What bodies of administration become, and what results of the Admin service become."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from brokerd.amqp.values import Decimal
from brokerd.core.catalog import definitions_json
from brokerd.server.management import changes, clients, definitions, health_checks, users
from brokerd.server.management.call import HttpError


@pytest.mark.parametrize(
    ("given", "tags"),
    [
        ("", []),
        ("b, a,,a", ["b", "a"]),
        (["x y", " a "], ["x y", "a"]),
        ([], []),
    ],
)
def test_tags_are_an_array_or_a_text_with_commas(given: Any, tags: list[str]) -> None:
    assert changes.tags(given) == tags


@pytest.mark.parametrize("given", [None, 7, [1], {"a": 1}, [["a"]]])
def test_other_tags_are_refused(given: Any) -> None:
    with pytest.raises(HttpError, match="tags"):
        changes.tags(given)


@pytest.mark.parametrize(
    ("code", "status"),
    [("NOT_FOUND", 404), ("REFUSED", 400), ("IMMUTABLE", 400), ("UNAVAILABLE", 503)],
)
def test_a_result_becomes_a_status(code: str, status: int) -> None:
    result = changes.Result(code=changes.Result.Code.Value(code), message="why")
    with pytest.raises(HttpError) as found:
        changes.check(result)
    assert found.value.status == status


def test_what_would_lose_messages_says_how_to_confirm_it() -> None:
    result = changes.Result(code=changes.Result.REFUSED, message="why", needs_confirmation=True)
    with pytest.raises(HttpError, match=r"confirm=true") as found:
        changes.check(result)
    assert found.value.error == "needs_confirmation"


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(HttpError, match="UTF-8"):
        changes.deletion("user", "", "\udcff")


@pytest.mark.parametrize(
    ("body", "spec"),
    [
        ({}, {"password_hash": ""}),
        ({"password": ""}, {"password": ""}),
        ({"password_hash": "QUJD"}, {"password_hash": "rabbitmq-sha256$QUJD"}),
        (
            {"password_hash": "scrypt$1$a$b", "hashing_algorithm": definitions_json.SCRYPT},
            {"password_hash": "scrypt$1$a$b"},
        ),
    ],
)
def test_a_password_or_its_hash(body: Any, spec: Any) -> None:
    """SEC-20: whoever writes back what was read changes nothing."""
    assert users._password(body) == spec


@pytest.mark.parametrize(
    "body",
    [
        {"password": None},
        {"password": "a", "password_hash": "QUJD"},
        {"password_hash": "no base64!"},
        {"password_hash": "é"},
        {"password_hash": 5},
        {"password_hash": "QUJD", "hashing_algorithm": "rabbit_password_hashing_md5"},
        {"password_hash": "QUJD", "hashing_algorithm": ["x"]},
    ],
)
def test_other_passwords_are_refused(body: Any) -> None:
    with pytest.raises(HttpError):
        users._password(body)


def test_a_user_comes_back_as_it_was_read() -> None:
    for stored in ("", "rabbitmq-sha256$QUJD", "rabbitmq-sha512$QUJD", "scrypt$10$a$b"):
        row = definitions_json.user_row("u", {"tags": [], "limits": {}, "password_hash": stored})
        assert users._password(row) == {"password_hash": stored}


def test_client_properties_lose_their_types() -> None:
    table = {"a": "x", "t": {"b": [True]}, "raw": b"\xff", "price": Decimal(2, 314), "none": None}
    assert clients.plain_table(table) == {
        "a": "x",
        "t": {"b": [True]},
        "raw": "\ufffd",
        "price": [2, 314],
        "none": None,
    }


async def test_octets_a_second_are_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now[0])
    traffic = clients.Traffic()

    def look(received: int) -> float:
        row = {"name": "c", "recv_oct": received, "send_oct": 0}
        traffic.add([row])
        rate: float = row["recv_oct_details"]["rate"]  # type: ignore[index]
        return rate

    assert look(1000) == 0.0
    now[0] += 2
    assert look(3000) == 1000.0
    now[0] += 0.1
    assert look(9000) == 1000.0, "too soon for another sample"
    now[0] += 1.9
    assert look(3000 + 4000) == 2000.0
    traffic.add([])
    assert look(1_000_000) == 0.0, "another connection of that name"


@pytest.mark.parametrize("wrong", [5, "x", {"a": 1}])
def test_a_section_of_definitions_is_a_list(wrong: Any) -> None:
    with pytest.raises(HttpError, match="expected a list"):
        definitions._entries({"queues": wrong}, "queues")


def test_definitions_of_one_vhost_name_no_other() -> None:
    entries = [{"name": "q", "vhost": "elsewhere"}, 5]
    assert definitions._in_vhost(entries, "here") == [{"name": "q", "vhost": "here"}, 5]


def test_a_certificate_file_that_cannot_be_read_is_a_finding(tmp_path: Any) -> None:
    from datetime import UTC, datetime

    broken = tmp_path / "broken.pem"
    broken.write_text("nothing")
    found = health_checks._expiring([broken, tmp_path / "none.pem"], datetime.now(UTC))
    assert [row["file"] for row in found] == [str(broken), str(tmp_path / "none.pem")]
