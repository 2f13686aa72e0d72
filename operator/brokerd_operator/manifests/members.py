"""The StatefulSet of a BrokerCluster and its ServiceAccount. PURE.

Members find each other by DNS names of the headless Service, so all pods start at once (Parallel);
each is configured by its environment only, which names the members that founded the cluster: others
join those. Kubernetes restarts no member by itself (OnDelete): the operator does, one by one, when
the broker says that no queue loses its majority (reconcile/scaling.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brokerd_operator.manifests import naming, remembered
from brokerd_operator.manifests.naming import Context, Manifest
from brokerd_operator.specs.pod_template import BROKER

DATA_DIR = "/var/lib/brokerd"
ADMIN_DIR = "/etc/brokerd/admin"
TLS_DIR = "/etc/brokerd/tls"
CA_DIR = "/etc/brokerd/tls-ca"
PEER_TLS_DIR = "/etc/brokerd/peer-tls"
KEYS_DIR = "/etc/brokerd/keys"
API_DIR = "/etc/brokerd/api"
#: The kubelet renews it after four fifths of the time.
API_TOKEN_S = 3600

#: A member that replays a long log may take its time: 150 times 2 s.
STARTUP_FAILURES_MAX = 150
#: The container that kubectl means where none is named.
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
#: The taint of a node whose kubelet has not been heard of.
UNREACHABLE = "node.kubernetes.io/unreachable"
#: Of nodes, and from Kubernetes 1.35 on of their pods.
ZONE_LABEL = "topology.kubernetes.io/zone"


def service_account(context: Context) -> Manifest:
    """Members use no API, so their token is never mounted (SEC-28)."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": naming.metadata(context, f"{context.name}-broker"),
        "automountServiceAccountToken": False,
    }


def stateful_set(context: Context, replicas: int | None = None) -> Manifest:
    """The members. `replicas` is given while the operator scales step by step."""
    spec = context.spec
    metadata = naming.metadata(context, context.name)
    initial = context.initial_replicas or spec.replicas
    count = spec.members_wanted if replicas is None else replicas
    metadata["annotations"] = {
        naming.INITIAL_REPLICAS: str(initial),
        naming.MEMBERS: str(count or context.members or initial),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": {
            "serviceName": context.nodes_service,
            "replicas": count,
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": spec.storage.retention,
                "whenScaled": "Retain",
            },
            "selector": {"matchLabels": naming.selector(context)},
            "template": _pod_template(context),
            "volumeClaimTemplates": [_volume_claim(context)],
        },
    }


def _volume_claim(context: Context) -> Manifest:
    storage = context.spec.storage
    claim: Manifest = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": context.volume_size or storage.size}},
    }
    if storage.class_name is not None:
        claim["storageClassName"] = storage.class_name
    return {
        "metadata": {"name": "data", "labels": naming.selector(context)},
        "spec": claim,
    }


def _pod_template(context: Context) -> Manifest:
    spec = context.spec
    extra = spec.pod_template
    pod: Manifest = {
        "serviceAccountName": f"{context.name}-broker",
        "automountServiceAccountToken": False,
        # The variables of a Service named brokerd would look like settings of the broker.
        "enableServiceLinks": False,
        # The first process of a container misses a SIGTERM that comes before it has a handler.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": spec.termination.grace_period_seconds,
        "securityContext": naming.pod_security(),
        "containers": [_container(context)],
        "volumes": _volumes(context),
        **_scheduling(context),
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": item.name} for item in spec.image_pull_secrets]
    metadata: Manifest = {"labels": {**extra.labels, **naming.labels(context)}}
    restarts = {
        naming.RESTART_AT: context.restart_at,
        remembered.KUBECTL_RESTARTED_AT: context.restarted_at,
    }
    annotations = {**extra.annotations, **{name: at for name, at in restarts.items() if at}}
    # Of `kubectl logs` and `kubectl exec`, whatever containers there are besides.
    metadata["annotations"] = {**annotations, DEFAULT_CONTAINER: BROKER}
    return {"metadata": metadata, "spec": extra.spec.merged(pod)}


def _container(context: Context) -> Manifest:
    container: Manifest = {
        "name": BROKER,
        "image": context.broker_image,
        "imagePullPolicy": context.spec.image_pull_policy,
        "command": ["python", "-m", "brokerd", "serve"],
        "env": [*environment(context), *_extra_environment(context)],
        "ports": _ports(context),
        "startupProbe": {
            **_probe("startup"),
            "periodSeconds": 2,
            "failureThreshold": STARTUP_FAILURES_MAX,
        },
        "readinessProbe": {**_probe("ready"), "periodSeconds": 2, "failureThreshold": 2},
        "livenessProbe": {**_probe("live"), "periodSeconds": 10, "failureThreshold": 6},
        "securityContext": naming.container_security(),
        "volumeMounts": _mounts(context),
    }
    resources = context.spec.resources.to_json()
    if resources:
        container["resources"] = resources
    return container


def _probe(name: str) -> Manifest:
    return {"httpGet": {"path": f"/health/{name}", "port": "http"}, "timeoutSeconds": 5}


def _ports(context: Context) -> list[Manifest]:
    ports = [
        ("amqps", naming.PORT_AMQPS),
        ("grpc", naming.PORT_GRPC),
        ("peer", naming.PORT_PEER),
        ("http", naming.PORT_HTTP),
        *context.management_ports,
    ]
    if not context.spec.tls.disable_plain:
        ports.insert(0, ("amqp", naming.PORT_AMQP))
    return [{"name": name, "containerPort": port} for name, port in ports]


def environment(context: Context) -> list[Manifest]:
    """The settings of a member, in the names of the broker's own configuration.

    A BrokerCluster may name an image of an earlier release, which refuses settings that it does not
    know. So a setting that is not as old as the first release is rendered with `OPTIONAL_` before
    its name: earlier members do not see it, or leave it out and say so.

    The zone is read from the pod's label, where the API server puts the node's (ADR 26); without it
    the variable is empty, which is "unknown".
    """
    spec = context.spec
    settings = {
        "BROKERD_NODE_NAME": "$(POD_NAME)",
        "BROKERD_NODE_DATA_DIR": DATA_DIR,
        "BROKERD_NODE_BIND": _bind(context),
        "BROKERD_CLUSTER_NAME": f"{context.namespace}/{context.name}",
        "BROKERD_CLUSTER_MEMBERS": context.initial_members(),
        "BROKERD_CLUSTER_ADDRESS": context.peer_address("$(POD_NAME)"),
        "BROKERD_CLUSTER_WHEN_REMOVED": "wait",
        "BROKERD_AUTH_ADMIN_PASSWORD_FILE": f"{ADMIN_DIR}/password",
        "BROKERD_AUTH_CREATE_GUEST": "false",
        # Always of the cluster's own authority, also where the user brings a serving certificate.
        "BROKERD_AUTH_OPERATOR_CA_FILE": f"{PEER_TLS_DIR}/ca.crt",
        "BROKERD_TLS_CERT_FILE": f"{TLS_DIR}/tls.crt",
        "BROKERD_TLS_KEY_FILE": f"{TLS_DIR}/tls.key",
        "BROKERD_PEER_TLS_CERT_FILE": f"{PEER_TLS_DIR}/tls.crt",
        "BROKERD_PEER_TLS_KEY_FILE": f"{PEER_TLS_DIR}/tls.key",
        "BROKERD_PEER_TLS_CA_FILE": f"{PEER_TLS_DIR}/ca.crt",
        "BROKERD_SECRETS_KEY_FILE": f"{KEYS_DIR}/keys",
        "BROKERD_QUEUES_DEFAULT_TYPE": spec.queues.default_queue_type,
        "BROKERD_TELEMETRY_INTERVAL_MS": str(spec.telemetry.interval),
    }
    if context.ca_secret is not None:
        settings["BROKERD_TLS_CA_FILE"] = f"{CA_DIR}/ca.crt"
    watermark = spec.memory_high_watermark()
    if watermark is not None:
        settings["BROKERD_MEMORY_HIGH_WATERMARK"] = watermark
    if spec.service_account_tokens is not None:
        settings |= {
            "OPTIONAL_BROKERD_KUBERNETES_ISSUER": spec.service_account_tokens.issuer,
            "OPTIONAL_BROKERD_KUBERNETES_CACERTFILE": f"{API_DIR}/ca.crt",
            "OPTIONAL_BROKERD_KUBERNETES_TOKEN_FILE": f"{API_DIR}/token",
        }
    if spec.tls.disable_plain:
        settings |= {
            "BROKERD_LISTENERS_AMQP": "0",
            "OPTIONAL_BROKERD_LISTENERS_MANAGEMENT": "0",
        }
    return [
        naming.field_env("POD_NAME", "metadata.name"),
        naming.secret_env("BROKERD_CLUSTER_SECRET", context.cluster_secret, "secret"),
        naming.secret_env("BROKERD_AUTH_ADMIN_USER", context.admin_secret, "username"),
        naming.field_env("OPTIONAL_BROKERD_NODE_HOST", "spec.nodeName"),
        naming.field_env("OPTIONAL_BROKERD_NODE_ZONE", f"metadata.labels['{ZONE_LABEL}']"),
        *({"name": name, "value": value} for name, value in sorted(settings.items())),
        *({"name": name, "value": value} for name, value in spec.settings_environment().items()),
    ]


def _extra_environment(context: Context) -> list[Manifest]:
    return [
        {"name": item.name, "value": item.value}
        if item.value_from is None
        else naming.env_from(item.name, item.value_from)
        for item in context.spec.pod_template.env
    ]


def _bind(context: Context) -> str:
    dual = context.spec.listeners.ip_family_policy in ("PreferDualStack", "RequireDualStack")
    return "::" if dual else "0.0.0.0"


def _volumes(context: Context) -> list[Manifest]:
    volumes = [
        {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
        naming.secret_volume("admin", context.admin_secret, {"password": "password"}),
        naming.secret_volume(
            "tls", context.tls_secret, {"tls.crt": "tls.crt", "tls.key": "tls.key"}
        ),
        naming.secret_volume("peer-tls", context.peer_tls_secret),
        naming.secret_volume("keys", context.keys_secret, {"keys": "keys"}),
    ]
    if context.ca_secret is not None:
        volumes.append(naming.secret_volume("tls-ca", context.ca_secret, {"ca.crt": "ca.crt"}))
    if context.spec.service_account_tokens is not None:
        volumes.append(_api_volume())
    return volumes


def _api_volume() -> Manifest:
    """What the API server's keys are asked for with (SEC-28: no token but where it is needed).

    The ServiceAccount has no rights of its own; each may read the keys.
    """
    token = {"path": "token", "expirationSeconds": API_TOKEN_S}
    authority = {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}
    sources = [{"serviceAccountToken": token}, {"configMap": authority}]
    return {"name": "api", "projected": {"defaultMode": 0o440, "sources": sources}}


def _mounts(context: Context) -> list[Manifest]:
    mounts: list[Manifest] = [
        {"name": "data", "mountPath": DATA_DIR},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "admin", "mountPath": ADMIN_DIR, "readOnly": True},
        {"name": "tls", "mountPath": TLS_DIR, "readOnly": True},
        {"name": "peer-tls", "mountPath": PEER_TLS_DIR, "readOnly": True},
        {"name": "keys", "mountPath": KEYS_DIR, "readOnly": True},
    ]
    if context.ca_secret is not None:
        mounts.append({"name": "tls-ca", "mountPath": CA_DIR, "readOnly": True})
    if context.spec.service_account_tokens is not None:
        mounts.append({"name": "api", "mountPath": API_DIR, "readOnly": True})
    return mounts


def _scheduling(context: Context) -> Manifest:
    scheduling = context.spec.scheduling
    constraints = [dict(item) for item in scheduling.topology_spread_constraints]
    found: Manifest = {"topologySpreadConstraints": constraints or _spread(context)}
    if scheduling.node_selector:
        found["nodeSelector"] = dict(scheduling.node_selector)
    found["tolerations"] = _tolerations(scheduling.tolerations)
    if scheduling.affinity:
        found["affinity"] = dict(scheduling.affinity)
    if scheduling.priority_class_name:
        found["priorityClassName"] = scheduling.priority_class_name
    return found


def _tolerations(wanted: Sequence[Mapping[str, Any]]) -> list[Manifest]:
    """What the user asks for, and to stay on a node that cannot be reached.

    The eviction of pods by that taint asks no disruption budget, and the members go on serving
    behind the cut: when it ends, all of them on that node would be stopped at the same moment. A
    pod of a StatefulSet that cannot be reached is not replaced meanwhile either way.
    """
    found = [dict(item) for item in wanted]
    if any(_tolerates_unreachable(item) for item in found):
        return found
    return [*found, {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute"}]


def _tolerates_unreachable(toleration: Mapping[str, Any]) -> bool:
    key, effect = toleration.get("key") or UNREACHABLE, toleration.get("effect") or "NoExecute"
    return (key, effect) == (UNREACHABLE, "NoExecute")


def _spread(context: Context) -> list[Manifest]:
    return [
        {
            "maxSkew": 1,
            "topologyKey": key,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": naming.selector(context)},
        }
        for key in ("kubernetes.io/hostname", ZONE_LABEL)
    ]
