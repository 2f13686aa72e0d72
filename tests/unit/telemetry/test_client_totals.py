"""What a member's clients have done since its start."""

from __future__ import annotations

from brokerd.telemetry.client_totals import SIZE_BOUNDS, ClientTotals, QueueTypeTotals


def published(totals: ClientTotals, *sizes: int, queues: int = 1, mandatory: bool = False) -> None:
    totals.published(sizes, sum(sizes), queues, mandatory)


def test_each_message_has_one_outcome() -> None:
    totals = ClientTotals()
    published(totals, 1, 2, queues=3)
    published(totals, 1, queues=0)
    published(totals, 1, 1, 1, 1, queues=0, mandatory=True)
    assert (totals.routed, totals.copies) == (2, 6)
    assert (totals.unroutable_dropped, totals.unroutable_returned) == (1, 4)
    assert totals.received == 7
    assert totals.received_bytes == 8


def test_sizes_at_a_bound_are_below_it_and_a_run_of_unlike_ones_is_looked_at_one_by_one() -> None:
    totals = ClientTotals()
    published(totals, *SIZE_BOUNDS)
    published(totals, *(bound + 1 for bound in SIZE_BOUNDS))
    assert totals.sizes == [1, *[2] * (len(SIZE_BOUNDS) - 1), 1]
    published(totals, 101, 101, 101)
    published(totals, 0)
    assert totals.sizes[:3] == [2, 5, 2]
    assert sum(totals.sizes) == totals.received


def test_deliveries_by_their_kind() -> None:
    totals = QueueTypeTotals()
    totals.delivered(5, 2, no_ack=False)
    totals.delivered(4, 0, no_ack=True)
    totals.got(True, no_ack=False)
    totals.got(False, no_ack=True)
    assert (totals.consume_manual_ack, totals.consume_auto_ack) == (5, 4)
    assert (totals.get_manual_ack, totals.get_auto_ack) == (1, 1)
    assert (totals.redelivered, totals.delivered_all) == (3, 11)


def test_queue_types_are_apart() -> None:
    totals = ClientTotals()
    totals.of("quorum").acknowledged += 1
    assert (totals.quorum.acknowledged, totals.of("classic").acknowledged) == (1, 0)
