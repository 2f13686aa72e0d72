"""Debian's Chromium without a window, driven by its own protocol (Chrome DevTools Protocol).

For test_pages_browser.py.  Nothing but aiohttp is needed for it: a WebSocket with JSON.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

#: A busy machine; what is waited for is an event.
ANSWER_S = 120.0


class Tab:
    """State: the socket to one page, and the number of the last question."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._last = 0

    async def ask(self, method: str, **params: Any) -> Any:
        """Return the result of a command; what happens meanwhile is passed over."""
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": params})
        answer = await self._until(lambda said: said.get("id") == self._last)
        assert "error" not in answer, answer
        return answer["result"]

    async def _until(self, is_it: Any) -> Any:
        async with asyncio.timeout(ANSWER_S):
            while True:
                said = await self._socket.receive_json()
                if is_it(said):
                    return said

    async def go(self, url: str) -> None:
        """Open a page and wait until it is there with its style sheet."""
        await self.ask("Page.navigate", url=url)
        await self._until(lambda said: said.get("method") == "Page.loadEventFired")

    async def click(self, selector: str, before: str = "") -> None:
        """Click what the selector finds, and wait for the page that it leads to."""
        # A navigation ends what runs in the page, so that the click comes a moment later.
        click = f"setTimeout(() => document.querySelector({json.dumps(selector)}).click(), 0)"
        await self.ask("Runtime.evaluate", expression=f"{before};{click}")
        await self._until(lambda said: said.get("method") == "Page.loadEventFired")

    async def run(self, script: str) -> Any:
        """Return the value of an expression in the page; of a promise, its result."""
        found = await self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    async def look(self, width: int, scheme: str) -> None:
        """Be a window of this width, in a light or a dark room."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=900, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": scheme}
        await self.ask("Emulation.setEmulatedMedia", features=[feature])

    async def picture(self, file: Path) -> None:
        """Write down what is seen, for somebody to look at."""
        found = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(file.write_bytes, base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def tab(program: str, folder: Path, login: str) -> AsyncIterator[Tab]:
    """Run Chromium with one page that logs in by Basic with `user:password`."""
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--disable-dev-shm-usage", "--disable-background-networking"]
    command += ["--remote-debugging-port=0", "--remote-debugging-address=127.0.0.1"]
    command += [f"--user-data-dir={folder}", "about:blank"]
    process = await asyncio.create_subprocess_exec(
        *command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with aiohttp.ClientSession() as session:
            port = await _port(folder, process)
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [page for page in await answer.json() if page["type"] == "page"]
            url = pages[0]["webSocketDebuggerUrl"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                made = Tab(socket)
                for domain in ("Page", "Runtime", "Network"):
                    await made.ask(f"{domain}.enable")
                token = base64.b64encode(login.encode()).decode()
                headers = {"Authorization": f"Basic {token}"}
                await made.ask("Network.setExtraHTTPHeaders", headers=headers)
                yield made
    finally:
        process.terminate()
        await process.wait()


async def _port(folder: Path, process: asyncio.subprocess.Process) -> int:
    """Chromium writes down which port it took."""
    file = folder / "DevToolsActivePort"
    async with asyncio.timeout(ANSWER_S):
        while not (file.exists() and "\n" in file.read_text()):
            assert process.returncode is None, "Chromium ended while starting"
            await asyncio.sleep(0.05)
    return int(file.read_text().split()[0])
