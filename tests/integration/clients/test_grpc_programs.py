"""docs/grpc.md: its programs in four languages, made and run as the page says, plain and over TLS.

The page is the program: blocks below a file's name are files, blocks of `sh` are run in their
order.  `protoc` is the one of the lock file; go.sum and package-lock.json lie in programs/grpc.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration import grpc_restart_rig as rig
from tests.integration.clients import certificates, fetched
from tests.integration.federation_rig import admin
from tests.integration.members import REPOSITORY, Member, cluster

pytestmark = pytest.mark.timeout(900)

PAGE = (REPOSITORY / "docs" / "grpc.md").read_text()
LOCKS = fetched.PROGRAMS / "grpc"
#: What each needs, the Debian package of it, and the file with the program.
LANGUAGES = {
    "Python": ("python3", "python3", "orders.py"),
    "Go": ("go", "golang-go", "main.go"),
    "Java": ("mvn", "maven", "src/main/java/Orders.java"),
    "Node": ("npm", "npm", "orders.js"),
}
#: Fetching and building, on a busy machine.
BUILD_SECONDS = 600
RECEIVED = [f"received order {n}" for n in range(1, 11)]


def section(title: str) -> str:
    """Return a section of the page."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def files(text: str) -> dict[str, str]:
    """Return the blocks that stand below the name of a file."""
    return dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```", text, flags=re.S | re.M))


def commands(text: str) -> list[str]:
    """Return the blocks that are to be typed, in their order."""
    return re.findall(r"^```sh\n(.*?)^```", text, flags=re.S | re.M)


def over_tls(program: str, language: str) -> str:
    """Return a program with the line for TLS."""
    row = re.search(rf"^\| {language} \| `([^`]+)`", section("TLS and logins"), flags=re.M)
    assert row is not None
    line = r"^([ \t]*).*127\.0\.0\.1:5680.*$"
    changed, count = re.subn(line, lambda found: found[1] + row[1], program, flags=re.M)
    assert count == 1
    return changed.replace("grpc/credentials/insecure", "grpc/credentials")


class Project:
    """A folder in which somebody follows a section of the page."""

    def __init__(self, folder: Path, language: str) -> None:
        tool, package, self.main = LANGUAGES[language]
        fetched.need(tool, package)
        self.language = language
        self.folder = folder
        shutil.copytree(REPOSITORY / "protos", folder / "protos")
        tools = folder / "tools"
        tools.mkdir()
        for name, arguments in (("protoc", " -m grpc_tools.protoc"), ("python", "")):
            tool_path = tools / name
            # Without the .pth files, which would find this checkout's stubs.
            start = f'PYTHONPATH="{sysconfig.get_path("purelib")}" exec "{sys.executable}" -S'
            tool_path.write_text(f'#!/bin/sh\n{start}{arguments} "$@"\n')
            tool_path.chmod(0o755)
        for lock in {"Go": ["go.sum"], "Node": ["package.json", "package-lock.json"]}.get(
            language, []
        ):
            shutil.copy(LOCKS / lock, folder)
        path = f"{tools}:{os.environ['PATH']}"
        self.env = os.environ | {"PATH": path, "GOBIN": str(tools)}

    def write(self, name: str, text: str) -> None:
        """Write a file of the page."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def type(self, command: str) -> list[str]:
        """Run what the page says; return what is printed."""
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        # Maven switches colours off even where it uses none.
        return re.sub(r"\x1b\[\d*m", "", done.stdout).splitlines()


@pytest.fixture(scope="module")
def tls_member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Member, Path]]:
    folder = tmp_path_factory.mktemp("tls")
    made = certificates.make(folder / "certificates")
    with cluster(
        folder,
        1,
        BROKERD_TLS_CERT_FILE=str(made.server),
        BROKERD_TLS_KEY_FILE=str(made.server_key),
    ) as [member]:
        yield member, made.authority


def make_queue(member: Member) -> None:
    """Do it as the page does."""
    [command] = commands(section("What you need"))
    subprocess.run(
        ["bash", "-euc", command.replace(":15672", f":{member.management_port}")],
        check=True,
        timeout=60,
    )


def check_run(lines: list[str], member: Member) -> None:
    """All are confirmed, all came, in order, and none is left."""
    spans = [re.fullmatch(r"confirmed (\d+) to (\d+)", line) for line in lines]
    numbers = [n for span in spans if span for n in range(int(span[1]), int(span[2]) + 1)]
    assert numbers == list(range(1, 11)), lines
    assert [line for line in lines if line.startswith("received")] == RECEIVED
    connection = member.connect()
    left = connection.channel().queue_declare("orders", passive=True).method.message_count
    connection.close()
    assert left == 0


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_program_of_the_page_publishes_consumes_and_settles(
    member: Member, tls_member: tuple[Member, Path], language: str, tmp_path: Path
) -> None:
    text = section(language)
    project = Project(tmp_path / "project", language)
    for name, content in files(text).items():
        project.write(name, content)
    program = files(text)[project.main]
    assert program.count("127.0.0.1:5680") == 1
    *preparations, run = commands(text)
    for command in preparations:
        project.type(command)

    make_queue(member)
    project.write(project.main, program.replace("127.0.0.1:5680", f"127.0.0.1:{member.grpc_port}"))
    check_run(project.type(run), member)

    secure, authority = tls_member
    make_queue(secure)
    shutil.copy(authority, project.folder / "ca.pem")
    program = over_tls(program, language)
    project.write(project.main, program.replace("localhost:5680", f"localhost:{secure.grpc_port}"))
    check_run(project.type(run), secure)


def test_a_client_in_node_uses_all_verbs(tmp_path: Path) -> None:
    """ADR 72; the client is not Google's C core, which Python's is."""
    project = Project(tmp_path / "project", "Node")
    project.write("verbs.js", (LOCKS / "verbs.js").read_text())
    project.type("npm ci")
    with cluster(tmp_path, 1) as [member]:
        assert project.type(f"node verbs.js 127.0.0.1:{member.grpc_port}") == ["all verbs"]


def test_a_client_in_node_is_told_what_goes_wrong(tmp_path: Path) -> None:
    """Limits, mistakes and ends have the status and the words that the reference page gives."""
    project = Project(tmp_path / "project", "Node")
    project.write("faults.js", (LOCKS / "faults.js").read_text())
    project.type("npm ci")
    with cluster(tmp_path, 1) as [member]:
        with admin(member) as settings:
            settings.put("vhost", "\u00fc", {}, vhost="")
            rights = {"configure": ".*", "write": ".*", "read": ".*"}
            settings.put("permission", "guest", rights, vhost="\u00fc")
        assert project.type(f"node faults.js 127.0.0.1:{member.grpc_port}") == [
            "tooManyCalls",
            "tooLarge",
            "cancelled",
            "octets",
            "mistakes",
        ]
        log = member.log()
        # Peers are written as people read them.
        assert "%5B" not in log
        assert " ERROR " not in log


def test_a_client_in_go_uses_all_verbs(tmp_path: Path) -> None:
    """The same with grpc-go and its generated code, which tells answers apart by nil."""
    project = Project(tmp_path / "project", "Go")
    project.write("main.go", (LOCKS / "verbs.go").read_text())
    *preparations, _ = commands(section("Go"))
    for command in preparations:
        project.type(command)
    with cluster(tmp_path, 1) as [member]:
        assert project.type(f"go run . 127.0.0.1:{member.grpc_port}") == ["all verbs"]


def test_a_rolling_restart_under_a_load_from_node_loses_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    """PublishBatch and Publish side by side; see grpc/test_rolling_restart.py."""
    project = Project(tmp_path / "project", "Node")
    project.write("load.js", (LOCKS / "load.js").read_text())
    project.type("npm ci")
    with cluster(tmp_path, 3) as members:
        rig.make_queue(members[0])
        consumer = rig.Consumer(members, "consumer")
        addresses = [f"127.0.0.1:{member.grpc_port}" for member in members]
        load = subprocess.Popen(
            ["node", "load.js", rig.QUEUE, *addresses],
            cwd=project.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            consumer.start()
            before = 0

            def is_under_load() -> bool:
                nonlocal before
                if len(consumer.bodies()) < before + 1000:
                    return False
                before = len(consumer.bodies())
                return True

            rig.roll(members, is_under_load)
            printed, _ = load.communicate(timeout=rig.END_SECONDS)
            assert load.returncode == 0
        finally:
            load.kill()
            load.wait()
        done = json.loads(printed)
        bodies = {
            body for name, count in done["counts"].items() for body in rig.expected(name, count)
        }
        rig.end(consumer, members[0], bodies)
        # Else the stops met no call.
        assert "UNAVAILABLE: this member stops: try again, elsewhere" in done["statuses"]


def test_each_language_of_the_page_is_run() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, flags=re.M)
    assert [title for title in titles if commands(section(title))] == [
        "What you need",
        *LANGUAGES,
    ]
