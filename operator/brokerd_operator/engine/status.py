"""Statuses of resources: conditions, names, drift; written only when they say something new.

design/operator.md §6. For the engine.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.ports import Store
from brokerd_operator.reconcile.drift import DIFFERENCES_MAX, Difference
from brokerd_operator.specs.model import Meta, TopologySpec

_MISSING = "MissingDependency"
#: The API server refuses something, and somebody has to do something about it.
REFUSED = "ApiRefused"


def now_text() -> str:
    """The time as Kubernetes writes it."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def topology_status(
    previous: Mapping[str, Any],
    meta: Meta,
    spec: TopologySpec | None,
    reason: str,
    message: str,
    *,
    drift: Sequence[Difference] = (),
    in_sync: bool | None = None,
    extra: Iterable[conditions.Condition] = (),
    fields: Mapping[str, Any] | None = None,
    broker_uid: str = "",
) -> dict[str, Any]:
    """The status of a topology resource after a pass, failed ones included."""
    current = conditions.standard(reason, message, meta.generation)
    if in_sync is not None:
        paths = [item.path or "(all)" for item in drift] or ([] if in_sync else ["(absent)"])
        current.append(conditions.in_sync(paths if not in_sync else [], meta.generation))
    current.extend(extra)
    status = {key: value for key, value in previous.items() if key != "drift"}
    status["observedGeneration"] = meta.generation
    status["conditions"] = conditions.merge(previous.get("conditions") or (), current, now_text())
    status["drift"] = [item.to_json() for item in drift[:DIFFERENCES_MAX]]
    if spec is not None:
        status["resolved"] = resolved(previous, meta, spec, broker_uid)
    _set(status, fields)
    return status


def _set(status: dict[str, Any], fields: Mapping[str, Any] | None) -> None:
    """Set fields; None takes one away."""
    for name, value in (fields or {}).items():
        if value is None:
            status.pop(name, None)
        else:
            status[name] = value


def resolved(
    previous: Mapping[str, Any], meta: Meta, spec: TopologySpec, broker_uid: str
) -> dict[str, str]:
    """The names as the operator read them; defaults of a CRD cannot copy metadata.name."""
    before = previous.get("resolved") or {}
    found = {
        "name": spec.resolved_name(meta),
        "broker": spec.broker_ref.reference(meta).key,
    }
    if spec.KIND not in ("User", "Vhost"):
        found["vhost"] = spec.vhost
    uid = broker_uid or before.get("brokerUID")
    if uid:
        found["brokerUID"] = uid
    return found


def plain_status(
    previous: Mapping[str, Any],
    generation: int,
    reason: str,
    message: str,
    extra: Iterable[conditions.Condition] = (),
    fields: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The status of a BrokerCluster or BrokerConnection."""
    current = [*conditions.standard(reason, message, generation), *extra]
    status = dict(previous)
    status["observedGeneration"] = generation
    status["conditions"] = conditions.merge(previous.get("conditions") or (), current, now_text())
    _set(status, fields)
    return status


async def write(
    store: Store, body: Body, status: Mapping[str, Any], refused: Sequence[str] = ()
) -> bool:
    """Write if it says something new, and tell when Ready flips, a Warning arises, or the API
    server refuses something; `refused` has what, where Ready says other things as well."""
    previous = body.get("status") or {}
    if conditions.is_same_status(previous, status):
        return False
    await store.write_status(body, status)
    written = {"status": status}
    await _tell_refused(store, body, conditions.find(written, conditions.READY), refused)
    await _tell_ready(store, body, conditions.find(written, conditions.READY))
    await _tell_warning(store, body, conditions.find(written, conditions.WARNING))
    return True


async def _tell_refused(
    store: Store, body: Body, after: conditions.Condition | None, refused: Sequence[str]
) -> None:
    """An Event for each refusal that Ready has not told of before."""
    before = conditions.find(body, conditions.READY)
    if not refused and after is not None and after.reason == REFUSED:
        refused = (after.message,)
    for line in map(conditions.scrub, refused):
        if before is None or line not in before.message:
            await store.emit(body, "Warning", REFUSED, line)


async def _tell_ready(store: Store, body: Body, after: conditions.Condition | None) -> None:
    before = conditions.find(body, conditions.READY)
    if (
        after is None
        or after.reason == REFUSED
        or (before is not None and before.reason == after.reason)
    ):
        return
    is_stalled = conditions.REASONS[after.reason].is_stalled
    was_ready = before is not None and before.status == conditions.TRUE
    is_ready = after.status == conditions.TRUE
    if is_ready != was_ready or is_stalled:
        type_ = "Warning" if is_stalled else "Normal"
        await store.emit(body, type_, after.reason, after.message)


async def _tell_warning(store: Store, body: Body, after: conditions.Condition | None) -> None:
    """The resource stays Ready, and who looks at nothing but that and at events would not know.

    Resources come in any order, so something is missing for a moment after most `kubectl apply`s:
    that is said by the condition alone.
    """
    if after is None or after.status != conditions.TRUE or after.reason == _MISSING:
        return
    before = conditions.find(body, conditions.WARNING)
    if before is None or (before.status, before.reason) != (after.status, after.reason):
        await store.emit(body, "Warning", after.reason, after.message)
