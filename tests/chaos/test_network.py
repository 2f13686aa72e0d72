"""The namespaces of the chaos runs: what is cut is lost, nothing else, and nothing stays behind."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.chaos import network
from tests.chaos.partitions import between

#: Tells what becomes of a connection to a port where nobody listens.
PROBE = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], 9), timeout=5)
except OSError as error:
    print(type(error).__name__)
"""


pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def three() -> Iterator[network.Namespaces]:
    try:
        with network.namespaces(3) as made:
            yield made
    except network.NoNamespaces as error:
        pytest.skip(f"namespaces cannot be made: {error}")


def connect(net: network.Namespaces, speaker: int, listener: int) -> str:
    command = net.command(speaker, "python3", "-c", PROBE, net.host(listener))
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_a_cut_separates_two_members_until_it_is_healed(three: network.Namespaces) -> None:
    assert connect(three, 0, 1) == "ConnectionRefusedError"
    three.cut(between([0], [1]))
    assert connect(three, 0, 1) == connect(three, 1, 0) == "TimeoutError"
    assert connect(three, 0, 2) == connect(three, 2, 1) == "ConnectionRefusedError"
    three.heal()
    assert connect(three, 1, 0) == "ConnectionRefusedError"


def test_nothing_of_it_stays_behind(three: network.Namespaces) -> None:
    name = three.command(0)[3]
    assert name in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    three.close()
    assert name not in subprocess.run(["ip", "netns"], capture_output=True, text=True).stdout
    links = subprocess.run(["ip", "link"], capture_output=True, text=True).stdout
    assert name.replace("-0", "").replace("-", "") not in links
