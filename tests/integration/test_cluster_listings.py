"""One address of a cluster answers for the clients of all members."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.members import Member, cluster

pytestmark = pytest.mark.timeout(240)


def listed(member: Member, *words: str) -> list[dict[str, Any]]:
    """Run a listing of brokerctl against one member."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from brokerd.ctl.main import main; main()", "-q"),
            *("-n", f"127.0.0.1:{member.ports['GRPC']}", "--formatter", "json", *words),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_each_member_lists_the_clients_of_all(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as members:
        connections = [member.connect() for member in members]
        for connection in connections:
            channel = connection.channel()
            channel.queue_declare("q", durable=True)
            channel.basic_consume("q", lambda *_: None)
        names = sorted(member.name for member in members)
        for member in members:
            for words in (
                ["list_connections", "pid", "node"],
                ["list_channels", "pid", "node"],
                ["list_consumers", "queue_name", "node"],
            ):
                assert sorted(row["node"] for row in listed(member, *words)) == names
        both = ",".join(f"127.0.0.1:{m.ports['GRPC']}" for m in members)
        twice = listed(members[0], "-n", both, "list_connections", "pid", "node")
        assert len(twice) == 2
        for connection in connections:
            connection.close()
