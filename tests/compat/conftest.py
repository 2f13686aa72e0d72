"""Both servers of the compatibility tests, started once, and what each test gets of them.

A test that takes `server` runs twice, on RabbitMQ and on brokerd; the pair is one case. The ids of
differences (`D-7`) are rows of docs/compatibility.md: 1-99 for what is on the wire, publishing,
queues, consumers and rights, 101-199 for routing, settlement, dead letters and policies, 201 and
on for what only the fuzzer meets. For tests/compat only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.brokerd_server import ENVIRONMENT, BrokerdAdmin
from tests.compat.rabbitmq_server import RabbitAdmin
from tests.compat.servers import NAMES, Server, used_differences
from tests.integration.members import cluster
from tests.rabbitmq_node import rabbit_node

HERE = Path(__file__).parent
#: The server's part of a test's id.
_SERVER = re.compile(r"(?<=[\[-])on-(rabbitmq|brokerd)(?=[\]-])")
_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a loaded machine: two brokers answer more slowly than one."""
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """RabbitMQ 3.10.8."""
    with rabbit_node(tmp_path_factory.mktemp("rabbitmq") / "node") as node:
        admin = RabbitAdmin(node.http_port)
        yield Server("rabbitmq", node.amqp_port, admin, node.http_port)
        admin.close()


@pytest.fixture(scope="session")
def brokerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One brokerd member with the profile of that RabbitMQ."""
    with cluster(tmp_path_factory.mktemp("brokerd"), 1, **ENVIRONMENT) as [member]:
        admin = BrokerdAdmin(member)
        yield Server("brokerd", member.amqp_port, admin, member.management_port)
        admin.close()


@pytest.fixture(params=NAMES, ids=[f"on-{name}" for name in NAMES])
def server(request: pytest.FixtureRequest) -> Server:
    """One of the two."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def vhost(server: Server) -> Iterator[str]:
    """A vhost of this test's own in which guest may do everything."""
    name = f"compat-{next(_numbers)}"
    server.admin.add_vhost(name)
    yield name
    server.admin.delete_vhost(name)


@pytest.fixture
def connection(server: Server, vhost: str) -> Iterator[Any]:
    """A pika connection of guest to the vhost; the test may break it."""
    with server.connected(vhost) as made:
        yield made


@pytest.fixture
def channel(connection: Any) -> Any:
    """A channel of that connection; the test may break it."""
    return connection.channel()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many cases both servers passed, and in how many ways they differ."""
    passed: dict[str, set[str]] = {}
    for report in terminalreporter.stats.get("passed", []):
        found = _SERVER.search(report.nodeid)
        if found and report.nodeid.startswith("tests/compat/"):
            case = _SERVER.sub("*", report.nodeid, count=1)
            passed.setdefault(case, set()).add(found[1])
    cases = sum(len(servers) == len(NAMES) for servers in passed.values())
    if passed:
        differences = len(used_differences())
        terminalreporter.write_line(
            f"compat: {cases} cases, both servers, {differences} differences"
        )
