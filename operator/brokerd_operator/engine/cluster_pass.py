"""One pass over a BrokerCluster or a BrokerConnection. For running.py only.

What runs a BrokerCluster is the shell's driver: pods or local processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.engine import admin_account, findings, health, kept_aside, keys, status
from brokerd_operator.engine.cache import Entry
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.session import BrokerSession, State
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.broker_connection import BrokerConnectionSpec
from brokerd_operator.specs.model import Invalid

TEARDOWN_AGAIN_S = 1.0
CREDENTIALS_AGAIN_S = 5.0


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
    if await engine.store.is_namespace_terminating(key.namespace):
        # Nothing can be made there, and the deletion of this resource is on its way.
        return
    if not keys.has_finalizer(entry.body):
        await engine.store.add_finalizer(entry.body)
    report = await engine.driver.reconcile(entry.body, entry.meta, spec)
    engine.metrics.expiries.replace(
        key.namespace, key.name, {(secret,): end_s for secret, end_s in report.expiries.items()}
    )
    engine.metrics.ends.replace(key.namespace, key.name, report.ends)
    session = engine.session(key.reference)
    fields = dict(report.status)
    secret = spec.admin_secret_name(entry.meta)
    reason, message = report.reason, report.message
    if reason == "Available":
        before = conditions.find(entry.body, conditions.READY)
        reason, message = admin_account.waiting(session, secret, before) or (reason, message)
    account = await _account(engine, key, entry, session, secret)
    if session is not None:
        session.nudge()
        if session.info is not None:
            fields["brokerUID"] = session.info.cluster_id
            fields["version"] = session.info.version
    warnings = () if report.reason == "Stopped" else await _warnings(engine, key, entry)
    _date_operation(fields, previous)
    value = status.plain_status(
        previous,
        entry.meta.generation,
        reason,
        message,
        (*report.conditions, *account, *warnings),
        fields,
    )
    await engine.write_status(key, entry.body, value, report.refused)
    if report.again_s is not None:
        engine.queue.add(key, report.again_s)
    engine.queue.succeed(key)


async def _account(
    engine: Engine, key: Key, entry: Entry, session: BrokerSession | None, secret: str
) -> tuple[conditions.Condition, ...]:
    """Let the broker take what the admin Secret says; whether it does."""
    if session is None or session.state is State.CONNECTING:
        before = conditions.find(entry.body, conditions.CREDENTIALS_SYNCED)
        return () if before is None else (before,)
    assert isinstance(entry.spec, BrokerClusterSpec)
    login = await engine.driver.address(key.reference)
    overlap_ms = entry.spec.admin.password_overlap
    found = await engine.account(key.reference).sync(session, secret, login, overlap_ms)
    if found.event:
        await engine.store.emit(entry.body, "Normal", admin_account.CREDENTIALS_SET, found.event)
    if found.is_to_be_repeated:
        engine.queue.add(key, CREDENTIALS_AGAIN_S)
    return (found.condition(entry.meta.generation),)


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
        await _warnings(engine, key, entry),
        fields,
    )
    await engine.write_status(key, entry.body, value)


async def _warnings(engine: Engine, key: Key, entry: Entry) -> tuple[conditions.Condition, ...]:
    """What the broker itself says: alarms, quorum, what is kept aside, findings; with Events."""
    generation = entry.meta.generation
    if engine.kept_aside.is_known(key.reference):
        kept = engine.kept_aside.of_broker(key.reference, generation)
    else:
        kept = engine.carry(key, entry.body, conditions.KEPT_ASIDE)
    await kept_aside.tell(engine.store, entry.body, kept)
    said = engine.health.of_broker(key.reference, entry.body, generation)
    await health.tell(engine.store, entry.body, said)
    if engine.findings.is_known(key.reference):
        found = engine.findings.of_broker(key.reference, generation, _has_job(entry))
    else:
        found = engine.carry(key, entry.body, conditions.HEALTHY, conditions.TELEMETRY_FRESH)
    await findings.tell(engine.store, entry.body, found)
    return (*said, *kept, *found)


def _has_job(entry: Entry) -> bool:
    spec = entry.spec
    return isinstance(spec, BrokerClusterSpec) and spec.telemetry.enabled


def _date_operation(fields: dict[str, Any], previous: Mapping[str, Any]) -> None:
    """An operation began when its type was first told, and waits since its cause was."""
    operation = fields.get("operation")
    if operation is None:
        return
    before = previous.get("operation") or {}
    is_same = before.get("type") == operation["type"] and before.get("startedAt")
    started = before["startedAt"] if is_same else status.now_text()
    dated = fields["operation"] = {**operation, "startedAt": started}
    if blocked := operation.get("blockedBy"):
        has_waited = is_same and before.get("blockedBy") == blocked and before.get("blockedSince")
        dated["blockedSince"] = before["blockedSince"] if has_waited else status.now_text()


async def _teardown(engine: Engine, key: Key, entry: Entry) -> None:
    """Children are not deleted; they let go of a broker that is going (design/operator.md §10)."""
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
        engine.metrics.expiries.replace(key.namespace, key.name, {})
        engine.metrics.ends.replace(key.namespace, key.name, {})
        await engine.store.remove_finalizer(entry.body)
    else:
        engine.queue.add(key, TEARDOWN_AGAIN_S)
