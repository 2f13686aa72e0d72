"""Grants of a broker to other namespaces: what they allow, and what a refusal says
(design/operator.md §11).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from brokerd_operator.specs import access, broker_cluster, registry
from brokerd_operator.specs.model import Invalid

from tests.operator.resources import resource


def _grants(*grants: dict[str, Any]) -> tuple[access.Grant, ...]:
    spec = registry.parse(resource("BrokerCluster", access=list(grants)))
    assert isinstance(spec, broker_cluster.BrokerClusterSpec)
    return spec.access


def test_only_granted_namespaces_kinds_and_vhosts_may_use_a_broker() -> None:
    grants = _grants(
        {"namespaces": {"names": ["b"]}, "kinds": ["Queue"], "vhosts": ["b-.*"]},
        {"namespaces": {"from": "All"}, "kinds": ["User"], "users": ["app-.*"]},
    )

    def allowed(**changes: Any) -> bool:
        request = {
            "kind": "Queue",
            "namespace": "b",
            "namespace_labels": {},
            "vhost": "b-1",
            **changes,
        }
        return access.is_granted("own", grants, access.Request(**request))

    assert allowed(namespace="own", kind="Vhost", vhost="x")
    assert allowed()
    assert not allowed(namespace="c")
    assert not allowed(kind="Exchange")
    assert not allowed(vhost="xb-1"), "patterns are anchored"
    assert allowed(namespace="c", kind="User", vhost=None, user="app-1")
    assert not allowed(namespace="c", kind="User", vhost=None, user="root")
    assert not allowed(
        namespace="c", kind="User", vhost=None, user="app-1", tags=("administrator",)
    )


FULL_GRANT = {
    "namespaces": {"names": ["team"]},
    "kinds": ["Permission"],
    "vhosts": ["/team"],
    "users": ["team-.*"],
    "maxUserTags": ["monitoring"],
    "upstreamHosts": [".*[.]team"],
}
FULL_REQUEST = access.Request(
    kind="Permission",
    namespace="team",
    namespace_labels={},
    vhost="/team",
    user="team-web",
    tags=("monitoring",),
    hosts=("east.team",),
)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kind": "Queue"}, "the kind Queue: add it to kinds"),
        ({"vhost": "/other"}, "the vhost /other: add a pattern for it to vhosts"),
        ({"user": "admin"}, "the user admin: add a pattern for it to users"),
        ({"user": ""}, "a user that does not exist yet: add a pattern for it to users"),
        ({"tags": ("administrator",)}, "the tag administrator: add it to maxUserTags"),
        (
            {"tags": ("policymaker", "administrator", "monitoring")},
            "the tags administrator, policymaker: add them to maxUserTags",
        ),
        (
            {"hosts": ("east.team", "evil", "evil")},
            "the upstream host evil: add a pattern for it to upstreamHosts",
        ),
        (
            {"hosts": ("",)},
            "an upstream host that is in a Secret: add a pattern for it to upstreamHosts",
        ),
    ],
)
def test_refusal_names_just_what_is_not_granted(changed: dict[str, Any], told: str) -> None:
    request = dataclasses.replace(FULL_REQUEST, **changed)
    assert access.refusal("own", _grants(FULL_GRANT), request) == (
        f"does not grant namespace team {told} (spec.access[0] comes nearest)"
    )
    assert access.refusal("own", _grants(FULL_GRANT), FULL_REQUEST) == ""


def test_refusal_is_of_the_grant_that_lacks_least() -> None:
    far = {**FULL_GRANT, "kinds": ["Queue"], "vhosts": []}
    foreign = {**FULL_GRANT, "namespaces": {"names": ["other"]}}
    near = {**FULL_GRANT, "users": []}
    told = access.refusal("own", _grants(foreign, far, near, far), FULL_REQUEST)
    assert told == (
        "does not grant namespace team the user team-web: add a pattern for it to users "
        "(spec.access[2] comes nearest)"
    )
    several = access.refusal("own", _grants({**far, "users": []}), FULL_REQUEST)
    assert several.count(": add ") == 3


def test_refusal_without_any_grant_for_the_namespace_says_nothing_of_others() -> None:
    foreign = {**FULL_GRANT, "namespaces": {"names": ["other"]}}
    for grants in ((), (foreign,)):
        assert access.refusal("own", _grants(*grants), FULL_REQUEST) == (
            "grants nothing to namespace team: add a grant for it to spec.access"
        )
    assert access.refusal("team", (), FULL_REQUEST) == ""


def test_grant_by_labels_needs_all_labels() -> None:
    (grant,) = _grants({"namespaces": {"selector": {"matchLabels": {"tier": "gold", "x": "1"}}}})
    assert grant.namespaces.admits("n", {"tier": "gold", "x": "1", "y": "2"})
    assert not grant.namespaces.admits("n", {"tier": "gold"})


def test_wrong_pattern_in_a_grant_is_invalid_and_grants_nothing() -> None:
    grant = {"namespaces": {"from": "All"}, "kinds": ["Queue"], "vhosts": ["("]}
    found = registry.parse(resource("BrokerCluster", access=[grant]))
    assert isinstance(found, Invalid)
    assert found.reason == "InvalidPattern"
