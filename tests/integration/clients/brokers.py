"""brokerd and RabbitMQ on the ports that client suites have built in: 5672, and 5671 with TLS.

Each broker lives in a network namespace, has its own folder and is ended with it. Used by the
suites of established clients (`suites.py`) and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.integration.clients.certificates import Certificates
from tests.integration.clients.namespace import Namespace
from tests.integration.members import REPOSITORY, eventually

#: Programs of Debian's RabbitMQ, and of a second one where this names their folder.
RABBITMQ = Path("/usr/lib/rabbitmq/bin")
SECOND_RABBITMQ = os.environ.get("RABBITMQ_BIN")
START_SECONDS = 180.0
#: The management API: amqp091-go cuts connections through it, others have tests of their own.
PLUGINS = (
    "rabbitmq_management",
    "rabbitmq_shovel_management",
    "rabbitmq_federation_management",
    "rabbitmq_stream_management",
)
#: What a suite may ask the server's command line for, per broker.
RABBIT_NODE = "rabbit@localhost"


@dataclass(slots=True)
class Broker:
    """A running broker: its name in the table, and the program that stands for rabbitmqctl."""

    title: str
    control: Path


Start = Callable[[Namespace, Path, Certificates], "contextlib.AbstractContextManager[Broker]"]


def listens(inside: Namespace, port: int) -> bool:
    """Say whether somebody accepts connections on a port of the namespace."""
    found = subprocess.run(
        inside.command("ss", "-ltnH", f"sport = :{port}"), capture_output=True, text=True
    )
    return bool(found.stdout.strip())


def _wait(inside: Namespace, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    def ready() -> bool:
        if process.poll() is not None:
            raise AssertionError(f"ended while starting: {log.read_text()[-3000:]}")
        return listens(inside, port)

    eventually(ready, f"port {port}; see {log}", START_SECONDS)


def _script(path: Path, command: str) -> Path:
    # The Java client's suite is of 2017, when -q left out the line of column names too.
    plain = 'case "$*" in *"list_connections -q"*) set -- "$@" --no-table-headers;; esac'
    path.write_text(f"#!/bin/sh\n{plain}\nexec {command}\n")
    path.chmod(0o755)
    return path


@contextlib.contextmanager
def brokerd(inside: Namespace, folder: Path, certificates: Certificates) -> Iterator[Broker]:
    """Run one member with default settings."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("BROKERD_")}
    env |= {
        "PYTHONPATH": str(REPOSITORY),
        "HOME": str(folder),
        "XDG_STATE_HOME": "",
        "BROKERD_TLS_CERT_FILE": str(certificates.server),
        "BROKERD_TLS_KEY_FILE": str(certificates.server_key),
        "BROKERD_TLS_CA_FILE": str(certificates.authority),
    }
    log = folder / "log"
    process = inside.start(sys.executable, "-m", "brokerd", "serve", log=log, env=env, cwd=folder)
    named = folder / "bin" / "rabbitmqctl"
    named.parent.mkdir()
    named.symlink_to(Path(sys.executable).parent / "brokerctl")
    # With a certificate for AMQPS gRPC speaks TLS too.
    control = _script(folder / "rabbitmqctl", f'{named} --ca-file {certificates.authority} "$@"')
    try:
        _wait(inside, 5672, process, log)
        eventually(lambda: "brokerd is ready" in log.read_text(), "ready", START_SECONDS)
        yield Broker("brokerd", control)
    finally:
        inside.end(process)


@contextlib.contextmanager
def rabbitmq(
    inside: Namespace, folder: Path, certificates: Certificates, programs: Path
) -> Iterator[Broker]:
    """Run a rabbitmq-server with its own data, log, cookie and port mapper."""
    (folder / "rabbitmq.conf").write_text(
        "listeners.tcp.default = 5672\nlisteners.ssl.default = 5671\n"
        f"ssl_options.cacertfile = {certificates.authority}\n"
        f"ssl_options.certfile = {certificates.server}\n"
        f"ssl_options.keyfile = {certificates.server_key}\n"
        "ssl_options.verify = verify_none\nssl_options.fail_if_no_peer_cert = false\n"
        "log.console = false\ncollect_statistics_interval = 500\n"
    )
    (folder / "enabled_plugins").write_text(f"[{','.join(PLUGINS)}].\n")
    (folder / "rabbitmq-env.conf").write_text("")
    cookie = folder / ".erlang.cookie"
    cookie.write_text("SUITESCOOKIE")
    cookie.chmod(0o400)
    env = {
        "HOME": str(folder),
        "RABBITMQ_NODENAME": RABBIT_NODE,
        "RABBITMQ_CONF_ENV_FILE": str(folder / "rabbitmq-env.conf"),
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "logs"),
        "RABBITMQ_PID_FILE": str(folder / "pid"),
    }
    log = folder / "out"
    epmd = inside.start("epmd", log=log, env=env)
    process = inside.start(str(programs / "rabbitmq-server"), log=log, env=env, cwd=folder)
    try:
        _wait(inside, 5672, process, log)
        inside.run(str(programs / "rabbitmqctl"), "await_startup", timeout=START_SECONDS, env=env)
        settings = " ".join(f"{key}={value}" for key, value in env.items())
        command = f'env {settings} {programs / "rabbitmqctl"} "$@"'
        yield Broker("RabbitMQ", _script(folder / "ctl", command))
    finally:
        inside.end(process)
        inside.end(epmd)


BROKERS: dict[str, Start] = {
    "brokerd": brokerd,
    "rabbitmq": functools.partial(rabbitmq, programs=RABBITMQ),
}
if SECOND_RABBITMQ:
    BROKERS["second"] = functools.partial(rabbitmq, programs=Path(SECOND_RABBITMQ))
