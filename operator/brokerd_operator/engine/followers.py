"""Tasks of the engine that refresh what statuses report besides the resources' own objects.

Each broker is asked for the state of its links, for what its members keep aside, for where dead
letters wait and for its members, one call per broker and interval; policy_coverage.py looks at
virtual hosts that changed; findings are what the telemetry job has handed to members. All wake only
those whose status says something else now. For running.py only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine import dead_letters
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.findings import Finding
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.links import LISTINGS
from brokerd_operator.engine.session import BrokerSession, State
from brokerd_operator.specs.model import Reference
from brokerd_operator.specs.queue import QueueSpec

log = logging.getLogger(__name__)

#: Statuses that are compared before other tasks get their turn: some milliseconds.
COMPARED = 500
#: Divisor of the time: looking at policy_coverage takes at most one part in this many.
STANDINGS_SHARE = 20
#: How soon a broker that is new is asked what was found.
FINDINGS_LOOK_S = 1.0


async def follow_links(engine: Engine) -> None:
    """Fetch the state of links of brokers that have upstreams or shovels."""
    while True:
        await asyncio.sleep(engine.settings.links_interval_s)
        for session in engine.sessions():
            referring = engine.cache.referring_to(session.reference)
            linked = [key for key in referring if key.kind in LISTINGS]
            if not linked or session.state is not State.UP or session.client is None:
                continue
            rows: list[dict[str, Any]] = []
            try:
                for listing in sorted({LISTINGS[key.kind] for key in linked}):
                    rows += await session.client.rows_of_all(listing)
            except BrokerError as error:
                log.debug("links of %s: %s", session.reference.key, error)
                continue
            if engine.links.replace(session.reference, rows):
                engine.wake(linked)


async def follow_kept_aside(engine: Engine) -> None:
    """Ask brokers what their members keep aside, for the conditions of queues and brokers."""
    while True:
        await asyncio.sleep(engine.settings.kept_aside_interval_s)
        for session in engine.sessions():
            if session.state is not State.UP or session.client is None:
                continue
            try:
                rows, unanswered = await session.client.kept_aside()
            except BrokerError as error:
                log.debug("kept aside of %s: %s", session.reference.key, error)
                continue
            is_first = not engine.kept_aside.is_known(session.reference)
            if engine.kept_aside.replace(session.reference, rows, unanswered):
                engine.wake_broker(session.reference)
            if is_first:
                engine.wake_carrying()


async def follow_dead_letters(engine: Engine) -> None:
    """Ask brokers with Queues how many dead letters wait, and where."""
    while True:
        await asyncio.sleep(engine.settings.dead_letters_interval_s)
        for session in engine.sessions():
            broker = session.reference
            keys = [key for key in engine.cache.referring_to(broker) if key.kind == "Queue"]
            if not keys or session.state is not State.UP or session.client is None:
                continue
            try:
                rows = await session.client.rows(dead_letters.LISTING)
            except BrokerError as error:
                # Also a member of a release that does not know the kind.
                log.debug("dead letters of %s: %s", broker.key, error)
                continue
            if session in engine.sessions():
                engine.dead_letters.replace(broker, rows)
                await _wake_dead_letters(engine, broker, keys)


async def _wake_dead_letters(engine: Engine, broker: Reference, keys: list[Key]) -> None:
    differing: list[Key] = []
    for start in range(0, len(keys), COMPARED):
        for key in keys[start : start + COMPARED]:
            entry = engine.cache.get(key)
            if entry is not None and engine.dead_letters.differs(broker, entry):
                differing.append(key)
        await asyncio.sleep(0)
    engine.wake(engine.dead_letters.next_of(broker, differing))


async def follow_health(engine: Engine) -> None:
    """Ask brokers for alarms and members; a broker that is new at once, all in every interval."""
    while True:
        is_due = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(engine.settings.health_interval_s):
                await engine.is_asking.wait()
                is_due = False
        engine.is_asking.clear()
        sessions = [
            session
            for session in engine.sessions()
            if session.state is State.UP
            and (is_due or engine.health.member_count(session.reference) is None)
        ]
        for outcome in await asyncio.gather(
            *(_ask(engine, session) for session in sessions), return_exceptions=True
        ):
            if isinstance(outcome, Exception):
                log.error("asking a broker for its members failed", exc_info=outcome)


async def _ask(engine: Engine, session: BrokerSession) -> None:
    broker = session.reference
    if session.client is None:
        return
    try:
        members = await session.client.members()
    except BrokerError as error:
        log.debug("members of %s: %s", broker.key, error)
        return
    if session.state is not State.UP or session not in engine.sessions():
        # It went while the answer was on its way.
        return
    is_first = not engine.health.is_known(broker)
    count = engine.health.member_count(broker)
    if engine.health.replace(broker, members):
        engine.wake_broker_itself(broker)
        if engine.health.member_count(broker) != count:
            engine.wake(
                key
                for key in engine.cache.referring_to(broker)
                if key.kind == "Queue" and _has_replicas(engine, key)
            )
    if is_first:
        engine.wake_carrying()


def _has_replicas(engine: Engine, key: Key) -> bool:
    entry = engine.cache.get(key)
    return (
        entry is not None and isinstance(entry.spec, QueueSpec) and entry.spec.replicas is not None
    )


async def follow_policy_coverage(engine: Engine) -> None:
    """Look at what changed, with a rest after it that is long beside the work."""
    rest_s = 0.0
    while True:
        await asyncio.sleep(max(engine.settings.policy_coverage_interval_s, rest_s))
        began = time.monotonic()
        for session in engine.sessions():
            if session.state is not State.UP:
                continue
            broker = session.reference
            was_new = engine.policy_coverage.is_new(broker)
            try:
                changed = await engine.policy_coverage.refresh(broker, session.topology)
            except Exception:
                # A broker that sends nonsense must not end the work for the others.
                log.exception("looking at the policies of %s failed", broker.key)
                continue
            for identity in changed:
                engine.wake(engine.cache.claiming(broker, identity))
            if was_new:
                engine.wake_carrying()
        rest_s = STANDINGS_SHARE * (time.monotonic() - began)


async def follow_findings(engine: Engine) -> None:
    """Ask brokers what the telemetry job found: one that is new soon, all in every interval."""
    interval_s = engine.settings.findings_interval_s
    asked: dict[Reference, float] = {}
    while True:
        now = time.monotonic()
        asked = {broker: at for broker, at in asked.items() if now - at < interval_s}
        for session in engine.sessions():
            if session.state is State.UP and session.reference not in asked:
                asked[session.reference] = now
                await _ask_findings(engine, session)
        await asyncio.sleep(min(interval_s, FINDINGS_LOOK_S))


async def _ask_findings(engine: Engine, session: BrokerSession) -> None:
    broker = session.reference
    if session.client is None:
        return
    try:
        documents = await session.client.rows_of_all("findings")
    except BrokerError as error:
        # Also a member of a release that does not know the kind.
        log.debug("findings of %s: %s", broker.key, error)
        return
    if session not in engine.sessions():
        # It went while the answer was on its way.
        return
    is_first = not engine.findings.is_known(broker)
    before = engine.findings.of_broker(broker, 0)
    changed = engine.findings.replace(broker, documents, time.time_ns() // 1000)
    if is_first or changed or before != engine.findings.of_broker(broker, 0):
        _wake_found(engine, broker, changed)
    if is_first:
        engine.wake_carrying()


def _wake_found(engine: Engine, broker: Reference, changed: set[Finding]) -> None:
    engine.wake_broker_itself(broker)
    for finding in changed:
        engine.wake(engine.cache.claiming(broker, finding.identity))
    if changed:
        # Few beside the queues; which of them it is about is theirs to find out.
        engine.wake(
            key
            for key in engine.cache.referring_to(broker)
            if key.kind in ("FederationUpstream", "Policy")
        )
