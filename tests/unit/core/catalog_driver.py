"""Drives a catalog in tests: numbers the log, speaks AMQP's declares, checks after each step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brokerd.core.catalog import catalog_commands, declare
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_objects import ConnectionId, Queue
from brokerd.core.catalog.permissions import Access
from brokerd.core.catalog.refusals import Refused
from brokerd.core.catalog.router import Router, RouteResult
from brokerd.core.profiles import Profile, profile

Json = dict[str, Any]
OWN = ConnectionId("n1", 7, 1)
OTHER = ConnectionId("n1", 7, 2)
VHOST = "/"


@dataclass(slots=True)
class StepMeta:
    """A command's circumstances."""

    index: int
    term: int = 1
    now_ms: int = 1_000


class CatalogDriver:
    """A bootstrapped catalog with user guest, and the router over it."""

    def __init__(self, profile_: Profile | None = None, changes_max: int = 10_000) -> None:
        self.profile = profile_ or profile()
        self.machine = CatalogMachine(self.profile, changes_max)
        self.view = self.machine.state
        self.router = Router(self.view)
        self.index = 0
        self.log: list[tuple[StepMeta, bytes]] = []
        self.effects: list[TopologyChanged] = []
        self.do(
            catalog_commands.bootstrap(
                "id-1", "shop", [{"name": "guest", "tags": ["administrator"], "password_hash": "h"}]
            )
        )
        self.access = Access(self.view, VHOST, "guest")

    def send(self, command: bytes) -> Json:
        """Apply a command; keep its effects in `effects`."""
        self.index += 1
        meta = StepMeta(self.index)
        self.log.append((meta, command))
        outcome = self.machine.apply(meta, command)
        self.machine.check_invariants()
        self.effects = outcome.effects
        return catalog_commands.decode_reply(outcome.reply)

    def do(self, operation: Json) -> Json:
        return self.send(catalog_commands.encode(operation))

    def put(
        self,
        kind: str,
        name: str,
        spec: Json,
        vhost: str = VHOST,
        cause: str = "admin",
        **more: Any,
    ) -> Json:
        return self.do(catalog_commands.put(kind, vhost, name, spec, cause=cause, **more))

    def delete(
        self, kind: str, name: str, vhost: str = VHOST, cause: str = "admin", **more: Any
    ) -> Json:
        return self.do(catalog_commands.delete(kind, vhost, name, cause=cause, **more))

    def changed(self) -> list[tuple[str, str, str]]:
        """Return what the last command changed: + or -, kind, name."""
        return [("-" if each.deleted else "+", each.kind, each.name) for each in self.effects]

    # AMQP

    def _propose(self, answer: Refused | declare.Exists | declare.Create, **more: Any) -> Any:
        if isinstance(answer, declare.Create):
            reply = self.put(
                answer.kind,
                answer.name,
                answer.spec,
                answer.vhost,
                cause="amqp:guest",
                declare=True,
                exclusive_owner=answer.exclusive_owner,
                **more,
            )
            assert reply["code"] == "OK", reply
        return answer

    def exchange(self, name: str, type_: str = "direct", **more: Any) -> Any:
        return self._propose(
            declare.declare_exchange(
                self.view,
                self.profile,
                more.pop("access", self.access),
                name,
                type_,
                exchange_arguments=more.pop("arguments", {}),
                **more,
            )
        )

    def queue(self, name: str, durable: bool = True, **more: Any) -> Any:
        return self._propose(
            declare.declare_queue(
                self.view,
                self.profile,
                more.pop("access", self.access),
                name,
                durable=durable,
                queue_arguments=more.pop("arguments", {}),
                connection=more.pop("connection", OWN),
                generated_name="amq.gen-1",
                **more,
            ),
            uid=self.index + 1_000,
            members=["n1"],
        )

    def bind(
        self,
        source: str,
        destination: str,
        key: str = "",
        arguments: Json | None = None,
        kind: str = "queue",
        connection: ConnectionId = OWN,
    ) -> Any:
        return self._propose(
            declare.bind(
                self.view,
                self.profile,
                self.access,
                source,
                kind,
                destination,
                key,
                arguments or {},
                connection,
            )
        )

    def unbind(
        self,
        source: str,
        destination: str,
        key: str = "",
        arguments: Json | None = None,
        kind: str = "queue",
    ) -> Any:
        answer = declare.unbind(
            self.view, self.access, source, kind, destination, key, arguments or {}, OWN
        )
        if isinstance(answer, declare.Delete):
            self.delete("binding", answer.record.name, cause="amqp:guest")
        return answer

    def route(self, exchange: str, key: str = "", **more: Any) -> RouteResult:
        return self.router.route(VHOST, exchange, key, **more)

    def routed(self, exchange: str, key: str = "", **more: Any) -> list[str]:
        """Return the names of the queues that a message goes to, sorted."""
        return sorted(queue.name for queue in self.route(exchange, key, **more).queues)

    def found(self, name: str) -> Queue:
        queue = self.view.queue(VHOST, name)
        assert queue is not None
        return queue


def is_refused(answer: Any, code: int, text: str, connection_level: bool = False) -> None:
    """Fail unless it is refused with these."""
    assert isinstance(answer, Refused), answer
    assert (answer.code, answer.text) == (code, text)
    assert answer.connection_level == connection_level
