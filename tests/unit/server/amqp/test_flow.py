"""Back-pressure reasons and byte budgets."""

from __future__ import annotations

import gc
import weakref

from brokerd.server.amqp.flow import FLOW_SHOWN_MS, ByteBudget, ReadGate


def gate() -> tuple[ReadGate, list[str]]:
    """Return a gate and what it did to the socket."""
    done: list[str] = []
    return ReadGate(lambda: done.append("pause"), lambda: done.append("resume"), lambda: 0), done


def test_reading_resumes_when_the_last_reason_is_gone() -> None:
    made, done = gate()
    made.hold("alarm")
    made.hold("busy 1")
    made.hold("alarm")
    assert made.release("alarm")
    assert not made.release("alarm")
    assert done == ["pause"]
    assert made.release("busy 1")
    assert done == ["pause", "resume"]


def test_a_closed_gate_touches_the_socket_no_more() -> None:
    made, done = gate()
    made.hold("alarm")
    made.close()
    made.release("alarm")
    made.hold("busy")
    made.open()
    assert done == ["pause"]


def test_opening_the_gate_ends_all_reasons_at_once() -> None:
    made, done = gate()
    made.open()
    made.hold("alarm")
    made.hold("output")
    made.open()
    assert done == ["pause", "resume"]
    assert not made.holds("output")


def test_a_connection_in_flow_is_shown_for_a_while() -> None:
    """R-ALM-10."""
    now_ms = 0
    made = ReadGate(lambda: None, lambda: None, lambda: now_ms)
    made.hold("alarm")
    assert not made.is_in_flow
    made.hold_flow("queue 1")
    made.hold_flow("queue 1")
    made.hold_flow("unconfirmed")
    made.release("alarm")
    made.release_flow("queue 1")
    now_ms = FLOW_SHOWN_MS
    assert made.is_in_flow
    made.release_flow("unconfirmed")
    now_ms += FLOW_SHOWN_MS - 1
    assert made.is_in_flow
    assert not made.is_held
    now_ms += 1
    assert not made.is_in_flow
    made.hold_flow("queue 1")
    made.open()
    made.release_flow("queue 1")
    assert not made.is_in_flow


def test_a_budget_pauses_above_its_limit_and_resumes_at_half() -> None:
    made, done = gate()
    budget = ByteBudget(made, "unconfirmed", 100)
    budget.take(100)
    assert done == []
    budget.take(1)
    budget.give(50)
    assert done == ["pause"]
    budget.give(1)
    assert done == ["pause", "resume"]


def test_a_closed_gate_lets_go_of_its_connection() -> None:
    """The connection holds the gate: thousands of closed ones would wait for Python's collector."""

    class Connection:
        def __init__(self) -> None:
            self.gate = ReadGate(self.pause, self.pause, lambda: 0)

        def pause(self) -> None:
            """Nothing to pause."""

    connection = Connection()
    left = weakref.ref(connection)
    gc.disable()
    try:
        connection.gate.close()
        connection.gate.open()
        del connection
        assert left() is None
    finally:
        gc.enable()
