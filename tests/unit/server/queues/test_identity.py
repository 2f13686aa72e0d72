"""Numbers that are unique within a life of the member, and names that are in the cluster."""

from __future__ import annotations

from brokerd.server.queues.identity import Process


def test_numbers_rise_and_connections_are_named_with_the_life() -> None:
    process = Process("n0", 7)
    assert [process.next_uid(), process.next_uid()] == [1, 2]
    named = process.connection_id(2)
    assert (named.node, named.incarnation, named.connection) == ("n0", 7, 2)
