"""Attacks on every port from outside, and by a user with a password: memory, descriptors, others.

Each attack prints what it did to the member's memory (`pytest -s`), and somebody else goes on
working meanwhile.
"""

from __future__ import annotations

import contextlib
import http.client
import resource
import socket
import struct
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from brokerd.amqp import methods
from brokerd.http2 import framing
from tests.integration.members import Member, cluster, eventually
from tests.integration.raw_client import ANSWER_SECONDS, RawClient, client, frame, publish

pytestmark = pytest.mark.timeout(240)

MIB = 1024 * 1024
#: The alarm of the member of these tests; unfinished messages may take 64 MiB of it.
WATERMARK = 400 * MIB
UNFINISHED_MAX = 64 * MIB
#: What the first of anything costs, and what lies in reach of the allocator.
SLACK = 40 * MIB


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    settings = {"BROKERD_MEMORY_HIGH_WATERMARK": str(WATERMARK)}
    with cluster(tmp_path_factory.mktemp("ports"), 1, is_warm=False, **settings) as [member]:
        yield member


def process(member: Member) -> psutil.Process:
    assert member.process is not None
    return psutil.Process(member.process.pid)


def rss(member: Member) -> int:
    return int(process(member).memory_info().rss)


def tell(what: str, *sizes: int) -> None:
    print(f"{what}: " + " -> ".join(f"{size / MIB:.0f} MiB" for size in sizes))


def answers(member: Member, path: str = "/health/live") -> bool:
    url = f"http://127.0.0.1:{member.http_port}{path}"
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
        return bool(answer.status == 200)


def works(member: Member, queue: str = "others") -> bool:
    """Whether somebody else's message comes through."""
    with client(member.amqp_port) as other:
        other.open(1)
        other.declare(1, queue, durable=True)
        other.send(1, methods.ConfirmSelect(False))
        other.expect(methods.ConfirmSelectOk)
        other.send(1, publish(1, "", queue, b"m"))
        other.expect(methods.BasicAck)
        other.send(1, methods.QueueDelete(0, queue))
        other.expect(methods.QueueDeleteOk)
    return True


def read_to_end(sock: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65_536):
            found += piece
    return found


# ---- HTTP ---------------------------------------------------------------------------------------


def test_half_sent_requests_keep_no_probe_out(member: Member) -> None:
    """SEC-34: those of one address are few, the oldest make room, a scrape comes through."""
    before, files = rss(member), process(member).num_fds()
    with contextlib.ExitStack() as stack:
        for _ in range(700):
            sock = stack.enter_context(
                socket.create_connection(("127.0.0.1", member.http_port), ANSWER_SECONDS)
            )
            sock.sendall(b"GET /metrics HTTP/1.1\r\nX-Endless: ")
        assert answers(member)
        assert answers(member, "/metrics")
        assert process(member).num_fds() < files + 100
        assert works(member)
        tell("700 half-sent requests", before, rss(member))
        assert rss(member) - before < SLACK


def test_a_request_without_end_is_cut_off(member: Member) -> None:
    """SEC-31, SEC-32: by its bytes, and by its time."""
    with socket.create_connection(("127.0.0.1", member.http_port), ANSWER_SECONDS) as slow:
        slow.sendall(b"GET /metrics HTTP/1.1\r\n")
        with socket.create_connection(("127.0.0.1", member.http_port), ANSWER_SECONDS) as large:
            with contextlib.suppress(ConnectionError):
                for _ in range(64):
                    large.sendall(b"X: " + bytes([120]) * 4096 + b"\r\n")
            assert b"200" not in read_to_end(large)
        assert read_to_end(slow) == b""


def test_malformed_requests_cost_a_line_a_second(member: Member) -> None:
    """700 of them wrote a traceback each."""
    before, size = rss(member), len(member.log())
    for _ in range(700):
        with socket.create_connection(("127.0.0.1", member.http_port), ANSWER_SECONDS) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nbad header %s %d\r\n\r\n")
            assert sock.recv(64).startswith(b"HTTP/1.0 400")
    said = member.log()[size:]
    assert "HTTP: Error handling request from 127.0.0.1" in said
    assert "Traceback" not in said
    # Two a second, if the clock is unlucky; 700 take a second or so.
    assert said.count("\n") < 60
    tell("700 malformed requests", before, rss(member))
    assert answers(member)


# ---- members ------------------------------------------------------------------------------------


def test_floods_at_the_peer_port_leave_nothing_behind(member: Member) -> None:
    """SEC-34: each connection that was refused as a flood kept the 256 KB that were read last."""
    before = rss(member)
    flood = (
        framing.PREFACE
        + framing.settings_frame([])
        + framing.frame(framing.PING, 0, 0, bytes(8)) * 16_000
    )
    for _ in range(400):
        with socket.create_connection(("127.0.0.1", member.ports["PEER"]), ANSWER_SECONDS) as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(flood)
            read_to_end(sock)
    tell("400 floods at the peer port", before, rss(member))
    assert rss(member) - before < SLACK
    assert works(member)


def test_strangers_at_the_peer_port_hold_next_to_nothing(member: Member) -> None:
    """SEC-31, SEC-34: unfinished headers of as many as like; the others' connections are few."""
    before, files = rss(member), process(member).num_fds()
    opening = framing.PREFACE + framing.settings_frame([])
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            sock = stack.enter_context(
                socket.create_connection(("127.0.0.1", member.ports["PEER"]), ANSWER_SECONDS)
            )
            with contextlib.suppress(ConnectionError):
                sock.sendall(opening + framing.frame(framing.HEADERS, 0, 1, bytes(8000)))
        assert process(member).num_fds() < files + 60
        tell("300 strangers at the peer port", before, rss(member))
        assert rss(member) - before < SLACK
        assert works(member)


# ---- AMQP ---------------------------------------------------------------------------------------


def begin_large(raw: RawClient) -> None:
    """Send a message of 15 MB but for its last byte."""
    size = 15_000_000
    head = struct.pack(">HHQ", 60, 0, size) + b"\x00\x00"
    raw.send(1, methods.BasicPublish(0, "", "q"), frame(2, 1, head))
    with contextlib.suppress(OSError):
        raw.send(1, *[frame(3, 1, bytes(125_000))] * 119, frame(3, 1, bytes(124_999)))


def test_unfinished_messages_stay_within_their_share(member: Member) -> None:
    """SEC-43, SEC-44: 40 of 15 MB; the first ones are closed with 506, who sends through is not."""
    before = rss(member)
    highest = before
    with contextlib.ExitStack() as stack:
        raws = []
        for _ in range(40):
            raw = stack.enter_context(client(member.amqp_port))
            raw.open(1)
            raws.append(raw)
            begin_large(raw)
            highest = max(highest, rss(member))
        assert raws[0].expect(methods.ConnectionClose).reply_code == 506
        tell("40 unfinished messages of 15 MB", before, highest)
        # What is being closed may not have gone yet.
        assert highest - before < UNFINISHED_MAX + 2 * 15 * MIB + SLACK
        # A publisher of messages of the largest size, as the same user, meanwhile.
        with client(member.amqp_port) as other:
            other.open(1)
            other.declare(1, "large", durable=True, exclusive=True)
            other.send(1, methods.ConfirmSelect(False))
            other.expect(methods.ConfirmSelectOk)
            for _ in range(3):
                other.send(1, publish(1, "", "large", bytes(16 * MIB)))
                other.expect(methods.BasicAck)
        assert "alarm set" not in member.log()
    eventually(lambda: rss(member) < before + SLACK, "the memory is the system's again", 30)


def test_one_connection_holds_no_more_than_two_large_messages(member: Member) -> None:
    """SEC-44: unfinished ones on many channels."""
    with client(member.amqp_port) as raw:
        for channel in range(1, 5):
            raw.open(channel)
            head = struct.pack(">HHQ", 60, 0, 15_000_000) + b"\x00\x00"
            raw.send(channel, methods.BasicPublish(0, "", "q"), frame(2, channel, head))
            with contextlib.suppress(OSError):
                raw.send(channel, *[frame(3, channel, bytes(125_000))] * 110)
            if channel == 3:
                break
        assert raw.expect(methods.ConnectionClose).reply_code == 506
    assert works(member)


def test_a_memory_alarm_ends_with_its_cause(tmp_path: Path) -> None:
    """R-MEM-11: what was freed goes back to the system, within 10 s on a machine that is idle."""
    with cluster(tmp_path, 1, is_warm=False, BROKERD_MEMORY_HIGH_WATERMARK=str(130 * MIB)) as [
        member
    ]:
        with contextlib.ExitStack() as stack:
            for _ in range(4):
                raw = stack.enter_context(client(member.amqp_port))
                raw.open(1)
                begin_large(raw)
            eventually(lambda: "memory resource limit alarm set" in member.log(), "an alarm")
            highest = rss(member)
        eventually(lambda: "alarm cleared across" in member.log(), "no alarm", 30)
        tell("an alarm", highest, rss(member))
        assert works(member)


# ---- descriptors --------------------------------------------------------------------------------


def test_a_member_without_descriptors_keeps_its_log(tmp_path: Path) -> None:
    """The next rotation met EMFILE, took it for a failed disk, and the member ended."""
    limit = 160
    small = {"BROKERD_STORAGE_SEGMENT_BYTES": str(MIB), "BROKERD_LIMITS_UNAUTHENTICATED": "500"}
    with cluster(tmp_path, 1, **small) as [member]:
        assert member.process is not None
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        assert resource.prlimit(member.process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        resource.prlimit(member.process.pid, resource.RLIMIT_NOFILE, (limit, hard))
        with contextlib.ExitStack() as stack, client(member.amqp_port) as other:
            other.open(1)
            other.declare(1, "q", durable=True)
            other.send(1, methods.ConfirmSelect(False))
            other.expect(methods.ConfirmSelectOk)
            for _ in range(limit):
                stack.enter_context(
                    socket.create_connection(("127.0.0.1", member.amqp_port), ANSWER_SECONDS)
                )
            eventually(lambda: process(member).num_fds() >= limit - 1, "no descriptor is left")
            for _ in range(8):
                other.send(1, publish(1, "", "q", bytes(MIB)))
                other.expect(methods.BasicAck)
            assert "taking one in reserve" in member.log()
        assert works(member)


def test_a_member_whose_reserve_is_used_up_waits_and_goes_on(tmp_path: Path) -> None:
    """It ended after ten seconds: only errors of the disk end a member."""
    small = {"BROKERD_STORAGE_SEGMENT_BYTES": str(MIB)}
    with cluster(tmp_path, 1, **small) as [member], client(member.amqp_port) as other:
        other.open(1)
        other.declare(1, "q", durable=True)
        other.send(1, methods.ConfirmSelect(False))
        other.expect(methods.ConfirmSelectOk)
        probe = http.client.HTTPConnection("127.0.0.1", member.http_port, timeout=ANSWER_SECONDS)
        with contextlib.closing(probe):
            assert ask(probe) == (200, "ok\n")
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            pid = process(member).pid
            # Less than are open: not even one of the reserve helps.
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, hard))
            for _ in range(8):
                other.send(1, publish(1, "", "q", bytes(MIB)))
            eventually(lambda: "the log waits" in member.log(), "it says that it waits")
            eventually(lambda: ask(probe)[0] == 503, "it is not ready")
            assert "no file descriptor is left" in ask(probe)[1]
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))
            while other.expect(methods.BasicAck).delivery_tag < 8:
                pass
            assert ask(probe) == (200, "ok\n")
        assert "the log goes on after" in member.log()
        assert works(member)


def ask(probe: http.client.HTTPConnection) -> tuple[int, str]:
    """Ask whether the member is ready, by a connection that is open already."""
    probe.request("GET", "/health/ready")
    answer = probe.getresponse()
    return answer.status, answer.read().decode()


# ---- a long life --------------------------------------------------------------------------------


def test_a_thousand_rounds_leave_the_memory_as_it_was(tmp_path: Path) -> None:
    """Connect, declare, publish, consume, delete."""
    with cluster(tmp_path, 1) as [member]:
        for i in range(1000):
            with client(member.amqp_port) as raw:
                raw.open(1)
                queue = raw.declare(1, f"soak-{i}", durable=True)
                raw.send(1, methods.ConfirmSelect(False))
                raw.expect(methods.ConfirmSelectOk)
                raw.send(1, publish(1, "", queue, bytes(1000)) * 10)
                while raw.expect(methods.BasicAck).delivery_tag < 10:
                    pass
                raw.send(1, methods.BasicConsume(0, queue, "c", no_ack=True))
                raw.expect(methods.BasicConsumeOk)
                for _ in range(10):
                    raw.content(methods.BasicDeliver)
                raw.send(1, methods.QueueDelete(0, queue))
                raw.expect(methods.QueueDeleteOk)
            if i == 49:
                before = rss(member)
        tell("1,000 rounds", before, rss(member))
        eventually(lambda: rss(member) < before * 1.2, "the memory is as it was", 30)
