"""Frameworks over AMQP, unmodified, while a member of three is away on which their queues live.

Celery, oslo.messaging, dramatiq, FastStream, amqp-connection-manager and Spring AMQP, each with
steady calls or tasks: all are answered or done within a bound, through the death of the member and
its return.  HOME_DOWN_SECONDS: for how long it is away; two minutes and more by hand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import home_down_rig as rig
from tests.integration.clients import fetched
from tests.integration.clients.client_process import ClientProcess, client_process
from tests.integration.members import Member, cluster, eventually, select_nothing, wait_acquainted

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]

DOWN_SECONDS = float(os.environ.get("HOME_DOWN_SECONDS", "25"))
#: How long a dead member's consumers keep what they had (R-QQ-16): a minute, as long as runs allow.
HELD_SECONDS = 60.0 if DOWN_SECONDS > 90 else 5.0
#: Of a call with all its tries: shorter than the member is away, so that its return helps nobody.
BOUND_SECONDS = HELD_SECONDS + 15.0
FOLDER = fetched.PROGRAMS / "frameworks"
WORKER_START_SECONDS = 120.0


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Member]]:
    """Give three members; what else they have is set as it is by default."""
    held = {"BROKERD_QUEUES_DISCONNECTED_TIMEOUT_MS": f"{HELD_SECONDS * 1000:.0f}"}
    with cluster(tmp_path_factory.mktemp("frameworks"), 3, **held) as members:
        default_type = {"default_queue_type": "quorum"}
        assert rig.http_call(members[0], "PUT", "vhosts/quorum", default_type)[0] < 300
        yield members


def ports(members: list[Member]) -> list[str]:
    """Return the ports in the order in which clients try them, the one that goes first."""
    return [str(member.amqp_port) for member in members]


def _through_its_death(members: list[Member], client: ClientProcess) -> None:
    """Kill the first member under a client, keep it away, and bring it back."""
    gone = members[0]
    client.expect("ready")
    gone.kill()
    # Time is what is tested here: the member stays away, whatever the clients do.
    select_nothing(DOWN_SECONDS)
    gone.start()
    gone.wait_ready()
    wait_acquainted(members)
    client.tell("go")
    client.finish()


def _python(program: str) -> list[str]:
    return [fetched.framework_python(), str(FOLDER / f"{program}.py")]


PROGRAMS = {
    "oslo.messaging": lambda: _python("oslo_rpc"),
    "dramatiq": lambda: _python("dramatiq_actors"),
    "FastStream": lambda: _python("faststream_app"),
    "amqp-connection-manager": fetched.manager_client,
    "Spring AMQP": fetched.spring_client,
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_calls_are_answered_while_the_home_of_their_queues_is_away(
    members: list[Member], framework: str
) -> None:
    command = [*PROGRAMS[framework](), *ports(members), str(BOUND_SECONDS)]
    with client_process(command) as client:
        _through_its_death(members, client)


@contextlib.contextmanager
def _celery_worker(name: str, environment: dict[str, str], folder: Path) -> Iterator[Path]:
    """Run a worker until the end of the block; give its log."""
    log = folder / f"{name}.log"
    command = [fetched.framework_python(), "-m", "celery", "-A", "celery_tasks", "worker"]
    command += ["--pool", "solo", "--loglevel", "INFO", "--hostname", f"{name}@tests"]
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=output
        )
    try:
        eventually(lambda: b" ready." in log.read_bytes(), f"{name}: {log}", WORKER_START_SECONDS)
        yield log
        assert worker.poll() is None, log.read_text()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WORKER_START_SECONDS) == 0, log.read_text()
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.wait()


def test_celery_does_its_tasks_while_the_home_of_its_own_queues_is_away(
    members: list[Member], tmp_path: Path
) -> None:
    """Task queue of quorum type; remote control, events and results in queues of the home."""
    own = {
        "PYTHONPATH": str(FOLDER),
        "CELERY_DONE": str(tmp_path / "done"),
        "CELERY_PORTS": ",".join(ports(members)),
    }
    environment = os.environ | own
    # One worker that loses its own member as well, and one that does not.
    elsewhere = environment | {"CELERY_PORTS": ",".join(ports(members[1:] + members[:1]))}
    with (
        _celery_worker("here", environment, tmp_path),
        _celery_worker("elsewhere", elsewhere, tmp_path),
        client_process(
            [
                "env",
                *(f"{key}={environment[key]}" for key in own),
                *_python("celery_calls"),
                str(BOUND_SECONDS),
            ]
        ) as client,
    ):
        _through_its_death(members, client)
