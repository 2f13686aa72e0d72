"""Client programs and their libraries, fetched by the ordinary package clients into a cache.

The locks are committed (go.sum, package-lock.json, Maven's checksums in java.sha256), what was
fetched is not. Used by the tests of established clients.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bench import load_programs

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "brokerd-clients"
PROGRAMS = Path(__file__).parent / "programs"
FETCH_SECONDS = 300
PHP_PACKAGES = (
    "php-cli", "php-amqp", "php-amqplib", "php-symfony-amqp-messenger",
    "php-symfony-event-dispatcher",
)  # fmt: skip
#: The newest; the one that PerfTest brings has no Netty.
NETTY_CLIENT_VERSION = "5.37.1"


def run(
    *command: str, cwd: Path, env: dict[str, str] | None = None, seconds: float = FETCH_SECONDS
) -> str:
    """Run a program to its end; return what it prints."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def need(tool: str, package: str) -> None:
    """Skip where a language is not installed; CI and setup.sh have them all."""
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is missing: apt-get install {package}")


def made(name: str, sources: list[Path], make: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made anew when a source has changed."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()
    folder = CACHE / f"{name}-{digest[:16]}"
    if folder.exists():
        return folder
    new = CACHE / f"{name}-{digest[:16]}.{os.getpid()}"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    try:
        make(new)
        if not folder.exists():
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def go_client() -> list[str]:
    """Return the command of the Go program."""
    need("go", "golang-go")
    source = PROGRAMS / "go"

    def build(folder: Path) -> None:
        run("go", "build", "-mod=readonly", "-o", str(folder / "goclient"), ".", cwd=source)

    return [str(made("go", list(source.iterdir()), build) / "goclient")]


def node_client() -> list[str]:
    """Return the command of the Node program."""
    need("npm", "npm")
    source = PROGRAMS / "node"
    files = [source / name for name in ("main.js", "package.json", "package-lock.json")]

    def install(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)

    return ["node", str(made("node", files, install) / "main.js")]


def php_client(program: str) -> list[str]:
    """Return the command of a PHP program; its libraries are Debian's packages."""
    need("php", " ".join(PHP_PACKAGES))
    for package in PHP_PACKAGES:
        path = Path("/usr/share/doc") / package
        if not path.exists():
            pytest.skip(f"{package} is missing: apt-get install {' '.join(PHP_PACKAGES)}")
    return ["php", str(PROGRAMS / "php" / f"{program}.php")]


def axe() -> str:
    """Return axe-core's script, which finds what keeps people from using a page."""
    need("npm", "npm")
    source = PROGRAMS / "axe"
    files = [source / name for name in ("package.json", "package-lock.json")]

    def install(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)

    return (made("axe", files, install) / "node_modules/axe-core/axe.min.js").read_text()


def java_jars() -> Path:
    """Return PerfTest with the Java client, as the bench fetches them; checksums are compared."""
    need("mvn", "maven")
    return _locked(load_programs.perftest_jars(), "java.sha256")


def _locked(folder: Path, sums: str) -> Path:
    for line in (PROGRAMS / "java" / sums).read_text().splitlines():
        wanted, name = line.split()
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert found == wanted, f"{name} is not what was locked"
    return folder


def java_client() -> list[str]:
    """Return the command of the Java program."""
    return _java_program("Main", java_jars())


def idle_java_client() -> list[str]:
    """Return the command of the program with idle connections, over a Java client with Netty."""
    need("mvn", "maven")
    artifact = f"com.rabbitmq:amqp-client:{NETTY_CLIENT_VERSION}"
    jars = load_programs.maven_jars(f"amqp-client-{NETTY_CLIENT_VERSION}", (artifact,))
    return _java_program("Idle", _locked(jars, "idle.sha256"))


def _java_program(name: str, jars: Path) -> list[str]:
    need("javac", "openjdk-17-jdk-headless")
    source = PROGRAMS / "java" / f"{name}.java"

    def compile_(folder: Path) -> None:
        run("javac", "-cp", f"{jars}/*", "-d", str(folder), str(source), cwd=folder)

    classes = made("java", [source], compile_)
    quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
    return ["java", quiet, "-cp", f"{classes}:{jars}/*", name]


def framework_python() -> str:
    """Return the Python that has the frameworks of programs/frameworks."""
    lock = PROGRAMS / "frameworks" / "frameworks.txt"

    def install(folder: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder)
        python = str(folder / "env" / "bin" / "python")
        uv = str(Path(sys.executable).parent / "uv")
        run(
            *(uv, "pip", "sync", "--quiet", "--require-hashes", "--link-mode", "copy"),
            *("--python", python, str(lock)),
            cwd=folder,
        )

    return str(made("frameworks", [lock], install) / "env" / "bin" / "python")


def manager_client() -> list[str]:
    """Return the command of the program of amqp-connection-manager."""
    need("npm", "npm")
    source = PROGRAMS / "manager"
    files = [source / name for name in ("main.js", "package.json", "package-lock.json")]

    def install(folder: Path) -> None:
        for file in files:
            shutil.copy(file, folder)
        run("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", cwd=folder)

    return ["node", str(made("manager", files, install) / "main.js")]


def spring_client(program: str = "Calls") -> list[str]:
    """Return the command of a Spring AMQP program; checksums are compared."""
    need("mvn", "maven")
    need("javac", "openjdk-17-jdk-headless")
    source = PROGRAMS / "spring"

    def compile_(folder: Path) -> None:
        shutil.copy(source / "pom.xml", folder)
        goal = ("dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime")
        run("mvn", "--batch-mode", "--quiet", "--strict-checksums", *goal, cwd=folder)
        run("sha256sum", "--check", "--quiet", str(source / "jars.sha256"), cwd=folder / "lib")
        programs = map(str, source.glob("*.java"))
        run("javac", "-cp", f"{folder / 'lib'}/*", "-d", "classes", *programs, cwd=folder)

    folder = made("spring", list(source.iterdir()), compile_)
    return ["java", "-cp", f"{folder / 'classes'}:{folder / 'lib'}/*", program]
