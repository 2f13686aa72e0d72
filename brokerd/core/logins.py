"""Whose password is checked next, and when: fair between addresses, slower after each failure.

Pure: attempts come in with the time, the next one to be checked goes out; hashing, waiting and
answering are auth.py's.  Checking costs tens of milliseconds of a thread (SEC-11, SEC-12), so
strangers must not decide how much of it is done, nor who waits for it:

- An attempt whose password is probably right (it is that of the user's last login) is next.
- All others wait by address and, within it, by user.  The address that was served longest ago is
  next; within it connections take turns, and then users, so that a flood from one address, over
  one connection or with one user's name waits behind itself.  A pair of address and user waits
  longer after each failure, an address after many.  What one address does never slows another one
  down, also where both name the same user.
- Of what is left, who came last is next: in a flood those that came first have no patience left,
  and somebody who comes now is served now.
- What waits is bounded; of an address with too many, the connection with most gives way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

K = TypeVar("K")

#: Attempts that wait, of one address and in all.
ADDRESS_WAITING_MAX = 512
WAITING_MAX = 2048
#: How long an attempt waits for its turn: shorter than the handshake's ten seconds (R-CON-4).
PATIENCE_MS = 8_000
#: Wrong passwords of one user from one address that cost no delay, the first delay, which doubles
#: with each further one, and the longest.
PAIR_FREE = 10
PAIR_DELAY_MS = 100
PAIR_DELAY_MS_MAX = 2_000
#: The same for an address, for all users it names: many of those behind it may be right.
ADDRESS_FREE = 100
ADDRESS_DELAY_MS = 10
ADDRESS_DELAY_MS_MAX = 250
#: Milliseconds without another failure after which one is forgotten.
FORGET_MS = 5_000
#: Pairs and addresses whose failures are remembered; those that were quiet longest are forgotten.
REMEMBERED_MAX = 2048


@dataclass(slots=True, eq=False)
class Attempt:
    """Somebody who wants to log in."""

    address: str
    user: str
    is_likely: bool
    #: Order of arrival.
    number: int
    #: How many attempts of its connection came before it while others of the address waited.
    turn: int = 0


#: Attempts of one user from one address, in order of arrival.
_Waiting = dict[Attempt, None]


@dataclass(slots=True)
class _Line:
    """Attempts of one address, by user."""

    waiting_of_user: dict[str, _Waiting] = field(default_factory=dict)
    #: Attempts of each connection since the line began.
    turns: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def give_way(self) -> Attempt:
        """Return the oldest of those whose connection had most turns."""
        found = (attempt for each in self.waiting_of_user.values() for attempt in each)
        return max(found, key=lambda attempt: (attempt.turn, -attempt.number))


@dataclass(slots=True)
class _Past:
    """What is remembered of a pair or of an address."""

    failures: int = 0
    failed_ms: int = 0
    #: Nothing of it is checked before.
    due_ms: int = 0
    #: When it was served last, as a number that grows with each check; 0: never.
    served: int = 0


@dataclass(slots=True, frozen=True)
class _Rule:
    free: int
    delay_ms: int
    delay_ms_max: int

    def delay_of(self, past: _Past) -> int:
        """Return how long it waits after a failure."""
        over = past.failures - self.free
        return 0 if over <= 0 else min(self.delay_ms << over - 1, self.delay_ms_max)

    def failed(self, past: _Past, count: int, now_ms: int) -> int:
        """Remember failures; return the delay."""
        quiet = (now_ms - past.failed_ms) // FORGET_MS
        # As many as the longest delay needs, or a flood would be remembered for hours.
        most = self.free + 1 + (self.delay_ms_max // self.delay_ms).bit_length()
        past.failures = min(max(past.failures - quiet, 0) + count, most)
        past.failed_ms = now_ms
        delay_ms = self.delay_of(past)
        past.due_ms = max(past.due_ms, now_ms + delay_ms)
        return delay_ms


_PAIR = _Rule(PAIR_FREE, PAIR_DELAY_MS, PAIR_DELAY_MS_MAX)
_ADDRESS = _Rule(ADDRESS_FREE, ADDRESS_DELAY_MS, ADDRESS_DELAY_MS_MAX)
_NO_PAST = _Past()


class LoginQueue:
    """`due_ms` says when `next` has something again; None: not before somebody enters."""

    def __init__(self) -> None:
        self._likely: dict[Attempt, None] = {}
        self._lines: dict[str, _Line] = {}
        #: Attempts in `_lines`.
        self._count = 0
        self._pairs: dict[tuple[str, str], _Past] = {}
        self._addresses: dict[str, _Past] = {}
        self._entered = 0
        self._served = 0
        self.due_ms: int | None = None

    def __len__(self) -> int:
        return len(self._likely) + self._count

    def enter(
        self, address: str, user: str, connection: str, is_likely: bool, now_ms: int
    ) -> tuple[Attempt, Attempt | None]:
        """Take an attempt in; return it and the one that it displaces."""
        self._entered += 1
        attempt = Attempt(address, user, is_likely, self._entered)
        if is_likely and len(self._likely) < WAITING_MAX:
            self._likely[attempt] = None
            self.due_ms = now_ms
            return attempt, None
        attempt.is_likely = False
        displaced = self._displaced(address)
        if displaced is not None:
            self.leave(displaced)
        line = self._lines.setdefault(address, _Line())
        attempt.turn = line.turns.get(connection, 0)
        if len(line.turns) >= WAITING_MAX:
            line.turns.clear()
        line.turns[connection] = attempt.turn + 1
        line.waiting_of_user.setdefault(user, {})[attempt] = None
        line.count += 1
        self._count += 1
        ready_ms = self._ready_ms(address, user)
        self.due_ms = ready_ms if self.due_ms is None else min(self.due_ms, ready_ms)
        return attempt, displaced

    def leave(self, attempt: Attempt) -> None:
        """It waits no longer: its turn has come, its client has gone, or it has no patience."""
        if attempt.is_likely:
            self._likely.pop(attempt, None)
            return
        line = self._lines.get(attempt.address)
        waiting = None if line is None else line.waiting_of_user.get(attempt.user)
        if line is None or waiting is None or attempt not in waiting:
            return
        del waiting[attempt]
        line.count -= 1
        self._count -= 1
        if not waiting:
            del line.waiting_of_user[attempt.user]
        if not line.count:
            del self._lines[attempt.address]

    def next(self, now_ms: int) -> Attempt | None:
        """Return whose password is to be checked now; it waits no longer."""
        if self._likely:
            likely = next(iter(self._likely))
            del self._likely[likely]
            return likely
        if self.due_ms is None or self.due_ms > now_ms:
            return None
        attempt = self._next_of_lines(now_ms)
        if attempt is None:
            return None
        self.leave(attempt)
        self._served += 1
        pair, address = self._pasts(attempt)
        pair.served = address.served = self._served
        pair.due_ms = now_ms + _PAIR.delay_of(pair)
        address.due_ms = now_ms + _ADDRESS.delay_of(address)
        self.due_ms = now_ms
        return attempt

    def failed(self, attempt: Attempt, count: int, now_ms: int) -> int:
        """Its password was wrong, for `count` clients; return how long the answer waits."""
        pair, address = self._pasts(attempt)
        return max(_PAIR.failed(pair, count, now_ms), _ADDRESS.failed(address, count, now_ms))

    def _ready_ms(self, address: str, user: str) -> int:
        of_address = self._addresses.get(address, _NO_PAST)
        return max(of_address.due_ms, self._pairs.get((address, user), _NO_PAST).due_ms)

    def _next_of_lines(self, now_ms: int) -> Attempt | None:
        """Return the attempt whose turn it is; None: note in `due_ms` when there will be one."""
        best: tuple[int, int, int, int] | None = None
        found: Attempt | None = None
        due_ms: int | None = None
        for address, line in self._lines.items():
            served = self._addresses.get(address, _NO_PAST).served
            for user, waiting in line.waiting_of_user.items():
                ready_ms = self._ready_ms(address, user)
                if ready_ms > now_ms:
                    due_ms = ready_ms if due_ms is None else min(due_ms, ready_ms)
                    continue
                pair = self._pairs.get((address, user), _NO_PAST)
                first = min(waiting, key=_by_turn)
                rank = served, first.turn, pair.served, -first.number
                if best is None or rank < best:
                    best, found = rank, first
        if found is None:
            self.due_ms = due_ms
        return found

    def _displaced(self, address: str) -> Attempt | None:
        """Return who must go so that one more of this address may wait."""
        line = self._lines.get(address)
        if line is not None and line.count >= ADDRESS_WAITING_MAX:
            return line.give_way()
        if self._count < WAITING_MAX:
            return None
        return max(self._lines.values(), key=lambda line: line.count).give_way()

    def _pasts(self, attempt: Attempt) -> tuple[_Past, _Past]:
        """Return what is remembered of its pair and of its address."""
        pair = _remembered(self._pairs, (attempt.address, attempt.user))
        return pair, _remembered(self._addresses, attempt.address)


def _by_turn(attempt: Attempt) -> tuple[int, int]:
    return attempt.turn, -attempt.number


def _remembered(table: dict[K, _Past], key: K) -> _Past:
    """Return a key's past, which is now the one that is forgotten last."""
    past = table.pop(key, None) or _Past()
    if len(table) >= REMEMBERED_MAX:
        del table[next(iter(table))]
    table[key] = past
    return past
