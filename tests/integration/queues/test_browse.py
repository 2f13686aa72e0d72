"""Looks at a queue's messages on real members: right, from any member, and without a trace."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pika
import pytest

from tests.integration.management.test_http_api import ask
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)

TYPES = ("classic", "quorum")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path_factory.mktemp("browse"), 1, **settings) as [made]:
        yield made


def browse(member: Member, queue: str, user: str = "guest:guest", **query: Any) -> Any:
    status, body = answer(member, queue, user, **query)
    assert status == 200, (status, body)
    return body


def answer(member: Member, queue: str, user: str = "guest:guest", **query: Any) -> tuple[int, Any]:
    given = {name.removesuffix("_"): value for name, value in query.items()}
    path = f"/api/queues/%2F/{quote(queue, safe='')}/messages?{urlencode(given)}"
    status, _, body = ask(member, "GET", path, user=user)
    return status, json.loads(body)


def payloads(page: Any) -> list[str]:
    return [row["payload"] for row in page["messages"]]


def declare(channel: Any, name: str, kind: str, **arguments: Any) -> None:
    channel.queue_delete(name)
    channel.queue_declare(name, durable=True, arguments={"x-queue-type": kind, **arguments})
    channel.confirm_delivery()


def publish(channel: Any, queue: str, *bodies: bytes, **properties: Any) -> None:
    for body in bodies:
        channel.basic_publish("", queue, body, pika.BasicProperties(**properties))


def change(member: Member, path: str, body: Any) -> None:
    status, _, text = ask(member, "PUT", f"/api/{path}", json.dumps(body).encode())
    assert status in (201, 204), text


def log_times(member: Member) -> list[tuple[str, int]]:
    """Return when each file of the member's log was written last."""
    files = sorted((member.data_dir / "wal").rglob("*"))
    return [(str(file), file.stat().st_mtime_ns) for file in files if file.is_file()]


def log_digest(member: Member) -> str:
    """Return a digest of all that the member's log holds on disk."""
    found = hashlib.sha256()
    for name, _ in log_times(member):
        found.update(name.encode() + Path(name).read_bytes())
    return found.hexdigest()


# ---- one member ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_a_look_shows_messages_and_leaves_them_as_they_are(one: Member, kind: str) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, f"look-{kind}", kind)
        headers = {"headers": {"who": "me", "n": 7}, "message_id": "m1", "delivery_mode": 2}
        publish(channel, f"look-{kind}", b"first", **headers)
        publish(channel, f"look-{kind}", b"second", "ü".encode() * 600)
        page = browse(one, f"look-{kind}")
        first, _, last = page["messages"]
        assert (first["payload"], first["payload_encoding"], first["payload_bytes"]) == (
            *("first", "string"),
            5,
        )
        assert first["properties"] == headers
        assert (first["exchange"], first["routing_key"]) == ("", f"look-{kind}")
        assert (first["state"], first["redelivered"], first["delivery_count"]) == (
            *("ready", False),
            0,
        )
        # Cut within a character, which is left out.
        assert (last["payload"], last["payload_bytes"]) == ("ü" * 512, 1200)
        cut = browse(one, f"look-{kind}", body_bytes=3)["messages"][2]
        assert (cut["payload"], cut["payload_encoding"]) == ("ü", "string")
        assert page["counts"] == {"ready": 3, "unacked": 0, "delayed": 0}
        assert (page["looked_at"], page["next_page_token"]) == (3, None)
        method, _, body = channel.basic_get(f"look-{kind}")
        assert (method.redelivered, method.message_count, body) == (False, 2, b"first")


def test_what_is_no_text_comes_in_base64(one: Member) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, "raw", "quorum")
        publish(channel, "raw", b"\xff\xfe\x00", b"text")
        raw, text = browse(one, "raw")["messages"]
        assert raw["payload_encoding"] == "base64"
        assert base64.b64decode(raw["payload"]) == b"\xff\xfe\x00"
        assert text["payload_encoding"] == "string"
        rows = browse(one, "raw", encoding="base64")["messages"]
        assert [row["payload_encoding"] for row in rows] == ["base64", "base64"]


def test_a_look_changes_no_byte_of_the_log(one: Member) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, "still", "quorum")
        publish(channel, "still", *[b"%d" % number for number in range(50)])
        # What the member still writes by itself has an end.
        seen: list[Any] = []

        def at_rest() -> bool:
            seen.append(log_times(one))
            return len(seen) > 100 and seen[-100] == seen[-1]

        eventually(at_rest, "the log at rest", 60)
        before = log_digest(one)
        for state in ("ready", "unacked", "delayed", "all"):
            for start in ("head", "tail", "7"):
                browse(one, "still", state=state, from_=start, count=30)
        assert log_digest(one) == before
        assert log_times(one) == seen[-1]


@pytest.mark.parametrize("kind", TYPES)
def test_what_a_consumer_holds_is_shown_with_it(one: Member, kind: str) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, f"held-{kind}", kind)
        publish(channel, f"held-{kind}", b"a", b"b", b"c")
        channel.basic_get(f"held-{kind}")
        taken = channel.basic_get(f"held-{kind}")[0]
        channel.basic_reject(taken.delivery_tag, requeue=True)
        eventually(lambda: len(browse(one, f"held-{kind}")["messages"]) == 2, "the return")
        held = browse(one, f"held-{kind}", state="unacked")
        assert payloads(held) == ["a"]
        assert held["messages"][0]["consumer"]["consumer_tag"] == ""
        assert held["messages"][0]["consumer"]["node"]
        found = {row["payload"]: row for row in browse(one, f"held-{kind}")["messages"]}
        assert sorted(found) == ["b", "c"]
        assert (found["b"]["redelivered"], found["c"]["redelivered"]) == (True, False)
        before = found["b"]
        after = {row["payload"]: row for row in browse(one, f"held-{kind}")["messages"]}["b"]
        assert after == before
        assert len(browse(one, f"held-{kind}", state="all")["messages"]) == 3


def test_priorities_expiry_and_beginnings(one: Member) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, "levels", "classic", **{"x-max-priority": 3})
        for body, priority in ((b"low", 0), (b"high", 3), (b"middle", 1)):
            publish(channel, "levels", body, priority=priority)
        assert payloads(browse(one, "levels")) == ["high", "middle", "low"]
        assert payloads(browse(one, "levels", from_="tail", count=2)) == ["middle", "low"]
        assert payloads(browse(one, "levels", from_="1")) == ["high", "middle"]
        declare(channel, "short", "quorum")
        publish(channel, "short", b"stays")
        publish(channel, "short", b"goes", expiration="200")
        eventually(lambda: payloads(browse(one, "short")) == ["stays"], "expiry")
        soon = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        assert browse(one, "short", from_=soon)["messages"] == []
        past = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
        assert payloads(browse(one, "short", from_=past)) == ["stays"]


def test_pages_follow_each_other_while_somebody_publishes(one: Member) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, "pages", "quorum")
        publish(channel, "pages", *[b"%d" % number for number in range(120)])
        ended = threading.Event()

        def publisher() -> None:
            with one.connect() as other:
                there = other.channel()
                there.confirm_delivery()
                while not ended.is_set():
                    publish(there, "pages", b"more")

        work = threading.Thread(target=publisher)
        work.start()
        try:
            numbers: list[int] = []
            page = browse(one, "pages", count=25)
            while page["next_page_token"] is not None and len(numbers) < 1_000:
                numbers += [row["number"] for row in page["messages"]]
                page = browse(one, "pages", count=25, page_token=page["next_page_token"])
            numbers += [row["number"] for row in page["messages"]]
        finally:
            ended.set()
            work.join()
        assert len(numbers) >= 120
        assert numbers == list(range(len(numbers)))


def test_tokens_are_taken_as_they_were_given_only(one: Member) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        for name in ("mine", "other"):
            declare(channel, name, "quorum")
            publish(channel, name, b"a", b"b")
        token = browse(one, "mine", count=1)["next_page_token"]
        assert payloads(browse(one, "mine", page_token=token)) == ["b"]
        changed = token[:-3] + ("AAA" if token[-3:] != "AAA" else "BBB")
        for query in (
            *({"page_token": changed}, {"page_token": "x"}, {"page_token": "ü" * 500}),
            {"page_token": token, "state": "all"},
        ):
            assert answer(one, "mine", **query)[0] == 400, query
        status, body = answer(one, "other", page_token=token)
        assert (status, "another queue" in body["reason"]) == (400, True)


def test_a_filter_shows_some_and_says_how_many_it_looked_at(one: Member) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, "filtered", "quorum")
        for number in range(60):
            publish(channel, "filtered", b"%d" % number, headers={"n": number % 10})
    page = browse(one, "filtered", filter="headers.n == 3", count=4)
    assert payloads(page) == ["3", "13", "23", "33"]
    token = page["next_page_token"]
    rest = browse(one, "filtered", filter='body.matches("^5[0-4]$")', page_token=token)
    assert payloads(rest) == ["50", "51", "52", "53", "54"]
    assert (rest["looked_at"], rest["next_page_token"]) == (26, None)
    status, body = answer(one, "filtered", filter="headers.n ==")
    assert (status, "character" in body["reason"]) == (400, True)


def test_what_makes_no_sense_is_refused(one: Member) -> None:
    with one.connect() as connection:
        declare(connection.channel(), "any", "quorum")
    for query in (
        *({"count": 0}, {"count": 10_001}, {"count": "x"}, {"count": -1}, {"state": "dead"}),
        *({"from_": "yesterday"}, {"body_bytes": 2**30}, {"encoding": "hex"}),
    ):
        assert answer(one, "any", **query)[0] == 400, query
    assert answer(one, "nothing")[0] == 404


def test_who_may_not_read_a_queue_does_not_see_its_messages(one: Member) -> None:
    change(one, "users/reader", {"password": "pw", "tags": "management"})
    rights = {"configure": "", "write": ".*", "read": "^allowed$"}
    change(one, "permissions/%2F/reader", rights)
    with one.connect() as connection:
        channel = connection.channel()
        for name in ("allowed", "secret"):
            declare(channel, name, "quorum")
            publish(channel, name, b"x")
        channel.queue_declare("own", exclusive=True)
        publish(channel, "own", b"x")
        eventually(lambda: payloads(browse(one, "allowed", "reader:pw")) == ["x"], "rights")
        assert answer(one, "secret", "reader:pw")[0] == 401
        assert payloads(browse(one, "own")) == ["x"]
        change(one, "permissions/%2F/reader", {**rights, "read": ".*"})
        eventually(lambda: answer(one, "secret", "reader:pw")[0] == 200, "rights")
        status, body = answer(one, "own", "reader:pw")
        assert (status, "exclusive" in body["reason"]) == (400, True)


def test_the_audit_log_knows_who_looked(one: Member) -> None:
    with one.connect() as connection:
        channel = connection.channel()
        declare(channel, "noted", "quorum")
        publish(channel, "noted", b"a", b"b")
    browse(one, "noted")
    answer(one, "noted", count=0)

    def records() -> list[Any]:
        log = Path(one.data_dir) / "audit.log"
        lines = log.read_text().splitlines() if log.exists() else []
        found = [json.loads(line) for line in lines]
        return [each for each in found if each["action"] == "browse" and each["name"] == "noted"]

    eventually(lambda: len(records()) == 2, "the records")
    shown, refused = records()
    assert (shown["user"], shown["door"], shown["messages"], shown["outcome"]) == (
        *("guest", "http"),
        *(2, "ok"),
    )
    assert (refused["messages"], refused["outcome"]) == (0, "refused")
