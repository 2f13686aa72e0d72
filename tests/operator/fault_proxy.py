"""A real reverse proxy between an operator and the API server, which breaks things by a plan.

The operator's kubeconfig names the proxy, and the proxy has the credentials. What a plan says of a
request depends on its seed, the request's class (method and path) and how often that class was
asked, not on the order in which requests of several classes arrive: a seed is one and the same
plan, however fast the machine is. For the operator's tests of faults; it decides nothing itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import random
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import yaml
from aiohttp import web

#: Longer than any watch of a test.
TIMEOUT_S = 300
#: What the API server takes at most (3 MiB), and some more.
BODY_MAX = 8 * 1024 * 1024
#: Of the test's own requests.
TIMEOUT_ONE_S = 30
TRIES = 10
PAUSE_S = 1.0
CLOSING_S = 0.2
WRITES = frozenset(("POST", "PUT", "PATCH", "DELETE"))
#: Of a request, not of what it is about.
HOP_HEADERS = frozenset(("host", "connection", "transfer-encoding", "content-length"))
REASONS = {
    409: "Conflict",
    410: "Expired",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}
LEASES = "/leases"


@dataclass(frozen=True, slots=True)
class Fault:
    """What becomes of one request; the default is nothing."""

    #: Answer this status and do not ask the API server.
    status: int = 0
    #: Close the connection before the API server has heard of it, or after it has done it.
    is_cut_before: bool = False
    is_cut_after: bool = False
    #: Send it twice, as gateways do that try again; the second answer counts.
    is_doubled: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EventFault:
    """What becomes of one event of a watch; `end` ends the watch instead: cut, half or gone."""

    end: str = ""
    is_doubled: bool = False
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as plans see it."""

    method: str
    path: str
    is_watch: bool
    is_continued: bool

    @property
    def is_write(self) -> bool:
        return self.method in WRITES


class Plan:
    """Nothing is broken. Plans are asked in the proxy's thread."""

    def fault(self, ask: Ask) -> Fault:
        return Fault()

    def event_fault(self, path: str) -> EventFault:
        return EventFault()

    def on_before(self, ask: Ask) -> bool:
        """A write is about to be sent; False: it never is, and the connection is closed."""
        return True

    def on_after(self, ask: Ask) -> bool:
        """The API server has done a write; False: nobody hears the answer."""
        return True


class SeededFaults(Plan):
    """Everything breaks now and then, until `stop`. Counts what it did by its name."""

    def __init__(self, seed: int, rate: float = 0.3, event_rate: float = 0.25) -> None:
        self._seed = seed
        self._rate = rate
        self._event_rate = event_rate
        self._asked: Counter[str] = Counter()
        self._is_on = True
        self.done: Counter[str] = Counter()

    def stop(self) -> None:
        self._is_on = False

    def _draw(self, name: str) -> random.Random:
        self._asked[name] += 1
        return random.Random(f"{self._seed} {name} {self._asked[name]}")

    def fault(self, ask: Ask) -> Fault:
        if not self._is_on:
            return Fault()
        draw = self._draw(f"{ask.method} {ask.path} {ask.is_watch}")
        # Who cannot renew the Lease has to end: that is another test's.
        rate = self._rate / 4 if LEASES in ask.path else self._rate
        if draw.random() >= rate:
            return Fault()
        kinds = ["429", "500", "503", "cut before", "delay"]
        if ask.is_write:
            # A conflict of a POST is no taken name: a quota that was counted at the same time.
            kinds += (
                ["cut after", "409"] if ask.method == "POST" else ["cut after", "409", "doubled"]
            )
        if ask.is_watch or ask.is_continued:
            kinds.append("410")
        kind = draw.choice(kinds)
        self.done[kind] += 1
        if kind.isdecimal():
            return Fault(status=int(kind))
        return Fault(
            is_cut_before=kind == "cut before",
            is_cut_after=kind == "cut after",
            is_doubled=kind == "doubled",
            delay_s=draw.uniform(0.1, 1.5) if kind == "delay" else 0.0,
        )

    def event_fault(self, path: str) -> EventFault:
        if not self._is_on:
            return EventFault()
        draw = self._draw(f"event {path}")
        if draw.random() >= self._event_rate:
            return EventFault()
        kind = draw.choice(("cut", "half", "gone", "doubled", "late"))
        self.done[f"event {kind}"] += 1
        if kind in ("cut", "half", "gone"):
            return EventFault(end=kind)
        late_s = draw.uniform(0.2, 3.0) if kind == "late" else 0.0
        return EventFault(is_doubled=kind == "doubled", delay_s=late_s)


class Upstream:
    """The API server, past all faults, as the kubeconfig names it; much cheaper than kubectl.

    Owns one connection for each thread that asks.
    """

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self.url = url
        self.context = context
        self._of_thread = threading.local()
        self._connections: list[http.client.HTTPSConnection] = []

    @classmethod
    def of(cls, kubeconfig: Path, folder: Path) -> Upstream:
        found = yaml.safe_load(kubeconfig.read_text())
        cluster, user = found["clusters"][0]["cluster"], found["users"][0]["user"]
        pair = folder / "client.pem"
        parts = (user["client-certificate-data"], user["client-key-data"])
        pair.touch(0o600)
        pair.write_bytes(b"\n".join(base64.b64decode(part) for part in parts))
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        context.load_cert_chain(pair)
        pair.unlink()
        return cls(cluster["server"], context)

    def close(self) -> None:
        for connection in self._connections:
            connection.close()

    def get(self, path: str) -> dict[str, Any]:
        """An object or a listing."""
        found = self.request("GET", path)
        assert found is not None, f"{path} does not exist"
        return found

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> dict[str, Any] | None:
        """The answer, None for what is not there; asks again while the server is too busy."""
        pause = threading.Event()
        for _ in range(TRIES):
            try:
                return self._ask(method, path, body, content_type)
            except (OSError, http.client.HTTPException):
                # 429 when everything else on the machine is busy as well.
                self._connection().close()
            pause.wait(PAUSE_S)
        return self._ask(method, path, body, content_type)

    def _connection(self) -> http.client.HTTPSConnection:
        found: http.client.HTTPSConnection | None = getattr(self._of_thread, "connection", None)
        if found is None:
            found = http.client.HTTPSConnection(
                urlsplit(self.url).netloc, context=self.context, timeout=TIMEOUT_ONE_S
            )
            self._of_thread.connection = found
            self._connections.append(found)
        return found

    def _ask(self, method: str, path: str, body: Any, content_type: str) -> dict[str, Any] | None:
        connection = self._connection()
        data = None if body is None else json.dumps(body)
        connection.request(method, path, data, {"Content-Type": content_type})
        answer = connection.getresponse()
        said = answer.read()
        if answer.status == 404:
            return None
        if answer.status == 429 or answer.status >= 500:
            raise OSError(f"{method} {path}: {answer.status}")
        assert answer.status < 300, f"{method} {path}: {said.decode()}"
        found: dict[str, Any] = json.loads(said)
        return found


@dataclass(slots=True)
class FaultProxy:
    """Owns a thread with the proxy in it; `kubeconfig` is what the operator gets."""

    upstream_config: Path
    folder: Path
    plan: Plan = field(default_factory=Plan)
    port: int = 0
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _thread: threading.Thread | None = None
    _runner: web.AppRunner | None = None
    _session: aiohttp.ClientSession | None = None
    _upstream: Upstream | None = None

    @property
    def upstream(self) -> Upstream:
        assert self._upstream is not None
        return self._upstream

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "faults.kubeconfig"

    def start(self) -> None:
        """Listen on loopback, and write the kubeconfig."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._upstream = Upstream.of(self.upstream_config, self.folder)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault proxy")
        self._thread.start()
        self._call(self._start())
        named = {"cluster": "faults", "user": "faults"}
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "faults",
                    "contexts": [{"name": "faults", "context": named}],
                    "clusters": [
                        {
                            "name": "faults",
                            "cluster": {"server": f"http://127.0.0.1:{self.port}"},
                        }
                    ],
                    "users": [{"name": "faults", "user": {}}],
                }
            )
        )

    def close(self) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join()
        self._loop.close()
        self.upstream.close()

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _start(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        self._session = aiohttp.ClientSession(
            timeout=timeout, auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)
        )
        app = web.Application(client_max_size=BODY_MAX)
        app.router.add_route("*", "/{path:.*}", self._handle)
        # A watch ends at the API server when the operator has gone.
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        server = site._server
        assert isinstance(server, asyncio.Server)
        self.port = server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._runner.cleanup()
        await self._session.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        # Transports that are closing need some turns of the loop to be closed.
        await asyncio.sleep(CLOSING_S)

    # ---- requests -----------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        ask = Ask(request.method, request.path, "watch" in query, "continue" in query)
        body = await request.read()
        fault = self.plan.fault(ask)
        await asyncio.sleep(fault.delay_s)
        if fault.status:
            return _refusal(fault.status)
        if fault.is_cut_before or (ask.is_write and not self.plan.on_before(ask)):
            return _cut(request)
        if ask.is_watch:
            return await self._watch(request, ask)
        answer = await self._ask(request, body)
        if fault.is_doubled:
            answer = await self._ask(request, body)
        if fault.is_cut_after or (ask.is_write and not self.plan.on_after(ask)):
            return _cut(request)
        return answer

    def _send(self, request: web.Request, body: bytes) -> Any:
        assert self._session is not None
        headers = {
            name: text for name, text in request.headers.items() if name.lower() not in HOP_HEADERS
        }
        return self._session.request(
            request.method,
            f"{self.upstream.url}{request.raw_path}",
            # An empty body is none: the API server would read one as an object without fields.
            data=body or None,
            headers=headers,
            ssl=self.upstream.context,
        )

    async def _ask(self, request: web.Request, body: bytes) -> web.Response:
        async with self._send(request, body) as found:
            data = await found.read()
            return web.Response(status=found.status, body=data, headers=_headers(found))

    # ---- watches ------------------------------------------------------------------------------

    async def _watch(self, request: web.Request, ask: Ask) -> web.StreamResponse:
        async with self._send(request, b"") as found:
            response = web.StreamResponse(status=found.status, headers=_headers(found))
            response.enable_chunked_encoding()
            with contextlib.suppress(aiohttp.ClientError, ConnectionError):
                await response.prepare(request)
                await self._forward(request, ask, found, response)
        return response

    async def _forward(
        self,
        request: web.Request,
        ask: Ask,
        found: aiohttp.ClientResponse,
        response: web.StreamResponse,
    ) -> None:
        rest = b""
        async for data in found.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                fault = self.plan.event_fault(ask.path)
                await asyncio.sleep(fault.delay_s)
                if fault.end == "gone":
                    status = json.loads(_refusal(410).body)  # type: ignore[arg-type]
                    event = {"type": "ERROR", "object": status}
                    await response.write(json.dumps(event).encode() + b"\n")
                elif fault.end == "half":
                    await response.write(line[: len(line) // 2])
                if fault.end:
                    _cut(request)
                    return
                await response.write(line + b"\n")
                if fault.is_doubled:
                    await response.write(line + b"\n")
        await response.write_eof()


def _headers(found: aiohttp.ClientResponse) -> dict[str, str]:
    return {name: text for name, text in found.headers.items() if name.lower() not in HOP_HEADERS}


def _refusal(status: int) -> web.Response:
    """As the API server says it."""
    said = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": status,
        "reason": REASONS[status],
        "message": f"{REASONS[status]}: by the plan of a test",
    }
    headers = {"Retry-After": "1"} if status == 429 else {}
    return web.json_response(said, status=status, headers=headers)


def _cut(request: web.Request) -> web.Response:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


class GoneWatch(Plan):
    """The next event of a watch is not told: the watch ends with 410."""

    def __init__(self) -> None:
        #: How the watch's path ends; taken away when it has happened.
        self.gone = ""

    def event_fault(self, path: str) -> EventFault:
        if not self.gone or not path.endswith(self.gone):
            return EventFault()
        self.gone = ""
        return EventFault(end="gone")


class KilledAtWrite(Plan):
    """Calls `kill` at the k-th write, before the API server hears of it or after it has done it.

    Writes to the Lease do not count: how many there are is a matter of time.
    """

    def __init__(self, number: int, *, is_before: bool, kill: Callable[[], None]) -> None:
        self._number = number
        self._is_before = is_before
        self._kill = kill
        self.count = 0
        #: The write at which it was killed.
        self.at: Ask | None = None

    def on_before(self, ask: Ask) -> bool:
        if LEASES in ask.path:
            return True
        self.count += 1
        if self.count != self._number:
            return True
        self.at = ask
        if self._is_before:
            self._kill()
        return not self._is_before

    def on_after(self, ask: Ask) -> bool:
        if self._is_before or ask is not self.at:
            return True
        self._kill()
        return False
