"""Celery: the application of a worker and of those who send tasks to it.

Its task queue is a quorum queue; the worker's own queues (remote control, events) and the queue of
results are what Celery makes them.  CELERY_PORTS: the members' ports in the order of trying.
"""

import os

from celery import Celery
from kombu import Queue

ports = os.environ["CELERY_PORTS"].split(",")
app = Celery(
    "celery_tasks",
    broker=";".join(f"amqp://guest:guest@127.0.0.1:{port}//" for port in ports),
    backend="rpc://",
)
app.conf.update(
    task_default_queue="celery.work",
    task_default_queue_type="quorum",
    task_queues=[Queue("celery.work", queue_arguments={"x-queue-type": "quorum"})],
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    broker_transport_options={"confirm_publish": True},
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=2,
)


@app.task
def add(x: int, y: int) -> int:
    with open(os.environ["CELERY_DONE"], "a") as file:
        file.write(f"{x}\n")
    return x + y
