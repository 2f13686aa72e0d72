"""The Services of a BrokerCluster. PURE.

`<name>-nodes` gives every member a DNS name before it is ready, `<name>` is where clients connect,
and `<name>-external` exists for NodePort and LoadBalancer only: it carries nothing but AMQP over
TLS, so that neither plain AMQP nor the administration ever leaves the cluster (design/operator.md
§5.10).
"""

from __future__ import annotations

from brokerd_operator.manifests import naming, remembered
from brokerd_operator.manifests.naming import Context, Manifest


def nodes_service(context: Context) -> Manifest:
    ports = [
        ("grpc", naming.PORT_GRPC),
        ("peer", naming.PORT_PEER),
        ("http", naming.PORT_HTTP),
        *context.management_ports,
    ]
    found = _service(
        context,
        context.nodes_service,
        ports,
        clusterIP="None",
        # Members must find each other to become ready.
        publishNotReadyAddresses=True,
    )
    if context.initial_replicas:
        found["metadata"]["annotations"] = {
            naming.INITIAL_REPLICAS: str(context.initial_replicas),
            naming.MEMBERS: str(context.members or context.initial_replicas),
            remembered.IMAGE: context.broker_image,
            remembered.RESTARTED_AT: context.restarted_at,
        }
    return found


def client_service(context: Context) -> Manifest:
    ports = [
        ("amqps", naming.PORT_AMQPS),
        ("grpc", naming.PORT_GRPC),
        ("metrics", naming.PORT_HTTP),
        *context.management_ports,
    ]
    if not context.spec.tls.disable_plain:
        ports.insert(0, ("amqp", naming.PORT_AMQP))
    return _service(context, context.name, ports, type="ClusterIP")


def external_service(context: Context) -> Manifest | None:
    listeners = context.spec.listeners
    if listeners.service_type == "ClusterIP":
        return None
    service = _service(
        context,
        f"{context.name}-external",
        [("amqps", naming.PORT_AMQPS)],
        type=listeners.service_type,
    )
    if listeners.annotations:
        service["metadata"]["annotations"] = dict(listeners.annotations)
    return service


def _service(
    context: Context, name: str, ports: list[tuple[str, int]], **spec: str | bool
) -> Manifest:
    policy = context.spec.listeners.ip_family_policy
    families = {"ipFamilyPolicy": policy} if policy else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": naming.metadata(context, name),
        "spec": {
            **spec,
            **families,
            "selector": naming.selector(context),
            "ports": [
                {"name": port_name, "port": port, "targetPort": _target(port_name)}
                for port_name, port in ports
            ],
        },
    }


def _target(port_name: str) -> str:
    return "http" if port_name == "metrics" else port_name
