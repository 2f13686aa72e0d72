"""The fake broker in a thread, for the tests of the operator as a process."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.operator.fake_broker import FakeBroker


class BrokerThread:
    """A fake broker with an event loop of its own: tests are synchronous here."""

    def __init__(self) -> None:
        self.broker = FakeBroker()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.call(self.broker.start())

    def call(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def do(self, function: Any, *args: Any) -> None:
        async def work() -> None:
            function(*args)

        self.call(work())

    def close(self) -> None:
        self.call(self.broker.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
