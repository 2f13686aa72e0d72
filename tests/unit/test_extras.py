"""brokerd/extras.py: the command that brings what is missing names this Python."""

from __future__ import annotations

import shlex

import pytest

from brokerd import extras


def test_the_installer_is_that_of_this_python(monkeypatch: pytest.MonkeyPatch) -> None:
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
