"""What is refused is counted, and said in words that name the queue."""

from __future__ import annotations

import pytest

from brokerd.server.messages.refused_publishes import RefusedPublishes


def test_each_is_counted_and_each_reason_said_once(caplog: pytest.LogCaptureFixture) -> None:
    reasons = {1: "home member n1 of queue 'a' in vhost '/' is down"}
    refused = RefusedPublishes(lambda uid: reasons.get(uid, ""))
    refused.count(1, 3)
    refused.count(1, 4)
    refused.count(2, 5)
    assert refused.total == 12
    assert caplog.messages == [f"published messages are refused: {reasons[1]}"]
