"""The operator behind a faulty API server, and killed at its writes: both are real.

In the first test everything breaks now and then, by a seed; FAULT_SEEDS=N takes N of them,
FIRST_SEED=S the first one. The second kills the operator just before and just after each n-th of
its writes, with KILL_EVERY=n: it takes minutes and is left out otherwise (`make operator-faults`);
FIRST_KILL=N begins at that write, so that FIRST_KILL=62 KILL_EVERY=1000 is write 62 alone;
KILL_JOBS=N of its scenarios run at a time.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.cluster_fixtures import Kubernetes
from tests.operator.api_fixtures import api as api
from tests.operator.api_fixtures import broker as broker
from tests.operator.broker_thread import BrokerThread
from tests.operator.fault_certificates import Certificates
from tests.operator.fault_proxy import FaultProxy, GoneWatch, KilledAtWrite, Plan, SeededFaults
from tests.operator.fault_scenario import REST_S, QuickNamespace, Scenario
from tests.operator.operator_process import (
    OperatorProcess,
    of_connection,
    running,
    wait_for,
)
from tests.operator.resources import resource
from tests.operator.warm_operators import WarmOperators

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(14_400)]

SEEDS = int(os.environ.get("FAULT_SEEDS", "1"))
FIRST_SEED = int(os.environ.get("FIRST_SEED", "1"))
#: Every n-th write of the scenario; 0: none.
KILL_EVERY = int(os.environ.get("KILL_EVERY", "0"))
FIRST_KILL = int(os.environ.get("FIRST_KILL", "1"))
#: From the end of the faults until all is well. A pass that failed four times waits for 8 s.
SETTLED_S = 30.0
#: Of a scenario's step with a kill in it, on two busy cores.
STEP_S = 120.0
#: From its last step until everything is as it was without a kill. A bound, not an expectation: the
#: garbage collector and the StatefulSets' controller take their time where the machine is busy (at
#: a load of 40 on two cores a member's restart was under way after 60 s).
END_S = 300.0
#: Between two steps while everything breaks.
PAUSE_S = 1.5

#: Between two looks whether the operator runs.
POLL_S = 0.2
#: What the operator's log says of an end that is no loss of its Lease.
FAILED = "a task of the operator failed"
NAMESPACES = "/api/v1/namespaces"
#: Scenarios with a kill that run at a time: most of one is waiting.
JOBS = int(os.environ.get("KILL_JOBS", "6"))

#: What happens to resources meanwhile.
STORIES = (Scenario, Certificates)

_numbers = itertools.count(1)


@dataclass
class World:
    """An operator behind a proxy, with a namespace and a broker of its own."""

    space: QuickNamespace
    broker: BrokerThread
    proxy: FaultProxy
    operator: OperatorProcess
    story: type[Scenario] = Scenario
    starts: int = 1
    scenario: Scenario = field(init=False)

    def __post_init__(self) -> None:
        self.scenario = self.story(self.space, self.broker, self.proxy.upstream)

    @classmethod
    def made(
        cls,
        api: Kubernetes,
        folder: Path,
        plan: Plan,
        warm: WarmOperators | None = None,
        story: type[Scenario] = Scenario,
    ) -> World:
        number = next(_numbers)
        name = f"faults-{os.getpid()}-{number}"
        proxy = FaultProxy(api.kubeconfig, folder / f"proxy-{number}", plan)
        proxy.start()
        body = {"metadata": {"name": name}}
        proxy.upstream.request("POST", NAMESPACES, body)
        operator = OperatorProcess(
            proxy.kubeconfig, name, folder / f"operator-{number}.log", warm=warm
        )
        space = QuickNamespace(api, name, proxy.upstream)
        return cls(space, BrokerThread(), proxy, operator, story)

    def close(self) -> None:
        process = self.operator.process
        if process is not None and process.poll() is None:
            self.operator.stop(signal.SIGKILL)
        self.proxy.upstream.request("DELETE", f"{NAMESPACES}/{self.space.name}")
        # Nobody else takes them off, and a namespace that never ends is looked at again and again.
        self.scenario.let_go()
        self.proxy.close()
        self.broker.close()

    def begin_anew(self) -> None:
        """Kill the operator and start it again; its log goes on in another file."""
        assert self.operator.process is not None
        self.operator.process.kill()
        self.operator.process.wait()
        log = self.operator.log
        assert not log.exists() or FAILED not in log.read_text(), log.read_text()[-4000:]
        self.starts += 1
        self.operator.log = log.with_suffix(f".{self.starts}")
        self.operator.start()

    @contextlib.contextmanager
    def kept_running(self) -> Iterator[None]:
        """As a Deployment does it: an operator that ended is begun anew, were it killed or has it
        lost its Lease because the API server did not answer in time."""
        is_over = threading.Event()

        def keep() -> None:
            while not is_over.wait(POLL_S):
                process = self.operator.process
                if process is not None and process.poll() is not None:
                    self.begin_anew()

        keeper = threading.Thread(target=keep)
        keeper.start()
        try:
            yield
        finally:
            is_over.set()
            keeper.join()


@pytest.mark.parametrize("story", STORIES)
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SEEDS))
def test_everything_ends_as_asked_when_the_api_server_fails_meanwhile(
    seed: int, story: type[Scenario], api: Kubernetes, tmp_path: Path
) -> None:
    plan = SeededFaults(seed)
    world = World.made(api, tmp_path, plan, story=story)
    try:
        with running(world.operator):
            with world.kept_running():
                for step in world.scenario.steps:
                    step()
                    threading.Event().wait(PAUSE_S)
                plan.stop()
                ended = time.monotonic()
                world.scenario.settle(SETTLED_S)
            taken_s = time.monotonic() - ended
            name, done = story.__name__, dict(plan.done)
            print(f"{name} seed={seed} well_after_s={taken_s:.1f} starts={world.starts} {done}")
            _assert_at_rest(world)
    finally:
        world.close()


def _statuses_at_rest(world: World) -> dict[str, Any]:
    """Return them once nothing has changed for a while: the members' own figures come with news of
    the StatefulSet, and of the sessions that it has, after Ready is as it shall be.
    """
    seen = world.scenario.statuses()
    quiet_since = began = time.monotonic()
    while time.monotonic() - quiet_since < REST_S:
        assert time.monotonic() - began < SETTLED_S, "statuses do not come to rest"
        threading.Event().wait(0.5)
        if (now := world.scenario.statuses()) != seen:
            seen, quiet_since = now, time.monotonic()
    return seen


def _assert_at_rest(world: World) -> None:
    """An operator that begins anew finds nothing to write: no status was stale."""
    scenario = world.scenario
    before = _statuses_at_rest(world)
    writes = world.broker.broker.writes
    world.begin_anew()
    world.operator.wait_leading()
    passes, total = "brokerd_operator_passes_total", len(before)
    wait_for("all were looked at", lambda: world.operator.metric(passes) >= total)
    scenario.settle(SETTLED_S)
    assert _statuses_at_rest(world) == before
    assert world.broker.broker.writes == writes


def test_a_deletion_during_a_watch_that_ended_with_410_is_noticed(
    api: Kubernetes, tmp_path: Path
) -> None:
    """What lists anew after a 410 tells of what is there, not of what has gone."""
    plan = GoneWatch()
    world = World.made(api, tmp_path, plan)
    space = world.space
    try:
        with running(world.operator):
            space.connect(world.broker.broker.address)
            connection = resource("BrokerConnection", "other", endpoints=["127.0.0.1:1"])
            space.apply(connection, of_connection("Queue", "q"))
            space.wait_reason("queue", "q", "Applied")
            space.wait_reason("brokerconnection", "other", "WaitingForBroker")
            plan.gone = "/brokerconnections"
            space.delete("brokerconnection", "prod")
            space.wait_reason("queue", "q", "WaitingForBroker")
    finally:
        world.close()


# ---- killed at every write --------------------------------------------------------------------


@pytest.fixture(scope="module")
def warm() -> Iterator[WarmOperators]:
    found = WarmOperators()
    yield found
    found.close()


@dataclass(frozen=True)
class Course:
    """How many writes a scenario takes when nothing happens, and how it ends."""

    story: type[Scenario]
    writes: int
    end: dict[str, Any]


@pytest.fixture(scope="module", params=STORIES)
def undisturbed(
    request: pytest.FixtureRequest,
    api: Kubernetes,
    warm: WarmOperators,
    tmp_path_factory: pytest.TempPathFactory,
) -> Course:
    plan = KilledAtWrite(0, is_before=True, kill=lambda: None)
    folder = tmp_path_factory.mktemp("undisturbed")
    world = World.made(api, folder, plan, warm, request.param)
    try:
        world.operator.start()
        for step in world.scenario.steps:
            step()
            world.scenario.settle(STEP_S)
        wanted, orphans = world.scenario.end_state(STEP_S)
        assert not orphans
        return Course(request.param, plan.count, wanted)
    finally:
        world.close()


@pytest.mark.skipif(not KILL_EVERY, reason="takes minutes: make operator-faults")
def test_killed_at_a_write_and_begun_anew_it_ends_in_the_same_state(
    api: Kubernetes,
    warm: WarmOperators,
    undisturbed: Course,
    tmp_path: Path,
) -> None:
    writes = range(FIRST_KILL, undisturbed.writes + 1, KILL_EVERY)
    moments = list(itertools.product(writes, (True, False)))
    began = time.monotonic()

    def one(moment: tuple[int, bool]) -> str:
        return _killed(api, warm, tmp_path, moment, undisturbed)

    with ThreadPoolExecutor(JOBS) as pool:
        failures = list(filter(None, pool.map(one, moments)))
    name = undisturbed.story.__name__
    print(f"{name} kills={len(moments)} failed={len(failures)} s={time.monotonic() - began:.0f}")
    assert not failures, "\n".join(failures)


def _killed(
    api: Kubernetes,
    warm: WarmOperators,
    folder: Path,
    at_write: tuple[int, bool],
    course: Course,
) -> str:
    """The scenario with a kill at one write; what is wrong at its end."""
    number, is_before = at_write
    wanted = course.end

    def kill() -> None:
        assert world.operator.process is not None
        world.operator.process.kill()

    plan = KilledAtWrite(number, is_before=is_before, kill=kill)
    began = time.monotonic()
    world = World.made(api, folder, plan, warm, course.story)
    try:
        world.operator.start()
        with world.kept_running():
            for step in world.scenario.steps:
                step()
                world.scenario.settle(STEP_S)
            found, orphans = world.scenario.end_state(END_S, wanted)
        problem = ", ".join(orphans)
        if found != wanted:
            problem = _difference(wanted, found)
    except AssertionError as error:
        problem = str(error)
    finally:
        world.close()
    moment = "before" if is_before else "after"
    at = f"{plan.at.method} {plan.at.path}" if plan.at is not None else "nothing"
    print(
        f"kill={number} {moment} {at} s={time.monotonic() - began:.1f} {problem}",
        flush=True,
    )
    return problem and f"killed {moment} write {number} ({at}): {problem}"


def _difference(wanted: dict[str, Any], found: dict[str, Any]) -> str:
    before, after = (
        json.dumps(item, indent=1, sort_keys=True).splitlines() for item in (wanted, found)
    )
    lines = difflib.unified_diff(before, after, lineterm="", n=4)
    return "\n".join(itertools.islice(lines, 60))
