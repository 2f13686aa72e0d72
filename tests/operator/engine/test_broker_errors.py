"""What gRPC says of a broken connection, as a condition and a person read it."""

from __future__ import annotations

import grpc
import pytest
from brokerd_operator.broker import errors
from grpc.aio import AioRpcError, Metadata


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:5: Failed to "
            "connect to remote host: connect: Connection refused (111)",
            "m:5680: cannot be reached",
        ),
        (
            "errors resolving m:5680: [field:hostname lookup error:address lookup failed for "
            "m:5680: Domain name not found]",
            "m:5680: cannot be found (DNS)",
        ),
        ("Socket closed", "m:5680: closed the connection"),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:5: Ssl "
            "handshake failed: CERTIFICATE_VERIFY_FAILED",
            "m:5680: no TLS connection: is this its gRPC port, and does the authority fit?",
        ),
        ("the catalog has no leader", "m:5680: the catalog has no leader"),
        ("", "m:5680: unavailable"),
    ],
)
def test_errors_of_connections_are_sentences(details: str, said: str) -> None:
    error = AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details)
    found = errors.translate(error, "m:5680")
    assert (type(found), str(found)) == (errors.BrokerUnreachable, said)
