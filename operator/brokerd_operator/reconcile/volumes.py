"""Whether the volumes of a BrokerCluster grow, and how far they have come. PURE.

A StatefulSet's volume claims cannot be changed: the claims themselves are patched first, and when
the API server has taken all of them the StatefulSet is deleted without its pods and made anew with
the new size. Each is decided from what is observed now, so that any pass goes on where another one
stopped. For the Kubernetes driver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from brokerd_operator.specs import units

#: Claims that a message names; the others are counted.
SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Claim:
    """The volume claim of one member."""

    name: str
    #: What was asked for.
    size: str
    #: What there is; "" while the claim is not bound.
    capacity: str = ""
    phase: str = ""
    #: The volume has grown, and its file system grows when the node gets to it.
    is_file_system_pending: bool = False
    #: Why it does not grow, in the words of the volume's driver.
    problem: str = ""

    @property
    def is_bound(self) -> bool:
        return self.phase == "Bound"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done about volumes."""

    #: Size of the claims that the StatefulSet makes.
    size: str
    #: Claims that are to be asked to grow to `size`.
    grow: tuple[str, ...] = ()
    #: The StatefulSet is of another size, and has to be made anew once the claims have been taken.
    is_recreated: bool = False
    #: Reason of a refusal; "" for none.
    reason: str = ""
    message: str = ""


def claim_of(body: Mapping[str, Any]) -> Claim:
    """Read a PersistentVolumeClaim."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    told = {item.get("type"): item for item in status.get("conditions") or ()}
    failed = told.get("ControllerResizeError") or told.get("NodeResizeError") or {}
    requests = (spec.get("resources") or {}).get("requests") or {}
    return Claim(
        str(body["metadata"]["name"]),
        str(requests.get("storage") or ""),
        str((status.get("capacity") or {}).get("storage") or ""),
        str(status.get("phase") or ""),
        (told.get("FileSystemResizePending") or {}).get("status") == "True",
        str(failed.get("message") or ""),
    )


def plan(wanted: str, present: str | None, claims: Sequence[Claim]) -> Plan:
    """Compare what the spec asks for with the StatefulSet (`present`; None: there is none)."""
    if present is None:
        return Plan(wanted)
    if size_of(wanted) < size_of(present):
        return Plan(
            present,
            reason="ShrinkNotSupported",
            message=f"storage.size {wanted} is less than the {present} that the volumes were made"
            f" with: volumes only grow, set it to {present} or more",
        )
    # A claim that is not bound cannot be changed; it grows when it is.
    small = [item for item in claims if item.is_bound and size_of(item.size) < size_of(wanted)]
    is_other = size_of(wanted) > size_of(present)
    # The same size in other words must not make the StatefulSet anew.
    return Plan(wanted if is_other else present, tuple(item.name for item in small), is_other)


def refused(before: Plan, present: str, cause: str, *, is_class: bool) -> Plan:
    """The plan when the API server takes no larger claim: everything else goes on without it."""
    if not is_class:
        return Plan(present, reason="ApiRefused", message=f"volumes cannot grow: {cause}")
    message = (
        f"storage.size {before.size} is not in force, the volumes keep {present}: their"
        " StorageClass does not allow expansion; set allowVolumeExpansion on it, or storage.size"
        f" to {present}"
        f" ({cause})"
    )
    return Plan(present, reason="VolumeExpansionNotSupported", message=message)


def progress(claims: Sequence[Claim]) -> str:
    """What is still growing, in words; "" when nothing is."""
    growing = [item for item in claims if item.is_bound and _is_growing(item)]
    shown = [_said(item) for item in growing[:SHOWN_MAX]]
    more = len(growing) - SHOWN_MAX
    if more > 0:
        shown.append(f"and {more} more")
    return ", ".join(shown)


def _is_growing(claim: Claim) -> bool:
    return claim.is_file_system_pending or size_of(claim.capacity) < size_of(claim.size)


def _said(claim: Claim) -> str:
    if claim.problem:
        return f"{claim.name} does not grow to {claim.size}: {claim.problem}"
    if claim.is_file_system_pending:
        return f"{claim.name} has grown to {claim.size} and its file system is to follow"
    return f"{claim.name} grows from {claim.capacity or '0'} to {claim.size}"


def size_of(quantity: str) -> Decimal:
    """Bytes of a Kubernetes quantity; 0 for what cannot be read."""
    return units.decimal_quantity(quantity)
