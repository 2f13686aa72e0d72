"""What a page of a deep queue costs its leader: `python -m bench.micro_browse [MESSAGES]`.

In one process, without network and disk: the queue's machine and its pages, entries of ten messages
of 100 bytes.  Processor time of the loop's thread, and wall time, which has rests in it (ADR 53).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from dataclasses import dataclass

from brokerd.core.machine import Meta
from brokerd.core.queue import browse, enqueue_commands
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from brokerd.server.listings import browse_filters
from brokerd.server.queues.browsing import Question, QueueBrowser
from brokerd.server.queues.walking import Walker

PER_ENTRY, BODY = 10, b"x" * 100
ROUNDS = 20


@dataclass
class Circumstances:
    """A command's place in the log."""

    index: int
    term: int
    now_ms: int


class Leader:
    """One queue, led here; all entries are alike but for their numbers."""

    def __init__(self, count: int) -> None:
        self.state = QueueMachine(QueueOptions(queue_type="quorum"))
        contents = [(("", "q"), b"\x00\x00", BODY, b"")] * PER_ENTRY
        for index in range(1, count // PER_ENTRY + 1):
            first = (index - 1) * PER_ENTRY + 1
            self.command = enqueue_commands.encode_enqueue("n", 1, 1, first, contents)
            meta: Meta = Circumstances(index, 1, index)
            self.state.apply(meta, self.command)

    def queue_of(self, uid: int) -> None:
        """Return nothing: a page needs no record."""

    def leads(self, uid: int) -> bool:
        """Lead all."""
        return True

    def hears_most(self, uid: int) -> bool:
        """Hear all."""
        return True

    def machine(self, uid: int) -> QueueMachine:
        """Return the queue."""
        return self.state

    def entry_data(self, uid: int, index: int) -> bytes:
        """Return an entry."""
        return self.command


async def measure(count: int) -> None:
    """Print what pages cost."""
    leader = Leader(count)
    browser = QueueBrowser(Walker(leader, lambda: 1, lambda: 0))
    level = leader.state.store.level_counts()[0][0]
    middle = browse.Place(browse.Stage.FRESH, level, count // 2, 0)
    questions = {
        "first 20": Question(count=20, body_bytes=1024),
        "first 500": Question(count=500, body_bytes=1024),
        "500 from the middle": Question(count=500, body_bytes=1024, place=middle),
        "500 from a number": Question(count=500, body_bytes=1024, first_number=count // 2),
        "last 500": Question(count=500, body_bytes=1024, tail=500),
    }
    for name, question in questions.items():
        used, took = [], []
        for _ in range(ROUNDS):
            began, wall = time.thread_time(), time.perf_counter()
            page = await browser.page(1, question)
            used.append(1000 * (time.thread_time() - began))
            took.append(1000 * (time.perf_counter() - wall))
        used_ms, took_ms = statistics.median(used), statistics.median(took)
        print(f"{name}: {len(page.messages)} messages, {used_ms:.2f} ms CPU, {took_ms:.1f} ms")
    for text in (f"number > {count}", 'headers["a"] == "b"', 'body.matches("y$")'):
        await look_through(browser, text)


async def look_through(browser: QueueBrowser, text: str) -> None:
    """Print what a filter that finds nothing costs, page after page."""
    matching = browse_filters.compiler(lambda: 1)(text)
    looked = 0
    question = Question(count=500)
    began, wall = time.thread_time(), time.perf_counter()
    while True:
        page = await browser.page(1, question, matching)
        looked += page.looked
        if page.place is None:
            break
        question.place = page.place
    used_us = 1e6 * (time.thread_time() - began) / looked
    rate = looked / (time.perf_counter() - wall)
    print(f"{text}: {looked:,}, {used_us:.1f} us CPU of the loop each, {rate:,.0f} a second")


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000))
