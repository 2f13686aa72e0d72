"""A member whose catalog answers at once, for the tests of this room."""

from __future__ import annotations

import json
import random
from typing import Any

from brokerd.cluster.errors import GroupUnavailable
from brokerd.config import BrokerConfig
from brokerd.core.catalog import catalog_checks, catalog_commands
from brokerd.core.profiles import Profile
from brokerd.raft.messages import NodeId
from brokerd.rpc.v1 import admin_pb2
from brokerd.server.catalog import topology_batch
from brokerd.server.catalog.catalog_writer import Unavailable
from brokerd.server.catalog.keyring import Keyring
from brokerd.server.queues.client import QueueClient
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.server.messages.fakes import turn

Json = dict[str, Any]
MEMBERS = ("n0", "n1", "n2")


class Groups:
    """All members are heard, and nobody knows who leads what."""

    def __init__(self) -> None:
        self.may_be_counted = True
        self.stalled: set[NodeId] = set()
        self.heard = {NodeId(name) for name in MEMBERS}

    def alive(self) -> set[NodeId]:
        return self.heard

    def is_stalled(self, node: NodeId) -> bool:
        return node in self.stalled

    def leader_of(self, uid: int) -> NodeId | None:
        assert self.may_be_counted, "leaders are counted"
        return None


class Passwords:
    """Hashes that one can read."""

    def __init__(self) -> None:
        self.hashed: list[str] = []
        #: Whether the hashes that there are would be made so now.
        self.are_current = True

    def is_current(self, stored: str) -> bool:
        return self.are_current

    async def check(self, stored: str, password: str) -> bool:
        return stored == f"hash of {password}"

    async def hash(self, password: str) -> str:
        self.hashed.append(password)
        return f"hash of {password}"


class Tracer:
    """The firehose, off at first."""

    def __init__(self) -> None:
        self.vhosts: frozenset[str] = frozenset()


class Member:
    """A catalog that answers at once, and queues whose leaders do, unless told otherwise."""

    def __init__(self, profile: Profile | None = None) -> None:
        self.driver = CatalogDriver(profile)
        self.profile = self.driver.profile
        self.keyring = Keyring([])
        self.view = self.driver.view
        self.node = MEMBERS[0]
        for name in MEMBERS:
            self.driver.do(catalog_commands.put_member(name, f"{name}:5690"))
            self.driver.do(catalog_commands.node_started(name, 1))
        self.config = BrokerConfig()
        self.host = Groups()
        self.random = random.Random(1)
        self.tracer = Tracer()
        self.checker = Passwords()
        #: What was proposed, each in its own entry.
        self.written: list[Json] = []
        self.asked: list[int] = []
        self.has_majority = True
        self.has_leaders = True
        self._last_uid = 1 << 16
        groups: Any = self
        self.queues = QueueClient(turn(groups), 1)

    def new_group_uid(self) -> int:
        self._last_uid += 1
        return self._last_uid

    async def write(self, operation: Json) -> Json:
        if not self.has_majority:
            raise Unavailable("no leader of group 1 answered")
        catalog_checks.judge(operation, self.driver.profile, self.view)
        self.written.append(operation)
        reply: Json = self.driver.do(operation)
        return reply

    async def request(self, uid: int, command: bytes, timeout_s: float, once: bool) -> bytes:
        """Answer as a group's leader."""
        self.asked.append(uid)
        if not self.has_leaders:
            raise GroupUnavailable(uid, timeout_s)
        return json.dumps({"deleted": True, "messages": 2, "consumers": 1}).encode()

    def runs(self) -> list[int]:
        """Return how many operations each proposal had; 0: it was no run."""
        return [len(operation.get("operations", ())) for operation in self.written]

    async def apply(self, *operations: admin_pb2.Operation) -> list[admin_pb2.OperationResult]:
        return await topology_batch.apply(self, operations)
