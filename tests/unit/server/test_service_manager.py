"""server/service_manager.py: what a service manager hears of a member (sd_notify)."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerd.config import ListenerConfig
from brokerd.server import service_manager
from tests.ports import free_ports

PATIENCE_S = 120


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(PATIENCE_S)
        yield sock


def test_a_name_of_a_file_and_an_abstract_one_are_told(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(service_manager.VARIABLE, manager.getsockname())
    service_manager.notify(service_manager.READY)
    assert manager.recv(99) == b"READY=1"
    name = f"brokerd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind(f"\0{name}")
        abstract.settimeout(PATIENCE_S)
        monkeypatch.setenv(service_manager.VARIABLE, f"@{name}")
        service_manager.notify(service_manager.STOPPING)
        assert abstract.recv(99) == b"STOPPING=1"


def test_a_manager_that_is_gone_costs_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.delenv(service_manager.VARIABLE, raising=False)
    service_manager.notify(service_manager.READY)
    assert not caplog.records
    monkeypatch.setenv(service_manager.VARIABLE, str(tmp_path / "none"))
    with caplog.at_level(logging.WARNING):
        service_manager.notify(service_manager.READY)
    assert "cannot be told READY=1" in caplog.text


def test_a_member_is_ready_when_clients_are_let_in_and_says_that_it_stops(
    manager: socket.socket, tmp_path: Path
) -> None:
    names = [name.upper() for name in ListenerConfig.model_fields if name != "backlog"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    environment = {f"BROKERD_LISTENERS_{name}": str(port) for name, port in ports.items()}
    environment[service_manager.VARIABLE] = manager.getsockname()
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "brokerd", "serve"),
                *("--bind", "127.0.0.1", "--data-dir", str(tmp_path / "data")),
            ],
            env=os.environ | environment,
            stdout=log,
            stderr=log,
        )
        try:
            assert manager.recv(99) == b"READY=1"
            socket.create_connection(("127.0.0.1", ports["AMQP"]), PATIENCE_S).close()
            process.send_signal(signal.SIGTERM)
            assert manager.recv(99) == b"STOPPING=1"
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()
