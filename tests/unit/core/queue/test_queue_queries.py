"""What others ask of a queue's machine, instead of reading its insides."""

from __future__ import annotations

from brokerd.core.queue.queue_commands import encode_cancel
from tests.unit.core.queue_driver import QueueDriver, consumer

HERE, THERE = consumer("here", node="n1"), consumer("there", node="n2")


def test_consumers_that_lose_nothing_are_not_asked_to_resume() -> None:
    """Automatic acknowledgement settles when handing out: nothing could be sent again."""
    q = QueueDriver(queue_type="quorum")
    q.consume("here", prefetch=10)
    q.consume("there", prefetch=10, no_ack=True, node="n2")
    assert q.machine.query_resuming_consumers() == [HERE]
    assert q.machine.query_consumer_nodes() == {"n1", "n2"}


def test_a_cancelled_consumer_that_holds_messages_is_a_client_and_gets_no_more() -> None:
    q = QueueDriver(queue_type="quorum")
    q.fill(1)
    q.consume("here", prefetch=10)
    assert q.machine.query_is_registered(HERE)
    q.send(encode_cancel(HERE))
    assert not q.machine.query_is_registered(HERE)
    assert not q.machine.query_is_registered(THERE)
    assert "n1" in q.machine.query_client_nodes()
