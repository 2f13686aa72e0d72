"""All objects of a BrokerCluster, Secrets aside. PURE; the entrance of this room for the engine."""

from __future__ import annotations

from brokerd_operator.manifests import members, protection, secrets, services, telemetry
from brokerd_operator.manifests.naming import Context, Manifest


def objects(context: Context, replicas: int | None = None) -> list[Manifest]:
    """What must exist, in the order in which it can be made. Secrets (`secrets.py`) come first.

    `replicas` is given while the operator scales the StatefulSet step by step.
    """
    found = [
        secrets.issued_certificate(context),
        members.service_account(context),
        services.nodes_service(context),
        services.client_service(context),
        services.external_service(context),
        protection.network_policy(context),
        protection.pod_disruption_budget(context),
        members.stateful_set(context, replicas),
        *telemetry.objects(context),
    ]
    return [item for item in found if item is not None]


def possible(context: Context) -> list[tuple[str, str, str]]:
    """(apiVersion, kind, name) of everything that may exist from an earlier spec.

    What is here and not in `objects` is to be deleted. Volume claims are not here: data goes only
    by the rules of retention.
    """
    rbac = "rbac.authorization.k8s.io/v1"
    tele = context.telemetry_name
    return [
        (secrets.CERT_MANAGER, "Certificate", context.name),
        ("v1", "Service", f"{context.name}-external"),
        ("networking.k8s.io/v1", "NetworkPolicy", context.name),
        ("policy/v1", "PodDisruptionBudget", context.name),
        ("batch/v1", "CronJob", tele),
        (rbac, "RoleBinding", tele),
        (rbac, "Role", tele),
        ("v1", "ServiceAccount", tele),
        ("v1", "ConfigMap", tele),
    ]
