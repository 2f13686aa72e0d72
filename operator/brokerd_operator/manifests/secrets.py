"""Secrets that the operator makes for a BrokerCluster or a User. PURE.

Random values and certificates come in as arguments: the engine makes them once and keeps them, so
that a pass never changes what exists. The CA's private key is in a Secret of its own, which no pod
mounts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerd_operator.manifests import naming
from brokerd_operator.manifests.naming import Context, Manifest
from brokerd_operator.specs.model import Meta

ADMIN_USER = "admin"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key and the CA that signed it, all PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


def serving_names(context: Context) -> tuple[str, ...]:
    """DNS names of the certificate for clients: the Services and every member that may be."""
    hosts = [context.name, f"{context.name}.{context.namespace}", context.client_host]
    hosts += [context.member_host(name) for name in _possible_members(context)]
    long_names = [f"{host}.cluster.local" for host in hosts if host.endswith(".svc")]
    return (*hosts, *long_names, "localhost")


def peer_names(context: Context) -> tuple[str, ...]:
    """DNS names of the certificate for members among themselves.

    SEC-4: a member is accepted by its own name, whatever address it was reached at, and wildcards
    never count; so every member that may ever be is named, and scaling needs no new certificate.
    """
    names = _possible_members(context)
    return (*names, *(context.member_host(name) for name in names))


def _possible_members(context: Context) -> list[str]:
    return [f"{context.name}-{ordinal}" for ordinal in range(naming.MEMBERS_MAX)]


def admin_secret(context: Context, password: str) -> Manifest | None:
    """The administrator; None when the user brings a Secret along.

    The further keys follow the service binding specification, so that applications can be bound to
    it.
    """
    if context.spec.admin.secret_ref is not None:
        return None
    is_plain = not context.spec.tls.disable_plain
    port = naming.PORT_AMQP if is_plain else naming.PORT_AMQPS
    scheme = "amqp" if is_plain else "amqps"
    values = {
        "type": "amqp",
        "provider": "brokerd",
        "host": context.client_host,
        "port": str(port),
        "username": ADMIN_USER,
        "password": password,
        "uri": f"{scheme}://{ADMIN_USER}:{password}@{context.client_host}:{port}",
    }
    return _secret(context, context.admin_secret, values)


def cluster_secret(context: Context, secret: str) -> Manifest:
    """What members show each other."""
    return _secret(context, context.cluster_secret, {"secret": secret})


def ca_secret(context: Context, certificate: bytes, key: bytes) -> Manifest:
    """The CA of this cluster. No pod mounts it."""
    return _secret(context, f"{context.name}-ca", {"ca.crt": certificate, "ca.key": key})


def tls_secret(context: Context, certificate: Certificate) -> Manifest | None:
    """The serving certificate; None when the user brings one along."""
    if context.spec.tls.secret_name is not None:
        return None
    return _tls(context, context.tls_secret, certificate)


def peer_tls_secret(context: Context, certificate: Certificate) -> Manifest:
    """The certificate for members among themselves, always of the cluster's own CA."""
    return _tls(context, context.peer_tls_secret, certificate)


def _tls(context: Context, name: str, certificate: Certificate) -> Manifest:
    values = {
        "tls.crt": certificate.certificate,
        "tls.key": certificate.key,
        "ca.crt": certificate.ca,
    }
    return {**_secret(context, name, values), "type": "kubernetes.io/tls"}


def _secret(context: Context, name: str, values: dict[str, str] | dict[str, bytes]) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": naming.metadata(context, name),
        "type": "Opaque",
        "data": naming.encoded(values),
    }


def user_secret(
    meta: Meta, user: str, password: str, host: str, port: int = naming.PORT_AMQP
) -> Manifest:
    """The generated credentials of a User resource."""
    values = {
        "type": "amqp",
        "provider": "brokerd",
        "host": host,
        "port": str(port),
        "username": user,
        "password": password,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": f"{meta.name}-credentials",
            "namespace": meta.namespace,
            "labels": {
                "app.kubernetes.io/name": "brokerd",
                "app.kubernetes.io/component": "credentials",
                "app.kubernetes.io/managed-by": naming.MANAGED_BY,
                # Secrets are watched by this label where the operator watches all namespaces.
                "brokerd.io/watch": "true",
            },
            "ownerReferences": [naming.owner_reference(meta, "User")],
        },
        "type": "Opaque",
        "data": naming.encoded(values),
    }
