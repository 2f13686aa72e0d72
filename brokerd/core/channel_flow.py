"""channel.flow towards the channels of one connection: which must stop, and which do not comply.

Pure: alarms, publishes, answers and times come in, what to tell and whom to refuse goes out.
Driven by `server/amqp/throttle.py`, where the profile throttles as in 2009 (R-OLD-1..3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

#: How long a client may take to answer channel.flow; where not answering is no error, also how long
#: it may go on publishing after its answer (R-OLD-1).
FLOW_OK_MS = 10_000


@dataclass(slots=True, frozen=True)
class Tell:
    """channel.flow is to be sent."""

    channel: int
    active: bool


@dataclass(slots=True, frozen=True)
class Hold:
    """The connection's publishes are not to be read until the alarm clears."""


@dataclass(slots=True, frozen=True)
class Late:
    """No flow-ok came in time: the channel is to be closed (406)."""

    channel: int
    text: str


@dataclass(slots=True, frozen=True)
class Broken:
    """The client broke the rules of flow: the connection is to be closed (503)."""

    text: str
    #: Class and method of what broke them.
    method: tuple[int, int]


Action = Tell | Hold | Late | Broken

_PUBLISH = (60, 40)
_FLOW_OK = (20, 21)


@dataclass(slots=True)
class _Flow:
    #: What the channel was told last; it begins as every channel does.
    told: bool = True
    #: Its flow-ok to that is to come.
    is_awaited: bool = False
    #: Until then it may answer, or publish after its answer.
    deadline_ms: int = 0


class ChannelFlows:
    """Invariant: only channels that were told to stop stand in `_flows`, until they have answered
    that they may go on; at most one channel.flow of each has no answer.
    """

    __slots__ = ("_flows", "_is_strict", "is_on")

    def __init__(self, is_strict: bool) -> None:
        """is_strict: who does not answer or stop is closed, as by RabbitMQ 1.8; else its connection
        is not read until the alarm clears (switch `throttle.enforce_flow`).
        """
        self._is_strict = is_strict
        self._flows: dict[int, _Flow] = {}
        self.is_on = False

    @property
    def has_stopped(self) -> bool:
        """Tell whether a channel was told to stop and not yet to go on."""
        return any(not flow.told for flow in self._flows.values())

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do; None: never."""
        if not self._is_strict:
            return None
        return min(
            (flow.deadline_ms for flow in self._flows.values() if flow.is_awaited), default=None
        )

    def alarm(self, is_on: bool, publishing: Iterable[int], now_ms: int) -> list[Action]:
        """Memory or disk is short, or is not any more; `publishing`: the channels to stop."""
        self.is_on = is_on
        channels = publishing if is_on else list(self._flows)
        return [tell for channel in channels for tell in self._tell(channel, not is_on, now_ms)]

    def published(self, channel: int, now_ms: int) -> list[Action]:
        """A channel has published while `is_on`."""
        flow = self._flows.get(channel)
        if flow is None:
            return self._tell(channel, False, now_ms)
        if flow.told:
            return []
        if self._is_strict:
            if flow.is_awaited:
                # It was on its way.
                return []
            text = "basic.publish received after channel.flow_ok{active=false}"
            return [Broken(text, _PUBLISH)]
        return [Hold()] if now_ms >= flow.deadline_ms else []

    def answered(self, channel: int, active: bool, now_ms: int) -> list[Action]:
        """flow-ok came."""
        flow = self._flows.get(channel)
        if flow is None or not flow.is_awaited:
            return self._broken("unsolicited channel.flow_ok")
        if active != flow.told:
            return self._broken(
                f"received channel.flow_ok{{active={str(active).lower()}}} has incorrect polarity"
            )
        flow.is_awaited = False
        flow.deadline_ms = now_ms + FLOW_OK_MS
        if active and not self.is_on:
            del self._flows[channel]
            return []
        # What has changed while the answer was on its way.
        return self._tell(channel, not self.is_on, now_ms)

    def tick(self, now_ms: int) -> list[Action]:
        """Time has passed: who is late with its answer."""
        if not self._is_strict:
            return []
        late = [
            (channel, flow.told)
            for channel, flow in self._flows.items()
            if flow.is_awaited and now_ms >= flow.deadline_ms
        ]
        for channel, _ in late:
            del self._flows[channel]
        return [
            Late(channel, f"timeout waiting for channel.flow_ok{{active={str(told).lower()}}}")
            for channel, told in late
        ]

    def postpone(self, now_ms: int) -> None:
        """The connection is not read just now, so no answer can come."""
        for flow in self._flows.values():
            flow.deadline_ms = now_ms + FLOW_OK_MS

    def forget(self, channel: int) -> None:
        """The channel is gone."""
        self._flows.pop(channel, None)

    def _tell(self, channel: int, active: bool, now_ms: int) -> list[Action]:
        flow = self._flows.setdefault(channel, _Flow())
        if flow.is_awaited or flow.told is active:
            return []
        flow.told, flow.is_awaited = active, True
        flow.deadline_ms = now_ms + FLOW_OK_MS
        return [Tell(channel, active)]

    def _broken(self, text: str) -> list[Action]:
        """D-11: outside strict mode an answer that was not asked for is ignored."""
        return [Broken(text, _FLOW_OK)] if self._is_strict else []
