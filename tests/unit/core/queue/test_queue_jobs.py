"""A job on a queue's messages: what it takes by number, what it holds, and how that comes back."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.core.message import Range
from brokerd.core.queue import effects, queue_commands, queue_jobs, ready_spans
from brokerd.core.queue.queue_commands import Kind, ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.unit.core.queue_driver import (
    QueueDriver,
    check_total,
    consumer,
    content,
    delivered,
    only,
)

QUORUM: dict[str, Any] = {"queue_type": "quorum"}
KINDS: list[dict[str, Any]] = [{}, QUORUM, QUORUM | {"delivery_limit": 5}]


def start(q: QueueDriver) -> int:
    return int(q.reply(queue_commands.encode_job_start("order", "ann"))["id"])


def take(
    q: QueueDriver, *ranges: Range, job: int = 1, term: int = 1, waiting: bool = False
) -> list[list[int]]:
    command = queue_commands.encode_job_take(job, term, ranges, waiting=waiting)
    found: list[list[int]] = q.reply(command)["taken"]
    return found


def settle(
    q: QueueDriver,
    gone: list[Range],
    staying: list[Range] | None = None,
    *,
    job: int = 1,
    term: int = 1,
    progress: str | None = None,
) -> None:
    q.send(queue_commands.encode_job_settle(job, term, gone, staying or [], progress))


def end(q: QueueDriver, job: int = 1, term: int = 1, receipt: str = "receipt") -> None:
    q.send(queue_commands.encode_job_end(job, term, receipt))


def handed_out(q: QueueDriver) -> list[int]:
    """Return all ready messages in the order in which a consumer gets them."""
    return delivered(q.consume("all", channel=9)).get("all", [])


def restored(q: QueueDriver) -> None:
    data = q.machine.snapshot()
    q.machine = QueueMachine(QueueOptions())
    q.machine.restore(data)
    q.machine.check_invariants()
    assert q.machine.snapshot() == data


@pytest.mark.parametrize("options", KINDS)
def test_a_job_takes_by_number_and_what_it_sent_on_is_gone(options: dict[str, Any]) -> None:
    q = QueueDriver(**options)
    q.fill(6)
    assert start(q) == 1
    assert take(q, (1, 2), (4, 9)) == [[1, 2], [4, 6]]
    view = q.machine.overview()
    assert (view["ready"], view["unacked"], view["held_by_job"]) == (3, 3, 3)
    settle(q, [(1, 2), (4, 6)], progress="half")
    assert (q.unacked, q.count("job_out")) == (0, 3)
    job = q.machine.query_job()
    assert job is not None
    assert (job.gone, job.progress, job.held.count) == (3, "half", 0)
    assert handed_out(q) == [0, 2, 3]


@pytest.mark.parametrize("options", KINDS)
def test_what_stays_is_where_it_was_and_counts_as_no_delivery(options: dict[str, Any]) -> None:
    q = QueueDriver(**options)
    q.fill(6)
    start(q)
    take(q, (0, 1), (2, 4), (5, 6))
    settle(q, [], [(2, 4), (0, 1)])
    settle(q, [], [(5, 6)])
    outcome = q.consume("all")
    assert delivered(outcome) == {"all": [0, 1, 2, 3, 4, 5]}
    for run in only(outcome, effects.Deliver).runs:
        assert (run.acquired_count, run.delivery_count) == (0, 0)
    assert (q.count("requeue"), q.count("redlv")) == (0, 0)


def test_what_came_back_before_is_taken_too_and_stands_in_front_again() -> None:
    """R-QQ-14: with a limit, returns are served first."""
    q = QueueDriver(**QUORUM, delivery_limit=5)
    q.fill(4)
    q.consume(prefetch=2)
    q.requeue((0, 2))
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 2))
    start(q)
    assert take(q, (0, 3)) == [[0, 3]]
    settle(q, [], [(0, 3)])
    assert handed_out(q) == [0, 1, 2, 3]


def test_what_went_to_the_back_is_found_there() -> None:
    """R-DL-7: without a limit it stands behind the others, out of the order of numbers."""
    q = QueueDriver(**QUORUM)
    q.fill(5)
    q.consume(prefetch=2)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 2))
    start(q)
    assert take(q, (1, 2), (3, 4)) == [[1, 2], [3, 4]]
    assert take(q, (0, 9)) == [[0, 1], [2, 3], [4, 5]]
    settle(q, [(0, 5)])
    assert (q.ready, q.unacked, q.count("job_out")) == (0, 0, 5)


def test_what_came_back_to_a_classic_queue_is_taken_where_it_stands() -> None:
    q = QueueDriver()
    q.fill(4)
    q.consume(prefetch=3)
    q.channel_down()
    start(q)
    assert take(q, (1, 2), (3, 4)) == [[1, 2], [3, 4]]
    settle(q, [], [(1, 2), (3, 4)])
    assert handed_out(q) == [0, 1, 2, 3]


@pytest.mark.parametrize("wanted", [[(0, 1)], [(7, 8)], [(3, 12)], [(1, 2), (6, 7), (19, 20)]])
def test_packed_messages_are_taken_and_put_back_between_the_others(
    wanted: list[Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_spans, "BLOCK_SPANS", 4)
    monkeypatch.setattr(ready_spans, "UNPACKED_MIN", 2)
    q = QueueDriver(**QUORUM)
    for _ in range(10):
        q.fill(2)
    start(q)
    assert take(q, *wanted) == [list(pair) for pair in wanted]
    q.fill(2)
    restored(q)
    settle(q, [], wanted)
    restored(q)
    assert handed_out(q) == list(range(22))


def test_a_gap_in_what_was_packed_meanwhile_is_filled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ready_spans, "BLOCK_SPANS", 4)
    monkeypatch.setattr(ready_spans, "UNPACKED_MIN", 2)
    q = QueueDriver(**QUORUM)
    for _ in range(4):
        q.fill(1)
    start(q)
    take(q, (2, 4))
    for _ in range(9):
        q.fill(1)
    assert list(q.machine.store.fresh(0).blocks()), "nothing was packed"
    settle(q, [], [(3, 4)])
    settle(q, [], [(2, 3)])
    assert handed_out(q) == list(range(13))


@pytest.mark.parametrize("wanted", [[(0, 1), (46, 47)], [(0, 40)], [(0, 48)], [(8, 9), (47, 48)]])
def test_what_is_far_apart_is_taken_at_once(
    wanted: list[Range], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ready_spans, "BLOCK_SPANS", 3)
    monkeypatch.setattr(ready_spans, "UNPACKED_MIN", 4)
    q = QueueDriver(**QUORUM)
    for _ in range(24):
        q.fill(2)
    start(q)
    assert take(q, *wanted) == [list(pair) for pair in wanted]
    restored(q)
    settle(q, [], wanted)
    assert handed_out(q) == list(range(48))


@pytest.mark.parametrize("size", [1, 7, 60])
@pytest.mark.parametrize("step", [1, 2])
def test_wherever_it_stands_it_is_taken_and_finds_its_place(
    size: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Head, blocks and tail: more are packed meanwhile, and what stands before them goes."""
    monkeypatch.setattr(ready_spans, "BLOCK_SPANS", 3)
    monkeypatch.setattr(ready_spans, "UNPACKED_MIN", 4)
    for low in range(0, 48, 5 * step):
        q = QueueDriver(**QUORUM)
        for _ in range(24):
            q.fill(2)
        start(q)
        high = min(48, low + size)
        wanted = [(number, number + step) for number in range(low, high, 2 * step)]
        wanted = [(first, min(end, 48)) for first, end in wanted]
        assert take(q, *wanted) == [list(pair) for pair in wanted]
        restored(q)
        for _ in range(8):
            q.fill(1)
        q.consume("first", prefetch=5)
        spans = [span for row in q.machine.consumers.rows() for span in row.held]
        held = [number for span in spans for number in range(span.first, span.end)]
        settle(q, [], wanted[1::2])
        settle(q, [], wanted[::2])
        restored(q)
        found = handed_out(q)
        later = [number for number in range(56) if number not in held]
        assert found == later


def test_what_is_at_the_back_is_found_by_its_number_alone() -> None:
    """R-DL-7: it stands behind higher ones."""
    q = QueueDriver(**QUORUM, message_ttl_ms=1_000)
    q.fill(5)
    q.consume(prefetch=2)
    q.send(queue_commands.encode_cancel(consumer()))
    q.requeue((0, 2))
    start(q)
    assert take(q, (0, 1)) == [[0, 1]]
    assert take(q, (0, 1)) == []
    settle(q, [], [(0, 1)])
    restored(q)
    assert sorted(handed_out(q)) == [0, 1, 2, 3, 4]
    q.tick(2_000)


def test_all_priorities_are_searched() -> None:
    q = QueueDriver(max_priority=3)
    q.publish(*(content(priority=priority) for priority in (0, 3, 1, 3)))
    start(q)
    assert take(q, (0, 2), (3, 4)) == [[0, 2], [3, 4]]
    settle(q, [(3, 4)], [(0, 2)])
    assert handed_out(q) == [1, 2, 0]


def test_what_came_after_its_start_is_not_the_jobs() -> None:
    q = QueueDriver()
    q.fill(2)
    start(q)
    q.fill(2)
    assert take(q, (0, 9)) == [[0, 2]]


def test_what_a_consumer_holds_is_passed_over() -> None:
    q = QueueDriver()
    q.fill(3)
    q.consume(prefetch=1)
    start(q)
    assert take(q, (0, 3)) == [[1, 3]]
    q.settle((0, 1))
    assert handed_out(q) == []


def test_one_job_at_a_time_and_their_numbers_rise() -> None:
    q = QueueDriver()
    assert start(q) == 1
    refused = q.reply(queue_commands.encode_job_start("order", "bob"))
    assert refused == {
        "refused": 406,
        "text": "job 1 of user 'ann' is under way on this queue",
    }
    end(q)
    assert start(q) == 2
    assert q.machine.query_receipts() == ((1, "receipt"),)


def test_the_last_receipts_are_kept() -> None:
    q = QueueDriver()
    for number in range(1, 7):
        assert start(q) == number
        end(q, number, receipt=f"of {number}")
    assert [receipt.id for receipt in q.machine.query_receipts()] == [3, 4, 5, 6]
    restored(q)
    assert q.machine.query_receipts()[-1] == (6, "of 6")
    assert start(q) == 7


def test_a_stopped_job_takes_nothing_more_and_settles_what_it_has() -> None:
    q = QueueDriver()
    assert q.reply(queue_commands.encode_job_stop("bob"))["refused"] == 404
    q.fill(2)
    start(q)
    take(q, (0, 1))
    outcome = q.send(queue_commands.encode_job_stop("bob"))
    assert outcome.effects == [effects.JobUnderWay()]
    # Again: who was first is remembered.
    assert q.send(queue_commands.encode_job_stop("eve")).effects == []
    job = q.machine.query_job()
    assert job is not None
    assert job.stopped_by == "bob"
    assert take(q, (1, 2)) == []
    settle(q, [(0, 1)])
    end(q)
    assert (q.ready, q.unacked, q.count("job_out")) == (1, 0, 1)


def test_what_a_job_holds_at_its_end_is_ready_again() -> None:
    q = QueueDriver()
    q.fill(3)
    start(q)
    take(q, (0, 3))
    end(q)
    assert handed_out(q) == [0, 1, 2]


def test_a_purge_a_policy_and_a_new_leader_leave_what_a_job_holds() -> None:
    q = QueueDriver(**QUORUM)
    q.fill(4)
    start(q)
    take(q, (0, 2))
    assert q.reply(queue_commands.encode_purge()) == {"messages": 2}
    q.configure(**QUORUM, max_length=1, message_ttl_ms=1, dead_letter_exchange="dx")
    q.tick(1_000)
    q.term = 2
    assert effects.JobUnderWay() in q.machine.became_leader(q.log[-1][0])
    restored(q)
    assert q.machine.overview()["held_by_job"] == 2
    settle(q, [(0, 2)], term=2)
    assert q.count("job_out") == 2


def test_an_earlier_leaders_worker_is_heard_for_its_confirmations_alone() -> None:
    q = QueueDriver()
    q.fill(4)
    start(q)
    take(q, (0, 3))
    q.term = 2
    assert take(q, (3, 4), term=1) == []
    settle(q, [(0, 1)], [(1, 3)], term=1, progress="old")
    end(q, term=1)
    job = q.machine.query_job()
    assert job is not None
    assert (job.gone, job.held.count, job.progress) == (1, 2, "")


def test_an_earlier_jobs_worker_is_not_heard() -> None:
    q = QueueDriver()
    q.fill(2)
    start(q)
    end(q)
    start(q)
    take(q, (0, 2), job=2)
    assert take(q, (0, 2), job=1) == []
    settle(q, [(0, 2)], job=1)
    end(q, job=1)
    assert q.machine.overview()["held_by_job"] == 2


def test_without_a_job_its_commands_do_nothing() -> None:
    q = QueueDriver()
    q.fill(1)
    assert take(q, (0, 1)) == []
    settle(q, [(0, 1)])
    end(q)
    assert q.ready == 1


def test_what_a_job_holds_takes_room() -> None:
    """R-LEN-1: it may come back."""
    q = QueueDriver(max_length=3, overflow="reject-publish")
    q.fill(3)
    start(q)
    take(q, (0, 2))
    assert q.accepted(b"x") == 0
    settle(q, [(0, 2)])
    assert q.accepted(b"x") == 1
    drops = QueueDriver(max_length=3)
    drops.fill(3)
    start(drops)
    take(drops, (0, 2))
    drops.fill(1)
    assert (drops.ready, drops.count("maxlen_drop")) == (1, 1)


@pytest.mark.plain
def test_it_holds_no_more_than_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_jobs, "HELD_MAX", 3)
    q = QueueDriver()
    q.fill(6)
    start(q)
    assert take(q, (0, 2), (3, 6)) == [[0, 2], [3, 4]]
    assert take(q, (2, 3)) == []


def test_a_queue_in_which_a_job_holds_something_is_not_empty() -> None:
    q = QueueDriver()
    q.fill(1)
    start(q)
    take(q, (0, 1))
    refused = q.reply(queue_commands.encode_delete(True, False, "client"))
    assert refused["text"] == "not empty"
    changed = q.reply(queue_commands.encode_update_options(QueueOptions(**QUORUM)))
    assert changed == {"ok": True}
    back = q.reply(queue_commands.encode_update_options(QueueOptions(queue_type="classic")))
    assert back["refused"] == 406


@pytest.mark.parametrize("scope", ["unacked", "all"])
def test_the_end_of_a_queue_is_the_end_of_its_job(scope: str) -> None:
    """R-MQ-2: what is not known to be anywhere else goes to the alternate exchange, too."""
    q = QueueDriver(alternate_exchange="alt", orphan_scope=scope)
    q.fill(3)
    start(q)
    take(q, (1, 2))
    outcome = q.send(queue_commands.encode_delete(False, False, "client"))
    rerouted = only(outcome, effects.Reroute)
    assert sum(run.length for run in rerouted.runs) == (1 if scope == "unacked" else 3)
    assert (q.count("orphaned"), q.count("purged")) == (1, 2)
    assert q.machine.query_job() is None
    assert take(q, (0, 1)) == []
    for command in (queue_commands.encode_job_start("", "u"), queue_commands.encode_job_stop("u")):
        assert q.reply(command)["refused"] == 404


def test_what_is_delayed_or_held_below_a_number_is_told() -> None:
    q = QueueDriver(**QUORUM, delayed_retry="all", delayed_retry_min_ms=9, delayed_retry_max_ms=9)
    q.fill(4)
    q.consume(prefetch=3)
    q.requeue((0, 1), cause=ReturnCause.REJECT)
    assert q.machine.query_not_ready(4) == (3, 1)
    assert q.machine.query_not_ready(2) == (1, 1)


def test_a_queue_with_a_job_or_a_receipt_is_not_folded() -> None:
    q = QueueDriver()
    q.fill(1)
    assert q.machine.factory() is not None
    start(q)
    assert q.machine.factory() is None
    end(q)
    assert q.machine.factory() is None


def test_a_snapshot_of_before_there_were_jobs_is_read() -> None:
    q = QueueDriver()
    q.fill(2)
    data = q.machine.snapshot()
    for field in (b',"job":null', b',"last_job_id":0', b',"receipts":[]', b',"job_out":0'):
        assert field in data
    text, rest = data[5 : 5 + int.from_bytes(data[1:5], "little")], data[5:]
    rest = rest[len(text) :]
    for field in (b',"job":null', b',"last_job_id":0', b',"receipts":[]', b',"job_out":0'):
        text = text.replace(field, b"")
    old = data[:1] + len(text).to_bytes(4, "little") + text + rest
    machine = QueueMachine(QueueOptions())
    machine.restore(old)
    machine.check_invariants()
    assert machine.query_job() is None
    assert machine.snapshot() == data


def test_texts_have_bounds() -> None:
    q = QueueDriver()
    long = "x" * (queue_jobs.PROGRESS_CHARACTERS_MAX + 1)
    for command in (
        queue_commands.encode_job_start("x" * (queue_jobs.ORDER_CHARACTERS_MAX + 1), "u"),
        queue_commands.encode_job_settle(1, 1, [], [], long),
        queue_commands.encode_job_end(1, 1, long),
    ):
        assert q.reply(command)["refused"] == 400


@pytest.mark.parametrize(
    "command",
    [
        queue_commands.encode_job_start("o", "u"),
        queue_commands.encode_job_take(1, 1, [(0, 1)]),
        queue_commands.encode_job_take(1, 1, [(0, 1)], waiting=True),
        queue_commands.encode_job_settle(1, 1, [(0, 1)], [], "p"),
        queue_commands.encode_job_stop("u"),
        queue_commands.encode_job_end(1, 1, "r"),
    ],
)
def test_a_damaged_command_is_answered(command: bytes) -> None:
    check_total(command)
    assert command[1] >= Kind.JOB_START


def test_a_queue_does_not_expire_while_it_has_a_job() -> None:
    q = QueueDriver(queue_type="quorum", expires_ms=100)
    q.fill(2)
    start(q)
    take(q, (0, 1))
    q.tick(after_ms=1_000)
    end(q)
    q.tick(after_ms=99)
    assert q.machine.overview()["deleted"] is None
    q.tick(after_ms=1)
    assert q.machine.overview()["deleted"] == "expired"
