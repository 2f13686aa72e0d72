"""An authority, a server's and a client's certificate, made anew for each run.

For TLS tests of the client suites; the files are called what the suites expect by their runner.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID


@dataclass(slots=True)
class Certificates:
    """PEM files."""

    authority: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path


def make(folder: Path) -> Certificates:
    """Write all files below `folder`; RSA, because suites of 2017 know nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    authority_key, authority = _authority()
    found = Certificates(*(folder / f"{name}.pem" for name in ("ca", "server", "key", "c", "ck")))
    found.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    for name, file, key_file in (
        ("localhost", found.server, found.server_key),
        ("client", found.client, found.client_key),
    ):
        key = rsa.generate_private_key(65537, 2048)
        file.write_bytes(
            _signed(name, key, authority, authority_key).public_bytes(serialization.Encoding.PEM)
        )
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
    return found


def _builder(name: str) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=2))
    )


def _authority() -> tuple[rsa.RSAPrivateKey, x509.Certificate]:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test run")])
    made = (
        _builder("authority of a test run")
        .issuer_name(name)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, made


def _signed(
    name: str, key: rsa.RSAPrivateKey, authority: x509.Certificate, by: rsa.RSAPrivateKey
) -> x509.Certificate:
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    return (
        _builder(name)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(by, hashes.SHA256())
    )
