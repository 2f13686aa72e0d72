"""What a compatibility test sees of a server: RabbitMQ or brokerd, without knowing which.

`Server` connects pika and the raw client; `Admin` is what both can be told from outside AMQP.
`expect` and `Differs` hold the two answers where the servers differ on purpose. For tests/compat.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

import pika

from brokerd.amqp import methods
from brokerd.amqp.channel import decode_method, method_class
from tests.integration.raw_client import RawClient

Name = Literal["rabbitmq", "brokerd"]
NAMES: tuple[Name, ...] = ("rabbitmq", "brokerd")
DIFFERENCE = re.compile(r"D-[1-9]\d*")

T = TypeVar("T")


class Admin(Protocol):
    """Vhosts, users, rights, policies, limits and listings of a server."""

    def add_vhost(self, name: str, default_queue_type: str = "") -> None: ...
    def delete_vhost(self, name: str) -> None: ...
    def add_user(self, name: str, password: str, *tags: str) -> None: ...
    def delete_user(self, name: str) -> None: ...
    def set_permissions(
        self, vhost: str, user: str, configure: str = ".*", write: str = ".*", read: str = ".*"
    ) -> None: ...
    def clear_permissions(self, vhost: str, user: str) -> None: ...
    def set_topic_permissions(
        self, vhost: str, user: str, exchange: str, write: str = ".*", read: str = ".*"
    ) -> None: ...
    def set_policy(
        self,
        vhost: str,
        name: str,
        pattern: str,
        definition: dict[str, Any],
        apply_to: str = "all",
        priority: int = 0,
        operator: bool = False,
    ) -> None: ...
    def clear_policy(self, vhost: str, name: str, operator: bool = False) -> None: ...
    def set_vhost_limit(self, vhost: str, name: str, value: int) -> None: ...
    def set_user_limit(self, user: str, name: str, value: int) -> None: ...

    #: Rows by name: durable, auto_delete, exclusive, arguments, type, policy, operator_policy.
    def queues(self, vhost: str) -> dict[str, dict[str, Any]]: ...
    #: Rows by name: type, durable, auto_delete, internal, arguments.
    def exchanges(self, vhost: str) -> dict[str, dict[str, Any]]: ...
    #: Rows: source, destination, destination_type, routing_key, arguments.
    def bindings(self, vhost: str) -> list[dict[str, Any]]: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Server:
    """One running server."""

    name: Name
    port: int
    admin: Admin
    #: Of the management API.
    http_port: int = 0

    def connect(
        self, vhost: str = "/", user: str = "guest", password: str = "", **parameters: Any
    ) -> pika.BlockingConnection:
        """Connect pika; the password is the user's name where none is given."""
        settings = {"heartbeat": 0, "blocked_connection_timeout": 60} | parameters
        return pika.BlockingConnection(
            pika.ConnectionParameters(
                "127.0.0.1",
                self.port,
                vhost,
                pika.PlainCredentials(user, password or user),
                **settings,
            )
        )

    @contextlib.contextmanager
    def connected(self, vhost: str = "/", user: str = "guest", **more: Any) -> Iterator[Any]:
        """Connect pika for a `with`; closes the connection if the server has not."""
        connection = self.connect(vhost, user, **more)
        try:
            yield connection
        finally:
            if connection.is_open:
                connection.close()

    @contextlib.contextmanager
    def raw(self, vhost: str = "/", user: str = "guest", **settings: Any) -> Iterator[RawClient]:
        """Connect the client of exact bytes, and drop its socket at the end; as in `connect`."""
        login = {"user": user, "password": user} | settings
        client = RawClient(self.port, vhost=vhost, **login)
        try:
            yield client
        finally:
            client.close()


@dataclass(frozen=True, slots=True)
class Differs(Generic[T]):
    """Two answers, and the row of docs/compatibility.md that says why."""

    rabbitmq: T
    brokerd: T
    difference: str

    def __post_init__(self) -> None:
        assert DIFFERENCE.fullmatch(self.difference), self.difference
        assert self.rabbitmq != self.brokerd, f"{self.difference} is no difference"

    def on(self, server: Server) -> T:
        """Return the answer of this server."""
        return self.rabbitmq if server.name == "rabbitmq" else self.brokerd


def used_differences() -> set[str]:
    """Return the ids that the tests beside this file name."""
    return {
        name
        for path in sorted(Path(__file__).parent.iterdir())
        if path.suffix in (".py", ".txt") and path.name != "test_harness.py"
        for name in re.findall(r'(?:"|difference: )(D-[1-9]\d*)"?', path.read_text())
    }


def expect(server: Server, *, rabbitmq: T, brokerd: T, difference: str) -> T:
    """Return what this server is expected to answer where the two differ."""
    return Differs(rabbitmq, brokerd, difference).on(server)


def expected(server: Server, answer: T | Differs[T]) -> T:
    """Return what this server is expected to answer; most answers are the same on both."""
    return answer.on(server) if isinstance(answer, Differs) else answer


@dataclass(frozen=True, slots=True)
class Closed:
    """How a server ended a channel or the connection."""

    level: Literal["channel", "connection", "socket"]
    code: int = 0
    text: str = ""
    #: Class and method that failed.
    failed: tuple[int, int] = (0, 0)

    def starts(self, text: str) -> bool:
        """Tell whether the text begins so; the code's name is taken off before."""
        return self.text.partition(" - ")[2].startswith(text)


def closed_by(raw: RawClient) -> Closed:
    """Read until the server ends the channel, the connection or the socket."""
    while True:
        try:
            found = raw.next_frame()
        except ConnectionResetError:
            return Closed("socket")
        if found is None:
            return Closed("socket")
        kind, _, payload = found
        method = decode_method(method_class(payload), payload) if kind == 1 else None
        if isinstance(method, methods.ChannelClose | methods.ConnectionClose):
            level: Literal["channel", "connection"] = (
                "channel" if isinstance(method, methods.ChannelClose) else "connection"
            )
            failed = (method.class_id, method.method_id)
            return Closed(level, method.reply_code, method.reply_text, failed)
