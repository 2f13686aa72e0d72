"""Grants of a broker for resources of other namespaces (design/operator.md §11). PURE.

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
    return not refusal(own_namespace, grants, request)


def refusal(own_namespace: str, grants: Iterable[Grant], request: Request) -> str:
    """What is not granted, and what to add where; empty when all is.

    Of several grants for the namespace, the one that lacks least is named: its place in spec.access
    and what it lacks, not what else stands in it, for the reader may be a stranger.
    """
    if request.namespace == own_namespace:
        return ""
    nearest: tuple[int, list[str]] | None = None
    for place, grant in enumerate(grants):
        if not grant.namespaces.admits(request.namespace, request.namespace_labels):
            continue
        lacking = _lacking(grant, request)
        if not lacking:
            return ""
        if nearest is None or len(lacking) < len(nearest[1]):
            nearest = place, lacking
    if nearest is None:
        return f"grants nothing to namespace {request.namespace}: add a grant for it to spec.access"
    place, lacking = nearest
    return (
        f"does not grant namespace {request.namespace} {'; '.join(lacking)} "
        f"(spec.access[{place}] comes nearest)"
    )


def _lacking(grant: Grant, request: Request) -> list[str]:
    """What a grant would need for a request, each with where it goes."""
    found = []
    if request.kind not in grant.kinds:
        found.append(f"the kind {request.kind}: add it to kinds")
    if request.vhost is not None and not _matches(grant.vhosts, request.vhost):
        found.append(f"the vhost {request.vhost}: add a pattern for it to vhosts")
    # Subject and vhost must both be in the grant, or a tenant grants itself rights (MTO#832).
    if request.user is not None and not _matches(grant.users, request.user):
        user = f"the user {request.user}" if request.user else "a user that does not exist yet"
        found.append(f"{user}: add a pattern for it to users")
    tags = sorted(set(request.tags) - set(grant.max_user_tags))
    if tags:
        what = f"the tag{'s' if len(tags) > 1 else ''} {', '.join(tags)}"
        found.append(f"{what}: add {'them' if len(tags) > 1 else 'it'} to maxUserTags")
    for host in dict.fromkeys(request.hosts):
        if not _matches(grant.upstream_hosts, host):
            what = f"the upstream host {host}" if host else "an upstream host that is in a Secret"
            found.append(f"{what}: add a pattern for it to upstreamHosts")
    return found


def _matches(patterns: Iterable[str], text: str) -> bool:
    return any(_full_match(pattern, text) for pattern in patterns)


def _full_match(pattern: str, text: str) -> bool:
    """A pattern that is wrong or takes too long grants nothing."""
    try:
        return regex.fullmatch(pattern, text, timeout=PATTERN_TIMEOUT_S) is not None
    except (regex.error, TimeoutError):
        return False
