"""brokerd/extras.py: the command that brings what is missing names this Python."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from brokerd import extras


def test_the_installer_is_that_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.prefix", "/my tools")
    monkeypatch.setattr("sys.executable", "/my tools/bin/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    assert shlex.split(extras.how_to_install("operator")) == [
        *("/my tools/bin/python", "-m", "pip", "install", "brokerd[operator]"),
    ]
    # As in an environment that uv made.
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert shlex.split(extras.how_to_install("delta")) == [
        *("uv", "pip", "install", "--python", "/my tools/bin/python", "brokerd[delta]"),
    ]


def test_in_the_environment_of_a_checkout_it_is_what_the_documents_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(extras.__file__).parents[1]
    monkeypatch.setattr("sys.prefix", str(root / ".venv"))
    assert extras.how_to_install("operator") == f"make -C {root} install EXTRAS=operator"
    assert "EXTRAS=operator" in (root / "docs/getting-started.md").read_text()
    # It has no lock file.
    assert "brokerd[delta]" in extras.how_to_install("delta")
