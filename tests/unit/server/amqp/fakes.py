"""What channels ask for, made up, for the tests of this room."""

from __future__ import annotations

from typing import Any

from brokerd.config import BrokerConfig
from brokerd.core import profiles
from brokerd.core.catalog.catalog_objects import ConnectionId
from brokerd.server.amqp.ports import ChannelServices
from brokerd.server.queues.client import QueueClient
from brokerd.telemetry.counters import Counters
from tests.unit.server.fakes import Nobody
from tests.unit.server.messages.fakes import turn


class Identity:
    """A member that numbers from 1 on."""

    def __init__(self) -> None:
        self.node, self.incarnation = "n0", 1
        self._last_uid = 0

    def next_uid(self) -> int:
        self._last_uid += 1
        return self._last_uid

    def connection_id(self, uid: int) -> ConnectionId:
        return ConnectionId(self.node, self.incarnation, uid)


class Queues:
    """Queues that are elsewhere, with this client to them."""

    def __init__(self, groups: Any) -> None:
        self.groups = groups

    def leads(self, uid: int) -> bool:
        return False

    def contents_if_here(self, uid: int, run: Any) -> None:
        return None

    def queue_of(self, uid: int) -> Any:
        return None


def channel_services(groups: Any) -> ChannelServices:
    """Return what channels share: this client of the queues, and nobody behind the other parts."""
    parts: dict[str, Any] = dict.fromkeys(ChannelServices.__slots__, Nobody())
    parts |= {
        "config": BrokerConfig(),
        "profile": profiles.configured("rabbitmq-4.3", {}),
        "identity": Identity(),
        "queues": Queues(groups),
        "queue_client": QueueClient(turn(groups, "n0"), 1),
        "counters": Counters(lambda: 0),
    }
    return ChannelServices(**parts)
