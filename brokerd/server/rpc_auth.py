"""Who calls: Basic credentials in the metadata of a gRPC call, and what the caller's tags allow."""

from __future__ import annotations

import base64
import binascii
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import grpc

from brokerd.server import admission, auth

if TYPE_CHECKING:
    from brokerd.server.broker import Broker

#: Tags that may read everything through Admin, and that may change something (R-PERM-9).
READERS = frozenset({"administrator", "monitoring", "management", "policymaker"})
WRITERS = frozenset({"administrator"})


@dataclass(slots=True, frozen=True)
class Caller:
    """An authenticated caller."""

    user: str
    tags: frozenset[str]


async def authenticate(
    broker: Broker, context: grpc.aio.ServicerContext[Any, Any], needed: frozenset[str] | None
) -> Caller:
    """Return who calls; end the call if that is nobody, or nobody with one of the needed tags."""
    if not broker.view.cluster_id:
        # No users are known yet: a login could only be refused, and for the wrong reason.
        await context.abort(
            grpc.StatusCode.UNAVAILABLE,
            "this member is starting: it waits for a majority of the members",
        )
    credentials = parse_basic(metadata_of(context).get("authorization", ""))
    verdict = await admission.authenticate(broker, credentials, peer_address(context.peer()))
    if verdict is None:
        await context.abort(
            grpc.StatusCode.UNAUTHENTICATED,
            "login refused: send metadata 'authorization: Basic <base64 of user:password>' of a "
            "user of this cluster ('guest' only from the member's own machine)",
        )
        raise AssertionError("abort does not return")
    user, tags = verdict
    caller = Caller(user, frozenset(tags))
    if needed is not None and not needed & caller.tags:
        await context.abort(
            grpc.StatusCode.PERMISSION_DENIED,
            f"user '{user}' needs one of the tags {', '.join(sorted(needed))}",
        )
    return caller


def metadata_of(context: grpc.aio.ServicerContext[Any, Any]) -> dict[str, str]:
    """Return the call's metadata as text; of names that come twice, the last counts."""
    pairs = context.invocation_metadata() or ()
    return {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, value in pairs
    }


def parse_basic(header: str) -> auth.Credentials | None:
    """Return the credentials of an authorization header (RFC 7617)."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        text = base64.b64decode(token.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    user, colon, password = text.partition(":")
    return auth.credentials(user, password) if colon else None


def peer_address(peer: str) -> str:
    """Return the address in gRPC's peer string: ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000, unix:."""
    kind, _, rest = unquote(peer).partition(":")
    if kind == "unix":
        return "127.0.0.1"
    host = rest.rpartition(":")[0].strip("[]")
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return "0.0.0.0"
