"""The BrokerCluster kind. PURE; `manifests/` makes Kubernetes objects of it, `local/` processes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from brokerd_operator.specs import units
from brokerd_operator.specs.access import Grant
from brokerd_operator.specs.model import (
    Invalid,
    JsonObject,
    Meta,
    Part,
    Reference,
    SecretRef,
    parse_as,
)
from brokerd_operator.specs.pod_template import PodTemplate

#: A member refuses to start with less (telemetry.interval_ms); with more no rate means anything.
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000
#: A longer window would overlap with its own next one.
WINDOW_MS_MIN, WINDOW_MS_MAX = 60_000, 86_400_000

#: Of the broker (topology_batch.py).
OVERLAP_MS_MAX = 86_400_000

#: Blocks that mean nothing to local processes; the embedded mode names them as not applied.
KUBERNETES_ONLY = (
    "image",
    "imagePullPolicy",
    "imagePullSecrets",
    "storage",
    "resources",
    "tls",
    "listeners",
    "gateway",
    "serviceAccountTokens",
    "scheduling",
    "podTemplate",
    "disruption",
    "termination",
    "networkPolicy",
    "upgradePolicy",
    "maintenanceWindows",
    "progressDeadlineSeconds",
    "fenced",
    "telemetry.schedule",
    "telemetry.suspend",
    "telemetry.engine",
    "telemetry.executors",
    "telemetry.image",
    "telemetry.serviceAccountName",
    "telemetry.deadlineSeconds",
    "telemetry.resources",
    "telemetry.storage",
)


class Storage(Part):
    """The volume of each member."""

    size: str = "10Gi"
    class_name: str | None = None
    retention: Literal["Retain", "Delete"] = "Retain"


class Resources(Part):
    """Requests and limits of a container."""

    requests: dict[str, str | int] = Field(default_factory=dict)
    limits: dict[str, str | int] = Field(default_factory=dict)

    def to_json(self) -> JsonObject:
        return self.model_dump(exclude_defaults=True)


class HighWatermark(Part):
    """Memory at which publishers are blocked; one of the two."""

    fraction: str | None = None
    absolute: units.Bytes | None = None


class Memory(Part):
    """The memory alarm."""

    high_watermark: HighWatermark | None = None


class Queues(Part):
    """Defaults for queues."""

    default_queue_type: Literal["classic", "quorum"] = "quorum"


class IssuerRef(Part):
    """An issuer of cert-manager."""

    name: str
    kind: str = "Issuer"
    group: str = "cert-manager.io"


class Tls(Part):
    """Certificates of the listeners."""

    secret_name: str | None = None
    issuer_ref: IssuerRef | None = None
    ca_secret_name: str | None = None
    disable_plain: bool = False


class Listeners(Part):
    """The client Service."""

    service_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    ip_family_policy: str | None = None
    annotations: dict[str, str] = Field(default_factory=dict)


class ParentRef(Part):
    """A Gateway, or one of its listeners."""

    name: str
    namespace: str | None = None
    section_name: str | None = None
    port: int | None = None


class Gateway(Part):
    """A route through Gateways of the Gateway API."""

    parent_refs: tuple[ParentRef, ...]
    route: Literal["TLS", "TCP"] = "TLS"
    hostnames: tuple[str, ...] = ()


class Admin(Part):
    """The administrator that the operator uses."""

    secret_ref: SecretRef | None = None
    password_overlap: units.Milliseconds = 600_000


class ServiceAccountTokens(Part):
    """Tokens of ServiceAccounts as passwords (docs/concepts/tokens.md)."""

    issuer: str


class Scheduling(Part):
    """Where members run."""

    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[JsonObject, ...] = ()
    affinity: JsonObject | None = None
    topology_spread_constraints: tuple[JsonObject, ...] = ()
    priority_class_name: str | None = None


class Disruption(Part):
    """Protection against voluntary disruptions."""

    pdb: Literal["Auto", "None"] = "Auto"


class Termination(Part):
    """How members stop."""

    grace_period_seconds: int = 60


class NetworkPolicy(Part):
    """Who may connect."""

    mode: Literal["Generate", "None"] = "Generate"
    allow_from: tuple[dict[str, str], ...] = ()


class TelemetryStorage(Part):
    """The volume of the tables and the report."""

    size: str = "5Gi"
    class_name: str | None = None
    access_mode: Literal["ReadWriteOnce", "ReadWriteMany"] = "ReadWriteOnce"


class Telemetry(Part):
    """What members record and the job that evaluates it (design/telemetry.md §5.5, §5.6)."""

    enabled: bool = False
    interval: units.Milliseconds = 10_000
    schedule: str = "5 * * * *"
    suspend: bool = False
    engine: Literal["local", "kubernetes"] = "local"
    executors: int = 2
    image: str | None = None
    service_account_name: str | None = None
    deadline_seconds: int = 3000
    resources: Resources = Resources()
    storage: TelemetryStorage = TelemetryStorage()


class MaintenanceWindow(Part):
    """A time in UTC at which members may be restarted."""

    days: tuple[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], ...] = ()
    start: str
    duration: units.Milliseconds


class Deletion(Part):
    """Deletion of resources that belong to the cluster, and of the cluster itself."""

    protection: bool = False
    timeout: units.Milliseconds = 600_000


class ImagePullSecret(Part):
    """A Secret for pulling images."""

    name: str


class BrokerClusterSpec(Part):
    """A cluster of brokers."""

    KIND: ClassVar[str] = "BrokerCluster"

    replicas: int = 3
    image: str | None = None
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    image_pull_secrets: tuple[ImagePullSecret, ...] = ()
    storage: Storage = Storage()
    resources: Resources = Resources()
    memory: Memory = Memory()
    queues: Queues = Queues()
    #: By section, in the broker's own names (ADR 77).
    settings: dict[str, JsonObject] = Field(default_factory=dict)
    tls: Tls = Tls()
    listeners: Listeners = Listeners()
    gateway: Gateway | None = None
    admin: Admin = Admin()
    service_account_tokens: ServiceAccountTokens | None = None
    scheduling: Scheduling = Scheduling()
    pod_template: PodTemplate = PodTemplate()
    disruption: Disruption = Disruption()
    termination: Termination = Termination()
    network_policy: NetworkPolicy = NetworkPolicy()
    telemetry: Telemetry = Telemetry()
    access: tuple[Grant, ...] = ()
    deletion: Deletion = Deletion()
    upgrade_policy: Literal["Auto", "OnApproval"] = "Auto"
    maintenance_windows: tuple[MaintenanceWindow, ...] = ()
    progress_deadline_seconds: int = 600
    fenced: tuple[str, ...] = ()
    hibernated: bool = False

    def problem(self, meta: Meta) -> Invalid | None:
        if not INTERVAL_MS_MIN <= self.telemetry.interval <= INTERVAL_MS_MAX:
            return Invalid("InvalidSpec", "spec.telemetry.interval must be from 100ms to 1h")
        if any(
            not WINDOW_MS_MIN <= item.duration <= WINDOW_MS_MAX for item in self.maintenance_windows
        ):
            return Invalid("InvalidSpec", "spec.maintenanceWindows: a duration is from 1m to 24h")
        if self.admin.password_overlap > OVERLAP_MS_MAX:
            return Invalid("InvalidSpec", "spec.admin.passwordOverlap must be at most 24h")
        if taken := self.pod_template.problem():
            return Invalid("InvalidSpec", taken)
        problems = (grant.problem() for grant in self.access)
        return next((found for found in problems if found is not None), None)

    def references(self, meta: Meta) -> tuple[Reference, ...]:
        """Secrets that the user brings along; what the operator makes itself is not among them."""
        names = [self.tls.secret_name, self.tls.ca_secret_name]
        if self.admin.secret_ref is not None:
            names.append(self.admin.secret_ref.name)
        wanted = dict.fromkeys(name for name in names if name is not None)
        return tuple(Reference("Secret", meta.namespace, name) for name in wanted)

    def admin_secret_name(self, meta: Meta) -> str:
        return self.admin.secret_ref.name if self.admin.secret_ref else f"{meta.name}-admin"

    def member_names(self, meta: Meta) -> tuple[str, ...]:
        """Names of the members, which are the names of their pods."""
        return tuple(f"{meta.name}-{ordinal}" for ordinal in range(self.replicas))

    @property
    def members_wanted(self) -> int:
        """How many members are to run now."""
        return 0 if self.hibernated else self.replicas

    def settings_environment(self) -> dict[str, str]:
        """`settings` as variables; a member of a release that does not know one leaves it out."""
        return {
            f"OPTIONAL_BROKERD_{section}_{key}".upper(): _text(value)
            for section, values in sorted(self.settings.items())
            for key, value in sorted(values.items())
        }

    def memory_high_watermark(self) -> str | None:
        """The watermark in the words of the broker's configuration."""
        mark = self.memory.high_watermark
        if mark is None:
            return None
        if mark.absolute is not None:
            return f"{mark.absolute // 1024}KiB"
        return mark.fraction


def _text(value: Any) -> str:
    """A value as the broker reads it from a variable."""
    return value if isinstance(value, str) else json.dumps(value)


def not_applied_locally(spec: BrokerClusterSpec) -> tuple[str, ...]:
    """Paths of fields that differ from their defaults and mean nothing to local processes."""
    actual = spec.model_dump(by_alias=True, mode="json")
    defaults = BrokerClusterSpec().model_dump(by_alias=True, mode="json")
    found = []
    for path in KUBERNETES_ONLY:
        head, _, tail = path.partition(".")
        is_changed = (
            actual[head] != defaults[head]
            if not tail
            else actual[head][tail] != defaults[head][tail]
        )
        if is_changed:
            found.append(f"spec.{path}")
    return tuple(found)


def parse(body: Mapping[str, Any]) -> BrokerClusterSpec | Invalid:
    return parse_as(BrokerClusterSpec, body)
