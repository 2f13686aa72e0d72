"""Who may log in: password hashing and checking (SEC-8..SEC-14, R-CON-5, R-CON-7).

Hashing costs tens of milliseconds of CPU, so it runs in a pool of two threads (SEC-12) and
successful checks are remembered for a short time (SEC-13).  Hash formats: `scrypt$<log2
n>$<salt>$<hash>`
(base64), and RabbitMQ's salted SHA-256 and SHA-512 for imported users (SEC-14).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

#: Block size and parallelism of scrypt; with n = 2**15 one check needs 32 MiB (SEC-11).
_SCRYPT_R = 8
_SCRYPT_P = 1
#: How long a successful check is remembered (SEC-13), and for how many credentials at most.
CACHE_SECONDS = 30.0
CACHE_ENTRIES_MAX = 1024
#: Lengths over which a login is refused without hashing anything.
USER_BYTES_MAX = 255
PASSWORD_BYTES_MAX = 4096
#: Logins that may wait for a hashing thread; more are refused (a flood must not build a backlog).
WAITING_MAX = 512


@dataclass(slots=True, frozen=True)
class Credentials:
    """What a client presented; never shown."""

    user: str
    password: str

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


def check_password(stored: str, password: str) -> bool:
    """Compare in constant time (SEC-8); an unknown format never matches."""
    scheme, _, rest = stored.partition("$")
    try:
        if scheme == "scrypt":
            log2_n, salt, digest = rest.split("$")
            made = hash_password(password, int(log2_n), base64.b64decode(salt))
            return hmac.compare_digest(made.rpartition("$")[2], digest)
        if scheme in ("rabbitmq-sha256", "rabbitmq-sha512"):
            raw = base64.b64decode(rest)
            function = hashlib.sha256 if scheme.endswith("256") else hashlib.sha512
            made_raw = function(raw[:4] + password.encode("utf-8", "surrogateescape")).digest()
            return hmac.compare_digest(made_raw, raw[4:])
    except (ValueError, TypeError):
        return False
    return False


def is_imported(stored: str) -> bool:
    """Tell whether this is a hash of RabbitMQ's, which costs an attacker next to nothing."""
    return stored.startswith("rabbitmq-")


def credentials(user: str, password: str) -> Credentials | None:
    """Return credentials of a sensible size, None for others."""
    user_size = len(user.encode("utf-8", "surrogateescape"))
    password_size = len(password.encode("utf-8", "surrogateescape"))
    if not user or user_size > USER_BYTES_MAX or password_size > PASSWORD_BYTES_MAX:
        return None
    return Credentials(user, password)


def is_loopback(address: str) -> bool:
    """Tell whether a peer address is of this machine (R-CON-7)."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


class PasswordChecker:
    """Checks passwords off the event loop.

    Owns the thread pool and the cache of recent successes: keyed by an HMAC with a random key, so
    that neither passwords nor anything to guess them from stays in memory.
    """

    def __init__(self, log2_n: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=2, thread_name_prefix="auth")
        self._key = os.urandom(32)
        self._cache: dict[bytes, float] = {}
        self._waiting = 0
        #: Users whose imported hash is being replaced (SEC-14): once each, however many log in.
        self._renewals: set[str] = set()
        self._log2_n = log2_n
        #: Checked when the user is unknown, so that both cases take the same time (SEC-9).  Its
        #: hash matches no password, hence needs no making.
        self._decoy = f"scrypt${log2_n}${_b64(bytes(16))}${_b64(bytes(32))}"

    async def hash(self, password: str) -> str:
        """Return the form to store."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, hash_password, password, self._log2_n)

    async def check(self, stored: str | None, password: str) -> bool:
        """Check against the stored form; None (unknown user) takes as long and is False."""
        token = hmac.digest(
            self._key, f"{stored}\0{password}".encode("utf-8", "surrogateescape"), "sha256"
        )
        now = time.monotonic()
        if stored is not None and self._cache.get(token, 0.0) > now:
            return True
        if self._waiting >= WAITING_MAX:
            return False
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            matches = await loop.run_in_executor(
                self._pool, check_password, stored or self._decoy, password
            )
        finally:
            self._waiting -= 1
        if stored is None or not matches:
            return False
        if len(self._cache) >= CACHE_ENTRIES_MAX:
            self._cache.clear()
        self._cache[token] = now + CACHE_SECONDS
        return True

    def begin_renewal(self, user: str) -> bool:
        """Tell whether nobody replaces this user's hash yet; from now on somebody does."""
        if user in self._renewals:
            return False
        self._renewals.add(user)
        return True

    def end_renewal(self, user: str) -> None:
        """The user's hash is replaced, or could not be."""
        self._renewals.discard(user)

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
