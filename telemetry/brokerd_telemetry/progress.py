"""Tells how far a long step is, while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Time between two reports; what takes less is reported when it is done.
EVERY_S = 15


@contextmanager
def reported(say: Callable[[str], None], so_far: Callable[[], str]) -> Iterator[None]:
    """Say time and again what `so_far` returns, from a thread of its own, until the block ends."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(EVERY_S):
            say(so_far())

    thread = threading.Thread(target=tell, name="telemetry-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
