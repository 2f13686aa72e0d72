"""The route of a BrokerCluster through a Gateway: TLSRoute or TCPRoute of the Gateway API. PURE.

Either leads to AMQP over TLS only, and the members end it: neither plain AMQP nor the
administration leaves the cluster this way (design/operator.md §5.10), and the Gateway sees no
password.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brokerd_operator import conditions
from brokerd_operator.conditions import Condition
from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context, Manifest

GROUP = "gateway.networking.k8s.io"
#: Plural names of the kinds by what spec.gateway.route says.
KINDS = {"TLS": "TLSRoute", "TCP": "TCPRoute"}
#: Newest first; what is written here is the same in all of them.
VERSIONS = ("v1", "v1alpha3", "v1alpha2")


def kind(context: Context) -> str | None:
    """The kind of route that the spec asks for."""
    gateway = context.spec.gateway
    return None if gateway is None else KINDS[gateway.route]


def route(context: Context, version: str) -> Manifest | None:
    gateway = context.spec.gateway
    if gateway is None:
        return None
    spec: Manifest = {
        "parentRefs": [
            parent.model_dump(by_alias=True, exclude_none=True) for parent in gateway.parent_refs
        ],
        "rules": [{"backendRefs": [{"name": context.name, "port": naming.PORT_AMQPS}]}],
    }
    if gateway.route == "TLS":
        spec["hostnames"] = list(gateway.hostnames)
    return {
        "apiVersion": f"{GROUP}/{version}",
        "kind": KINDS[gateway.route],
        "metadata": naming.metadata(context, context.name),
        "spec": spec,
    }


def accepted(context: Context, live: Mapping[str, Any]) -> Condition:
    """What the Gateways said of the route as it is now; each of them has a word."""
    generation = context.meta.generation
    route_ = f"{live['kind']} {context.name}"
    parents = live["spec"]["parentRefs"]
    count = 0
    for parent in parents:
        said = _verdicts(live, parent)
        refused = [item for item in said if item.get("status") == conditions.FALSE]
        if refused:
            why = refused[0].get("message", "")
            text = f"Gateway {parent['name']} refuses {route_}: {why}"
            return _condition(conditions.FALSE, "NotAccepted", text, generation)
        count += any(item.get("status") == conditions.TRUE for item in said)
    if count < len(parents):
        text = f"{count} of {len(parents)} Gateways have accepted {route_}"
        return _condition(conditions.UNKNOWN, "Pending", text, generation)
    return _condition(conditions.TRUE, "Accepted", f"{route_} is accepted", generation)


def _verdicts(live: Mapping[str, Any], parent: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Conditions `Accepted` of one Gateway, without those of earlier generations or Gateways."""
    metadata = live["metadata"]
    current = metadata.get("generation")

    def which(reference: Mapping[str, Any]) -> tuple[Any, ...]:
        namespace = reference.get("namespace") or metadata["namespace"]
        return (namespace, *(reference.get(name) for name in ("name", "sectionName", "port")))

    return [
        item
        for entry in (live.get("status") or {}).get("parents") or ()
        if which(entry.get("parentRef") or {}) == which(parent)
        for item in entry.get("conditions") or ()
        if item.get("type") == "Accepted" and item.get("observedGeneration", current) == current
    ]


def missing(context: Context) -> Condition:
    """The API server does not know the kind."""
    text = f"the API server knows no {kind(context)}: install the CRDs of the Gateway API"
    return _condition(conditions.FALSE, "GatewayApiMissing", text, context.meta.generation)


def failed(context: Context, message: str) -> Condition:
    """The API server refused; nothing else of the cluster waits for that."""
    text = f"{kind(context)} {context.name} cannot be made: {message}"
    return _condition(conditions.FALSE, "ApiError", text, context.meta.generation)


def _condition(status: str, reason: str, message: str, generation: int) -> Condition:
    return conditions.build(conditions.ROUTE_ACCEPTED, status, reason, message, generation)
