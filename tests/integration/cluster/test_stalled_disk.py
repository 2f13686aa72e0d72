"""A member whose disk does not answer for twenty seconds (ADR 68): it says so, others lead, the
cluster goes on, and nothing confirmed is lost.
"""

from __future__ import annotations

import re
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pika
import pika.exceptions
import pytest

from brokerd.rpc.v1 import admin_pb2
from tests.chaos.shim import Control, NoShim, build
from tests.integration.grpc.test_admin_grpc import Admin
from tests.integration.grpc.test_admin_runtime import rows
from tests.integration.members import Member, cluster, eventually, select_nothing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STALL_S = 20.0
#: What clients may wait where a leader moves: an election and more, on a busy machine.
GAP_MAX_S = 8.0
QUORUM = {"x-queue-type": "quorum"}


class Publisher(threading.Thread):
    """Publishes numbers to a queue through a member, each after the confirm of the one before."""

    def __init__(self, member: Member, queue: str) -> None:
        super().__init__(daemon=True)
        self.member, self.queue = member, queue
        self.stopped = threading.Event()
        self.confirmed: list[bytes] = []
        #: Nacked, though the queue may have them.
        self.refused = 0
        #: When the last confirm came, and the longest that one took.
        self.latest_s = time.monotonic()
        self.gap_max_s = 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self.member.connect() as connection:
                channel = connection.channel()
                channel.confirm_delivery()
                while not self.stopped.is_set():
                    body = f"{self.member.name} {len(self.confirmed)}".encode()
                    try:
                        channel.basic_publish("", self.queue, body, mandatory=True)
                    except pika.exceptions.NackError:
                        self.refused += 1
                        select_nothing(0.1)
                        continue
                    self.confirmed.append(body)
                    now_s = time.monotonic()
                    self.gap_max_s = max(self.gap_max_s, now_s - self.latest_s)
                    self.latest_s = now_s
                    select_nothing(0.01)
        except pika.exceptions.AMQPError as error:
            self.error = error

    def stop(self) -> None:
        self.stopped.set()
        self.join(60)
        assert not self.is_alive()
        assert self.error is None


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[tuple[list[Member], Control]]:
    """Three members, and what the disk of the first does."""
    try:
        library = build(tmp_path)
    except NoShim as error:
        pytest.skip(str(error))
    data = tmp_path / "n0"
    data.mkdir()
    control = Control(library, tmp_path / "control", data)
    environment = [control.environment, {}, {}]
    with cluster(tmp_path, 3, is_warm=False, own_env=environment) as members:
        try:
            yield members, control
        finally:
            # A process that waits for its disk ends all the same, but not its files.
            control.calm()


def page(member: Member, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{member.http_port}{path}", timeout=20
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(member: Member, name: str) -> float:
    lines = page(member, "/metrics")[1].splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"{name} "))


def alarms_of(admin: Admin, name: str) -> list[str]:
    """Return a member's alarms, as the asked one knows them."""
    answer = admin.call("MemberStatus", admin_pb2.MemberStatusRequest())
    return next(list(member.alarms) for member in answer.members if member.name == name)


def leaders(admin: Admin) -> dict[str, str]:
    return {row["name"]: row["leader"] for row in rows(admin, "queues")}


def received(member: Member, queue: str) -> set[bytes]:
    with member.connect() as connection:
        channel = connection.channel()
        found = set()
        while (body := channel.basic_get(queue, auto_ack=True)[2]) is not None:
            found.add(body)
        return found


def test_a_disk_that_does_not_answer_is_told_and_the_cluster_goes_on(
    stalled: tuple[list[Member], Control],
) -> None:
    """G1, G9: quorum queues led there and elsewhere, a classic and a transient one that live there;
    publishers at all members.
    """
    members, control = stalled
    first, second, third = members
    with first.connect() as connection, second.connect() as other:
        channel = connection.channel()
        for name, arguments in (("led", QUORUM), ("classic", {})):
            channel.queue_declare(name, durable=True, arguments=arguments)
        channel.queue_declare("transient")
        other.channel().queue_declare("elsewhere", durable=True, arguments=QUORUM)
    wanted = [(first, "led"), (second, "led"), (third, "elsewhere"), (first, "elsewhere")]
    going = [Publisher(*each) for each in [*wanted, (second, "transient")]]
    waiting = Publisher(second, "classic")
    admins = [Admin(member.grpc_port) for member in members]
    try:
        for publisher in (*going, waiting):
            publisher.start()
        for publisher in (*going, waiting):
            eventually(lambda each=publisher: len(each.confirmed) > 10, "publishers go on")
        assert leaders(admins[1])["led"] == "n0"
        control.set(sync_stalls=True)
        end_s = time.monotonic() + STALL_S
        _look_while_it_is_stalled(members, admins)
        eventually(lambda: time.monotonic() > end_s, "twenty seconds", STALL_S + 60)
        since_s = time.monotonic()
        # The one that lives there alone says so, in place of letting its publisher wait.
        assert since_s - waiting.latest_s > STALL_S / 2
        assert waiting.refused
        assert not any(each.refused for each in going)
        eventually(lambda: all(each.latest_s > since_s for each in going), "confirms")
        control.calm()
        _look_when_it_is_over(members, admins, since_s, waiting)
    finally:
        control.calm()
        for admin in admins:
            admin.channel.close()
        for publisher in (*going, waiting):
            publisher.stop()
    assert max(publisher.gap_max_s for publisher in going) < GAP_MAX_S
    for queue in ("led", "elsewhere", "classic", "transient"):
        confirmed = [each.confirmed for each in (*going, waiting) if each.queue == queue]
        got, promised = received(third, queue), {body for bodies in confirmed for body in bodies}
        assert promised <= got if queue == "classic" else promised == got


def _look_while_it_is_stalled(members: list[Member], admins: list[Admin]) -> None:
    first = members[0]
    for admin in admins:
        eventually(lambda asked=admin: alarms_of(asked, "n0") == ["disk_stalled"], "the alarm")
        assert alarms_of(admin, "n1") == []
    status, why = page(first, "/health/ready")
    assert (status, why[:35]) == (503, "the disk does not answer, the log h")
    assert page(first, "/health/live")[0] == 200
    assert metric(first, 'brokerd_alarm{resource="disk_stalled"}') == 1
    assert metric(first, "brokerd_disk_stalls_total") == 1
    assert metric(first, "brokerd_disk_stalled_seconds_total") >= 5
    # Who counts on its vote would stop a majority.
    answer = admins[1].call("SafeToStop", admin_pb2.SafeToStopRequest(member="n1"))
    assert not answer.safe
    for member in members:
        _declare(member, f"new at {member.name}")
    led = eventually(
        lambda: (found := leaders(admins[1]))["led"] in ("n1", "n2") and found,
        "others lead",
    )
    assert led["new at n0"] in ("n1", "n2")
    # What could not move, and what had no need to.
    here = leaders(admins[0])
    assert (here["classic"], here["transient"], here["elsewhere"]) == ("n0", "n0", "n1")
    asked = admin_pb2.TransferLeaderRequest(vhost="/", name="led", member="n0")
    with pytest.raises(grpc.RpcError, match="the disk of member 'n0' does not answer"):
        admins[1].call("TransferLeader", asked)


def _declare(member: Member, name: str) -> None:
    began_s = time.monotonic()
    with member.connect() as connection:
        connection.channel().queue_declare(name, durable=True, arguments=QUORUM)
        connection.channel().queue_declare(f"{name}, classic", durable=True)
    assert time.monotonic() - began_s < GAP_MAX_S


def _look_when_it_is_over(
    members: list[Member], admins: list[Admin], since_s: float, waiting: Publisher
) -> None:
    first = members[0]
    for admin in admins:
        eventually(lambda asked=admin: alarms_of(asked, "n0") == [], "the alarm is over")
    first.wait_ready()
    eventually(lambda: waiting.latest_s > since_s, "what waited is confirmed")
    said = [line for line in first.log().splitlines() if "disk stall" in line]
    assert len(said) == 3, said
    assert "the log waits for a write or a sync since" in said[0]
    assert "leaderships moved away" in said[1]
    ended = re.search(r"disk stall over: the disk answers again, after (\d+)\.", said[2])
    # A busy machine takes its time to look, and the stall goes on meanwhile.
    assert ended
    assert STALL_S <= int(ended[1]) < 60
    assert first.log().count("disk_stalled alarm set on node n0") == 1
    # Readers count it from outside, as the next one would be.
    assert metric(first, "brokerd_disk_stalls_total") == 1
    seconds = metric(first, "brokerd_disk_stalled_seconds_total")
    assert 15 < seconds < 60
    safe: Any = admins[1].call("SafeToStop", admin_pb2.SafeToStopRequest(member="n1"))
    assert safe.safe
