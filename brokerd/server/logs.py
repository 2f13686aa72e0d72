"""Log lines on stderr: text for people, JSON for collectors; with a priority for the journal."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from brokerd.config import LogConfig


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S"),
            "level": record.levelname.lower(),
            "room": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


class _JournalFormatter(logging.Formatter):
    """Puts the priority before each line, as sd-daemon(3) has it, for `journalctl -p warning`."""

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_priority(record.levelno)}>"
        return prefix + self._inner.format(record).replace("\n", f"\n{prefix}")


def _priority(level: int) -> int:
    """Return syslog's number of a level: critical, error, warning, informational, debug."""
    steps = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
    return next((number for least, number in steps if level >= least), 7)


def goes_to_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Tell whether a stream is the one that systemd has connected with its journal."""
    try:
        found = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def set_up(config: LogConfig) -> None:
    """Send the logs of all rooms to stderr."""
    handler = logging.StreamHandler(sys.stderr)
    if config.format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(
            logging.Formatter("%(asctime)s.%(msecs)03d [%(levelname)s] %(message)s", "%H:%M:%S")
        )
    if goes_to_journal(handler.stream, os.environ):
        assert handler.formatter is not None
        handler.setFormatter(_JournalFormatter(handler.formatter))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
