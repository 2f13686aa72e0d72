"""Heartbeats as clients see them: when they come, from whatever state the connection is in."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from brokerd.amqp import methods, spec
from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually, select_nothing
from tests.integration.raw_client import RawClient, client, publish

pytestmark = pytest.mark.timeout(240)

#: The interval that the clients ask for: long beside what else the machine does.
PERIOD_S = 4
#: When the next byte must be there at the latest: half an interval, a tenth for the timer, and as
#: much again for the machine; some clients wait for one whole interval.
SILENCE_S_MAX = 0.7 * PERIOD_S


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("beats"), 1) as [member]:
        yield member


class Listener:
    """Beats for a raw client every half interval and notes when bytes came; nothing else is read.

    gaps: seconds from one read to the next, from the birth of this on.
    """

    def __init__(self, raw: RawClient) -> None:
        self._raw = raw
        self.gaps: list[float] = []
        self.is_closed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        sock = self._raw.socket
        heard = beaten = time.monotonic()
        while not self._stopped.is_set() and not self.is_closed:
            readable, _, _ = select.select([sock], [], [], 0.02)
            now = time.monotonic()
            if now - beaten >= PERIOD_S / 2:
                beaten = now
                with contextlib.suppress(OSError):
                    sock.sendall(spec.HEARTBEAT_FRAME)
            if readable:
                self.gaps.append(now - heard)
                heard = now
                try:
                    self.is_closed = not sock.recv(1 << 16)
                except OSError:
                    self.is_closed = True

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(60)

    def heard(self, count: int) -> list[float]:
        """Wait for so many reads and return the gaps before them."""
        eventually(lambda: len(self.gaps) >= count or self.is_closed, "bytes of the member")
        assert not self.is_closed
        return self.gaps[:count]


@contextlib.contextmanager
def listening(raw: RawClient) -> Iterator[Listener]:
    listener = Listener(raw)
    try:
        yield listener
    finally:
        listener.stop()


def test_the_first_comes_after_half_an_interval_and_each_further_one(member: Member) -> None:
    """R-HB-1: what the handshake sent does not count, nor does what goes out right after a beat."""
    with client(member.amqp_port, heartbeat=PERIOD_S) as raw, listening(raw) as listener:
        assert max(listener.heard(3)) < SILENCE_S_MAX
    with client(member.amqp_port, heartbeat=PERIOD_S) as raw:
        raw.open(1)
        with listening(raw) as listener:
            listener.heard(1)
            raw.send(1, methods.BasicQos())
            assert max(listener.heard(3)) < SILENCE_S_MAX


def test_a_client_that_opens_late_has_them_before(member: Member) -> None:
    """R-HB-1: the interval holds from tune-ok on."""
    raw = _tuned(member.amqp_port)
    with contextlib.closing(raw), listening(raw) as listener:
        assert max(listener.heard(2)) < SILENCE_S_MAX


def _tuned(port: int) -> RawClient:
    """Return a client that has sent tune-ok and no connection.open."""
    raw = RawClient.at_the_door(socket.create_connection(("127.0.0.1", port)))
    raw.expect(methods.ConnectionStart)
    raw.send(0, methods.ConnectionStartOk({}, "PLAIN", b"\0guest\0guest", "en_US"))
    raw.expect(methods.ConnectionTune)
    raw.send(0, methods.ConnectionTuneOk(2047, 131_072, PERIOD_S))
    return raw


def test_a_blocked_connection_has_them_and_is_not_missed(member: Member) -> None:
    """R-HB-2, R-ALM-8: the member does not read, and for more than three intervals nothing else
    comes.
    """
    with admin(member) as settings, client(member.amqp_port, heartbeat=PERIOD_S) as raw:
        raw.open(1)
        raw.declare(1, "blocked")
        settings.set("vm_memory_high_watermark", "0")
        try:
            raw.send(1, publish(1, "", "blocked", b"x"))
            with listening(raw) as listener:
                assert max(listener.heard(7)) < SILENCE_S_MAX
        finally:
            settings.set("vm_memory_high_watermark", "0.9")


def test_a_member_that_stood_still_for_a_second_loses_no_connection(member: Member) -> None:
    """R-HB-1: neither end is silent for an interval, and what came meanwhile is read first."""
    assert member.process is not None
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(client(member.amqp_port, heartbeat=PERIOD_S)) for _ in range(20)
        ]
        listeners = [stack.enter_context(listening(raw)) for raw in clients]
        for _ in range(4):
            os.kill(member.process.pid, signal.SIGSTOP)
            select_nothing(1.0)
            os.kill(member.process.pid, signal.SIGCONT)
            select_nothing(0.7)
        for listener in listeners:
            assert max(listener.heard(5)) < PERIOD_S
