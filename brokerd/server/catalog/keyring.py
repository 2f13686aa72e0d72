"""The keys under which secrets are written to the log, and what they seal and open (ADR 19).

AES-256-GCM with a random nonce.  What is sealed names its key by eight hexadecimal digits and is
bound to the object that holds it, so that it is worth nothing elsewhere.  The first key seals, all
of them open: that is how keys are rotated.  Used by sealed_parameters.py; app.py makes it.
Tokens of pages are signed under them, too (server/listings/page_tokens.py).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brokerd.federation.upstream import SEALED

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    from brokerd.config import BrokerConfig

log = logging.getLogger(__name__)

KEY_BYTES = 32
#: Keys and bytes of a key file: more than any rotation needs; a file that is something else is
#: noticed.
KEYS_MAX = 64
FILE_BYTES_MAX = 65_536
#: Key file beside the data of a lone member that has no configured key.
OWN_FILE = "secrets.key"
_PURPOSE = b"brokerd secrets at rest 1"
_SIGNING = b"brokerd page tokens 1"
_NONCE_BYTES = 12


class SealError(Exception):
    """A secret cannot be sealed or opened; the text says why, and never what it is."""


class Keyring:
    """Keys by id, the first of them for sealing.

    problem: why the keys that were asked for are not here; then nothing is sealed under others.
    can_seal: False where no key is the cluster's, only one that this member had for itself.
    """

    def __init__(self, keys: Sequence[bytes], problem: str = "", *, can_seal: bool = True) -> None:
        self._keys = {_id_of(key): key for key in keys}
        self._first = next(iter(self._keys), "") if can_seal and not problem else ""
        self._problem = problem

    @property
    def is_on(self) -> bool:
        """Tell whether secrets are to be sealed here; without any key they are kept as they are."""
        return bool(self._first or self._problem)

    def seal(self, text: str, about: str) -> str:
        """Return a text sealed under the first key, for one object."""
        if not self._first:
            raise SealError(self._problem)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = _cipher(self._keys[self._first]).encrypt(nonce, _bytes(text), _bytes(about))
        return f"{SEALED}{self._first}:{base64.urlsafe_b64encode(nonce + sealed).decode()}"

    def is_current(self, sealed: str) -> bool:
        """Tell whether a text is sealed under the first key."""
        return bool(self._first) and sealed.startswith(f"{SEALED}{self._first}:")

    def sign(self, data: bytes, cluster_id: str) -> bytes:
        """Return a signature under the first key.

        Where the cluster has no key of its own it is one of the cluster's id, which other clusters
        do not have and strangers may know.
        """
        key = self._keys[self._first] if self._first else _bytes(cluster_id)
        return _signature(key, data)

    def is_signed(self, data: bytes, signature: bytes, cluster_id: str) -> bool:
        """Tell whether a member of this cluster has signed this, with any of the keys."""
        keys = list(self._keys.values()) if self._first else [_bytes(cluster_id)]
        return any(hmac.compare_digest(_signature(key, data), signature) for key in keys)

    def open(self, sealed: str, about: str) -> str:
        """Return what was sealed for this object."""
        from cryptography.exceptions import InvalidTag

        name, _, text = sealed.removeprefix(SEALED).partition(":")
        key = self._keys.get(name)
        if key is None:
            raise SealError(f"it is encrypted with key {name[:8]}, which this member does not have")
        try:
            raw = base64.urlsafe_b64decode(text)
            opened = _cipher(key).decrypt(raw[:_NONCE_BYTES], raw[_NONCE_BYTES:], _bytes(about))
        except (InvalidTag, ValueError, binascii.Error) as error:
            raise SealError(f"it cannot be decrypted with key {name}: it was changed") from error
        return opened.decode("utf-8", "surrogateescape")


def _signature(key: bytes, data: bytes) -> bytes:
    return hmac.digest(hmac.digest(key, _SIGNING, "sha256"), data, "sha256")


def _cipher(key: bytes) -> AESGCM:
    # Most members never need it, and it takes as long to load as all else of a small program.
    from cryptography.hazmat.primitives.ciphers import aead

    return aead.AESGCM(key)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _id_of(key: bytes) -> str:
    return hashlib.sha256(_PURPOSE + key).hexdigest()[:8]


def load(config: BrokerConfig) -> Keyring:
    """Return the keys of a member: of the file, of the cluster's secret, its own.

    Whatever is wrong with them costs the links that need them, never the member.
    """
    keys: list[bytes] = []
    problem = ""
    if config.secrets.key_file:
        try:
            keys += parse(_read(Path(config.secrets.key_file)))
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            problem = f"secrets.key_file {config.secrets.key_file} cannot be used: {reason}"
            log.error("%s; passwords of federation cannot be stored or read", problem)
    if config.cluster.secret:
        keys.append(hmac.digest(_bytes(config.cluster.secret), _PURPOSE, "sha256"))
    own = config.data_dir / OWN_FILE
    is_alone = not (keys or problem or config.cluster.members or config.cluster.address)
    can_seal = bool(keys) or is_alone
    try:
        if is_alone:
            keys += _own(own)
        elif own.exists():
            keys += parse(_read(own))
    except (OSError, ValueError) as error:
        log.error("%s cannot be used: %s", own, error)
        problem = problem or (f"{own} cannot be used: {error}" if is_alone else "")
    return Keyring(keys, problem, can_seal=can_seal)


def _own(file: Path) -> list[bytes]:
    """Return a lone member's key, made at the first start.

    It lies beside the data, so it protects what is copied without it (a log, a snapshot, a
    backup of one of them), and not a disk that is taken as it is.
    """
    if not file.exists():
        text = base64.b64encode(os.urandom(KEY_BYTES)).decode()
        draft = file.with_name(f"{file.name}.new")
        draft.unlink(missing_ok=True)
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{text}\n")
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(file)
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return parse(_read(file))


def _read(file: Path) -> str:
    with file.open("rb") as stream:
        data = stream.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError("it is too large for a file of keys")
    return data.decode()


def parse(text: str) -> list[bytes]:
    """Return the keys of a file: one a line, 32 bytes in base64; lines with # are comments."""
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not 0 < len(lines) <= KEYS_MAX:
        raise ValueError(f"it must hold 1 to {KEYS_MAX} keys, one a line")
    keys = []
    for number, line in enumerate(lines, 1):
        try:
            key = base64.b64decode(line, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            # The line itself may be a key with a typing error in it.
            raise ValueError(f"key {number} is not {KEY_BYTES} bytes in base64")
        keys.append(key)
    return keys
