"""Who may talk on a peer stream: mTLS with the member's name in it, or a shared secret.

SEC-3, SEC-4: with TLS a peer is accepted by the name in its certificate and by the cluster id,
never by the authority alone.  Without TLS (loopback, tests, networks that encrypt themselves)
members show a shared secret.  Used by transport.py and peer_service.py only.
"""

from __future__ import annotations

import hmac
import logging
import ssl
from collections.abc import Iterable, Mapping
from typing import Any

from brokerd.cluster.config import TlsFiles
from brokerd.cluster.peer.certificate_files import CertificateFiles, load_chain
from brokerd.raft.messages import NodeId

# It logs every header it codes, and with them the secret (SEC-20).
logging.getLogger("hpack").setLevel(logging.WARNING)

SECRET_KEY = "brokerd-cluster-secret-bin"

ALPN = "h2"
#: RFC 9113 §9.2.2 leaves of TLS 1.2 only these; TLS 1.3 has nothing else.
_CIPHERS_TLS12 = "ECDHE+AESGCM:ECDHE+CHACHA20"


class TlsContexts:
    """Contexts for dials and for accepted connections, of the files as they are now (SEC-5)."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = CertificateFiles("peer", files, _load_both)

    def client(self) -> ssl.SSLContext:
        """Return the context for a dial; OSError if there has never been a good one."""
        return self.files.current()[0]

    def server(self) -> ssl.SSLContext:
        """Return the context for a connection that was accepted; it demands a certificate."""
        return self.files.current()[1]


def _load_both(files: TlsFiles) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return _load(files, ssl.PROTOCOL_TLS_CLIENT), _load(files, ssl.PROTOCOL_TLS_SERVER)


def _load(files: TlsFiles, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS_TLS12)
    context.set_alpn_protocols([ALPN])
    load_chain(context, files, "peer_tls")
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    # The authority may be an intermediate one.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if protocol == ssl.PROTOCOL_TLS_CLIENT:
        # The name must be among the alternative names (SEC-4).
        context.hostname_checks_common_name = False
    return context


def names_in_certificate(certificate: Mapping[str, Any] | None) -> set[str]:
    """Return the alternative names (DNS names, addresses) of a verified certificate, in the form
    of SSLSocket.getpeercert."""
    names = (certificate or {}).get("subjectAltName", ())
    return {str(name) for kind, name in names if kind in ("DNS", "IP Address")}


def is_member_certificate(names: Iterable[str], node: NodeId) -> bool:
    """Tell whether a certificate with these names is the member's: its name, or a DNS name whose
    first label is its name (the pod of a StatefulSet).  Wildcards never count.
    """
    return any(name == node or name.startswith(f"{node}.") for name in names)


def secret_metadata(secret: str) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata a dialling member shows."""
    return ((SECRET_KEY, secret.encode()),) if secret else ()


def is_secret_right(metadata: Iterable[tuple[str, bytes]], secret: str) -> bool:
    """Compare in constant time (SEC-8); always true when no secret is asked for."""
    if not secret:
        return True
    shown = b""
    for key, value in metadata:
        if key == SECRET_KEY:
            shown = value
    return hmac.compare_digest(shown, secret.encode())
