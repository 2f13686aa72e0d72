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
from tests.unit.server.access.fakes import Trusting, Users, Variables, authenticator

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
    return login.offer(ConnectionConfig(), transport).mechanisms


def login(is_tls: bool = False, password: str = "secret", **settings: Any) -> ClientLogin:
    value = {"password_hash": "x", "tags": ["management"]}
    users = Users(*(User("user", "", name, value) for name in ("anna", "here")))
    variables = Variables()
    variables.loopback_users = ["here"]
    auth = AuthConfig(certificate_login_from="common_name", **settings)
    made = authenticator(users, Trusting(password), auth, variables=variables)
    return ClientLogin(made, auth, is_tls)


async def verdict(
    of: ClientLogin, mechanism: str, response: bytes, address: str = "192.0.2.1"
) -> tuple[Any, bool]:
    event = AuthenticationRequested(mechanism, response, {}, "en_US")
    return await of.verdict(event, address, "a connection")


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


@pytest.mark.parametrize(
    ("user", "address", "is_in"),
    [
        ("anna", "192.0.2.1", True),
        ("nobody", "192.0.2.1", False),
        ("here", "192.0.2.1", False),
        ("here", "127.0.0.1", True),
    ],
)
@pytest.mark.parametrize("is_tls", [False, True])
async def test_who_has_no_credentials_is_the_user_of_the_setting(
    is_tls: bool, user: str, address: str, is_in: bool
) -> None:
    """R-CON-3, R-CON-7: ANONYMOUS is offered last, whatever it sends is no password (RFC 4505), and
    a user who comes from this machine only stays one.
    """
    of = login(is_tls, anonymous_login_user=user, passwords_without_tls="deny")
    assert offered(of) == f"{ConnectionConfig().mechanisms} ANONYMOUS"
    for trace in (b"", b"\0anna\0wrong", b"\xff" * 300):
        found, is_readable = await verdict(of, "ANONYMOUS", trace, address)
        assert is_readable
        assert found == (Identity(user, ("management",)) if is_in else None)


async def test_anonymous_clients_have_a_certificate_too() -> None:
    of = login(is_tls=True, anonymous_login_user="anna")
    name = ((("commonName", "here"),),)
    assert offered(of, *name) == f"EXTERNAL {ConnectionConfig().mechanisms} ANONYMOUS"
    assert await verdict(of, "EXTERNAL", b"", "127.0.0.1") == (
        Identity("here", ("management",)),
        True,
    )


async def test_without_the_setting_anonymous_is_nobody() -> None:
    assert "ANONYMOUS" not in offered(login())
    assert await verdict(login(), "ANONYMOUS", b"anna", "127.0.0.1") == (None, True)
