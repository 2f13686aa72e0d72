"""BrokerClusters as local processes: the embedded mode's cluster driver (operator.md section 14).

Implements `engine.shell.ClusterDriver`. Owns the members of all clusters of one environment, their
ports and secrets; what it decides to keep lies in the data directory (mode 0600).
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.broker.client import Target
from brokerd_operator.engine.keys import Body
from brokerd_operator.engine.shell import ClusterReport
from brokerd_operator.local.errors import EmbeddedError
from brokerd_operator.local.member import Member, MemberState
from brokerd_operator.local.ports import LOOPBACK, PortReservations, Ports
from brokerd_operator.specs import broker_cluster
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.model import ClusterAddress, Meta, Reference

log = logging.getLogger(__name__)

#: Made by the members themselves; may only log in from loopback.
GUEST = "guest"
STATE_FILE = "cluster.json"


@dataclass(slots=True)
class LocalCluster:
    """One BrokerCluster. `initial` members formed it; their number cannot change yet."""

    name: str
    namespace: str
    data_dir: Path
    secret: str
    offsets: dict[str, int] = field(default_factory=dict)
    members: list[Member] = field(default_factory=list)
    spec: BrokerClusterSpec | None = None

    @property
    def running(self) -> list[Member]:
        return [member for member in self.members if member.state is not MemberState.STOPPED]

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
            refused = self._apply(cluster, meta, spec)
            if not spec.replicas:
                await asyncio.gather(*(member.stop() for member in cluster.running))
        return self._report(cluster, meta, spec, refused)

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
        if cluster is None or not cluster.running:
            return None
        # Ready ones first: a member that waits for a majority answers, but knows nothing yet.
        ordered = sorted(cluster.running, key=lambda member: member.state is not MemberState.READY)
        addresses = tuple(f"{LOOPBACK}:{member.grpc_port}" for member in ordered)
        return Target(addresses, GUEST, GUEST)

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
            except (OSError, ValueError, KeyError, AttributeError) as error:
                raise EmbeddedError(f"{file} cannot be read: {error!r}") from error
        return cluster

    def _save(self, cluster: LocalCluster) -> None:
        text = json.dumps({"secret": cluster.secret, "offsets": cluster.offsets}, indent=1)
        write_private(cluster.data_dir / STATE_FILE, text)

    def _apply(self, cluster: LocalCluster, meta: Meta, spec: BrokerClusterSpec) -> str:
        """Make and start members; why the number of replicas was not honoured, if it was not."""
        cluster.spec = spec
        if not spec.replicas:
            return ""
        initial = len(cluster.members) or len(cluster.offsets)
        if not cluster.members:
            names = list(cluster.offsets) or list(spec.member_names(meta))
            self._make_members(cluster, names, spec)
        for member in cluster.members:
            if member.state is MemberState.STOPPED:
                member.start()
        if initial and initial != spec.replicas:
            return (
                f"the cluster was formed with {initial} members; a change to {spec.replicas} "
                "is not possible yet in the embedded mode"
            )
        return ""

    def _make_members(
        self, cluster: LocalCluster, names: list[str], spec: BrokerClusterSpec
    ) -> None:
        ports: dict[str, Ports] = {}
        for name in names:
            wanted = cluster.offsets.get(name)
            ports[name] = self._reservations.reserve(wanted, self._first_offset)
        first = names[0]
        wanted_offset = cluster.offsets.get(first, self._first_offset)
        is_first = len(self.clusters) == 1
        if is_first and ports[first].offset != wanted_offset:
            self._say(
                f"port {5672 + wanted_offset} (or one that goes with it) is in use by another "
                f"program; {first} listens on {ports[first].amqp} instead"
            )
        cluster.offsets = {name: item.offset for name, item in ports.items()}
        self._save(cluster)
        peers = ",".join(f"{name}={LOOPBACK}:{item.peer}" for name, item in ports.items())
        environment = member_environment(cluster, spec, peers)
        reference = Reference("BrokerCluster", cluster.namespace, cluster.name)
        cluster.members = [
            Member(
                name,
                item,
                cluster.data_dir / name,
                environment,
                functools.partial(self._changed, reference),
            )
            for name, item in ports.items()
        ]

    # ---- status -------------------------------------------------------------------------------

    def _report(
        self, cluster: LocalCluster, meta: Meta, spec: BrokerClusterSpec, refused: str
    ) -> ClusterReport:
        total, ready = len(cluster.running), len(cluster.ready)
        reason, message = _verdict(cluster, spec, refused)
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
            "notApplied": list(broker_cluster.not_applied_locally(spec)) or None,
        }
        return ClusterReport(reason, message, tuple(found), fields)


def _verdict(cluster: LocalCluster, spec: BrokerClusterSpec, refused: str) -> tuple[str, str]:
    total, ready = len(cluster.running), len(cluster.ready)
    if not spec.replicas:
        return "Stopped", "replicas is 0; the data is kept"
    if refused:
        return "ImmutableChange", refused
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
        "BROKERD_CLUSTER_MEMBERS": peers,
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
        if item.name.startswith("BROKERD_LOG_")
    }
    return {**kept, **settings, **extra}


def write_private(file: Path, text: str) -> None:
    """Write a file that only its owner can read, all of it or nothing."""
    draft = file.with_name(f"{file.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    draft.replace(file)
