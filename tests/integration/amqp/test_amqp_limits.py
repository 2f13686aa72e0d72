"""Hostile and slow clients, alarms, and what a member does at its limits, with real processes."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil
import pytest

from brokerd.amqp import methods
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from tests.integration.members import (
    REPOSITORY,
    Member,
    cluster,
    eventually,
    listener_settings,
)
from tests.integration.raw_client import ANSWER_SECONDS, RawClient, client, frame, publish

pytestmark = pytest.mark.timeout(300)

MIB = 1024 * 1024
CAPABLE = {"connection.blocked": True}
IDLE_CONNECTIONS = 500


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    small = {
        "BROKERD_LIMITS_WRITE_BUFFER_BYTES": str(MIB),
        "BROKERD_LIMITS_WRITE_TIMEOUT_MS": "8000",
        "BROKERD_LIMITS_UNCONFIRMED_BYTES": str(MIB),
    }
    with cluster(tmp_path_factory.mktemp("limits"), 1, is_warm=False, **small) as [member]:
        yield member


def rss(member: Member) -> int:
    """Return the resident bytes of a member."""
    assert member.process is not None
    return int(psutil.Process(member.process.pid).memory_info().rss)


def deaf_socket(port: int) -> socket.socket:
    """Return a socket that takes little before the other side must wait."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    made.settimeout(ANSWER_SECONDS)
    made.connect(("127.0.0.1", port))
    return made


def fill(raw: RawClient, queue: str, count: int, size: int) -> None:
    """Publish with confirms, a few at a time."""
    body = bytes(size)
    raw.send(1, methods.ConfirmSelect())
    raw.expect(methods.ConfirmSelectOk)
    done = 0
    for first in range(0, count, 50):
        raw.send(1, *[publish(1, "", queue, body) for _ in range(50)])
        while done < first + 50:
            done = raw.expect(methods.BasicAck).delivery_tag


@pytest.mark.parametrize("no_ack", [False, True])
def test_a_consumer_that_never_reads_costs_no_memory_and_is_closed(
    member: Member, no_ack: bool
) -> None:
    """SEC-45: 100 MiB wait for it; it gets one write buffer, then the time-out, others go on."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.declare(1, "deep", durable=True)
        fill(raw, "deep", 800, 131_072)
        before, ended = rss(member), member.log().count("it takes no data")
        slow = RawClient(member.amqp_port, sock=deaf_socket(member.amqp_port))
        slow.open(1)
        slow.send(1, methods.BasicConsume(0, "deep", "t", no_ack=no_ack))
        eventually(lambda: raw.count(1, "deep") < 800, "deliveries are made")
        grown = 0
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            grown = max(grown, rss(member) - before)
            # A bystander has its answers meanwhile.
            raw.count(1, "deep")
        print(f"grown by {grown / MIB:.1f} MiB")
        assert grown < 48 * MIB
        eventually(lambda: member.log().count("it takes no data") > ended, "the time-out")
        if not no_ack:
            eventually(lambda: raw.count(1, "deep") == 800, "all messages are back")
        slow.close()
        raw.send(1, methods.QueueDelete(0, "deep"))
        raw.expect(methods.QueueDeleteOk)


def test_a_slow_consumer_gets_everything_once_and_in_order(member: Member) -> None:
    """What waits for a full socket goes out later, none twice."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.declare(1, "slowly", durable=True)
        fill(raw, "slowly", 300, 65_536)
        slow = RawClient(member.amqp_port, sock=deaf_socket(member.amqp_port))
        slow.open(1)
        slow.send(1, methods.BasicConsume(0, "slowly", "t"))
        slow.expect(methods.BasicConsumeOk)
        eventually(lambda: raw.count(1, "slowly") == 0, "all are handed out")
        for tag in range(1, 301):
            method, _, body = slow.content(methods.BasicDeliver)
            assert (method.delivery_tag, method.redelivered, len(body)) == (tag, False, 65_536)
        slow.send(1, methods.BasicAck(0, True), methods.ChannelClose(200, ""))
        slow.expect(methods.ChannelCloseOk)
        slow.close()
        assert raw.count(1, "slowly") == 0


def test_requests_of_a_client_that_takes_no_answers_wait(member: Member) -> None:
    """basic.return is not piled up: the member stops reading the socket instead."""
    before = rss(member)
    raw = RawClient(member.amqp_port, sock=deaf_socket(member.amqp_port))
    raw.open(1)
    raw.socket.settimeout(1)
    batch = publish(1, "", "nobody", bytes(100_000), mandatory=True) * 10
    with pytest.raises(TimeoutError):
        raw.socket.sendall(batch * 200)
    assert rss(member) - before < 48 * MIB
    raw.close()


def test_a_flood_within_the_budget_is_confirmed_to_the_end(member: Member) -> None:
    """Reading pauses over the budget of unconfirmed bytes and goes on: nothing stands still."""
    with client(member.amqp_port) as raw:
        raw.open(1)
        raw.declare(1, "flood", durable=True)
        raw.send(1, methods.ConfirmSelect())
        raw.expect(methods.ConfirmSelectOk)
        batch = publish(1, "", "flood", bytes(10_000)) * 1000
        for turn in range(1, 5):
            raw.send(1, batch)
            done = 0
            while done < turn * 1000:
                done = raw.expect(methods.BasicAck).delivery_tag
        assert raw.count(1, "flood") == 4000


def test_idle_connections_and_channels_are_cheap(member: Member) -> None:
    """design/hot-path.md: at most 60 KiB per idle connection."""
    before = rss(member)
    idle = [RawClient(member.amqp_port) for _ in range(IDLE_CONNECTIONS)]
    per_connection = (rss(member) - before) / IDLE_CONNECTIONS
    print(f"{per_connection / 1024:.1f} KiB per idle connection")
    assert per_connection < 60 * 1024
    with client(member.amqp_port) as raw:
        before = rss(member)
        raw.send(1, *[methods.ChannelOpen().encode(number) for number in range(1, 2048)])
        for _ in range(2047):
            raw.expect(methods.ChannelOpenOk)
        print(f"{(rss(member) - before) / 2047 / 1024:.1f} KiB per idle channel")
        assert rss(member) - before < 2047 * 16 * 1024
    for made in idle:
        made.close()


class _Settings:
    """SetSettings of one member."""

    def __init__(self, member: Member) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{member.grpc_port}")
        self._stub = admin_pb2_grpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]

    def set(self, **settings: str) -> None:
        """Change settings."""
        self._stub.SetSettings(
            admin_pb2.SetSettingsRequest(settings=settings),
            metadata=(("authorization", "Basic Z3Vlc3Q6Z3Vlc3Q="),),
            timeout=ANSWER_SECONDS,
        )

    def close(self) -> None:
        """End the client's channel."""
        self._channel.close()


def test_alarms_block_publishers_on_every_member_and_nobody_else(tmp_path: Path) -> None:
    """R-ALM-1..8, R-HB-2, R-MEM-10..13, R-DSK-2."""
    with cluster(tmp_path, 2) as members:
        first, second = members
        settings = _Settings(first)
        publisher = RawClient(second.amqp_port, capabilities=CAPABLE, heartbeat=1)
        unreported = RawClient(second.amqp_port)
        idle = RawClient(second.amqp_port, capabilities=CAPABLE)
        consumer = RawClient(second.amqp_port, capabilities=CAPABLE)
        for raw in (publisher, unreported, idle, consumer):
            raw.open(1)
        consumer.declare(1, "alarmed", durable=True)
        consumer.send(1, publish(1, "", "alarmed", b"early"))
        settings.set(vm_memory_high_watermark="0")
        line = "memory resource limit alarm set on node"

        def is_known() -> bool:
            # Until it is blocked the publisher's silence would cost it the connection (R-HB-1).
            publisher.send(0, frame(8, 0, b""))
            return line in second.log()

        eventually(is_known, "the alarm is known everywhere")
        # Consuming, declaring and new connections go on (R-ALM-4).
        consumer.send(1, methods.BasicGet(0, "alarmed", True))
        assert consumer.content(methods.BasicGetOk)[2] == b"early"
        with client(second.amqp_port) as late:
            late.open(1)
            assert late.declare(1, "", exclusive=True)
        for raw in (publisher, unreported):
            raw.send(1, publish(1, "", "alarmed", b"held"))
        assert publisher.expect(methods.ConnectionBlocked).reason == "low on memory"
        assert consumer.count(1, "alarmed") == 0
        # A second resource: no second connection.blocked, unblocked only when both are over.
        settings.set(disk_free_limit="900TB")
        eventually(lambda: "disk resource limit alarm set" in second.log(), "the disk alarm")
        settings.set(vm_memory_high_watermark="0.9")
        line = "memory resource limit alarm cleared across the cluster"
        eventually(lambda: line in second.log(), "memory is over")
        assert consumer.count(1, "alarmed") == 0
        # The client has been silent for more than three heartbeats; its bytes are not read.
        eventually(lambda: _beats(publisher) > 3, "the server's heartbeats go on")
        settings.set(disk_free_limit="1MB")
        publisher.expect(methods.ConnectionUnblocked)
        eventually(lambda: consumer.count(1, "alarmed") == 2, "the held messages arrive")
        idle.send(1, methods.QueueDeclare(0, "alarmed", passive=True))
        # R-ALM-7: nothing was said to those that did not publish.
        idle.expect(methods.QueueDeclareOk)
        for raw in (publisher, unreported, idle, consumer):
            raw.close()
        settings.close()
        log = first.log()
        for line in (
            "Memory high watermark set to 0 MiB (0 bytes) of",
            "vm_memory_high_watermark set. Memory used:",
            "*** Publishers will be blocked until this alarm clears ***",
            "vm_memory_high_watermark clear. Memory used:",
            "memory resource limit alarm cleared on node n0",
            "Free disk space limit exceeded",
        ):
            assert line in log


def _beats(raw: RawClient) -> int:
    """Count the heartbeats that have come, reading what is there."""
    beats = int(getattr(raw, "beats", 0))
    raw.socket.settimeout(0.2)
    try:
        beats += raw.socket.recv(4096).count(b"\x08\0\0\0\0\0\0\xce")
    except TimeoutError:
        return beats
    finally:
        raw.socket.settimeout(ANSWER_SECONDS)
        raw.beats = beats  # type: ignore[attr-defined]
    return beats


def serve(tmp_path: Path, *flags: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `brokerd serve` until it ends by itself."""
    import os

    return subprocess.run(
        [sys.executable, "-m", "brokerd", "serve", *flags],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)} | env,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=tmp_path,
        check=False,
    )


def test_a_member_that_cannot_start_says_why(member: Member, tmp_path: Path) -> None:
    """Exit status 78 (EX_CONFIG) and one clear line; nothing is left running."""
    ports = listener_settings(member.ports)
    ports["BROKERD_LISTENERS_AMQPS"] = "0"
    free = {"BROKERD_LISTENERS_PEER": "0", "BROKERD_LISTENERS_GRPC": "0"}
    cases: list[tuple[list[str], dict[str, str], str]] = [
        (
            ["--data-dir", str(member.data_dir), "--node-name", "n9"],
            ports,
            "belongs to the member 'n0'",
        ),
        # Without a name it is taken for the member that it has been.
        (["--data-dir", str(member.data_dir)], ports, "another process"),
        (
            ["--data-dir", str(member.data_dir), "--node-name", "n0"],
            ports,
            "another process",
        ),
        (["--data-dir", str(tmp_path / "d"), "--bind", "127.0.0.1"], ports, "see --port-offset"),
        ([], {"BROKERD_LIMITS_NONSENSE": "1"}, "BROKERD_LIMITS_NONSENSE: unknown setting"),
        ([], {"BROKERD_NONSENSE": "1"}, "BROKERD_NONSENSE: unknown setting"),
        ([], {"BROKERD_LIMITS_FRAME_MAX": "many"}, "BROKERD_LIMITS_FRAME_MAX: must be"),
        ([], {"BROKERD_COMPAT_PROFILE": "rabbitmq-9"}, "rabbitmq-9"),
        (["--data-dir", "/proc/nowhere"], {}, "cannot use the data directory /proc/nowhere"),
        (["--config", str(tmp_path / "missing.toml")], {}, "cannot read"),
    ]
    for flags, env, text in cases:
        ended = serve(tmp_path, *flags, **(free | env if env is not ports else env))
        assert (ended.returncode, text in ended.stderr) == (78, True), (flags, env, ended.stderr)
        assert "Traceback" not in ended.stderr, ended.stderr
