"""Grants of a broker for resources of other namespaces (operator.md section 11). PURE.

The verdict is computed here, from data; who asks and what follows from a refusal is the planner's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import regex
from pydantic import Field

from brokerd_operator.specs.model import Invalid, Part, pattern_problem

#: Patterns are the cluster owner's, names a tenant's (SEC-19).
PATTERN_TIMEOUT_S = 0.1


class Selector(Part):
    """Labels that a namespace must have."""

    match_labels: dict[str, str]


class Namespaces(Part):
    """Which namespaces a grant is for; any of the three forms is enough."""

    names: tuple[str, ...] = ()
    selector: Selector | None = None
    from_: Literal["Same", "All"] | None = Field(default=None, alias="from")

    def admits(self, name: str, labels: Mapping[str, str]) -> bool:
        if self.from_ == "All" or name in self.names:
            return True
        if self.selector is None or not self.selector.match_labels:
            return False
        wanted = self.selector.match_labels.items()
        return all(labels.get(key) == value for key, value in wanted)


class Grant(Part):
    """What the resources of some namespaces may do. Everything that is empty is nothing."""

    namespaces: Namespaces
    kinds: tuple[str, ...] = ()
    vhosts: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    max_user_tags: tuple[str, ...] = ()
    upstream_hosts: tuple[str, ...] = ()

    def problem(self) -> Invalid | None:
        for label in ("vhosts", "users", "upstream_hosts"):
            for pattern in getattr(self, label):
                found = pattern_problem(f"access.{label}", pattern)
                if found is not None:
                    return found
        return None


@dataclass(frozen=True, slots=True)
class Request:
    """What one resource wants. A User has no vhost; only User and Permission have a user."""

    kind: str
    namespace: str
    namespace_labels: Mapping[str, str]
    vhost: str | None = None
    user: str | None = None
    tags: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def is_granted(own_namespace: str, grants: Iterable[Grant], request: Request) -> bool:
    """The own namespace may do everything, any other what one grant allows as a whole."""
    if request.namespace == own_namespace:
        return True
    return any(_allows(grant, request) for grant in grants)


def _allows(grant: Grant, request: Request) -> bool:
    return (
        grant.namespaces.admits(request.namespace, request.namespace_labels)
        and request.kind in grant.kinds
        and (request.vhost is None or _matches(grant.vhosts, request.vhost))
        # Subject and vhost must both be in the grant, or a tenant grants itself rights (MTO#832).
        and (request.user is None or _matches(grant.users, request.user))
        and set(request.tags) <= set(grant.max_user_tags)
        and all(_matches(grant.upstream_hosts, host) for host in request.hosts)
    )


def _matches(patterns: Iterable[str], text: str) -> bool:
    return any(_full_match(pattern, text) for pattern in patterns)


def _full_match(pattern: str, text: str) -> bool:
    """A pattern that is wrong or takes too long grants nothing."""
    try:
        return regex.fullmatch(pattern, text, timeout=PATTERN_TIMEOUT_S) is not None
    except (regex.error, TimeoutError):
        return False
