"""The topologies of the reference document, each broker of them a vhost of one member (R-FX-16).

Every publish is counted at every exchange: exactly once where it may come, never elsewhere.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.integration.federation_rig import Admin, admin, amqp, take, uri
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(300)
ALL = {"configure": ".*", "write": ".*", "read": ".*"}


@dataclass
class Net:
    """Vhosts with an exchange `fx` each, and what follows what."""

    member: Member
    admin: Admin
    stack: contextlib.ExitStack
    channels: dict[str, Any] = field(default_factory=dict)

    def add(self, *vhosts: str, key: str = "#") -> None:
        """Make vhosts; with a key, a queue that counts what comes."""
        for vhost in vhosts:
            self.admin.put("vhost", vhost, {}, "")
            self.admin.put("permission", "guest", ALL, vhost)
            channel = self.stack.enter_context(amqp(self.member.amqp_port, vhost))
            channel.exchange_declare("fx", "topic", durable=True)
            self.channels[vhost] = channel
            if key:
                channel.queue_declare("counted", durable=True)
                channel.queue_bind("counted", "fx", key)

    def follow(self, downstream: str, upstream: str, max_hops: int) -> None:
        """`downstream` takes from `upstream`."""
        self.admin.put(
            "parameter",
            f"federation-upstream/{upstream}",
            {"value": {"uri": uri(self.member.amqp_port, upstream), "max-hops": max_hops}},
            downstream,
        )
        definition = {"federation-upstream-set": "all"}
        spec = {"pattern": "^fx$", "apply-to": "exchanges", "definition": definition}
        self.admin.put("policy", "federate", spec, downstream)

    def wait(self, links: int) -> None:
        """Wait until all links run and the bindings have gone as far as they go."""
        eventually(
            lambda: self._running() == links,
            f"{links} running links",
        )

    def _running(self) -> int:
        rows = [row for row in self.admin.rows("links") if row["vhost"] in self.channels]
        return sum(row["status"] == "running" for row in rows)

    def counted(self, vhost: str, expected: int) -> list[bytes]:
        """Take the expected messages; then nothing more may be there."""
        channel = self.channels[vhost]
        bodies = [take(channel, "counted")[2] for _ in range(expected)]
        assert channel.basic_get("counted", auto_ack=True)[0] is None
        return sorted(bodies)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("net"), 1, BROKERD_CLUSTER_NAME="net") as (member,):
        yield member


@pytest.fixture
def net(member: Member) -> Iterator[Net]:
    with admin(member) as client:
        with contextlib.ExitStack() as stack:
            made = Net(member, client, stack)
            yield made
        for vhost in made.channels:
            client.delete("vhost", vhost, "")


def publish_everywhere(net: Net) -> list[bytes]:
    """Publish one message at each exchange, its body the vhost's name; return the bodies."""
    for vhost, channel in net.channels.items():
        channel.basic_publish("fx", "k", vhost.encode())
    return sorted(vhost.encode() for vhost in net.channels)


def test_ring_of_six_with_five_hops_delivers_each_message_once_everywhere(net: Net) -> None:
    """R-FX-12, R-FX-16: the sixth hop would be home again."""
    ring = [f"ring{i}" for i in range(6)]
    net.add(*ring)
    for i, vhost in enumerate(ring):
        net.follow(vhost, ring[i - 1], 5)
    net.wait(6)
    expected = publish_everywhere(net)
    for vhost in ring:
        assert net.counted(vhost, 6) == expected


def test_complete_graph_of_three_needs_one_hop(net: Net) -> None:
    """R-FX-16."""
    graph = ["graph0", "graph1", "graph2"]
    net.add(*graph)
    for vhost in graph:
        for other in graph:
            if other != vhost:
                net.follow(vhost, other, 1)
    net.wait(6)
    expected = publish_everywhere(net)
    for vhost in graph:
        assert net.counted(vhost, 3) == expected


def test_a_leaf_of_a_tree_gets_what_it_bound_from_the_root(net: Net) -> None:
    """R-FX-8, R-FX-10: the binding travels two links up with a hop less, the message comes down."""
    net.add("root", "middle", key="")
    net.add("leaf", key="leaf.#")
    net.follow("leaf", "middle", 2)
    net.follow("middle", "root", 2)
    net.wait(2)

    def at_root() -> dict[str, Any] | None:
        found = net.admin.bindings("root")
        return next((item for item in found if item["routing_key"] == "leaf.#"), None)

    binding = eventually(at_root, "the leaf's binding at the root")
    carried = binding["arguments"]["x-bound-from"]
    assert [(entry["vhost"], entry["hops"]) for entry in carried] == [("middle", 1), ("leaf", 2)]
    net.channels["root"].basic_publish("fx", "other", b"nobody wants it")
    net.channels["root"].basic_publish("fx", "leaf.1", b"down")
    _, properties, body = take(net.channels["leaf"], "counted")
    assert body == b"down"
    path = [entry["vhost"] for entry in properties.headers["x-received-from"]]
    assert path == ["middle", "root"]
    # The leaf's interest ends: the root learns of it.
    net.channels["leaf"].queue_unbind("counted", "fx", "leaf.#")
    eventually(lambda: at_root() is None, "the binding left the root")


def test_one_hop_does_not_reach_the_second_link(net: Net) -> None:
    """R-FX-9: a binding with no hop left is not carried on."""
    net.add("first", "second", "third", key="#")
    net.follow("third", "second", 1)
    net.follow("second", "first", 1)
    net.wait(2)
    publish_everywhere(net)
    assert net.counted("second", 2) == [b"first", b"second"]
    assert net.counted("third", 2) == [b"second", b"third"]
    assert net.counted("first", 1) == [b"first"]
