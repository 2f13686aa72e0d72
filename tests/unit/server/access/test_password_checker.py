"""Hashing beside the event loop: how many at once, who waits for whom, what is compared how."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import threading
from base64 import b64encode
from collections.abc import Coroutine
from typing import Any

import pytest

from brokerd.core import logins as login_queue
from brokerd.core.catalog.catalog_effects import TopologyChanged
from brokerd.server.access import auth, password_checker
from brokerd.server.access.password_checker import NotChecked, PasswordChecker

HERE, ELSEWHERE = "10.0.0.1", "10.0.0.2"


def log_in(
    checker: PasswordChecker, user: str, password: str = "pw", source: str = HERE
) -> Coroutine[Any, Any, bool]:
    """Try a password of a user; `right` below knows which are right."""
    return checker.login(auth.Credentials(user, password), f"stored-{user}", source, "socket")


class Threads:
    """check_password of a test: counts, and waits where a password says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release = threading.Event()
        self.checked: list[tuple[str, str]] = []
        monkeypatch.setattr(auth, "check_password", self._check)

    def _check(self, stored: str, password: str) -> bool:
        self.checked.append((stored, password))
        if password.startswith("slow"):
            assert self.release.wait(60)
        return password == "pw"


async def occupy(checker: PasswordChecker) -> list[asyncio.Task[bool]]:
    """Have both threads busy with somebody's passwords until they are released."""
    before = checker.checks_total
    tasks = [
        asyncio.create_task(log_in(checker, f"busy-{i}", f"slow-{i}", f"10.1.0.{i}"))
        for i in range(password_checker.THREADS)
    ]
    # Each task enters at its first turn, and the threads are free.
    await asyncio.sleep(0)
    assert checker.checks_total == before + password_checker.THREADS
    return tasks


async def test_known_logins_wait_for_nobody_and_probable_ones_for_no_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-13: behind the busy threads, and before all who came earlier."""
    threads = Threads(monkeypatch)
    checker = PasswordChecker(10)
    assert await log_in(checker, "till")
    busy = await occupy(checker)
    assert await log_in(checker, "till")
    assert await log_in(checker, "till", source=ELSEWHERE)
    # The memory of the login is gone in time, not that of its kind.
    checker._known.clear()
    wrong = [asyncio.create_task(log_in(checker, "till", f"wrong-{i}")) for i in range(30)]
    await asyncio.sleep(0)
    right = asyncio.create_task(log_in(checker, "till"))
    await asyncio.sleep(0)
    threads.release.set()
    assert await asyncio.wait_for(right, 60)
    await asyncio.gather(*busy)
    # It was the first whom a thread took.
    assert threads.checked[3] == ("stored-till", "pw")
    for task in wrong:
        task.cancel()
    checker.close()


async def test_what_is_known_of_a_user_goes_with_each_change_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-13: also where the password stays."""
    threads = Threads(monkeypatch)
    checker = PasswordChecker(10)
    assert await log_in(checker, "till")
    assert await log_in(checker, "office")
    for kind, name in (("user", "till"), ("vhost", "office")):
        checker.topology_changed(
            TopologyChanged(kind=kind, vhost="", name=name, deleted=False, revision=1, cause="")
        )
    del threads.checked[:]
    assert await log_in(checker, "office")
    assert await log_in(checker, "till")
    assert threads.checked == [("stored-till", "pw")]
    checker.close()


async def test_the_same_password_from_one_address_is_checked_once_for_all_who_send_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A storm of reconnecting clients costs one check; a right one lets in those elsewhere too."""
    threads = Threads(monkeypatch)
    checker = PasswordChecker(10)
    busy = await occupy(checker)
    many = [asyncio.create_task(log_in(checker, "till")) for _ in range(50)]
    many += [asyncio.create_task(log_in(checker, "till", source=ELSEWHERE)) for _ in range(50)]
    await asyncio.sleep(0)
    assert checker.pending == len(busy) + len(many)
    threads.release.set()
    assert await asyncio.wait_for(asyncio.gather(*many), 60) == [True] * len(many)
    assert len([one for one in threads.checked if one[0] == "stored-till"]) <= 2
    await asyncio.gather(*busy)
    assert checker.pending == 0
    checker.close()


async def test_who_goes_before_its_turn_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(monkeypatch)
    checker = PasswordChecker(10)
    busy = await occupy(checker)
    gone = asyncio.create_task(log_in(checker, "gone"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    threads.release.set()
    assert await log_in(checker, "till")
    await asyncio.gather(*busy)
    assert ("stored-gone", "pw") not in threads.checked
    assert (checker.pending, len(checker._queue), checker._checks) == (0, 0, {})
    checker.close()


async def test_logins_that_are_too_many_are_refused_without_a_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-12: at once, displaced, or out of patience; all say that nothing was checked."""
    threads = Threads(monkeypatch)
    monkeypatch.setattr(password_checker, "PENDING_MAX", 6)
    monkeypatch.setattr(login_queue, "ADDRESS_WAITING_MAX", 3)
    monkeypatch.setattr(login_queue, "PAIR_DELAY_MS_MAX", 1)
    monkeypatch.setattr(login_queue, "PATIENCE_MS", 200)
    checker = PasswordChecker(10)
    busy = await occupy(checker)
    waiting = [asyncio.create_task(log_in(checker, f"user-{i}")) for i in range(6)]
    outcomes = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert [type(outcome) for outcome in outcomes] == [NotChecked] * 6
    threads.release.set()
    await asyncio.gather(*busy, return_exceptions=True)
    assert {stored for stored, _ in threads.checked} == {"stored-busy-0", "stored-busy-1"}
    assert (checker.pending, len(checker._queue)) == (0, 0)
    checker.close()


async def test_a_check_that_breaks_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: str) -> bool:
        raise MemoryError

    monkeypatch.setattr(auth, "check_password", broken)
    checker = PasswordChecker(10)
    with pytest.raises(NotChecked):
        await log_in(checker, "till")
    assert "could not be checked" in caplog.text
    checker.close()


async def test_a_wrong_password_that_looks_right_jumps_the_queue_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One guess in 65,536 does; it must not do so for ever."""
    threads = Threads(monkeypatch)
    monkeypatch.setattr(password_checker, "HINT_BYTES", 0)
    checker = PasswordChecker(10)
    assert await log_in(checker, "till")
    assert "till" in checker._hints
    assert not await log_in(checker, "till", "wrong")
    assert "till" not in checker._hints
    assert len(threads.checked) == 2
    checker.close()


async def test_wrong_answers_wait_longer_and_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first few come at once: people mistype."""
    Threads(monkeypatch)
    monkeypatch.setattr(login_queue, "_PAIR", login_queue._Rule(2, 50, 100))
    checker = PasswordChecker(10)
    loop, took = asyncio.get_running_loop(), []
    for i in range(5):
        began = loop.time()
        assert not await log_in(checker, "till", f"wrong-{i}")
        took.append(loop.time() - began)
    assert min(took[2:]) >= 0.05
    assert min(took[3:]) >= 0.1
    checker.close()


async def test_names_that_nobody_has_cost_as_much_as_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SEC-9: a scrypt hash each, for imported users too."""
    threads = Threads(monkeypatch)
    checker = PasswordChecker(10)
    for stored in (None, "rabbitmq-sha256$x", "scrypt$10$x$y"):
        del threads.checked[:]
        assert not await checker.login(auth.Credentials("u", "wrong"), stored, HERE)
        assert threads.checked[-1][0].startswith("scrypt$10$")
    checker.close()


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
    checker = PasswordChecker(10)
    logins = [asyncio.create_task(log_in(checker, f"user-{i}")) for i in range(6)]
    # The loop turns while both threads stand still.
    await asyncio.wait_for(two.wait(), 60)
    assert (running[0], most[0]) == (2, 2)
    assert not any(login.done() for login in logins)
    release.set()
    assert await asyncio.gather(*logins) == [True] * 6
    assert most[0] == 2
    checker.close()


def imported(kind: str) -> str:
    """Return a password as RabbitMQ's definitions have it."""
    raw = b"salt" + hashlib.new(kind, b"salt" + b"secret").digest()
    return f"rabbitmq-{kind}${b64encode(raw).decode()}"


@pytest.mark.parametrize(
    "stored",
    [auth.hash_password("secret", 10), imported("sha256"), imported("sha512")],
    ids=["scrypt", "sha256", "sha512"],
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
