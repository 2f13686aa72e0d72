"""Replicas of quorum queues over hosts and zones, with real processes that say where they run."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cluster.test_members_come_and_go import ctl, rows
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(400)

#: Host and zone of n0 to n4.
WHERE = [("h1", "a"), ("h1", "a"), ("h2", "b"), ("h2", "b"), ("h3", "c")]
HOSTS = {f"n{i}": host for i, (host, _) in enumerate(WHERE)}
QUEUES = 20


def environment(host: str, zone: str) -> dict[str, str]:
    return {"BROKERD_NODE_HOST": host, "BROKERD_NODE_ZONE": zone}


@contextlib.contextmanager
def five_on_three_hosts(folder: Path) -> Iterator[list[Member]]:
    own_env = [environment(*where) for where in WHERE]
    with cluster(folder, 5, own_env=own_env) as members:
        for member in members:
            eventually(lambda member=member: domains(member) == WHERE, "all say where they run")
        yield members


def domains(member: Member) -> list[tuple[str, str]]:
    """Return host and zone of each member, as one of them knows it."""
    found = ctl(member, "cluster_status", "--formatter", "json")
    assert found.returncode == 0, found.stderr
    return [(row["host"], row["zone"]) for row in json.loads(found.stdout)["members"]]


def declare(member: Member, name: str, **arguments: Any) -> None:
    with contextlib.closing(member.connect()) as connection:
        connection.channel().queue_declare(
            name, durable=True, arguments={"x-queue-type": "quorum"} | arguments
        )


def listed(member: Member) -> dict[str, tuple[list[str], str]]:
    """Return the members and the placement of each queue."""
    found = rows(member, "list_queues", "name", "members", "placement")
    return {row["name"]: (row["members"], row["placement"]) for row in found}


def warning(member: Member, queue: str) -> str:
    return ctl(member, "quorum_status", queue).stderr


def test_replicas_are_kept_apart_and_shown_where_they_are_not(tmp_path: Path) -> None:
    """R-QQ-4, R-QQ-23."""
    with five_on_three_hosts(tmp_path) as members:
        for number in range(QUEUES):
            declare(members[number % 5], f"q{number}")
        found = listed(members[0])
        assert len(found) == QUEUES
        for name, (nodes, placement) in found.items():
            assert {HOSTS[node] for node in nodes} == {"h1", "h2", "h3"}, name
            assert (len(nodes), placement) == (3, "spread")
        assert warning(members[0], "q0") == ""

        declare(members[0], "small", **{"x-quorum-initial-group-size": 1})
        assert ctl(members[0], "add_member", "small", "n1").returncode == 0
        assert listed(members[0])["small"] == (["n0", "n1"], "same host")
        said = warning(members[3], "small")
        assert "replicas on one host, 'h1': n0, n1; better: add_member small n2" in said

        declare(members[1], "grows", **{"x-quorum-initial-group-size": 1})
        policy = ctl(members[0], "set_policy", "t", "^grows$", '{"target-group-size": 3}')
        assert policy.returncode == 0, policy.stderr
        eventually(lambda: len(listed(members[1])["grows"][0]) == 3, "the queue has grown")
        assert listed(members[1])["grows"][1] == "spread"

        # Its pod comes back elsewhere.
        members[4].stop()
        members[4].env |= environment("h2", "b")
        members[4].start()
        members[4].wait_ready()
        eventually(lambda: domains(members[0])[4] == ("h2", "b"), "its record is another one")
        assert listed(members[0])["q0"][1] == "same host"
        assert "no member that is up has a better place" in warning(members[0], "q0")

        # Another one of its name is not known to run there.
        members[4].stop()
        forgotten = ctl(members[0], "forget_cluster_node", "n4", timeout_s=200)
        assert forgotten.returncode == 0, forgotten.stderr
        address = f"127.0.0.1:{members[4].ports['PEER']}"
        assert ctl(members[0], "add_cluster_node", "n4", address).returncode == 0
        assert domains(members[0]) == [*WHERE[:4], ("", "")]


def test_member_that_no_longer_says_where_it_runs_is_unknown(tmp_path: Path) -> None:
    with cluster(tmp_path, 1, own_env=[environment("h1", "a")]) as (member,):
        assert domains(member) == [("h1", "a")]
        member.stop()
        member.env |= environment("", "")
        member.start()
        member.wait_ready()
        assert domains(member) == [("", "")]
