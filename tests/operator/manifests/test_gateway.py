"""The route of a BrokerCluster through a Gateway: what is written, what a Gateway says of it."""

from __future__ import annotations

from typing import Any

import pytest
from brokerd_operator.manifests import gateway, naming, protection, secrets
from brokerd_operator.specs import broker_cluster

from tests.operator.manifests.test_manifests import VALIDATOR, context
from tests.operator.resources import resource

PUBLIC = {"parentRefs": [{"name": "edge"}], "hostnames": ["orders.example"]}
TWO = {**PUBLIC, "parentRefs": [{"name": "edge"}, {"name": "inner", "namespace": "net"}]}


def live(made: naming.Context, *verdicts: tuple[str, int]) -> dict[str, Any]:
    """A route at generation 2, with what its Gateways said, each of a generation."""
    manifest = gateway.route(made, "v1")
    assert manifest is not None
    parents = [
        {
            "parentRef": {"group": gateway.GROUP, "kind": "Gateway", **parent},
            "conditions": [
                {"type": "ResolvedRefs", "status": "True", "observedGeneration": generation},
                {
                    "type": "Accepted",
                    "status": status,
                    "observedGeneration": generation,
                    "message": "because",
                },
            ],
        }
        for parent, (status, generation) in zip(
            manifest["spec"]["parentRefs"], verdicts, strict=False
        )
    ]
    manifest["metadata"]["generation"] = 2
    return {**manifest, "status": {"parents": parents}}


def test_tls_is_passed_through_by_name() -> None:
    listener = {"name": "edge", "namespace": "net", "sectionName": "amqps", "port": 5671}
    made = context(gateway={**PUBLIC, "parentRefs": [listener]})
    route = gateway.route(made, "v1alpha3")
    assert route is not None
    assert route["apiVersion"] == "gateway.networking.k8s.io/v1alpha3"
    assert route["kind"] == "TLSRoute"
    assert route["metadata"]["ownerReferences"][0]["uid"] == "u-1"
    assert route["spec"] == {
        "parentRefs": [listener],
        "hostnames": ["orders.example"],
        "rules": [{"backendRefs": [{"name": "orders", "port": 5671}]}],
    }


def test_tcp_takes_a_whole_listener_and_leads_to_tls_too() -> None:
    made = context(gateway={**PUBLIC, "route": "TCP"})
    route = gateway.route(made, "v1alpha2")
    assert route is not None
    assert route["kind"] == "TCPRoute"
    assert "hostnames" not in route["spec"], "a TCPRoute has none"
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": "orders", "port": 5671}]}]


def test_without_a_gateway_there_is_nothing() -> None:
    assert gateway.route(context(), "v1") is None
    assert gateway.kind(context()) is None


@pytest.mark.parametrize(
    ("verdicts", "status", "reason"),
    [
        ((), "Unknown", "Pending"),
        ((("True", 2),), "Unknown", "Pending"),
        ((("True", 2), ("True", 1)), "Unknown", "Pending"),
        ((("True", 2), ("True", 2)), "True", "Accepted"),
        ((("True", 2), ("False", 2)), "False", "NotAccepted"),
    ],
)
def test_every_gateway_is_asked_about_the_route_as_it_is(
    verdicts: tuple[tuple[str, int], ...], status: str, reason: str
) -> None:
    """An older generation's verdict does not count."""
    made = context(gateway=TWO)
    found = gateway.accepted(made, live(made, *verdicts))
    assert (found.type, found.status, found.reason) == ("RouteAccepted", status, reason)
    if status == "False":
        assert "because" in found.message


def test_a_gateway_that_the_route_has_left_does_not_count() -> None:
    before = context(gateway=PUBLIC)
    left = live(before, ("True", 2))["status"]
    made = context(gateway={**PUBLIC, "parentRefs": [{"name": "edge", "namespace": "net"}]})
    assert gateway.accepted(made, {**live(made), "status": left}).reason == "Pending"
    # A namespace that is not named is the route's own.
    named = context(gateway={**PUBLIC, "parentRefs": [{"name": "edge", "namespace": "shop"}]})
    assert gateway.accepted(named, {**live(named), "status": left}).reason == "Accepted"


def test_what_is_missing_is_told() -> None:
    made = context(gateway=PUBLIC)
    assert "knows no TLSRoute" in gateway.missing(made).message
    assert "TLSRoute orders cannot be made: no" in gateway.failed(made, "no").message


def test_clients_can_verify_the_members_and_reach_them() -> None:
    made = context(gateway=PUBLIC)
    assert "orders.example" in secrets.serving_names(made)
    assert "orders.example" not in secrets.serving_names(context())
    policy = protection.network_policy(made)
    assert policy is not None
    anybody = [rule for rule in policy["spec"]["ingress"] if "from" not in rule]
    assert anybody == [{"ports": [{"port": 5671, "protocol": "TCP"}]}]


@pytest.mark.parametrize(
    "given",
    [
        {"parentRefs": [{"name": "edge"}]},
        {"parentRefs": [], "hostnames": ["a.example"]},
        {"hostnames": ["a.example"]},
        {**PUBLIC, "hostnames": ["not a name"]},
        {**PUBLIC, "route": "HTTP"},
    ],
)
def test_what_makes_no_route_is_refused(given: dict[str, Any]) -> None:
    body = resource("BrokerCluster", "orders", gateway=given)
    assert not hasattr(VALIDATOR.admit(body, namespace="shop"), "body")


def test_local_processes_say_that_they_have_no_gateway() -> None:
    assert "spec.gateway" in broker_cluster.not_applied_locally(context(gateway=PUBLIC).spec)
