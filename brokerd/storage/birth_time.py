"""When a file was made: statx(2), which Python 3.11 does not offer.

For disk.py only.  0 where the kernel, the C library or the file system does not say.
"""

from __future__ import annotations

import ctypes
from typing import Any

AT_EMPTY_PATH = 0x1000
STATX_BTIME = 0x800


class _Timestamp(ctypes.Structure):
    """struct statx_timestamp of linux/stat.h."""

    _fields_ = (
        ("seconds", ctypes.c_int64),
        ("nanoseconds", ctypes.c_uint32),
        ("reserved", ctypes.c_int32),
    )


class _Statx(ctypes.Structure):
    """struct statx of linux/stat.h: 256 bytes, of which these are looked at."""

    _fields_ = (
        ("mask", ctypes.c_uint32),
        ("before", ctypes.c_uint8 * 60),
        ("accessed", _Timestamp),
        ("born", _Timestamp),
        ("after", ctypes.c_uint8 * 160),
    )


def _find_statx() -> Any:
    try:
        return ctypes.CDLL(None).statx
    except (AttributeError, OSError):
        return None


_statx = _find_statx()


def birth_time_ns(descriptor: int) -> int:
    """Return when the open file was made, in nanoseconds since the epoch; 0: unknown."""
    found = _Statx()
    if _statx is None or _statx(descriptor, b"", AT_EMPTY_PATH, STATX_BTIME, ctypes.byref(found)):
        return 0
    if not found.mask & STATX_BTIME:
        return 0
    return int(found.born.seconds * 10**9 + found.born.nanoseconds)
