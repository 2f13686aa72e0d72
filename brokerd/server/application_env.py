"""What `application:set_env(rabbit, …)` changes: settings of one member that last until it ends.

Scripts and test suites around RabbitMQ set a handful of them; `application:get_env` reads them.
Changed by the Admin service; read by listener.py for each new connection, and by authentication.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brokerd.config import BrokerConfig

#: Of tune: what fits into its fields.
CHANNEL_MAX = 65_535
FRAME_MAX = 2**31 - 1
HEARTBEAT_S = 65_535
USERS_MAX = 1000


class BadVariable(ValueError):
    """No such variable, or not a value of it; the text is for the person who asked."""


class Variables:
    """The values of now; `revision` rises with each change."""

    def __init__(self, config: BrokerConfig) -> None:
        self.channel_max = config.limits.channel_max
        self.frame_max = config.limits.frame_max
        self.heartbeat = config.limits.heartbeat_s
        #: Users who may log in from this machine only (R-CON-7).
        self.loopback_users = [
            name.strip() for name in config.auth.loopback_users.split(",") if name.strip()
        ]
        self.revision = 0

    def rows(self) -> list[dict[str, Any]]:
        """Return all with their values."""
        return [{"name": name, "value": getattr(self, name)} for name in sorted(_CHECKS)]

    def set(self, name: str, value: Any) -> None:
        """Set one; raises BadVariable."""
        check = _CHECKS.get(name)
        if check is None:
            raise BadVariable(f"unknown variable '{name}'; there are {', '.join(sorted(_CHECKS))}")
        setattr(self, name, check(name, value))
        self.revision += 1


def _number(limit: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if type(value) is not int or not 0 <= value <= limit:
            raise BadVariable(f"{name} must be an integer from 0 to {limit}")
        return value

    return check


def _frame_max(name: str, value: Any) -> int:
    size = _number(FRAME_MAX)(name, value)
    if 0 < size < 4096:
        raise BadVariable(f"{name} must be 0 or at least 4096 (AMQP 0-9-1 §1.1)")
    return size


def _users(name: str, value: Any) -> list[str]:
    if type(value) is not list or len(value) > USERS_MAX:
        raise BadVariable(f"{name} must be a list of at most {USERS_MAX} user names")
    if not all(type(item) is str for item in value):
        raise BadVariable(f"{name} must be a list of user names")
    return list(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "channel_max": _number(CHANNEL_MAX),
    "frame_max": _frame_max,
    "heartbeat": _number(HEARTBEAT_S),
    "loopback_users": _users,
}
