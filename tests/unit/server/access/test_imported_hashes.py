"""What becomes of RabbitMQ's password hashes when their users log in (SEC-14), and of the cache."""

from __future__ import annotations

import asyncio
import hashlib
from base64 import b64encode

import pytest

from brokerd.core.catalog.catalog_objects import Owner, User
from brokerd.server.access import auth, password_checker
from brokerd.server.access.login_records import Client
from brokerd.server.access.password_checker import PasswordChecker
from tests.unit.server.access.fakes import Background, Users, authenticator

SALT = b"salt"
IMPORTED = "rabbitmq-sha256$" + (
    b64encode(SALT + hashlib.sha256(SALT + b"secret").digest()).decode()
)
HERE = Client("amqp", "127.0.0.1", "127.0.0.1:1 -> 127.0.0.1:2")


class Rig:
    """One user who logs in, and notes of what would be written."""

    def __init__(self, stored: str, owner: Owner | None = None, **options: bool) -> None:
        spec = {"tags": ["monitoring"], "limits": {}, "password_hash": stored}
        self.user = User("user", "", "till", spec)
        self.user.owner = owner
        background = Background()
        self.written, self.tasks = background.written, background.tasks
        self.checker = PasswordChecker(10, **options)
        self.authenticator = authenticator(Users(self.user), self.checker, background=background)

    async def login(self, password: str) -> bool:
        """Log in and let what follows happen."""
        known = auth.Credentials("till", password)
        verdict = await self.authenticator.authenticate(known, HERE)
        await asyncio.gather(*self.tasks)
        return verdict is not None


async def test_an_imported_hash_is_replaced_at_the_first_login() -> None:
    """SEC-14: by scrypt of the same password; nothing else of the user changes."""
    rig = Rig(IMPORTED)
    assert await rig.login("secret")
    [operation] = rig.written
    assert (operation["kind"], operation["name"]) == ("user", "till")
    assert operation["precondition"] == {"hash": rig.user.hash()}
    spec = dict(operation["spec"])
    stored = spec.pop("password_hash")
    assert spec == {"tags": ["monitoring"], "limits": {}}
    assert stored.startswith("scrypt$")
    assert auth.check_password(stored, "secret")
    rig.checker.close()


async def test_a_wrong_password_replaces_nothing() -> None:
    rig = Rig(IMPORTED)
    assert not await rig.login("Secret")
    assert rig.written == []
    rig.checker.close()


async def test_asking_whether_a_password_is_right_replaces_nothing() -> None:
    """brokerctl authenticate_user: definitions can still go back to RabbitMQ."""
    rig = Rig(IMPORTED)
    known = auth.Credentials("till", "secret")
    assert await rig.authenticator.enquire(known)
    assert await rig.authenticator.enquire(None) is None
    assert (rig.tasks, rig.written) == ([], [])
    rig.checker.close()


async def test_hashes_of_ours_and_of_resources_stay() -> None:
    """SEC-14: what a resource asks for is not changed behind its back."""
    for rig in (Rig(auth.hash_password("secret", 10)), Rig(IMPORTED, Owner("op", "User/x", "u"))):
        assert await rig.login("secret")
        assert rig.written == []
        rig.checker.close()


async def test_hashes_for_rabbitmq_are_made_kept_and_not_replaced() -> None:
    """SEC-14: auth.password_hashing, for the way to a RabbitMQ."""
    rig = Rig(IMPORTED, is_for_rabbitmq=True)
    assert await rig.login("secret")
    assert rig.written == []
    made = await rig.checker.hash("topf")
    assert made.startswith("rabbitmq-sha256$")
    assert made != await rig.checker.hash("topf")
    assert auth.check_password(made, "topf")
    scrypt = auth.hash_password("secret", 10)
    assert (rig.checker.is_current(made), rig.checker.is_current(scrypt)) == (True, False)
    rig.checker.close()
    rig = Rig(scrypt, is_for_rabbitmq=True)
    # A login makes no hash cheaper.
    assert await rig.login("secret")
    assert rig.written == []
    rig.checker.close()
    ours = PasswordChecker(10)
    assert (ours.is_current(made), ours.is_current(scrypt)) == (False, True)
    ours.close()


async def test_many_logins_at_once_replace_it_once() -> None:
    rig = Rig(IMPORTED)
    assert all(await asyncio.gather(*[rig.login("secret") for _ in range(5)]))
    assert len(rig.written) == 1
    assert await rig.login("secret")
    # The catalog has refused or taken the first by now; the next login may try again.
    assert len(rig.written) == 2
    rig.checker.close()


async def test_the_cache_spares_the_hashing_and_forgets_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-13, SEC-9: keyed by the stored hash; failures and unknown users cost each time."""
    calls: list[tuple[str, str]] = []
    now = [1000.0]

    def counted(stored: str, password: str) -> bool:
        calls.append((stored, password))
        return password == "secret"

    monkeypatch.setattr(auth, "check_password", counted)
    monkeypatch.setattr(password_checker.time, "monotonic", lambda: now[0])
    checker = PasswordChecker(10)

    async def login(stored: str | None, password: str, user: str = "till") -> bool:
        return await checker.login(auth.Credentials(user, password), stored, "10.0.0.1")

    assert [await login("one", "secret") for _ in range(3)] == [True] * 3
    assert len(calls) == 1
    # Another hash of the same user, a wrong password, nobody: none is answered from memory.
    for stored, password in (("two", "secret"), ("one", "wrong"), ("one", "wrong"), (None, "x")):
        await login(stored, password)
    assert len(calls) == 5
    # Nobody's password is compared with a hash that costs as much as anybody's.
    assert calls[-1][0].startswith("scrypt$10$")
    # Each use counts.
    for _ in range(3):
        now[0] += password_checker.CACHE_SECONDS - 1
        assert await login("one", "secret")
    assert len(calls) == 5
    now[0] += password_checker.CACHE_SECONDS + 1
    assert await login("one", "secret")
    assert len(calls) == 6
    # What is remembered is bounded: who was here longest ago goes.
    monkeypatch.setattr(password_checker, "CACHE_ENTRIES_MAX", 2)
    for user in ("a", "b", "c"):
        assert await login("one", "secret", user)
    del calls[:]
    for user in ("b", "c", "a"):
        assert await login("one", "secret", user)
    assert len(calls) == 1
    checker.close()
