"""Celery: tasks sent to a worker that runs beside this process, each until it was done.

Then its remote control is asked, and its events are listened to.
Argument: the longest time from the sending of a task to the worker's having done it.
"""

import os
import sys
import threading
import time
from pathlib import Path

import celery_tasks
import steady

CONTROL_TIMEOUT_S = 5.0
SENT_RETRY = {"max_retries": 100, "interval_start": 0.1, "interval_step": 0.1, "interval_max": 0.5}
done_file = Path(os.environ["CELERY_DONE"])


def _events() -> list[dict]:
    """Listen as `celery events` does, until one of a task has come."""
    found: list[dict] = []
    with celery_tasks.app.connection() as connection:
        receiver = celery_tasks.app.events.Receiver(
            connection, handlers={"task-succeeded": found.append}
        )
        sender = threading.Timer(1.0, lambda: celery_tasks.add.delay(-1, 0))
        sender.start()
        for _ in receiver.itercapture(limit=20, timeout=CONTROL_TIMEOUT_S, wakeup=True):
            if found:
                break
        sender.join()
    return found


def main() -> None:
    bound_s = float(sys.argv[1])
    sending = threading.local()

    def call(number: int) -> None:
        """Send a task once; it must be done, however long that takes.

        Without a result: the durable queue of rpc:// refuses while its home is down, as with
        RabbitMQ, until a result was waited for in it.
        """
        if getattr(sending, "number", None) != number:
            celery_tasks.add.apply_async(
                (number, 1), ignore_result=True, retry=True, retry_policy=SENT_RETRY
            )
            sending.number = number
        deadline = time.monotonic() + bound_s
        while f"\n{number}\n" not in f"\n{done_file.read_text()}":
            assert time.monotonic() < deadline, f"task {number} is lost"
            threading.Event().wait(0.02)

    done_file.touch()
    steady.Steady(call, bound_s).run()
    result = celery_tasks.add.delay(1_000_000, 1)
    assert result.get(timeout=CONTROL_TIMEOUT_S) == 1_000_001
    # The queue of the worker's remote control was the dead member's.
    pongs = celery_tasks.app.control.ping(timeout=CONTROL_TIMEOUT_S, limit=1)
    assert "pong" in str(pongs), pongs
    assert _events(), "no event of a task"
    steady.done()


if __name__ == "__main__":
    main()
