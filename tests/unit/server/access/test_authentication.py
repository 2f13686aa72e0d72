"""Who gets in, from where, and what is written down of it (the hashes: test_imported_hashes.py)."""

from __future__ import annotations

import pytest

from brokerd.core.catalog.catalog_objects import User
from brokerd.core.catalog.identity import Identity
from brokerd.server.access import auth, login_records
from brokerd.server.access.authentication import Authenticator
from brokerd.server.access.login_records import Client
from tests.unit.server.access.fakes import Trusting, Users, Variables, authenticator

HERE = Client("amqp", "127.0.0.1", "127.0.0.1:1 -> 127.0.0.1:2")
ELSEWHERE = Client("amqps", "10.0.0.7", "10.0.0.7:1 -> 10.0.0.1:2")
NAMES = (("guest", "administrator"), ("till", "monitoring"))


def users() -> Users:
    return Users(
        *(User("user", "", name, {"tags": [tag], "password_hash": "h"}) for name, tag in NAMES)
    )


def at_home() -> Authenticator:
    """Return one that lets guest in from this machine only."""
    variables = Variables()
    variables.loopback_users = ["guest"]
    return authenticator(users(), Trusting("right"), variables=variables)


@pytest.mark.parametrize(
    ("user", "password", "client", "reason"),
    [
        ("till", "right", ELSEWHERE, ""),
        ("guest", "right", HERE, ""),
        ("guest", "right", ELSEWHERE, login_records.LOOPBACK),
        ("till", "wrong", HERE, login_records.CREDENTIALS),
    ],
)
async def test_passwords_let_in_some_only_from_here(
    user: str, password: str, client: Client, reason: str
) -> None:
    """R-CON-7: and each login is counted, with its listener."""
    who = at_home()
    login = await who.authenticate(auth.Credentials(user, password), client)
    if reason:
        assert login is None
        assert (who.records.refused, who.records.accepted) == ({(client.listener, reason): 1}, {})
    else:
        assert login == Identity(user, (dict(NAMES)[user],))
        assert (who.records.refused, who.records.accepted) == ({}, {client.listener: 1})


async def test_what_is_no_password_is_refused_without_a_look() -> None:
    who = at_home()
    assert await who.authenticate(None, HERE) is None
    assert who.records.refused == {("amqp", login_records.UNREADABLE): 1}


@pytest.mark.parametrize(
    ("name", "client", "expected"),
    [
        ("till", ELSEWHERE, Identity("till", ("monitoring",))),
        ("guest", HERE, Identity("guest", ("administrator",))),
        ("guest", ELSEWHERE, None),
        ("nobody", HERE, None),
        (None, HERE, None),
    ],
)
def test_a_certificate_lets_in_the_user_that_it_names(
    name: str | None, client: Client, expected: object
) -> None:
    """SEC-6, R-CON-7: without a password."""
    assert at_home().authenticate_name(name, client) == expected
