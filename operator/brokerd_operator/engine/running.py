"""The engine at work: workers that make passes, and the tasks that look around besides them.

One worker per key at most. Used by both shells.
"""

from __future__ import annotations

import asyncio
import logging
import time

from brokerd_operator.engine import cluster_pass, followers, keys
from brokerd_operator.engine.engine import BROKER_KINDS, Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.ports import Gone
from brokerd_operator.engine.session import State
from brokerd_operator.engine.sweep import sweep
from brokerd_operator.engine.teardown import Teardown
from brokerd_operator.engine.topology_pass import TopologyPass

log = logging.getLogger(__name__)


async def run_engine(engine: Engine) -> None:
    """Work until cancelled."""
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(engine.settings.workers):
                tasks.create_task(_work(engine))
            tasks.create_task(followers.follow_links(engine))
            tasks.create_task(followers.follow_kept_aside(engine))
            tasks.create_task(followers.follow_dead_letters(engine))
            tasks.create_task(followers.follow_health(engine))
            tasks.create_task(followers.follow_policy_coverage(engine))
            tasks.create_task(followers.follow_findings(engine))
            tasks.create_task(_sweep(engine))
    finally:
        await engine.close_sessions()


async def _work(engine: Engine) -> None:
    while True:
        key = await engine.queue.get()
        began = time.monotonic()
        try:
            await _pass(engine, key)
            engine.refusals.succeeded(key)
        except Gone:
            # Only this resource of the name: another one may have come and be due already.
            engine.queue.succeed(key)
        except Exception as error:
            delay = engine.queue.retry(key)
            engine.unsure.add(key)
            engine.metrics.failed(key.kind)
            # An error that no other system caused is a defect of ours: `brokerctl up` shows it.
            is_defect = not isinstance(error, OSError)
            log.log(
                logging.ERROR if is_defect else logging.WARNING,
                "pass failed key=%s retry_s=%.1f error=%r",
                key.resource,
                delay,
                error,
                exc_info=is_defect,
            )
            await _tell(engine, key, error)
        finally:
            engine.metrics.passed(key.kind, time.monotonic() - began)
            engine.queue.done(key)


async def _tell(engine: Engine, key: Key, error: Exception) -> None:
    """The status says why the pass failed; what stands against that too has the log."""
    try:
        await engine.tell_failure(key, error)
    except (Gone, OSError) as further:
        log.info("status not written key=%s error=%r", key.resource, further)


async def _pass(engine: Engine, key: Key) -> None:
    is_watched = engine.store.is_watched(key.namespace)
    if key in engine.unsure and is_watched:
        await _look_again(engine, key)
    entry = engine.cache.get(key)
    if entry is None or not is_watched:
        # Of a namespace that does not let us in nothing can be read or written; the shell
        # wakes its resources when it does again.
        return
    engine.carrying.discard(key)
    if key.kind in BROKER_KINDS:
        await cluster_pass.run(engine, key, entry)
        engine.looked_at.add(key.reference)
        engine.nudge(key.reference)
    elif keys.is_deleting(entry.body):
        await Teardown(engine, key, entry).run()
    else:
        await TopologyPass(engine, key, entry).run()


async def _look_again(engine: Engine, key: Key) -> None:
    """Read a resource after a failed pass.

    An answer may have been lost that the API server had given. A status or a finalizer that is
    compared with the one of before would be left as it is, and watches tell of it later.
    """
    known = engine.cache.version(key)
    body = await engine.store.read(key)
    engine.unsure.discard(key)
    if body is not None:
        engine.put(body)
    elif known is not None:
        engine.remove(key, known)


async def _sweep(engine: Engine) -> None:
    """Finish deletions that were given up while a broker was away (design/operator.md §10)."""
    await engine.is_synced.wait()
    await asyncio.sleep(engine.settings.sweep_delay_s)
    while True:
        for session in engine.sessions():
            if session.state is State.UP:
                await sweep(engine, session)
        await asyncio.sleep(engine.settings.sweep_delay_s * 10)
