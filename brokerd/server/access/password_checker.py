"""Checks passwords beside the event loop: two threads, a queue for strangers, a memory of the good.

Which attempt is next, and how long a wrong one waits for its answer, is decided in core/logins.py;
here are the threads, the clocks and those who wait.  Used by authentication.py.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from brokerd.core import logins
from brokerd.server.access import auth

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_effects import TopologyChanged

log = logging.getLogger(__name__)

K = TypeVar("K")
V = TypeVar("V")

#: Hashes that are made at once (SEC-12).
THREADS = 2
#: How long a login that succeeded is remembered after its last use (SEC-13), and how many are.
CACHE_SECONDS = 30.0
CACHE_ENTRIES_MAX = 1024
#: Users of whose last login a few bits are remembered.
HINTS_MAX = 4096
#: Bits as bytes: too few to find a password by, enough to tell one that is probably right.
HINT_BYTES = 2
#: Logins that may wait for a check or for their answer.
PENDING_MAX = 4096


class NotChecked(Exception):
    """There was no time to check this password: too many others were tried."""

    def __init__(self) -> None:
        super().__init__("too many logins at once from this address or of this user; try again")


@dataclass(slots=True, eq=False)
class _Check:
    """One password that is checked, for all who present it at once from one address."""

    key: tuple[str, bytes]
    user: str
    stored: str | None
    password: str
    attempt: logins.Attempt
    waiting: int = 0
    #: The outcome, and how long a refusal waits; None: not checked.
    matches: bool | None = None
    hold_ms: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def end(self, matches: bool | None, hold_ms: int = 0) -> None:
        self.matches, self.hold_ms = matches, hold_ms
        self.over.set()


class PasswordChecker:
    """Owns the threads, the queue in front of them, and what is remembered of successes.

    Remembered are HMACs with a random key of this process, so that neither passwords nor anything
    to guess them from stays in memory.  They cover the stored hash: a password that was changed is
    not known any more.
    """

    def __init__(self, log2_n: int, *, is_for_rabbitmq: bool = False) -> None:
        """is_for_rabbitmq: new hashes are RabbitMQ's (auth.password_hashing)."""
        self._pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="auth")
        self._key = os.urandom(32)
        #: Token to (user, when it is forgotten), those that were used last at the end.
        self._known: dict[bytes, tuple[str, float]] = {}
        self._hints: dict[str, bytes] = {}
        self._queue = logins.LoginQueue()
        self._checks: dict[tuple[str, bytes], _Check] = {}
        self._by_attempt: dict[logins.Attempt, _Check] = {}
        self._running = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        #: Users whose imported hash is being replaced (SEC-14): once each, however many log in.
        self._renewals: set[str] = set()
        #: scrypt's cost of new hashes; None: they are RabbitMQ's.
        self._log2_n = None if is_for_rabbitmq else log2_n
        #: Checked when the user is unknown, so that both cases take the same time (SEC-9).  Its
        #: hash matches no password, hence needs no making.
        self._decoy = auth.decoy(log2_n)
        #: Logins that wait for a check or for their answer.
        self.pending = 0
        #: Passwords that were hashed to check them.
        self.checks_total = 0

    async def hash(self, password: str) -> str:
        """Return the form to store."""
        if self._log2_n is None:
            return auth.hash_for_rabbitmq(password)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, auth.hash_password, password, self._log2_n)

    def is_current(self, stored: str) -> bool:
        """Tell whether a hash is of the kind that is made now (auth.password_hashing)."""
        return auth.is_imported(stored) == (self._log2_n is None)

    async def check(self, stored: str, password: str) -> bool:
        """Check for somebody who may set passwords, hence need not guess: without the queue."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, auth.check_password, stored, password)

    async def login(
        self,
        credentials: auth.Credentials,
        stored: str | None,
        source: str,
        connection: str = "",
    ) -> bool:
        """Check what somebody presents; None (unknown user) takes as long and is False.

        source: the address, as far as shares are limited by it.  Raises NotChecked.
        """
        user, password = credentials.user, credentials.password
        token = self._token(user, stored, password)
        if stored is not None and self._is_known(token):
            return True
        if self.pending >= PENDING_MAX:
            raise NotChecked
        check = self._checks.get((source, token))
        if check is None:
            check = self._enter(credentials, stored, source, connection, token)
        check.waiting += 1
        self.pending += 1
        try:
            async with asyncio.timeout(logins.PATIENCE_MS / 1000):
                await check.over.wait()
            if check.hold_ms:
                await asyncio.sleep(check.hold_ms / 1000)
        except TimeoutError:
            pass
        finally:
            self.pending -= 1
            check.waiting -= 1
            if not check.waiting and self._by_attempt.pop(check.attempt, None) is not None:
                self._queue.leave(check.attempt)
                self._checks.pop(check.key, None)
        if check.matches is None:
            raise NotChecked
        return check.matches

    def _token(self, user: str, stored: str | None, password: str) -> bytes:
        # repr, so that no two triples look the same.
        text = repr((user, stored, password)).encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, "sha256")

    def _is_known(self, token: bytes) -> bool:
        found = self._known.pop(token, None)
        now = time.monotonic()
        if found is None or found[1] <= now:
            return False
        self._known[token] = found[0], now + CACHE_SECONDS
        return True

    def _enter(
        self,
        credentials: auth.Credentials,
        stored: str | None,
        source: str,
        connection: str,
        token: bytes,
    ) -> _Check:
        user = credentials.user
        is_likely = self._hints.get(user) == token[:HINT_BYTES]
        attempt, displaced = self._queue.enter(source, user, connection, is_likely, _now_ms())
        check = _Check((source, token), user, stored, credentials.password, attempt)
        self._checks[check.key] = self._by_attempt[attempt] = check
        if displaced is not None:
            crowded_out = self._by_attempt.pop(displaced)
            del self._checks[crowded_out.key]
            crowded_out.end(None, logins.PAIR_DELAY_MS_MAX)
        self._pump()
        return check

    def _pump(self) -> None:
        """Give the threads what is next, and come back when something is due."""
        if self._is_closed:
            return
        loop, now_ms = asyncio.get_running_loop(), _now_ms()
        while self._running < THREADS:
            attempt = self._queue.next(now_ms)
            if attempt is None:
                break
            check = self._by_attempt.pop(attempt)
            self._running += 1
            self.checks_total += 1
            work = loop.run_in_executor(
                self._pool, _matches, check.stored, check.password, self._decoy
            )
            work.add_done_callback(functools.partial(self._checked, check))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._queue.due_ms
        if due_ms is not None and self._running < THREADS:
            self._timer = loop.call_later(max(due_ms - now_ms, 1) / 1000, self._pump)

    def _checked(self, check: _Check, done: asyncio.Future[bool]) -> None:
        self._running -= 1
        del self._checks[check.key]
        if done.cancelled() or (error := done.exception()) is not None:
            if not done.cancelled():
                log.error("a password could not be checked", exc_info=error)
            check.end(None)
        elif done.result() and check.stored is not None:
            self._succeeded(check)
        else:
            if check.attempt.is_likely:
                # A guess that looks right costs its queue-jumping once.
                self._hints.pop(check.user, None)
            check.end(False, self._queue.failed(check.attempt, max(check.waiting, 1), _now_ms()))
        self._pump()

    def _succeeded(self, check: _Check) -> None:
        token = check.key[1]
        until = time.monotonic() + CACHE_SECONDS
        _remember(self._known, token, (check.user, until), CACHE_ENTRIES_MAX)
        _remember(self._hints, check.user, token[:HINT_BYTES], HINTS_MAX)
        check.end(True)
        # The same login from other addresses need not be checked again.
        for other in [other for key, other in self._checks.items() if key[1] == token]:
            if self._by_attempt.pop(other.attempt, None) is not None:
                self._queue.leave(other.attempt)
                del self._checks[other.key]
                other.end(True)

    def topology_changed(self, change: TopologyChanged) -> None:
        """SEC-13: what is known of a user's logins goes with each change of the user."""
        if change.kind == "user":
            self._hints.pop(change.name, None)
            for token in [t for t, (user, _) in self._known.items() if user == change.name]:
                del self._known[token]

    def begin_renewal(self, user: str) -> bool:
        """Mark this user's hash as being replaced; False if it is marked already."""
        if user in self._renewals:
            return False
        self._renewals.add(user)
        return True

    def end_renewal(self, user: str) -> None:
        """The user's hash is replaced, or could not be."""
        self._renewals.discard(user)

    def close(self) -> None:
        """End the threads."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _matches(stored: str | None, password: str, decoy: str) -> bool:
    """In a thread: compare, and let a refusal take as long for every kind of user (SEC-9)."""
    if stored is not None and auth.check_password(stored, password):
        return True
    if stored is None or auth.is_imported(stored):
        auth.check_password(decoy, password)
    return False


def _remember(table: dict[K, V], key: K, value: V, most: int) -> None:
    """Set an entry; the one that was set longest ago makes room."""
    table.pop(key, None)
    if len(table) >= most:
        del table[next(iter(table))]
    table[key] = value


def _now_ms() -> int:
    return int(time.monotonic() * 1000)
