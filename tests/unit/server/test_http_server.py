"""What the HTTP listener says about requests that cannot be read."""

from __future__ import annotations

import logging

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from brokerd.server import http_server
from brokerd.server.http_server import _OneLine


def complain(logger: logging.Logger, error: Exception) -> None:
    try:
        raise error
    except Exception:
        logger.exception("Error handling request from %s", "10.0.0.1")


def test_one_line_a_second_with_what_was_left_out(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(http_server.time, "monotonic", lambda: now)
    logger = logging.getLogger("tests.http")
    one_line = _OneLine()
    logger.addFilter(one_line)
    try:
        for _ in range(3):
            complain(logger, BadHttpMessage("Bad %s\nquote: \x1b[31m"))
        now += 1.0
        one_line.warn("too many connections from %s", "10.0.0.2")
        now += 1.0
        complain(logger, ValueError("ours"))
    finally:
        logger.removeFilter(one_line)
    first, second, third = caplog.records
    assert "10.0.0.1: " in first.getMessage()
    assert "\n" not in first.getMessage()
    assert "\x1b" not in first.getMessage()
    assert first.exc_info is None
    assert second.getMessage().endswith("from 10.0.0.2 (2 more since the last line)")
    assert third.exc_info is not None
