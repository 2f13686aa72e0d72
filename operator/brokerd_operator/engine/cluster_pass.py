"""One pass over a BrokerCluster or a BrokerConnection. For the engine only.

What runs a BrokerCluster is the shell's driver: pods or local processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd_operator.engine import keys, status
from brokerd_operator.engine.cache import Entry
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.session import State
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.broker_connection import BrokerConnectionSpec
from brokerd_operator.specs.model import Invalid

if TYPE_CHECKING:
    from brokerd_operator.engine.engine import Engine

TEARDOWN_AGAIN_S = 1.0


async def run(engine: Engine, key: Key, entry: Entry) -> None:
    """Reconcile and write the status."""
    if keys.is_deleting(entry.body):
        await _teardown(engine, key, entry)
        return
    spec = entry.spec
    previous = entry.body.get("status") or {}
    if isinstance(spec, Invalid):
        value = status.plain_status(previous, entry.meta.generation, spec.reason, spec.message)
        await engine.write_status(key, entry.body, value)
        return
    if isinstance(spec, BrokerConnectionSpec):
        await _connection(engine, key, entry)
        return
    assert isinstance(spec, BrokerClusterSpec)
    if keys.is_paused(entry.body):
        value = status.plain_status(
            previous, entry.meta.generation, "Paused", "paused by annotation; nothing is written"
        )
        await engine.write_status(key, entry.body, value)
        return
    if engine.store.is_namespace_terminating(key.namespace):
        # Nothing can be made there, and the deletion of this resource is on its way.
        return
    if not keys.has_finalizer(entry.body):
        await engine.store.add_finalizer(entry.body)
    report = await engine.driver.reconcile(entry.body, entry.meta, spec)
    session = engine.session(key.reference)
    fields = dict(report.status)
    if session is not None:
        session.nudge()
        if session.info is not None:
            fields["brokerUID"] = session.info.cluster_id
            fields["version"] = session.info.version
    if report.again_s is not None:
        engine.queue.add(key, report.again_s)
    engine.queue.succeed(key)
    value = status.plain_status(
        previous,
        entry.meta.generation,
        report.reason,
        report.message,
        report.conditions,
        fields,
    )
    await engine.write_status(key, entry.body, value)


async def _connection(engine: Engine, key: Key, entry: Entry) -> None:
    """Ready when the broker answers."""
    session = engine.session(key.reference)
    assert session is not None
    if session.state is State.CONNECTING:
        session.nudge()
        return
    fields: dict[str, object] = {}
    if session.state is State.UP and session.info is not None:
        reason, message = "Available", f"connected to {session.info.cluster_name}"
        fields = {
            "serverVersion": session.info.version,
            "features": list(session.info.features),
            "brokerUID": session.info.cluster_id,
        }
    else:
        reason, message = "WaitingForBroker", session.problem
    value = status.plain_status(
        entry.body.get("status") or {},
        entry.meta.generation,
        reason,
        message,
        fields=fields,
    )
    await engine.write_status(key, entry.body, value)


async def _teardown(engine: Engine, key: Key, entry: Entry) -> None:
    """Children are not deleted; they let go of a broker that is going (operator.md section 10)."""
    engine.wake_all_of(key.reference)
    if not keys.has_finalizer(entry.body):
        return
    spec = entry.spec
    if isinstance(spec, BrokerClusterSpec) and spec.deletion.protection:
        value = status.plain_status(
            entry.body.get("status") or {},
            entry.meta.generation,
            "Deleting",
            "deletion.protection is on: set it to false to let the members go",
        )
        await engine.write_status(key, entry.body, value)
        return
    if await engine.driver.teardown(entry.body, entry.meta):
        await engine.store.remove_finalizer(entry.body)
    else:
        engine.queue.add(key, TEARDOWN_AGAIN_S)
