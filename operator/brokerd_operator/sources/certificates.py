"""The CA and the certificates that the operator makes for a BrokerCluster.

design/operator.md §5.10.

Keys are ECDSA P-256. Makes and reads them; when that is due is decided in reconcile/rotation.py.
For the Kubernetes driver.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from brokerd_operator.manifests.secrets import Certificate
from brokerd_operator.reconcile.rotation import Authority, Lifetimes, Validity

LIFETIMES = Lifetimes()
#: The operator's own; in memory only, so that a short life costs nothing.
OPERATOR_LIFE = datetime.timedelta(hours=24)
#: What makes a certificate the operator's (brokerd/server/access/operator_login.py).
OPERATOR_IDENTITY = "brokerd://operator"
#: Clocks of nodes differ; at most a tenth of the life.
BACKDATED = datetime.timedelta(minutes=10)
#: Certificates of a bundle that are looked at.
BUNDLE_MAX = 64

#: What reading of something that is no certificate or key raises, cryptography's own included.
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)


class Unreadable(Exception):
    """This is no certificate, no key, or they do not belong together; the text says which."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate that was read, and found to fit its key."""

    validity: Validity
    names: frozenset[str]
    certificate: x509.Certificate


def make_ca(
    name: str, life_s: float = LIFETIMES.authority_s, now_s: float | None = None
) -> tuple[bytes, bytes]:
    """Certificate and key of a new CA, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    life = datetime.timedelta(seconds=life_s)
    # Authorities that follow each other have one name; the key's identifier tells them apart.
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _builder(subject, subject, key.public_key(), life, now_s)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM), _pem(key)


def make_certificate(
    ca: bytes,
    ca_key: bytes,
    names: Iterable[str],
    life_s: float = LIFETIMES.certificate_s,
    now_s: float | None = None,
) -> Certificate:
    """A certificate for servers and clients of these DNS names or addresses; it does not outlive
    the CA."""
    issuer = x509.load_pem_x509_certificate(ca)
    issuer_key = _issuer_key(ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    hosts = list(names)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    usages = x509.ExtendedKeyUsage(
        [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    )
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    life = min(datetime.timedelta(seconds=life_s), issuer.not_valid_after_utc - _time(now_s))
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), life, now_s)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(host) for host in hosts]), critical=False)
        .add_extension(usages, critical=False)
        .add_extension(authority, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return Certificate(certificate.public_bytes(serialization.Encoding.PEM), _pem(key), ca)


def read_pair(certificate: bytes, key: bytes) -> Pair:
    """Read a certificate, or the first of a chain, and see that the key is its own."""
    if not certificate.strip():
        raise Unreadable("there is no certificate")
    try:
        found = x509.load_pem_x509_certificate(certificate)
        public = _public_bytes(found.public_key())
        names = _names(found)
    except _UNREADABLE as error:
        raise Unreadable("the certificate cannot be read") from error
    if not key.strip():
        raise Unreadable("there is no key")
    try:
        private = serialization.load_pem_private_key(key, None)
    except _UNREADABLE as error:
        raise Unreadable("the key cannot be read") from error
    if _public_bytes(private.public_key()) != public:
        raise Unreadable("the key is not the certificate's")
    return Pair(_validity(found), names, found)


def read_authority(certificate: bytes, key: bytes) -> Authority:
    """Read a CA that must be able to issue."""
    pair = read_pair(certificate, key)
    try:
        _issuer_key(key)
    except ValueError as error:
        raise Unreadable(str(error)) from error
    if not _is_authority(pair.certificate):
        raise Unreadable("the certificate is not an authority's")
    return _authority(pair.certificate)


def read_bundle(data: bytes) -> tuple[Authority, ...]:
    """Authorities of a bundle; none if it cannot be read."""
    try:
        found = x509.load_pem_x509_certificates(data) if data.strip() else []
    except _UNREADABLE:
        return ()
    return tuple(_authority(item) for item in found[:BUNDLE_MAX] if _is_authority(item))


def issuer_of(pair: Pair, authorities: Iterable[Authority]) -> bytes:
    """Which of these issued a certificate; empty if none did."""
    for authority in authorities:
        try:
            pair.certificate.verify_directly_issued_by(
                x509.load_pem_x509_certificate(authority.pem)
            )
        except (InvalidSignature, *_UNREADABLE):
            continue
        return authority.pem
    return b""


def _authority(certificate: x509.Certificate) -> Authority:
    return Authority(certificate.public_bytes(serialization.Encoding.PEM), _validity(certificate))


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, *_UNREADABLE):
        return False


def _validity(certificate: x509.Certificate) -> Validity:
    return Validity(
        certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    )


def _names(certificate: x509.Certificate) -> frozenset[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(
        [
            *found.get_values_for_type(x509.DNSName),
            *map(str, found.get_values_for_type(x509.IPAddress)),
        ]
    )


def _public_bytes(key: object) -> bytes:
    try:
        return key.public_bytes(  # type: ignore[attr-defined,no-any-return]
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    except AttributeError as error:
        raise ValueError("not a key of a certificate") from error


def make_operator_certificate(
    ca: bytes,
    ca_key: bytes,
    life: datetime.timedelta = OPERATOR_LIFE,
    now_s: float | None = None,
) -> Certificate:
    """The operator's own, for its calls to the members' gRPC port (ADR 21).

    Its only name is one that no member's certificate has, and it can serve nothing.
    """
    issuer = x509.load_pem_x509_certificate(ca)
    issuer_key = _issuer_key(ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator.brokerd.internal")])
    name = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(OPERATOR_IDENTITY)])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), life, now_s)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(name, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(authority, critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return Certificate(certificate.public_bytes(serialization.Encoding.PEM), _pem(key), ca)


def _issuer_key(ca_key: bytes) -> ec.EllipticCurvePrivateKey:
    found = serialization.load_pem_private_key(ca_key, None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise ValueError("the key of the CA is not an ECDSA key")
    return found


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    life: datetime.timedelta,
    now_s: float | None = None,
) -> x509.CertificateBuilder:
    now = _time(now_s)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - min(BACKDATED, life / 10))
        .not_valid_after(now + life)
    )


def _time(now_s: float | None) -> datetime.datetime:
    if now_s is None:
        return datetime.datetime.now(datetime.UTC)
    return datetime.datetime.fromtimestamp(now_s, datetime.UTC)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
