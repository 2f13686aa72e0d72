"""What a resource asks of a broker in another namespace, and the refusal, if it is one. PURE.

The grants and what they allow are in `specs/access.py`. For the engine and `brokerctl plan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brokerd_operator.specs import access
from brokerd_operator.specs.federation_upstream import FederationUpstreamSpec
from brokerd_operator.specs.model import Inputs, Meta, TopologySpec
from brokerd_operator.specs.user import UserSpec


def refusal(
    spec: TopologySpec,
    meta: Meta,
    grants: Iterable[access.Grant],
    namespace_labels: Mapping[str, str],
    users: Mapping[str, str],
) -> str:
    """Why the broker's grants do not allow this resource; empty when they do."""
    reference = spec.broker_ref.reference(meta)
    lacking = access.refusal(
        reference.namespace, grants, _request(spec, meta, namespace_labels, users)
    )
    return f"{reference.kind} {reference.key} {lacking}" if lacking else ""


def _request(
    spec: TopologySpec,
    meta: Meta,
    namespace_labels: Mapping[str, str],
    users: Mapping[str, str],
) -> access.Request:
    hosts: tuple[str, ...] = ()
    if isinstance(spec, FederationUpstreamSpec):
        # A Secret's hosts are unknown here, and what is unknown is not granted.
        hosts = tuple(item.host or "" for item in spec.endpoints) or ("",)
    vhost: str | None = spec.vhost
    if spec.KIND == "Vhost":
        vhost = spec.resolved_name(meta)
    elif spec.KIND == "User":
        vhost = None
    return access.Request(
        kind=spec.KIND,
        namespace=meta.namespace,
        namespace_labels=namespace_labels,
        vhost=vhost,
        user=spec.subject(meta, Inputs(users=users)),
        tags=spec.tags if isinstance(spec, UserSpec) else (),
        hosts=hosts,
    )
