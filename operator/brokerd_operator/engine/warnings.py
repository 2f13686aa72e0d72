"""What the status of a topology resource says besides Ready, InSync and drift.

Links of upstreams, what is kept aside of queues, what policies are in force for, and the condition
Warning: what is missing or odd without keeping anything from being applied; an Event of a virtual
host without rights for the administrator. What is not known yet, as after a restart of the
operator, stays as it is. For `topology_pass` only.
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.engine import dead_letters, findings, kept_aside
from brokerd_operator.engine.cache import Entry
from brokerd_operator.engine.engine import Engine
from brokerd_operator.engine.keys import Key
from brokerd_operator.engine.session import BrokerSession
from brokerd_operator.reconcile.standing import POLICY_KINDS, Oddity
from brokerd_operator.specs.federation_upstream import FederationUpstreamSpec
from brokerd_operator.specs.model import Identity, TopologySpec
from brokerd_operator.specs.queue import QueueSpec
from brokerd_operator.specs.shovel import ShovelSpec
from brokerd_operator.specs.user import UserSpec
from brokerd_operator.specs.vhost import VhostSpec

#: Oddities that one message names.
ODDITIES_MAX = 5
#: After a Vhost was made its Permissions may still come; later on, as after a restart of the
#: operator, it is no news.
RIGHTS_AFTER_S = 60.0
RIGHTS_UNTIL_S = 180.0
NO_PERMISSION = "NoPermission"


@dataclass(slots=True)
class Warnings:
    """Fields (None takes one away) and conditions of one status."""

    fields: dict[str, Any] = field(default_factory=dict)
    conditions: list[conditions.Condition] = field(default_factory=list)


async def gather(
    engine: Engine,
    key: Key,
    entry: Entry,
    session: BrokerSession | None,
    reason: str,
    missing: str,
) -> Warnings:
    """All warnings on one resource; `missing` names soft dependencies that do not exist."""
    found = Warnings()
    spec = entry.spec
    if not isinstance(spec, TopologySpec):
        return found
    if isinstance(spec, UserSpec):
        found.fields["credentialsSecret"] = spec.secret_name(entry.meta)
    if session is not None:
        if isinstance(spec, FederationUpstreamSpec | ShovelSpec):
            _add_links(found, engine, key, entry, spec, session)
        if isinstance(spec, QueueSpec):
            await _add_kept_aside(found, engine, key, entry, spec, session)
        await _add_findings(found, engine, key, entry, spec, session)
    is_own = session is not None and reason in conditions.OWN_OBJECT
    if isinstance(spec, QueueSpec) and session is not None and is_own:
        _add_dead_letters(found, engine, entry, spec, session)
    if spec.BROKER_KIND in POLICY_KINDS:
        _add_standing(found, engine, key, entry, spec, session if is_own else None)
    _add_warning(found, engine, key, entry, spec, session if is_own else None, missing)
    return found


def _add_links(
    found: Warnings,
    engine: Engine,
    key: Key,
    entry: Entry,
    spec: FederationUpstreamSpec | ShovelSpec,
    session: BrokerSession,
) -> None:
    if not engine.links.is_known(session.reference):
        found.conditions.extend(engine.carry(key, entry.body, conditions.LINKS_UP))
        return
    links = engine.links.of(session.reference, spec, entry.meta)
    found.fields |= links.fields
    found.conditions.extend(links.conditions)


def _add_dead_letters(
    found: Warnings, engine: Engine, entry: Entry, spec: QueueSpec, session: BrokerSession
) -> None:
    """Leave it as it is until the broker has been asked: the answer wakes this resource."""
    if engine.dead_letters.is_known(session.reference):
        name = spec.resolved_name(entry.meta)
        told = engine.dead_letters.of_queue(session.reference, spec.vhost, name)
        found.fields[dead_letters.FIELD] = told


async def _add_kept_aside(
    found: Warnings,
    engine: Engine,
    key: Key,
    entry: Entry,
    spec: QueueSpec,
    session: BrokerSession,
) -> None:
    if engine.kept_aside.is_known(session.reference):
        name = spec.resolved_name(entry.meta)
        kept = engine.kept_aside.of_queue(
            session.reference, spec.vhost, name, entry.meta.generation
        )
    else:
        kept = engine.carry(key, entry.body, conditions.KEPT_ASIDE)
    await kept_aside.tell(engine.store, entry.body, kept)
    found.conditions.extend(kept)


async def _add_findings(
    found: Warnings,
    engine: Engine,
    key: Key,
    entry: Entry,
    spec: TopologySpec,
    session: BrokerSession,
) -> None:
    """Healthy; only kinds that findings are about."""
    broker, generation = session.reference, entry.meta.generation
    if spec.KIND not in ("Queue", "Exchange", "Policy", "FederationUpstream"):
        return
    is_known = engine.findings.is_known(broker)
    if spec.BROKER_KIND in POLICY_KINDS:
        is_known = is_known and engine.policy_coverage.is_known(broker, spec.vhost)
    if not is_known:
        found.conditions.extend(engine.carry(key, entry.body, conditions.HEALTHY))
        return
    if isinstance(spec, FederationUpstreamSpec):
        name = spec.resolved_name(entry.meta)
        told = engine.findings.of_upstream(broker, spec.vhost, name, generation)
    else:
        # A queue's own bindings come behind it.
        identity = spec.identities(entry.meta)[0]
        if spec.BROKER_KIND in POLICY_KINDS:
            winners = engine.policy_coverage.winners(broker, identity.vhost)
            told = engine.findings.of_policy(broker, identity, winners, generation)
        else:
            told = engine.findings.of_object(broker, identity, generation)
    await findings.tell(engine.store, entry.body, told)
    found.conditions.extend(told)


def _add_standing(
    found: Warnings,
    engine: Engine,
    key: Key,
    entry: Entry,
    spec: TopologySpec,
    session: BrokerSession | None,
) -> None:
    """`matches` and Effective; nothing for a policy that is not in the broker."""
    if session is None:
        found.fields["matches"] = None
        return
    (identity,) = spec.identities(entry.meta)
    standing = engine.policy_coverage.of_policy(session.reference, identity)
    if standing is None:
        # Not looked at yet: the look wakes this resource.
        found.conditions.extend(engine.carry(key, entry.body, conditions.EFFECTIVE))
        return
    matches = {"queues": standing.queues, "skipped": standing.skipped}
    if identity.kind == "policy":
        matches["exchanges"] = standing.exchanges
    found.fields["matches"] = matches
    found.conditions.append(
        conditions.build(
            conditions.EFFECTIVE,
            standing.is_effective,
            standing.reason,
            standing.message,
            entry.meta.generation,
        )
    )


def _add_warning(
    found: Warnings,
    engine: Engine,
    key: Key,
    entry: Entry,
    spec: TopologySpec,
    session: BrokerSession | None,
    missing: str,
) -> None:
    told = [Oddity("MissingDependency", missing)] if missing else []
    if session is not None:
        broker = session.reference
        for identity in spec.identities(entry.meta):
            told.extend(engine.policy_coverage.oddities(broker, identity))
        if isinstance(spec, QueueSpec):
            told.extend(too_few_members(spec.replicas, engine.health.member_count(broker)))
        is_known = engine.health.is_known(broker) and engine.policy_coverage.is_known(
            broker, spec.vhost
        )
        carried = () if is_known else engine.carry(key, entry.body, conditions.WARNING)
        if carried:
            found.conditions.extend(carried)
            return
    if told:
        text = "; ".join(item.text for item in told[:ODDITIES_MAX])
        found.conditions.append(
            conditions.build(conditions.WARNING, True, told[0].reason, text, entry.meta.generation)
        )


async def tell_of_rights(
    engine: Engine, key: Key, entry: Entry, session: BrokerSession, now: datetime.datetime
) -> float | None:
    """An Event, once, where the administrator has no rights in a virtual host that a resource made,
    which shows first when a purge is refused; seconds until there is something to say.
    """
    spec, account = entry.spec, session.account
    try:
        made = datetime.datetime.fromisoformat(str(entry.body["metadata"]["creationTimestamp"]))
    except (KeyError, ValueError):
        return None
    age_s = (now - made).total_seconds()
    if not isinstance(spec, VhostSpec) or not account or age_s > RIGHTS_UNTIL_S:
        return None
    if age_s < RIGHTS_AFTER_S:
        return RIGHTS_AFTER_S - age_s
    vhost = spec.resolved_name(entry.meta)
    has_rights = session.topology.has(Identity("permission", vhost, account))
    if not has_rights and key not in engine.told_of_rights:
        engine.told_of_rights.add(key)
        text = (
            f"the administrator {account} has no permissions in virtual host '{vhost}': to publish"
            " to, read or purge its queues as this user, make a Permission for it"
        )
        await engine.store.emit(entry.body, "Normal", NO_PERMISSION, text)
    return None


def too_few_members(replicas: int | None, members: int | None) -> list[Oddity]:
    """A queue that asks for more replicas than there are members."""
    if replicas is None or members is None or replicas <= members:
        return []
    has = f"{members} member{'s' if members > 1 else ''}"
    text = f"replicas is {replicas}, and the cluster has {has}: it cannot have more replicas"
    return [Oddity("TooFewMembers", text)]
