"""Connections that carry nothing stay, with established clients and an interval of two seconds.

Over Netty the Java client gives a connection up that has no byte for one interval (R-HB-1).
"""

from __future__ import annotations

import time

import pika
import pytest

from tests.integration.clients import fetched
from tests.integration.clients.client_process import client_process
from tests.integration.members import Member

pytestmark = pytest.mark.timeout(420)

INTERVAL_S = 2


@pytest.mark.parametrize("transport", ["netty", "io"])
def test_the_java_client_keeps_them(member: Member, transport: str) -> None:
    """R-HB-1."""
    command = [*fetched.idle_java_client(), transport, str(member.amqp_port)]
    with client_process(command) as client:
        client.finish()


def test_amqp091_go_keeps_them(member: Member) -> None:
    """R-HB-1."""
    with client_process([*fetched.go_client(), "idle", str(member.amqp_port)]) as client:
        client.finish()


def test_pika_keeps_them(member: Member) -> None:
    """R-HB-1."""
    parameters = pika.ConnectionParameters("127.0.0.1", member.amqp_port, heartbeat=INTERVAL_S)
    connection = pika.BlockingConnection(parameters)
    end = time.monotonic() + 4 * INTERVAL_S
    while (left_s := end - time.monotonic()) > 0:
        connection.process_data_events(left_s)
    connection.channel().close()
    connection.close()
