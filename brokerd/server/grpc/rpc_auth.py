"""Who calls: a password or a token in the metadata of a gRPC call, or the operator by its
certificate; and what the caller's tags allow.
"""

from __future__ import annotations

import functools
import ipaddress
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

import grpc

from brokerd.core.catalog.identity import Identity
from brokerd.server.access import auth, login_records, operator_login
from brokerd.server.access.password_checker import NotChecked
from brokerd.server.catalog.audit import Author
from brokerd.server.grpc import rpc_errors
from brokerd.server.grpc.rpc_errors import CallRefused

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_state import CatalogState
    from brokerd.server.access.authentication import Authenticator

#: Tags that may read everything through Admin, and that may change something (R-PERM-9).
READERS = frozenset({"administrator", "monitoring", "management", "policymaker"})
WRITERS = frozenset({"administrator"})
#: Peers whose reading is remembered: each call of a connection has the same.
PEERS_MAX = 4096


class HasMetadata(Protocol):
    """A context of a call, as far as its metadata goes."""

    def invocation_metadata(self) -> Any:
        """Return pairs of name and value."""
        ...


@dataclass(slots=True, frozen=True)
class Caller:
    """An authenticated caller."""

    identity: Identity
    #: By its certificate (ADR 21): no user of the catalog.
    is_operator: bool = False

    @property
    def user(self) -> str:
        """Return the name."""
        return self.identity.user

    @property
    def tags(self) -> frozenset[str]:
        """Return the tags at the time of the login."""
        return frozenset(self.identity.tags)


class Callers:
    """Tells who calls, and what they may; state: none of its own."""

    def __init__(self, authenticator: Authenticator, view: CatalogState) -> None:
        self._authenticator = authenticator
        self._view = view

    async def authenticate(
        self, context: grpc.aio.ServicerContext[Any, Any], needed: frozenset[str] | None
    ) -> Caller:
        """Return the caller; end the call if its login is refused, or it has none of the needed
        tags.
        """
        # The gRPC port asked before it read the body (ADR 18).
        caller: Caller | None = getattr(context, "caller", None)
        if caller is None:
            try:
                caller = await self.log_in(metadata_of(context), context.peer())
            except CallRefused as error:
                await rpc_errors.abort(context, error)
        if needed is not None and not needed & caller.tags:
            await _abort_without(context, caller, needed)
        return caller

    async def log_in(self, metadata: Mapping[str, str], peer: str) -> Caller:
        """Return who calls from there with this metadata; CallRefused if the login fails."""
        self._check_started()
        credentials = auth.header_credentials(metadata.get("authorization", ""))
        client = login_records.Client("grpc", peer_address(peer), peer_text(peer))
        try:
            verdict = await self._authenticator.authenticate(credentials, client)
        except NotChecked as error:
            raise CallRefused(grpc.StatusCode.UNAVAILABLE, str(error)) from error
        if verdict is None:
            raise CallRefused(
                grpc.StatusCode.UNAUTHENTICATED,
                "login refused: wrong user or password ('guest' only from the member's own "
                "machine); metadata is 'authorization: Basic <base64 of user:password>'",
            )
        return Caller(verdict)

    def log_in_operator(self, certificate: operator_login.OperatorCertificate, peer: str) -> Caller:
        """Return the operator, an administrator by its certificate alone; CallRefused if that is
        over.

        It needs no user: whatever becomes of users and passwords, it can set them right (ADR 21).
        """
        self._check_started()
        client = login_records.Client("grpc", peer_address(peer), peer_text(peer))
        records = self._authenticator.records
        if certificate.expires_s <= time.time():
            records.refuse(client, operator_login.NAME, login_records.EXPIRED)
            raise CallRefused(
                grpc.StatusCode.UNAUTHENTICATED,
                "login refused: the certificate of this connection has expired",
            )
        records.accept(client)
        return Caller(Identity(operator_login.NAME, tuple(WRITERS)), is_operator=True)

    def _check_started(self) -> None:
        if not self._view.cluster_id:
            # No users are known yet: a login could only be refused, and for the wrong reason.
            raise CallRefused(
                grpc.StatusCode.UNAVAILABLE,
                "this member is starting: it waits for a majority of the members",
            )

    async def check_tags(
        self, context: grpc.aio.ServicerContext[Any, Any], caller: Caller, needed: frozenset[str]
    ) -> None:
        """End a standing call whose caller has been deleted, or has none of the tags any more."""
        if caller.is_operator:
            return
        identity = caller.identity
        if identity.expires_ms is not None and identity.expires_ms <= time.time() * 1000:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "credential expired")
        if identity.is_gone(self._view) or not needed.intersection(identity.tags_in(self._view)):
            await _abort_without(context, caller, needed)


async def _abort_without(
    context: grpc.aio.ServicerContext[Any, Any], caller: Caller, needed: frozenset[str]
) -> None:
    await context.abort(
        grpc.StatusCode.PERMISSION_DENIED,
        f"user '{caller.user}' needs one of the tags {', '.join(sorted(needed))}",
    )


def author_of(context: Any) -> Author:
    """Return on whose behalf a call that has been let in makes changes."""
    caller: Caller | None = getattr(context, "caller", None)
    address = peer_text(context.peer())
    return Author("?" if caller is None else caller.user, "grpc", address)


def metadata_of(context: HasMetadata) -> dict[str, str]:
    """Return the call's metadata as text; of names that come twice, the last counts."""
    pairs = context.invocation_metadata() or ()
    return {
        key: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        for key, value in pairs
    }


@functools.lru_cache(PEERS_MAX)
def peer_text(peer: str) -> str:
    """Return gRPC's peer string as people read it: 127.0.0.1:5000, [::1]:5000."""
    address = peer_address(peer)
    return f"[{address}]:{peer_port(peer)}" if ":" in address else f"{address}:{peer_port(peer)}"


def peer_port(peer: str) -> int:
    """Return the port in gRPC's peer string, 0 where there is none."""
    port = peer.rpartition(":")[2]
    return int(port) if port.isdecimal() else 0


@functools.lru_cache(PEERS_MAX)
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
