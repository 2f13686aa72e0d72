"""What the HTTP API sets in motion on three members: replicas, leaders, links; its warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.clients import certificates
from tests.integration.management.test_management_cluster import ask
from tests.integration.members import Member, cluster, eventually

pytestmark = pytest.mark.timeout(240)

QUEUES = ("q0", "q1", "q2")


def members_of(member: Member, queue: str) -> set[str]:
    """Return where a queue has replicas, as the API shows it."""
    return set(ask(member, "GET", f"queues/%2F/{queue}")[1]["members"])


def leaders(member: Member) -> dict[str, str]:
    """Return the leader of each queue."""
    return {row["name"]: row["leader"] for row in ask(member, "GET", "queues")[1]}


def test_replicas_and_leaders_move_as_they_are_told(tmp_path: Path) -> None:
    """The paths of 4.x, asked at one member about others."""
    with cluster(tmp_path, 3, BROKERD_AUTH_SCRYPT_LOG2_N="10") as (first, second, _third):
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}
        for name in QUEUES:
            spec = {"durable": True, "arguments": arguments}
            assert ask(first, "PUT", f"queues/%2F/{name}", spec)[0] == 201
        [home] = members_of(second, "q0")
        [away] = {"n1", "n2"} - {home} if home != "n0" else {"n1"}
        path = "queues/quorum/%2F/q0/replicas"
        assert ask(second, "POST", f"{path}/add", {"node": away})[0] in (202, 204)
        # An answer of 202 says that it goes on.
        eventually(lambda: members_of(first, "q0") == {home, away}, "a second replica")
        # Once more is no fault; a member that is none, a queue that is none.
        assert ask(second, "POST", f"{path}/add", {"node": away})[0] in (202, 204)
        assert ask(second, "POST", f"{path}/add", {"node": "n9"})[0] == 400
        assert ask(second, "POST", "queues/quorum/%2F/none/replicas/add", {"node": away})[0] == 404
        status, rows = ask(first, "GET", "queues/quorum/%2F/q0/status")
        assert status == 200
        assert {row["Node Name"]: row["Raft State"] for row in rows} == {
            home: "leader",
            away: "follower",
        }
        assert ask(first, "DELETE", f"{path}/delete", {"node": away})[0] in (202, 204)
        eventually(lambda: members_of(second, "q0") == {home}, "one replica")
        _of_many(first, second)
        _rebalanced(first)


def _of_many(first: Member, second: Member) -> None:
    """Grow and shrink choose by patterns."""
    for node in ("n0", "n1", "n2"):
        path = f"queues/quorum/replicas/on/{node}/grow"
        body = {"vhost_pattern": ".*", "queue_pattern": "^q[01]$", "strategy": "all"}
        assert ask(second, "POST", path, body)[0] in (202, 204)
    everywhere = {"n0", "n1", "n2"}
    eventually(lambda: all(members_of(first, name) == everywhere for name in ("q0", "q1")), "grown")
    assert len(members_of(first, "q2")) == 1
    gone = next(node for node in ("n1", "n2") if node not in members_of(first, "q2"))
    assert ask(second, "DELETE", f"queues/quorum/replicas/on/{gone}/shrink")[0] in (202, 204)
    eventually(lambda: all(gone not in members_of(first, name) for name in QUEUES), "shrunk")
    assert ask(first, "POST", f"queues/quorum/replicas/on/{gone}/grow", {})[0] in (202, 204)
    eventually(lambda: all(gone in members_of(first, name) for name in QUEUES), "grown again")


def _rebalanced(first: Member) -> None:
    """Leaders are even afterwards: three queues with replicas everywhere, one for each member."""
    for node in ("n0", "n1", "n2"):
        assert ask(first, "POST", f"queues/quorum/replicas/on/{node}/grow", {})[0] in (202, 204)
    assert ask(first, "POST", "rebalance/queues")[0] == 204
    eventually(lambda: set(leaders(first).values()) == {"n0", "n1", "n2"}, "one leader each")


def test_links_connect_anew(tmp_path: Path) -> None:
    """A federation link and a shovel, restarted over a member that does not run them."""
    with cluster(tmp_path, 3, BROKERD_AUTH_SCRYPT_LOG2_N="10") as members:
        first, second, third = members
        uri = f"amqp://guest:guest@127.0.0.1:{third.amqp_port}"
        upstream = {"value": {"uri": f"{uri}/there", "reconnect-delay": 1}}
        for path, body in (
            ("vhosts/there", {}),
            ("permissions/there/guest", {"configure": ".*", "write": ".*", "read": ".*"}),
            ("parameters/federation-upstream/%2F/up", upstream),
            ("exchanges/%2F/fed", {"type": "fanout", "durable": True}),
            (
                "policies/%2F/fed",
                {"pattern": "^fed$", "definition": {"federation-upstream": "up"}},
            ),
            ("queues/%2F/from", {"durable": True}),
            (
                "parameters/shovel/%2F/move",
                {
                    "value": {
                        "src-protocol": "amqp091",
                        "src-uri": uri,
                        "src-queue": "from",
                        "dest-protocol": "amqp091",
                        "dest-uri": uri,
                        "dest-queue": "to",
                    }
                },
            ),
        ):
            assert ask(first, "PUT", path, body)[0] in (201, 204), path

        def running(path: str, field: str) -> Any:
            rows = ask(second, "GET", path)[1]
            return rows[0] if rows and rows[0][field] == "running" else None

        for member in members:
            # One that is on its way to its upstream has no id yet.
            link = eventually(lambda: running("federation-links", "status"), "the link runs")
            shovel = eventually(lambda: running("shovels", "state"), "the shovel runs")
            assert shovel["name"] == "move"
            path = f"federation-links/vhost/%2F/{quote(link['id'], safe='')}/{link['node']}/restart"
            assert ask(member, "DELETE", path)[0] == 204
            assert ask(member, "DELETE", "shovels/vhost/%2F/move/restart")[0] == 204
        assert ask(first, "DELETE", "federation-links/vhost/%2F/none/n0/restart")[0] == 404
        assert ask(first, "DELETE", "shovels/vhost/%2F/none/restart")[0] == 404


def test_certificates_that_run_out_are_told_of_in_time(tmp_path: Path) -> None:
    """Those of the tests are good for two days."""
    made = certificates.make(tmp_path / "certificates")
    settings = {
        "BROKERD_TLS_CERT_FILE": str(made.server),
        "BROKERD_TLS_KEY_FILE": str(made.server_key),
        "BROKERD_TLS_CA_FILE": str(made.authority),
        "BROKERD_AUTH_SCRYPT_LOG2_N": "10",
    }
    with cluster(tmp_path, 1, **settings) as (member,):
        path = "health/checks/certificate-expiration"
        assert ask(member, "GET", f"{path}/1/days") == (200, {"status": "ok"})
        status, value = ask(member, "GET", f"{path}/1/weeks")
        assert (status, value["status"]) == (503, "failed")
        assert {Path(each["file"]).name for each in value["expired"]} == {"server.pem", "ca.pem"}
        assert json.dumps(value)
        assert ask(member, "GET", f"{path}/1/fortnights")[0] == 400
        assert ask(member, "GET", f"{path}/soon/days")[0] == 400
