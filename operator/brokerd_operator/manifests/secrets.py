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
CERT_MANAGER = "cert-manager.io/v1"
#: Says why a Secret is there that belongs to nothing.
KEPT = "brokerd.io/kept"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate with its key and the CA that signed it, all PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    ca: bytes


def serving_names(context: Context) -> tuple[str, ...]:
    """DNS names of the clients' certificate: Services, members that may be, a Gateway's."""
    hosts = [context.name, f"{context.name}.{context.namespace}", context.client_host]
    hosts += [context.member_host(name) for name in _possible_members(context)]
    long_names = [f"{host}.cluster.local" for host in hosts if host.endswith(".svc")]
    gateway = context.spec.gateway
    public = gateway.hostnames if gateway is not None else ()
    return (*hosts, *long_names, *public, "localhost")


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

    Kept with the volumes when the BrokerCluster goes: its password is in their data. The further
    keys follow the service binding specification, so that applications can be bound to it.
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
    return _kept(context, _secret(context, context.admin_secret, values))


def cluster_secret(context: Context, secret: str) -> Manifest:
    """What members show each other."""
    return _secret(context, context.cluster_secret, {"secret": secret})


def keys_secret(context: Context, key: str) -> Manifest:
    """Keys under which members encrypt secrets on their volumes (ADR 19), one a line.

    Kept with the volumes when the BrokerCluster goes: without it what is on them cannot be read.
    """
    return _kept(context, _secret(context, context.keys_secret, {"keys": f"{key}\n"}))


def kept_secrets(context: Context) -> tuple[str, ...]:
    """Names of the Secrets that stay as long as the volumes."""
    admin = () if context.spec.admin.secret_ref is not None else (context.admin_secret,)
    return (*admin, context.keys_secret)


def ownership(context: Context, live: Manifest) -> Manifest | None:
    """What a kept Secret that is there needs so that it stays or goes as the spec says now; it may
    be of a BrokerCluster before, or of another retention. None: nothing.
    """
    wanted = _kept(context, _secret(context, "", {}))["metadata"]
    metadata = live["metadata"]
    before = metadata.get("ownerReferences") or []
    owners = [item for item in before if not is_named_like(context, item)]
    owners += wanted.get("ownerReferences", [])
    note = (wanted.get("annotations") or {}).get(KEPT)
    if owners == before and note == (metadata.get("annotations") or {}).get(KEPT):
        return None
    return {"metadata": {"ownerReferences": owners, "annotations": {KEPT: note}}}


def is_named_like(context: Context, owner: Manifest) -> bool:
    """Whether an owner is this BrokerCluster, or one of its name before it."""
    return owner.get("kind") == "BrokerCluster" and owner.get("name") == context.name


def is_predecessors(context: Context, live: Manifest) -> bool:
    """Whether a Secret belongs to a BrokerCluster of this name that is gone: it goes, too."""
    owners = live["metadata"].get("ownerReferences") or ()
    named = [item for item in owners if is_named_like(context, item)]
    return any(named) and all(item.get("uid") != context.meta.uid for item in named)


def _kept(context: Context, manifest: Manifest) -> Manifest:
    if context.spec.storage.retention == "Retain":
        metadata = manifest["metadata"]
        del metadata["ownerReferences"]
        metadata["annotations"] = {
            KEPT: f"stays with the volumes of BrokerCluster {context.name}, and is taken up again "
            "by a BrokerCluster of this name; delete it when you delete them"
        }
    return manifest


def ca_secret_name(context: Context) -> str:
    return f"{context.name}-ca"


def ca_secret(
    context: Context, values: dict[str, bytes], marks: dict[str, str] | None = None
) -> Manifest:
    """The CA of this cluster, and how far its rotation is. No pod mounts it."""
    manifest = _secret(context, ca_secret_name(context), values)
    if marks:
        manifest["metadata"]["annotations"] = marks
    return manifest


def certificate_secrets(context: Context) -> dict[str, tuple[str, ...]]:
    """Secrets with a certificate of the cluster's own CA, and the names in each.

    The one for clients is not among them when the user brings it along; members among themselves
    always use the cluster's own.
    """
    found = {context.peer_tls_secret: peer_names(context)}
    if context.has_own_certificate:
        found[context.tls_secret] = serving_names(context)
    return found


def certificate_secret(context: Context, name: str, certificate: Certificate) -> Manifest:
    """One of `certificate_secrets`."""
    return _tls(context, name, certificate)


def issued_certificate(context: Context) -> Manifest | None:
    """What cert-manager is asked for; None unless the spec names an issuer."""
    issuer = context.spec.tls.issuer_ref
    if issuer is None:
        return None
    return {
        "apiVersion": CERT_MANAGER,
        "kind": "Certificate",
        "metadata": naming.metadata(context, context.name),
        "spec": {
            "secretName": context.tls_secret,
            "dnsNames": list(serving_names(context)),
            "usages": ["digital signature", "key encipherment", "server auth"],
            "privateKey": {"algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always"},
            "issuerRef": {"group": issuer.group, "kind": issuer.kind, "name": issuer.name},
        },
    }


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
