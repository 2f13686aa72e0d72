"""The embedded mode: BrokerClusters as local processes, resources from a directory, one engine.

`brokerctl up` runs it; programs such as the demo use it directly:

    async with Environment() as environment:
        await environment.start(Path("examples/orders"), data_dir)
        await environment.wait_ready()
        member = environment.clusters["orders"].members[0]
        member.kill(signal.SIGKILL)
        await member.restart()

Everything it starts ends with it, however it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import watchfiles

from brokerd_operator import conditions
from brokerd_operator.engine import keys
from brokerd_operator.engine.engine import Engine, EngineSettings
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.running import run_engine
from brokerd_operator.local import directory as files
from brokerd_operator.local import documents
from brokerd_operator.local.cluster import LocalCluster, LocalClusters, write_private
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.local.member import Member, MemberState
from brokerd_operator.local.ports import LOOPBACK, PortReservations
from brokerd_operator.specs.model import Reference, TopologySpec

log = logging.getLogger(__name__)

RUNNING_FILE = "running.json"
WAIT_POLL_S = 0.05
#: Files are written in several steps by editors; news is collected for so long.
DEBOUNCE_MS = 300
CLUSTERS_MAX = 32
#: Brokers on this machine are asked sooner than those of a Kubernetes.
LOCAL_ENGINE = EngineSettings(sweep_delay_s=10.0, links_interval_s=2.0, dead_letters_interval_s=2.0)


@dataclass(frozen=True, slots=True)
class ResourceState:
    """One resource as a person sees it."""

    kind: str
    namespace: str
    name: str
    #: "True", "False", "Unknown"; empty while nothing is known.
    ready: str
    reason: str
    message: str
    #: Ready at the present generation.
    is_ready: bool
    is_stalled: bool


def default_data_dir(directory: Path) -> Path:
    """One data directory per directory of resources."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    resolved = directory.resolve()
    digest = hashlib.sha256(str(resolved).encode()).hexdigest()[:8]
    return Path(state) / "brokerd" / "up" / f"{resolved.name}-{digest}"


class Environment:
    """Owns members, engine and resources. `say` gets sentences for the person who watches."""

    def __init__(self, *, say: Callable[[str], None] | None = None, first_offset: int = 0) -> None:
        self._say = say or (lambda sentence: log.info("%s", sentence))
        self._first_offset = first_offset
        self._tasks: list[asyncio.Task[Any]] = []
        self._stack = contextlib.AsyncExitStack()
        self.data_dir = Path()
        self.problems: list[documents.Problem] = []
        self._directory: Path | None = None
        self._store: files.Directory | None = None
        self._driver: LocalClusters | None = None
        self._engine: Engine | None = None

    async def __aenter__(self) -> Environment:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    # ---- life ---------------------------------------------------------------------------------

    async def start(
        self, directory: Path, data_dir: Path | None = None, *, follow: bool = False
    ) -> None:
        """Read the resources and begin to apply them; raises EmbeddedError.

        With `follow`, changes of the files are applied as they come. At the start a mistake in a
        file stops everything; later it is reported, and what was applied before stays.
        """
        self._directory = directory
        self.data_dir = (data_dir or default_data_dir(directory)).resolve()
        self._lock_data_dir()
        reservations = self._stack.enter_context(PortReservations())
        store = files.Directory(self.data_dir, self._say)
        driver = LocalClusters(
            self.data_dir, reservations, self._member_changed, self._say, self._first_offset
        )
        engine = Engine(store, driver, LOCAL_ENGINE)
        self._store, self._driver, self._engine = store, driver, engine
        self._stack.push_async_callback(driver.close)
        store.attach(
            engine.put,
            engine.remove,
            lambda namespace, name: engine.reference_changed(Reference("Secret", namespace, name)),
        )
        self.problems = store.load_files(directory)
        if self.problems:
            raise EmbeddedError("\n".join(str(problem) for problem in self.problems))
        engine.is_synced.set()
        self._spawn(run_engine(engine))
        if follow:
            self._spawn(self._follow(directory))

    def _lock_data_dir(self) -> None:
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise EmbeddedError(f"cannot use {self.data_dir}: {error.strerror}") from error
        self._stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise EmbeddedError(f"{self.data_dir} is in use by another `brokerctl up`") from error

    def _spawn(self, work: Any) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    async def stop(self) -> None:
        """Stop the engine, then all members; data and resources stay."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        (self.data_dir / RUNNING_FILE).unlink(missing_ok=True)
        await self._stack.aclose()
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def failed(self) -> None:
        """Return only when a task of the environment ends, which is an error."""
        if self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    # ---- resources ----------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "the environment is not started"
        return self._engine

    @property
    def store(self) -> files.Directory:
        assert self._store is not None, "the environment is not started"
        return self._store

    @property
    def clusters(self) -> dict[str, LocalCluster]:
        """Clusters by name; those outside the namespace default as namespace/name."""
        assert self._driver is not None, "the environment is not started"
        return {
            key.removeprefix("default/"): cluster for key, cluster in self._driver.clusters.items()
        }

    def conditions(self) -> list[ResourceState]:
        """All resources, clusters first."""
        bodies = sorted(self.store.resources(), key=_table_order)
        return [state_of(body) for body in bodies]

    def set_resource(self, body: dict[str, Any]) -> None:
        """Create or change a resource, as `kubectl apply` would; raises EmbeddedError."""
        problem = self.store.apply(body)
        if problem:
            raise EmbeddedError(problem)

    def delete_resource(self, kind: str, name: str, namespace: str = "default") -> None:
        """Delete a resource, by the rules of its deletion policy."""
        self.store.delete(Key(kind, namespace, name))

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every resource is ready; raises EmbeddedError, at once when one is stalled."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    states = self.conditions()
                    if all(state.is_ready for state in states):
                        self._write_running()
                        return
                    hopeless = [_sentence(state) for state in states if state.is_stalled]
                    hopeless += self._without_broker(states)
                    if hopeless:
                        raise EmbeddedError("\n".join(hopeless))
                    await asyncio.sleep(WAIT_POLL_S)
        except TimeoutError as error:
            late = [_sentence(state) for state in self.conditions() if not state.is_ready]
            text = "\n".join(late[:20])
            raise EmbeddedError(f"not ready after {timeout_s:g} s:\n{text}") from error

    def _without_broker(self, states: list[ResourceState]) -> list[str]:
        """A sentence for each resource whose broker is in no file: nothing else would make it."""
        cache, found = self.engine.cache, []
        for state in states:
            entry = cache.get(Key(state.kind, state.namespace, state.name))
            if entry is None or not isinstance(entry.spec, TopologySpec):
                continue
            broker = entry.spec.broker_ref.reference(entry.meta)
            if cache.get(Key(broker.kind, broker.namespace, broker.name)) is None:
                text = f"{broker.kind} {broker.key}, its brokerRef, is in no file here"
                found.append(f"{state.kind} {state.name}: {text}")
        return found

    async def wait_gone(self, kind: str, name: str, timeout_s: float = 30.0) -> None:
        """Wait until a deleted resource is gone."""
        key = Key(kind, "default", name)
        async with asyncio.timeout(timeout_s):
            async for _ in self.changes():
                if self.store.get(key) is None:
                    return

    async def changes(self) -> AsyncIterator[list[ResourceState]]:
        """The table whenever it changed, at most some times a second."""
        seen = -1
        while True:
            if self.store.version != seen:
                seen = self.store.version
                self._write_running()
                yield self.conditions()
            await asyncio.sleep(0.2)

    def reload(self) -> None:
        """Read the files again."""
        assert self._directory is not None
        try:
            self.problems = self.store.load_files(self._directory)
        except EmbeddedError as error:
            self.problems = [documents.Problem(str(self._directory), str(error))]
        for problem in self.problems:
            self._say(f"not applied: {problem}")

    async def _follow(self, path: Path) -> None:
        async for _ in watchfiles.awatch(path, debounce=DEBOUNCE_MS, recursive=False):
            self._say(f"{path} has changed")
            self.reload()

    def _member_changed(self, reference: Reference, member: Member) -> None:
        engine = self.engine
        engine.queue.add(Key(reference.kind, reference.namespace, reference.name))
        session = engine.session(reference)
        if session is not None:
            session.nudge()
        if member.state is MemberState.CRASHED:
            self._say(f"{member.problem}\n{member.name} is started again soon")

    def _write_running(self) -> None:
        """Where `brokerctl plan` and others find the members."""
        clusters = {
            key: [f"{LOOPBACK}:{member.grpc_port}" for member in cluster.members]
            for key, cluster in (self._driver.clusters if self._driver else {}).items()
        }
        text = json.dumps({"pid": os.getpid(), "clusters": clusters}, indent=1)
        write_private(self.data_dir / RUNNING_FILE, text)


def state_of(body: keys.Body) -> ResourceState:
    """What a person wants to know of a resource."""
    key = keys.key_of(body)
    ready = conditions.find(body, conditions.READY)
    stalled = conditions.find(body, conditions.STALLED)
    status = body.get("status") or {}
    is_current = status.get("observedGeneration") == body["metadata"].get("generation")
    return ResourceState(
        kind=key.kind,
        namespace=key.namespace,
        name=key.name,
        ready=ready.status if ready else "",
        reason=ready.reason if ready else "",
        message=ready.message if ready else "",
        is_ready=is_current and ready is not None and ready.status == conditions.TRUE,
        is_stalled=is_current and stalled is not None,
    )


def _table_order(body: keys.Body) -> tuple[int, str, str, str]:
    key = keys.key_of(body)
    return (key.kind != "BrokerCluster", key.kind, key.namespace, key.name)


def _sentence(state: ResourceState) -> str:
    return f"{state.kind} {state.name}: {state.reason or 'Pending'}: {state.message}"
