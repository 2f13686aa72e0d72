"""Warnings that messages cause: the same text at most once a minute (R-AE-4)."""

from __future__ import annotations

import logging

log = logging.getLogger(__name__)

EVERY_S = 60.0
#: Texts that are remembered; they hold names that clients choose.
TEXTS_MAX = 1024


class RepeatedWarnings:
    """Remembers when a text was logged last."""

    def __init__(self) -> None:
        self._logged: dict[str, float] = {}

    def warn(self, text: str, now_s: float) -> None:
        """Log a text unless it was logged within the last minute."""
        logged_s = self._logged.get(text)
        if logged_s is not None and now_s - logged_s < EVERY_S:
            return
        if len(self._logged) >= TEXTS_MAX:
            self._logged.clear()
        self._logged[text] = now_s
        log.warning("%s", text)
