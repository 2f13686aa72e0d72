"""What became of redriven messages, on real members: as their consumers say, whoever is killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from brokerd.core.triage.gates import CANARY_DIED, CANARY_WAITS, DIED
from tests.integration.management.test_http_api import ask
from tests.integration.members import Member, cluster, eventually
from tests.integration.queues.test_browse import declare, publish
from tests.integration.queues.test_queue_jobs import _sent, count, ended, jobs, let_die, newest
from tests.integration.queues.test_queue_jobs import start as start_job

pytestmark = pytest.mark.timeout(300)

COUNTED = ("acknowledged", "died_again", "waiting", "removed", "duplicates", "unknown")


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path_factory.mktemp("outcomes"), 1, **settings) as [made]:
        yield made


@pytest.fixture
def channel(one: Member) -> Iterator[Any]:
    connection = one.connect()
    made = connection.channel()
    made.confirm_delivery()
    yield made
    for queue in ("dlq", "work", "other"):
        made.queue_delete(queue)
    connection.close()


def outcomes(job: Any, group: str = "") -> dict[str, int]:
    """Return what is not zero of a job, or of one of its groups."""
    found = job["groups"][group] if group else job["total"]
    return {name: found[name] for name in COUNTED if found[name]}


def shows(member: Member, **expected: int) -> Any:
    """Wait until the newest job shows this."""
    return eventually(
        lambda: (job := newest(member, "dlq")) and outcomes(job) == expected and job,
        f"{expected}, not {outcomes(newest(member, 'dlq'))}",
    )


def take(channel: Any, queue: str, verdict: bool) -> bytes | None:
    """Get a message, and acknowledge or reject it."""
    method, _, body = channel.basic_get(queue)
    if method is None:
        return None
    if verdict:
        channel.basic_ack(method.delivery_tag)
    else:
        channel.basic_nack(method.delivery_tag, requeue=False)
    return bytes(body)


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_receipt_goes_on_telling_what_consumers_do(one: Member, channel: Any, kind: str) -> None:
    let_die(channel, [b"%d" % number for number in range(20)])
    if kind == "classic":
        channel.queue_delete("work")
        letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
        declare(channel, "work", "classic", **letters)
    receipt = ended(one, "dlq", start_job(one, "dlq")["id"])
    assert outcomes(receipt) == {"waiting": 20}
    assert "targets" not in receipt
    for number in range(6):
        take(channel, "work", verdict=number < 4)
    shows(one, acknowledged=4, died_again=2, waiting=14)
    [name] = receipt["groups"]
    for _ in range(5):
        assert channel.basic_get("work", auto_ack=True)[0] is not None
    assert channel.queue_purge("work").method.message_count == 9
    job = shows(one, acknowledged=9, died_again=2, removed=9)
    assert outcomes(job, name) == outcomes(job)
    _, listed = jobs(one, "GET", "dlq")
    assert listed[0]["total"] == job["total"]
    _, _, everywhere = ask(one, "GET", "/api/queue-jobs/%2F")
    assert listed[0] in json.loads(everywhere)
    status, _, page = ask(one, "GET", "/pages/queues/%2F/dlq/messages")
    assert status == 200
    assert (
        f"<td>{name}</td><td>20</td><td>9</td><td>2</td><td>0</td><td>9 removed</td>"
        in page.decode()
    )
    # What died again goes back once more, as another job's.
    again = ended(one, "dlq", start_job(one, "dlq")["id"])
    assert (again["total"]["sent"], outcomes(again)) == (2, {"waiting": 2})
    channel.queue_delete("work")
    shows(one, removed=2)


def test_copies_in_two_queues_are_counted_each_and_a_mover_takes_them_out(
    one: Member, channel: Any
) -> None:
    let_die(channel, [b"a", b"b"])
    declare(channel, "other", "classic")
    for queue in ("work", "other"):
        channel.queue_bind(queue, "amq.fanout")
    receipt = ended(one, "dlq", start_job(one, "dlq", to="exchange", target="amq.fanout")["id"])
    assert (receipt["total"]["sent"], outcomes(receipt)) == (2, {"waiting": 4})
    take(channel, "work", verdict=True)
    job = start_job(one, "other", kind="move", to="queue", target="work")
    assert ended(one, "other", job["id"])["total"]["sent"] == 2
    shows(one, acknowledged=1, waiting=1, removed=2)


def test_a_group_goes_on_when_its_canaries_are_acknowledged_and_stops_when_one_dies(
    one: Member, channel: Any
) -> None:
    """Two groups: consumers of one have been mended, those of the other have not."""
    let_die(channel, [b"bad %d" % number for number in range(15)], "other")
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dlq"}
    declare(channel, "work", "quorum", **letters)
    publish(channel, "work", *[b"good %d" % number for number in range(15)])
    for _ in range(15):
        take(channel, "work", verdict=False)
    eventually(lambda: count(channel, "dlq") == 30, "both groups")
    job = start_job(one, "dlq", canary=3)
    assert shows(one, waiting=6)["total"]["sent"] == 6
    waiting = eventually(
        lambda: (found := newest(one, "dlq")) and "has no consumers" in found["why"] and found,
        "a job that says what it waits for",
    )
    assert "2 groups wait until consumers have acknowledged 3 messages" in waiting["why"]
    # One of three does not do.
    assert take(channel, "work", verdict=True) == b"good 0"
    take(channel, "other", verdict=False)
    shows(one, acknowledged=1, died_again=1, waiting=4)
    assert newest(one, "dlq")["ended_ms"] is None
    for number in (1, 2):
        assert take(channel, "work", verdict=True) == b"good %d" % number
    receipt = ended(one, "dlq", job["id"])
    assert receipt["total"]["sent"] == 18
    assert receipt["total"]["stayed"] == {CANARY_DIED: 12}
    bad, good = sorted(receipt["groups"].values(), key=lambda group: int(group["sent"]))
    assert (bad["sent"], bad["died_again"], bad["stayed"]) == (3, 1, {CANARY_DIED: 12})
    assert (good["sent"], good["acknowledged"], good["stayed"]) == (15, 3, {})
    # The canary that died again is behind the end of the job.
    assert count(channel, "dlq") == 13
    assert count(channel, "work") == 12


def test_a_job_that_waits_for_canaries_can_be_stopped(one: Member, channel: Any) -> None:
    let_die(channel, [b"%d" % number for number in range(10)])
    job = start_job(one, "dlq", canary=2)
    shows(one, waiting=2)
    assert jobs(one, "DELETE", "dlq")[0] == 200
    receipt = ended(one, "dlq", job["id"])
    assert (receipt["total"]["sent"], receipt["total"]["stayed"]) == (2, {CANARY_WAITS: 8})
    assert count(channel, "dlq") == 8
    assert take(channel, "work", verdict=True) == b"0"
    shows(one, acknowledged=1, waiting=1)


def test_a_group_stops_after_so_many_deaths(one: Member, channel: Any) -> None:
    let_die(channel, [b"%d" % number for number in range(100)])
    job = start_job(one, "dlq", rate=20, stop_after_deaths=2)
    deaths = 0
    while (found := newest(one, "dlq"))["ended_ms"] is None:
        # The job ends because of them: long before all were sent at this rate.
        deaths += take(channel, "work", verdict=False) is not None
    receipt = ended(one, "dlq", job["id"])
    assert found["id"] == job["id"]
    sent, stayed = receipt["total"]["sent"], receipt["total"]["stayed"]
    assert stayed == {DIED: 100 - sent}
    assert 2 <= sent < 100
    assert deaths >= 2


def test_outcomes_are_exact_though_leaders_are_killed(tmp_path: Path) -> None:
    """Killed twice in mid job: its own leader, and that of the queue that counts."""
    bodies = [b"%d" % number for number in range(600)]
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path, 3, **settings) as members:
        channel = members[0].connect().channel()
        channel.confirm_delivery()
        let_die(channel, bodies)
        start_job(members[1], "dlq", rate=200, canary=5)
        eventually(partial(_sent, members, 5), "the canaries")
        members[0].kill()
        channel = members[2].connect().channel()
        known: dict[str, bool] = {}
        duplicates = 0
        # Canaries first; a consumer that gets nothing looks again.
        while len(known) < 5:
            duplicates += not _judge(channel, known)
        members[0].start()
        members[0].wait_ready()
        eventually(partial(_sent, members, 150), "the group goes on", 60)
        members[1].kill()
        members[1].start()
        members[1].wait_ready()
        receipt = ended(members[2], "dlq", 1, 120)
        assert (receipt["state"], receipt["total"]["sent"]) == ("done", len(bodies))
        while count(channel, "work"):
            duplicates += not _judge(channel, known)
        assert len(known) == len(bodies)
        died = list(known.values()).count(False)
        expected = {"acknowledged": len(bodies) - died, "died_again": died}
        expected |= {"duplicates": duplicates} if duplicates else {}
        job = shows(members[0], **expected)
        assert outcomes(job) == outcomes(newest(members[1], "dlq"))
        print(f"{duplicates} duplicates; {expected}")


def _judge(channel: Any, known: dict[str, bool]) -> bool:
    """Take a message: every fourth that is no canary dies; False: it was there before."""
    method, properties, _ = channel.basic_get("work")
    if method is None:
        return True
    name = properties.headers["x-redrive-id"]
    is_new = name not in known
    verdict = known.setdefault(name, len(known) < 5 or len(known) % 4 > 0)
    if verdict:
        channel.basic_ack(method.delivery_tag)
    else:
        channel.basic_nack(method.delivery_tag, requeue=False)
    return is_new
