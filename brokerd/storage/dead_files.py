"""Files of the log that nothing refers to any more: deleted one by one, beside the writes.

For segments.py.  The kernel takes 17 to 55 ms to let go of 64 MiB, and a deleted queue with a
million messages leaves eleven such files at each of its members at once: deleting them between
two writes would hold up all of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from brokerd.storage.disk import Disk

#: Between two files, so that others' syncs come in between.
REST_S = 0.1


class DeadFiles:
    """State: the files and their sizes; the thread that deletes them, while there are some.

    Invariant: each file has a name by which the next start knows that it may go.
    """

    def __init__(self, disk: Disk, report: Callable[[str], None], in_background: bool) -> None:
        self._disk = disk
        self._report = report
        self._in_background = in_background
        self._files: deque[tuple[Path, int]] = deque()
        self._deleting: threading.Thread | None = None
        #: Held where files and thread must fit together.
        self._lock = threading.Lock()
        self._closing = threading.Event()

    def add(self, path: Path, size: int) -> None:
        """Have a file deleted, some time soon; OSError where that is done at once."""
        if not self._in_background:
            self._disk.unlink(path)
            return
        with self._lock:
            self._files.append((path, size))
            if self._deleting is None and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="wal-dead", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    # It goes with the next one, or the next start.
                    self._report(f"files that nothing needs stay for now: {error}")
                else:
                    self._deleting = thread

    def take(self, size: int) -> Path | None:
        """Return one of this size to be used again, which is deleted no more; None: there is none.

        A disk that is full until they are deleted has room for the next segment all the same.
        """
        with self._lock:
            # The first one may be gone already.
            for at in range(len(self._files) - 1, 0, -1):
                path, found = self._files[at]
                if found == size:
                    del self._files[at]
                    return path
        return None

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._files or self._closing.is_set():
                    self._deleting = None
                    return
                path, _ = self._files[0]
            try:
                self._disk.unlink(path)
            except OSError as error:
                self._report(
                    f"cannot delete {path}, of which nothing is needed: {error}; "
                    "the next start tries again"
                )
            with self._lock:
                self._files.popleft()
            self._closing.wait(REST_S)

    def bytes_on_disk(self) -> int:
        """Return the size of those that are still there."""
        with self._lock:
            return sum(size for _, size in self._files)

    def join(self) -> None:
        """Wait until all are deleted, or the files are closed."""
        with self._lock:
            thread = self._deleting
        if thread is not None:
            thread.join()

    def close(self) -> None:
        """Leave the rest to the next start."""
        self._closing.set()
        self.join()
