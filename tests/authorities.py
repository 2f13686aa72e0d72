"""Certificates for tests of TLS: an authority, what it issues, files as the kubelet swaps them."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Pair:
    """PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Issues certificates; authorities of one name have the same subject, as after a rotation.

    One with an issuer is an intermediate one.
    """

    def __init__(self, name: str = "authority", issuer: Authority | None = None) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (issuer or self)._build(self._name, self._key, (), 3600, is_authority=True)
        self.certificate = made.public_bytes(serialization.Encoding.PEM)

    def issue(self, *names: str, seconds: float = 3600) -> Pair:
        """A certificate for these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        made = self._build(subject, key, names, seconds)
        return Pair(made.public_bytes(serialization.Encoding.PEM), private)

    def _build(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: Sequence[str],
        seconds: float,
        *,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(seconds=seconds))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .add_extension(identifier, critical=False)
        )
        if names:
            found = x509.SubjectAlternativeName([_name(name) for name in names])
            builder = builder.add_extension(found, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Mounted:
    """A Secret as a volume: files are links through `..data`, which is swapped as a whole."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._generation = 0
        folder.mkdir(parents=True)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def swap(self, **files: bytes) -> None:
        """Put all files in place at once; `tls_crt` is tls.crt."""
        self._generation += 1
        behind = self.folder / f"..{self._generation}"
        behind.mkdir()
        for name, data in files.items():
            (behind / name.replace("_", ".")).write_bytes(data)
        link = self.folder / "..data_tmp"
        link.symlink_to(behind.name)
        link.replace(self.folder / "..data")
        for name in files:
            shown = self.folder / name.replace("_", ".")
            if not shown.is_symlink():
                shown.symlink_to(Path("..data") / shown.name)

    def swap_pair(self, pair: Pair, *authorities: bytes) -> None:
        """Put a certificate, its key and a bundle in place."""
        self.swap(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=b"".join(authorities))
