"""Watches of the API server: what happens to a collection, from a version on (ADR 39).

For `sources/`. A watch that breaks goes on where it was. What only a listing can mend is the
caller's: the version that is too old (410), rights that are gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

import aiohttp

from brokerd_operator.sources.api import PASSING, Api, ApiError, Json, error_of, shared

log = logging.getLogger(__name__)

#: The API server ends a watch after this time, and another one follows: so they spread over all
#: API servers.
SERVER_TIMEOUT_S = 300
#: It says where it is (a bookmark) once a minute: a connection that is quiet for longer is dead.
QUIET_S = 90
CONNECT_S = 10
#: Of one event: objects have 3 MiB at most (etcd's limit is 1.5).
LINE_MAX = 8 * 1024 * 1024
#: Of the text that a refusal comes with.
REFUSAL_MAX = 64 * 1024
#: Between the end of a watch and the next one.
RETRY_FIRST_S = 0.2
#: While nobody watches, nothing is seen.
RETRY_MAX_S = 5.0
RETRY_JITTER = 0.2
#: One that lasted so long was a good one: the next failure is a first one again.
GOOD_S = 10.0

#: Type (ADDED, MODIFIED, DELETED) and object. Called in the loop: it must not take long.
Told = Callable[[str, Json], None]


class Watcher:
    """Owns the connections of watches, one for each. To be used in a with-block."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(
            total=SERVER_TIMEOUT_S + CONNECT_S, sock_connect=CONNECT_S, sock_read=QUIET_S
        )
        connector = aiohttp.TCPConnector(limit=0, ssl=self._api.tls())
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def follow(
        self, path: str, version: str, told: Told, query: Mapping[str, str] | None = None
    ) -> None:
        """Tell of each event after a version; without one, first of each object that is there.

        Ends by being cancelled. Raises ApiError when the collection must be listed anew.
        """
        loop = asyncio.get_running_loop()
        reading = _Reading(path, version, told)
        delay = RETRY_FIRST_S
        while True:
            began = loop.time()
            try:
                await self._read(reading, query or {})
            except ApiError as error:
                if error.status not in PASSING:
                    raise
                log.debug("watch of %s: %s", path, error)
            if loop.time() - began > GOOD_S:
                delay = RETRY_FIRST_S
            await asyncio.sleep(delay * (1 + random.uniform(0, RETRY_JITTER)))
            delay = min(2 * delay, RETRY_MAX_S)

    async def _read(self, reading: _Reading, query: Mapping[str, str]) -> None:
        """One connection, to its end; raises ApiError."""
        assert self._session is not None
        query = {
            **query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(SERVER_TIMEOUT_S),
        }
        if reading.version:
            query["resourceVersion"] = reading.version
        asked = await self._api.prepared(reading.path)
        try:
            async with self._session.get(params=query, **asked) as answer:
                if answer.status != 200:
                    said = await answer.content.read(REFUSAL_MAX)
                    raise error_of(answer.status, said, str(answer.reason), "GET")
                async for data in answer.content.iter_any():
                    reading.take(data)
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ApiError(0, f"the watch has ended: {error!r}") from error
        finally:
            reading.rest = b""


class _Reading:
    """Where a watch is: the version of its last event, and the beginning of the next one."""

    def __init__(self, path: str, version: str, told: Told) -> None:
        self.path = path
        self.version = version
        self.rest = b""
        self._told = told

    def take(self, data: bytes) -> None:
        """Some bytes of the answer; raises ApiError."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > LINE_MAX:
            raise ApiError(0, "an event is too large")
        for line in lines:
            try:
                found = json.loads(line, object_hook=shared)
                type_, body = found["type"], found["object"]
                version = "" if type_ == "ERROR" else body["metadata"]["resourceVersion"]
            except (ValueError, TypeError, KeyError) as error:
                raise ApiError(0, f"an event that is none: {line[:100]!r}") from error
            if type_ == "ERROR":
                raise error_of(int(body.get("code") or 0), body, "the watch has failed", "GET")
            if type_ != "BOOKMARK":
                try:
                    self._told(type_, body)
                except Exception:
                    # One body that nobody expected: the others come all the same.
                    log.exception("an event of %s was not taken", self.path)
            self.version = version
