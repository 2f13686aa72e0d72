"""Settings of the operator process, from the environment (the chart sets them) and flags.

Names are BROKERD_OPERATOR_<SETTING>; an unknown one is an error, as in the broker.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from brokerd_operator.manifests.naming import Images
from brokerd_operator.reconcile.rotation import Lifetimes

PREFIX = "BROKERD_OPERATOR_"
ALL_NAMESPACES = "*"
DAY_S = 86_400


class SettingsError(Exception):
    """A setting cannot be used; the text says which."""


class Settings(BaseModel):
    """Everything that may differ between two operators."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    #: Namespace of the operator's own pod: the Lease is there.
    namespace: str = "default"
    #: Comma-separated; `*` is all.
    watch_namespaces: str = ""
    #: Part of the ownership token in brokers (design/operator.md §11).
    instance: str = Field(default="brokerd", min_length=1, max_length=63)
    broker_image: str = "localhost/brokerd:0.1.0"
    telemetry_image: str = "localhost/brokerd-telemetry:0.1.0"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    http_port: int = Field(default=8080, ge=0, le=65_535)
    http_bind: str = ""
    #: Holder's name in the Lease; the pod's name.
    identity: str = ""
    lease_name: str = "brokerd-operator"
    #: design/operator.md §13.2: 15/10/2 s.
    lease_seconds: int = Field(default=30, ge=3, le=300)
    #: The RoleBinding that gives the operator its rights in each watched namespace but its own; it
    #: is kept while resources there wait for the operator. Empty: nothing is kept.
    role_binding: str = Field(default="", max_length=253)
    workers: int = Field(default=8, ge=1, le=64)
    #: Life of the certificates of BrokerClusters; renewed when two thirds are over.
    certificate_seconds: int = Field(default=365 * DAY_S, ge=30, le=3650 * DAY_S)
    #: Life of their authorities.
    authority_seconds: int = Field(default=3650 * DAY_S, ge=60, le=36500 * DAY_S)
    #: From the moment a new authority is trusted until it issues, for clients with a copy of it.
    authority_notice_seconds: int = Field(default=30 * DAY_S, ge=0, le=365 * DAY_S)
    #: Until members have surely loaded what a Secret holds; less than the kubelet's refresh of
    #: volumes, some two minutes, is for tests.
    certificate_settle_seconds: int = Field(default=600, ge=1, le=DAY_S)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Watched namespaces; empty for all."""
        names = [name.strip() for name in self.watch_namespaces.split(",") if name.strip()]
        if ALL_NAMESPACES in names:
            return ()
        return tuple(names) or (self.namespace,)

    @property
    def lifetimes(self) -> Lifetimes:
        return Lifetimes(
            self.authority_seconds,
            self.certificate_seconds,
            self.certificate_settle_seconds,
            self.authority_notice_seconds,
        )

    @property
    def images(self) -> Images:
        return Images(self.broker_image, self.telemetry_image)


def load(environ: Mapping[str, str] | None = None) -> Settings:
    """Read the environment; raises SettingsError."""
    source = os.environ if environ is None else environ
    values = {
        name.removeprefix(PREFIX).lower(): text
        for name, text in source.items()
        if name.startswith(PREFIX)
    }
    values.setdefault("identity", source.get("POD_NAME") or source.get("HOSTNAME") or "operator")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = PREFIX + "_".join(str(part) for part in first["loc"]).upper()
        raise SettingsError(f"{where}: {first['msg']}") from error
