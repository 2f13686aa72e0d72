"""A real OCI registry on loopback, with its data in a folder. For tests that push and pull."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.members import eventually
from tests.ports import free_ports


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[str]:
    """Give its host:port; it speaks plain HTTP and lets everybody in."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("docker-registry is missing: apt-get install docker-registry")
    (port,) = free_ports(1)
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "data")}},
        "http": {"addr": f"127.0.0.1:{port}"},
        "log": {"accesslog": {"disabled": True}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yml").write_text(yaml.safe_dump(config))
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", str(folder / "config.yml")], stdout=log, stderr=log
        )

    def answers() -> bool:
        assert process.poll() is None, (folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    try:
        eventually(answers, "the registry answers")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()
