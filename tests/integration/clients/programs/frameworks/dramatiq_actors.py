"""dramatiq: a worker and the application that sends to it, in one process.

Its queues (work, delays, dead messages) are durable ones: quorum queues by the default type of the
virtual host, as its users have it in clusters.
Arguments: the ports in the order in which they are tried, then the longest time of a call.
"""

import sys
import threading

import dramatiq
import steady
from dramatiq.brokers.rabbitmq import RabbitmqBroker

DONE_S = 5.0
done: dict[int, threading.Event] = {}


def main() -> None:
    *ports, bound_s = sys.argv[1:]
    urls = [f"amqp://guest:guest@127.0.0.1:{port}/quorum" for port in ports]
    broker = RabbitmqBroker(url=urls, confirm_delivery=True)
    dramatiq.set_broker(broker)

    @dramatiq.actor(queue_name="dramatiq", max_retries=20, min_backoff=100, max_backoff=500)
    def work(number: int) -> None:
        done[number].set()

    worker = dramatiq.Worker(broker, worker_threads=4)
    worker.start()

    def call(number: int) -> None:
        """Send a message once; it must be worked at, however long that takes."""
        event = done.setdefault(number, threading.Event())
        work.send(number)
        assert event.wait(float(bound_s)), "a message that was sent is lost"

    steady.Steady(call, float(bound_s)).run()
    # A message with a delay takes the way over another queue.
    event = done[-1] = threading.Event()
    work.send_with_options(args=(-1,), delay=200)
    assert event.wait(DONE_S), "a delayed message is lost"
    steady.done()


if __name__ == "__main__":
    main()
