"""Celery with a quorum queue: countdowns and retries, which wait in the broker (native delays).

The application of worker and sender: the worker writes a line for each try of a task, with how
early it was.  CELERY_URL, CELERY_DONE: the file of lines.
"""

import os
import time

from celery import Celery, Task
from kombu import Queue

app = Celery("celery_later", broker=os.environ["CELERY_URL"])
app.conf.update(
    task_default_queue="celery.counted",
    task_default_queue_type="quorum",
    task_queues=[Queue("celery.counted", queue_arguments={"x-queue-type": "quorum"})],
    task_default_exchange_type="topic",
    worker_prefetch_multiplier=1,
    task_acks_late=True,
    broker_transport_options={"confirm_publish": True},
)

COUNT = 30
RETRY_S = 1


def tries_of(number: int) -> int:
    return 1 + number % 3


@app.task(bind=True, max_retries=5)
def work(self: Task, number: int, due: float) -> None:
    tries = self.request.retries + 1
    early_ms = (due - time.time()) * 1000
    with open(os.environ["CELERY_DONE"], "a") as file:
        file.write(f"{number} {tries} {early_ms:.0f}\n")
    if tries < tries_of(number):
        again = (number, time.time() + RETRY_S)
        raise self.retry(args=again, countdown=RETRY_S)


def send() -> None:
    for number in range(COUNT):
        countdown = number % 4
        work.apply_async((number, time.time() + countdown), countdown=countdown or None)


if __name__ == "__main__":
    send()
