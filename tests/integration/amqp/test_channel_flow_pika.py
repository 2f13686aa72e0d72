"""channel.flow and pika, which never answers it: what its programs see (R-OLD-1, O-17)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from tests.integration.amqp.test_channel_flow import alarm
from tests.integration.federation_rig import admin, amqp
from tests.integration.members import Member, cluster, eventually

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]

QUEUE = "flowing"
#: How long a channel may take to answer.
GRACE_S = 10.0


class Program(threading.Thread):
    """Publishes one message after the other, each awaited, until it is told to end or fails."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.is_over = threading.Event()
        self.confirmed = 0
        self.longest_s = 0.0
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with amqp(self._port) as channel:
                while not self.is_over.is_set():
                    began = time.monotonic()
                    channel.basic_publish("", QUEUE, b"x")
                    self.confirmed += 1
                    self.longest_s = max(self.longest_s, time.monotonic() - began)
        except pika.exceptions.AMQPError as error:
            self.error = error


@contextlib.contextmanager
def publishing(member: Member) -> Iterator[Program]:
    """A program that has begun to publish into an empty queue."""
    with amqp(member.amqp_port) as channel:
        channel.queue_declare(QUEUE, durable=True)
    program = Program(member.amqp_port)
    program.start()
    try:
        eventually(lambda: program.confirmed > 5, "it publishes")
        yield program
    finally:
        program.is_over.set()
        program.join()


def count(member: Member) -> int:
    """Return how many messages there are."""
    with amqp(member.amqp_port) as channel:
        found: int = channel.queue_declare(QUEUE, passive=True).method.message_count
        return found


def test_the_profile_reference_closes_pikas_channel_and_loses_nothing(tmp_path: Path) -> None:
    """It does not hang: after ten seconds without flow-ok the program gets an exception."""
    with (
        cluster(tmp_path, 1, BROKERD_COMPAT_PROFILE="reference") as [member],
        admin(member) as settings,
        publishing(member) as program,
        alarm(member, settings),
    ):
        program.join(3 * GRACE_S)
        assert not program.is_alive()
        assert isinstance(program.error, pika.exceptions.ChannelClosedByBroker)
        assert program.error.args == (
            406,
            "PRECONDITION_FAILED - timeout waiting for channel.flow_ok{active=false}",
        )
        assert count(member) >= program.confirmed


def test_the_lenient_form_holds_pika_until_the_alarm_is_over(tmp_path: Path) -> None:
    """As connection.blocked would: its publishes wait, and go on by themselves."""
    with (
        cluster(tmp_path, 1, BROKERD_COMPAT_THROTTLE_MODE="channel_flow") as [member],
        admin(member) as settings,
        publishing(member) as program,
    ):
        with alarm(member, settings):

            def stands() -> bool:
                before = program.confirmed
                program.join(1.0)
                return program.confirmed == before

            eventually(stands, "it is held", 3 * GRACE_S)
            held = program.confirmed
        eventually(lambda: program.confirmed > held + 5, "it goes on")
        program.is_over.set()
        program.join()
        assert program.error is None
        assert program.longest_s > 0.5
        assert count(member) == program.confirmed
