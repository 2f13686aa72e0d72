"""Output that is full or closed, and words that are no text: a sentence each, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from brokerd_telemetry import commands as telemetry_commands
from click.testing import CliRunner

from brokerd import standard_streams
from brokerd.ctl import errors, main


def _run(code: str, redirection: str) -> subprocess.CompletedProcess[str]:
    command = f'"{sys.executable}" -c "{code}" {redirection}'
    return subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "code",
    [
        "from brokerd.cli import main; main(['--help'])",
        "from brokerd.ctl.main import main; main(['autocomplete', 'list'])",
    ],
)
def test_output_without_room_is_a_sentence_and_status_74(code: str) -> None:
    done = _run(code, "> /dev/full")
    assert "cannot write the output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode == standard_streams.EXIT_IO


def test_a_reader_that_has_enough_is_no_failure() -> None:
    """`brokerctl list_queues | head -1` in a script with `set -o pipefail`."""
    code = "from brokerd.ctl.main import main; main(['autocomplete', 'list'])"
    command = [sys.executable, "-c", code]
    # Nobody reads: the first write fails.
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, text=True, timeout=60, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("redirection", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_good_as_the_null_device(redirection: str) -> None:
    code = "import sys; from brokerd.ctl.main import main; main(['-q', 'autocomplete', 'list'])"
    done = _run(code, redirection)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_word_that_is_no_text_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    status = main.run(["-q", "--node", "127.0.0.1:1", "add_vhost", "\udcff"])
    assert status == errors.EXIT_USAGE
    assert "b'\\xff' is not UTF-8" in capsys.readouterr().err


def test_a_missing_option_is_named_with_what_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan"]) == errors.EXIT_USAGE
    assert "-f or --filename is missing: Directory (or file)" in capsys.readouterr().err


def test_an_unknown_option_names_the_one_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list_queues", "--vhst", "x"]) == errors.EXIT_USAGE
    assert "Did you mean --vhost?" in capsys.readouterr().err


def test_tables_in_a_place_that_cannot_be_made_are_a_sentence(tmp_path: Path) -> None:
    """Before Spark starts, and before members are asked."""
    (tmp_path / "file").write_text("")
    out = str(tmp_path / "file" / "out")
    done = CliRunner().invoke(
        telemetry_commands.telemetry, ["run", "--out", out, "--pull", "127.0.0.1:1"]
    )
    assert done.exit_code == 1
    assert f"--out {out} cannot be made: Not a directory; name a directory" in done.output
