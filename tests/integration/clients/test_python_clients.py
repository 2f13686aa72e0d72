"""pika (blocking and asyncio), aio-pika, kombu and Celery, unmodified.

Confirms, returns, prefetch, nack, reject, dead letters of a quorum queue, large bodies, cancel by
the server, channel errors (R-PUB, R-CS-6, R-DLX, R-QOS, R-ERR-46); recovery after the server was
killed where the client has it; connection.blocked (R-MEM).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aio_pika
import kombu
import pika
import pytest
from pika.adapters.asyncio_connection import AsyncioConnection

from tests.integration.members import REPOSITORY, Member, eventually

pytestmark = [
    pytest.mark.timeout(400),
    # Clients whose server is killed leave what they had to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

BIG = bytes(range(256)) * 4096
PATIENCE_S = 60.0


def quorum(name: str) -> dict[str, Any]:
    """Return the arguments of a quorum queue whose dead letters go to NAME.dead."""
    return {
        "x-queue-type": "quorum",
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{name}.dead",
    }


def url(member: Member) -> str:
    """Return the member's URL."""
    return f"amqp://guest:guest@127.0.0.1:{member.amqp_port}/"


# ---- pika ----------------------------------------------------------------------------------------


def test_pika_blocking_does_everything(member: Member) -> None:
    """R-PUB, R-CS-6, R-DLX, R-QOS, R-ERR-46."""
    connection = member.connect()
    channel = connection.channel()
    channel.queue_declare("pika.dead", durable=True)
    channel.queue_declare("pika", durable=True, arguments=quorum("pika"))
    channel.confirm_delivery()
    for body in (BIG, *(b"%d" % i for i in range(1, 10))):
        channel.basic_publish("", "pika", body, pika.BasicProperties(delivery_mode=2))
    with pytest.raises(pika.exceptions.UnroutableError) as unroutable:
        channel.basic_publish("", "pika.nowhere", b"x", mandatory=True)
    assert unroutable.value.messages[0].method.reply_code == 312
    channel.basic_qos(prefetch_count=3)
    seen: list[tuple[int, bool, bytes]] = []

    def take(_: Any, method: Any, properties: Any, body: bytes) -> None:
        seen.append((method.delivery_tag, method.redelivered, body))

    channel.basic_consume("pika", take, consumer_tag="worker")
    eventually(lambda: connection.process_data_events() or len(seen) == 3, "three", PATIENCE_S)
    connection.process_data_events(0.3)
    assert len(seen) == 3
    assert seen[0][2] == BIG
    channel.basic_nack(seen[0][0], requeue=True)
    channel.basic_reject(seen[1][0], requeue=False)
    channel.basic_ack(seen[2][0])

    def rest() -> bool:
        for tag, _, _ in seen[3:][len(acked) :]:
            channel.basic_ack(tag)
            acked.append(tag)
        connection.process_data_events()
        return len(seen) == 11

    acked: list[int] = []
    eventually(rest, "all deliveries", PATIENCE_S)
    assert [body == BIG for _, redelivered, body in seen if redelivered] == [True]
    channel.basic_cancel("worker")
    _, properties, _ = eventually(
        lambda: (found := channel.basic_get("pika.dead", auto_ack=True))[0] and found, "dead letter"
    )
    assert properties.headers["x-death"][0]["reason"] == "rejected"
    cancelled: list[Any] = []
    channel.add_on_cancel_callback(cancelled.append)
    channel.queue_declare("pika.gone", durable=True)
    channel.basic_consume("pika.gone", take)
    other = connection.channel()
    other.queue_delete("pika.gone")
    eventually(lambda: connection.process_data_events() or cancelled, "cancelled", PATIENCE_S)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as missing:
        other.queue_declare("pika.missing", passive=True)
    assert missing.value.reply_code == 404
    channel.basic_publish("", "pika.dead", b"still here")
    connection.close()


def test_pika_hears_that_it_is_blocked(member: Member, alarm: Callable[[bool], None]) -> None:
    """R-MEM."""
    connection = member.connect()
    heard: list[str] = []
    connection.add_on_connection_blocked_callback(lambda *_: heard.append("blocked"))
    connection.add_on_connection_unblocked_callback(lambda *_: heard.append("free"))
    channel = connection.channel()
    channel.queue_declare("pika.blocked", exclusive=True)
    alarm(True)
    channel.basic_publish("", "pika.blocked", b"x")
    eventually(lambda: connection.process_data_events() or heard == ["blocked"], "blocked")
    alarm(False)
    eventually(lambda: connection.process_data_events() or heard == ["blocked", "free"], "free")
    connection.close()


async def test_pika_asyncio_publishes_and_consumes(member: Member) -> None:
    """The adapter of applications with an event loop: open, declare, confirm, consume, close."""
    loop = asyncio.get_running_loop()
    opened, closed = loop.create_future(), loop.create_future()
    parameters = pika.ConnectionParameters("127.0.0.1", member.amqp_port)
    connection = AsyncioConnection(
        parameters,
        on_open_callback=opened.set_result,
        on_open_error_callback=lambda _, error: opened.set_exception(error),
        on_close_callback=lambda _, reason: closed.set_result(reason),
    )
    await asyncio.wait_for(opened, PATIENCE_S)
    got: asyncio.Queue[bytes] = asyncio.Queue()
    confirmed: asyncio.Queue[str] = asyncio.Queue()

    def on_channel(channel: Any) -> None:
        def publish(_: Any) -> None:
            channel.basic_publish("", "pika.async", BIG)

        def consume(_: Any) -> None:
            channel.basic_consume(
                "pika.async", lambda *args: got.put_nowait(args[3]), auto_ack=True
            )
            channel.confirm_delivery(
                lambda frame: confirmed.put_nowait(frame.method.NAME), callback=publish
            )

        channel.queue_declare("pika.async", auto_delete=True, callback=consume)

    connection.channel(on_open_callback=on_channel)
    assert await asyncio.wait_for(got.get(), PATIENCE_S) == BIG
    assert await asyncio.wait_for(confirmed.get(), PATIENCE_S) == "Basic.Ack"
    connection.close()
    await asyncio.wait_for(closed, PATIENCE_S)


# ---- aio-pika ------------------------------------------------------------------------------------


async def test_aio_pika_does_everything(member: Member) -> None:
    """R-PUB, R-DLX, R-QOS, R-ERR-46."""
    async with await aio_pika.connect(url(member)) as connection:
        channel = await connection.channel(on_return_raises=True)
        await channel.set_qos(prefetch_count=2)
        dead = await channel.declare_queue("aio.dead", durable=True)
        queue = await channel.declare_queue("aio", durable=True, arguments=quorum("aio"))
        for body in (BIG, b"1", b"2", b"3"):
            await channel.default_exchange.publish(aio_pika.Message(body), "aio")
        with pytest.raises(aio_pika.exceptions.DeliveryError):
            await channel.default_exchange.publish(aio_pika.Message(b"x"), "aio.nowhere")
        taken: asyncio.Queue[Any] = asyncio.Queue()
        tag = await queue.consume(taken.put)
        first = await asyncio.wait_for(taken.get(), PATIENCE_S)
        second = await asyncio.wait_for(taken.get(), PATIENCE_S)
        assert first.body == BIG
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(taken.get(), 0.3)
        await first.nack(requeue=True)
        await second.reject(requeue=False)
        rest = []
        for _ in range(3):
            message = await asyncio.wait_for(taken.get(), PATIENCE_S)
            rest.append((message.body, message.redelivered))
            await message.ack()
        assert sorted(rest)[0] == (BIG, True)
        assert sorted(rest)[1:] == [(b"2", False), (b"3", False)]
        await queue.cancel(tag)
        letter = await dead.get(timeout=PATIENCE_S, fail=False)
        while letter is None:
            letter = await dead.get(timeout=PATIENCE_S, fail=False)
        assert letter.headers["x-death"][0]["queue"] == "aio"
        await letter.ack()
        other = await connection.channel()
        with pytest.raises(aio_pika.exceptions.ChannelNotFoundEntity):
            await other.declare_queue("aio.missing", passive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"still here"), "aio.dead")


async def test_aio_pika_robust_connection_comes_back(
    member: Member, restart: Callable[[], None]
) -> None:
    """Its consumer of a quorum queue and its exclusive queue with a binding are there again."""
    connection = await aio_pika.connect_robust(url(member), reconnect_interval=0.2)
    try:
        back = asyncio.Event()
        connection.reconnect_callbacks.add(lambda *_: back.set())
        channel = await connection.channel()
        queue = await channel.declare_queue(
            "aio.robust", durable=True, arguments={"x-queue-type": "quorum"}
        )
        own = await channel.declare_queue("aio.own", exclusive=True)
        exchange = await channel.declare_exchange("aio.topic", "topic", durable=True)
        await own.bind(exchange, "a.#")
        taken: asyncio.Queue[bytes] = asyncio.Queue()

        async def take(message: Any) -> None:
            await message.ack()
            # The member may have been killed before the first one's ack was on disk.
            if not message.redelivered:
                taken.put_nowait(message.body)

        await queue.consume(take)
        await own.consume(take)
        await channel.default_exchange.publish(aio_pika.Message(b"before"), "aio.robust")
        assert await asyncio.wait_for(taken.get(), PATIENCE_S) == b"before"
        await asyncio.get_running_loop().run_in_executor(None, restart)
        await asyncio.wait_for(back.wait(), PATIENCE_S)
        await channel.default_exchange.publish(aio_pika.Message(b"after"), "aio.robust")
        assert await asyncio.wait_for(taken.get(), PATIENCE_S) == b"after"
        await exchange.publish(aio_pika.Message(b"topic"), "a.b")
        assert await asyncio.wait_for(taken.get(), PATIENCE_S) == b"topic"
    finally:
        await connection.close()


# ---- kombu and Celery ----------------------------------------------------------------------------


def test_kombu_does_everything(member: Member) -> None:
    """R-PUB, R-DLX, R-QOS, R-ERR-46; py-amqp below it logs in with AMQPLAIN (R-CON-5)."""
    with kombu.Connection(url(member), transport_options={"confirm_publish": True}) as connection:
        queue = kombu.Queue(
            "kombu", kombu.Exchange("kombu", "topic"), "k.#", queue_arguments=quorum("kombu")
        )
        taken: list[Any] = []
        dead = kombu.Queue("kombu.dead", durable=True)(connection.default_channel)
        dead.declare()
        producer = connection.Producer()
        for body in ("x" * 1_000_000, "1", "2"):
            producer.publish(
                {"body": body}, exchange=queue.exchange, routing_key="k.a", declare=[queue]
            )
        consumer = connection.Consumer(
            [queue], callbacks=[lambda body, message: taken.append(message)], prefetch_count=2
        )

        def drained(count: int) -> bool:
            with contextlib.suppress(socket.timeout):
                connection.drain_events(timeout=0.2)
            return len(taken) >= count

        with consumer:
            eventually(lambda: drained(2), "two", PATIENCE_S)
            assert not drained(3)
            assert taken[0].payload == {"body": "x" * 1_000_000}
            taken[0].requeue()
            taken[1].reject()
            eventually(lambda: drained(4), "the rest", PATIENCE_S)
            for message in taken[2:]:
                message.ack()
        letter = eventually(dead.get, "dead letter", PATIENCE_S)
        assert letter.headers["x-death"][0]["exchange"] == "kombu"
        letter.ack()


def test_kombu_ensures_a_publish_over_a_restart(
    member: Member, restart: Callable[[], None]
) -> None:
    """`Producer.publish(retry=True)` connects again and declares again."""
    with kombu.Connection(url(member), transport_options={"confirm_publish": True}) as connection:
        queue = kombu.Queue("kombu.kept", queue_arguments={"x-queue-type": "quorum"})
        producer = connection.Producer()
        policy = {"max_retries": 200, "interval_start": 0.1, "interval_max": 0.2}
        settings = {"routing_key": queue.name, "declare": [queue], "retry": True}
        producer.publish("before", **settings, retry_policy=policy)
        restart()
        producer.publish("after", **settings, retry_policy=policy)
        with connection.SimpleQueue(queue) as inbox:
            bodies = []
            for _ in range(2):
                message = inbox.get(timeout=PATIENCE_S)
                bodies.append(message.payload)
                message.ack()
        assert bodies == ["before", "after"]


TASKS = """
from celery import Celery
app = Celery("tasks", broker="{url}", backend="rpc://")
app.conf.update(task_default_queue="celery.work", worker_prefetch_multiplier=1, task_acks_late=True,
                broker_transport_options={{"confirm_publish": True}}, result_persistent=False)
failed = []

@app.task
def add(x, y):
    return x + y

@app.task(bind=True, max_retries=2)
def unlucky(self):
    if self.request.retries < 1:
        raise self.retry(countdown=0.1)
    return self.request.retries
"""


DELAYED = """
import os
from celery import Celery
from kombu import Queue
app = Celery("delayed", broker="{url}")
app.conf.update(task_default_queue="celery.later", task_default_queue_type="quorum",
                task_queues=[Queue("celery.later", queue_arguments={{"x-queue-type": "quorum"}})],
                task_default_exchange_type="topic", worker_prefetch_multiplier=1,
                broker_transport_options={{"confirm_publish": True}})

@app.task
def note(text):
    with open(os.environ["CELERY_DONE"], "a") as file:
        file.write(text + chr(10))
"""


def test_celery_delays_by_queues_of_the_broker(member: Member, tmp_path: Path) -> None:
    """Native delayed delivery, which quorum queues bring: a queue for each power of two seconds."""
    (tmp_path / "delayed.py").write_text(DELAYED.format(url=url(member)))
    done = tmp_path / "done"
    own = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "CELERY_DONE": str(done)}
    env = os.environ | own
    log = tmp_path / "worker.log"
    command = ["-m", "celery", "-A", "delayed", "worker", "--pool", "solo", "--loglevel", "INFO"]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [sys.executable, *command], env=env, cwd=tmp_path, stdout=output, stderr=output
        )
    try:
        eventually(lambda: b" ready." in log.read_bytes(), "worker", 120)
        program = (
            "import delayed, time\n"
            "delayed.note.apply_async(('later',), countdown=3)\n"
            "delayed.note.apply_async(('now',))\n"
        )
        subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, check=True)
        with member.connect() as connection:
            channel = connection.channel()
            # It waits in the broker, not in the worker's hands.
            counts = [
                channel.queue_declare(f"celery_delayed_{level}", passive=True).method.message_count
                for level in range(3)
            ]
            assert sum(counts) == 1
        eventually(lambda: done.exists() and done.read_text() == "now\nlater\n", "both", 60)
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()


def test_a_celery_worker_does_tasks_and_answers(member: Member, tmp_path: Path) -> None:
    """Task queue, results by rpc://, retries with an ETA, remote control, warm shutdown."""
    (tmp_path / "tasks.py").write_text(TASKS.format(url=url(member)))
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    log = (tmp_path / "worker.log").open("wb")
    command = ["-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "INFO"]
    worker = subprocess.Popen(
        [sys.executable, *command], env=env, cwd=tmp_path, stdout=log, stderr=log
    )
    try:
        eventually(lambda: b" ready." in (tmp_path / "worker.log").read_bytes(), "worker", 120)
        program = (
            "import tasks\n"
            "asked = [tasks.add.delay(i, i) for i in range(20)]\n"
            "assert [a.get(timeout=60) for a in asked] == [2 * i for i in range(20)]\n"
            "assert tasks.unlucky.delay().get(timeout=60) == 1\n"
            "(answer,) = tasks.app.control.ping(timeout=60, limit=1)\n"
            "assert 'pong' in str(answer)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr + (tmp_path / "worker.log").read_text()
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()
        log.close()
