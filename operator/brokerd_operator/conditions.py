"""Conditions of resources: which reason means what, merging without noise, and the kstatus verdict.

PURE; for the planner, the status writer of the engine, and the command line, which prints verdicts.
design/operator.md §6: Ready is always there; Reconciling is there only while the operator works or
waits for something that will come; Stalled only when a human must act. The time comes in as text.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import regex

READY = "Ready"
RECONCILING = "Reconciling"
STALLED = "Stalled"
IN_SYNC = "InSync"
#: It works, but hardly as meant: soft dependencies that are missing (design/operator.md §9), and
#: what is odd between objects. The message names them; Ready does not depend on it.
WARNING = "Warning"
#: Policies: in force for what they match.
EFFECTIVE = "Effective"
#: FederationUpstream, Shovel; Ready does not depend on it.
LINKS_UP = "LinksUp"
#: BrokerCluster, BrokerConnection and Queue: a replica knows more to be committed than its leader.
KEPT_ASIDE = "KeptAside"
#: BrokerCluster: the broker takes what the admin Secret says.
CREDENTIALS_SYNCED = "CredentialsSynced"
#: BrokerCluster.
AVAILABLE = "Available"
ALL_REPLICAS_READY = "AllReplicasReady"
QUORUM_CRITICAL = "QuorumCritical"
MEMORY_ALARM = "MemoryAlarm"
DISK_ALARM = "DiskAlarm"
DISK_STALLED = "DiskStalled"
UPGRADE_PENDING = "UpgradePending"
HIBERNATED = "Hibernated"
FENCED = "Fenced"
#: BrokerCluster: False when one is about to expire, has expired or cannot be used.
CERTIFICATES_VALID = "CertificatesValid"
#: BrokerCluster with spec.gateway; Ready does not depend on it.
ROUTE_ACCEPTED = "RouteAccepted"

#: BrokerCluster, BrokerConnection, Queue, Exchange, Policy, FederationUpstream: what the telemetry
#: job found (ADR 33); Ready does not depend on it.
HEALTHY = "Healthy"
#: BrokerCluster, BrokerConnection: whether what the job found is of today (ADR 41).
TELEMETRY_FRESH = "TelemetryFresh"

#: Types that the planner sets anew in every pass; others stay as they are.
OWNED = frozenset(
    {READY, RECONCILING, STALLED, IN_SYNC, WARNING, EFFECTIVE, LINKS_UP, CREDENTIALS_SYNCED}
    | {AVAILABLE, ALL_REPLICAS_READY, QUORUM_CRITICAL, MEMORY_ALARM, DISK_ALARM, DISK_STALLED}
    | {UPGRADE_PENDING, KEPT_ASIDE, HIBERNATED, FENCED, CERTIFICATES_VALID, ROUTE_ACCEPTED}
    | {HEALTHY, TELEMETRY_FRESH}
)

#: Reasons of Ready with which the object in the broker is the resource's.
OWN_OBJECT = frozenset(("Applied", "NotApplied", "Paused"))

#: What every resource has in the sense of kstatus.
STANDARD = frozenset({READY, RECONCILING, STALLED})

TRUE = "True"
FALSE = "False"
UNKNOWN = "Unknown"

#: metav1.Condition allows 32768; ours are sentences.
MESSAGE_MAX = 1024
_REASON = regex.compile(r"[A-Za-z]([A-Za-z0-9_,:]{0,1022}[A-Za-z0-9_])?")
#: SEC-22: whatever stands between :// and @ is a login.
_CREDENTIALS = regex.compile(r"://[^/@\s]*@")


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a reason says about the three standard conditions."""

    ready: str = FALSE
    is_reconciling: bool = False
    is_stalled: bool = False


_DONE = Meaning(ready=TRUE)
_WAITING = Meaning(is_reconciling=True)
_USER_ERROR = Meaning(is_stalled=True)
_NOT_REPAIRED = Meaning()

#: design/operator.md §6. A reason that is not here is a programming error.
REASONS: dict[str, Meaning] = {
    "Applied": _DONE,
    "Adopted": _DONE,
    "Available": _DONE,
    "Stopped": _DONE,
    "Paused": Meaning(ready=UNKNOWN),
    "Pending": _WAITING,
    "Progressing": _WAITING,
    "Deleting": _WAITING,
    "WaitingForBroker": _WAITING,
    "WaitingForVhost": _WAITING,
    "WaitingForSource": _WAITING,
    "WaitingForDestination": _WAITING,
    "WaitingForSecret": _WAITING,
    "WaitingForUser": _WAITING,
    "WaitingForUpstream": _WAITING,
    "WaitingForDependants": _WAITING,
    "WaitingForMembers": _WAITING,
    "WaitingForLogin": _WAITING,
    "WaitingUntilEmpty": _WAITING,
    # Volumes of a BrokerCluster are growing.
    "Resizing": _WAITING,
    # The API server is overloaded, or a webhook of somebody's does not answer.
    "WaitingForApi": _WAITING,
    # Retried with back-off: the cause is not the spec.
    "BrokerError": _WAITING,
    "InternalError": _WAITING,
    # Re-examined when the grant changes.
    "NotGranted": _USER_ERROR,
    "NameConflict": _USER_ERROR,
    "OwnedByOther": _USER_ERROR,
    "Reserved": _USER_ERROR,
    "ExistsDifferently": _USER_ERROR,
    "InvalidSpec": _USER_ERROR,
    "InvalidName": _USER_ERROR,
    "InvalidPattern": _USER_ERROR,
    "ImmutableChange": _USER_ERROR,
    "ConfirmationRequired": _USER_ERROR,
    "QueueNotEmpty": _USER_ERROR,
    "BrokerRefused": _USER_ERROR,
    "FightingDrift": _USER_ERROR,
    "ShrinkNotSupported": _USER_ERROR,
    "VolumeExpansionNotSupported": _USER_ERROR,
    # The API server does not take what is written for a resource: invalid, forbidden, over a quota.
    "ApiRefused": _USER_ERROR,
    # A member that was restarted does not become ready in its time.
    "MemberNotReady": _USER_ERROR,
    "CertManagerMissing": _USER_ERROR,
    # spec.tls names a certificate that members could not serve with: they keep what they have.
    "CertificateUnusable": _USER_ERROR,
    "SinkNotShared": _USER_ERROR,
    # design/operator.md §8: gone by its own terms, not repaired.
    "Expired": _NOT_REPAIRED,
    # Ready False without Stalled: driftPolicy Report, the object does not exist or differs.
    "NotApplied": _NOT_REPAIRED,
}


#: Reasons of the conditions that are not one of the three standard ones.
REASONS_OF: dict[str, tuple[str, ...]] = {
    IN_SYNC: ("InSync", "Drifted"),
    WARNING: ("MissingDependency", "AlternateExchangeCycle", "EqualPriority", "TooFewMembers"),
    EFFECTIVE: (
        *("InForce", "NothingMatches", "EqualPriority", "Shadowed", "NotApplicable"),
        "PatternTooSlow",
    ),
    LINKS_UP: ("AllRunning", "SomeDown", "NoLinks"),
    KEPT_ASIDE: ("LeaderLacksCommitted",),
    HEALTHY: ("NothingFound", "WarningFinding", "CriticalFinding", "Stale"),
    TELEMETRY_FRESH: ("Fresh", "Stale", "NothingYet"),
    AVAILABLE: ("Majority", "NoMajority"),
    ALL_REPLICAS_READY: ("AllReady", "NotAllReady"),
    QUORUM_CRITICAL: ("MajoritySafe", "MajorityAtRisk", "NoAnswer"),
    MEMORY_ALARM: ("BelowWatermark", "AboveWatermark", "NoAnswer"),
    DISK_ALARM: ("EnoughDisk", "LowDisk", "NoAnswer"),
    DISK_STALLED: ("DisksAnswer", "DiskDoesNotAnswer", "NoAnswer"),
    CREDENTIALS_SYNCED: ("Synced", "NotSynced", "WaitingForLogin", "WaitingForBroker"),
    CERTIFICATES_VALID: ("Valid", "Expiring", "Expired", "Unusable", "Refused"),
    ROUTE_ACCEPTED: ("Accepted", "Pending", "NotAccepted", "GatewayApiMissing", "ApiError"),
    HIBERNATED: ("Hibernated", "Stopping"),
    FENCED: ("Fenced", "NotFenced"),
    UPGRADE_PENDING: (
        *("Rolling", "WaitingForWindow", "WaitingForApproval", "MemberFenced"),
        "CertificateUnusable",
        "UpToDate",
    ),
}

#: Reasons of Events that are no reason of a condition.
EVENT_REASONS = (
    *("DriftRepaired", "Adopted", "LeftBehind", "FindingRaised", "FindingCleared"),
    *("TelemetryStale", "TelemetryBack"),
    *("MemoryAlarm", "MemoryAlarmOver", "DiskAlarm", "DiskAlarmOver"),
    *("DiskStalled", "DiskStalledOver"),
    *("CredentialsSet", "CertificateRenewed", "CertificateReplaced"),
    *("CertificateExpiring", "CertificateExpired", "CertificateUnusable", "CertificateRefused"),
    *("AuthorityMade", "AuthoritySwitched", "AuthorityDropped", "AuthorityReplaced"),
    *("NamespaceUnavailable", "NamespaceAvailable", "MemberBlocked", "MemberRestarted"),
    *("NoPermission", "RestartedUnasked"),
)


@dataclass(frozen=True, slots=True)
class Condition:
    """metav1.Condition. `last_transition_time` is empty until `merge` fills it in."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int = 0
    last_transition_time: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "type": self.type,
            "status": self.status,
            "reason": self.reason,
            "message": self.message,
            "observedGeneration": self.observed_generation,
            "lastTransitionTime": self.last_transition_time,
        }

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Condition:
        return cls(
            type=str(value.get("type", "")),
            status=str(value.get("status", UNKNOWN)),
            reason=str(value.get("reason", "")),
            message=str(value.get("message", "")),
            observed_generation=int(value.get("observedGeneration") or 0),
            last_transition_time=str(value.get("lastTransitionTime") or ""),
        )


def build(type_: str, status: str | bool, reason: str, message: str, generation: int) -> Condition:
    """A condition whose texts obey the limits of metav1.Condition and hold no credentials."""
    if not _REASON.fullmatch(reason):
        raise ValueError(f"not a reason: {reason!r}")
    if isinstance(status, bool):
        status = TRUE if status else FALSE
    return Condition(type_, status, reason, scrub(message), generation)


def scrub(message: str) -> str:
    """A message without logins in URIs (SEC-22), cut to a length that a table can bear."""
    text = _CREDENTIALS.sub("://", message)
    return text if len(text) <= MESSAGE_MAX else text[: MESSAGE_MAX - 1] + "…"


def standard(reason: str, message: str, generation: int) -> list[Condition]:
    """Ready, and Reconciling or Stalled where the reason calls for it."""
    meaning = REASONS[reason]
    found = [build(READY, meaning.ready, reason, message, generation)]
    if meaning.is_reconciling:
        found.append(build(RECONCILING, TRUE, reason, message, generation))
    if meaning.is_stalled:
        found.append(build(STALLED, TRUE, reason, message, generation))
    return found


def in_sync(differences: Sequence[str], generation: int) -> Condition:
    """InSync: False with the paths that differ."""
    if not differences:
        return build(IN_SYNC, TRUE, "InSync", "the broker holds what the spec asks for", generation)
    shown = ", ".join(differences[:5]) + (", …" if len(differences) > 5 else "")
    return build(IN_SYNC, FALSE, "Drifted", f"differs in {shown}", generation)


def merge(
    previous: Iterable[Mapping[str, Any]], current: Iterable[Condition], now: str
) -> list[dict[str, Any]]:
    """The new list of conditions.

    A condition whose status is as before keeps its time; an owned type that is not in `current`
    goes; a type that is not ours stays. Sorted by type with Ready first, so that equal sets are
    equal lists.
    """
    before = {item.type: item for item in map(Condition.of, previous)}
    merged = {type_: item for type_, item in before.items() if type_ not in OWNED}
    for item in current:
        old = before.get(item.type)
        keeps = old is not None and old.status == item.status and old.last_transition_time
        time = old.last_transition_time if old is not None and keeps else now
        merged[item.type] = replace(item, last_transition_time=time)
    ordered = sorted(merged.values(), key=lambda item: (item.type != READY, item.type))
    return [item.to_json() for item in ordered]


def is_same_status(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether two statuses say the same: times do not count, so an idle pass writes nothing."""
    return bool(_without_times(left) == _without_times(right))


def _without_times(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_times(item) for key, item in value.items() if key not in _TIME_FIELDS}
    if isinstance(value, list | tuple):
        return [_without_times(item) for item in value]
    return value


_TIME_FIELDS = frozenset(("lastTransitionTime", "since"))


def find(body: Mapping[str, Any], type_: str) -> Condition | None:
    """A condition of a resource."""
    status = body.get("status") or {}
    for item in status.get("conditions") or ():
        if item.get("type") == type_:
            return Condition.of(item)
    return None


def is_expired(body: Mapping[str, Any]) -> bool:
    """Whether the status says that the broker removed the object of this very spec by its terms."""
    return _is_ready_for(body, "Expired")


def was_applied(body: Mapping[str, Any]) -> bool:
    """Whether the status says that the broker had the object of this very spec."""
    return _is_ready_for(body, "Applied")


def _is_ready_for(body: Mapping[str, Any], reason: str) -> bool:
    ready = find(body, READY)
    generation = (body.get("metadata") or {}).get("generation")
    if ready is None or ready.reason != reason:
        return False
    return bool(ready.observed_generation == generation)


def carried(body: Mapping[str, Any], types: Iterable[str]) -> tuple[Condition, ...]:
    """Conditions as they are, until something newer is known: after a restart, for example."""
    found = (find(body, type_) for type_ in types)
    return tuple(item for item in found if item is not None)


class Verdict(enum.Enum):
    """What kstatus makes of a resource (cli-utils pkg/kstatus/status)."""

    CURRENT = "Current"
    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    TERMINATING = "Terminating"


def verdict(body: Mapping[str, Any]) -> tuple[Verdict, str]:
    """The verdict of Helm, Flux and kpt on a resource, and why."""
    metadata = body.get("metadata") or {}
    status = body.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return Verdict.TERMINATING, "is being deleted"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata.get("generation"):
        return Verdict.IN_PROGRESS, f"generation {observed} was looked at last"
    for type_, result in ((RECONCILING, Verdict.IN_PROGRESS), (STALLED, Verdict.FAILED)):
        found = find(body, type_)
        if found is not None and found.status == TRUE:
            return result, found.message
    ready = find(body, READY)
    if ready is None or ready.status == TRUE:
        return Verdict.CURRENT, ready.message if ready else ""
    return Verdict.IN_PROGRESS, ready.message
