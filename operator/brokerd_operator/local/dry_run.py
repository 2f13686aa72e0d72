"""`brokerctl plan`: what applying a directory would change, by the very planner, writing nothing.

Reads the resources as `up` would (with the uids that `up` gave them, if it did), lists the topology
of the clusters that run, and asks the planner. For the command line only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd_operator import validation
from brokerd_operator.broker.client import AdminClient, Target
from brokerd_operator.engine import keys
from brokerd_operator.engine.engine import EngineSettings
from brokerd_operator.engine.keys import Key
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.reconcile import dependencies, plan
from brokerd_operator.reconcile.actions import Action, Conflict, Delete, SetOwner, Upsert
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.sources import directory as files
from brokerd_operator.specs import registry
from brokerd_operator.specs.model import (
    Identity,
    Inputs,
    Invalid,
    Meta,
    Reference,
    TopologySpec,
    Waiting,
)


@dataclass(slots=True)
class Report:
    """Lines for a person, and the exit status."""

    lines: list[str] = field(default_factory=list)
    has_changes: bool = False
    has_problems: bool = False

    @property
    def status(self) -> int:
        if self.has_problems:
            return 1
        return 2 if self.has_changes else 0


async def run(directory: Path, data_dir: Path, targets: Mapping[str, Target]) -> Report:
    """Plan every resource against the cluster it names."""
    report = Report()
    bodies = _bodies(directory, data_dir, report)
    topologies: dict[str, Topology] = {}
    for key, target in targets.items():
        topologies[key] = await _topology(target)
    if not topologies:
        report.lines.append("no cluster runs: everything would be made")
    order = {kind: rank for rank, kind in enumerate(registry.KINDS)}
    bodies.sort(key=lambda body: (order.get(body["kind"], 99), body["metadata"]["name"]))
    for body in bodies:
        if body["kind"] in registry.TOPOLOGY_KINDS:
            _plan_one(body, topologies, report)
    _plan_deletions(bodies, topologies, report)
    if not report.has_changes and not report.has_problems:
        report.lines.append("nothing would change")
    return report


def _bodies(directory: Path, data_dir: Path, report: Report) -> list[dict[str, Any]]:
    """Valid resources, with the uid and generation they have in the environment."""
    documents, problems = files.read(directory)
    validator = validation.Validator.from_directory()
    known = _known(data_dir)
    found = []
    for document in documents:
        body = document.body
        old = None
        if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
            old = known.get(keys.key_of(body))
        verdict = validator.admit(body, old=old)
        if isinstance(verdict, validation.Refused):
            problems.append(files.Problem(document.place, verdict.message))
        elif verdict.body["kind"] != "Secret":
            metadata = verdict.body["metadata"]
            before = (old or {}).get("metadata") or {}
            metadata["uid"] = before.get("uid", "")
            metadata["generation"] = before.get("generation", 1)
            found.append(verdict.body)
    report.lines += [f"wrong: {problem}" for problem in problems]
    report.has_problems = bool(problems)
    return found


def _known(data_dir: Path) -> dict[Key, dict[str, Any]]:
    file = data_dir / files.STATE_FILE
    if not file.exists():
        return {}
    try:
        kept = json.loads(file.read_text())
        return {keys.key_of(body): body for body in kept["resources"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EmbeddedError(f"{file} cannot be read: {error!r}") from error


async def _topology(target: Target) -> Topology:
    client = AdminClient(target)
    try:
        items, revision = await client.list_topology()
    finally:
        await client.close()
    topology = Topology()
    topology.replace(items, revision)
    return topology


def _plan_one(body: dict[str, Any], topologies: dict[str, Topology], report: Report) -> None:
    name = f"{body['kind']} {body['metadata']['name']}"
    meta = Meta.of(body)
    spec = registry.parse(body)
    if isinstance(spec, Invalid):
        report.lines.append(f"wrong: {name}: {spec.reason}: {spec.message}")
        report.has_problems = True
        return
    assert isinstance(spec, TopologySpec)
    broker = spec.broker_ref.reference(meta)
    topology = topologies.setdefault(broker.key, Topology())
    desired = registry.desired(spec, meta, Inputs())
    if isinstance(desired, Invalid | Waiting):
        report.lines.append(f"? {name}: {desired.message}")
        return
    resource = plan.Resource(spec.KIND, meta, spec, desired)
    written = _assume_secrets(resource, topology)
    context = plan.Context(EngineSettings().instance, keys.is_paused(body), written=written)
    found = plan.plan(resource, topology, context)
    if isinstance(found, Conflict):
        report.lines.append(f"! {name}: {found.reason}: {found.message}")
        report.has_problems = True
        return
    missing = dependencies.check(spec.dependencies(meta), topology.has)
    for action in found.actions:
        report.has_changes = True
        report.lines.append(f"{_describe(action)} on {broker.key} ({name})")
    for difference in found.drift:
        report.lines.append(f"    {difference.path}: {difference.observed} -> {difference.desired}")
    if missing.waiting is not None and found.actions:
        report.lines.append(f"    waits: {missing.waiting.message}")
    _pretend(found.actions, topology)


def _assume_secrets(resource: plan.Resource, topology: Topology) -> dict[Identity, plan.Written]:
    """A listing hides secrets, so a dry run takes them for unchanged."""
    found = {}
    for item in resource.objects:
        present = topology.get(item.identity)
        if present is not None:
            found[item.identity] = plan.Written(plan.full_digest(item), present.hash)
    return found


def _pretend(actions: tuple[Action, ...], topology: Topology) -> None:
    """Later resources see what earlier ones would have made."""
    for action in actions:
        if isinstance(action, Upsert):
            item = action.item
            topology.put(
                ObservedObject(
                    item.kind,
                    item.vhost,
                    item.name,
                    item.spec,
                    owner=action.owner,
                    revision=topology.revision,
                )
            )


_SIGNS = {Upsert: "~", SetOwner: "=", Delete: "-"}


def _describe(action: Action) -> str:
    if isinstance(action, Upsert) and action.precondition.is_absent:
        return f"+ {plan.shown(action.identity)}"
    if isinstance(action, SetOwner):
        return f"= {plan.shown(action.identity)} (owner only)"
    return f"{_SIGNS[type(action)]} {plan.shown(action.identity)}"


def _plan_deletions(
    bodies: list[dict[str, Any]], topologies: dict[str, Topology], report: Report
) -> None:
    """Objects whose resource is not in the directory any more."""
    present = {Reference(*keys.key_of(body)) for body in bodies}
    names = {f"{item.kind}/{item.namespace}/{item.name}" for item in present}
    for broker, topology in topologies.items():
        for item in topology:
            owner = item.owner
            if owner is None or owner.managed_by != EngineSettings().instance:
                continue
            if owner.resource not in names:
                report.has_changes = True
                report.lines.append(
                    f"- {plan.shown(item.identity)} on {broker} ({owner.resource} is gone; "
                    f"deletionPolicy {owner.deletion_policy})"
                )
