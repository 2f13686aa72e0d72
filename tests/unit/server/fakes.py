"""What the tests of several rooms of the server make up."""

from __future__ import annotations

from typing import Any


class Nobody:
    """A part of a member that a test has no business with: whoever asks it is wrong."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")
