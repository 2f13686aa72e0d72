"""Publishers are told to stop by channel.flow, as in 2009 (R-OLD-1..3, O-17), on real members."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import amqp
import pytest

from brokerd.amqp import methods
from tests.integration.federation_rig import Admin, admin
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(240)
M = methods

#: Below what any member uses; "0" disables the alarm in this profile.
LOW, HIGH = "1MiB", "1.5"
SET, CLEAR = "memory resource limit alarm set", "memory resource limit alarm cleared across"


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    folder = tmp_path_factory.mktemp("flow")
    with cluster(folder, 1, BROKERD_COMPAT_PROFILE="reference") as [member]:
        yield member


@contextlib.contextmanager
def alarm(member: Member, settings: Admin) -> Iterator[None]:
    """Have the alarm on within, and off when it is left."""
    count_set, count_clear = member.log().count(SET), member.log().count(CLEAR)
    settings.set("vm_memory_high_watermark", LOW)
    eventually(lambda: member.log().count(SET) > count_set, "the alarm is on")
    yield
    settings.set("vm_memory_high_watermark", HIGH)
    eventually(lambda: member.log().count(CLEAR) > count_clear, "the alarm is off")


def nothing_said(raw: RawClient, channel: int = 1) -> None:
    """Fail if anything but the answer to a question of ours comes."""
    raw.send(channel, M.BasicQos())
    raw.expect(M.BasicQosOk)


def test_a_client_that_knows_flow_stops_and_goes_on(member: Member) -> None:
    """R-OLD-1, R-OLD-3, R-MEM-7: py-amqp, which answers by itself and shows what it was told."""
    with (
        admin(member) as settings,
        client(member.amqp_port) as consumer,
        amqp.Connection(f"127.0.0.1:{member.amqp_port}", "guest", "guest") as connection,
    ):
        consumer.open(1)
        consumer.declare(1, "flowing", durable=True)
        channel = connection.channel()
        sent = 0

        def send() -> None:
            nonlocal sent
            channel.basic_publish(amqp.Message(b"%d" % sent), routing_key="flowing")
            sent += 1

        send()
        eventually(lambda: consumer.count(1, "flowing") == 1, "the first message")
        with alarm(member, settings):
            connection.drain_events(timeout=30)
            assert not channel.active
            [row] = [row for row in settings.rows("connections") if row["state"] == "blocked"]
            assert row["blocked_reason"] == "low on memory"
            assert row["blocked_by"] == [member.name]
            assert abs(row["blocked_since"] / 1000 - time.time()) < 60
            # Consumers hear nothing, declares and gets go on.
            nothing_said(consumer)
            consumer.send(1, M.BasicGet(0, "flowing", True))
            consumer.content(M.BasicGetOk)
        connection.drain_events(timeout=30)
        assert channel.active
        send()
        eventually(lambda: consumer.count(1, "flowing") == 1, "it goes on")
        states = {row["state"] for row in settings.rows("connections")}
        assert states == {"running"}
        channel.queue_delete("flowing")
    log = member.log()
    assert "Memory limit set to 1MB." in log
    assert "blocking publishers: low on memory; first is " in log
    assert "publishers are not blocked any more: connections=1 users=1 (guest)" in log


def test_a_channel_that_publishes_after_its_answer_costs_the_connection(member: Member) -> None:
    """R-OLD-1: 503; what was on its way before the answer is taken."""
    with admin(member) as settings, client(member.amqp_port) as raw:
        raw.open(1)
        raw.declare(1, "late", durable=True)
        raw.send(1, publish(1, "", "late", b"early"))
        eventually(lambda: raw.count(1, "late") == 1, "it has published")
        with alarm(member, settings), client(member.amqp_port) as other:
            assert raw.expect(M.ChannelFlow).active is False
            raw.send(1, publish(1, "", "late", b"on its way"), M.ChannelFlowOk(False))
            eventually(lambda: raw.count(1, "late") == 2, "the second message")
            raw.send(1, publish(1, "", "late", b"after"))
            closed = raw.expect(M.ConnectionClose)
            assert (closed.reply_code, closed.class_id, closed.method_id) == (503, 60, 40)
            assert closed.reply_text == (
                "COMMAND_INVALID - basic.publish received after channel.flow_ok{active=false}"
            )
            other.open(1)
            # Who begins to publish during the alarm is told then.
            other.send(1, publish(1, "", "late", b"begins"))
            assert other.expect(M.ChannelFlow).active is False
            other.send(1, M.ChannelFlowOk(False))
            assert other.count(1, "late") == 3


def test_a_client_that_does_not_answer_costs_its_channel(member: Member) -> None:
    """R-OLD-1: 406 after ten seconds; the connection's other channels go on."""
    with admin(member) as settings, client(member.amqp_port) as raw:
        raw.open(1)
        raw.open(2)
        raw.declare(1, "deaf", durable=True)
        raw.send(1, publish(1, "", "deaf", b"x"))
        eventually(lambda: raw.count(1, "deaf") == 1, "it has published")
        with alarm(member, settings):
            assert raw.expect(M.ChannelFlow).active is False
            closed = raw.expect(M.ChannelClose)
            assert (closed.reply_code, closed.reply_text) == (
                406,
                "PRECONDITION_FAILED - timeout waiting for channel.flow_ok{active=false}",
            )
            raw.send(1, M.ChannelCloseOk())
            nothing_said(raw, 2)


def test_an_answer_that_nobody_asked_for_costs_the_connection(member: Member) -> None:
    """R-OLD-1, D-11."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.send(1, M.ChannelFlowOk(True))
        closed = raw.expect(M.ConnectionClose)
        assert closed.reply_text == "COMMAND_INVALID - unsolicited channel.flow_ok"


def test_the_strict_form_tells_all_channels_and_opens_none(tmp_path: Path) -> None:
    """R-OLD-1, R-OLD-3: as 1.8.0."""
    strict = {
        "BROKERD_COMPAT_PROFILE": "reference",
        "BROKERD_COMPAT_THROTTLE_FLOW_ALL_CHANNELS": "true",
    }
    with (
        cluster(tmp_path, 1, **strict) as [member],
        admin(member) as settings,
        client(member.amqp_port) as idle,
        client(member.amqp_port) as hasty,
        client(member.amqp_port) as brief,
    ):
        idle.open(1)
        with alarm(member, settings):
            assert idle.expect(M.ChannelFlow).active is False
            idle.send(1, M.ChannelFlowOk(False))
            nothing_said(idle)
            idle.send(2, M.ChannelOpen())
            nothing_said(idle)
            # No method goes before open-ok.
            hasty.send(1, M.ChannelOpen(), M.BasicQos())
            assert hasty.expect(M.ConnectionClose).reply_code == 504
            brief.send(1, M.ChannelOpen(), M.ChannelClose(200, "", 0, 0))
            brief.expect(M.ChannelCloseOk)
        found = [idle.next_method(), idle.next_method()]
        assert (1, M.ChannelFlow(True)) in found
        assert (2, M.ChannelOpenOk()) in found
        brief.open(1)


def test_who_does_not_stop_is_not_read_where_that_is_no_error(tmp_path: Path) -> None:
    """R-OLD-2, O-17: ten seconds of grace, then its messages wait for the end of the alarm."""
    lenient = {"BROKERD_COMPAT_THROTTLE_MODE": "channel_flow"}
    with (
        cluster(tmp_path, 1, **lenient) as [member],
        admin(member) as settings,
        client(member.amqp_port) as raw,
        client(member.amqp_port) as watcher,
    ):
        for each in (raw, watcher):
            each.open(1)
        watcher.declare(1, "stubborn", durable=True)
        raw.send(1, publish(1, "", "stubborn", b"x"))
        eventually(lambda: watcher.count(1, "stubborn") == 1, "it has published")
        with alarm(member, settings):
            assert raw.expect(M.ChannelFlow).active is False
            raw.send(1, M.ChannelFlowOk(False))

            def is_held() -> bool:
                before = watcher.count(1, "stubborn")
                raw.send(1, publish(1, "", "stubborn", b"x"))
                deadline = time.monotonic() + 0.5
                while time.monotonic() < deadline:
                    if watcher.count(1, "stubborn") > before:
                        return False
                return True

            eventually(is_held, "it is not read any more")
            held = watcher.count(1, "stubborn")
        eventually(lambda: watcher.count(1, "stubborn") > held, "what was held arrives")
        assert raw.expect(M.ChannelFlow).active is True


def test_both_blocks_and_tells(tmp_path: Path) -> None:
    """R-OLD-2: whichever way a client knows."""
    both = {"BROKERD_COMPAT_THROTTLE_MODE": "both"}
    with (
        cluster(tmp_path, 1, **both) as [member],
        admin(member) as settings,
        client(member.amqp_port, capabilities={"connection.blocked": True}) as raw,
    ):
        raw.open(1)
        raw.declare(1, "both", durable=True)
        raw.send(1, publish(1, "", "both", b"x"))
        eventually(lambda: raw.count(1, "both") == 1, "it has published")
        with alarm(member, settings):
            assert raw.expect(M.ChannelFlow).active is False
            raw.send(1, M.ChannelFlowOk(False), publish(1, "", "both", b"held"))
            assert raw.expect(M.ConnectionBlocked).reason == "low on memory"
        found = [raw.next_method(), raw.next_method()]
        assert (1, M.ChannelFlow(True)) in found
        assert (0, M.ConnectionUnblocked()) in found
        eventually(lambda: raw.count(1, "both") == 2, "what was held arrives")
