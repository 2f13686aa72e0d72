"""What a queue knows of copies that redrives sent to it: each way out is counted by group."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from brokerd.core import annotations
from brokerd.core.annotations import Annotations, RedrivenFrom
from brokerd.core.queue import enqueue_commands, queue_commands, watched_copies
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue.watched_copies import Became, JobKey, WatchedCopies
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import QueueDriver, consumer, content

KINDS: list[dict[str, Any]] = [{}, {"queue_type": "quorum"}]


def copy(number: int, group: str = "a", job: int = 3, source: int = 9) -> RedrivenFrom:
    return RedrivenFrom(source, job, number, group)


def send(q: QueueDriver, *copies: RedrivenFrom | None) -> None:
    q.publish(*[content() if each is None else content(redriven=each) for each in copies])


def counts(q: QueueDriver, job: int = 3) -> dict[str, list[int]]:
    found = q.machine.query_outcomes(9, job)
    assert found is not None
    return found


def row(**fields: int) -> list[int]:
    return [fields.get(each.name.lower(), 0) for each in Became]


@pytest.mark.parametrize("options", KINDS)
def test_each_way_out_is_counted_by_group(options: dict[str, Any]) -> None:
    q = QueueDriver(**options)
    send(q, copy(5), None, copy(6, "b"), copy(7), copy(8, "b"), None)
    assert counts(q) == {"a": row(waiting=2), "b": row(waiting=2)}
    q.consume(prefetch=3)
    q.settle((0, 2))
    q.discard((2, 3))
    assert counts(q) == {
        "a": row(acknowledged=1, waiting=1),
        "b": row(died_again=1, waiting=1),
    }
    q.requeue((3, 4))
    q.channel_down()
    q.get(no_ack=True)
    q.reply(queue_commands.encode_purge())
    assert counts(q) == {"a": row(acknowledged=2), "b": row(died_again=1, removed=1)}


def test_a_purge_leaves_what_is_in_hand() -> None:
    q = QueueDriver()
    send(q, *map(copy, range(6)))
    q.reply(queue_commands.encode_job_start("order", "ann"))
    q.send(queue_commands.encode_job_take(1, 1, [(4, 5)]))
    q.consume(prefetch=1)
    q.send(queue_commands.encode_purge())
    assert counts(q) == {"a": row(removed=4, waiting=2)}
    q.settle((0, 1))
    q.send(queue_commands.encode_job_settle(1, 1, [(4, 5)], [], None))
    assert counts(q) == {"a": row(acknowledged=1, removed=5)}
    send(q, copy(10), copy(11))
    q.send(queue_commands.encode_purge())
    assert counts(q) == {"a": row(acknowledged=1, removed=6, waiting=1)}


@pytest.mark.parametrize("exchange", [None, "dlx"])
@pytest.mark.parametrize("options", KINDS)
def test_what_expires_or_is_too_much_has_died_again(
    options: dict[str, Any], exchange: str | None
) -> None:
    q = QueueDriver(**options, max_length=2, message_ttl_ms=50, dead_letter_exchange=exchange)
    send(q, *map(copy, range(3)))
    assert counts(q) == {"a": row(died_again=1, waiting=2)}
    q.tick(60)
    assert counts(q) == {"a": row(died_again=3)}


def test_dead_letters_that_wait_to_be_confirmed_are_counted_once() -> None:
    q = QueueDriver(
        queue_type="quorum",
        at_least_once=True,
        overflow="reject-publish",
        dead_letter_exchange="dlx",
        delivery_limit=0,
    )
    send(q, copy(1), copy(2))
    q.consume(prefetch=1)
    q.requeue((0, 1))
    assert counts(q) == {"a": row(died_again=1, waiting=1)}
    q.send(queue_commands.encode_purge())
    assert counts(q) == {"a": row(died_again=1, waiting=1)}


def test_a_second_copy_of_a_message_is_a_duplicate_and_not_followed() -> None:
    q = QueueDriver()
    send(q, copy(5), copy(5), copy(5, job=4))
    q.consume(no_ack=True)
    assert counts(q) == {"a": row(acknowledged=1, duplicate=1)}
    assert counts(q, 4) == {"a": row(acknowledged=1)}
    send(q, copy(5))
    assert counts(q) == {"a": row(acknowledged=1, duplicate=2)}


def test_what_a_queue_refuses_is_not_counted() -> None:
    q = QueueDriver(max_length=2, overflow="reject-publish")
    assert q.accepted(*[content(redriven=copy(n)) for n in range(5)]) == 2
    assert counts(q) == {"a": row(waiting=2)}
    send(QueueDriver(), None)
    assert QueueDriver().machine.query_outcomes(9, 3) is None
    assert q.machine.query_outcomes(8, 3) is None


def test_an_exchange_that_delays_does_not_count_and_an_end_forgets() -> None:
    q = QueueDriver(queue_type="quorum", holds_delayed=True, dead_letter_exchange="x")
    send(q, copy(5))
    assert q.machine.query_outcomes(9, 3) is None
    q = QueueDriver()
    send(q, copy(5))
    assert (q.machine.factory(), q.machine.query_consumers()) == (None, 0)
    q.send(queue_commands.encode_delete(False, False, "admin"))
    assert q.machine.query_outcomes(9, 3) is None


def test_the_same_after_a_snapshot() -> None:
    q = QueueDriver()
    send(q, *[copy(n * 3000, "ab"[n % 2]) for n in range(20)], copy(0))
    q.consume(prefetch=20)
    q.settle((0, 1), (5, 8))
    data = q.machine.snapshot()
    other = QueueMachine(QueueOptions())
    other.restore(data)
    assert other.snapshot() == data
    q.machine = other
    send(q, copy(3000, "b"), copy(1, "c"), copy(7, job=4))
    q.settle((8, 30))
    assert counts(q) == {
        "a": row(acknowledged=8, duplicate=1, waiting=2),
        "b": row(acknowledged=8, duplicate=1, waiting=2),
        "c": row(acknowledged=1),
    }


def test_snapshots_are_the_same_on_machines_of_another_byte_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched = WatchedCopies()
    for number in range(3):
        watched.came(number, copy(number))
    _, data = watched.snapshot()
    monkeypatch.setattr(sys, "byteorder", "big")
    fields, swapped = watched.snapshot()
    assert swapped[:24] == b"".join(data[at : at + 8][::-1] for at in (0, 8, 16))
    other = watched_copies.restored(fields, swapped)
    other.check()
    assert other.counts(JobKey(9, 3)) == {"a": row(waiting=3)}


def test_the_oldest_job_makes_room() -> None:
    watched = WatchedCopies()
    for job in range(watched_copies.JOBS_MAX + 2):
        watched.came(2 * job, copy(1, job=job))
        watched.came(2 * job + 1, copy(2, job=job))
        watched.check()
    assert [watched.counts(JobKey(9, job)) for job in (0, 1)] == [None, None]
    assert watched.counts(JobKey(9, 2)) == {"a": row(waiting=2)}
    watched.left(0, 5, Became.ACKNOWLEDGED)
    watched.check()
    assert watched.counts(JobKey(9, 2)) == {"a": row(waiting=1, acknowledged=1)}


def test_groups_beyond_the_bound_are_counted_together() -> None:
    watched = WatchedCopies()
    for number in range(watched_copies.GROUPS_MAX + 5):
        watched.came(number, copy(number, str(number)))
    watched.check()
    found = watched.counts(JobKey(9, 3))
    assert found is not None
    assert len(found) == watched_copies.GROUPS_MAX
    assert found[watched_copies.OTHERS] == row(waiting=6)


def test_copies_beyond_the_bounds_are_not_counted() -> None:
    watched = WatchedCopies(alive_max=3)
    for number in range(5):
        watched.came(number, copy(number))
    assert watched.counts(JobKey(9, 3)) == {"a": row(waiting=3)}
    watched.left(0, 5, Became.ACKNOWLEDGED)
    watched.came(6, copy(6))
    assert watched.counts(JobKey(9, 3)) == {"a": row(waiting=1, acknowledged=3)}
    watched = WatchedCopies()
    pages = watched_copies.PAGES_MAX
    for number in range(pages + 2):
        watched.came(number, copy(number * watched_copies.PAGE_BITS))
    watched.check()
    assert watched.counts(JobKey(9, 3)) == {"a": row(waiting=pages)}


def test_rows_of_copies_that_left_are_made_use_of() -> None:
    watched = WatchedCopies()
    for number in range(5_000):
        watched.came(number, copy(number))
    for number in range(0, 5_000, 2):
        watched.left(number, number + 1, Became.ACKNOWLEDGED)
    watched.left(0, 100, Became.DIED_AGAIN)
    watched.check()
    _, data = watched.snapshot()
    assert watched.counts(JobKey(9, 3)) == {
        "a": row(acknowledged=2_500, died_again=50, waiting=2_450)
    }
    assert len(data) < 2_450 * 10 + 3 * 600


@pytest.mark.parametrize(
    "wrong",
    [
        (-1, 1, 1, "a"),
        (1, "1", 1, "a"),
        (1, 1, 1 << 64, "a"),
        (1, 1, 1, 5),
        (1, 1, 1, "x" * 65),
        (1, 1, 1),
    ],
)
def test_a_copy_that_names_no_message_is_refused(wrong: Any) -> None:
    q = QueueDriver()
    raw = annotations.encode(Annotations(redriven=wrong))
    batch = [(("ex", "rk"), b"\x00\x00", b"x", raw)]
    reply = q.reply(enqueue_commands.encode_enqueue("n1", 7, 1, 1, batch))
    assert reply["refused"] == 400
    assert q.ready == 0


def test_annotations_of_a_copy_are_the_same_after_encoding() -> None:
    known = Annotations(ttl_ms=5, redriven=copy(7))
    assert annotations.decode(annotations.encode(known)) == known
    q = QueueDriver()
    send(q, copy(1), copy(2))
    q.consume("c")
    assert len(q.machine.query_resuming_consumers()) == 1
    q.settle((0, 2), who=consumer("c"))
    assert counts(q) == {"a": row(acknowledged=2)}
