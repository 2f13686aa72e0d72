"""The established clients' own test suites, fetched as their authors published them.

From the Go module proxy, npm, PyPI (source distributions), Debian (source packages) and Maven
Central, by their ordinary clients, checked against suites_lock/, into the cache. Nothing of them is
changed or committed. Used by suites.py.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

from tests.integration.clients.fetched import PROGRAMS, made, run

LOCK = Path(__file__).parent / "suites_lock"
FETCH_SECONDS = 600


def _run(*command: str, cwd: Path, env: dict[str, str] | None = None) -> str:
    return run(*command, cwd=cwd, env=env, seconds=FETCH_SECONDS)


def _check(folder: Path, sums: Path) -> None:
    for line in sums.read_text().splitlines():
        wanted, name = line.split()
        if hashlib.sha256((folder / name).read_bytes()).hexdigest() != wanted:
            raise RuntimeError(f"{name} is not what {sums.name} says")


#: Folder of suites_lock with go.mod and go.sum, and the module in it, by suite.
GO_MODULES = {
    "amqp091-go": (PROGRAMS / "go", "github.com/rabbitmq/amqp091-go"),
    "rabbit-hole": (LOCK / "rabbit-hole", "github.com/michaelklishin/rabbit-hole/v2"),
}


def go(suite: str) -> Path:
    """Return a folder with a module's sources and its compiled tests, `suite.test`."""
    program, module = GO_MODULES[suite]

    def build(folder: Path) -> None:
        listed = _run("go", "mod", "download", "-json", module, cwd=program)
        shutil.copytree(json.loads(listed)["Dir"], folder, dirs_exist_ok=True)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
        _run("go", "test", "-c", "-tags", "integration", "-o", "suite.test", ".", cwd=folder)

    return made(f"suite-{suite}", [program / "go.mod", program / "go.sum"], build)


def node() -> Path:
    """Return the folder of the amqplib that still ships its tests."""
    files = list((LOCK / "node").iterdir())

    def install(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        _run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)
        # Node's runner leaves out what is below node_modules.
        shutil.copytree(folder / "node_modules" / "amqplib", folder / "amqplib")

    return made("suite-node", files, install) / "amqplib"


def python() -> Path:
    """Return a folder with `env/`, an environment, and the unpacked source distributions."""
    files = [LOCK / "python.txt", LOCK / "sources.txt"]

    def install(folder: Path) -> None:
        _run(sys.executable, "-m", "venv", "env", cwd=folder)
        pip = str(folder / "env" / "bin" / "pip")
        quiet = ("--quiet", "--disable-pip-version-check", "--require-hashes")
        _run(pip, "install", *quiet, "-r", str(LOCK / "python.txt"), cwd=folder)
        path = f"{folder / 'env' / 'bin'}:{os.environ['PATH']}"
        _run(
            *(pip, "download", *quiet, "--no-deps", "--no-binary", ":all:"),
            *("--no-build-isolation", "-r", str(LOCK / "sources.txt")),
            cwd=folder,
            env={"PATH": path},
        )
        for archive in folder.glob("*.tar.gz"):
            shutil.unpack_archive(archive, folder, filter="data")

    return made("suite-python", files, install)


def java() -> Path:
    """Return a folder with `lib/`, the compiled tests in `classes/` and their resources."""
    files = [*(LOCK / "java").iterdir(), PROGRAMS / "java" / "Suite.java"]

    def install(folder: Path) -> None:
        shutil.copy(LOCK / "java" / "pom.xml", folder)
        goal = ("dependency:copy-dependencies", "-DoutputDirectory=lib")
        _run("mvn", "--batch-mode", "--quiet", *goal, cwd=folder)
        _check(folder / "lib", LOCK / "java" / "jars.sha256")
        _debian_source(folder, "rabbitmq-java-client")
        _check(folder, LOCK / "java" / "sources.sha256")
        (archive,) = folder.glob("rabbitmq-java-client_*.orig.tar.gz")
        shutil.unpack_archive(archive, folder, filter="data")
        (tests,) = folder.glob("rabbitmq-java-client-*/src/test")
        tests.rename(folder / "tests")
        sources = [str(path) for path in (folder / "tests" / "java").rglob("*.java")]
        sources.append(str(PROGRAMS / "java" / "Suite.java"))
        _run(
            "javac", "-nowarn", "-proc:none", "-d", "classes", "-cp", "lib/*", *sources, cwd=folder
        )

    return made("suite-java", files, install)


def _debian_source(folder: Path, package: str) -> None:
    """Let apt fetch a source package, with lists of its own: the machine's stay as they are."""
    (folder / "sources.list").write_text("deb-src http://deb.debian.org/debian bookworm main\n")
    (folder / "lists" / "partial").mkdir(parents=True)
    settings = [
        *("-o", f"Dir::Etc::sourcelist={folder / 'sources.list'}"),
        *("-o", "Dir::Etc::sourceparts=-"),
        *("-o", f"Dir::State::lists={folder / 'lists'}"),
        *("-o", "APT::Get::List-Cleanup=0"),
    ]
    _run("apt-get", *settings, "update", "-q", cwd=folder)
    # Some mirrors lack the second archive of this package, which is not needed: sources.sha256
    # says whether what is needed came.
    with contextlib.suppress(AssertionError):
        _run("apt-get", *settings, "source", "--download-only", "-q", package, cwd=folder)
