"""BrokerClusters as local processes: the embedded mode's cluster driver (design/operator.md §14).

Implements `engine.ports.ClusterDriver`. Owns the members of all clusters of one environment, their
ports and secrets; what it decides to keep lies in the data directory (mode 0600).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import logging
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker import members
from brokerd_operator.broker.client import Target
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.ports import ClusterReport
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.local.member import Member, MemberState
from brokerd_operator.local.ports import LOOPBACK, PortReservations, Ports
from brokerd_operator.reconcile import scaling
from brokerd_operator.reconcile.scaling import Fleet, Step, StepKind
from brokerd_operator.specs import broker_cluster
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import ClusterAddress, Meta, Reference

log = logging.getLogger(__name__)

#: Made by the members themselves; may only log in from loopback.
GUEST = "guest"
STATE_FILE = "cluster.json"
#: Beside the data of all members, so it protects their logs and copies of them, not the disk.
KEY_FILE = "secrets.key"
#: Until the next look at a cluster whose members come or go, and at one where that was refused.
STEP_AGAIN_S = 0.5
REFUSED_AGAIN_S = 10.0


@dataclass(slots=True)
class LocalCluster:
    """One BrokerCluster. `initial` are the names of the members that founded it."""

    name: str
    namespace: str
    data_dir: Path
    secret: str
    offsets: dict[str, int] = field(default_factory=dict)
    initial: list[str] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    ports: dict[str, Ports] = field(default_factory=dict)
    spec: BrokerClusterSpec | None = None

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.state is not MemberState.STOPPED]

    @property
    def is_whole(self) -> bool:
        """Whether all members are there and ready."""
        return bool(self.members) and len(self.ready) == len(self.members)

    @property
    def ready(self) -> list[Member]:
        return [member for member in self.members if member.state is MemberState.READY]


class LocalClusters:
    """Owns all local clusters. `changed` hears of every change of a member's state."""

    def __init__(
        self,
        data_dir: Path,
        reservations: PortReservations,
        changed: Callable[[Reference, Member], None],
        say: Callable[[str], None],
        first_offset: int = 0,
    ) -> None:
        self._data_dir = data_dir
        self._reservations = reservations
        self._changed = changed
        self._say = say
        self._first_offset = first_offset
        self._lock = asyncio.Lock()
        self.clusters: dict[str, LocalCluster] = {}

    async def reconcile(self, body: Body, meta: Meta, spec: BrokerClusterSpec) -> ClusterReport:
        """Start what is missing, and say how things stand."""
        # One at a time: ports are chosen in the order in which clusters come.
        async with self._lock:
            key = f"{meta.namespace}/{meta.name}"
            cluster = self.clusters.get(key)
            if cluster is None:
                cluster = self._load(meta)
                self.clusters[key] = cluster
            step, problem = await self._apply(cluster, meta, spec)
            if not spec.members_wanted:
                await asyncio.gather(*(member.stop() for member in cluster.running))
        return self._report(cluster, meta, spec, step, problem)

    async def teardown(self, body: Body, meta: Meta) -> bool:
        """Stop the members; their data stays unless retention says Delete."""
        cluster = self.clusters.pop(f"{meta.namespace}/{meta.name}", None)
        if cluster is None:
            return True
        await asyncio.gather(*(member.stop() for member in cluster.members))
        for offset in cluster.offsets.values():
            self._reservations.release(offset)
        if cluster.spec is not None and cluster.spec.storage.retention == "Delete":
            await asyncio.to_thread(shutil.rmtree, cluster.data_dir, ignore_errors=True)
        return True

    async def close(self) -> None:
        """Stop all members."""
        members = [member for cluster in self.clusters.values() for member in cluster.members]
        await asyncio.gather(*(member.stop() for member in members))

    async def target(self, reference: Reference) -> Target | None:
        cluster = self.clusters.get(reference.key)
        return None if cluster is None else _target(cluster)

    async def address(self, reference: Reference) -> ClusterAddress | None:
        cluster = self.clusters.get(reference.key)
        if cluster is None or not cluster.members:
            return None
        # Of all members, running or not: a restart must not change what an upstream is.
        endpoints = tuple(f"{LOOPBACK}:{member.amqp_port}" for member in cluster.members)
        return ClusterAddress(endpoints, GUEST, GUEST)

    # ---- members ------------------------------------------------------------------------------

    def _load(self, meta: Meta) -> LocalCluster:
        """What an earlier run kept, or a new cluster."""
        data_dir = self._data_dir / "clusters" / meta.namespace / meta.name
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        cluster = LocalCluster(meta.name, meta.namespace, data_dir, secrets.token_urlsafe(32))
        file = data_dir / STATE_FILE
        if file.exists():
            try:
                kept = json.loads(file.read_text())
                cluster.secret = str(kept["secret"])
                cluster.offsets = {str(k): int(v) for k, v in kept["offsets"].items()}
                cluster.initial = [str(n) for n in kept.get("initial", cluster.offsets)]
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise EmbeddedError(f"{file} cannot be read: {error!r}") from error
        _make_key(cluster.data_dir / KEY_FILE)
        return cluster

    def _save(self, cluster: LocalCluster) -> None:
        kept = {"secret": cluster.secret, "offsets": cluster.offsets, "initial": cluster.initial}
        text = json.dumps(kept, indent=1)
        write_private(cluster.data_dir / STATE_FILE, text)

    async def _apply(
        self, cluster: LocalCluster, meta: Meta, spec: BrokerClusterSpec
    ) -> tuple[Step, str]:
        """Make and start members, and take the next step towards their number; the step, and why
        it failed.
        """
        cluster.spec = spec
        if not spec.members_wanted:
            return Step(StepKind.DONE), ""
        if not cluster.members:
            names = list(cluster.offsets) or list(spec.member_names(meta))
            cluster.initial = cluster.initial or names
            self._make_members(cluster, names, spec)
        for member in cluster.members:
            if member.state is MemberState.STOPPED:
                member.start()
        ready = frozenset(member.name for member in cluster.ready)
        target = _target(cluster) if ready else None
        step = scaling.next_step(
            Fleet(
                meta.name,
                spec.members_wanted,
                len(cluster.members),
                listed=await members.listed(target),
                ready=ready,
            )
        )
        return step, await self._take(cluster, spec, step)

    async def _take(self, cluster: LocalCluster, spec: BrokerClusterSpec, step: Step) -> str:
        """Take one step; "" or why not."""
        if step.kind is StepKind.RESIZE:
            await self._resize(cluster, spec, step.count)
            return ""
        target = _target(cluster, without=step.member)
        if step.kind not in (StepKind.ADD, StepKind.REMOVE) or target is None:
            return ""
        address = f"{LOOPBACK}:{self._ports(cluster, step.member).peer}"
        problem = await members.carry_out(target, step, address)
        if step.kind is StepKind.REMOVE and not problem:
            for member in cluster.members:
                if member.name == step.member:
                    # It ends by itself, and would be started again to be told so.
                    member.kill(signal.SIGTERM)
        return problem

    async def _resize(self, cluster: LocalCluster, spec: BrokerClusterSpec, count: int) -> None:
        """Run `count` members. The data of those that go are kept."""
        while len(cluster.members) > count:
            member = cluster.members.pop()
            await member.stop()
            self._reservations.release(cluster.offsets.pop(member.name))
            cluster.ports.pop(member.name, None)
        while len(cluster.members) < count:
            name = f"{cluster.name}-{len(cluster.members)}"
            self._ports(cluster, name)
            cluster.members.append(self._make_member(cluster, spec, name))
            cluster.members[-1].start()
        self._save(cluster)

    def _ports(self, cluster: LocalCluster, name: str) -> Ports:
        """The ports of a member, chosen when they are first asked for."""
        if name not in cluster.ports:
            wanted = cluster.offsets.get(name)
            cluster.ports[name] = self._reservations.reserve(wanted, self._first_offset)
            cluster.offsets[name] = cluster.ports[name].offset
        return cluster.ports[name]

    def _make_members(
        self, cluster: LocalCluster, names: list[str], spec: BrokerClusterSpec
    ) -> None:
        first = names[0]
        wanted_offset = cluster.offsets.get(first, self._first_offset)
        cluster.ports = {}
        for name in names:
            self._ports(cluster, name)
        is_first = len(self.clusters) == 1
        if is_first and cluster.offsets[first] != wanted_offset:
            self._say(
                f"port {5672 + wanted_offset} (or one that goes with it) is in use by another "
                f"program; {first} listens on {cluster.ports[first].amqp} instead"
            )
        self._save(cluster)
        cluster.members = [self._make_member(cluster, spec, name) for name in names]

    def _make_member(self, cluster: LocalCluster, spec: BrokerClusterSpec, name: str) -> Member:
        peers = ",".join(f"{each}={LOOPBACK}:{ports.peer}" for each, ports in cluster.ports.items())
        return Member(
            name,
            cluster.ports[name],
            cluster.data_dir / name,
            member_environment(cluster, spec, peers),
            functools.partial(
                self._changed, Reference("BrokerCluster", cluster.namespace, cluster.name)
            ),
        )

    # ---- status -------------------------------------------------------------------------------

    def _report(
        self,
        cluster: LocalCluster,
        meta: Meta,
        spec: BrokerClusterSpec,
        step: Step,
        problem: str,
    ) -> ClusterReport:
        total, ready = len(cluster.running), len(cluster.ready)
        reason, message = _verdict(cluster, spec, step, problem)
        has_majority = ready * 2 > total and ready > 0
        generation = meta.generation
        found = [
            conditions.build(
                conditions.AVAILABLE,
                has_majority,
                "Majority" if has_majority else "NoMajority",
                f"{ready} of {total} members are ready",
                generation,
            ),
            conditions.build(
                conditions.ALL_REPLICAS_READY,
                ready == total and total > 0,
                "AllReady" if ready == total and total else "NotAllReady",
                f"{ready} of {total} members are ready",
                generation,
            ),
        ]
        endpoints = [f"{LOOPBACK}:{member.amqp_port}" for member in cluster.members]
        fields: dict[str, Any] = {
            "replicas": total,
            "readyReplicas": ready,
            "members": [
                {"name": member.name, "state": member.state.value} for member in cluster.members
            ],
            "endpoints": {"amqp": ",".join(endpoints)} if endpoints else None,
            "operation": scaling.operation(step, spec.replicas, total, problem),
            "notApplied": list(broker_cluster.not_applied_locally(spec)) or None,
        }
        again_s = None
        if step.kind is not StepKind.DONE:
            again_s = REFUSED_AGAIN_S if problem else STEP_AGAIN_S
        return ClusterReport(reason, message, tuple(found), fields, again_s)


def _target(cluster: LocalCluster, without: str = "") -> Target | None:
    """How the administration of the members is reached, of one aside."""
    running = [member for member in cluster.running if member.name != without]
    if not running:
        return None
    # Ready ones first: a member that waits for a majority answers, but knows nothing yet.
    ordered = sorted(running, key=lambda member: member.state is not MemberState.READY)
    addresses = tuple(f"{LOOPBACK}:{member.grpc_port}" for member in ordered)
    return Target(addresses, GUEST, GUEST)


def _verdict(
    cluster: LocalCluster, spec: BrokerClusterSpec, step: Step, problem: str
) -> tuple[str, str]:
    total, ready = len(cluster.running), len(cluster.ready)
    if not spec.members_wanted:
        return "Stopped", "hibernated or of 0 replicas; the data is kept"
    if problem:
        return "BrokerRefused", f"{scaling.said(step)}: {problem}"
    if step.kind is not StepKind.DONE and ready * 2 > total:
        text = f"{ready} of {total} members are ready; {scaling.said(step)}"
        return "Progressing", text
    problems = [member.problem for member in cluster.members if member.problem]
    if ready == total:
        return "Available", f"{ready} of {total} members are ready"
    if ready * 2 > total:
        # Degraded is available: clients are served (Available says so, AllReplicasReady does not).
        return "Available", f"{ready} of {total} members are ready; {'; '.join(problems)}".rstrip(
            "; "
        )
    text = f"{ready} of {total} members are ready"
    return "WaitingForMembers", f"{text}; {problems[0]}" if problems else text


def member_environment(
    cluster: LocalCluster, spec: BrokerClusterSpec, peers: str
) -> dict[str, str]:
    """The environment of all members of a cluster; nothing of ours that starts with BROKERD_."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKERD_")}
    settings = {
        "BROKERD_CLUSTER_NAME": f"{cluster.namespace}/{cluster.name}",
        "BROKERD_CLUSTER_SECRET": cluster.secret,
        "BROKERD_SECRETS_KEY_FILE": str((cluster.data_dir / KEY_FILE).resolve()),
        "BROKERD_CLUSTER_MEMBERS": peers,
        "BROKERD_CLUSTER_INITIAL_MEMBERS": ",".join(
            name for name in cluster.initial if name in cluster.ports
        ),
        "BROKERD_CLUSTER_WHEN_REMOVED": "wait",
        "BROKERD_NODE_BIND": LOOPBACK,
        "BROKERD_AUTH_CREATE_GUEST": "true",
        "BROKERD_QUEUES_DEFAULT_TYPE": spec.queues.default_queue_type,
        "BROKERD_TELEMETRY_INTERVAL_MS": str(spec.telemetry.interval),
    }
    watermark = spec.memory_high_watermark()
    if watermark is not None:
        settings["BROKERD_MEMORY_HIGH_WATERMARK"] = watermark
    extra = {
        item.name: item.value
        for item in spec.pod_template.env
        if item.name.startswith("BROKERD_LOG_") and item.value_from is None
    }
    return {**kept, **settings, **spec.settings_environment(), **extra}


def _make_key(file: Path) -> None:
    """Make the key of a cluster's secrets at rest, once (ADR 19)."""
    if not file.exists():
        key = base64.b64encode(secrets.token_bytes(32)).decode()
        write_private(file, f"{key}\n", 0o400)


def write_private(file: Path, text: str, mode: int = 0o600) -> None:
    """Write a file that only its owner can read, all of it or nothing."""
    draft = file.with_name(f"{file.name}.new")
    # A draft that was left behind may have another mode.
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    draft.replace(file)
