"""What an alarm does to one connection: its publishes wait, or channel.flow stops its channels, or
both, as the profile says (`throttle.mode`).

Carries out what core/channel_flow.py and the AMQP machine decide, and says who is blocked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from brokerd.amqp import errors, methods
from brokerd.core import channel_flow
from brokerd.core.alarms import resources_in
from brokerd.core.channel_flow import Action, ChannelFlows
from brokerd.server.access.connections import ClientT
from brokerd.server.amqp.channel_connection import ChannelConnection
from brokerd.server.amqp.channel_publishes import ChannelPublishes

if TYPE_CHECKING:
    from brokerd.server.amqp.ports import ConnectionServices

#: The reason under which reading waits for an alarm.
ALARM = "alarm"


class Throttle:
    """One per connection.  It is *blocked* from the moment that an alarm has stopped it (R-ALM-2)
    or channel.flow has stopped one of its channels (R-OLD-1), until no alarm is on or it has ended.
    """

    def __init__(
        self,
        connection: ChannelConnection,
        services: ConnectionServices[ClientT],
        sessions: Mapping[int, ChannelPublishes],
    ) -> None:
        """sessions: the connection's, by channel."""
        profile = services.channels.profile
        self._connection = connection
        self._sessions = sessions
        self._blocking_reason = services.blocking_reason
        self._clock_ms = services.clock_ms
        self._wheel = services.wheel
        self._counters = services.channels.counters
        self._blocked = services.connections.blocked
        self._holds = profile.throttle_mode != "channel_flow"
        self._flows: ChannelFlows | None = None
        if profile.throttle_mode != "blocked":
            self._flows = ChannelFlows(profile.throttle_enforce_flow == "close")
        self._stops_all = profile.throttle_flow_all_channels
        #: Channels whose channel.open-ok waits for the end of the alarm.
        self._unopened: dict[int, None] = {}
        self._is_told = False
        #: On the counters' clock; None: not blocked.
        self._blocked_since_us: int | None = None
        self._resources: set[str] = set()
        #: Publishes are of interest: an alarm is on, and channel.flow announces it.
        self.watches = False

    # ---- alarms -----------------------------------------------------------------------------

    def alarms_changed(self, reason: str) -> None:
        """reason: of connection.blocked, "" when no alarm is on anywhere (R-ALM-2..7)."""
        is_on, connection = bool(reason), self._connection
        connection.machine.hold_publishes = is_on and self._holds
        if self._blocked_since_us is not None:
            self._resources.update(resources_in(reason))
        flows = self._flows
        if flows is not None:
            self.watches = is_on
            self._act(flows.alarm(is_on, self._publishing(), self._now_ms()))
        if is_on:
            return
        if self._is_told:
            self._is_told = False
            connection.machine.send(0, methods.ConnectionUnblocked())
        self._unblocked()
        unopened, self._unopened = self._unopened, {}
        for channel in unopened:
            # One that is refused costs the connection.
            if connection.is_open:
                connection.open_channel(channel)
        if connection.gate.release(ALARM):
            connection.publishes_resumed()

    def _publishing(self) -> list[int]:
        """Return the channels that an alarm stops (R-OLD-3)."""
        return [number for number, it in self._sessions.items() if it.published or self._stops_all]

    def publish_held(self) -> None:
        """R-ALM-2, -5: the first content that arrives during an alarm makes it blocked."""
        connection = self._connection
        connection.gate.hold(ALARM)
        reason = self._blocking_reason()
        if reason and not self._is_told and connection.machine.client_has("connection.blocked"):
            self._is_told = True
            connection.machine.send(0, methods.ConnectionBlocked(reason))
        self._is_blocked()

    def _is_blocked(self) -> None:
        if self._blocked_since_us is None:
            reason = self._blocking_reason()
            self._blocked_since_us = self._counters.clock_us()
            self._resources.update(resources_in(reason))
            self._blocked.add(self._connection, self._clock_ms(), reason)

    def _unblocked(self) -> None:
        """Tell telemetry how long the alarm held this connection (event `throttle`)."""
        since_us, self._blocked_since_us = self._blocked_since_us, None
        if since_us is None:
            return
        connection = self._connection
        self._blocked.discard(connection)
        blocked_ms = (self._counters.clock_us() - since_us) // 1000
        mode = "connection_blocked" if self._holds else "channel_flow"
        cause = " & ".join(sorted(self._resources))
        self._resources.clear()
        self._counters.throttle(
            connection.vhost, connection.user, connection.name, mode, blocked_ms, cause
        )

    def ended(self) -> None:
        """The connection is over."""
        self.watches = False
        self._unblocked()

    # ---- channels ---------------------------------------------------------------------------

    def delays_open(self, channel: int) -> bool:
        """Tell whether open-ok waits for the end of the alarm (R-OLD-1, strict); it comes then."""
        if not (self.watches and self._stops_all):
            return False
        self._unopened[channel] = None
        return True

    def is_unopened(self, channel: int) -> bool:
        """Tell whether a channel's open-ok is still to come."""
        return channel in self._unopened

    def published(self, channel: int) -> None:
        """A channel has published while `watches`."""
        assert self._flows is not None
        self._act(self._flows.published(channel, self._now_ms()))

    def flow_ok(self, channel: int, active: bool) -> None:
        """The client has answered channel.flow."""
        if self._flows is not None:
            self._act(self._flows.answered(channel, active, self._now_ms()))

    def channel_gone(self, channel: int) -> None:
        """The channel is closed."""
        self._unopened.pop(channel, None)
        if self._flows is not None:
            self._flows.forget(channel)

    # ---- time -------------------------------------------------------------------------------

    @property
    def next_deadline_ms(self) -> int | None:
        """When `tick` has something to do."""
        return None if self._flows is None else self._flows.next_deadline_ms

    def tick(self, now_ms: int) -> None:
        """Who does not answer is late, unless it is we who do not read."""
        if self._flows is None:
            return
        if self._connection.gate.is_held:
            self._flows.postpone(now_ms)
        self._act(self._flows.tick(now_ms))

    def _now_ms(self) -> int:
        return self._wheel.now_ms()

    # ---- what is to be done -----------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        connection = self._connection
        for action in actions:
            match action:
                case channel_flow.Tell(channel, active):
                    connection.machine.send(channel, methods.ChannelFlow(active))
                    if not active:
                        self._is_blocked()
                case channel_flow.Hold():
                    connection.machine.hold_publishes = True
                case channel_flow.Late(channel, text):
                    session = self._sessions.get(channel)
                    if session is not None:
                        session.fail(errors.PreconditionFailed(text), 0, 0)
                case channel_flow.Broken(text, method):
                    connection.fail(
                        errors.CommandInvalid(text, class_id=method[0], method_id=method[1])
                    )
                    return
        if actions:
            connection.watch()
            connection.flush_soon()
