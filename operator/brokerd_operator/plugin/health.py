"""How a BrokerCluster is, from the bodies that Kubernetes has: PURE.

For `kubectl brokerd status`. What a person should look at is bad; what merely is so (a cluster that
rests, an upgrade that waits for approval) is a note. Fields may be missing or of another type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from brokerd_operator import conditions
from brokerd_operator.conditions import Condition, Verdict
from brokerd_operator.specs.registry import TOPOLOGY_KINDS

Body = Mapping[str, object]

#: Conditions whose True is worth a look.
ADVERSE = frozenset(
    {conditions.STALLED, conditions.RECONCILING, conditions.QUORUM_CRITICAL, conditions.WARNING}
    | {conditions.MEMORY_ALARM, conditions.DISK_ALARM, conditions.KEPT_ASIDE}
    | {conditions.DISK_STALLED}
    | {conditions.UPGRADE_PENDING, conditions.HIBERNATED, conditions.FENCED}
)
#: Those that somebody wanted, or that can wait.
NOTES = frozenset(
    {conditions.WARNING, conditions.UPGRADE_PENDING, conditions.HIBERNATED, conditions.FENCED}
    | {conditions.TELEMETRY_FRESH}
)
#: False as long as a cluster rests.
_OF_MEMBERS = frozenset({conditions.AVAILABLE, conditions.ALL_REPLICAS_READY})
PAUSED, STALE = "Paused", "Stale"
READY, NOT_READY, MISSING = "Ready", "NotReady", "Missing"
BOUND = "Bound"


@dataclass(frozen=True, slots=True)
class Member:
    """A pod, or the place of one."""

    name: str
    state: str
    node: str = ""
    restarts: int = 0
    note: str = ""

    @property
    def is_running(self) -> bool:
        return self.state in (READY, NOT_READY)


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume claim."""

    name: str
    size: str
    phase: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A condition that is not as it should be, of a cluster or of a resource."""

    resource: str
    type: str
    status: str
    reason: str
    message: str
    is_bad: bool


@dataclass(frozen=True, slots=True)
class Health:
    """All that `status` shows."""

    namespace: str
    name: str
    is_healthy: bool
    #: No member is to run.
    is_resting: bool
    reason: str
    message: str
    version: str
    image: str
    ready: int
    wanted: int
    members: tuple[Member, ...]
    volumes: tuple[Volume, ...]
    conditions: tuple[Finding, ...]
    endpoints: Mapping[str, str]
    certificates: str
    topology: tuple[Finding, ...]
    topology_total: int
    #: Why something could not be looked at; no verdict is made of it.
    unseen: tuple[str, ...]


def of(
    cluster: Body,
    pods: Iterable[Body],
    claims: Iterable[Body],
    resources: Iterable[Body],
    unseen: Sequence[str] = (),
    *,
    are_pods_seen: bool = True,
) -> Health:
    """Judge a cluster. `unseen`: why pods, claims or resources are not all there."""
    metadata, status = part(cluster, "metadata"), part(cluster, "status")
    namespace, name = text(metadata, "namespace"), text(metadata, "name")
    resting = is_resting(cluster)
    wanted = 0 if resting else number(part(cluster, "spec"), "replicas")
    members = members_of(name, pods, wanted if are_pods_seen else 0)
    volumes = tuple(sorted(map(_volume, claims), key=lambda found: found.name))
    shown = _of_cluster(cluster, resting)
    own = [body for body in resources if belongs(body, namespace, name)]
    topology = tuple(finding for body in own for finding in _of_resource(body, namespace))
    is_bad = (
        any(finding.is_bad for finding in (*shown, *topology))
        or any(member.state != READY for member in members)
        or any(volume.phase != BOUND for volume in volumes)
    )
    ready = conditions.find(cluster, conditions.READY)
    certificates = conditions.find(cluster, conditions.CERTIFICATES_VALID)
    versions = sorted({text(item, "version") for item in entries(status, "members")} - {""})
    return Health(
        namespace=namespace,
        name=name,
        is_healthy=not is_bad,
        is_resting=resting,
        reason=ready.reason if ready else "Unknown",
        message=ready.message if ready else "the operator has not looked at it yet",
        version=text(status, "version") or ", ".join(versions),
        image=text(status, "image"),
        ready=sum(member.state == READY for member in members)
        if members
        else number(status, "readyReplicas"),
        wanted=wanted,
        members=members,
        volumes=volumes,
        conditions=shown,
        endpoints={key: str(value) for key, value in sorted(part(status, "endpoints").items())},
        certificates=certificates.message if certificates else "",
        topology=topology,
        topology_total=len(own),
        unseen=tuple(unseen),
    )


def is_resting(cluster: Body) -> bool:
    """Whether no member is to run: hibernated, or with no replicas."""
    spec = part(cluster, "spec")
    return spec.get("hibernated") is True or spec.get("replicas") == 0


def belongs(body: Body, namespace: str, name: str) -> bool:
    """Whether a resource is for this BrokerCluster."""
    if body.get("kind") not in TOPOLOGY_KINDS:
        return False
    reference = part(part(body, "spec"), "brokerRef")
    where = text(reference, "namespace") or text(part(body, "metadata"), "namespace")
    kind = text(reference, "kind") or "BrokerCluster"
    return (kind, where, text(reference, "name")) == ("BrokerCluster", namespace, name)


# ---- conditions ---------------------------------------------------------------------------------


def _of_cluster(cluster: Body, resting: bool) -> tuple[Finding, ...]:
    found = _judged(cluster, "", _OF_MEMBERS if resting else frozenset())
    return found or _not_current(cluster, "")


def _of_resource(body: Body, namespace: str) -> tuple[Finding, ...]:
    """What is wrong with a resource: one line, the most telling."""
    metadata = part(body, "metadata")
    where = text(metadata, "namespace")
    prefix = "" if where == namespace else f"{where}/"
    label = f"{text(body, 'kind')} {prefix}{text(metadata, 'name')}"
    judged = _judged(body, label, frozenset())
    bad = [finding for finding in judged if finding.is_bad]
    ready = [finding for finding in bad if finding.type == conditions.READY]
    notes = tuple(finding for finding in judged if not finding.is_bad)
    return ((ready or bad)[0], *notes) if bad else (*_not_current(body, label), *notes)


def _judged(body: Body, label: str, passed_over: frozenset[str]) -> tuple[Finding, ...]:
    status = part(body, "status")
    items = [Condition.of(item) for item in entries(status, "conditions")]
    return tuple(
        Finding(label, item.type, item.status, item.reason, item.message, not _is_note(item))
        for item in items
        if item.type not in passed_over
        and (item.status == conditions.TRUE) == (item.type in ADVERSE)
        and not (item.type in ADVERSE and item.status == conditions.UNKNOWN)
    )


def _is_note(condition: Condition) -> bool:
    # The Ready of a paused resource is unknown on purpose; a telemetry job that stands says nothing
    # about the broker.
    return condition.type in NOTES or condition.reason in (PAUSED, STALE)


def _not_current(body: Body, label: str) -> tuple[Finding, ...]:
    """What kstatus has against a body whose conditions are all good."""
    verdict, message = conditions.verdict(body)
    if not entries(part(body, "status"), "conditions"):
        message = "the operator has not looked at it yet"
    elif verdict is Verdict.CURRENT:
        return ()
    reason = verdict.value if verdict is not Verdict.CURRENT else "Pending"
    return (Finding(label, conditions.READY, conditions.UNKNOWN, reason, message, True),)


# ---- members and volumes ------------------------------------------------------------------------


def members_of(cluster: str, pods: Iterable[Body], wanted: int) -> tuple[Member, ...]:
    """The pods in the order of their ordinals, and the places of those that are missing."""
    found = {member.name: member for member in map(_member, pods)}
    for ordinal in range(wanted):
        name = f"{cluster}-{ordinal}"
        found.setdefault(name, Member(name, MISSING, note="there is no pod"))
    return tuple(sorted(found.values(), key=lambda member: (len(member.name), member.name)))


def _member(pod: Body) -> Member:
    metadata, status = part(pod, "metadata"), part(pod, "status")
    containers = entries(status, "containerStatuses")
    state, note = _pod_state(metadata, status, containers)
    return Member(
        text(metadata, "name"),
        state,
        text(part(pod, "spec"), "nodeName"),
        sum(number(item, "restartCount") for item in containers),
        note,
    )


def _pod_state(metadata: Body, status: Body, containers: Sequence[Body]) -> tuple[str, str]:
    if metadata.get("deletionTimestamp"):
        return "Terminating", ""
    for item in containers:
        waiting = part(part(item, "state"), "waiting")
        if waiting:
            return text(waiting, "reason") or "Waiting", text(waiting, "message") or _ended(item)
    note = "; ".join(filter(None, map(_ended, containers)))
    is_true = {
        text(item, "type"): item.get("status") == "True" for item in entries(status, "conditions")
    }
    phase = text(status, "phase") or "Unknown"
    if phase == "Running":
        return (READY if is_true.get("Ready") else NOT_READY), note
    why = [text(item, "message") for item in entries(status, "conditions")]
    return phase, note or "; ".join(filter(None, why))


def _ended(container: Body) -> str:
    last = part(part(container, "lastState"), "terminated")
    if not last:
        return ""
    return f"ended before: {text(last, 'reason') or 'Error'}, status {number(last, 'exitCode')}"


def _volume(claim: Body) -> Volume:
    status = part(claim, "status")
    wanted = text(part(part(part(claim, "spec"), "resources"), "requests"), "storage")
    size = text(part(status, "capacity"), "storage") or wanted
    note = f"{wanted} are asked for" if wanted != size else ""
    return Volume(text(part(claim, "metadata"), "name"), size, text(status, "phase"), note)


# ---- bodies -------------------------------------------------------------------------------------


def part(body: Body, name: str) -> Body:
    """A mapping in a mapping; empty if it is none."""
    found = body.get(name)
    return found if isinstance(found, Mapping) else {}


def entries(body: Body, name: str) -> list[Body]:
    """The mappings of a list."""
    found = body.get(name)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def text(body: Body, name: str) -> str:
    """A text; "" if it is none."""
    found = body.get(name)
    return found if isinstance(found, str) else ""


def number(body: Body, name: str) -> int:
    """A number; 0 if it is none."""
    found = body.get(name)
    return found if isinstance(found, int) else 0
