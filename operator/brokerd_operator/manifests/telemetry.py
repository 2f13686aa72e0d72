"""The telemetry job of a BrokerCluster: CronJob, one-off Job, volume, and its rights. PURE.

design/telemetry.md §5.2, §5.5, §5.6 and §14.3. With the engine `local` Spark runs
inside the job's pod, which then needs no right at all; with `kubernetes` the pod is the driver in
client mode and makes executor pods of the template in the ConfigMap, with exactly the rights of
design/telemetry.md §5.2.
"""

from __future__ import annotations

import json

from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context, Manifest

OUT_DIR = "/var/lib/telemetry"
TEMPLATE_DIR = "/etc/telemetry"
TEMPLATE_FILE = "executor.yaml"
ADMIN_DIR = "/etc/telemetry-admin"
CA_DIR = "/etc/telemetry-tls"
LOCAL_MASTER = "local[*]"
KUBERNETES_MASTER = "k8s://https://kubernetes.default.svc:443"

COMPONENT = "telemetry"

#: design/telemetry.md §5.5: a driver with a heap of 640 MiB.
DEFAULT_RESOURCES: Manifest = {
    "requests": {"cpu": "250m", "memory": "1200Mi"},
    "limits": {"memory": "2Gi"},
}

#: design/telemetry.md §5.2, less the PVC rights: Spark goes on without them (design/telemetry.md
#: §13.5), and deletecollection of claims would reach the brokers' volumes.
ROLE_RULES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("pods", ("get", "list", "watch", "create", "delete", "deletecollection")),
    ("configmaps", ("get", "list", "create", "patch", "deletecollection")),
    ("services", ("deletecollection",)),
)


def objects(context: Context) -> list[Manifest]:
    """Everything that recurring runs need; nothing while telemetry is off."""
    telemetry = context.spec.telemetry
    if not telemetry.enabled:
        return []
    found = [volume_claim(context)]
    if telemetry.service_account_name is None:
        found.append(service_account(context))
        if _is_distributed(context):
            found += [role(context), role_binding(context)]
    if _is_distributed(context):
        found.append(executor_template(context))
    return [*found, cron_job(context)]


def _is_distributed(context: Context) -> bool:
    return context.spec.telemetry.engine == "kubernetes"


def _account(context: Context) -> str:
    return context.spec.telemetry.service_account_name or context.telemetry_name


def service_account(context: Context) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": naming.metadata(context, context.telemetry_name, COMPONENT),
        # The driver's pod asks for its token; executors never get one.
        "automountServiceAccountToken": False,
    }


def role(context: Context) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": naming.metadata(context, context.telemetry_name, COMPONENT),
        "rules": [
            {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}
            for resource, verbs in ROLE_RULES
        ],
    }


def role_binding(context: Context) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": naming.metadata(context, context.telemetry_name, COMPONENT),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "Role",
            "name": context.telemetry_name,
        },
        "subjects": [
            {
                "kind": "ServiceAccount",
                "name": context.telemetry_name,
                "namespace": context.namespace,
            }
        ],
    }


def volume_claim(context: Context) -> Manifest:
    """Tables and report. Kept with the members' volumes when the BrokerCluster goes."""
    storage = context.spec.telemetry.storage
    metadata = naming.metadata(context, context.telemetry_name, COMPONENT)
    if context.spec.storage.retention == "Retain":
        del metadata["ownerReferences"]
    spec: Manifest = {
        "accessModes": [storage.access_mode],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.class_name is not None:
        spec["storageClassName"] = storage.class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }


def cron_job(context: Context) -> Manifest:
    telemetry = context.spec.telemetry
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": naming.metadata(context, context.telemetry_name, COMPONENT),
        "spec": {
            "schedule": telemetry.schedule,
            "suspend": telemetry.suspend,
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 300,
            "successfulJobsHistoryLimit": 1,
            "failedJobsHistoryLimit": 2,
            "jobTemplate": {
                "metadata": {"labels": naming.labels(context, COMPONENT)},
                "spec": _job_spec(context),
            },
        },
    }


def job(context: Context, run_id: str) -> Manifest:
    """A run outside of the schedule."""
    name = f"{context.telemetry_name}-{run_id}"
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": naming.metadata(context, name, COMPONENT),
        "spec": _job_spec(context),
    }


def _job_spec(context: Context) -> Manifest:
    return {
        "backoffLimit": 1,
        "activeDeadlineSeconds": context.spec.telemetry.deadline_seconds,
        "ttlSecondsAfterFinished": 86_400,
        "template": {
            "metadata": {"labels": naming.labels(context, COMPONENT)},
            "spec": _pod(context),
        },
    }


def _pod(context: Context) -> Manifest:
    spec = context.spec
    mounts = [
        {"name": "out", "mountPath": OUT_DIR},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "admin", "mountPath": ADMIN_DIR, "readOnly": True},
    ]
    volumes = [
        _claim_volume(context),
        {"name": "tmp", "emptyDir": {}},
        naming.secret_volume("admin", context.admin_secret, {"password": "password"}),
    ]
    if context.ca_secret is not None:
        mounts.append({"name": "tls-ca", "mountPath": CA_DIR, "readOnly": True})
        volumes.append(naming.secret_volume("tls-ca", context.ca_secret, {"ca.crt": "ca.crt"}))
    if _is_distributed(context):
        mounts.append({"name": "template", "mountPath": TEMPLATE_DIR, "readOnly": True})
        volumes.append({"name": "template", "configMap": {"name": context.telemetry_name}})
    pod: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": _account(context),
        "automountServiceAccountToken": _is_distributed(context),
        "enableServiceLinks": False,
        "securityContext": naming.pod_security(),
        # No readiness probe: Spark's driver waits for its own pod (design/telemetry.md §5.1).
        "containers": [
            {
                "name": "driver",
                "image": context.telemetry_image,
                "imagePullPolicy": spec.image_pull_policy,
                "args": arguments(context),
                "env": _environment(context),
                "resources": spec.telemetry.resources.to_json() or DEFAULT_RESOURCES,
                "securityContext": naming.container_security(),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": item.name} for item in spec.image_pull_secrets]
    return pod


def arguments(context: Context) -> list[str]:
    """The command line of a run; the image's entry point passes it on."""
    command = ["python", "-m", "brokerd_telemetry", "run"]
    options = {
        "--cluster": f"{context.namespace}/{context.name}",
        "--pull": ",".join(context.grpc_addresses()),
        "--out": OUT_DIR,
        "--master": KUBERNETES_MASTER if _is_distributed(context) else LOCAL_MASTER,
        "--user": "$(ADMIN_USER)",
        "--password-file": f"{ADMIN_DIR}/password",
    }
    if _is_distributed(context):
        options["--executors"] = str(context.spec.telemetry.executors)
        options["--image"] = context.telemetry_image
    for name, value in options.items():
        command += [name, value]
    return command


def _environment(context: Context) -> list[Manifest]:
    # The members' gRPC port speaks TLS with the serving certificate.
    ca = {"name": "BROKERD_CA_FILE", "value": f"{CA_DIR}/ca.crt"}
    return [
        *([ca] if context.ca_secret is not None else []),
        naming.field_env("POD_IP", "status.podIP"),
        naming.field_env("POD_NAME", "metadata.name"),
        naming.field_env("NAMESPACE", "metadata.namespace"),
        naming.secret_env("ADMIN_USER", context.admin_secret, "username"),
        {"name": "SPARK_LOCAL_IP", "value": "0.0.0.0"},
    ]


def _claim_volume(context: Context) -> Manifest:
    return {"name": "out", "persistentVolumeClaim": {"claimName": context.telemetry_name}}


def executor_template(context: Context) -> Manifest:
    """What Spark makes its executor pods of; JSON is YAML too."""
    pod: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": naming.labels(context, "telemetry-executor")},
        "spec": {
            "serviceAccountName": _account(context),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": naming.pod_security(),
            "containers": [
                {
                    "name": "executor",
                    "imagePullPolicy": context.spec.image_pull_policy,
                    "securityContext": naming.container_security(),
                    "volumeMounts": [
                        {"name": "out", "mountPath": OUT_DIR},
                        {"name": "tmp", "mountPath": "/tmp"},
                    ],
                }
            ],
            "volumes": [_claim_volume(context), {"name": "tmp", "emptyDir": {}}],
        },
    }
    if context.spec.image_pull_secrets:
        secrets = [{"name": item.name} for item in context.spec.image_pull_secrets]
        pod["spec"]["imagePullSecrets"] = secrets
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": naming.metadata(context, context.telemetry_name, COMPONENT),
        "data": {TEMPLATE_FILE: json.dumps(pod, indent=2, sort_keys=True)},
    }
