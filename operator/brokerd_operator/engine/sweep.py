"""The orphan sweep: owned objects whose resource is gone (design/operator.md §10).

It runs after a full sync only, looks at namespaces only that are watched and answer, matches
namespace, kind and name as well as uid, and never deletes a queue with messages. What a cache does
not hold may still be there, so an object is touched only when its resource was absent in two
complete listings, the one that filled the cache and one made for the sweep, and then in a direct
read by name. For running.py only.
"""

from __future__ import annotations

import logging

from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.session import BrokerSession
from brokerd_operator.reconcile import ownership, reserved
from brokerd_operator.reconcile.actions import Action, Delete, Precondition, SetOwner
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs import registry

log = logging.getLogger(__name__)

#: Objects handled per round; the next round takes the rest.
SWEEP_MAX = 256
_KEPT = frozenset((ownership.LEAVE, "", "WaitUntilEmpty"))


def orphans(engine: Engine, session: BrokerSession) -> list[ObservedObject]:
    """Objects of ours whose resource does not exist any more."""
    found = []
    for item in session.topology:
        owner = item.owner
        if owner is None or owner.managed_by != engine.settings.instance:
            continue
        if owner.deletion_policy in _KEPT or not engine.store.is_watched(owner.namespace):
            continue
        parts = owner.resource.split("/", 2)
        if len(parts) != 3 or parts[0] not in registry.PLURALS:
            # A token of another version of the operator: nothing is known of its resource.
            continue
        if engine.cache.get(Key(*parts)) is None:
            found.append(item)
    return found[:SWEEP_MAX]


async def confirmed(engine: Engine, found: list[ObservedObject]) -> list[ObservedObject]:
    """Those whose resource a second listing and a direct read do not show either."""
    listed: dict[tuple[str, str], frozenset[str]] = {}
    kept = []
    for item in found:
        key = _owner_key(item)
        try:
            if key[:2] not in listed:
                listed[key[:2]] = await engine.store.names(key.kind, key.namespace)
            if key.name in listed[key[:2]]:
                continue
            body = await engine.store.read(key)
        except OSError as error:
            log.info("orphan sweep leaves %s alone: %s", key.resource, error)
            continue
        if body is not None:
            engine.put(body)
        elif engine.cache.get(key) is None and engine.store.is_watched(key.namespace):
            kept.append(item)
    return kept


def _owner_key(item: ObservedObject) -> Key:
    assert item.owner is not None
    return Key(*item.owner.resource.split("/", 2))


def action_for(item: ObservedObject, account: str = "") -> Action:
    """What the token's deletion policy asks for; queues only go when they are empty."""
    assert item.owner is not None
    precondition = Precondition(owner_uid=item.owner.uid)
    is_kept = item.kind == "vhost" or reserved.is_reserved(item.identity, account)
    if item.owner.deletion_policy == "Retain" or is_kept:
        return SetOwner(item.identity, None, precondition)
    is_queue = item.kind == "queue"
    guarded = item.owner.deletion_policy == "DeleteIfUnused"
    return Delete(item.identity, precondition, if_empty=is_queue, if_unused=is_queue or guarded)


async def sweep(engine: Engine, session: BrokerSession) -> None:
    """One round over one broker."""
    found = await confirmed(engine, orphans(engine, session))
    if not found:
        return
    try:
        results = await session.apply([action_for(item, session.account) for item in found])
        refused = [
            item for item, result in zip(found, results, strict=True) if result.code == "REFUSED"
        ]
        await session.apply([SetOwner(item.identity, None) for item in refused])
    except BrokerError as error:
        log.info("orphan sweep of %s stopped: %s", session.reference.key, error)
        return
    for item in refused:
        engine.metrics.left_behind(item.kind)
    log.info(
        "orphan sweep broker=%s finished=%d left=%d",
        session.reference.key,
        len(found) - len(refused),
        len(refused),
    )
