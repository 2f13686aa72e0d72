"""Logins around a user or two, for the tests of this room and of those above it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from brokerd.config import AuthConfig
from brokerd.core.catalog.catalog_objects import User
from brokerd.server.access.authentication import Authenticator
from brokerd.server.access.login_records import LoginRecords


class Users:
    """A catalog, as far as logins look at it."""

    def __init__(self, *users: User) -> None:
        self.cluster_id = "c1"
        self._users = {user.name: user for user in users}

    def user(self, name: str) -> User | None:
        return self._users.get(name)


class Variables:
    """Everybody may log in from everywhere."""

    def __init__(self) -> None:
        self.loopback_users: list[str] = []


class Background:
    """Notes what would be written, and the tasks."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    def write_later(self, operation: dict[str, Any]) -> None:
        self.written.append(operation)


class Trusting:
    """A checker to whom every password is right, or only one."""

    def __init__(self, password: str | None = None) -> None:
        self._password = password

    async def login(self, credentials: Any, *_: Any) -> bool:
        return self._password in (None, credentials.password)

    def is_current(self, stored: str) -> bool:
        return True


def authenticator(
    view: Any = None,
    checker: Any = None,
    settings: AuthConfig | None = None,
    background: Background | None = None,
    variables: Variables | None = None,
    tokens: Any = None,
) -> Authenticator:
    """Return one with what a test does not care about made up."""
    background = background or Background()
    return Authenticator(
        Users() if view is None else view,
        Trusting() if checker is None else checker,
        LoginRecords(),
        variables or Variables(),
        settings or AuthConfig(),
        background.spawn,
        background.write_later,
        tokens,
    )
