"""Why the certificates that members show are not taken, seen in a handshake with each of them.

Asked where no member can be asked anything: gRPC tells no cause apart from another. Sends nothing
but a handshake. For kubernetes_clusters.py.
"""

from __future__ import annotations

import asyncio
import ssl

from cryptography import x509

from brokerd_operator.broker.client import Target
from brokerd_operator.sources import serving_certificates

HANDSHAKE_TIMEOUT_S = 5.0


async def problem(target: Target) -> str:
    """What is wrong with the first member's certificate, and what it is; "" unless the certificate
    of every member is refused: one that does not answer may be well.
    """
    found = await refused(target)
    return found[target.addresses[0]] if found and len(found) == len(target.addresses) else ""


async def refused(target: Target) -> dict[str, str]:
    """Return what is wrong with certificates that are refused, by the member's address."""
    try:
        verifying = _context(target.ca or serving_certificates.system_authorities())
    except (ssl.SSLError, ValueError):
        # No member can be verified by that, so none is at fault.
        return {}
    found = await asyncio.gather(*(_refusal(item, verifying) for item in target.addresses))
    return {item: text for item, text in zip(target.addresses, found, strict=True) if text}


def _context(authorities: bytes) -> ssl.SSLContext:
    """As gRPC verifies: an intermediate authority that is named is trusted as well."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
    return context


async def _refusal(address: str, verifying: ssl.SSLContext) -> str:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        await _certificate(host, int(port), verifying)
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message.rstrip(".")
    except (OSError, TimeoutError):
        return ""
    else:
        return ""
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
    shown = ""
    try:
        if der := await _certificate(host, int(port), anything):
            shown = f" ({serving_certificates.shown(x509.load_der_x509_certificate(der))})"
    except (OSError, TimeoutError, ValueError):
        # It went meanwhile, or shows what cannot be read; that it is refused is known.
        pass
    return f"TLS certificate of {host}: {why}{shown}"


async def _certificate(host: str, port: int, context: ssl.SSLContext) -> bytes | None:
    """What a member shows, DER; raises as the handshake does."""
    async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
        _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host)
    found: ssl.SSLObject = writer.get_extra_info("ssl_object")
    shown = found.getpeercert(binary_form=True)
    # Not closed politely: a member that does not answer would be waited for.
    writer.transport.abort()
    return shown
