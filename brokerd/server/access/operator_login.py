"""The operator on the gRPC port: a client certificate with a reserved identity (ADR 21).

The TLS library has verified the certificate against `auth.operator_ca_file`; that the authority
signed it is not enough, since it signs the members' certificates too.  Used by rpc_connection.py
and rpc_auth.py.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The one alternative name of the operator's certificate; members' have DNS names only.
IDENTITY = "brokerd://operator"
#: What logs call such a caller; no user of the catalog.
NAME = "operator (certificate)"


@dataclass(slots=True, frozen=True)
class OperatorCertificate:
    """A connection's right to be the operator."""

    #: Unix time; a connection may outlive its certificate, the right does not.
    expires_s: float


def certificate_of(certificate: Mapping[str, Any] | None) -> OperatorCertificate | None:
    """Return the right that a verified certificate gives, in the form of SSLSocket.getpeercert.

    One that has further names is somebody else's as well, and gives none.
    """
    if not certificate or "notAfter" not in certificate:
        return None
    if tuple(certificate.get("subjectAltName", ())) != (("URI", IDENTITY),):
        return None
    return OperatorCertificate(ssl.cert_time_to_seconds(certificate["notAfter"]))
