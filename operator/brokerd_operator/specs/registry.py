"""All kinds by name: `parse` a body, ask for its `desired` objects. PURE.

The entrance of this room for the planner, the engine and the command line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brokerd_operator.specs import (
    binding,
    broker_cluster,
    broker_connection,
    exchange,
    federation_upstream,
    federation_upstream_set,
    operator_policy,
    permission,
    policy,
    queue,
    shovel,
    topic_permission,
    user,
    vhost,
)
from brokerd_operator.specs.model import (
    NO_INPUTS,
    Desired,
    Inputs,
    Invalid,
    Meta,
    TopologySpec,
)

Spec = TopologySpec | broker_cluster.BrokerClusterSpec | broker_connection.BrokerConnectionSpec

TOPOLOGY_PARSERS: dict[str, Callable[[Mapping[str, Any]], TopologySpec | Invalid]] = {
    "Vhost": vhost.parse,
    "User": user.parse,
    "Permission": permission.parse,
    "TopicPermission": topic_permission.parse,
    "FederationUpstream": federation_upstream.parse,
    "FederationUpstreamSet": federation_upstream_set.parse,
    "Shovel": shovel.parse,
    "OperatorPolicy": operator_policy.parse,
    "Policy": policy.parse,
    "Exchange": exchange.parse,
    "Queue": queue.parse,
    "Binding": binding.parse,
}
#: In the order in which resources can be applied one after the other (design/operator.md §9).
PARSERS: dict[str, Callable[[Mapping[str, Any]], Spec | Invalid]] = {
    "BrokerCluster": broker_cluster.parse,
    "BrokerConnection": broker_connection.parse,
    **TOPOLOGY_PARSERS,
}
KINDS = tuple(PARSERS)
TOPOLOGY_KINDS = tuple(TOPOLOGY_PARSERS)

#: Kubernetes names of the kinds, as in the CRDs (a test compares them).
PLURALS = {
    "BrokerCluster": "brokerclusters",
    "BrokerConnection": "brokerconnections",
    "Vhost": "vhosts",
    "User": "users",
    "Permission": "permissions",
    "TopicPermission": "topicpermissions",
    "FederationUpstream": "federationupstreams",
    "FederationUpstreamSet": "federationupstreamsets",
    "Shovel": "shovels",
    "OperatorPolicy": "operatorpolicies",
    "Policy": "policies",
    "Exchange": "exchanges",
    "Queue": "queues",
    "Binding": "bindings",
}


def parse(body: Mapping[str, Any]) -> Spec | Invalid:
    """Parse a body of any kind, and check what neither the schema nor CEL can see."""
    parser = PARSERS.get(str(body.get("kind")))
    if parser is None:
        return Invalid("InvalidSpec", f"unknown kind {body.get('kind')}")
    spec = parser(body)
    if isinstance(spec, Invalid):
        return spec
    return spec.problem(Meta.of(body)) or spec


def desired(spec: TopologySpec, meta: Meta, inputs: Inputs = NO_INPUTS) -> Desired:
    """The broker objects of a resource, sorted by nothing: the planner orders them by kind."""
    return spec.desired(meta, inputs)
