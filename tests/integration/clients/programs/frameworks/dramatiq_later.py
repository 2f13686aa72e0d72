"""dramatiq: messages with delays and retries with back-off, over its queues of delays (`.DQ`).

A worker takes what is delayed at once, holds it unacknowledged until it is due, and publishes it
again then.  Each message is worked at once for each of its tries, and none before its time.
Arguments: port, virtual host.
"""

import sys
import threading
import time
from collections import Counter

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

COUNT = 60
PATIENCE_S = 40.0
#: dramatiq counts in whole milliseconds.
GRAIN_MS = 1.0


def tries_of(number: int) -> int:
    return 1 + number % 3


def main() -> None:
    port, vhost = sys.argv[1:]
    broker = RabbitmqBroker(
        url=f"amqp://guest:guest@127.0.0.1:{port}/{vhost}", confirm_delivery=True
    )
    dramatiq.set_broker(broker)
    lock, all_done = threading.Lock(), threading.Event()
    due: dict[int, float] = {}
    tries: Counter[int] = Counter()
    wrong: list[str] = []

    @dramatiq.actor(queue_name="later", max_retries=5, min_backoff=100, max_backoff=200)
    def work(number: int) -> None:
        with lock:
            early_ms = due[number] - time.time() * 1000
            if early_ms > GRAIN_MS:
                wrong.append(f"{number} is {early_ms} ms early")
            tries[number] += 1
            if sum(tries.values()) >= sum(map(tries_of, range(COUNT))):
                all_done.set()
            if tries[number] < tries_of(number):
                raise ValueError("not yet")

    for number in range(COUNT):
        delay = (0, 100, 300, 700)[number % 4]
        due[number] = time.time() * 1000 + delay
        work.send_with_options(args=(number,), delay=delay or None)
    worker = dramatiq.Worker(broker, worker_threads=4)
    worker.start()
    assert all_done.wait(PATIENCE_S), f"some are lost: {tries}"
    broker.join("later")
    worker.stop()
    assert not wrong, wrong
    assert all(tries[number] == tries_of(number) for number in range(COUNT)), tries
    print("done", flush=True)


if __name__ == "__main__":
    main()
