"""Client of a broker's Admin service (design/operator.md §12).

Turns actions into operations and topology messages into observed objects; knows several addresses
of one cluster and goes on to the next when one does not answer. Used by the engine, the command
line and the cluster drivers. It logs in by a certificate where there is one (ADR 21), or by user
and password, which travel as metadata (RFC 7617).
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc
from brokerd_operator.broker import errors
from brokerd_operator.reconcile.actions import Action, Delete, Precondition, SetOwner, Upsert
from brokerd_operator.reconcile.ownership import Token
from brokerd_operator.reconcile.topology import ObservedObject
from brokerd_operator.specs import arguments
from brokerd_operator.specs.model import Identity, JsonObject

#: Of the contract (admin.proto).
OPERATIONS_MAX = 256
CALL_TIMEOUT_S = 15.0
#: An apply of 256 operations may wait for elections; the broker itself gives up after 20 s.
APPLY_TIMEOUT_S = 60.0
#: A member that leaves has its replicas copied elsewhere; what takes longer is asked for again.
#: A member that is fenced hands over what it leads for so long.
DRAIN_MS = 10_000
REMOVE_MS = 60_000
_OPTIONS = [
    # Members are in the cluster, or named by address: there is no proxy on the way.
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", 17 * 1024 * 1024),
    # A member that is killed must be noticed while a watch stands.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Of a killed member nothing may be reused.
    ("grpc.use_local_subchannel_pool", 1),
]


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """What the operator shows members, PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Target:
    """How a broker's administration is reached."""

    addresses: tuple[str, ...]
    username: str
    password: str = field(repr=False)
    #: PEM of the CA; None: no TLS.
    ca: bytes | None = field(default=None, repr=False)
    server_name: str | None = None
    #: Comes before the password; members that do not know it get the password.
    certificate: ClientCertificate | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Info:
    """Identity of a cluster."""

    cluster_id: str
    cluster_name: str
    node: str
    version: str
    features: tuple[str, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Result:
    """The broker's answer to one action."""

    #: Of OperationResult.Code: OK, UNCHANGED, NOT_FOUND, PRECONDITION, IMMUTABLE, REFUSED, …
    code: str
    message: str = ""
    current: ObservedObject | None = None
    revision: int = 0
    #: Refused because messages would be lost; `Upsert.is_confirmed` lets it pass.
    needs_confirmation: bool = False

    @property
    def is_done(self) -> bool:
        return self.code in ("OK", "UNCHANGED")


@dataclass(frozen=True, slots=True)
class Change:
    """One event of the watch."""

    #: PUT, DELETED, COMPACTED or BOOKMARK.
    change: str
    item: ObservedObject | None
    revision: int
    cause: str


T = TypeVar("T")
Metadata = tuple[tuple[str, str], ...]
#: A call, given a stub and the login's metadata.
Call = Callable[[admin_pb2_grpc.AdminStub, Metadata], Awaitable[T]]


@dataclass(frozen=True, slots=True)
class _Login:
    """One way in."""

    metadata: tuple[tuple[str, str], ...] = ()
    certificate: ClientCertificate | None = None


class AdminClient:
    """Owns one channel per address and login; calls go to the address that answered last.

    State: the login that each member took last. A member that refuses one, or the connection with
    it, is asked by the other: a release before certificates, one whose authority is not ours any
    more, or a password that was changed. A channel lives as long as the client: closing it would
    cancel the calls of other tasks.
    In one piece: a method for each call of the Admin service that the operator makes, by `_call`.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        token = base64.b64encode(f"{target.username}:{target.password}".encode()).decode()
        self._logins = [_Login((("authorization", f"Basic {token}"),))]
        if target.certificate is not None:
            self._logins.insert(0, _Login(certificate=target.certificate))
        self._taken: dict[str, _Login] = {}
        self._next = 0
        self._channels: dict[tuple[str, _Login], grpc.aio.Channel] = {}
        self.address = target.addresses[0] if target.addresses else ""

    async def close(self) -> None:
        """Close all channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    @property
    def is_certificate_taken(self) -> bool:
        """Whether the member that answered last took the certificate: it asked for no password."""
        login = self._taken.get(self.address)
        return login is not None and login.certificate is not None

    def _turn(self) -> str:
        """The address whose turn it is."""
        self.address = self.target.addresses[self._next % len(self.target.addresses)]
        return self.address

    def _channel(self, address: str, login: _Login) -> grpc.aio.Channel:
        channel = self._channels.get((address, login))
        if channel is None:
            channel = self._channels[address, login] = self._open(address, login)
        return channel

    def _open(self, address: str, login: _Login) -> grpc.aio.Channel:
        if self.target.ca is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        options: list[tuple[str, int | str]] = list(_OPTIONS)
        if self.target.server_name:
            options.append(("grpc.ssl_target_name_override", self.target.server_name))
        shown = login.certificate
        credentials = grpc.ssl_channel_credentials(
            root_certificates=self.target.ca,
            private_key=None if shown is None else shown.key,
            certificate_chain=None if shown is None else shown.certificate,
        )
        return grpc.aio.secure_channel(address, credentials, options=options)

    async def _call(self, call: Call[T]) -> T:
        """Call on any member: each address is tried once."""
        if not self.target.addresses:
            raise errors.BrokerUnreachable("the broker has no address")
        failure: errors.BrokerError | None = None
        for _ in self.target.addresses:
            address, turn = self._turn(), self._next
            try:
                return await self._ask(address, call)
            except errors.BrokerError as error:
                # A refusal says more than silence; where members differ another may let us in.
                if not isinstance(failure, errors.BrokerDenied):
                    failure = error
                is_refused = isinstance(error, errors.BrokerDenied) and len(self._logins) > 1
                if not error.is_unreachable and not is_refused:
                    raise
                self._go_on(turn)
        assert failure is not None
        raise failure

    async def _ask(self, address: str, call: Call[T]) -> T:
        """Call one member, by the login that it took last, then by the other."""
        failure: errors.BrokerError | None = None
        for login in self._in_order(address):
            channel = self._channel(address, login)
            stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            try:
                found = await call(stub, login.metadata)
            except grpc.aio.AioRpcError as error:
                failure = errors.translate(error, address)
                if not _is_about_the_login(failure, error, channel):
                    raise failure from error
            except asyncio.CancelledError as error:
                raise self._closed(error, address) from error
            else:
                self._taken[address] = login
                return found
        assert failure is not None
        raise failure

    def _in_order(self, address: str) -> list[_Login]:
        taken = self._taken.get(address, self._logins[0])
        return [taken, *(login for login in self._logins if login is not taken)]

    def _go_on(self, turn: int) -> None:
        """Use the next address, unless another call has gone on already."""
        if self._next == turn:
            self._next += 1

    def _closed(self, error: asyncio.CancelledError, address: str) -> errors.BrokerError:
        """gRPC cancels calls of a closed channel; only a cancelled task may see a cancellation."""
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise error
        return errors.BrokerUnreachable(f"{address}: the connection was closed")

    async def info(self) -> Info:
        """Identity and version."""
        reply = await self._call(
            lambda stub, metadata: stub.GetInfo(
                admin_pb2.GetInfoRequest(), metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        )
        return Info(
            reply.cluster_id,
            reply.cluster_name,
            reply.node,
            reply.version,
            tuple(reply.features),
            reply.revision,
        )

    async def list_topology(self) -> tuple[list[ObservedObject], int]:
        """All objects, and the revision they are of."""
        found, revision, _ = await self.list_with_ended()
        return found, revision

    async def list_with_ended(self) -> tuple[list[ObservedObject], int, set[Identity]]:
        """All objects, the revision they are of, and what the broker removed by its own terms.

        Of these the broker remembers the newest; one of an earlier release tells of none.
        """

        async def call(
            stub: admin_pb2_grpc.AdminStub, metadata: Metadata
        ) -> tuple[list[ObservedObject], int, set[Identity]]:
            found: list[ObservedObject] = []
            revision = 0
            ended: set[Identity] = set()
            request = admin_pb2.ListTopologyRequest(with_ended=True)
            pages = stub.ListTopology(request, metadata=metadata, timeout=CALL_TIMEOUT_S)
            async for page in pages:
                found += [observed(item) for item in page.objects]
                revision = page.revision
                ended |= {observed(event.object).identity for event in page.ended}
            return found, revision, ended

        return await self._call(call)

    async def apply(self, actions: Sequence[Action], *, dry_run: bool = False) -> list[Result]:
        """Apply actions in their order; one result each."""
        operations = [_operation(index, item, dry_run) for index, item in enumerate(actions)]
        requests = [
            admin_pb2.ApplyRequest(operations=operations[start : start + OPERATIONS_MAX])
            for start in range(0, len(operations), OPERATIONS_MAX)
        ]

        async def call(stub: admin_pb2_grpc.AdminStub, metadata: Metadata) -> list[Result]:
            results: dict[str, Result] = {}
            replies = stub.ApplyTopology(iter(requests), metadata=metadata, timeout=APPLY_TIMEOUT_S)
            async for reply in replies:
                for item in reply.results:
                    results[item.id] = _result(item)
            missing = Result("UNAVAILABLE", "the broker gave no answer to this operation")
            return [results.get(item.id, missing) for item in operations]

        return await self._call(call)

    async def watch(self, since_revision: int) -> AsyncIterator[Change]:
        """Changes after a revision; ends when the member stops, raises BrokerError when it dies."""
        address, turn = self._turn(), self._next
        login = self._in_order(address)[0]
        channel = self._channel(address, login)
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        call = stub.WatchTopology(
            admin_pb2.WatchTopologyRequest(since_revision=since_revision), metadata=login.metadata
        )
        try:
            async for event in call:
                has_object = event.HasField("object")
                yield Change(
                    admin_pb2.TopologyEvent.Change.Name(event.change),
                    observed(event.object) if has_object else None,
                    event.revision,
                    event.cause,
                )
        except grpc.aio.AioRpcError as error:
            failure = errors.translate(error, address)
            if failure.is_unreachable:
                self._go_on(turn)
            raise failure from error
        except asyncio.CancelledError as error:
            raise self._closed(error, address) from error
        finally:
            call.cancel()

    async def rows(self, kind: str, vhost: str = "") -> list[JsonObject]:
        """Live rows of one kind, as this member sees them."""
        return await self._call(lambda stub, metadata: _rows(stub, metadata, kind, vhost))

    async def rows_of_all(self, kind: str, vhost: str = "") -> list[JsonObject]:
        """Live rows of a kind of which each member knows its own only (links, connections).

        Members that do not answer have none; BrokerUnreachable when no member answers.
        """
        found: list[JsonObject] = []
        failures: list[errors.BrokerError] = []
        for address in self.target.addresses:
            try:
                found += await self._ask(
                    address, lambda stub, metadata: _rows(stub, metadata, kind, vhost)
                )
            except errors.BrokerError as error:
                failures.append(error)
        if failures and len(failures) == len(self.target.addresses):
            raise failures[0]
        return found

    async def authenticate(self, user: str, password: str) -> tuple[str, ...] | None:
        """The user's tags if the password is right."""
        request = admin_pb2.AuthenticateRequest(user=user, password=password)
        reply = await self._call(
            lambda stub, metadata: stub.Authenticate(
                request, metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        )
        return tuple(reply.tags) if reply.ok else None

    async def kept_aside(self) -> tuple[list[JsonObject], frozenset[str]]:
        """What all members that answer keep aside, and who did not answer; a broker of a release
        before knows no such call, which is an error as any.
        """
        reply = await self._call(
            lambda stub, metadata: stub.KeptAside(
                admin_pb2.KeptAsideRequest(), metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        )
        return [json.loads(row) for row in reply.rows], frozenset(reply.unanswered)

    async def members(self) -> list[Any]:
        """Members with memory, disk and alarms (admin_pb2.Member)."""
        reply = await self._call(
            lambda stub, metadata: stub.MemberStatus(
                admin_pb2.MemberStatusRequest(), metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        )
        return list(reply.members)

    async def add_member(self, name: str, peer_address: str) -> None:
        """Put a member on the list; it takes part when it runs."""
        request = admin_pb2.MemberRequest(name=name, peer_address=peer_address)
        await self._call(
            lambda stub, metadata: stub.AddMember(
                request, metadata=metadata, timeout=CALL_TIMEOUT_S
            )
        )

    async def remove_member(self, name: str) -> None:
        """Take a member out of all queues and off the list; may be repeated."""
        request = admin_pb2.MemberRequest(name=name, deadline_ms=REMOVE_MS)
        timeout_s = REMOVE_MS / 1000 + CALL_TIMEOUT_S
        await self._call(
            lambda stub, metadata: stub.RemoveMember(request, metadata=metadata, timeout=timeout_s)
        )

    async def reasons_against_stopping(self, name: str) -> list[str]:
        """Ask every member whether it minds; each knows of the queues that it leads."""
        found: list[str] = []
        for address in self.target.addresses:
            reply = await self._ask(
                address,
                lambda stub, metadata: stub.SafeToStop(
                    admin_pb2.SafeToStopRequest(member=name),
                    metadata=metadata,
                    timeout=CALL_TIMEOUT_S,
                ),
            )
            if not reply.safe:
                found += list(reply.reasons) or [f"{address} says no"]
        return found

    async def drain(self, name: str) -> None:
        """Put the called member into maintenance: others lead, its clients are sent away."""
        request = admin_pb2.DrainRequest(member=name, deadline_ms=DRAIN_MS)
        timeout_s = DRAIN_MS / 1000 + CALL_TIMEOUT_S
        await self._call(
            lambda stub, metadata: stub.Drain(request, metadata=metadata, timeout=timeout_s)
        )

    async def revive(self, name: str) -> None:
        """End the called member's maintenance."""
        request = admin_pb2.ReviveRequest(member=name)
        await self._call(
            lambda stub, metadata: stub.Revive(request, metadata=metadata, timeout=CALL_TIMEOUT_S)
        )

    async def set_settings(self, settings: dict[str, str], *, all_members: bool = True) -> None:
        """Change runtime settings."""
        await self._call(
            lambda stub, metadata: stub.SetSettings(
                admin_pb2.SetSettingsRequest(settings=settings, all_members=all_members),
                metadata=metadata,
                timeout=CALL_TIMEOUT_S,
            )
        )


def _is_about_the_login(
    failure: errors.BrokerError, error: grpc.aio.AioRpcError, channel: grpc.aio.Channel
) -> bool:
    """Whether another login may help: it was refused, or the connection did not come about (what a
    member says to a certificate of an authority that it does not trust).
    """
    if isinstance(failure, errors.BrokerDenied):
        return True
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return False
    return channel.get_state() is not grpc.ChannelConnectivity.READY


async def _rows(
    stub: admin_pb2_grpc.AdminStub, metadata: Metadata, kind: str, vhost: str
) -> list[JsonObject]:
    found: list[JsonObject] = []
    pages = stub.List(
        admin_pb2.ListRequest(kind=kind, vhost=vhost), metadata=metadata, timeout=CALL_TIMEOUT_S
    )
    async for page in pages:
        found += [json.loads(row) for row in page.rows]
    return found


def observed(item: Any) -> ObservedObject:
    """A TopologyObject as the planner sees it."""
    owner = None
    if item.HasField("owner") and item.owner.managed_by:
        owner = Token(
            item.owner.managed_by,
            item.owner.resource,
            item.owner.uid,
            item.owner.deletion_policy,
            item.owner.protected,
        )
    spec = json.loads(item.spec) if item.spec else {}
    return ObservedObject(item.kind, item.vhost, item.name, spec, item.hash, owner, item.revision)


def _result(item: Any) -> Result:
    return Result(
        admin_pb2.OperationResult.Code.Name(item.code),
        item.message,
        observed(item.current) if item.HasField("current") else None,
        item.revision,
        item.needs_confirmation,
    )


def _operation(index: int, action: Action, dry_run: bool) -> Any:
    return _BUILDERS[type(action)](str(index), action, dry_run)


def _fields(id_: str, identity: Identity, precondition: Precondition, dry_run: bool) -> Any:
    fields: dict[str, Any] = {
        "id": id_,
        "kind": identity.kind,
        "vhost": identity.vhost,
        "name": identity.name,
        "dry_run": dry_run,
    }
    if precondition != Precondition():
        fields["precondition"] = admin_pb2.Precondition(
            absent=precondition.is_absent,
            hash=precondition.hash,
            owner_uid=precondition.owner_uid,
        )
    return fields


def _upsert(id_: str, action: Upsert, dry_run: bool) -> Any:
    return admin_pb2.Operation(
        **_fields(id_, action.identity, action.precondition, dry_run),
        action=admin_pb2.Operation.UPSERT,
        spec=arguments.canonical_json(action.item.spec),
        owner=_owner(action.owner),
        confirmed=action.is_confirmed,
    )


def _set_owner(id_: str, action: SetOwner, dry_run: bool) -> Any:
    return admin_pb2.Operation(
        **_fields(id_, action.identity, action.precondition, dry_run),
        action=admin_pb2.Operation.SET_OWNER,
        owner=_owner(action.owner),
    )


def _delete(id_: str, action: Delete, dry_run: bool) -> Any:
    return admin_pb2.Operation(
        **_fields(id_, action.identity, action.precondition, dry_run),
        action=admin_pb2.Operation.DELETE,
        if_empty=action.if_empty,
        if_unused=action.if_unused,
    )


def _owner(token: Token | None) -> Any:
    if token is None:
        return admin_pb2.Owner()
    return admin_pb2.Owner(
        managed_by=token.managed_by,
        resource=token.resource,
        uid=token.uid,
        deletion_policy=token.deletion_policy,
        protected=token.is_protected,
    )


_BUILDERS: dict[type, Callable[[str, Any, bool], Any]] = {
    Upsert: _upsert,
    SetOwner: _set_owner,
    Delete: _delete,
}
