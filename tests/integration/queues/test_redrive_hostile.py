"""Jobs to which everything happens: targets, sources and vhosts go, and histories are forged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pika.exceptions
import pytest

from brokerd.server.messages.job_copies import DELAYS, IS_HERE, ORIGIN_GONE
from tests.integration.management.test_http_api import ask, get
from tests.integration.members import Member, cluster, eventually
from tests.integration.queues.test_browse import change, declare, publish
from tests.integration.queues.test_queue_jobs import (
    count,
    drain,
    ended,
    jobs,
    let_die,
    newest,
    start,
)

pytestmark = pytest.mark.timeout(300)

DELAYED = {"x-delayed-type": "fanout"}


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path_factory.mktemp("hostile"), 1, **settings) as [made]:
        yield made
        # Whatever was asked of it.
        assert "Traceback" not in made.log(), made.log()[-3000:]


@pytest.fixture
def channel(one: Member) -> Iterator[Any]:
    connection = one.connect()
    made = connection.channel()
    made.confirm_delivery()
    yield made
    for queue in ("dlq", "work"):
        made.queue_delete(queue)
    for exchange in ("front", "later", "round"):
        made.exchange_delete(exchange)
    connection.close()


def half_sent(one: Member, **order: Any) -> int:
    """Start a job, and return its number when some have been sent."""
    number = int(start(one, "dlq", rate=40, **order)["id"])
    eventually(lambda: newest(one, "dlq")["total"]["sent"] >= 5, "some sent")
    return number


def test_a_target_that_is_deleted_meanwhile_takes_what_it_has_and_no_more(
    one: Member, channel: Any
) -> None:
    let_die(channel, [b"%d" % number for number in range(60)])
    number = half_sent(one)
    eventually(lambda: newest(one, "dlq")["total"]["waiting"] >= 5, "its target heard")
    channel.queue_delete("work")
    receipt = ended(one, "dlq", number)
    total = receipt["total"]
    assert receipt["state"] == "done"
    assert total["stayed"] == {ORIGIN_GONE: 60 - total["sent"]}
    # What came after it was asked last, it can say nothing of.
    assert 5 <= total["removed"] <= total["removed"] + total["unknown"] == total["sent"] < 60
    assert count(channel, "dlq") == 60 - total["sent"]


def test_a_source_that_is_deleted_ends_its_job_and_the_next_of_its_name_has_none(
    one: Member, channel: Any
) -> None:
    let_die(channel, [b"%d" % number for number in range(60)])
    half_sent(one)
    channel.queue_delete("dlq")
    assert jobs(one, "GET", "dlq")[0] == 404
    assert get(one, "/api/queue-jobs/%2F") == []
    sent = len(drain(channel, "work"))
    assert 5 <= sent < 60
    let_die(channel, [b"new"])
    assert jobs(one, "GET", "dlq") == (200, [])
    assert ended(one, "dlq", start(one, "dlq")["id"])["total"]["sent"] == 1
    assert [body for body, _ in drain(channel, "work")] == [b"new"]


def test_a_vhost_that_is_deleted_ends_its_jobs(one: Member) -> None:
    change(one, "vhosts/short", {})
    change(one, "permissions/short/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    channel = one.connect(virtual_host="short").channel()
    let_die(channel, [b"%d" % number for number in range(60)])
    path = "/api/queues/short/dlq/jobs"
    order = json.dumps({"kind": "redrive", "rate": 40}).encode()
    assert ask(one, "POST", path, order)[0] == 201
    eventually(lambda: get(one, path)[0]["total"]["sent"] >= 5, "some sent")
    assert ask(one, "DELETE", "/api/vhosts/short")[0] == 204
    with pytest.raises(pika.exceptions.AMQPError):
        channel.queue_declare("dlq", passive=True)
    eventually(lambda: ask(one, "GET", path)[0] == 404, "no job of a queue that is gone")
    assert get(one, "/api/queue-jobs") == []


@pytest.mark.parametrize(
    "deaths",
    [
        "a text",
        7,
        [1, "x", None, [[]]],
        [{"queue": 5, "reason": {}, "exchange": [], "routing-keys": {"a": 1}, "count": "many"}],
        [{"queue": "nowhere", "reason": "rejected", "routing-keys": [5]}],
        [{"a": True}] * 10_000 + [{"queue": "nowhere"}],
        [{"queue": "\x00" + "q" * 4000}],
    ],
    ids=["text", "number", "no tables", "wrong types", "gone", "10,000", "long"],
)
def test_a_forged_history_leads_nowhere(one: Member, channel: Any, deaths: Any) -> None:
    declare(channel, "dlq", "quorum")
    publish(channel, "dlq", b"forged", headers={"x-death": deaths, "x-first-death-queue": 9})
    [group] = get(one, "/api/queues/%2F/dlq/triage")["groups"]
    assert (group["messages"], group["told_by"] in ("x-death", "none")) == (1, True)
    for order in ({}, {"trusts_headers": True}, {"to": "republish", "trusts_headers": True}):
        total = ended(one, "dlq", start(one, "dlq", **order)["id"])["total"]
        assert (total["sent"], sum(total["stayed"].values())) == (0, 1)
    # It can be sent elsewhere, and takes what was forged along as a history.
    declare(channel, "work", "quorum")
    ended(one, "dlq", start(one, "dlq", to="queue", target="work")["id"])
    [(body, headers)] = drain(channel, "work")
    assert (body, headers["x-redrive-history"][0]["x-death"]) == (b"forged", deaths)


def test_an_exchange_that_leads_back_to_the_source_gets_nothing(one: Member, channel: Any) -> None:
    """By way of another exchange, beside a queue that would take it."""
    let_die(channel, [b"a", b"b"])
    channel.exchange_declare("front", "fanout")
    channel.exchange_declare("round", "fanout")
    channel.exchange_bind("round", "front")
    channel.queue_bind("dlq", "round")
    channel.queue_bind("work", "front")
    total = ended(one, "dlq", start(one, "dlq", to="exchange", target="front")["id"])["total"]
    assert (total["sent"], total["stayed"]) == (0, {IS_HERE: 2})
    assert (count(channel, "dlq"), count(channel, "work")) == (2, 0)


@pytest.mark.parametrize("guard", ["canary", "stop_after_deaths"])
def test_no_canary_goes_where_its_death_is_not_seen(one: Member, channel: Any, guard: str) -> None:
    let_die(channel, [b"plain"])
    publish(channel, "dlq", b"late", headers={"x-delay": 600_000})
    channel.exchange_declare("later", "x-delayed-message", arguments=DELAYED)
    channel.exchange_declare("front", "fanout")
    channel.exchange_bind("later", "front")
    channel.queue_bind("work", "later")
    order = {"kind": "redrive", "to": "exchange", "target": "later", guard: 1}
    status, text = jobs(one, "POST", "dlq", order)
    assert (status, "leave canary and stop_after_deaths out" in json.dumps(text)) == (400, True)
    # Behind a binding it is told of each message.
    job = start(one, "dlq", to="exchange", target="front", **{guard: 1})
    eventually(lambda: count(channel, "work") == 1, "what is not delayed")
    method, _, _ = channel.basic_get("work")
    channel.basic_ack(method.delivery_tag)
    total = ended(one, "dlq", job["id"])["total"]
    assert (total["sent"], total["stayed"]) == (1, {DELAYS: 1})


def test_a_job_that_is_stopped_while_its_target_refuses_ends_and_loses_nothing(
    one: Member, channel: Any
) -> None:
    let_die(channel, [b"%d" % number for number in range(20)])
    full = {"x-max-length": 3, "x-overflow": "reject-publish"}
    declare(channel, "work", "quorum", **full)
    number = start(one, "dlq")["id"]
    eventually(lambda: newest(one, "dlq")["total"]["sent"] >= 3, "as many as it takes")
    status, _ = jobs(one, "DELETE", "dlq")
    receipt = ended(one, "dlq", number)
    assert (status, receipt["state"]) == (200, "stopped")
    assert receipt["total"]["sent"] == count(channel, "work")
    assert receipt["total"]["sent"] + count(channel, "dlq") == 20
