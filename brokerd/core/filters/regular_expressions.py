"""Regular expressions of filters by RE2, whose time is linear in the text; the room's only use.

A search takes 0.1 ms for 64 KiB, and up to 50 ns for each byte of the text and each instruction of
the program where RE2's automaton outgrows its memory (`[ab]*a[ab]{200}c`, google-re2 1.1.20251105).
RE2 searches without the interpreter's lock.
"""

from __future__ import annotations

import re2

#: Instructions of all programs of one filter.
PROGRAM_SIZE_MAX = 256
#: Bytes for a program and the states that RE2 keeps of it; RE2 keeps 128 programs.
MEMORY_BYTES_MAX = 1 << 18
#: Of UTF-8: a body's length at most; headers may be longer.
SEARCHED_BYTES_MAX = 1 << 16


class RegularExpression:
    """A compiled one; ValueError, with the reason, for what RE2 does not take."""

    __slots__ = ("_compiled", "program_size")

    def __init__(self, pattern: str) -> None:
        options = re2.Options()
        options.max_mem = MEMORY_BYTES_MAX
        options.log_errors = False
        options.never_capture = True
        try:
            self._compiled = re2.compile(pattern.encode(), options)
        except re2.error as fault:
            raise ValueError(_reason(fault)) from None
        #: Instructions; those for the way back from a match's end are as many.
        self.program_size: int = self._compiled.programsize

    def search(self, value: str) -> bool | None:
        """Say whether it matches a part of the text; None for a text longer than is searched."""
        if len(value) > SEARCHED_BYTES_MAX:
            return None
        try:
            # Bytes of a header that were not UTF-8 are those bytes again: no character is one.
            raw = value.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            return None
        if len(raw) > SEARCHED_BYTES_MAX:
            return None
        return self._compiled.search(raw) is not None


def _reason(fault: Exception) -> str:
    reason = fault.args[0] if fault.args else ""
    text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
    return text.split(":")[0]
