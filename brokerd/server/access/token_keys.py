"""The public keys that tokens are verified with: from files, or fetched from their issuer (JWKS).

Fetched keys are kept while the issuer is away.  They are asked for again when a token names one
that is not among them, at a bounded rate, and after an hour, so that a key which was withdrawn is
gone.  Used by tokens.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from brokerd import secret_files
from brokerd.config import ConfigError

log = logging.getLogger(__name__)

#: Bytes and keys that are read of an issuer's key document at most: an issuer has a few keys.
DOCUMENT_BYTES_MAX = 256 * 1024
KEYS_MAX = 100
#: Shortest time between two requests to the issuer: strangers choose the key that a token names.
REFRESH_S_MIN = 10.0
#: Age at which keys are fetched anew, beside the next login.
AGE_S_MAX = 3600.0
FETCH_S = 5.0
#: Shorter ones are no protection (RFC 7518 section 3.3), longer ones take milliseconds to check.
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
_EC_ALGORITHMS = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_RSA_ALGORITHMS = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"})

PublicKey = (
    rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | ed448.Ed448PublicKey
)


class IssuerAway(Exception):
    """The keys could not be fetched, and none are known; the text says why."""


@dataclass(slots=True, frozen=True)
class Key:
    """A public key, and the algorithms of signatures it can check: never a shared secret."""

    public: Any
    algorithms: frozenset[str]


def key_of(public: Any) -> Key | None:
    """Return what a key is good for, None for one that tokens are not verified with."""
    if isinstance(public, rsa.RSAPublicKey):
        is_sound = RSA_BITS_MIN <= public.key_size <= RSA_BITS_MAX
        return Key(public, _RSA_ALGORITHMS) if is_sound else None
    if isinstance(public, ec.EllipticCurvePublicKey):
        algorithm = _EC_ALGORITHMS.get(public.curve.name)
        return Key(public, frozenset({algorithm})) if algorithm else None
    if isinstance(public, ed25519.Ed25519PublicKey | ed448.Ed448PublicKey):
        return Key(public, frozenset({"EdDSA"}))
    return None


def read_pem(path: str) -> Key:
    """Return the public key (or that of the certificate) in a file; ConfigError."""
    try:
        text = secret_files.read_bounded(Path(path), DOCUMENT_BYTES_MAX)
        is_certificate = b"BEGIN CERTIFICATE" in text
        found = key_of(
            load_pem_x509_certificate(text).public_key()
            if is_certificate
            else load_pem_public_key(text)
        )
    except secret_files.SecretFileError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(f"{path}: no public key in PEM: {error}") from error
    if found is None:
        raise ConfigError(
            f"{path}: expected a key for RS256 ({RSA_BITS_MIN} to {RSA_BITS_MAX} bits), ES256 or "
            "EdDSA"
        )
    return found


def parse_jwks(text: bytes) -> dict[str, Key]:
    """Return the keys of a JWKS document (RFC 7517) by their ids; ValueError.

    What is for something else, or of a kind that is not taken, is left out.
    """
    try:
        document = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError("no list of keys")
    found: dict[str, Key] = {}
    for entry in entries[:KEYS_MAX]:
        if not isinstance(entry, dict) or entry.get("use", "sig") != "sig":
            continue
        key_id = entry.get("kid", "")
        try:
            key = key_of(jwt.PyJWK(entry).key)
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            continue
        if key is not None and isinstance(key_id, str):
            stated = entry.get("alg")
            if isinstance(stated, str) and stated in key.algorithms:
                key = Key(key.public, frozenset({stated}))
            found[key_id] = key
    return found


@dataclass(slots=True, frozen=True)
class Source:
    """Where keys come from; the fields without a word of their own are settings (config.py)."""

    #: Key id to PEM file.
    signing_keys: Mapping[str, str]
    jwks_url: str = ""
    #: Asked where the keys are (OpenID Connect Discovery), if jwks_url does not say.
    issuer: str = ""
    cacertfile: str = ""
    allow_http: bool = False
    #: Whose contents are shown to the issuer as a bearer token, read anew each time.
    token_file: str = ""

    @property
    def is_remote(self) -> bool:
        """Tell whether keys are fetched."""
        return bool(self.jwks_url or self.issuer)


class TokenKeys:
    """State: the keys, when they were asked for and when they came, the fetch under way."""

    def __init__(
        self,
        source: Source,
        is_url_allowed: Callable[[str, bool], bool],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """is_url_allowed(url, allow_http) tells whether keys may come from there; ConfigError where
        a file cannot be used.
        """
        self._source = source
        self._is_url_allowed = is_url_allowed
        self._clock_s = clock_s
        self._static = {name: read_pem(path) for name, path in source.signing_keys.items()}
        self._tls = _context(source.cacertfile)
        self._fetched: dict[str, Key] = {}
        self._asked_s = self._came_s = float("-inf")
        self._fetch: asyncio.Task[None] | None = None
        self._problem = ""

    async def find(self, key_id: str) -> Key | None:
        """Return a key, None where there is none of this id; IssuerAway.

        Without an id it is the only key there is.
        """
        found = self._known(key_id)
        if not self._source.is_remote:
            return found
        age_s = self._clock_s() - self._came_s
        if found is None:
            await self._refresh()
            found = self._known(key_id)
            if found is None and not self._fetched and self._problem:
                raise IssuerAway(self._problem)
        elif key_id not in self._static and age_s > AGE_S_MAX:
            # Beside: this login need not wait for it.
            self._begin()
        return found

    def _known(self, key_id: str) -> Key | None:
        if key_id:
            return self._static.get(key_id) or self._fetched.get(key_id)
        every = [*self._static.values(), *self._fetched.values()]
        return every[0] if len(every) == 1 else None

    async def _refresh(self) -> None:
        fetch = self._begin()
        if fetch is not None:
            # Other logins go on waiting for the keys if this client goes.
            await asyncio.shield(fetch)

    def _begin(self) -> asyncio.Task[None] | None:
        if self._fetch is None and self._clock_s() - self._asked_s >= REFRESH_S_MIN:
            self._asked_s = self._clock_s()
            self._fetch = asyncio.get_running_loop().create_task(self._fetch_keys())
            self._fetch.add_done_callback(self._ended)
        return self._fetch

    def _ended(self, _: asyncio.Task[None]) -> None:
        self._fetch = None

    async def _fetch_keys(self) -> None:
        try:
            async with asyncio.timeout(FETCH_S):
                keys = await self._ask()
        except (aiohttp.ClientError, OSError, ValueError, RecursionError) as error:
            self._problem = f"{type(error).__name__}: {error}"
            kept = f"; the {len(self._fetched)} known ones are kept" if self._fetched else ""
            log.error("keys of tokens could not be fetched: %s%s", self._problem, kept)
            return
        if keys.keys() != self._fetched.keys():
            log.info("keys of tokens: %s", ", ".join(sorted(map(repr, keys))) or "none")
        self._fetched, self._came_s, self._problem = keys, self._clock_s(), ""

    async def _ask(self) -> dict[str, Key]:
        source = self._source
        headers = {"Accept": "application/json, application/jwk-set+json"}
        if source.token_file:
            text = await asyncio.to_thread(secret_files.read, Path(source.token_file))
            headers["Authorization"] = f"Bearer {text}"
        async with aiohttp.ClientSession(headers=headers) as session:
            url = source.jwks_url
            if not url:
                discovery = source.issuer.rstrip("/") + "/.well-known/openid-configuration"
                document = json.loads(await self._get(session, discovery))
                url = document.get("jwks_uri", "") if isinstance(document, dict) else ""
                if not isinstance(url, str) or not self._is_url_allowed(url, source.allow_http):
                    raise ValueError(f"{discovery}: jwks_uri is {url!r}: expected https")
            keys = parse_jwks(await self._get(session, url))
        if not keys:
            raise ValueError(f"{url}: no key that tokens can be verified with")
        return keys

    async def _get(self, session: aiohttp.ClientSession, url: str) -> bytes:
        # Not where somebody else says: the address is the setting's.
        async with session.get(url, ssl=self._tls, allow_redirects=False) as answer:
            if answer.status != 200:
                raise ValueError(f"{url}: status {answer.status}")
            text = bytearray()
            async for part in answer.content.iter_chunked(65536):
                text += part
                if len(text) > DOCUMENT_BYTES_MAX:
                    raise ValueError(f"{url}: more than {DOCUMENT_BYTES_MAX} bytes")
            return bytes(text)


def _context(cacertfile: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=cacertfile or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cannot use the authority {cacertfile}: {error}") from error
