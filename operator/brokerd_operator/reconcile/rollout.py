"""Whether members may be restarted now, which image they get, and who has not come back. PURE.

scaling.py says who is restarted next; here is what restrains it: the upgrade policy, maintenance
windows, fenced members, and a restarted member that does not become ready. For the Kubernetes
driver, which brings pods as the API server has them, and the time.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brokerd_operator.manifests import naming
from brokerd_operator.reconcile import windows
from brokerd_operator.specs.broker_cluster import BrokerClusterSpec
from brokerd_operator.specs.pod_template import BROKER

#: Of the template that a pod was made from.
REVISION_LABEL = "controller-revision-hash"

#: Members are ready for so long before one is restarted that cannot be asked: longer than one that
#: comes and goes.
SETTLED_S = 60

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Image:
    """The image that members get, and a newer one that waits for consent ("" for none)."""

    name: str
    pending: str = ""


def image(spec: BrokerClusterSpec, default: str, running: str, approved: str) -> Image:
    """What a spec names is consent; the operator's own newer default may need one."""
    if spec.image is not None:
        return Image(spec.image)
    if spec.upgrade_policy == "Auto" or not running or default in (running, approved):
        return Image(default)
    return Image(running, default)


@dataclass(frozen=True, slots=True)
class Hold:
    """Why no member that is well may be restarted now."""

    reason: str
    message: str


def hold(spec: BrokerClusterSpec, fenced: Collection[str], now: datetime.datetime) -> Hold | None:
    """What stands against restarts, if anything does."""
    if fenced:
        return Hold("MemberFenced", f"no restarts while {', '.join(sorted(fenced))} is fenced")
    if windows.is_open(spec.maintenance_windows, now):
        return None
    begins = windows.next_opening(spec.maintenance_windows, now)
    return Hold(
        "WaitingForWindow",
        f"no restarts before the next maintenance window, which begins at {time_text(begins)}",
    )


def seconds_to_window(spec: BrokerClusterSpec, now: datetime.datetime) -> float | None:
    """How long until the next window begins; None without windows."""
    begins = windows.next_opening(spec.maintenance_windows, now)
    return None if begins is None else (begins - now).total_seconds()


# ---- pods ---------------------------------------------------------------------------------------


def pod_name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def is_pod_ready(pod: Json) -> bool:
    return (_condition(pod, "Ready") or {}).get("status") == "True"


def is_pod_serving(pod: Json) -> bool:
    """Ready, and not on its way out (CO#1993)."""
    return is_pod_ready(pod) and not pod["metadata"].get("deletionTimestamp")


def certificate_secrets(pods: Iterable[Json]) -> tuple[str, ...]:
    """Names of the Secrets whose certificates and authorities members show their clients."""
    found: set[str] = set()
    for pod in pods:
        for volume in (pod.get("spec") or {}).get("volumes") or ():
            if volume.get("name") in naming.CERTIFICATE_VOLUMES and volume.get("secret"):
                found.add(str(volume["secret"].get("secretName")))
    return tuple(sorted(found))


def is_by_system(pods: Iterable[Json]) -> bool:
    """Whether a member's certificate has no authority of its own to go with it."""
    for pod in pods:
        names = {item.get("name") for item in (pod.get("spec") or {}).get("volumes") or ()}
        if "tls" in names and "tls-ca" not in names:
            return True
    return False


def certificates_of(stateful_set: Json) -> tuple[str, str | None] | None:
    """Secrets of the certificate and of its authority that the members are made with."""
    return certificates_of_pod((stateful_set.get("spec") or {}).get("template") or {})


def certificates_of_pod(pod: Json) -> tuple[str, str | None] | None:
    """The same of one member, or of the template of all."""
    found = {
        item["name"]: str(item["secret"].get("secretName"))
        for item in (pod.get("spec") or {}).get("volumes") or ()
        if item.get("name") in naming.CERTIFICATE_VOLUMES and item.get("secret")
    }
    return (found["tls"], found.get("tls-ca")) if "tls" in found else None


def unasked_obstacle(
    pods: Sequence[Json], wanted: tuple[str, str | None], now: datetime.datetime
) -> str:
    """Why no member is restarted unasked for another certificate; "": it may be (ADR 71)."""
    for pod in pods:
        if certificates_of_pod(pod) == wanted:
            return (
                f"{pod_name(pod)} was made with Secret {wanted[0]} already, so a restart changes"
                " nothing; what is written to a Secret members have some two minutes later"
            )
    return unsettled(pods, now)


def unsettled(pods: Sequence[Json], now: datetime.datetime) -> str:
    """Why it is too early for a restart that not all members are asked about; "": it is not."""
    for pod in pods:
        turned = _time((_condition(pod, "Ready") or {}).get("lastTransitionTime"))
        if turned is None or (now - turned).total_seconds() < SETTLED_S:
            return f"one is restarted when all have been ready for {SETTLED_S} s"
    return ""


def is_behind(stateful_set: Json) -> bool:
    """Whether the controller has not looked at the newest template yet."""
    generation = (stateful_set.get("metadata") or {}).get("generation") or 0
    return int((stateful_set.get("status") or {}).get("observedGeneration") or 0) < generation


def outdated(stateful_set: Json, pods: Sequence[Json]) -> list[Json]:
    """Pods that were made from an older template; none while that is not known."""
    newest = (stateful_set.get("status") or {}).get("updateRevision")
    if not newest or is_behind(stateful_set):
        return []
    return [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp") and revision_of(pod) not in ("", newest)
    ]


def revision_of(pod: Json) -> str:
    """Name of the template that a pod was made from."""
    return str((pod["metadata"].get("labels") or {}).get(REVISION_LABEL) or "")


def overdue(
    pod: Json | None, missing_since: datetime.datetime | None, now: datetime.datetime, limit_s: int
) -> bool:
    """Whether a member that is not ready has had its time."""
    since = missing_since if pod is None else _not_ready_since(pod)
    return since is not None and (now - since).total_seconds() >= limit_s


def _not_ready_since(pod: Json) -> datetime.datetime | None:
    made = _time(pod["metadata"].get("creationTimestamp"))
    turned = _time((_condition(pod, "Ready") or {}).get("lastTransitionTime"))
    return max((time for time in (made, turned) if time is not None), default=None)


def why_not_ready(pod: Json | None) -> str:
    """What Kubernetes says of a pod that is not ready."""
    if pod is None:
        return "it has no pod"
    if pod["metadata"].get("deletionTimestamp"):
        return "its pod does not end"
    scheduled = _condition(pod, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason')}: {scheduled.get('message')}"
    for container in _statuses(pod):
        state = container.get("state") or {}
        waiting = state.get("waiting") or state.get("terminated")
        if waiting and not _is_through(container):
            said = ": ".join(str(waiting[key]) for key in ("reason", "message") if waiting.get(key))
            return f"{_of(container)}{said}"
    return "its pod is not ready"


#: What a node tells of an image that it cannot get, in turns: one cause, so one text.
_UNPULLABLE = frozenset(("ErrImagePull", "ImagePullBackOff", "InvalidImageName"))
_STARTING = frozenset(("", "ContainerCreating", "PodInitializing"))


def obstacle(pod: Json) -> str:
    """Why a member cannot start until a person does something; "" if there is no need.

    The text stays the same as long as the cause does, so that no status is written for it twice.
    """
    scheduled = _condition(pod, "PodScheduled") or {}
    if scheduled.get("status") == "False":
        return f"{scheduled.get('reason')}: {scheduled.get('message')}"
    for container in _statuses(pod):
        waiting = (container.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "")
        if reason in _UNPULLABLE:
            return f"its node cannot pull the image {container.get('image')}"
        if reason == "CrashLoopBackOff" or _fails(container):
            return f"{_of(container) or 'it '}ends again and again: {_last_end(container).how}"
        if reason not in _STARTING:
            return f"{_of(container)}{reason}: {waiting.get('message')}"
    return ""


def is_made(pod: Json) -> bool:
    """Whether its node still prepares a pod, for which it mounts the volumes."""
    states = [(item.get("state") or {}).get("waiting") or {} for item in _statuses(pod)]
    return bool(states) and all(state.get("reason") in _STARTING - {""} for state in states)


def is_unpullable(pod: Json) -> bool:
    """Whether its node cannot get an image."""
    states = [(item.get("state") or {}).get("waiting") or {} for item in _statuses(pod)]
    return any(state.get("reason") in _UNPULLABLE for state in states)


def _statuses(pod: Json) -> list[Json]:
    """What a node says of a pod's containers, in the order in which they start; those of
    `podTemplate` are among them."""
    status = pod.get("status") or {}
    names = ("initContainerStatuses", "containerStatuses")
    return [container for name in names for container in status.get(name) or ()]


def _of(container: Json) -> str:
    """Which container it is, in words; "" for the broker's."""
    name = container.get("name") or BROKER
    return "" if name == BROKER else f"container {name} "


def _fails(container: Json) -> bool:
    """Whether it failed once more, and waits for nothing but its next start."""
    ended = (container.get("state") or {}).get("terminated") or {}
    return bool(ended.get("exitCode") and container.get("restartCount"))


def _is_through(container: Json) -> bool:
    """Whether it has done its work, as a container does that runs before the broker."""
    ended = (container.get("state") or {}).get("terminated")
    return ended is not None and not ended.get("exitCode") and bool(_of(container))


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often a member was started again in its pod, and how it ended the last time."""

    count: int = 0
    #: Reason and exit status, without the time: the same for each end of one cause.
    how: str = ""
    last_end: str = ""
    reason: str = ""
    #: In seconds since 1970; None while it is not known.
    ended_s: float | None = None


def restarts(pod: Json) -> Restarts:
    """As the node tells it of the broker's container; those of `podTemplate` are not counted."""
    found = (pod.get("status") or {}).get("containerStatuses") or ()
    broker = next((item for item in found if not _of(item)), None)
    return Restarts() if broker is None else _last_end(broker)


def _last_end(container: Json) -> Restarts:
    """How often a container was started again, and how it ended the last time."""
    count = int(container.get("restartCount") or 0)
    states = (container.get(name) or {} for name in ("lastState", "state"))
    ended = next((state["terminated"] for state in states if state.get("terminated")), None)
    if not ended:
        return Restarts(count)
    reason = str(ended.get("reason") or "Ended")
    how, at = f"{reason} (exit status {ended.get('exitCode')})", ended.get("finishedAt")
    time = _time(at)
    ended_s = time.timestamp() if time is not None else None
    return Restarts(count, how, f"{how} at {at}", reason, ended_s)


def _condition(pod: Json, type_: str) -> Json | None:
    found = (pod.get("status") or {}).get("conditions") or ()
    return next((item for item in found if item.get("type") == type_), None)


def _time(text: Any) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo is not None else None


def time_text(time: datetime.datetime | None) -> str:
    return "" if time is None else time.strftime("%Y-%m-%dT%H:%M:%SZ")
