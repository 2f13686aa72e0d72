"""Consumers on a member that has no replica of their queue, across a change of leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.amqp import methods
from tests.integration.members import cluster, eventually
from tests.integration.raw_client import client, publish

pytestmark = pytest.mark.timeout(300)


def test_a_consumer_far_from_all_replicas_follows_a_new_leader(tmp_path: Path) -> None:
    """R-QQ-10: the announced leader hears what the consumer holds, and goes on with the rest."""
    with cluster(tmp_path, 4) as members:
        with client(members[0].amqp_port) as raw:
            raw.open(1)
            # Led where it is declared; with one consumer per member one of them is far from it.
            raw.declare(1, "far", durable=True, arguments={"x-queue-type": "quorum"})
            consumers = []
            for member in members[1:]:
                made = client(member.amqp_port)
                far = made.__enter__()
                far.open(1)
                far.send(1, methods.BasicQos(0, 5), methods.BasicConsume(0, "far", "t"))
                far.expect(methods.BasicQosOk)
                far.expect(methods.BasicConsumeOk)
                consumers.append((made, far))
            raw.send(1, *[publish(1, "", "far", b"%d" % i) for i in range(15)])
            got = set()
            for _, far in consumers:
                got |= {far.content(methods.BasicDeliver)[2] for _ in range(5)}
            assert got == {b"%d" % i for i in range(15)}
        members[0].kill()
        with client(members[1].amqp_port) as raw:
            raw.open(1)
            raw.send(1, *[publish(1, "", "far", b"%d" % i) for i in range(15, 30)])
            for _, far in consumers:
                far.send(1, methods.BasicAck(0, True))
            for _, far in consumers:
                got |= {far.content(methods.BasicDeliver)[2] for _ in range(5)}
            for _, far in consumers:
                far.send(1, methods.BasicAck(0, True))
            assert got == {b"%d" % i for i in range(30)}
            eventually(lambda: raw.count(1, "far") == 0, "all is settled")
        for made, _ in consumers:
            made.__exit__(None, None, None)
