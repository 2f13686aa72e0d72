"""amqp091-go, amqplib and RabbitMQ's Java client, unmodified: each does what its programs/ say.

Confirms, returns, prefetch, nack, reject, dead letters of a quorum queue, large bodies, cancel by
the server, channel errors (R-PUB, R-CS-6, R-DLX, R-QOS, R-ERR-46); recovery after the server was
killed; connection.blocked (R-MEM).
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable

import pytest

from tests.integration.clients import fetched
from tests.integration.clients.client_process import client_process
from tests.integration.members import Member

pytestmark = pytest.mark.timeout(420)

CLIENTS = {"go": fetched.go_client, "node": fetched.node_client, "java": fetched.java_client}
PERFTEST_SECONDS = 120


@pytest.fixture(params=CLIENTS)
def command(request: pytest.FixtureRequest) -> list[str]:
    """Give the command of each client's program."""
    return CLIENTS[request.param]()


def test_everything_an_application_does(member: Member, command: list[str]) -> None:
    """R-PUB, R-CS-6, R-DLX, R-QOS, R-ERR-46."""
    with client_process([*command, "everything", str(member.amqp_port)]) as client:
        client.finish()


def test_the_client_comes_back_after_the_server_was_killed(
    member: Member, restart: Callable[[], None], command: list[str]
) -> None:
    """Durable queues and their messages are there; Java and Go recover consumers by themselves."""
    with client_process([*command, "recover", str(member.amqp_port)]) as client:
        client.expect("ready")
        restart()
        client.tell()
        client.finish()


def test_the_client_hears_that_it_is_blocked(
    member: Member, alarm: Callable[[bool], None], command: list[str]
) -> None:
    """R-MEM: connection.blocked with a reason, connection.unblocked."""
    with client_process([*command, "blocked", str(member.amqp_port)]) as client:
        client.expect("ready")
        alarm(True)
        client.tell()
        client.expect("blocked")
        alarm(False)
        client.finish()


def test_perftest_publishes_and_consumes(member: Member) -> None:
    """RabbitMQ's load tool with confirms, prefetch and acknowledgements on a quorum queue."""
    jars = fetched.java_jars()
    command = ["java", "-cp", f"{jars}/*", "com.rabbitmq.perf.PerfTest"]
    command += ["--uri", f"amqp://guest:guest@127.0.0.1:{member.amqp_port}"]
    command += ["--quorum-queue", "--queue", "perf", "--confirm", "50", "--qos", "100"]
    command += ["--multi-ack-every", "10", "--pmessages", "2000", "--cmessages", "2000"]
    command += ["--size", "500", "--id", "test"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PERFTEST_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    rate = re.search(r"receiving rate avg: (\d+)", done.stdout)
    assert rate is not None, done.stdout
    assert int(rate[1]) > 0
