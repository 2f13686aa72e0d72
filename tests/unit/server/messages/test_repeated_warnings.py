"""Warnings that messages cause are logged at most once a minute, and remembered within a bound."""

from __future__ import annotations

import logging

import pytest

from brokerd.server.messages.repeated_warnings import EVERY_S, TEXTS_MAX, RepeatedWarnings


def test_same_text_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    """R-AE-4."""
    caplog.set_level(logging.WARNING)
    warnings = RepeatedWarnings()
    # Times whose difference to a minute before is not exact in binary.
    for now_s in (4498.794757427, 4498.9, 4498.8 + EVERY_S):
        warnings.warn("no such exchange", now_s)
    warnings.warn("another", 4498.9)
    assert [record.message for record in caplog.records] == ["no such exchange"] * 2 + ["another"]


def test_texts_are_remembered_within_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    warnings = RepeatedWarnings()
    for number in range(TEXTS_MAX + 1):
        warnings.warn(str(number), 1.0)
    warnings.warn("0", 1.0)
    assert len(caplog.records) == TEXTS_MAX + 2
