"""Passwords: how they are hashed, compared and presented (SEC-8..SEC-14, R-CON-5, R-CON-7).

Hash formats: `scrypt$<log2 n>$<salt>$<hash>` (base64), and RabbitMQ's salted SHA-256 and SHA-512
for imported users (SEC-14).  When they are checked is password_checker.py's.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
from dataclasses import dataclass

from brokerd.core.unauthenticated import parsed_address

#: Block size and parallelism of scrypt; with n = 2**15 one check needs 32 MiB (SEC-11).
_SCRYPT_R = 8
_SCRYPT_P = 1
#: Of RabbitMQ's hashes.
_SALT_BYTES = 4
#: Lengths over which a login is refused without hashing anything.
USER_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 4096
#: Longer tokens are not looked at; before tuning a frame of AMQP holds 8 KiB, and the headers of a
#: gRPC call no more.
TOKEN_BYTES_MAX = 16 * 1024
#: A JSON Web Token: three parts in base64url of which the first is a JSON object; the last may be
#: missing, so that an unsigned one is refused as what it is.
_TOKEN = re.compile(r"e[yw][A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*", re.ASCII)


@dataclass(slots=True, frozen=True)
class Credentials:
    """What a client presented; never shown."""

    user: str
    password: str

    @property
    def is_token(self) -> bool:
        """Tell whether what stands in the place of a password is a token."""
        return is_token(self.password)

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, password=***)"


def hash_password(password: str, log2_n: int, salt: bytes | None = None) -> str:
    """Return the scrypt form of a password."""
    salt = os.urandom(16) if salt is None else salt
    digest = hashlib.scrypt(
        password.encode("utf-8", "surrogateescape"),
        salt=salt,
        n=1 << log2_n,
        r=_SCRYPT_R,
        p=_SCRYPT_P,
        maxmem=256 << log2_n << 3,
        dklen=32,
    )
    return f"scrypt${log2_n}${_b64(salt)}${_b64(digest)}"


def hash_for_rabbitmq(password: str, salt: bytes | None = None) -> str:
    """Return RabbitMQ's salted SHA-256 of a password, as imported users have it."""
    salt = os.urandom(_SALT_BYTES) if salt is None else salt
    digest = hashlib.sha256(salt + password.encode("utf-8", "surrogateescape")).digest()
    return f"rabbitmq-sha256${_b64(salt + digest)}"


def check_password(stored: str, password: str) -> bool:
    """Compare in constant time (SEC-8); an unknown format never matches.

    Of several hashes with a space between them (after a rotation, ADR 21) any may match.
    """
    return any(_matches(each, password) for each in stored.split(" "))


def _matches(stored: str, password: str) -> bool:
    scheme, _, rest = stored.partition("$")
    try:
        if scheme == "scrypt":
            log2_n, salt, digest = rest.split("$")
            made = hash_password(password, int(log2_n), base64.b64decode(salt))
            return hmac.compare_digest(made.rpartition("$")[2], digest)
        if scheme in ("rabbitmq-sha256", "rabbitmq-sha512"):
            raw = base64.b64decode(rest)
            function = hashlib.sha256 if scheme.endswith("256") else hashlib.sha512
            salted = raw[:_SALT_BYTES] + password.encode("utf-8", "surrogateescape")
            return hmac.compare_digest(function(salted).digest(), raw[_SALT_BYTES:])
    except (ValueError, TypeError):
        return False
    return False


def is_imported(stored: str) -> bool:
    """Tell whether this is a hash of RabbitMQ's, which costs an attacker next to nothing."""
    return stored.startswith("rabbitmq-")


def is_token(password: str) -> bool:
    """Tell whether a password is a JSON Web Token by its looks."""
    return password.startswith("e") and _TOKEN.fullmatch(password) is not None


def credentials(user: str, password: str) -> Credentials | None:
    """Return credentials of a sensible size, None for others; only a token needs no user."""
    user_size = len(user.encode("utf-8", "surrogateescape"))
    password_size = len(password.encode("utf-8", "surrogateescape"))
    if user_size > USER_BYTES_MAX or password_size > TOKEN_BYTES_MAX:
        return None
    if (not user or password_size > PASSWORD_BYTES_MAX) and not is_token(password):
        return None
    return Credentials(user, password)


def header_credentials(header: str) -> Credentials | None:
    """Return the credentials of an authorization header: Basic (RFC 7617), Bearer (RFC 6750)."""
    scheme, _, rest = header.partition(" ")
    rest = rest.strip()
    if scheme.lower() == "bearer":
        return credentials("", rest)
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(rest, validate=True).decode()
    except ValueError:
        return None
    user, colon, password = text.partition(":")
    return credentials(user, password) if colon else None


def is_loopback(address: str) -> bool:
    """Tell whether a peer address is of this machine (R-CON-7)."""
    parsed = parsed_address(address)
    return parsed is not None and parsed.is_loopback


def decoy(log2_n: int) -> str:
    """Return a hash that no password matches, and that costs as much as others to check."""
    return f"scrypt${log2_n}${_b64(bytes(16))}${_b64(bytes(32))}"


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()
