"""Standard input, output and error of the command lines, which may be closed, full or narrow.

For cli.py, brokerctl (ctl/main.py) and kubectl's plugin: what goes wrong there is a sentence.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys

#: sysexits.h: EX_IOERR, as coreutils end in effect when what they print has no room.
EXIT_IO = 74


def open_closed() -> None:
    """Put the null device in the place of what is closed, so that no other file gets its number.

    Characters that the output cannot show are escaped.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free: this one.
            os.open(os.devnull, os.O_RDWR)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def in_words(error: OSError) -> str:
    """Return what an error says of a file; without a name it is the output that it is about."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else f"cannot write the output: {reason}"


def give_up_output() -> None:
    """Have what is not written yet go nowhere: the end of the process would try again."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
