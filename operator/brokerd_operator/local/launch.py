"""Starts a program that never outlives the one that started it: `python -m … PARENT PROGRAM ARGS`.

The kernel sends SIGTERM to the program when its parent dies (prctl PR_SET_PDEATHSIG), however it
dies. Done in a process of its own, because code between fork and exec of a parent with threads
can deadlock. On other systems than Linux the program is only stopped by an orderly end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for the signal, then become the program."""
    parent = int(sys.argv[1])
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    # The parent may have died before prctl.
    if os.getppid() != parent:
        sys.exit(1)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
