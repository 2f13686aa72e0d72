"""Whether a certificate that the user brings can serve members, seen before they get it.

Key, life, names and the chain to the authority, as the operator and clients will verify them. Says
what is wrong and what to do; reads no Secret. For cluster_certificates.py.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
import ssl
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import regex
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import ExtendedKeyUsageOID

from brokerd_operator.reconcile import rotation
from brokerd_operator.reconcile.rotation import Validity
from brokerd_operator.sources import certificates
from brokerd_operator.sources.certificates import Unreadable

#: Certificates between that of a member and the authority.
DEPTH_MAX = 8
#: Certificates of a file that are looked at; the system's authorities are some 150.
FILE_MAX = 512
#: Of a subject or an issuer in a message.
NAME_MAX = 128
_BLOCK = regex.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", regex.DOTALL)
_UNVERIFIED = (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError)


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was found; `problem` is empty where nothing is wrong."""

    validity: Validity | None
    #: Subject, issuer and end of its life; "" where it cannot be read.
    shown: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Trusted:
    """Who may have signed it: a Secret's ca.crt, or the system's authorities."""

    #: Name of the Secret; "" for the system's.
    secret: str
    pem: bytes


def inspect(
    certificate: bytes, key: bytes, trusted: Trusted, hosts: Iterable[str], now: float
) -> Inspection:
    """See whether members can show this certificate by all these names."""
    try:
        pair = certificates.read_pair(certificate, key)
    except Unreadable as error:
        return Inspection(None, _of_first(certificate), f"{error}: write both tls.crt and tls.key")
    text = shown(pair.certificate)
    problem = (
        _age(pair.validity, now)
        or _purpose(pair.certificate)
        or _missing_names(pair.names, hosts)
        or _chain(certificate, trusted, now)
    )
    return Inspection(pair.validity, text, problem)


def _age(validity: Validity, now: float) -> str:
    if validity.not_after <= now:
        return f"it expired at {rotation.date(validity)}: renew it"
    if validity.not_before > now:
        return f"it is not valid before {rotation.time_text(validity.not_before)}"
    return ""


def _purpose(certificate: x509.Certificate) -> str:
    try:
        usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (x509.ExtensionNotFound, ValueError):
        return ""
    allowed = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
    if any(item in usage for item in allowed):
        return ""
    return "it is not for servers: issue it with the extended key usage serverAuth"


def _missing_names(names: frozenset[str], hosts: Iterable[str]) -> str:
    missing = [host for host in hosts if not covers(names, host)]
    if not missing:
        return ""
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        f"it does not name {missing[0]}{more}, by which the operator reaches members:"
        " issue it for each of them"
    )


def covers(names: Iterable[str], host: str) -> bool:
    """Whether a certificate's names hold for a host; `*` stands for its first label."""
    wanted = host.lower()
    known = {name.lower().rstrip(".") for name in names}
    return wanted in known or f"*.{wanted.partition('.')[2]}" in known


def _chain(certificate: bytes, trusted: Trusted, now: float) -> str:
    """Follow the issuers up to one that is trusted."""
    where = f"ca.crt of Secret {trusted.secret}" if trusted.secret else "the system's authorities"
    anchors = _read(trusted.pem)
    if not anchors:
        return f"{where} holds no certificate: put its authority there"
    current, *others = _read(certificate)
    if current in anchors:
        return ""
    for _ in range(DEPTH_MAX):
        issuer = _issuer(current, anchors, now)
        if issuer is not None:
            return ""
        following = _issuer(current, others, now)
        if following is None:
            return (
                f"its issuer {_name(current.issuer)} is neither in {where} nor behind the"
                " certificate in tls.crt: append the intermediate certificate to tls.crt, or"
                " name the Secret of its authority as spec.tls.caSecretName"
            )
        current = following
    return "its chain is too long"


def _issuer(
    certificate: x509.Certificate, among: Sequence[x509.Certificate], now: float
) -> x509.Certificate | None:
    for candidate in among:
        if candidate.subject != certificate.issuer or candidate is certificate:
            continue
        if candidate.not_valid_after_utc.timestamp() <= now:
            continue
        try:
            certificate.verify_directly_issued_by(candidate)
        except _UNVERIFIED:
            continue
        return candidate
    return None


@functools.lru_cache(maxsize=32)
def _read(data: bytes) -> tuple[x509.Certificate, ...]:
    """Certificates of a file, without those that cannot be read: the system's have old ones whose
    numbers or signatures no library takes any more."""
    found = []
    with warnings.catch_warnings(action="ignore"):
        for block in _BLOCK.findall(data)[:FILE_MAX]:
            with contextlib.suppress(ValueError, TypeError):
                found.append(x509.load_pem_x509_certificate(block))
    return tuple(found)


def _of_first(certificate: bytes) -> str:
    found = _read(certificate)
    return shown(found[0]) if found else ""


def shown(certificate: x509.Certificate) -> str:
    """Subject, issuer and end of its life."""
    end = rotation.time_text(certificate.not_valid_after_utc.timestamp())
    return (
        f"subject {_name(certificate.subject)}, issuer {_name(certificate.issuer)}, expires {end}"
    )


def _name(name: x509.Name) -> str:
    try:
        text = name.rfc4514_string()
    except ValueError:
        return "(unreadable)"
    return text[:NAME_MAX] or "(empty)"


@functools.cache
def system_authorities() -> bytes:
    """PEM of what is trusted where no authority is named, as gRPC takes it."""
    paths = ssl.get_default_verify_paths()
    for path in (paths.cafile, *_SYSTEM_FILES):
        if path is not None and Path(path).is_file():
            return Path(path).read_bytes()
    return pkgutil.get_data("grpc", "_cython/_credentials/roots.pem") or b""


#: Where distributions have them (gRPC's load_system_roots_linux.cc).
_SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/tls/cacert.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
)
