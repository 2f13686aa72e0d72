"""TLS contexts of the listeners for clients: AMQPS and gRPC.  Used by listener.py, grpc_server.py.

What a client meets in a handshake is made in one place, of the files as they are at that moment.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from brokerd.cluster.config import TlsFiles
from brokerd.cluster.peer.certificate_files import CertificateFiles, load_chain
from brokerd.config import TlsConfig


class ListenerContext(ssl.SSLContext):
    """Hands every handshake to the context of the newest files (SEC-5).

    asyncio and uvloop take one context per listening socket and ask it for one TLS object per
    connection.  Loading new files into that context would not do: an authority never leaves one.
    """

    files: CertificateFiles[ssl.SSLContext]

    def __new__(cls, files: CertificateFiles[ssl.SSLContext]) -> ListenerContext:
        made = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        made.files = files
        return made

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Begin a handshake."""
        context = self.files.current()
        return context.wrap_bio(incoming, outgoing, server_side, server_hostname, session)


def listener_context(
    listener: str, tls: TlsConfig, client_ca_file: str = "", protocols: Sequence[str] = ()
) -> ListenerContext:
    """Return the context of a listener: clients may show a certificate of `client_ca_file`, and
    speak one of `protocols` (ALPN); OSError if the files cannot be used."""

    def load(files: TlsFiles) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if protocols:
            context.set_alpn_protocols(protocols)
        load_chain(context, files, "tls")
        if files.ca:
            try:
                context.load_verify_locations(files.ca)
            except OSError as error:
                text = f"cannot use auth.operator_ca_file {files.ca}: {error}"
                raise OSError(text) from error
            # A client without a certificate logs in with a password (ADR 21); the CA may be an
            # intermediate.
            context.verify_mode = ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    files = TlsFiles(tls.cert_file, tls.key_file or tls.cert_file, client_ca_file)
    found = CertificateFiles(listener, files, load)
    found.current()
    return ListenerContext(found)


class ListenError(Exception):
    """A port cannot be listened on; the text says which and what to do."""
