"""A client program that runs beside a test: words from it, words to it, its end.

Used by the tests of clients in other languages.
"""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
from collections.abc import Iterator

WORD_SECONDS = 60.0


class ClientProcess:
    """State: the process and the lines it has said."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def expect(self, word: str) -> None:
        """Wait for a line that is this word; other lines are kept for the failure."""
        while True:
            try:
                line = self._lines.get(timeout=WORD_SECONDS)
            except queue.Empty:
                raise AssertionError(f"no {word!r} within time: {self._said}") from None
            assert line is not None, f"ended before {word!r}: " + "\n".join(self._said)
            if line == word:
                return
            self._said.append(line)

    def tell(self, word: str = "go") -> None:
        """Write a line to its input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(word + "\n")
            self.process.stdin.flush()

    def finish(self) -> None:
        """Wait for `done` and for status 0."""
        self.expect("done")
        assert self.process.wait(WORD_SECONDS) == 0, self._said


@contextlib.contextmanager
def client_process(command: list[str]) -> Iterator[ClientProcess]:
    """Start a program; whatever happens, it is ended."""
    client = ClientProcess(command)
    try:
        yield client
    finally:
        if client.process.poll() is None:
            client.process.kill()
        client.process.wait()
        client._reader.join(WORD_SECONDS)
        assert client.process.stdin is not None
        assert client.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            client.process.stdin.close()
        client.process.stdout.close()
