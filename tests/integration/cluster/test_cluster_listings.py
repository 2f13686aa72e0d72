"""One address of a cluster answers for the clients of all members."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest

from tests.integration.management import test_http_api as http_api
from tests.integration.members import Member, cluster

pytestmark = pytest.mark.timeout(240)


def ctl(member: Member, *words: str) -> str:
    """Run brokerctl against one member."""
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from brokerd.ctl.main import main; main()"),
            *("-n", f"127.0.0.1:{member.ports['GRPC']}", *words),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


def listed(member: Member, *words: str) -> list[dict[str, Any]]:
    """Run a listing of brokerctl against one member."""
    found: list[dict[str, Any]] = json.loads(ctl(member, "-q", "--formatter", "json", *words))
    return found


def is_closed(connection: Any) -> None:
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        connection.process_data_events(time_limit=60)
    assert (closed.value.reply_code, closed.value.reply_text) == (320, "CONNECTION_FORCED - bye")


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


def test_each_member_closes_the_clients_of_all(tmp_path: Path) -> None:
    with cluster(tmp_path, 2) as members:
        first, second = members
        there = second.connect()
        [row] = listed(first, "list_connections", "pid")
        ctl(first, "close_connection", row["pid"], "bye")
        is_closed(there)
        there = second.connect()
        [row] = listed(first, "list_connections", "name")
        path = f"/api/connections/{quote(row['name'], safe='')}"
        assert http_api.ask(first, "DELETE", path)[0] == 204
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            there.process_data_events(time_limit=60)
        connections = [first.connect(), second.connect(), second.connect()]
        words = ("close_all_connections", "--per-connection-delay", "1", "--limit", "2", "bye")
        assert "Closed 2 connections" in ctl(first, *words)
        assert "Closed 1 connections" in ctl(first, "close_all_connections", "bye")
        for connection in connections:
            is_closed(connection)
        # As in RabbitMQ: without regard to vhosts, but of the member that is asked.
        here, there = first.connect(), second.connect()
        assert "Closed 1 connections" in ctl(first, "close_all_connections", "--global", "bye")
        is_closed(here)
        there.close()
