"""Leader election by a Lease (design/operator.md §13.2: 30/20/2 s); kopf's peering is not used.

One holder at a time; an operator that cannot renew in time stops its work, so that two never write.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import threading

from brokerd_operator.sources.api import Api, ApiError, Json, path_of

log = logging.getLogger(__name__)

API_VERSION = "coordination.k8s.io/v1"
RETRY_S = 2.0
#: After a renewal that failed: an API server that fails now and then gets many tries before the
#: deadline, not three.
RETRY_FAILED_S = 0.5


class LeaseLost(Exception):
    """Another operator may be working now: the work of this one must end."""


class Lease:
    """Owns this process's claim."""

    def __init__(self, api: Api, namespace: str, name: str, identity: str, duration_s: int) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._identity = identity
        self._duration_s = duration_s
        self._path = path_of(API_VERSION, "Lease", namespace, name)
        #: What another holder wrote last, and when we saw it: clocks need not agree.
        self._seen: tuple[str, float] = ("", 0.0)
        #: As our last claim left it. A renewal is then one request, and a conflict says that it is
        #: not so any more.
        self._claimed: Json | None = None
        self.is_held = False
        #: Why the last try had no answer, for probes; "": it had one.
        self.trouble = "the API server was not asked yet"

    async def acquire(self) -> None:
        """Wait until this process is the holder."""
        while True:
            try:
                if await self._try(self._duration_s / 3):
                    self.is_held = True
                    log.info("lease acquired lease=%s identity=%s", self._name, self._identity)
                    return
            except (ApiError, TimeoutError) as error:
                log.warning("lease: %s", str(error) or "no answer in time")
            await asyncio.sleep(RETRY_S)

    async def keep_apart(self) -> None:
        """Renew in a thread with a loop of its own; raises LeaseLost.

        Thousands of resources that are new at the same moment keep the caller's loop busy for
        longer than a Lease lasts. Whether that loop is stuck is for `/healthz` to say.
        """
        apart = asyncio.new_event_loop()
        thread = threading.Thread(target=apart.run_forever, name="lease", daemon=True)
        thread.start()
        keeping = asyncio.run_coroutine_threadsafe(self.keep(), apart)
        try:
            await asyncio.wrap_future(keeping)
        finally:
            # Nothing is renewed after this: the Lease may be given away.
            keeping.cancel()
            await asyncio.to_thread(_end, apart, thread)

    async def keep(self) -> None:
        """Renew; raises LeaseLost."""
        loop = asyncio.get_running_loop()
        renewed = loop.time()
        # Stop before others may begin.
        deadline_s = self._duration_s * 2 / 3
        pause_s = every_s = min(RETRY_S, self._duration_s / 5)
        while True:
            await asyncio.sleep(pause_s)
            try:
                began = loop.time()
                # A request that hangs must neither outlast the Lease nor be the only try.
                left_s = renewed + deadline_s - began
                if not await self._try(min(left_s, self._duration_s / 3)):
                    self.is_held = False
                    raise LeaseLost(f"the lease {self._name} has another holder")
                renewed, pause_s = began, every_s
            except (ApiError, TimeoutError) as error:
                log.warning("lease was not renewed: %s", str(error) or "no answer in time")
                pause_s = min(RETRY_FAILED_S, every_s)
                if loop.time() - renewed >= deadline_s:
                    self.is_held = False
                    raise LeaseLost(f"the lease {self._name} was not renewed in time") from error

    async def release(self) -> None:
        """Let the next one begin at once."""
        if not self.is_held:
            return
        self.is_held = False
        try:
            live = await self._api.get(self._path)
            if (
                live is not None
                and (live.get("spec") or {}).get("holderIdentity") == self._identity
            ):
                live["spec"]["holderIdentity"] = ""
                await self._api.request("PUT", self._path, live)
        except ApiError as error:
            log.info("lease was not released: %s", error)

    async def _try(self, limit_s: float) -> bool:
        """Claim or renew; whether this process is the holder now, False if another one is.

        Raises ApiError, for a conflict too: it may be with ourselves, when a gateway sent a
        request twice, so that the next look decides; and TimeoutError.
        """
        try:
            async with asyncio.timeout(limit_s):
                is_held = await self._claim()
        except (ApiError, TimeoutError) as error:
            is_answer = isinstance(error, ApiError) and error.status
            self.trouble = "" if is_answer else f"no answer: {str(error) or 'not in time'}"
            raise
        self.trouble = ""
        return is_held

    async def _claim(self) -> bool:
        # Whatever ends this try, the next one does not rely on what was known before.
        live, self._claimed = self._claimed, None
        if live is None:
            live = await self._api.get(self._path)
        if live is None:
            self._claimed = await self._api.create(self._manifest())
            if self._claimed is None:
                raise ApiError(409, "somebody made it at the same time")
            return True
        spec = live.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder not in ("", self._identity) and not self._is_expired(spec):
            return False
        wanted = self._manifest()["spec"]
        if holder == self._identity:
            kept = ("acquireTime", "leaseTransitions")
            wanted |= {name: spec[name] for name in kept if name in spec}
        else:
            wanted["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        self._claimed = await self._api.request("PUT", self._path, {**live, "spec": wanted})
        return True

    def _is_expired(self, spec: Json) -> bool:
        now = asyncio.get_running_loop().time()
        mark = f"{spec.get('holderIdentity')} {spec.get('renewTime')}"
        if self._seen[0] != mark:
            self._seen = (mark, now)
            return False
        return now - self._seen[1] > int(spec.get("leaseDurationSeconds") or self._duration_s)

    def _manifest(self) -> Json:
        """A claim as of now, the first one."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {
            "apiVersion": API_VERSION,
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": self._duration_s,
                "acquireTime": now,
                "renewTime": now,
                "leaseTransitions": 0,
            },
        }


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Let the tasks of a loop in another thread end, then the loop, then the thread."""

    async def cancelled() -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(cancelled(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
