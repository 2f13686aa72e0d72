"""Frameworks that deliver later, each in its own way: nothing is lost, early or doubled.

amqplib by the exchange type x-delayed-message; Symfony Messenger and what Laravel's queue does by a
queue for each delay, with TTL, dead letter exchange and expiry; dramatiq by unacknowledged messages
of a queue of its own; MassTransit's way over exchanges.  Spring AMQP is in `programs/spring`,
Celery has queues for powers of two seconds.  Each program counts its own messages.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from tests.integration import home_down_rig as rig
from tests.integration.clients import fetched
from tests.integration.clients.client_process import client_process
from tests.integration.federation_rig import admin
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(420)

DELAY_MS = 700
#: Delayed queues of Laravel's way live for twice their delay, which is two seconds at most.
EXPIRED_SECONDS = 60.0
WORKER_SECONDS = 120.0


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    """Give a member with its own settings, and a virtual host whose queues are quorum queues."""
    with cluster(tmp_path_factory.mktemp("delays"), 1) as [member]:
        default_type = {"default_queue_type": "quorum"}
        assert rig.http_call(member, "PUT", "vhosts/quorum", default_type)[0] < 300
        yield member


def _dramatiq() -> list[str]:
    program = fetched.PROGRAMS / "frameworks" / "dramatiq_later.py"
    return [fetched.framework_python(), str(program)]


PROGRAMS: dict[str, Callable[[], list[str]]] = {
    "symfony": lambda: fetched.php_client("symfony"),
    "laravel": lambda: fetched.php_client("laravel"),
    "dramatiq": _dramatiq,
}


@pytest.mark.parametrize("vhost", ["%2f", "quorum"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_frameworks_deliver_each_message_once_for_each_try_and_none_early(
    member: Member, program: str, vhost: str
) -> None:
    """R-Q-11: queues of delays that expire lose nothing."""
    with client_process([*PROGRAMS[program](), str(member.amqp_port), vhost]) as client:
        client.finish()
    assert _messages(member, "/" if vhost == "%2f" else vhost) == {}, "something is left behind"


def _messages(member: Member, vhost: str) -> dict[str, int]:
    with admin(member) as settings:
        rows = settings.rows("queues")
    return {
        row["name"]: row["messages"] for row in rows if row["vhost"] == vhost and row["messages"]
    }


def test_queues_of_delays_go_when_they_are_not_used(member: Member) -> None:
    with client_process([*PROGRAMS["laravel"](), str(member.amqp_port), "%2f"]) as client:
        client.finish()

    def left() -> list[str]:
        with admin(member) as settings:
            names = [row["name"] for row in settings.rows("queues")]
        return [name for name in names if name.startswith("laravel.work.delay.")]

    eventually(lambda: not left(), "they have expired", EXPIRED_SECONDS)


def test_amqplib_delays_and_retries_by_the_exchange(member: Member) -> None:
    with client_process([*fetched.node_client(), "delayed", str(member.amqp_port)]) as client:
        client.finish()


def test_exchanges_are_bound_as_masstransit_binds_them(member: Member) -> None:
    """Its delayed scheduler: an exchange of type x-delayed-message that fans out into that of the
    receiving endpoint, which is bound to the endpoint's queue.
    """
    with member.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("orders", "fanout", durable=True)
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "orders")
        channel.exchange_declare(
            "orders_delay",
            "x-delayed-message",
            durable=True,
            arguments={"x-delayed-type": "fanout"},
        )
        channel.exchange_bind("orders", "orders_delay")
        began = time.monotonic()
        for number in range(20):
            headers: dict[str, Any] = {"x-delay": DELAY_MS, "MT-Activity-Id": str(number)}
            channel.basic_publish(
                "orders_delay", "", str(number).encode(), pika.BasicProperties(headers=headers)
            )
        found = []
        for _, properties, body in channel.consume("orders", auto_ack=True, inactivity_timeout=30):
            assert body is not None, f"only {found} came"
            assert time.monotonic() - began >= DELAY_MS / 1000 - 0.001
            assert properties.headers["x-delay"] == -DELAY_MS
            found.append(int(body))
            if len(found) == 20:
                break
        channel.cancel()
        assert sorted(found) == list(range(20))
        assert channel.basic_get("orders")[0] is None


def test_celery_does_each_task_once_for_each_try_and_none_early(
    member: Member, tmp_path: Path
) -> None:
    """Its native delays: a queue for each power of two seconds, and topics of binary numbers."""
    done, log = tmp_path / "done", tmp_path / "worker.log"
    environment = os.environ | {
        "PYTHONPATH": str(fetched.PROGRAMS / "frameworks"),
        "CELERY_URL": f"amqp://guest:guest@127.0.0.1:{member.amqp_port}//",
        "CELERY_DONE": str(done),
    }
    python = fetched.framework_python()
    command = [python, "-m", "celery", "-A", "celery_later", "worker", "--pool", "solo"]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [*command, "--loglevel", "INFO"],
            env=environment,
            cwd=tmp_path,
            stdout=output,
            stderr=output,
        )
    try:
        eventually(lambda: b" ready." in log.read_bytes(), f"the worker: {log}", WORKER_SECONDS)
        program = "import celery_later; celery_later.send()"
        subprocess.run([python, "-c", program], env=environment, cwd=tmp_path, check=True)
        wanted = {(number, tries) for number in range(30) for tries in range(1, 2 + number % 3)}

        def lines() -> list[list[str]]:
            text = done.read_text() if done.exists() else ""
            return [line.split() for line in text.splitlines()]

        eventually(lambda: len(lines()) >= len(wanted), "all tries", WORKER_SECONDS)
        worker.terminate()
        assert worker.wait(WORKER_SECONDS) == 0, log.read_text()
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
    assert sorted((int(number), int(tries)) for number, tries, _ in lines()) == sorted(wanted)
    assert [line for line in lines() if int(line[2]) > 0] == [], "early"
    assert _messages(member, "/") == {}
