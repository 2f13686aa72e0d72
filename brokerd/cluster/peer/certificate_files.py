"""Certificates that rotate without a restart (SEC-5): TLS contexts of the files as they are now.

Code that is about to shake hands asks for `current()`; it looks at the files and makes new contexts
when they changed.  No clock and no watching task: without a handshake no certificate is needed.
For security.py (peers) and server/access/tls_listener.py (clients); metrics.py shows what is
loaded.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from brokerd.cluster.config import TlsFiles

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: A chain of certificates has some kilobytes.
CERTIFICATE_BYTES_MAX = 1024 * 1024


class UnusableFiles(OSError):
    """Certificate files cannot be used; the text says which, and what to do."""


def load_chain(context: ssl.SSLContext, files: TlsFiles, setting: str) -> None:
    """Have a context show a certificate; raises UnusableFiles.

    setting: the section that names the files.
    """
    for name, path in (("cert_file", files.certificate), ("key_file", files.key)):
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise UnusableFiles(f"cannot read {setting}.{name} {path}: {error.strerror}") from error
    try:
        context.load_cert_chain(files.certificate, files.key)
    except OSError as error:
        if files.key == files.certificate:
            advice = f"is its private key in it, too?  If not, set {setting}.key_file"
        else:
            advice = f"{setting}.key_file {files.key} must hold its private key (PEM)"
        raise UnusableFiles(
            f"cannot use the certificate {files.certificate}: {error}; {advice}"
        ) from error


@dataclass(slots=True)
class _Loaded(Generic[T]):
    made: T
    expires_s: float | None


class CertificateFiles(Generic[T]):
    """What `load` makes of the files: contexts.

    State: what was made last, and what the files looked like then.  A rotation that is half done,
    or that leaves something unreadable, leaves the last in force.  Connections that stand keep what
    they were made with.
    """

    def __init__(self, listener: str, files: TlsFiles, load: Callable[[TlsFiles], T]) -> None:
        self.listener = listener
        #: Why the files as they are now cannot be used; empty while they can.
        self.problem = ""
        self._files = files
        self._load = load
        self._seen: list[tuple[int, int, int]] | None = None
        self._loaded: _Loaded[T] | None = None

    def current(self) -> T:
        """Return what the newest good files make; OSError if there have never been good ones."""
        seen = self._look()
        if seen != self._seen or self._loaded is None:
            # Also of files that are no good: they are complained of once, and may change again.
            self._seen = seen
            try:
                self._renew()
            except (OSError, ValueError) as error:
                self.problem = str(error) or type(error).__name__
                if self._loaded is None:
                    raise UnusableFiles(self.problem) from error
                logger.warning(
                    "cannot use the certificate files, keeping the old listener=%s file=%s: %s",
                    self.listener,
                    self._files.certificate,
                    self.problem,
                )
        assert self._loaded is not None
        return self._loaded.made

    def expires_s(self) -> float | None:
        """Return when what is in force expires, in seconds since 1970; None: not known."""
        try:
            self.current()
        except OSError:
            return None
        return None if self._loaded is None else self._loaded.expires_s

    def _renew(self) -> None:
        is_first = self._loaded is None
        made = self._load(self._files)
        self._loaded = _Loaded(made, _expiry_s(self._files.certificate))
        self.problem = ""
        if not is_first:
            logger.info(
                "certificate files loaded anew listener=%s file=%s",
                self.listener,
                self._files.certificate,
            )

    def _look(self) -> list[tuple[int, int, int]]:
        """Return what the files look like; nothing if one is not there."""
        files = self._files
        try:
            found = [os.stat(path) for path in (files.certificate, files.key, files.ca) if path]
        except OSError:
            return []
        return [(state.st_ino, state.st_mtime_ns, state.st_size) for state in found]


def _expiry_s(path: str) -> float | None:
    """Return when the first certificate of a file expires; it is for metrics only."""
    # Only members with certificates pay for the import.
    from cryptography import x509

    try:
        with Path(path).open("rb") as file:
            certificate = x509.load_pem_x509_certificate(file.read(CERTIFICATE_BYTES_MAX))
    except (OSError, ValueError):
        return None
    return certificate.not_valid_after_utc.timestamp()
