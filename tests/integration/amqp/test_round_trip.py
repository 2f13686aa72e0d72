"""What `helm test` of the cluster's chart runs, against a real member."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.members import Member, cluster, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Member]:
    with cluster(tmp_path_factory.mktemp("round-trip"), 1) as members:
        yield members[0]


def round_trip(port: int, *args: str, password: str = "guest") -> tuple[int, str]:
    command = [sys.executable, "-m", "brokerd.ctl.round_trip", "--plain", "--host=127.0.0.1"]
    command += [f"--port={port}", "--user=guest", "--password-file=-", *args]
    done = subprocess.run(
        command, input=f"{password}\n", capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_message_goes_there_and_dies_and_nothing_is_left(member: Member) -> None:
    status, said = round_trip(member.amqp_port)
    assert (status, said.splitlines()[1:]) == (
        0,
        [
            "published: confirmed",
            "consumed: the message came back whole",
            "rejected: the dead letter arrived",
            "round trip passed",
        ],
    )
    assert eventually(lambda: "brokerd_queues 0.0" in metrics(member), "no queue is left")


def metrics(member: Member) -> str:
    url = f"http://127.0.0.1:{member.http_port}/metrics"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return str(answer.read().decode())


def test_wrong_password_is_told_in_a_sentence(member: Member) -> None:
    status, said = round_trip(member.amqp_port, "--patience=0", password="wrong")
    assert status == 1
    assert said.startswith("FAILED: ")
    assert "ACCESS_REFUSED" in said
    assert "Traceback" not in said
    assert "wrong" not in said


def test_a_password_file_without_a_password_is_named(tmp_path: Path) -> None:
    status, said = round_trip(1, f"--password-file={tmp_path}")
    assert (status, said) == (
        74,
        f"FAILED: --password-file: cannot read {tmp_path}: Is a directory\n",
    )


def test_nobody_there_is_told_in_a_sentence() -> None:
    port = free_ports(1)[0]
    status, said = round_trip(port, "--patience=0")
    assert status == 1
    assert said.startswith(f"FAILED: amqp://127.0.0.1:{port}: ")


def test_a_virtual_host_that_is_not_there_is_named(member: Member) -> None:
    status, said = round_trip(member.amqp_port, "--patience=0", "--vhost=nowhere")
    assert status == 1
    assert "nowhere" in said
