"""A member of three is away, and its classic queues hold up nobody.

The home of a queue is the member that it was declared at.  The clients here are at the other two,
and all act while the home is away; test_home_member_back.py has what follows its return.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pika
import pika.exceptions
import pytest

from tests.integration import home_down_rig as rig
from tests.integration.home_down_rig import (
    AFTER_SECONDS,
    AT_ONCE_SECONDS,
    GONE,
    KEPT,
    KINDS,
    OPERATIONS,
    Watcher,
    down_text,
    refusal,
    within,
)
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import client, publish

pytestmark = pytest.mark.timeout(240)

#: What each test declares before the home is gone: one queue of each kind for each of these.
PURPOSES = (
    "asked",
    "deleted",
    "remade",
    "remade-otherwise",
    "published",
    "mandatory",
    "unconfirmed",
    "http",
    "ctl",
    "refused",
    "listed",
    "watched",
    "early-declare",
    "early-publish",
)
#: Messages that waited for a queue that was away stopped their publisher after 16 MiB.
FLOOD_COUNT, FLOOD_BODY, FLOOD_SECONDS = 400, bytes(65_536), 30.0
COUNTER = "brokerd_messages_refused_total"


@dataclass
class Down:
    """Three members, of which the first is gone, and what was seen while it went."""

    gone: Member
    others: list[Member]
    #: A client at the second member, with a consumer of each queue that can have one there.
    watcher: Watcher
    #: What was asked in the instant in which the home went: the answer, and after how long it came.
    early: dict[str, tuple[Any, float]] = field(default_factory=dict)


def _setup(members: list[Member]) -> tuple[Any, Watcher]:
    """Declare everything at the first member; return its client and the watcher."""
    owner = members[0].connect(heartbeat=0)
    channel = owner.channel()
    for kind in KINDS:
        for purpose in PURPOSES:
            rig.declare(channel, kind, purpose)
    watcher = Watcher(members[1])
    for kind in KINDS:
        # Nobody else may consume from an exclusive queue; and one kind is to have no consumer.
        if kind not in ("exclusive", "durable-auto-delete-unused"):
            watcher.consume(f"{kind}.watched")
    at_second = watcher.connection.channel()
    for fan, kinds in {"fan.gone": GONE, "fan.kept": KEPT, "fan.flood": KINDS}.items():
        at_second.exchange_declare(fan, "fanout", durable=True)
        at_second.queue_declare(f"{fan}.quorum", durable=True, arguments=rig.QUORUM)
        at_second.queue_bind(f"{fan}.quorum", fan)
        for kind in kinds:
            channel.queue_bind(rig.declare(channel, kind, fan), fan)
    at_second.close()
    return owner, watcher


def _asked_early(down: Down) -> None:
    """Ask while it is not known yet that the home is gone: answers come when it is."""
    first, second = down.others
    asks: dict[str, Callable[[], Any]] = {
        f"declare {kind}": lambda kind=kind: refusal(
            first, lambda channel: rig.declare(channel, kind, "early-declare")
        )
        for kind in KINDS
    }
    asks["confirmed durable"] = lambda: rig.published(second, "", "durable.early-publish")
    asks["confirmed transient"] = lambda: rig.published(second, "", "transient.early-publish")

    def ask(act: Callable[[], Any]) -> tuple[Any, float]:
        clock = rig.Clock()
        try:
            return act(), clock.seconds
        except Exception as error:
            return error, clock.seconds

    with ThreadPoolExecutor(len(asks)) as pool:
        asked = {name: pool.submit(ask, act) for name, act in asks.items()}
        down.early = {name: found.result() for name, found in asked.items()}


@pytest.fixture(scope="module", params=["SIGKILL", "SIGTERM"])
def down(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Down]:
    settings = {rig.AFTER: str(rig.AFTER_MS), rig.DELETE: str(rig.NEVER_MS)}
    settings |= {"BROKERD_AUTH_SCRYPT_LOG2_N": "10"}
    with cluster(tmp_path_factory.mktemp("down"), 3, **settings) as members:
        owner, watcher = _setup(members)
        found = Down(members[0], members[1:], watcher)
        if request.param == "SIGKILL":
            found.gone.kill()
        else:
            found.gone.stop()
        _asked_early(found)
        for member in found.others:
            rig.wait_down(member, "durable.asked")
        yield found
        watcher.close()
        with contextlib.suppress(pika.exceptions.AMQPError):
            owner.close()


# ---- in the instant in which it goes -------------------------------------------------------------


@pytest.mark.parametrize("kind", GONE)
def test_a_declare_in_the_instant_makes_it_anew_once_the_home_is_known_to_be_down(
    down: Down, kind: str
) -> None:
    told, seconds = down.early[f"declare {kind}"]
    # Its owner may be there still: 405 at once, and the next try gets it, as with RabbitMQ.
    assert told is None or (kind == "exclusive" and told[0] == 405)
    assert seconds < AFTER_SECONDS + AT_ONCE_SECONDS
    queue = f"{kind}.early-declare"
    assert refusal(down.others[0], lambda ch: ch.queue_declare(queue, **KINDS[kind])) is None


@pytest.mark.parametrize("kind", KEPT)
def test_a_declare_in_the_instant_of_what_is_kept_is_refused_once_the_home_is_known_to_be_down(
    down: Down, kind: str
) -> None:
    told, seconds = down.early[f"declare {kind}"]
    assert told == (404, f"NOT_FOUND - {down_text(f'{kind}.early-declare')}")
    assert seconds < AFTER_SECONDS + AT_ONCE_SECONDS


def test_a_confirmed_publish_in_the_instant_is_answered(down: Down) -> None:
    """Never answered, for as long as the home was away."""
    told, seconds = down.early["confirmed durable"]
    assert told == ["nack"]
    assert seconds < AFTER_SECONDS + AT_ONCE_SECONDS
    # It may have been on its way to the home, or have met none.
    told, seconds = down.early["confirmed transient"]
    assert told in (["ack"], ["nack"])
    assert seconds < AFTER_SECONDS + AT_ONCE_SECONDS


def test_consumers_elsewhere_are_cancelled(down: Down) -> None:
    """Losing its home cancels a queue's consumers; their channel lives on (R-CS-6)."""
    wanted = {f"{kind}.watched" for kind in KINDS}
    wanted -= {"exclusive.watched", "durable-auto-delete-unused.watched"}
    down.watcher.hears(
        lambda: down.watcher.cancelled >= wanted,
        f"basic.cancel of all; so far {down.watcher.cancelled}",
        AFTER_SECONDS + AT_ONCE_SECONDS,
    )
    assert down.watcher.channel.is_open


# ---- what did not outlive its home ---------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", GONE)
def test_what_did_not_outlive_its_home_is_not_there(down: Down, kind: str, operation: str) -> None:
    queue = f"{kind}.asked"
    for member in down.others:
        with within(AT_ONCE_SECONDS, operation):
            told = refusal(member, lambda channel: OPERATIONS[operation](channel, queue))
        assert told is not None
        assert told[0] == 404
        assert f"'{queue}' in vhost '/'" in told[1]
        assert not re.search(r"group", told[1])


@pytest.mark.parametrize("kind", GONE)
def test_a_delete_of_what_did_not_outlive_its_home_is_answered(down: Down, kind: str) -> None:
    """As of one that is not there: delete-ok (R-Q-12)."""
    with within(AT_ONCE_SECONDS, "delete"):
        assert refusal(down.others[0], lambda ch: ch.queue_delete(f"{kind}.deleted")) is None


@pytest.mark.parametrize("kind", GONE)
def test_a_publish_to_what_did_not_outlive_its_home_is_unroutable(down: Down, kind: str) -> None:
    for member in down.others:
        with within(AT_ONCE_SECONDS, "publish"):
            assert rig.published(member, "", f"{kind}.published") == ["ack"]
            told = rig.published(member, "", f"{kind}.published", mandatory=True)
        assert told == ["return 312", "ack"]


@pytest.mark.parametrize("kind", GONE)
def test_the_next_declare_makes_it_anew_where_it_is_declared(down: Down, kind: str) -> None:
    first, second = down.others
    queue = f"{kind}.remade"
    with first.connect(heartbeat=0) as connection:
        channel = connection.channel()
        with within(AT_ONCE_SECONDS, "declare"):
            channel.queue_declare(queue, **KINDS[kind])
        assert rig.published(second, "", queue, mandatory=True, body=b"new") == ["ack"]
        assert channel.basic_get(queue, auto_ack=True)[2] == b"new"
        _, row = rig.http_call(second, "GET", rig.queue_path(queue))
        assert row["node"] == first.name


@pytest.mark.parametrize("kind", GONE)
def test_it_is_made_anew_with_whatever_arguments(down: Down, kind: str) -> None:
    """What is not there is equivalent to nothing: no 405, no 406."""
    told = refusal(
        down.others[1],
        lambda ch: ch.queue_declare(f"{kind}.remade-otherwise", durable=True, arguments=rig.QUORUM),
    )
    assert told is None


def test_two_that_declare_it_at_the_same_time_get_one_queue(down: Down) -> None:
    queue = "transient.http"
    barrier = threading.Barrier(2)

    def declare(member: Member) -> tuple[int, str] | None:
        def act(channel: Any) -> None:
            barrier.wait(AT_ONCE_SECONDS)
            channel.queue_declare(queue)

        return refusal(member, act)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(declare, down.others)) == [None, None]
    assert rig.published(down.others[0], "", queue, mandatory=True, body=b"one") == ["ack"]
    assert rig.bodies(down.others[1], queue) == [b"one"]


# ---- what is kept for its home -------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["declare", *OPERATIONS])
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_is_refused_with_queue_and_member(
    down: Down, kind: str, operation: str
) -> None:
    queue = f"{kind}.asked"
    act = OPERATIONS.get(
        operation, lambda channel, name: channel.queue_declare(name, **KINDS[kind])
    )
    for member in down.others:
        with within(AT_ONCE_SECONDS, operation):
            told = refusal(member, lambda channel: act(channel, queue))
        assert told == (404, f"NOT_FOUND - {down_text(queue)}")


#: What clients of the management API ask of a queue: method, what follows its path, body.
GET = {"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"}
HTTP_OPERATIONS: dict[str, tuple[str, str, Any]] = {
    "declare": ("PUT", "", None),
    "get": ("POST", "/get", GET),
    "purge": ("DELETE", "/contents", None),
}


@pytest.mark.parametrize("operation", HTTP_OPERATIONS)
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_is_refused_with_queue_and_member_over_http(
    down: Down, kind: str, operation: str
) -> None:
    queue = f"{kind}.asked"
    method, tail, body = HTTP_OPERATIONS[operation]
    for member in down.others:
        with within(AT_ONCE_SECONDS, operation):
            status, said = rig.http_call(
                member, method, rig.queue_path(queue) + tail, body or KINDS[kind]
            )
        assert (status, said) == (503, {"error": "unavailable", "reason": down_text(queue)})


@pytest.mark.parametrize("kind", GONE)
def test_a_get_over_http_of_what_is_gone_finds_no_queue(down: Down, kind: str) -> None:
    member = down.others[0]
    path = rig.queue_path(f"{kind}.listed")
    status, said = rig.http_call(member, "POST", f"{path}/get", GET)
    assert (status, said["reason"]) == (404, "queue_not_found")


def test_what_is_refused_over_http_is_no_error_of_the_member(down: Down) -> None:
    member = down.others[0]
    before = len(member.log())
    for queue in ("durable.asked", "nope"):
        assert rig.http_call(member, "POST", f"{rig.queue_path(queue)}/get", GET)[0] >= 404
    assert "[ERROR]" not in member.log()[before:]


@pytest.mark.parametrize("kind", KEPT)
def test_a_confirmed_publish_to_what_is_kept_is_refused(down: Down, kind: str) -> None:
    for member in down.others:
        with within(AT_ONCE_SECONDS, "publish"):
            assert rig.published(member, "", f"{kind}.published") == ["nack"]
            told = rig.published(member, "", f"{kind}.mandatory", mandatory=True)
        assert told == ["return 312", "nack"]


@pytest.mark.parametrize("kind", KEPT)
def test_an_unconfirmed_publish_to_what_is_kept_is_counted_and_logged(
    down: Down, kind: str
) -> None:
    member, queue = down.others[0], f"{kind}.unconfirmed"
    before = rig.metric(member, COUNTER)
    with member.connect(heartbeat=0) as connection:
        channel = connection.channel()
        for _ in range(3):
            channel.basic_publish("", queue, b"x")
        # What follows on the connection is not held up.
        with within(AT_ONCE_SECONDS, "an open"):
            connection.channel()
    eventually(lambda: rig.metric(member, COUNTER) >= before + 3, f"3 in {COUNTER}", 10)
    eventually(lambda: down_text(queue) in member.log(), f"{queue} in the log", 10)


@pytest.mark.parametrize("kind", KEPT)
def test_a_mandatory_publish_to_what_is_kept_comes_back(down: Down, kind: str) -> None:
    """Without confirms, too."""
    returned: list[Any] = []
    with down.others[1].connect(heartbeat=0) as connection:
        channel = connection.channel()
        channel.add_on_return_callback(lambda *args: returned.append(args))
        channel.basic_publish("", f"{kind}.unconfirmed", b"mine", mandatory=True)
        eventually(
            lambda: connection.process_data_events() or returned, "basic.return", AT_ONCE_SECONDS
        )
    assert returned[0][1].reply_code == 312
    assert returned[0][3] == b"mine"


@pytest.mark.parametrize("way", ["amqp", "http", "brokerctl"])
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_is_deleted_and_declared_anew(down: Down, kind: str, way: str) -> None:
    first, second = down.others
    queue = f"{kind}.{ {'amqp': 'deleted', 'http': 'http', 'brokerctl': 'ctl'}[way] }"
    with within(2 * AT_ONCE_SECONDS, f"delete by {way}"):
        if way == "amqp":
            assert refusal(first, lambda channel: channel.queue_delete(queue)) is None
        elif way == "http":
            assert rig.http_call(first, "DELETE", rig.queue_path(queue))[0] == 204
        else:
            done = rig.brokerctl(first, "delete_queue", queue)
            assert done.returncode == 0, done.stderr
            assert f"it had is not known: {down_text(queue)}" in done.stdout
    told = refusal(second, lambda channel: channel.queue_declare(queue, passive=True))
    assert told == (404, f"NOT_FOUND - no queue '{queue}' in vhost '/'")
    assert refusal(second, lambda channel: channel.queue_declare(queue, durable=True)) is None
    assert rig.published(first, "", queue, mandatory=True, body=b"new") == ["ack"]
    assert rig.bodies(second, queue) == [b"new"]


def test_what_is_kept_is_deleted_only_by_those_who_may(down: Down) -> None:
    member, queue = down.others[0], "durable.refused"
    assert rig.http_call(member, "PUT", "users/reader", {"password": "reader", "tags": ""})[0] < 300
    rights = {"configure": "", "write": "", "read": ".*"}
    assert rig.http_call(member, "PUT", "permissions/%2F/reader", rights)[0] < 300
    credentials = pika.PlainCredentials("reader", "reader")
    with member.connect(heartbeat=0, credentials=credentials) as connection:
        channel = connection.channel()
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            channel.queue_delete(queue)
    assert closed.value.reply_code == 403
    told = refusal(member, lambda channel: channel.queue_declare(queue, passive=True))
    assert told == (404, f"NOT_FOUND - {down_text(queue)}")


def test_listings_are_there_and_show_what_is_kept(down: Down) -> None:
    for member in down.others:
        with within(2 * AT_ONCE_SECONDS, "a listing"):
            assert {f"{kind}.listed" for kind in KEPT} <= rig.listed(member)
        done = rig.brokerctl(member, "-q", "list_queues", "name")
        assert done.returncode == 0, done.stderr
        assert "durable.listed" in done.stdout.split()


# ---- beside healthy queues -----------------------------------------------------------------------


def test_a_quorum_queue_beside_what_did_not_outlive_its_home_gets_all(down: Down) -> None:
    with within(AT_ONCE_SECONDS, "publish"):
        assert rig.published(down.others[0], "fan.gone", "", mandatory=True, body=b"1") == ["ack"]
    assert rig.bodies(down.others[1], "fan.gone.quorum") == [b"1"]


def test_a_quorum_queue_beside_what_is_kept_gets_all_and_its_publisher_hears_of_the_other(
    down: Down,
) -> None:
    with within(AT_ONCE_SECONDS, "publish"):
        assert rig.published(down.others[0], "fan.kept", "", body=b"1") == ["nack"]
    assert rig.bodies(down.others[1], "fan.kept.quorum") == [b"1"]


def test_a_flood_past_queues_that_are_down_stalls_no_publisher(down: Down) -> None:
    """25 MiB, more than what a publisher may have on its way."""
    member = down.others[0]
    before = rig.metric(member, COUNTER)
    # Says that it understands connection.blocked, which would be the answer in place of open-ok.
    with client(member.amqp_port, capabilities={"connection.blocked": True}) as raw:
        raw.open(1)
        raw.socket.settimeout(FLOOD_SECONDS)
        with within(FLOOD_SECONDS, "the flood"):
            for _ in range(FLOOD_COUNT):
                raw.send(1, publish(1, "fan.flood", "", FLOOD_BODY))
            raw.open(2)
    eventually(
        lambda: rig.messages(down.others[1], "fan.flood.quorum") == FLOOD_COUNT,
        "all in the quorum queue",
        30,
    )
    eventually(lambda: rig.metric(member, COUNTER) >= before + FLOOD_COUNT, f"all in {COUNTER}", 10)
    assert down_text("durable.fan.flood") in member.log()
