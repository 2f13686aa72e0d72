"""Hashing beside the event loop: how many at once, how many may wait, what is compared how."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
from base64 import b64encode
from typing import Any

import pytest

from brokerd.server import auth


async def test_two_passwords_are_hashed_at_once_and_the_loop_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-12: threads of their own, never a third."""
    release = threading.Event()
    lock = threading.Lock()
    running: list[int] = [0]
    most: list[int] = [0]

    loop = asyncio.get_running_loop()
    two = asyncio.Event()

    def slow(stored: str, password: str) -> bool:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
            if running[0] == 2:
                loop.call_soon_threadsafe(two.set)
        assert release.wait(60)
        with lock:
            running[0] -= 1
        return True

    monkeypatch.setattr(auth, "check_password", slow)
    checker = auth.PasswordChecker(10)
    logins = [asyncio.create_task(checker.check(f"stored-{i}", "pw")) for i in range(6)]
    # The loop turns while both threads stand still.
    await asyncio.wait_for(two.wait(), 60)
    assert (running[0], most[0]) == (2, 2)
    assert not any(login.done() for login in logins)
    release.set()
    assert await asyncio.gather(*logins) == [True] * 6
    assert most[0] == 2
    checker.close()


async def test_a_flood_of_logins_is_refused_and_not_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    """SEC-12: above WAITING_MAX nobody waits for a thread."""
    release = threading.Event()
    monkeypatch.setattr(auth, "check_password", lambda *_: release.wait(60))
    monkeypatch.setattr(auth, "WAITING_MAX", 5)
    checker = auth.PasswordChecker(10)
    logins = [asyncio.create_task(checker.check(f"stored-{i}", "pw")) for i in range(9)]
    refused = asyncio.gather(*logins[5:])
    assert await asyncio.wait_for(refused, 60) == [False] * 4
    release.set()
    assert await asyncio.gather(*logins[:5]) == [True] * 5
    checker.close()


def imported(kind: str) -> str:
    """Return a password as RabbitMQ's definitions have it."""
    raw = b"salt" + hashlib.new(kind, b"salt" + b"secret").digest()
    return f"rabbitmq-{kind}${b64encode(raw).decode()}"


@pytest.mark.parametrize(
    "stored", [auth.hash_password("secret", 10), imported("sha256"), imported("sha512")]
)
def test_hashes_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch, stored: str) -> None:
    """SEC-8, SEC-14: hmac.compare_digest decides, nothing else."""
    calls: list[bool] = []
    original = hmac.compare_digest

    def counted(first: Any, second: Any) -> bool:
        calls.append(original(first, second))
        return calls[-1]

    monkeypatch.setattr(hmac, "compare_digest", counted)
    assert auth.check_password(stored, "secret")
    assert not auth.check_password(stored, "secreT")
    assert calls == [True, False]
    monkeypatch.setattr(hmac, "compare_digest", lambda *_: False)
    assert not auth.check_password(stored, "secret")
