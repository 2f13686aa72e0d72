"""brokerctl's side of the Admin service: one call at a time, errors as sentences.

gRPC is imported with this module, so commands import it when they run.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Its own notices on stderr would be taken for ours.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from brokerd.ctl import errors
from brokerd.ctl.settings import Settings
from brokerd.rpc.v1 import admin_pb2, admin_pb2_grpc, messages_pb2_grpc

#: Of one page of a listing.
RECEIVE_BYTES_MAX = 64 * 1024 * 1024
#: The highest port that TCP has; gRPC takes the rest of a higher one.
PORT_MAX = 65_535
#: Of one request.
OPERATIONS_MAX = 256
Result = admin_pb2.OperationResult

#: How the members refuse a login.
_REFUSED = ("login refused: wrong user", "login refused: send metadata")
#: What gRPC says of a server that answers with HTTP/1.1.
_HTTP_1 = ("http1.x server", "Expected SETTINGS frame")
#: What gRPC says of a certificate that names others.
_OTHER_NAME = "Hostname Verification Check failed"
#: In what a member says of a queue that takes nothing for now: the member itself has answered.
_OF_QUEUE = " in vhost '"
_HINTS = (
    " * Is it running?  Its log says when it is ready.",
    " * Is this its gRPC port (5680)?  -n HOST:PORT or BROKERD_ADDRESS names another.",
    " * Does it use TLS?  Then --ca-file must name its authority.",
)
_NAME_HINTS = (
    " * -n must have a name that stands in the certificate (subjectAltName).",
    " * At a forwarded port, BROKERD_SERVER_NAME says that name.",
)
_STATUS = {
    grpc.StatusCode.UNAVAILABLE: errors.EXIT_UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.EXIT_TEMPORARY,
    grpc.StatusCode.UNAUTHENTICATED: errors.EXIT_NO_PERMISSION,
    grpc.StatusCode.PERMISSION_DENIED: errors.EXIT_NO_PERMISSION,
    grpc.StatusCode.NOT_FOUND: errors.EXIT_DATA,
    grpc.StatusCode.INVALID_ARGUMENT: errors.EXIT_DATA,
}
_CODES = {
    Result.NOT_FOUND: errors.EXIT_UNAVAILABLE,
    Result.IMMUTABLE: errors.EXIT_UNAVAILABLE,
    Result.REFUSED: errors.EXIT_UNAVAILABLE,
    Result.PRECONDITION: errors.EXIT_SOFTWARE,
    Result.UNAVAILABLE: errors.EXIT_UNAVAILABLE,
}


class AdminClient:
    """A connection to one member."""

    def __init__(self, settings: Settings, address: str) -> None:
        token = base64.b64encode(f"{settings.user}:{settings.password}".encode()).decode()
        self._metadata = (("authorization", f"Basic {token}"),)
        self._timeout_s = settings.timeout_s
        self._label = settings.label
        self._user = settings.user
        port = address.rpartition(":")[2]
        if not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
            raise errors.CtlError(
                f"{address} has no port from 1 to {PORT_MAX}: -n takes HOST:PORT", errors.EXIT_USAGE
            )
        self.address = address
        # A proxy of the environment is for the Web; a forwarded port would be asked there, too.
        limits = [
            ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
            ("grpc.enable_http_proxy", 0),
        ]
        if settings.ca_file:
            try:
                authority = Path(settings.ca_file).read_bytes()
            except OSError as error:
                raise errors.CtlError(
                    f"--ca-file: cannot read {settings.ca_file}: {error.strerror}", errors.EXIT_IO
                ) from error
            if b"-----BEGIN CERTIFICATE-----" not in authority:
                raise errors.CtlError(
                    f"--ca-file {settings.ca_file} holds no certificate in PEM", errors.EXIT_USAGE
                )
            credentials = grpc.ssl_channel_credentials(authority)
            named = [("grpc.ssl_target_name_override", settings.server_name)]
            options = [*limits, *named] if settings.server_name else limits
            self._channel = grpc.secure_channel(address, credentials, options)
        else:
            self._channel = grpc.insecure_channel(address, limits)
        self._stub: Any = admin_pb2_grpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]
        self._messages: Any = messages_pb2_grpc.MessagesStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._channel.close()

    def call(self, name: str, request: Any, timeout_s: float | None = None) -> Any:
        """Make a call with one answer."""
        method = getattr(self._stub, name)
        try:
            return method(request, metadata=self._metadata, timeout=timeout_s or self._timeout_s)
        except grpc.RpcError as error:
            raise self._error(error) from error

    def stream(self, name: str, request: Any, timeout_s: float | None = None) -> Iterator[Any]:
        """Make a call with many answers."""
        method = getattr(self._stub, name)
        timeout_s = timeout_s or self._timeout_s
        try:
            yield from method(request, metadata=self._metadata, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._error(error) from error

    def message_call(self, name: str, request: Any, vhost: str) -> Any:
        """Make a call of the service Messages with one answer."""
        method = getattr(self._messages, name)
        metadata = self._message_metadata(vhost)
        try:
            return method(request, metadata=metadata, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._error(error) from error

    def message_stream(self, name: str, requests: Iterator[Any], vhost: str) -> Iterator[Any]:
        """Make a call of the service Messages that goes both ways."""
        method = getattr(self._messages, name)
        metadata = self._message_metadata(vhost)
        try:
            yield from method(requests, metadata=metadata, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._error(error) from error

    def _message_metadata(self, vhost: str) -> tuple[tuple[str, str | bytes], ...]:
        # In -bin, where any name may stand.
        return (*self._metadata, ("vhost-bin", vhost.encode("utf-8", "surrogateescape")))

    def _error(self, error: Any) -> errors.CtlError:
        code = error.code()
        text = str(error.details())
        if code is grpc.StatusCode.UNAVAILABLE:
            if _OF_QUEUE not in text:
                text = self._unreachable(text)
        elif code is grpc.StatusCode.DEADLINE_EXCEEDED:
            text = (
                f"Error: operation on node {self._label} timed out. "
                f"Timeout value used: {self._timeout_s * 1000:g}"
            )
        elif code is grpc.StatusCode.UNAUTHENTICATED and text.startswith(_REFUSED):
            text = (
                f"{self.address} does not let '{self._user}' in: wrong user or password.\n"
                "--user and --password (or --password-file, BROKERD_USER, BROKERD_PASSWORD) name "
                "others; guest may come from the member's own machine only."
            )
        elif code is grpc.StatusCode.UNIMPLEMENTED:
            text = (
                f"{self.address} is not the port for administration: {text}\n"
                "-n HOST:PORT or BROKERD_ADDRESS must name a member's gRPC port (5680)."
            )
        is_bare = text.startswith("Error: ")
        return errors.CtlError(text, _STATUS.get(code, errors.EXIT_SOFTWARE), is_bare=is_bare)

    def _unreachable(self, reason: str) -> str:
        """Return what rabbitmqctl says to a node that is not there, and what may be wrong."""
        hints: tuple[str, ...] = _HINTS
        if any(words in reason for words in _HTTP_1):
            reason = "it answers with HTTP/1.1, as the ports of the HTTP API and of metrics do"
            hints = _HINTS[1:2]
        elif _OTHER_NAME in reason:
            reason = "its certificate does not name this address"
            hints = _NAME_HINTS
        return (
            f"Error: unable to perform an operation on node '{self._label}'. "
            "Please see diagnostics information and suggestions below.\n\n"
            f"The member at {self.address} cannot be reached or cannot answer: {reason}\n\n"
            + "\n".join(hints)
        )

    # ---- listings ---------------------------------------------------------------------------

    def live_rows(self, kind: str, vhost: str = "") -> list[dict[str, Any]]:
        """Return rows of live figures."""
        request = admin_pb2.ListRequest(kind=kind, vhost=vhost)
        return [json.loads(row) for page in self.stream("List", request) for row in page.rows]

    def objects(self, kind: str, vhost: str = "") -> list[Any]:
        """Return the objects of a kind as the catalog has them."""
        request = admin_pb2.ListTopologyRequest(kinds=[kind], vhost=vhost)
        return [item for page in self.stream("ListTopology", request) for item in page.objects]

    def definitions(self, with_passwords: bool) -> list[tuple[str, str, str, dict[str, Any]]]:
        """Return all objects with their hashes: kind, vhost, name, spec."""
        request = admin_pb2.ExportDefinitionsRequest(with_passwords=with_passwords)
        pages = self.stream("ExportDefinitions", request)
        return [
            (item.kind, item.vhost, item.name, json.loads(item.spec))
            for page in pages
            for item in page.objects
        ]

    def find(self, kind: str, vhost: str, name: str) -> Any | None:
        """Return one object, None if it is not there."""
        found = self.objects(kind, vhost)
        return next((item for item in found if item.name == name and item.vhost == vhost), None)

    # ---- changes ----------------------------------------------------------------------------

    def apply(self, operations: Iterable[admin_pb2.Operation]) -> list[Result]:
        """Apply operations in order and return their results, whatever they are."""
        wanted = list(operations)
        requests = iter(
            [
                admin_pb2.ApplyRequest(operations=wanted[start : start + OPERATIONS_MAX])
                for start in range(0, len(wanted) or 1, OPERATIONS_MAX)
            ]
        )
        try:
            answers = self._stub.ApplyTopology(
                requests, metadata=self._metadata, timeout=self._timeout_s
            )
            return [result for answer in answers for result in answer.results]
        except grpc.RpcError as error:
            raise self._error(error) from error

    def put(
        self,
        kind: str,
        vhost: str,
        name: str,
        spec: dict[str, Any],
        *,
        only_new: bool = False,
        expected_hash: str = "",
        confirmed: bool = False,
    ) -> Result:
        """Create or change one object; raises with what the broker says against it."""
        wanted = operation(kind, vhost, name, spec, only_new=only_new, expected_hash=expected_hash)
        wanted.confirmed = confirmed
        (result,) = self.apply([wanted])
        if only_new and result.code == Result.PRECONDITION:
            raise errors.CtlError(f'{kind.capitalize()} "{name}" already exists')
        return checked(result)

    def modify(
        self, kind: str, name: str, change: Callable[[dict[str, Any]], None], vhost: str = ""
    ) -> None:
        """Change some fields of an object that exists, if no other client changes it meanwhile."""
        present = self.find(kind, vhost, name)
        if present is None:
            raise missing(kind, name)
        spec = json.loads(present.spec)
        change(spec)
        self.put(kind, vhost, name, spec, expected_hash=present.hash)

    def delete(self, kind: str, vhost: str, name: str, **conditions: bool) -> Result:
        """Delete one object; it must be there."""
        wanted = removal(kind, vhost, name)
        for condition, value in conditions.items():
            setattr(wanted, condition, value)
        (result,) = self.apply([wanted])
        if result.code == Result.NOT_FOUND:
            raise missing(kind, name)
        return checked(result)

    # ---- what must be there -----------------------------------------------------------------

    def require_vhost(self, name: str) -> Any:
        """Return a vhost; status 65 if it is not there."""
        found = self.find("vhost", "", name)
        if found is None:
            raise errors.no_vhost(name)
        return found

    def require_user(self, name: str) -> Any:
        """Return a user; status 67 if it is not there."""
        found = self.find("user", "", name)
        if found is None:
            raise errors.no_user(name)
        return found


def operation(
    kind: str,
    vhost: str,
    name: str,
    spec: dict[str, Any],
    *,
    only_new: bool = False,
    expected_hash: str = "",
) -> admin_pb2.Operation:
    """Return the operation that creates or changes one object."""
    precondition = None
    if only_new or expected_hash:
        precondition = admin_pb2.Precondition(absent=only_new, hash=expected_hash)
    return admin_pb2.Operation(
        kind=kind, vhost=vhost, name=name, spec=json.dumps(spec), precondition=precondition
    )


def removal(kind: str, vhost: str, name: str) -> admin_pb2.Operation:
    """Return the operation that deletes one object."""
    return admin_pb2.Operation(action=admin_pb2.Operation.DELETE, kind=kind, vhost=vhost, name=name)


def missing(kind: str, name: str) -> errors.CtlError:
    """Return the error for something that is not there."""
    if kind == "user":
        return errors.no_user(name)
    if kind == "vhost":
        return errors.no_vhost(name)
    if kind == "queue":
        return errors.CtlError(f"Queue not found: there is no '{name}'", errors.EXIT_USAGE)
    return errors.CtlError("Parameter does not exist", errors.EXIT_UNAVAILABLE)


def checked(result: Result) -> Result:
    """Return a result that is good; raise what a bad one says."""
    if result.code in (Result.OK, Result.UNCHANGED):
        return result
    name = Result.Code.Name(result.code).lower()
    raise errors.CtlError(result.message or name, _CODES.get(result.code, errors.EXIT_SOFTWARE))


def connect(settings: Settings) -> AdminClient:
    """Return a client of the first member that was named and answers, else of the first one."""
    addresses = settings.addresses()
    if not addresses:
        raise errors.CtlError("no address was given", errors.EXIT_USAGE)
    for address in addresses[:-1]:
        client = AdminClient(settings, address)
        try:
            client.call("GetInfo", admin_pb2.GetInfoRequest(), timeout_s=min(2, settings.timeout_s))
        except errors.CtlError as error:
            client.__exit__(None, None, None)
            if error.exit_code not in (errors.EXIT_UNAVAILABLE, errors.EXIT_TEMPORARY):
                raise
            continue
        return client
    return AdminClient(settings, addresses[-1])
