"""Deletion never hangs, not without its broker either; whole namespaces: test_namespaces.py."""

from __future__ import annotations

import pytest

from tests.e2e.namespace import Namespace, resource, small_cluster, until
from tests.e2e.reach import Reach

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

BROKER = {"name": "tiny"}


def make_tiny(space: Namespace) -> None:
    space.apply(small_cluster())
    space.apply(resource("Queue", "jobs", brokerRef=BROKER, type="quorum"))
    space.apply(resource("Exchange", "in", brokerRef=BROKER, type="topic"))
    space.apply(
        resource(
            "Binding",
            "jobs",
            brokerRef=BROKER,
            source="in",
            destination={"kind": "Queue", "name": "jobs"},
            routingKeys=["#"],
        )
    )
    space.wait_ready("brokercluster/tiny", "queue", "exchange", "bindings.brokerd.io")


def test_resources_go_while_the_broker_is_gone(space: Namespace) -> None:
    make_tiny(space)
    space.delete("brokercluster", "tiny")
    until(lambda: not space.items("pods"), "the members' pods are gone")
    for reference in ("bindings.brokerd.io/jobs", "queue/jobs", "exchange/in"):
        kind, name = reference.split("/")
        space.delete(kind, name, timeout_s=60)


def test_queue_with_messages_is_left_behind_and_says_so(space: Namespace) -> None:
    make_tiny(space)
    reach = Reach(space, "tiny")
    connection = reach.connect()
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("in", "x", b"precious", mandatory=True)
    space.delete("queue", "jobs", timeout_s=60)
    until(lambda: space.events("LeftBehind", "jobs"), "an Event LeftBehind")
    assert channel.queue_declare("jobs", passive=True).method.message_count == 1
    space.apply(resource("Queue", "jobs", brokerRef=BROKER, type="quorum"))
    space.wait_applied("queue", "jobs")
    assert space.condition("queue", "jobs")["reason"] in ("Adopted", "Applied")
    assert channel.queue_declare("jobs", passive=True).method.message_count == 1
    connection.close()
    reach.close()
