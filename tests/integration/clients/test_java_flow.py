"""channel.flow and RabbitMQ's Java client, which answers it and stops by itself (R-OLD-1, O-17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.amqp.test_channel_flow import alarm
from tests.integration.clients import fetched
from tests.integration.clients.client_process import client_process
from tests.integration.federation_rig import admin
from tests.integration.members import cluster, eventually

pytestmark = pytest.mark.timeout(420)


def test_the_java_client_stops_and_goes_on(tmp_path: Path) -> None:
    """Publishing waits within basicPublish; the channel is not closed for want of an answer."""
    with (
        cluster(tmp_path, 1, BROKERD_COMPAT_PROFILE="reference") as [member],
        admin(member) as settings,
        client_process([*fetched.java_client(), "flow", str(member.amqp_port)]) as client,
    ):

        def state() -> str:
            (row,) = settings.rows("connections")
            return str(row["state"])

        client.expect("ready")
        with alarm(member, settings):
            client.expect("held")
            eventually(lambda: state() == "blocked", "the member counts it as blocked")
            client.tell()
            client.expect("still")
        client.finish()
