"""PodDisruptionBudget and NetworkPolicy of a BrokerCluster. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context, Manifest

#: With fewer members a budget would block every drain of a node (design/operator.md §5.10).
PDB_REPLICAS_MIN = 3


def pod_disruption_budget(context: Context) -> Manifest | None:
    spec = context.spec
    if spec.disruption.pdb == "None" or spec.replicas < PDB_REPLICAS_MIN:
        return None
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": naming.metadata(context, context.name),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": naming.selector(context)},
        },
    }


def network_policy(context: Context) -> Manifest | None:
    """Clients of own and granted namespaces, the operator, members among themselves (SEC-30)."""
    if context.spec.network_policy.mode == "None":
        return None
    client_ports = [naming.PORT_AMQPS, naming.PORT_GRPC, naming.PORT_HTTP]
    client_ports += [port for _, port in context.management_ports]
    if not context.spec.tls.disable_plain:
        client_ports.insert(0, naming.PORT_AMQP)
    rules: list[Manifest] = [
        {"from": _clients(context), "ports": _ports(client_ports)},
        {"from": [_operator(context)], "ports": _ports([naming.PORT_GRPC, naming.PORT_HTTP])},
        {
            "from": [{"podSelector": {"matchLabels": naming.selector(context)}}],
            "ports": _ports([naming.PORT_PEER]),
        },
    ]
    if context.spec.listeners.service_type != "ClusterIP" or context.spec.gateway is not None:
        # Clients of the external Service have no pod address to be known by, and where a
        # Gateway's own pods run is its controller's affair.
        rules.append({"ports": _ports([naming.PORT_AMQPS])})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": naming.metadata(context, context.name),
        "spec": {
            "podSelector": {"matchLabels": naming.selector(context)},
            "policyTypes": ["Ingress"],
            "ingress": rules,
        },
    }


def _clients(context: Context) -> list[Manifest]:
    peers: list[Manifest] = [{"podSelector": {}}]
    for grant in context.spec.access:
        namespaces = grant.namespaces
        if namespaces.from_ == "All":
            peers.append({"namespaceSelector": {}})
        if namespaces.names:
            peers.append(_namespaces(namespaces.names))
        if namespaces.selector is not None:
            peers.append({"namespaceSelector": {"matchLabels": namespaces.selector.match_labels}})
    for match_labels in context.spec.network_policy.allow_from:
        peers.append({"namespaceSelector": {"matchLabels": dict(match_labels)}})
    return peers


def _operator(context: Context) -> Manifest:
    return {
        **_namespaces([context.operator_namespace]),
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": naming.MANAGED_BY}},
    }


def _namespaces(names: Iterable[str]) -> Manifest:
    return {
        "namespaceSelector": {
            "matchExpressions": [
                {
                    "key": "kubernetes.io/metadata.name",
                    "operator": "In",
                    "values": sorted(names),
                }
            ]
        }
    }


def _ports(numbers: Iterable[int]) -> list[Manifest]:
    return [{"port": number, "protocol": "TCP"} for number in numbers]
