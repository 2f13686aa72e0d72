"""`brokerctl plan`: what applying a directory would change, by the very planner, writing nothing.

Reads the resources as `up` would (with the uids that `up` gave them, if it did), lists the topology
of the clusters that run, and asks the planner. For the command line only.
"""

from __future__ import annotations

import base64
import difflib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd_operator import validation
from brokerd_operator.broker.client import AdminClient, Target
from brokerd_operator.engine import keys
from brokerd_operator.engine.cache import ResourceCache
from brokerd_operator.engine.engine import EngineSettings
from brokerd_operator.engine.keys import Key
from brokerd_operator.local import directory as files
from brokerd_operator.local import documents
from brokerd_operator.local.cluster import GUEST
from brokerd_operator.local.documents import Document
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.reconcile import dependencies, drift, granting, plan
from brokerd_operator.reconcile.actions import Action, Conflict, Delete, SetOwner, Upsert
from brokerd_operator.reconcile.topology import ObservedObject, Topology
from brokerd_operator.specs import registry
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.broker_connection import BrokerConnectionSpec
from brokerd_operator.specs.model import (
    ClusterAddress,
    DesiredObject,
    Identity,
    Inputs,
    Invalid,
    Meta,
    Reference,
    TopologySpec,
    Waiting,
)
from brokerd_operator.specs.user import UserSpec

#: Likeness of names (difflib) from which one was probably meant to be the other.
_MISSPELT = 0.9
#: Name of a target that was given without one.
ONLY_CLUSTER = ""
#: A new cluster has it.
_FIRST_VHOST = Identity("vhost", "", "/")


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


@dataclass(slots=True)
class Wanted:
    """What the directory holds, and what `up` made of it before."""

    cache: ResourceCache = field(default_factory=ResourceCache)
    #: Contents by namespace/name: of files, and those that `up` has made.
    secrets: dict[str, Mapping[str, bytes]] = field(default_factory=dict, repr=False)
    #: Specs of BrokerClusters and BrokerConnections as `up` knows them.
    known: dict[Key, dict[str, Any]] = field(default_factory=dict)
    #: Where each resource stands.
    documents: dict[Key, Document] = field(default_factory=dict)
    #: Clusters that were asked what they hold, and as which user.
    running: dict[str, str] = field(default_factory=dict)
    #: What a brokerRef may name, by namespace/name.
    clusters: list[str] = field(default_factory=list)


async def run(directory: Path, data_dir: Path, targets: Mapping[str, Target]) -> Report:
    """Plan every resource against the cluster it names."""
    report = Report()
    wanted = _wanted(directory, data_dir, report)
    is_read = not report.has_problems
    topologies: dict[str, Topology] = {}
    for broker, target in _named(targets, wanted).items():
        topologies[broker] = await _topology(target)
        wanted.running[broker] = target.username
    wanted.clusters = _clusters(wanted, topologies)
    if not topologies and not targets:
        report.lines.append(
            "no cluster of `up` runs: everything would be made; -n HOST:PORT, or --broker "
            "CLUSTER=HOST:PORT, names a broker that runs"
        )
    order = {kind: rank for rank, kind in enumerate(registry.KINDS)}
    for key in sorted(wanted.cache.all_keys(), key=lambda key: (order[key.kind], key)):
        if key.kind in registry.TOPOLOGY_KINDS:
            _plan_one(key, wanted, topologies, report)
        else:
            _plan_broker(key, wanted, report)
    if is_read:
        _plan_deletions(wanted, topologies, report)
    else:
        # What a file that is wrong holds would seem to be gone.
        report.lines.append("what would be deleted is not known before all files are right")
    if not report.has_changes and not report.has_problems:
        report.lines.append("nothing would change")
    return report


def _named(targets: Mapping[str, Target], wanted: Wanted) -> dict[str, Target]:
    """Targets by the cluster that they are for; one without a name is for the only cluster."""
    found = dict(targets)
    target = found.pop(ONLY_CLUSTER, None)
    if target is None:
        return found
    names = sorted({broker.key for broker, _ in _references(wanted)})
    if not names:
        return {}
    if len(names) > 1:
        raise EmbeddedError(
            f"the resources are for {len(names)} clusters ({', '.join(names)}): say "
            f"which one {target.addresses[0]} is, with --broker CLUSTER=HOST:PORT"
        )
    return {names[0]: target}


def _references(wanted: Wanted) -> list[tuple[Reference, Meta]]:
    """The cluster of each resource that is right."""
    entries = (wanted.cache.get(key) for key in wanted.cache.all_keys())
    return [
        (entry.spec.broker_ref.reference(entry.meta), entry.meta)
        for entry in entries
        if entry is not None and isinstance(entry.spec, TopologySpec)
    ]


def _clusters(wanted: Wanted, topologies: Iterable[str]) -> list[str]:
    """All that a brokerRef may name: clusters of the files, and those that run."""
    kinds = ("BrokerCluster", "BrokerConnection")
    keys_ = (key for key in wanted.cache.all_keys() if key.kind in kinds)
    return sorted({*(f"{key.namespace}/{key.name}" for key in keys_), *topologies})


def _misspelt(broker: Reference, known: list[str]) -> Invalid | None:
    """A brokerRef that nothing has, and that is nearly what something has.

    One that is like none of them may be a cluster that is kept elsewhere.
    """
    close = difflib.get_close_matches(broker.key, known, 1, cutoff=_MISSPELT)
    if not close or broker.key in known:
        return None
    return Invalid(
        "BrokerNotFound",
        f"brokerRef: no file has the cluster {broker.key}, and --broker does not name it; "
        f"did you mean {close[0]}?",
    )


def _wanted(directory: Path, data_dir: Path, report: Report) -> Wanted:
    """Valid resources, with the uid and generation they have in the environment."""
    found, problems = documents.read(directory)
    validator = validation.Validator.from_directory()
    known, secrets = _known(data_dir)
    wanted = Wanted(secrets=secrets, known=known)
    places: dict[Key, str] = {}
    for document in found:
        body = document.body
        if files.is_ignored(document):
            continue
        if problem := files.namesake(document, places):
            problems.append(problem)
            continue
        old = None
        if isinstance(body, dict) and isinstance(body.get("metadata"), dict):
            old = known.get(keys.key_of(body))
        verdict = validator.admit(body, old=old)
        if isinstance(verdict, validation.Refused):
            problems += files.problems_of(document, verdict.errors)
            continue
        metadata = verdict.body["metadata"]
        if verdict.body["kind"] == "Secret":
            name = f"{metadata.get('namespace') or 'default'}/{metadata['name']}"
            wanted.secrets[name] = _data(verdict.body)
            continue
        before = (old or {}).get("metadata") or {}
        metadata["uid"] = before.get("uid", "")
        metadata["generation"] = before.get("generation", 1)
        metadata["creationTimestamp"] = before.get("creationTimestamp", "")
        wanted.cache.put(verdict.body)
        wanted.documents[keys.key_of(verdict.body)] = document
    report.lines += [f"wrong: {problem}" for problem in problems]
    report.has_problems = bool(problems)
    return wanted


def _known(data_dir: Path) -> tuple[dict[Key, dict[str, Any]], dict[str, Mapping[str, bytes]]]:
    """Resources and generated Secrets of the environment."""
    file = data_dir / files.STATE_FILE
    if not file.exists():
        return {}, {}
    try:
        kept = json.loads(file.read_text())
        resources = {keys.key_of(body): body for body in kept["resources"]}
        secrets: dict[str, Mapping[str, bytes]] = {
            f"{item['namespace']}/{item['name']}": _data(item) for item in kept["secrets"]
        }
        return resources, secrets
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EmbeddedError(f"{file} cannot be read: {error!r}") from error


def _data(secret: Mapping[str, Any]) -> dict[str, bytes]:
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


async def _topology(target: Target) -> Topology:
    client = AdminClient(target)
    try:
        items, revision = await client.list_topology()
    finally:
        await client.close()
    topology = Topology()
    topology.replace(items, revision)
    return topology


def _plan_broker(key: Key, wanted: Wanted, report: Report) -> None:
    """A BrokerCluster or BrokerConnection against what `up` runs, if it runs any."""
    entry = wanted.cache.get(key)
    assert entry is not None
    if isinstance(entry.spec, Invalid):
        _wrong(key, entry.spec, wanted, report)
        return
    before = wanted.known.get(key)
    if before is None:
        if wanted.known:
            report.has_changes = True
            report.lines.append(f"+ {key.kind} {key.name}")
        return
    item = DesiredObject(key.kind, "", key.name, dict(entry.body["spec"]))
    found = drift.differences(item, before["spec"])
    if found:
        report.has_changes = True
        report.lines.append(f"~ {key.kind} {key.name}")
        _tell_differences(found, report)


def _wrong(
    key: Key, problem: Invalid | Conflict, wanted: Wanted, report: Report, sign: str = "wrong:"
) -> None:
    """Tell it with the line of the field that the message begins with, else that of the spec."""
    first = problem.message.split(maxsplit=1)[0].rstrip(":").removeprefix("spec.")
    path = "" if isinstance(problem, Conflict) else f"spec.{first}"
    (place,) = wanted.documents[key].places([path])
    report.lines.append(
        f"{sign} {place}: {key.kind} {key.name}: {problem.reason}: {problem.message}"
    )
    report.has_problems = True


def _tell_differences(found: Iterable[drift.Difference], report: Report) -> None:
    for item in found:
        report.lines.append(f"    {item.path}: {item.observed} -> {item.desired}")


def _plan_one(key: Key, wanted: Wanted, topologies: dict[str, Topology], report: Report) -> None:
    name = f"{key.kind} {key.name}"
    entry = wanted.cache.get(key)
    assert entry is not None
    spec, meta = entry.spec, entry.meta
    if isinstance(spec, Invalid):
        _wrong(key, spec, wanted, report)
        return
    assert isinstance(spec, TopologySpec)
    conflict = _conflict(key, spec, meta, wanted)
    if conflict is not None:
        _wrong(key, conflict, wanted, report, "!")
        return
    broker = spec.broker_ref.reference(meta)
    unknown = _misspelt(broker, wanted.clusters)
    if unknown is not None:
        _wrong(key, unknown, wanted, report)
        return
    topology = topologies.setdefault(broker.key, Topology())
    desired = registry.desired(spec, meta, _inputs(spec, meta, wanted))
    if isinstance(desired, Invalid | Waiting):
        report.lines.append(f"? {name}: {desired.message}")
        return
    resource = plan.Resource(spec.KIND, meta, spec, desired)
    written = _assume_secrets(resource, topology)
    context = plan.Context(
        EngineSettings().instance,
        keys.is_paused(entry.body),
        written=written,
        account=wanted.running.get(broker.key, GUEST),
    )
    found = plan.plan(resource, topology, context)
    if isinstance(found, Conflict):
        _wrong(key, found, wanted, report, "!")
        return

    def has(identity: Identity) -> bool:
        is_founded_with_it = identity == _FIRST_VHOST and broker.key not in wanted.running
        return is_founded_with_it or topology.has(identity)

    missing = dependencies.check(spec.dependencies(meta), has)
    for action in found.actions:
        report.has_changes = True
        report.lines.append(f"{_describe(action)} on {broker.key} ({name})")
    _tell_differences(found.drift, report)
    if missing.waiting is not None and found.actions:
        report.lines.append(f"    waits: {missing.waiting.message}")
    _pretend(found.actions, topology)


def _conflict(key: Key, spec: TopologySpec, meta: Meta, wanted: Wanted) -> Conflict | None:
    """What the engine refuses before it asks the broker."""
    rival = wanted.cache.older_rival(key)
    if rival is not None:
        return Conflict(
            "NameConflict", f"{rival.kind} {rival.namespace}/{rival.name} is for the same object"
        )
    broker = wanted.cache.get(Key(*_parts(spec.broker_ref.reference(meta))))
    if broker is None or not isinstance(broker.spec, BrokerClusterSpec | BrokerConnectionSpec):
        # It is elsewhere, and its grants are not known.
        return None
    labels = {"kubernetes.io/metadata.name": meta.namespace}
    refusal = granting.refusal(spec, meta, broker.spec.access, labels, wanted.cache.users())
    return Conflict("NotGranted", refusal) if refusal else None


def _parts(reference: Reference) -> tuple[str, str, str]:
    return reference.kind, reference.namespace, reference.name


def _inputs(spec: TopologySpec, meta: Meta, wanted: Wanted) -> Inputs:
    """Secrets and addresses. Where only `up` would make them, something stands in: both are only
    written, never compared.
    """
    secrets = dict(wanted.secrets)
    if isinstance(spec, UserSpec) and spec.has_generated_secret:
        secrets.setdefault(f"{meta.namespace}/{spec.secret_name(meta)}", {"password": b"made"})
    clusters = {
        reference.key: ClusterAddress(("up:0",), "up", "up")
        for reference in spec.references(meta)
        if reference.kind == "BrokerCluster" and wanted.cache.get(Key(*_parts(reference)))
    }
    return Inputs(secrets, clusters, wanted.cache.users())


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


def _plan_deletions(wanted: Wanted, topologies: dict[str, Topology], report: Report) -> None:
    """Objects whose resource is not in the directory any more."""
    for key in sorted(wanted.known):
        if key.kind not in registry.TOPOLOGY_KINDS and wanted.cache.get(key) is None:
            report.has_changes = True
            report.lines.append(f"- {key.kind} {key.name} (its data stays)")
    names = {key.resource for key in wanted.cache.all_keys()}
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
