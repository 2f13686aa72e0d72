"""What an operator of people does to a BrokerCluster that runs: fence, resize, grow, hibernate."""

from __future__ import annotations

import pytest

from tests.e2e.namespace import Namespace, resource, small_cluster, until
from tests.e2e.reach import Reach
from tests.e2e.test_clusters import CHANGE_S, pods, put, ready_members
from tests.e2e.traffic import take

pytestmark = [pytest.mark.node, pytest.mark.slow, pytest.mark.timeout(1800)]

LIMIT = "brokerd_memory_limit_bytes"
#: The watermark of a member with 512Mi, and of one with 640Mi, is a share of it.
MORE = "640Mi"


def test_fenced_member_rests_and_comes_back_without_a_restart(space: Namespace) -> None:
    cluster = small_cluster()
    cluster["spec"]["replicas"] = 3
    space.apply(cluster)
    until(
        lambda: space.find("statefulset", "tiny") and ready_members(space) == 3,
        "three members are ready",
        CHANGE_S,
    )
    space.apply(resource("Queue", "jobs", brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready("queue/jobs")
    before = pods(space)
    # From inside, without options: the member is its own way to the cluster.
    listed = space.kubectl("exec", "tiny-2", "--", "brokerctl", "-q", "list_queues", "name", "type")
    assert listed.split() == ["name", "type", "jobs", "quorum"]
    space.patch("brokercluster", "tiny", {"fenced": ["tiny-1"]})
    space.wait_condition("brokercluster", "tiny", "Fenced", "Fenced")
    until(lambda: ready_members(space) == 2, "the fenced member lets nobody in")
    # A new template waits, whatever happens to the member.
    space.patch("brokercluster", "tiny", {"podTemplate": {"labels": {"roll": "1"}}})
    space.wait_condition("brokercluster", "tiny", "MemberFenced", "UpgradePending")
    reach = Reach(space, "tiny")
    put(reach, "jobs", b"meanwhile")
    assert pods(space) == before
    space.patch("brokercluster", "tiny", {"podTemplate": {"labels": None}, "fenced": None})
    until(lambda: ready_members(space) == 3, "it lets clients in again")
    space.wait_condition("brokercluster", "tiny", "UpToDate", "UpgradePending")
    assert pods(space) == before
    [(_, body)] = take(reach, "jobs", 1)
    assert body == b"meanwhile"
    reach.close()


def test_memory_volume_and_sleep_of_a_member_with_data(space: Namespace) -> None:
    space.apply(small_cluster())
    space.apply(resource("Queue", "jobs", brokerRef={"name": "tiny"}, type="quorum"))
    space.wait_ready("brokercluster/tiny", "queue/jobs")
    reach = Reach(space, "tiny")
    put(reach, "jobs", b"kept")

    # In place where the node can do it, else by a restart: the watermark follows in both.
    watermark = memory_limit(space)
    space.patch("brokercluster", "tiny", {"resources": {"limits": {"memory": MORE}}})
    until(lambda: memory_limit(space) > watermark, "the watermark follows the limit", CHANGE_S)

    # The StorageClass of the test's nodes cannot expand.
    space.patch("brokercluster", "tiny", {"storage": {"size": "2Gi"}})
    found = space.wait_condition("brokercluster", "tiny", "VolumeExpansionNotSupported")
    assert "allowVolumeExpansion" in found["message"]
    space.patch("brokercluster", "tiny", {"storage": {"size": "1Gi"}})
    space.wait_condition("brokercluster", "tiny", "Available", timeout_s=CHANGE_S)

    space.patch("brokercluster", "tiny", {"hibernated": True})
    space.wait_condition("brokercluster", "tiny", "Hibernated", "Hibernated", CHANGE_S)
    assert not pods(space)
    space.patch("brokercluster", "tiny", {"hibernated": False})
    until(lambda: bool(pods(space)) and ready_members(space) == 1, "it is back", CHANGE_S)
    [(_, body)] = take(reach, "jobs", 1)
    assert body == b"kept"
    reach.close()


def memory_limit(space: Namespace) -> float:
    """The watermark that the member itself tells; 0 while it cannot be asked."""
    program = (
        "import urllib.request as r; print(r.urlopen('http://127.0.0.1:15692/metrics')"
        ".read().decode())"
    )
    said = space.kubectl("exec", "tiny-0", "--", "python", "-c", program, check=False)
    lines = [line for line in said.splitlines() if line.startswith(LIMIT)]
    return float(lines[0].split()[-1]) if lines else 0.0
