"""Password hashes, credentials and addresses."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode

import pytest

from brokerd.core.unauthenticated import source_of
from brokerd.server.access import auth
from brokerd.server.access.password_checker import PasswordChecker


def test_hashes_of_all_formats_are_checked() -> None:
    """SEC-11, SEC-14."""
    scrypt = auth.hash_password("secret", 10)
    salt = b"salt"
    imported = (
        "rabbitmq-sha256$" + b64encode(salt + hashlib.sha256(salt + b"secret").digest()).decode()
    )
    for stored in (scrypt, imported):
        assert auth.check_password(stored, "secret")
        assert not auth.check_password(stored, "Secret")
    for broken in ("", "scrypt$x$y$z", "scrypt$10$!!$", "md5$abc", "rabbitmq-sha512$!"):
        assert not auth.check_password(broken, "secret")


def test_a_hash_for_rabbitmq_is_the_one_that_it_makes() -> None:
    """SEC-14; 4.3.6 made it of the password secret."""
    theirs = "HyeYooD79dVIRxjQN6vpHdwDUTmaqf+mDzDGGr+gQx7rFrJs"
    salt = b64decode(theirs)[:4]
    assert auth.hash_for_rabbitmq("secret", salt) == f"rabbitmq-sha256${theirs}"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("fe80::1%eth0", False),
        ("10.0.0.1", False),
        ("?", False),
    ],
)
def test_loopback_addresses(address: str, expected: bool) -> None:
    """R-CON-7."""
    assert auth.is_loopback(address) is expected


def test_credentials_have_a_sensible_size_and_are_never_shown() -> None:
    assert auth.credentials("", "x") is None
    assert auth.credentials("u" * 256, "x") is None
    assert auth.credentials("u", "x" * 4097) is None
    made = auth.credentials("u", "topsecret")
    assert made is not None
    assert "topsecret" not in repr(made)


async def test_unknown_users_are_never_let_in_and_successes_are_remembered() -> None:
    """SEC-9, SEC-13."""
    checker = PasswordChecker(10)
    stored = await checker.hash("pw")

    async def login(stored: str | None, password: str) -> bool:
        return await checker.login(auth.Credentials("u", password), stored, "10.0.0.1")

    assert [await login(stored, "pw"), await login(stored, "pw")] == [True, True]
    assert checker.checks_total == 1
    assert not await login(stored, "no")
    assert not await login(None, "pw")
    # An administrator who sets passwords asks beside the queue.
    assert [await checker.check(stored, text) for text in ("pw", "no")] == [True, False]
    assert checker.checks_total == 3
    checker.close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", "?"),
    ],
)
def test_shares_are_by_ipv4_address_and_ipv6_network(address: str, expected: str) -> None:
    """SEC-34: a host has one address of the old kind, and 2**64 of the new."""
    assert source_of(address) == expected
