"""What a page of a new file costs here: one of memory that the system has had before, and others.

    python -m bench.pages [--files N] [--directory DIR]

A log that grows takes pages of memory for what it writes.  In a virtual machine those that the
system has never used are supplied by its host when they are first touched, which can cost several
times what the write does; those of files that were just deleted are there.  So a row that writes
hundreds of megabytes depends on what ran before it, with any broker.  Writes files of 256 MiB, all
of which stay, until the memory that had been in use before is used up; deletes them; and does it
again.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

FILE_BYTES = 256 << 20
#: As large as a write of the log in the row of 1,000 in flight.
WRITE_BYTES = 256 << 10
PAGE_BYTES = 4096


def write_file(path: Path) -> tuple[float, float]:
    """Write a new file with a sync after each write; return µs of system time per page, seconds."""
    data = os.urandom(WRITE_BYTES)
    descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, FILE_BYTES)
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        for offset in range(0, FILE_BYTES, WRITE_BYTES):
            os.pwrite(descriptor, data, offset)
            os.fdatasync(descriptor)
        lasted_s = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
    finally:
        os.close(descriptor)
    system_s = after.ru_stime - before.ru_stime
    return system_s * 1e6 / (FILE_BYTES // PAGE_BYTES), lasted_s


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--files", type=int, default=10, help="of 256 MiB each (default: 10)")
    parser.add_argument("--directory", type=Path, help="where they lie (default: TMPDIR)")
    args = parser.parse_args()
    print("| time | file | system time per page of 4 KiB, µs | MiB/s |\n|---|---|---|---|")
    for turn in ("first", "after these were deleted"):
        with tempfile.TemporaryDirectory(prefix="bench-pages-", dir=args.directory) as folder:
            for number in range(args.files):
                page_us, lasted_s = write_file(Path(folder) / str(number))
                rate = FILE_BYTES / 2**20 / lasted_s
                print(f"| {turn} | {number + 1} | {page_us:.1f} | {rate:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
