"""What must exist in the broker before a resource can be applied (design/operator.md §9). PURE."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from brokerd_operator.reconcile import plan
from brokerd_operator.specs.model import Dependency, Identity, Waiting


@dataclass(frozen=True, slots=True)
class Check:
    """The first hard dependency that is missing, and all soft ones that are."""

    waiting: Waiting | None
    #: What to look out for: hard ones wake the resource, soft ones change its warning.
    absent: tuple[Identity, ...]
    warning: str


def check(dependencies: Iterable[Dependency], exists: Callable[[Identity], bool]) -> Check:
    """RabbitMQ allows soft ones to be missing (R-AE-8), so they are only told."""
    waiting: Waiting | None = None
    absent: list[Identity] = []
    warnings: list[str] = []
    for item in dependencies:
        if is_builtin(item.identity) or exists(item.identity):
            continue
        absent.append(item.identity)
        text = f"{plan.shown(item.identity)} does not exist"
        if not item.is_hard:
            warnings.append(text)
        elif waiting is None:
            waiting = Waiting(item.reason, text)
    return Check(waiting, tuple(absent), "; ".join(warnings[:5]))


def is_builtin(identity: Identity) -> bool:
    """The default exchange is never listed by some brokers, and always there."""
    return identity.kind == "exchange" and identity.name == ""
