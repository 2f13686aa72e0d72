"""The compose file, run as its README says: Docker, three members, one of them killed under load.

    python -m tests.integration.compose_run --image ARCHIVE

Debian's dockerd with a folder and a network namespace of its own, so that no port of this machine
and no other daemon is touched; needs root, docker.io and docker-compose.  `make compose-run`
installs them, starting no service, and builds the image.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.integration.members import REPOSITORY, eventually

FILE = "examples/compose/compose.yaml"
PROJECT = "brokerd-compose-run"
MESSAGES = 200
PATIENCE_S = 300.0
#: What runs inside the namespace, where the ports that the README names are free.
CLIENT = """
import sys, pika
def connect(port):
    login = pika.PlainCredentials("admin", "admin")
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, credentials=login))
first, last, port = sys.argv[1:]
connection = connect(int(port))
channel = connection.channel()
if int(last):
    channel.confirm_delivery()
    channel.queue_declare("orders", durable=True, arguments={"x-queue-type": "quorum"})
    for number in range(int(first), int(last)):
        channel.basic_publish("", "orders", b"%d" % number, mandatory=True)
else:
    found = []
    while (got := channel.basic_get("orders", True))[0] is not None:
        found.append(int(got[2]))
    print(found == list(range(int(first))))
connection.close()
"""


class Docker:
    """State: a namespace, a daemon in it, and how both are spoken to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = f"brokerd-compose-{os.getpid()}"
        self._env = os.environ | {"DOCKER_HOST": f"unix://{folder / 'sock'}"}
        for variable in ("BROKERD_IMAGE", "BROKERD_ADMIN_USER", "BROKERD_ADMIN_PASSWORD"):
            self._env.pop(variable, None)
        self._daemon: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Start the daemon; end it, its containers and the namespace."""
        subprocess.run(["ip", "netns", "add", self._name], check=True)
        try:
            subprocess.run(["ip", "-n", self._name, "link", "set", "lo", "up"], check=True)
            with (self._folder / "dockerd.log").open("wb") as log:
                self._daemon = subprocess.Popen(
                    self._inside(
                        *("dockerd", "--data-root", str(self._folder / "data")),
                        *("--exec-root", str(self._folder / "run")),
                        *("--pidfile", str(self._folder / "pid")),
                        *("--host", self._env["DOCKER_HOST"], "--storage-driver", "vfs"),
                    ),
                    stdout=log,
                    stderr=log,
                )
            try:
                eventually(self._answers, "dockerd answers", PATIENCE_S)
                yield
            finally:
                self._daemon.terminate()
                self._daemon.wait(60)
        finally:
            subprocess.run(["ip", "netns", "del", self._name], check=True)

    def _answers(self) -> bool:
        assert self._daemon is not None
        if self._daemon.poll() is not None:
            raise RuntimeError((self._folder / "dockerd.log").read_text()[-2000:])
        done = subprocess.run(["docker", "version"], env=self._env, capture_output=True)
        return done.returncode == 0

    def _inside(self, *command: str) -> list[str]:
        # Not `ip netns exec`: it mounts /sys anew, without the control groups.
        return ["nsenter", f"--net=/run/netns/{self._name}", *command]

    def run(self, *command: str) -> str:
        """Run a command inside; return what it printed."""
        done = subprocess.run(
            self._inside(*command),
            env=self._env,
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stdout}")
        return done.stdout

    def compose(self, *arguments: str) -> str:
        """Run docker-compose on the file."""
        return self.run("docker-compose", "-p", PROJECT, "-f", FILE, *arguments)

    def wait_healthy(self) -> None:
        """Wait as `docker compose up --wait` does."""

        def is_healthy() -> bool:
            ids = self.compose("ps", "-q").split()
            found = self.run("docker", "inspect", "-f", "{{.State.Health.Status}}", *ids)
            return found.split() == ["healthy"] * 3

        try:
            eventually(is_healthy, "three healthy members", PATIENCE_S)
        except AssertionError:
            print(self.compose("ps"), self.compose("logs", "--tail", "20"))
            raise


def check(docker: Docker, archive: Path) -> None:
    """Do what examples/compose/README.md says; RuntimeError where it is not true."""
    print(docker.run("docker", "load", "-i", str(archive)).strip(), flush=True)

    def client(*arguments: str) -> str:
        return docker.run(sys.executable, "-c", CLIENT, *arguments).strip()

    try:
        docker.compose("up", "--detach")
        docker.wait_healthy()
        brokerctl = ("brokerctl", "--user", "admin", "--password", "admin")
        status = docker.compose("exec", "-T", "brokerd-1", *brokerctl, "cluster_status")
        running = status.partition("Running Nodes")[2].partition("Versions")[0].split()
        if running != ["brokerd-1", "brokerd-2", "brokerd-3"]:
            raise RuntimeError(status)
        print("three members run, healthy", flush=True)
        client("0", str(MESSAGES // 2), "5672")
        docker.compose("kill", "brokerd-2")
        client(str(MESSAGES // 2), str(MESSAGES), "5672")
        docker.compose("start", "brokerd-2")
        docker.wait_healthy()
        found = client(str(MESSAGES), "0", "5674")
        if found != "True":
            raise RuntimeError("not all messages, or not in order")
        print(f"{MESSAGES} of {MESSAGES} confirmed messages, in order, a member killed", flush=True)
    finally:
        docker.compose("down", "--volumes", "--timeout", "60")


def main() -> int:
    """Return 0 if all of it holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--image", type=Path, required=True, help="archive of images.sh build")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="brokerd-compose-") as name:
        docker = Docker(Path(name))
        with docker.running():
            check(docker, asked.image.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
