"""The orphan sweep: owned objects whose resource is gone (operator.md sections 10 and 19.5-7).

It runs after a full sync only, looks at watched namespaces only, matches namespace, kind and name
as well as uid, and never deletes a queue with messages. For the engine only.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.session import BrokerSession
from brokerd_operator.reconcile import ownership
from brokerd_operator.reconcile.actions import Action, Delete, Precondition, SetOwner
from brokerd_operator.reconcile.topology import ObservedObject

if TYPE_CHECKING:
    from brokerd_operator.engine.engine import Engine

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
        if len(parts) == 3 and engine.cache.get(Key(*parts)) is None:
            found.append(item)
    return found[:SWEEP_MAX]


def action_for(item: ObservedObject) -> Action:
    """What the token's deletion policy asks for; queues only go when they are empty."""
    assert item.owner is not None
    precondition = Precondition(owner_uid=item.owner.uid)
    if item.owner.deletion_policy == "Retain" or item.kind == "vhost":
        return SetOwner(item.identity, None, precondition)
    is_queue = item.kind == "queue"
    guarded = item.owner.deletion_policy == "DeleteIfUnused"
    return Delete(item.identity, precondition, if_empty=is_queue, if_unused=is_queue or guarded)


async def sweep(engine: Engine, session: BrokerSession) -> None:
    """One round over one broker."""
    found = orphans(engine, session)
    if not found:
        return
    try:
        results = await session.apply([action_for(item) for item in found])
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
