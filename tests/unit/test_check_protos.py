"""buf judges protos/: names always, and what a client of the last release would break on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import check_protos

ROOT = check_protos.ROOT
MESSAGES = "protos/brokerd/rpc/v1/messages.proto"
GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false")
RELEASED = "# Changelog\n\n## Unreleased\n\n## 7.8.9\n\n## 7.8.8\n"
BREAKING = [
    (r"bytes body = 5;", "bytes body = 55;"),
    (r"rpc Consume\(", "rpc Consumed("),
    (r"bool multiple = 3;", ""),
    (r'option go_package = "[^"]*"', 'option go_package = "example.com/other"'),
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Give a repository that has released 7.8.9 with the files of today."""
    shutil.copytree(ROOT / "protos", tmp_path / "protos")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    (tmp_path / "CHANGELOG.md").write_text(RELEASED)
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "7.8.9"], ["tag", "v7.8.9"]):
        subprocess.run([*GIT, *command], cwd=tmp_path, check=True, timeout=50)
    return tmp_path


def change(checkout: Path, pattern: str, text: str) -> None:
    path = checkout / MESSAGES
    changed, count = re.subn(pattern, text, path.read_text(), count=1)
    assert count == 1
    path.write_text(changed)


@pytest.mark.parametrize(("pattern", "text"), BREAKING)
def test_what_breaks_a_client_of_the_last_release_is_found(
    checkout: Path, pattern: str, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    change(checkout, pattern, text)
    assert check_protos.main(checkout) == "protos: a client of v7.8.9 would break"
    assert MESSAGES in capfd.readouterr().out


def test_what_is_added_breaks_nothing(checkout: Path) -> None:
    change(checkout, r"bool multiple = 3;", "bool multiple = 3; bool more = 44;")
    assert check_protos.main(checkout) is None


def test_before_the_first_release_nothing_is_promised(checkout: Path) -> None:
    change(checkout, *BREAKING[0])
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    assert check_protos.main(checkout) is None


def test_a_release_without_its_tag_is_no_pass(checkout: Path) -> None:
    subprocess.run([*GIT, "tag", "-d", "v7.8.9"], cwd=checkout, check=True, timeout=50)
    assert "tag v7.8.9 of the last release is missing" in str(check_protos.main(checkout))


def test_make_lint_runs_both(checkout: Path) -> None:
    """buf lint finds a wrong name, and the check ends with a status."""
    lint = (ROOT / "Makefile").read_text().partition("\nlint: ")[2].partition("\n\n")[0]
    assert "$(BIN)/buf lint" in lint
    assert "tools/check_protos.py" in lint
    change(checkout, r"rpc Consume\(", "rpc consume(")
    for command in ([str(check_protos.BUF), "lint"], [sys.executable, check_protos.__file__, "."]):
        assert subprocess.run(command, cwd=checkout, timeout=50).returncode not in (0, None)
