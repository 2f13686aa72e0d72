"""Jobs on real members: dead letters go back, whoever is killed, stopped or changed meanwhile."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pika.exceptions
import pytest

from tests.integration.management.test_http_api import ask
from tests.integration.members import Member, cluster, eventually
from tests.integration.queues.test_browse import change, declare, publish

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path_factory.mktemp("jobs"), 1, **settings) as [made]:
        yield made


@pytest.fixture
def channel(one: Member) -> Iterator[Any]:
    connection = one.connect()
    made = connection.channel()
    made.confirm_delivery()
    yield made
    for queue in ("dlq", "work", "full", "other", "classic"):
        made.queue_delete(queue)
    connection.close()


def jobs(
    member: Member, method: str, queue: str, body: Any = None, user: str = "guest:guest"
) -> tuple[int, Any]:
    raw = None if body is None else json.dumps(body).encode()
    path = f"/api/queues/%2F/{quote(queue, safe='')}/jobs"
    status, _, text = ask(member, method, path, raw, user=user)
    return status, json.loads(text) if text else None


def start(member: Member, queue: str, user: str = "guest:guest", **order: Any) -> Any:
    status, found = jobs(member, "POST", queue, {"kind": "redrive"} | order, user)
    assert status == 201, found
    return found


def newest(member: Member, queue: str) -> Any:
    status, found = jobs(member, "GET", queue)
    return found[0] if status == 200 and found else None


def ended(member: Member, queue: str, number: int, seconds: float = 60) -> Any:
    """Return a job's receipt."""

    def receipt() -> Any:
        job = newest(member, queue)
        assert job is None or job["id"] <= number
        return job if job and job["id"] == number and job["ended_ms"] else None

    return eventually(receipt, f"job {number} at its end", seconds)


def let_die(channel: Any, bodies: list[bytes], work: str = "work") -> None:
    """Publish to the queue of work, and have all of it in its dead letter queue."""
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
    declare(channel, "dlq", "quorum")
    declare(channel, work, "quorum", **letters)
    publish(channel, work, *bodies)
    for _ in bodies:
        method = eventually(lambda: channel.basic_get(work)[0], "a message to reject")
        channel.basic_nack(method.delivery_tag, requeue=False)
    eventually(lambda: count(channel, "dlq") == len(bodies), "all dead letters")


def count(channel: Any, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def drain(channel: Any, queue: str) -> list[tuple[bytes, Any]]:
    found = []
    while (got := channel.basic_get(queue, auto_ack=True))[0] is not None:
        found.append((got[2], got[1].headers or {}))
    return found


def test_dead_letters_go_back_as_new_and_say_which_they_were(one: Member, channel: Any) -> None:
    let_die(channel, [b"%d" % number for number in range(30)])
    number = start(one, "dlq", filter="number < 20", max=10)["id"]
    receipt = ended(one, "dlq", number)
    assert (receipt["state"], receipt["total"]["sent"], receipt["total"]["stayed"]) == (
        *("done", 10),
        {},
    )
    assert [group["sent"] for group in receipt["groups"].values()] == [10]
    assert ended(one, "dlq", start(one, "dlq")["id"])["total"]["sent"] == 20
    found = drain(channel, "work")
    assert [body for body, _ in found] == [b"%d" % number for number in range(30)]
    ids = [headers["x-redrive-id"].partition(":") for _, headers in found]
    assert len({uid for uid, _, _ in ids}) == 1
    assert [int(place) for _, _, place in ids] == list(range(30))
    headers = found[0][1]
    assert "x-death" not in headers
    assert headers["x-redrive-history"][0]["x-death"][0]["queue"] == "work"
    assert count(channel, "dlq") == 0


def test_what_dies_again_can_go_back_with_its_history(one: Member, channel: Any) -> None:
    let_die(channel, [b"x"])
    ended(one, "dlq", start(one, "dlq")["id"])
    method, _, _ = eventually(lambda: _got(channel, "work"), "the message")
    channel.basic_nack(method.delivery_tag, requeue=False)
    eventually(lambda: count(channel, "dlq") == 1, "dead again")
    ended(one, "dlq", start(one, "dlq", keeps_history=True)["id"])
    [(_, headers)] = drain(channel, "work")
    assert headers["x-death"][0]["count"] == 1
    assert len(headers["x-redrive-history"]) == 1


def _got(channel: Any, queue: str) -> Any:
    got = channel.basic_get(queue)
    return got if got[0] is not None else None


def test_the_expiration_that_a_message_had_comes_back_if_asked_for(
    one: Member, channel: Any
) -> None:
    declare(channel, "dlq", "quorum")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
    declare(channel, "work", "quorum", **letters)
    channel.basic_publish("", "work", b"x", pika.BasicProperties(expiration="300"))
    eventually(lambda: count(channel, "dlq") == 1, "expired")
    ended(one, "dlq", start(one, "dlq", restores_expiration=True)["id"])
    # It expires again.
    eventually(lambda: count(channel, "dlq") == 1, "expired again")
    ended(one, "dlq", start(one, "dlq", restores_expiration=True, max=1)["id"])
    eventually(lambda: count(channel, "dlq") == 1, "expired once more")


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_messages_move_as_they_are_and_are_deleted_by_filter(
    one: Member, channel: Any, kind: str
) -> None:
    declare(channel, "other", kind)
    declare(channel, "classic", "classic")
    publish(channel, "other", *[b"%d" % number for number in range(20)], headers={"a": "b"})
    job = start(one, "other", kind="delete", filter='body.startsWith("1")')
    assert ended(one, "other", job["id"])["total"]["sent"] == 11
    job = start(one, "other", kind="move", to="queue", target="classic")
    assert ended(one, "other", job["id"])["total"]["sent"] == 9
    found = drain(channel, "classic")
    assert found == [(b"%d" % number, {"a": "b"}) for number in (0, *range(2, 10))]
    assert count(channel, "other") == 0


def test_what_has_no_way_stays_and_is_counted_by_reason(one: Member, channel: Any) -> None:
    let_die(channel, [b"a", b"b"])
    publish(channel, "dlq", b"from nowhere")
    channel.queue_delete("work")
    receipt = ended(one, "dlq", start(one, "dlq")["id"])
    assert receipt["total"]["stayed"] == {"origin is gone": 2, "no history": 1}
    job = start(one, "dlq", to="exchange", target="amq.direct", routing_key="nobody")
    assert ended(one, "dlq", job["id"])["total"]["stayed"] == {"no route": 3}
    job = start(one, "dlq", to="exchange", target="", routing_key="dlq")
    assert ended(one, "dlq", job["id"])["total"]["stayed"] == {"goes to this queue": 3}
    assert [body for body, _ in drain(channel, "dlq")] == [b"a", b"b", b"from nowhere"]


def test_a_full_target_keeps_its_own_messages_and_no_others(one: Member, channel: Any) -> None:
    declare(channel, "full", "classic", **{"x-max-length": 2, "x-overflow": "reject-publish"})
    declare(channel, "classic", "classic")
    declare(channel, "other", "quorum")
    channel.queue_bind("full", "amq.direct", "full")
    channel.queue_bind("classic", "amq.direct", "free")
    for number in range(10):
        key = "full" if number % 2 else "free"
        channel.queue_bind("other", "amq.direct", key)
    channel.queue_unbind("full", "amq.direct", "full")
    channel.queue_unbind("classic", "amq.direct", "free")
    for number in range(10):
        channel.basic_publish("amq.direct", "full" if number % 2 else "free", b"%d" % number)
    for key in ("full", "free"):
        channel.queue_unbind("other", "amq.direct", key)
    channel.queue_bind("full", "amq.direct", "full")
    channel.queue_bind("classic", "amq.direct", "free")
    job = start(one, "other", kind="move", to="exchange", target="amq.direct")
    eventually(lambda: count(channel, "classic") == 5, "the others there", 10)
    receipt = ended(one, "other", job["id"])
    assert receipt["total"]["sent"] == 7
    assert receipt["total"]["stayed"] == {"refused by its target": 3}
    assert [body for body, _ in drain(channel, "other")] == [b"5", b"7", b"9"]


def test_a_stopped_job_says_so_and_the_next_goes_on(one: Member, channel: Any) -> None:
    let_die(channel, [b"%d" % number for number in range(60)])
    job = start(one, "dlq", rate=40)
    status, text = jobs(one, "POST", "dlq", {"kind": "redrive"})
    assert (status, "is under way" in json.dumps(text)) == (400, True)
    eventually(lambda: newest(one, "dlq")["total"]["sent"] >= 5, "some sent")
    assert jobs(one, "DELETE", "dlq")[0] == 200
    receipt = ended(one, "dlq", job["id"])
    assert (receipt["state"], receipt["why"]) == ("stopped", "stopped by user 'guest'")
    assert 5 <= receipt["total"]["sent"] < 60
    assert jobs(one, "DELETE", "dlq")[0] == 404
    rest = ended(one, "dlq", start(one, "dlq")["id"])
    assert receipt["total"]["sent"] + rest["total"]["sent"] == 60
    assert Counter(body for body, _ in drain(channel, "work")).most_common(1)[0][1] == 1


def test_a_purge_and_a_policy_drop_nothing_that_a_job_has_in_hand(
    one: Member, channel: Any
) -> None:
    let_die(channel, [b"%d" % number for number in range(80)])
    job = start(one, "dlq", rate=40)
    eventually(lambda: newest(one, "dlq")["total"]["sent"] >= 5, "some sent")
    policy = {"pattern": "^dlq$", "definition": {"max-length": 20}, "apply-to": "queues"}
    change(one, "policies/%2F/few", policy)
    eventually(lambda: count(channel, "dlq") <= 20, "the policy holds")
    purged = channel.queue_purge("dlq").method.message_count
    receipt = ended(one, "dlq", job["id"])
    found = drain(channel, "work")
    assert len(found) == receipt["total"]["sent"] == len({body for body, _ in found})
    assert 0 < len(found) < 80
    assert purged <= 20
    assert count(channel, "dlq") == 0
    ask(one, "DELETE", "/api/policies/%2F/few")


def test_a_user_who_loses_a_right_half_way_pauses_the_job(one: Member, channel: Any) -> None:
    let_die(channel, [b"%d" % number for number in range(60)])
    change(one, "users/ann", {"password": "pw", "tags": "management"})
    change(one, "permissions/%2F/ann", {"configure": "", "write": ".*", "read": ".*"})
    job = start(one, "dlq", user="ann:pw", rate=40)
    eventually(lambda: newest(one, "dlq")["total"]["sent"] >= 5, "some sent")
    change(one, "permissions/%2F/ann", {"configure": "", "write": "", "read": ".*"})
    paused = eventually(
        lambda: (found := newest(one, "dlq"))["state"] == "paused" and found, "a pause"
    )
    assert "refused for user 'ann'" in paused["why"]
    change(one, "permissions/%2F/ann", {"configure": "", "write": ".*", "read": ".*"})
    eventually(lambda: newest(one, "dlq")["state"] != "paused", "it goes on")
    ask(one, "DELETE", "/api/users/ann")
    paused = eventually(
        lambda: (found := newest(one, "dlq"))["state"] == "paused" and found, "a pause"
    )
    assert paused["why"] == "user 'ann' has been deleted"
    assert jobs(one, "DELETE", "dlq")[0] == 200
    sent = ended(one, "dlq", job["id"])["total"]["sent"]
    assert sent + count(channel, "dlq") == 60


def test_who_may_not_read_or_write_starts_nothing(one: Member, channel: Any) -> None:
    let_die(channel, [b"x"])
    change(one, "users/eve", {"password": "pw", "tags": "management"})
    change(one, "permissions/%2F/eve", {"configure": "", "write": "", "read": ".*"})
    status, text = jobs(one, "POST", "dlq", {"kind": "redrive"}, "eve:pw")
    assert (status, "write access to exchange 'amq.default'" in json.dumps(text)) == (401, True)
    change(one, "permissions/%2F/eve", {"configure": "", "write": ".*", "read": "^w"})
    assert jobs(one, "POST", "dlq", {"kind": "redrive"}, "eve:pw")[0] == 401
    assert jobs(one, "DELETE", "dlq", user="eve:pw")[0] == 401
    ask(one, "DELETE", "/api/users/eve")


def test_a_job_outlives_its_leader_and_loses_nothing(tmp_path: Path) -> None:
    """Killed in mid job: each message goes back once, or more often under the same id."""
    bodies = [b"%d" % number for number in range(800)]
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path, 3, **settings) as members:
        # The member where a queue is declared leads it first.
        channel = members[0].connect().channel()
        channel.confirm_delivery()
        let_die(channel, bodies)
        start(members[1], "dlq", rate=300)
        for victim in (0, 1):
            at = 100 + 250 * victim
            others = [each for each in members if each is not members[victim]]
            eventually(partial(_sent, others, at), f"{at} sent")
            members[victim].kill()
            eventually(partial(_sent, others, at + 100), "another member goes on")
            members[victim].start()
            members[victim].wait_ready()
        receipt = ended(members[2], "dlq", 1, 120)
        assert (receipt["state"], receipt["total"]["sent"]) == ("done", len(bodies))
        channel = members[2].connect().channel()
        seen: dict[bytes, set[str]] = {}
        copies = 0
        for body, headers in drain(channel, "work"):
            copies += 1
            seen.setdefault(body, set()).add(headers["x-redrive-id"])
        assert set(seen) == set(bodies)
        assert all(len(ids) == 1 for ids in seen.values())
        assert len(set.union(*seen.values())) == len(bodies)
        assert count(channel, "dlq") == 0
        print(f"{copies - len(bodies)} of {copies} copies were duplicates")
        channel.connection.close()


def _sent(members: list[Member], least: int) -> bool:
    for member in members:
        try:
            job = newest(member, "dlq")
        except OSError:
            continue
        if job is not None:
            return bool(job["total"]["sent"] >= least)
    return False
