"""Who may talk on a peer stream: mTLS with the member's name in it, or a shared secret.

SEC-3, SEC-4: with TLS a peer is accepted by the name in its certificate and by the cluster id,
never by the authority alone.  Without TLS (loopback, tests, networks that encrypt themselves)
members show a shared secret.  Used by transport.py and peer_service.py only.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc

from brokerd.cluster.config import TlsFiles
from brokerd.raft.messages import NodeId

if TYPE_CHECKING:
    from collections.abc import Mapping

logger = logging.getLogger(__name__)

SECRET_KEY = "brokerd-cluster-secret-bin"

_SAN_PROPERTY = "x509_subject_alternative_name"


def read_files(files: TlsFiles) -> tuple[bytes, bytes, bytes]:
    """Return key, certificate and authority in PEM; OSError if one cannot be read."""
    return (
        Path(files.key).read_bytes(),
        Path(files.certificate).read_bytes(),
        Path(files.ca).read_bytes(),
    )


def client_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Read the files and return credentials for one dial, so that new ones count from then on."""
    key, certificate, ca = read_files(files)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Return credentials that demand a certificate and follow the files (SEC-5)."""

    def configuration() -> grpc.ServerCertificateConfiguration:
        key, certificate, ca = read_files(files)
        return grpc.ssl_server_certificate_configuration([(key, certificate)], ca)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        try:
            return configuration()
        except OSError:
            # A rotation may be half done; the old certificate goes on.
            logger.warning("cannot read the peer certificate files; keeping the old ones")
            return None

    # None means "nothing new" to gRPC, which its type stubs do not know.
    return grpc.dynamic_ssl_server_credentials(configuration(), cast(Any, fetch), True)


def names_in_certificate(auth_context: Mapping[str, Iterable[bytes]]) -> set[str]:
    """Return the verified subject alternative names of a connection's other side."""
    return {
        name.decode("utf-8", "replace")
        for key, values in auth_context.items()
        if _text(key) == _SAN_PROPERTY
        for name in values
    }


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)


def is_member_certificate(names: Iterable[str], node: NodeId) -> bool:
    """Tell whether a certificate with these names is the member's: its name, or a DNS name whose
    first label is its name (the pod of a StatefulSet).  Wildcards never count.
    """
    return any(name == node or name.startswith(f"{node}.") for name in names)


def secret_metadata(secret: str) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata a dialling member shows."""
    return ((SECRET_KEY, secret.encode()),) if secret else ()


def is_secret_right(metadata: Iterable[tuple[str, Any]], secret: str) -> bool:
    """Compare in constant time (SEC-8); always true when no secret is asked for."""
    if not secret:
        return True
    shown = b""
    for key, value in metadata:
        if key == SECRET_KEY:
            shown = value if isinstance(value, bytes) else str(value).encode()
    return hmac.compare_digest(shown, secret.encode())
