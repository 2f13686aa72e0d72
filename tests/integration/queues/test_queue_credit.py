"""A queue that takes nothing for now holds its publishers back, and nobody else."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from brokerd.amqp import methods
from tests.integration.federation_rig import admin
from tests.integration.members import cluster, eventually
from tests.integration.raw_client import RawClient, client, frame, publish

pytestmark = pytest.mark.timeout(400)
M = methods

MIB = 1024 * 1024
LIMIT_BYTES = MIB
BODY = bytes(100_000)
QUEUES = 8
QUORUM = {"x-queue-type": "quorum"}


def send_until_held(raw: RawClient, channel: int, queue: str) -> int:
    """Publish until the socket takes no more; return how many messages it took."""
    raw.socket.settimeout(2)
    data, sent = publish(channel, "", queue, BODY), 0
    with contextlib.suppress(TimeoutError):
        while sent < 400:
            raw.socket.sendall(data)
            sent += 1
    raw.socket.settimeout(60)
    return sent


def test_a_queue_without_majority_holds_its_publishers_only(tmp_path: Path) -> None:
    """R-ALM-10, R-HB-2: none of them is closed for silence; all goes on when the queue does."""
    limits = {"BROKERD_LIMITS_QUEUE_UNCONFIRMED_BYTES": str(LIMIT_BYTES)}
    with cluster(tmp_path, 3, **limits) as members, admin(members[0]) as settings:
        here, *others = members
        with (
            client(here.amqp_port, heartbeat=2) as fast,
            client(here.amqp_port) as second,
            client(here.amqp_port) as other,
        ):
            for raw in (fast, second, other):
                raw.open(1)
            fast.declare(1, "stuck", durable=True, arguments=QUORUM)
            other.declare(1, "free", exclusive=True)
            other.send(1, M.ConfirmSelect())
            other.expect(M.ConfirmSelectOk)
            for member in others:
                member.kill()
                # Until it is held, its silence would count.
                fast.send(0, frame(8, 0, b""))
            taken = [send_until_held(raw, 1, "stuck") for raw in (fast, second)]
            assert max(taken) < 400

            def states() -> list[str]:
                return sorted(str(row["state"]) for row in settings.rows("connections"))

            eventually(lambda: states() == ["flow", "flow", "running"], "who is held")
            # What was read of both together, not of each: one more read of each, and the frames.
            read_bytes = sum(row["recv_oct"] for row in settings.rows("connections"))
            assert read_bytes < 4 * LIMIT_BYTES
            began = time.monotonic()
            for number in range(50):
                other.send(1, publish(1, "", "free", b"x"))
                assert other.expect(M.BasicAck).delivery_tag == number + 1
            # Longer than the heartbeats of a client that is not read would be waited for.
            eventually(lambda: time.monotonic() - began > 8, "some heartbeats")
            assert states() == ["flow", "flow", "running"]
            for member in others:
                member.start()
            for member in others:
                member.wait_ready()
            eventually(lambda: states()[-1] == "running" and "flow" not in states(), "all go on")
        # A message that was cut off by a full buffer went with its client.
        with client(here.amqp_port) as reader:
            reader.open(1)
            eventually(lambda: reader.count(1, "stuck") >= sum(taken), "all arrive")


def test_many_queues_without_majority_together_have_a_bound(tmp_path: Path) -> None:
    """R-ALM-10: each has less than its own bound; a queue that takes what it gets goes on."""
    with cluster(tmp_path, 3) as members, admin(members[0]) as settings:
        here, *others = members
        # An eighth of this is less than the least bound of a member, 32 MiB.
        settings.set("vm_memory_high_watermark", "200MB")
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(client(here.amqp_port)) for _ in range(QUEUES + 1)]
            for number, raw in enumerate(clients):
                raw.open(1)
                raw.declare(1, f"stuck{number}", durable=True, arguments=QUORUM)
            other = clients.pop()
            other.declare(1, "free", exclusive=True)
            other.send(1, M.ConfirmSelect())
            other.expect(M.ConfirmSelectOk)
            for member in others:
                member.kill()
            taken = [send_until_held(raw, 1, f"stuck{n}") for n, raw in enumerate(clients)]
            # What a socket's buffers took was sent and not read; what each read brought comes
            # on top of twice the bound.
            read_bytes = sum(row["recv_oct"] for row in settings.rows("connections"))
            assert read_bytes < 2 * 32 * MIB + QUEUES * MIB + MIB < QUEUES * 16 * MIB
            for number in range(50):
                other.send(1, publish(1, "", "free", BODY))
                assert other.expect(M.BasicAck).delivery_tag == number + 1
            for member in others:
                member.start()
            for member in others:
                member.wait_ready()
            with client(here.amqp_port) as reader:
                reader.open(1)
                for number, count in enumerate(taken):
                    name = f"stuck{number}"
                    eventually(lambda q=name, n=count: reader.count(1, q) >= n, "all arrive")
