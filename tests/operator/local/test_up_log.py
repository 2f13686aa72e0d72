"""What `brokerctl up` says while brokers start, and after."""

from __future__ import annotations

from brokerd_operator.commands import Log
from brokerd_operator.local import table
from brokerd_operator.local.environment import ResourceState


def state(kind: str, name: str, reason: str = "", *, is_stalled: bool = False) -> ResourceState:
    is_ready = reason == "Applied"
    return ResourceState(kind, "default", name, str(is_ready), reason, "text", is_ready, is_stalled)


def test_what_waits_for_brokers_that_start_is_one_line() -> None:
    log = Log()
    states = [state("BrokerCluster", "orders"), *(state("Queue", f"q{n}") for n in range(20))]
    assert log.news(states, table.progress(states, {})) == ["waiting for orders"]
    assert log.news(states, table.progress(states, {})) == [], "said once"
    states = [
        state("BrokerCluster", "orders", "WaitingForMembers"),
        *(state("Queue", f"q{n}", "WaitingForBroker") for n in range(20)),
    ]
    said = log.news(states, table.progress(states, {"orders": (1, 3)}))
    assert said == ["waiting for orders (1 of 3 members)"]
    assert not log.is_complete(states)
    states = [state("BrokerCluster", "orders", "Applied"), state("Queue", "q0", "Applied")]
    assert log.news(states, table.progress(states, {"orders": (3, 3)})) == [
        "BrokerCluster orders: ready: text",
        "Queue q0: ready: text",
    ]
    assert log.is_complete(states)
    assert not log.is_complete(states), "said once"


def test_mistakes_are_said_at_once_and_what_still_waits_when_brokers_are_ready() -> None:
    log = Log()
    waits = state("Binding", "b", "WaitingForSource")
    wrong = state("Policy", "p", "InvalidPattern", is_stalled=True)
    states = [state("BrokerCluster", "orders", "WaitingForBroker"), waits, wrong]
    said = log.news(states, table.progress(states, {"orders": (3, 3)}))
    assert said == ["waiting for orders (3 of 3 members)", "Policy p: InvalidPattern: text"]
    states = [state("BrokerCluster", "orders", "Applied"), waits, wrong]
    assert log.news(states, table.progress(states, {})) == [
        "BrokerCluster orders: ready: text",
        "Binding b: WaitingForSource: text",
    ]


def test_a_cluster_that_is_not_meant_to_run_is_not_waited_for() -> None:
    states = [state("BrokerCluster", "orders", "Hibernated")]
    assert table.progress(states, {"orders": (0, 3)}) == ""
