"""What the broker's Dockerfile and the compose file run, as processes with free ports.

The image itself is run by tests/e2e/test_images.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest
import yaml

from brokerd.config import ListenerConfig
from tests.integration.members import PATIENCE_SECONDS, REPOSITORY, START_SECONDS, eventually
from tests.ports import free_ports

pytestmark = pytest.mark.timeout(300)

COMPOSE = REPOSITORY / "examples" / "compose" / "compose.yaml"
LISTENERS = [name for name in ListenerConfig.model_fields if name != "backlog"]
DATA = "/var/lib/brokerd"


@dataclass
class Image:
    """What the last stage of the Dockerfile says."""

    command: list[str]
    health: list[str]
    environment: dict[str, str]
    volumes: list[str]
    user: str
    ports: set[str]


def image() -> Image:
    """Read it; each instruction stands once."""
    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
    last = text[text.rindex("\nFROM ") :]
    found = dict(re.findall(r"^([A-Z]+) +(.*)$", last, re.MULTILINE))
    return Image(
        json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"]),
        json.loads(found["HEALTHCHECK"].partition(" CMD ")[2]),
        dict(pair.split("=", 1) for pair in found["ENV"].split()),
        found["VOLUME"].split(),
        found["USER"],
        set(found["EXPOSE"].split()),
    )


class Container:
    """A process with the image's command and environment, and ports and a folder of its own."""

    def __init__(self, folder: Path, name: str, environment: dict[str, str]) -> None:
        self.ports = dict(zip(LISTENERS, free_ports(len(LISTENERS)), strict=True))
        self._image = image()
        self._folder = folder / name
        self._folder.mkdir()
        self.log_path = self._folder / "log"
        kept = {key: text for key, text in os.environ.items() if not key.startswith("BROKERD_")}
        self.env = kept | self._image.environment | {"HOME": str(folder)} | environment
        self.env |= {
            f"BROKERD_LISTENERS_{key.upper()}": str(port) for key, port in self.ports.items()
        } | {"PYTHONPATH": str(REPOSITORY)}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start what the image starts."""
        program, *arguments = self._image.command
        assert program == "python"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *(self._replaced(text) for text in arguments)],
                env=self.env,
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )

    def _replaced(self, text: str) -> str:
        return str(self._folder / "data") if text == DATA else text

    def health(self) -> tuple[int, str]:
        """Run the image's health check."""
        done = subprocess.run(
            [sys.executable, *self._image.health[1:]],
            env=self.env,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout.strip()

    def wait_healthy(self) -> None:
        """Wait as `docker compose up --wait` does."""
        eventually(lambda: self.health() == (0, "ok"), f"healthy: {self.log()}", START_SECONDS)

    def log(self) -> str:
        """Return what it has said."""
        return self.log_path.read_text(errors="replace")

    def stop(self) -> None:
        """SIGTERM, as `docker stop` does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            assert self._process.wait(PATIENCE_SECONDS) == 0

    def connect(self, user: str, password: str) -> pika.BlockingConnection:
        """Connect over AMQP."""
        credentials = pika.PlainCredentials(user, password)
        return pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.ports["amqp"], credentials=credentials)
        )


@contextlib.contextmanager
def running(containers: list[Container]) -> Iterator[None]:
    """Start all, wait until all are healthy; stop them in the end."""
    try:
        for container in containers:
            container.start()
        for container in containers:
            container.wait_healthy()
        yield
    finally:
        for container in containers:
            container.stop()


def test_the_image_says_where_data_lie_and_runs_as_nobody_in_particular() -> None:
    found = image()
    assert found.volumes == [DATA]
    assert found.user == "10001:10001"
    ports = {str(ListenerConfig.model_fields[name].default) for name in LISTENERS}
    assert found.ports >= ports


def test_with_nothing_configured_guest_gets_in_from_everywhere_as_in_rabbitmqs_image(
    tmp_path: Path,
) -> None:
    container = Container(tmp_path, "one", {})
    assert container.health()[0] == 1, "nothing runs yet"
    with running([container]):
        # It is healthy a moment before it says how to reach it.
        told = "guest, password guest, from everywhere"
        eventually(lambda: told in container.log(), told, START_SECONDS)
        container.connect("guest", "guest").close()


def test_an_administrator_that_is_named_is_the_only_user(tmp_path: Path) -> None:
    named = {"BROKERD_AUTH_ADMIN_USER": "ann", "BROKERD_AUTH_ADMIN_PASSWORD": "a word of hers"}
    container = Container(tmp_path, "one", named)
    with running([container]):
        container.connect("ann", "a word of hers").close()
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            container.connect("guest", "guest")


def services() -> dict[str, Any]:
    """Return the services of the compose file, with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE.read_text())
    found: dict[str, Any] = yaml.safe_load(text)["services"]
    return found


def test_the_compose_file_is_three_members_with_volumes_of_their_own() -> None:
    whole = yaml.safe_load(COMPOSE.read_text())
    found = services()
    assert len(found) == 3
    volumes = [service["volumes"] for service in found.values()]
    assert volumes == [[f"{name}:{DATA}"] for name in found]
    assert set(whole["volumes"]) == set(found)
    published = [port for service in found.values() for port in service["ports"]]
    assert len({port.rpartition(":")[0] for port in published}) == len(published) == 9
    assert all(port.startswith("127.0.0.1:") for port in published), "nobody else's business"
    # What a service is told beyond the image is its environment: the rest runs in the test below.
    used = {key for service in found.values() for key in service}
    assert used == {
        *("image", "build", "restart", "stop_grace_period", "environment", "volumes", "ports")
    }


def test_the_compose_files_environment_makes_a_cluster_that_takes_messages(tmp_path: Path) -> None:
    """Names and ports of containers are those of the test's processes, the rest is the file's."""
    found = services()
    containers = {
        name: Container(tmp_path, name, service["environment"]) for name, service in found.items()
    }
    for container in containers.values():
        for name, other in containers.items():
            members = container.env["BROKERD_CLUSTER_MEMBERS"]
            container.env["BROKERD_CLUSTER_MEMBERS"] = members.replace(
                f"={name}:5690", f"=127.0.0.1:{other.ports['peer']}"
            )
    first, second, third = containers.values()
    with running([first, second, third]):
        connection = first.connect("admin", "admin")
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
        channel.basic_publish("", "orders", b"one", mandatory=True)
        connection.close()
        connection = third.connect("admin", "admin")
        got = eventually(lambda: connection.channel().basic_get("orders", True)[2], "the message")
        assert got == b"one"
        connection.close()
        assert "admin, with the password of auth.admin_password" in second.log()
