"""channel.flow towards publishers (R-OLD-1..3, O-17)."""

from __future__ import annotations

import pytest

from brokerd.core.channel_flow import (
    FLOW_OK_MS,
    Action,
    Broken,
    ChannelFlows,
    Hold,
    Late,
    Tell,
)


def stopped(is_strict: bool, *, has_answered: bool = True) -> ChannelFlows:
    """Return a connection whose channel 1 was told to stop at 0, and has answered at 1."""
    flows = ChannelFlows(is_strict)
    assert flows.alarm(True, [1], 0) == [Tell(1, False)]
    if has_answered:
        assert flows.answered(1, False, 1) == []
    return flows


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_channel_stops_and_goes_on(is_strict: bool) -> None:
    """R-OLD-1: each change is told once, and the next one after its answer."""
    flows = stopped(is_strict)
    assert flows.has_stopped
    assert flows.alarm(True, [1], 2) == []
    assert flows.alarm(False, [], 3) == [Tell(1, True)]
    assert not flows.has_stopped
    assert flows.answered(1, True, 4) == []
    assert flows.next_deadline_ms is None
    assert flows.alarm(False, [], 5) == []


def test_an_alarm_that_flickers_waits_for_the_answers() -> None:
    """R-OLD-1: never two channel.flow of a channel without an answer between them."""
    flows = stopped(True, has_answered=False)
    assert flows.alarm(False, [], 1) == []
    assert flows.answered(1, False, 2) == [Tell(1, True)]
    assert flows.alarm(True, [1], 3) == []
    # It may publish: it was told so.
    assert flows.published(1, 4) == []
    assert flows.answered(1, True, 5) == [Tell(1, False)]
    assert flows.answered(1, False, 6) == []


def test_a_channel_that_begins_to_publish_is_told_then() -> None:
    """R-OLD-3: pure consumers hear nothing."""
    flows = ChannelFlows(True)
    assert flows.alarm(True, [], 0) == []
    assert not flows.has_stopped
    assert flows.published(7, 1) == [Tell(7, False)]
    # These were on their way.
    assert flows.published(7, 2) == []


def test_who_publishes_after_its_answer_is_closed() -> None:
    """R-OLD-1: 1.8.0, 503."""
    text = "basic.publish received after channel.flow_ok{active=false}"
    assert stopped(True).published(1, 2) == [Broken(text, (60, 40))]


def test_who_does_not_answer_is_closed() -> None:
    """R-OLD-1: after ten seconds, once."""
    flows = stopped(True, has_answered=False)
    assert flows.next_deadline_ms == FLOW_OK_MS
    assert flows.tick(FLOW_OK_MS - 1) == []
    late = Late(1, "timeout waiting for channel.flow_ok{active=false}")
    assert flows.tick(FLOW_OK_MS) == [late]
    assert flows.tick(FLOW_OK_MS) == []


def test_nobody_is_late_while_we_do_not_read() -> None:
    flows = stopped(True, has_answered=False)
    flows.postpone(FLOW_OK_MS)
    assert flows.tick(FLOW_OK_MS) == []
    assert flows.next_deadline_ms == 2 * FLOW_OK_MS


@pytest.mark.parametrize(("has_answered", "began_ms"), [(True, 1), (False, 0)])
def test_where_it_is_no_error_the_connection_waits(has_answered: bool, began_ms: int) -> None:
    """O-17: ten seconds after the answer, or after the question, for who does not stop."""
    flows = stopped(False, has_answered=has_answered)
    assert flows.published(1, began_ms + FLOW_OK_MS - 1) == []
    assert flows.published(1, began_ms + FLOW_OK_MS) == [Hold()]
    assert flows.next_deadline_ms is None
    assert flows.tick(10 * FLOW_OK_MS) == []


@pytest.mark.parametrize(
    ("active", "text"),
    [
        (True, "received channel.flow_ok{active=true} has incorrect polarity"),
        (False, "unsolicited channel.flow_ok"),
    ],
)
def test_answers_to_nothing_are_errors_of_1_8_only(active: bool, text: str) -> None:
    """R-OLD-1, D-11."""
    for is_strict in (True, False):
        flows = stopped(is_strict, has_answered=not active)
        expected: list[Action] = [Broken(text, (20, 21))] if is_strict else []
        assert flows.answered(1, active, 2) == expected
        assert flows.answered(99, True, 2) == (
            [Broken("unsolicited channel.flow_ok", (20, 21))] if is_strict else []
        )


def test_a_closed_channel_is_forgotten() -> None:
    flows = stopped(True)
    flows.forget(1)
    flows.forget(2)
    assert flows.alarm(False, [], 3) == []
    # Its number may be used again.
    assert flows.alarm(True, [1], 4) == [Tell(1, False)]
