"""Which form runs, and that compiled code never runs beside other sources than its own (ADR 32)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from brokerd import compiled
from tools import compiled as tool

ROOT = Path(__file__).resolve().parents[2]
FORM = "from brokerd import compiled; print(compiled.form())"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the package, whose sources a test may change."""
    unneeded = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "brokerd", tmp_path / "brokerd", ignore=unneeded)
    return tmp_path


def run(checkout: Path, code: str, wanted: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(checkout), compiled.VARIABLE: wanted}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=checkout, env=env, text=True, capture_output=True
    )


def digest_of(checkout: Path) -> str:
    return run(checkout, "from brokerd import compiled; print(compiled.digest())", "0").stdout


def compile_one(checkout: Path) -> None:
    """Put what stands for an extension into the cache: its place and name are what is looked at."""
    folder = checkout / "build" / "compiled" / digest_of(checkout).strip()
    place = folder / "brokerd" / "raft" / f"node{compiled.suffix()}"
    place.parent.mkdir(parents=True)
    place.touch()
    (folder / compiled.STAMP).touch()


def test_a_checkout_is_plain_python_unless_it_is_asked(checkout: Path) -> None:
    assert run(checkout, FORM, "0").stdout.strip() == "python"
    assert run(checkout, FORM, "").stdout.strip() == "python"


def test_what_is_not_compiled_is_said_and_not_run(checkout: Path) -> None:
    done = run(checkout, FORM, "1")
    assert done.returncode != 0
    assert "make compiled" in done.stderr


def test_a_word_that_means_nothing_is_refused(checkout: Path) -> None:
    done = run(checkout, FORM, "yes")
    assert done.returncode != 0
    assert "BROKERD_COMPILED=yes" in done.stderr


def test_what_was_compiled_from_these_sources_is_taken(checkout: Path) -> None:
    compile_one(checkout)
    assert run(checkout, FORM, "1").stdout.strip() == "compiled"


@pytest.mark.parametrize("name", ["raft/node.py", "config.py", "ctl/main.py"])
def test_compiled_code_of_older_sources_is_not_taken(checkout: Path, name: str) -> None:
    """Any module counts: constants of others stand in compiled code."""
    compile_one(checkout)
    with (checkout / "brokerd" / name).open("a") as source:
        source.write("\n")
    done = run(checkout, FORM, "1")
    assert done.returncode != 0
    assert "make compiled" in done.stderr


def test_a_build_that_was_broken_off_is_not_taken(checkout: Path) -> None:
    compile_one(checkout)
    for stamp in checkout.rglob(compiled.STAMP):
        stamp.unlink()
    assert run(checkout, FORM, "1").returncode != 0


def test_an_installation_with_both_forms_runs_plain_python_when_asked(checkout: Path) -> None:
    """As a wheel lies: extensions beside the sources."""
    (checkout / "brokerd" / "raft" / f"node{compiled.suffix()}").touch()
    assert run(checkout, FORM, "1").stdout.strip() == "compiled"
    assert run(checkout, FORM, "").stdout.strip() == "compiled"
    assert run(checkout, FORM, "0").stdout.strip() == "python"
    done = run(checkout, "import brokerd.raft.node as n; print(n.__file__)", "0")
    assert done.stdout.strip().endswith("node.py")


def test_every_module_that_is_named_for_compiling_exists() -> None:
    names = tool.sources()
    assert len(names) > 150
    for left_out in tool.LEFT_OUT:
        assert (ROOT / "brokerd" / left_out).exists()
