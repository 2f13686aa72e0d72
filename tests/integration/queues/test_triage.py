"""Triage of dead letters and dry runs on real members: right, by all doors, and without a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pika
import pytest

from tests.integration.management.test_http_api import ask
from tests.integration.members import Member, cluster, eventually
from tests.integration.queues.test_browse import change, declare, log_digest, log_times, publish

pytestmark = pytest.mark.timeout(300)

#: As clients may put it there.
FORGED = {
    "x-death": [{"queue": "work", "reason": "rejected", "exchange": "", "routing-keys": ["work"]}]
}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path_factory.mktemp("triage"), 1, **settings) as [made]:
        yield made


def answer(
    member: Member, method: str, path: str, body: Any = None, user: str = "guest:guest"
) -> tuple[int, Any]:
    raw = None if body is None else json.dumps(body).encode()
    status, _, text = ask(member, method, f"/api/{path}", raw, user=user)
    return status, json.loads(text) if text else None


def triage(member: Member, queue: str, user: str = "guest:guest", **query: str) -> Any:
    path = f"queues/%2F/{quote(queue, safe='')}/triage?{urlencode(query)}"
    status, found = answer(member, "GET", path, user=user)
    assert status == 200, found
    return found


def preview(member: Member, queue: str, **order: Any) -> Any:
    order = {"kind": "redrive", "dry_run": True} | order
    status, found = answer(member, "POST", f"queues/%2F/{quote(queue, safe='')}/jobs", order)
    assert status == 200, found
    return found


def kill(channel: Any, queue: str, count: int) -> None:
    """Reject messages, as a consumer that fails."""
    for _ in range(count):
        method, _, _ = channel.basic_get(queue)
        channel.basic_nack(method.delivery_tag, requeue=False)


@pytest.fixture
def channel(one: Member) -> Iterator[Any]:
    connection = one.connect()
    made = connection.channel()
    # A queue of work whose dead letters go to `dlq`, and an exchange in front of it.
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
    declare(made, "dlq", "quorum")
    declare(made, "work", "quorum", **letters)
    declare(made, "audit", "classic")
    made.exchange_declare("shop", "topic", durable=True)
    for queue in ("work", "audit"):
        made.queue_bind(queue, "shop", "order.#")
    yield made
    for queue in ("dlq", "work", "audit", "mail"):
        made.queue_delete(queue)
    made.exchange_delete("shop")
    connection.close()


def test_groups_tell_why_messages_died_and_nothing_changes(one: Member, channel: Any) -> None:
    for number in range(6):
        properties = pika.BasicProperties(type=f"order.{number % 2}")
        channel.basic_publish("shop", "order.new", b"x", properties)
    kill(channel, "work", 6)
    publish(channel, "dlq", b"y", headers=FORGED)
    publish(channel, "dlq", b"z")
    eventually(lambda: triage(one, "dlq")["looked_at"] == 8, "all are there")
    # What the member still writes by itself has an end.
    seen: list[Any] = []

    def at_rest() -> bool:
        seen.append(log_times(one))
        return len(seen) > 100 and seen[-100] == seen[-1]

    eventually(at_rest, "the log at rest")
    before = log_digest(one)
    found = triage(one, "dlq")
    assert [(row["told_by"], row["type"], row["messages"]) for row in found["groups"][:2]] in (
        [("broker", "order.0", 3), ("broker", "order.1", 3)],
        [("broker", "order.1", 3), ("broker", "order.0", 3)],
    )
    first = found["groups"][0]
    assert (first["reason"], first["first_queue"], first["exchange"], first["routing_key"]) == (
        *("rejected", "work"),
        *("shop", "order.new"),
    )
    assert {row["told_by"] for row in found["groups"][2:]} == {"x-death", "none"}
    assert (found["next_page_token"], found["counts"]["ready"]) == (None, 8)
    some = triage(one, "dlq", filter='type == "order.1"')
    assert [row["messages"] for row in some["groups"]] == [3]
    preview(one, "dlq", to="republish")
    assert log_digest(one) == before
    # An example is the number of one of them.
    shown = answer(one, "GET", f"queues/%2F/dlq/messages?from={first['example']}&count=1")[1]
    assert shown["messages"][0]["properties"]["type"] == first["type"]


def test_a_dry_run_names_where_each_group_would_go(one: Member, channel: Any) -> None:
    declare(channel, "mail", "classic", **{"x-max-length": 5})
    for _ in range(4):
        channel.basic_publish("shop", "order.new", b"12345")
    kill(channel, "work", 4)
    publish(channel, "dlq", b"y", headers=FORGED)
    eventually(lambda: triage(one, "dlq")["looked_at"] == 5, "all are there")
    found = preview(one, "dlq", rate=3)
    rows = {(tuple(row["targets"]), row["messages"]) for row in found["rows"] if row["targets"]}
    assert rows == {(("work",), 4)}
    assert [row["messages"] for row in found["rows"] if row["stays"]] == [1]
    assert (found["messages"], found["seconds"]) == (4, 2)
    target = found["targets"]["work"]
    assert (target["leader"], target["consumers"], target["free_messages"]) == (one.name, 0, None)
    trusted = preview(one, "dlq", trusts_headers=True)
    assert trusted["messages"] == 5
    republished = preview(one, "dlq", to="republish")
    assert [sorted(row["targets"]) for row in republished["rows"] if row["targets"]] == [
        ["audit", "work"]
    ]
    moved = preview(one, "dlq", kind="move", to="queue", target="mail", max=3)
    assert (moved["messages"], moved["targets"]["mail"]["free_messages"]) == (3, 5)
    group = found["rows"][0]["fingerprint"]
    deleted = preview(one, "dlq", kind="delete", group=group)
    assert [(row["targets"], row["messages"]) for row in deleted["rows"]] == [([], 4)]
    channel.queue_delete("work")
    gone = preview(one, "dlq")
    assert (gone["messages"], gone["targets"]) == (0, {})


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ({"kind": "explode"}, "kind"),
        ({"to": "queue"}, "which queue"),
        ({"to": "queue", "target": "dlq"}, "the queue itself"),
        ({"filter": "nonsense == 1"}, "nonsense"),
        ({"rate": -1}, "rate"),
        ({"speed": 1}, "speed"),
        ({"dry_run": "yes"}, "dry_run"),
        ({"page_token": "x"}, "page_token"),
    ],
)
def test_what_makes_no_sense_is_refused(
    one: Member, channel: Any, order: dict[str, Any], words: str
) -> None:
    order = {"kind": "redrive", "dry_run": True} | order
    status, found = answer(one, "POST", "queues/%2F/dlq/jobs", order)
    assert (status, words in found["reason"]) == (400, True), found


def test_what_is_not_there_is_not_found(one: Member, channel: Any) -> None:
    for method, path in (
        ("GET", "queues/%2F/nothing/triage"),
        ("GET", "queues/%2F/nothing/jobs"),
        ("POST", "queues/%2F/nothing/jobs"),
        ("DELETE", "queues/%2F/nothing/jobs"),
    ):
        assert answer(one, method, path, {} if method == "POST" else None)[0] == 404
    assert answer(one, "GET", "queue-jobs")[0] == 200
    assert answer(one, "GET", "queue-jobs/%2F")[0] == 200


def test_who_may_not_read_a_queue_learns_nothing_of_it(one: Member, channel: Any) -> None:
    change(one, "users/eve", {"password": "pw", "tags": "management"})
    change(one, "permissions/%2F/eve", {"configure": "", "write": ".*", "read": "^mine"})
    publish(channel, "dlq", b"x")
    status, found = answer(one, "GET", "queues/%2F/dlq/triage", user="eve:pw")
    assert (status, "read access" in found["reason"]) == (401, True)
    order = {"kind": "delete", "dry_run": True}
    assert answer(one, "POST", "queues/%2F/dlq/jobs", order, user="eve:pw")[0] == 401
    answer(one, "DELETE", "users/eve")


def test_a_large_body_is_counted_and_not_shown(one: Member, channel: Any) -> None:
    publish(channel, "dlq", b"x" * (15 * 1024 * 1024), b"small")
    found = triage(one, "dlq")
    assert sum(row["messages"] for row in found["groups"]) == 2
    assert sum(row["bytes"] for row in found["groups"]) == 15 * 1024 * 1024 + 5


def test_the_audit_log_knows_who_looked_and_not_by_which_filter(one: Member, channel: Any) -> None:
    triage(one, "dlq", filter='headers.name == "Smith"')
    preview(one, "dlq", filter='headers.name == "Smith"')

    log = Path(one.data_dir) / "audit.log"

    def noted() -> bool:
        # Of a member that has noted nothing yet there is none.
        text = log.read_text() if log.exists() else ""
        assert "Smith" not in text
        return '"action":"triage"' in text and '"action":"preview"' in text

    eventually(noted, "both looks are in the audit log")


def test_a_job_is_started_shown_and_stopped_over_http(one: Member, channel: Any) -> None:
    for _ in range(3):
        channel.basic_publish("shop", "order.new", b"x")
    kill(channel, "work", 3)
    publish(channel, "dlq", b"y")
    eventually(lambda: triage(one, "dlq")["looked_at"] == 4, "all are there")
    status, made = answer(one, "POST", "queues/%2F/dlq/jobs", {"kind": "redrive"})
    assert (status, made["queue"], made["user"]) == (201, "dlq", "guest")

    def ended() -> Any:
        [found] = answer(one, "GET", "queues/%2F/dlq/jobs")[1]
        return found if found["state"] == "done" else None

    receipt = eventually(ended, "the job is done")
    assert (receipt["id"], receipt["total"]["sent"]) == (made["id"], 3)
    assert sum(receipt["total"]["stayed"].values()) == 1
    assert [row["messages"] for row in triage(one, "dlq")["groups"]] == [1]
    listed = answer(one, "GET", "queue-jobs/%2F")[1]
    assert [row["id"] for row in listed if row["queue"] == "dlq"] == [made["id"]]
    order = {"kind": "move", "to": "queue", "target": "audit", "rate": 1}
    publish(channel, "dlq", *[b"z"] * 20)
    assert answer(one, "POST", "queues/%2F/dlq/jobs", order)[0] == 201
    # A queue has one job at a time.
    assert answer(one, "POST", "queues/%2F/dlq/jobs", order)[0] == 400
    status, stopped = answer(one, "DELETE", "queues/%2F/dlq/jobs")
    assert (status, stopped["state"] in ("stopping", "stopped")) == (200, True)
    eventually(
        lambda: answer(one, "GET", "queues/%2F/dlq/jobs")[1][0]["state"] == "stopped", "it stopped"
    )


def test_who_may_not_read_a_queue_starts_and_stops_no_job_of_it(one: Member, channel: Any) -> None:
    change(one, "users/eve", {"password": "pw", "tags": "management"})
    change(one, "permissions/%2F/eve", {"configure": "", "write": ".*", "read": "^mine"})
    path = "queues/%2F/dlq/jobs"
    assert answer(one, "POST", path, {"kind": "delete"}, user="eve:pw")[0] == 401
    assert answer(one, "DELETE", path, user="eve:pw")[0] == 401
    assert answer(one, "GET", path, user="eve:pw")[0] == 401
    assert answer(one, "GET", "queue-jobs", user="eve:pw")[1] == []
    answer(one, "DELETE", "users/eve")
