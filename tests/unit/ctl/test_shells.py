"""Root help, completion and manual pages of brokerctl."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from brokerd_operator import commands as of_the_operator
from brokerd_telemetry.commands import telemetry
from click.testing import CliRunner

from brokerd import extras
from brokerd.ctl import command_groups, main, man_pages

BIN = Path(sys.executable).parent
#: What is slow to import, or belongs to other parts.
SLOW = ("brokerd_operator", "brokerd_telemetry", "grpc", "google.protobuf", "rich")


def test_each_command_stands_in_one_group() -> None:
    grouped = [name for names in command_groups.GROUPS.values() for name in names]
    assert sorted(grouped) == sorted({*main.COMMANDS, *main._BUILT_IN})
    assert len(set(grouped)) == len(grouped)


def test_what_other_parts_bring_is_said_as_they_say_it() -> None:
    """Their help is not imported for the root's, so it must not say something else."""
    brought = {name: getattr(of_the_operator, name) for name in ("up", "plan", "export")}
    brought["telemetry"] = telemetry
    assert {
        name: command.get_short_help_str(1000) for name, command in brought.items()
    } == command_groups.OTHER_PARTS


def test_the_root_help_begins_with_up_and_cuts_nothing_off() -> None:
    found = CliRunner().invoke(main.brokerctl, ["help"]).output
    assert "..." not in found.replace("[ARGS]...", "")
    places = [found.index(f"\n  {name} ") for name in ("up", "plan", "export", "telemetry")]
    assert places == sorted(places)
    assert places[-1] < found.index("\n  list_queues ")
    for title in command_groups.GROUPS:
        assert f"\n{title}:\n" in found


def test_a_part_that_is_not_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.EXTRAS, "brokerd_operator", ("operator", "no_such_module"))
    found = " ".join(CliRunner().invoke(main.brokerctl, ["help"]).output.split())
    assert f"its other resources. Needs: {extras.how_to_install('operator')}" in found


def completed(*words: str, shell: str = "zsh") -> str:
    """Return what brokerctl tells a shell that completes the last word."""
    given = {
        "_BROKERCTL_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "\n".join(["brokerctl", *words]),
        "COMP_CWORD": str(len(words)) if shell != "fish" else words[-1],
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "from brokerd.ctl.main import main; main()"],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not imported.intersection(SLOW)
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_options_are_completed_without_slow_imports(shell: str) -> None:
    found = completed("list_q", shell=shell)
    assert "list_queues" in found
    assert "list_users" not in found
    everything = completed("", shell=shell)
    assert {"up", "plan", "grow", "completion"} <= set(everything.replace(",", "\n").split())
    assert "--formatter" in completed("list_queues", "--form", shell=shell)
    assert "pretty_table" in completed("list_queues", "--formatter", "pre", shell=shell)


def test_bash_completes_by_what_the_command_writes() -> None:
    script = (
        "source <(brokerctl completion bash); complete -p brokerctl >&2;"
        "COMP_WORDS=(brokerctl purge_); COMP_CWORD=1; _brokerctl_completion brokerctl purge_ '';"
        'echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["purge_queue"]
    assert "-F _brokerctl_completion brokerctl" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_what_is_written_for_a_shell_is_its_language(shell: str) -> None:
    """Read, not run, by the shell where it is installed."""
    text = CliRunner().invoke(main.brokerctl, ["completion", shell]).output
    assert f"_BROKERCTL_COMPLETE={shell}_complete" in text
    if shutil.which(shell):
        subprocess.run([shell, "-n"], input=text, text=True, check=True, timeout=30)


def test_manual_pages_of_all_commands_are_written(tmp_path: Path) -> None:
    done = CliRunner().invoke(main.brokerctl, ["man", str(tmp_path / "man1")])
    assert done.exit_code == 0, done.output
    made = {path.stem for path in (tmp_path / "man1").iterdir()}
    assert {
        "brokerctl",
        "brokerctl-list_queues",
        "brokerctl-up",
        "brokerd",
        "brokerd-serve",
    } <= made
    assert made >= {f"brokerctl-{name}" for name in main.COMMANDS}
    text = (tmp_path / "man1" / "brokerctl.1").read_text()
    assert '.SS "Queues and messages"' in text
    assert "[env var: BROKERD_USER]" in text
    if shutil.which("mandoc"):
        files = sorted(map(str, (tmp_path / "man1").iterdir()))
        checked = subprocess.run(
            ["mandoc", "-T", "lint", "-W", "warning", *files],
            capture_output=True,
            text=True,
            timeout=60,
        )
        # Pages have no date: the same release gives the same bytes.
        told = [line for line in checked.stdout.splitlines() if "missing date" not in line]
        assert told == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert main.run(["man", str(tmp_path / "file" / "man1")]) != 0


def test_nothing_of_a_help_text_is_a_request_of_roff() -> None:
    @click.group()
    def root() -> None:
        """Say "quoted" text with \\back-slashes.

        .SH is no request here,
        'nor is this.

        \b
        a table
          stays
        """

    text = man_pages.pages(root, "some-program")["some-program"]
    assert "\n\\&.SH is no request here,\n\\&'nor is this.\n" in text
    assert "\\(dqquoted\\(dq text with \\eback\\-slashes" in text
    assert ".nf\na table\n  stays\n.fi\n" in text
