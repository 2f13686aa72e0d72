"""The login of an AMQP connection: what it is offered, and what its answer comes to."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from brokerd.amqp.config import ConnectionConfig
from brokerd.amqp.events import AuthenticationRequested
from brokerd.config import AuthConfig
from brokerd.core.catalog.catalog_objects import User
from brokerd.core.catalog.identity import Identity
from brokerd.server.amqp.client_login import ClientLogin
from tests.unit.server.access.fakes import Trusting, Users, authenticator

PLAIN = b"\0anna\0secret"


class Transport:
    """A socket whose client has this certificate, as ssl's getpeercert has it."""

    def __init__(self, *subject: tuple[tuple[str, str], ...]) -> None:
        self._certificate = {"subject": subject} if subject else None

    def get_extra_info(self, name: str) -> Any:
        assert name == "peercert"
        return self._certificate


def offered(login: ClientLogin, *subject: tuple[tuple[str, str], ...]) -> str:
    transport = cast(asyncio.Transport, Transport(*subject))
    return login.offer(ConnectionConfig(), transport, "common_name").mechanisms


def login(is_tls: bool = False, password: str = "secret", **settings: Any) -> ClientLogin:
    users = Users(User("user", "", "anna", {"password_hash": "x", "tags": ["management"]}))
    made = authenticator(users, Trusting(password), AuthConfig(**settings))
    return ClientLogin(made, is_tls)


async def verdict(of: ClientLogin, mechanism: str, response: bytes) -> tuple[Any, bool]:
    event = AuthenticationRequested(mechanism, response, {}, "en_US")
    return await of.verdict(event, "192.0.2.1", "a connection")


@pytest.mark.parametrize(
    ("is_tls", "subject", "is_external"),
    [
        (False, ((("commonName", "anna"),),), False),
        (True, (), False),
        (True, ((("organizationName", "x"),),), False),
        (True, ((("commonName", "anna"),),), True),
    ],
)
async def test_only_who_has_a_name_in_its_certificate_is_offered_external(
    is_tls: bool, subject: Any, is_external: bool
) -> None:
    """SEC-6."""
    plain = ConnectionConfig().mechanisms
    expected = f"EXTERNAL {plain}" if is_external else plain
    of = login(is_tls)
    assert offered(of, *subject) == expected
    found, is_readable = await verdict(of, "EXTERNAL", b"")
    assert is_readable
    assert found == (Identity("anna", ("management",)) if is_external else None)


async def test_a_password_is_right_wrong_or_unreadable() -> None:
    assert await verdict(login(), "PLAIN", PLAIN) == (Identity("anna", ("management",)), True)
    assert await verdict(login(password="other"), "PLAIN", PLAIN) == (None, True)
    assert await verdict(login(), "PLAIN", b"anna") == (None, False)
