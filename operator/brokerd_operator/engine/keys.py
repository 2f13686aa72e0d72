"""Names of resources inside the engine, and the annotations it reads (design/operator.md §4.2)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from brokerd_operator.specs.model import Reference

PREFIX = "brokerd.io/"
FINALIZER = PREFIX + "teardown"
PAUSE = PREFIX + "pause"
TAKEOVER = PREFIX + "takeover"
CONFIRM = PREFIX + "confirm"
RECONCILE_AT = PREFIX + "reconcile-at"
#: Of BrokerClusters: another value restarts the members one by one.
RESTART_AT = PREFIX + "restart-at"
#: Of BrokerClusters with upgradePolicy OnApproval: the operator's image that may be taken.
APPROVED_IMAGE = PREFIX + "approved-image"
#: Flux's habit means the same.
FLUX_REQUESTED_AT = "reconcile.fluxcd.io/requestedAt"
READ_ANNOTATIONS = (
    *(PAUSE, TAKEOVER, CONFIRM, RECONCILE_AT, FLUX_REQUESTED_AT),
    *(RESTART_AT, APPROVED_IMAGE),
)

Body = Mapping[str, Any]


class Key(NamedTuple):
    """One resource."""

    kind: str
    namespace: str
    name: str

    @property
    def reference(self) -> Reference:
        return Reference(self.kind, self.namespace, self.name)

    @property
    def resource(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


def key_of(body: Body) -> Key:
    metadata = body.get("metadata") or {}
    return Key(
        str(body.get("kind")), metadata.get("namespace") or "default", metadata.get("name") or ""
    )


def annotation(body: Body, name: str) -> str | None:
    value = ((body.get("metadata") or {}).get("annotations") or {}).get(name)
    return None if value is None else str(value)


def is_paused(body: Body) -> bool:
    return annotation(body, PAUSE) == "true"


def is_asked_anew(before: Body, body: Body) -> bool:
    """Whether a person asked for another pass since."""
    asked = (RECONCILE_AT, FLUX_REQUESTED_AT)
    return any(annotation(before, name) != annotation(body, name) for name in asked)


def is_deleting(body: Body) -> bool:
    return bool((body.get("metadata") or {}).get("deletionTimestamp"))


def has_finalizer(body: Body) -> bool:
    return FINALIZER in ((body.get("metadata") or {}).get("finalizers") or ())


def signature(body: Body) -> tuple[Any, ...]:
    """What of a body a pass depends on: our own status writes do not cause another pass."""
    metadata = body.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    return (
        metadata.get("uid"),
        metadata.get("generation"),
        metadata.get("deletionTimestamp"),
        has_finalizer(body),
        tuple(annotations.get(name) for name in READ_ANNOTATIONS),
    )
