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
import re
import shutil
import sys
from pathlib import Path

from tests.integration.clients.fetched import CACHE, PROGRAMS, made, run

LOCK = Path(__file__).parent / "suites_lock"
FETCH_SECONDS = 1800


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


#: Where crates are compiled: the path is compiled into them.
CARGO = {
    "CARGO_TARGET_DIR": str(CACHE / "cargo-target"),
    "CARGO_PROFILE_DEV_DEBUG": "0",
    "CARGO_PROFILE_TEST_DEBUG": "0",
    "CARGO_INCREMENTAL": "0",
}
CARGO_TEST = ("cargo", "test", "--locked", "--all-features", "--test", "integration")


def cargo(crate: str) -> Path:
    """Return a folder with a crate's sources, its integration tests compiled."""
    sums = LOCK / "rust" / f"{crate}.sha256"
    name = sums.read_text().split()[1].removesuffix(".crate")

    def unpack(folder: Path) -> None:
        version = name.removeprefix(f"{crate}-")
        _run("cargo", "info", "--quiet", f"{crate}@{version}", cwd=folder)
        home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
        (archive,) = (home / "registry" / "cache").glob(f"*/{name}.crate")
        shutil.copy(archive, folder)
        _check(folder, sums)
        shutil.unpack_archive(folder / archive.name, folder, "gztar", filter="data")

    folder = made(f"suite-{crate}", [sums], unpack) / name
    _run(*CARGO_TEST, "--no-run", cwd=folder, env=CARGO)
    return folder


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


#: Classes of the suite of 2017 that use what the newest client no longer has; none needs a broker.
#: The last two only list others.
JAVA_LEFT_OUT = {"SslContextFactoryTest", "FrameTest", "AMQConnectionTest", "BrokenFramesTest"}
JAVA_LEFT_OUT |= {"ConnectionFactoryDefaultTlsVersion", "WorkPoolTests"}
JAVA_LEFT_OUT |= {"ClientTests", "SSLTests"}


def java() -> Path:
    """Return a folder with `lib/`, the compiled tests in `classes/` and their resources.

    `netty/`, put before them, makes the suite's connections go over Netty.
    """
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
        helpers = folder / "tests" / "java" / "com" / "rabbitmq" / "client" / "test"
        functional = helpers / "functional"
        _edit(functional / "FunctionalTests.java", r".*\bWorkPoolTests\b.*\n", "")
        # Fields that are private now, and have methods for them.
        _edit(functional / "UnexpectedFrames.java", r"\bframe\.type\b", "frame.getType()")
        _edit(functional / "UnexpectedFrames.java", r"\bframe\.channel\b", "frame.getChannel()")
        sources = [str(PROGRAMS / "java" / "Suite.java")]
        for path in (folder / "tests" / "java").rglob("*.java"):
            if path.stem not in JAVA_LEFT_OUT:
                sources.append(str(path))
        quiet = ("-nowarn", "-proc:none")
        _run("javac", *quiet, "-d", "classes", "-cp", "lib/*", *sources, cwd=folder)
        _edit(helpers / "TestUtils.java", r"\.useBlockingIo\(\)", ".netty()")
        over_netty = str(helpers / "TestUtils.java")
        _run("javac", *quiet, "-d", "netty", "-cp", "lib/*", over_netty, cwd=folder)

    return made("suite-java", files, install)


def _edit(source: Path, pattern: str, by: str) -> None:
    source.write_text(re.sub(pattern, by, source.read_text()))


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
