"""The BrokerConnection kind: a broker that the operator does not run. PURE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from brokerd_operator.specs.access import Grant
from brokerd_operator.specs.model import Invalid, Meta, Part, Reference, SecretRef, parse_as


class ConnectionTls(Part):
    """TLS of the gRPC port."""

    ca_secret_ref: SecretRef
    server_name: str | None = None


class BrokerConnectionSpec(Part):
    """How the broker's administration is reached."""

    KIND: ClassVar[str] = "BrokerConnection"

    endpoints: tuple[str, ...]
    tls: ConnectionTls | None = None
    credentials_secret_ref: SecretRef
    access: tuple[Grant, ...] = ()

    def problem(self, meta: Meta) -> Invalid | None:
        problems = (grant.problem() for grant in self.access)
        return next((found for found in problems if found is not None), None)

    def references(self, meta: Meta) -> tuple[Reference, ...]:
        names = [self.credentials_secret_ref.name]
        if self.tls is not None:
            names.append(self.tls.ca_secret_ref.name)
        return tuple(Reference("Secret", meta.namespace, name) for name in dict.fromkeys(names))


def parse(body: Mapping[str, Any]) -> BrokerConnectionSpec | Invalid:
    return parse_as(BrokerConnectionSpec, body)
