"""Messages that were given up for their delivery limit: which kind of message, handed out how often
(design/telemetry.md §6.6, event `redel`).

Counted where a letter is made of such a message, or where it is dropped since there is nowhere to
send one; never on the way of a delivery.  A fingerprint stands for messages that look alike:
routing key, names of headers, and what else the publisher says of them, never a body nor the value
of a header.  Bounded by queue and minute.  Pure; used by the counters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, TypeAlias

from brokerd.amqp import errors as amqp_errors
from brokerd.amqp.properties import BasicProperties

Row: TypeAlias = dict[str, Any]

MINUTE_MS = 60_000
#: Messages of a queue that are looked at in a minute; those beyond are counted without fingerprint.
LOOKS_A_MINUTE = 100
#: Rows of an interval; what finds no room is only in the queue's own counters.
ROWS_MAX = 10_000
#: Of headers that the broker adds on the way; they differ from round to round.
_OWN_HEADERS = ("x-death", "x-first-death-", "x-last-death-", "x-delivery-count",
                "x-acquired-count")  # fmt: skip
_DIGITS = 16


def fingerprint(routing_key: str, header: bytes) -> str:
    """Return 16 hexadecimal digits, the same for messages that look alike.

    header: stored properties; those that cannot be read are as none.
    """
    try:
        told = BasicProperties.decode(header)
    except amqp_errors.AmqpError:
        told = BasicProperties()
    names = sorted(name for name in told.headers or () if not name.startswith(_OWN_HEADERS))
    fields = (routing_key, told.content_type, told.message_id, told.type, told.app_id, names)
    # repr tells None from "", and ends of names from what comes behind them.
    digest = hashlib.sha256(repr(fields).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:_DIGITS]


class PoisonRows:
    """Counts of an interval by queue, fingerprint and end."""

    __slots__ = ("_clock_ms", "_found", "_looks", "_minute")

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        #: (vhost, queue, fingerprint, end): messages, most tries, redeliveries.
        self._found: dict[tuple[str, str, str, str], list[int]] = {}
        self._minute = -1
        #: By vhost and queue: messages looked at in this minute.
        self._looks: dict[tuple[str, str], int] = {}

    def given_up(
        self, vhost: str, queue: str, tries: int, routing_key: str, header: bytes, ended: str
    ) -> None:
        """Count a message that had gone out `tries` times.

        header: its stored properties, as it lay in the queue.  ended: what became of its letter,
        "dropped" where there was none.
        """
        left = self.looks_left(vhost, queue)
        if not left:
            self.unseen(vhost, queue, tries, 1, ended)
            return
        self._looks[vhost, queue] = LOOKS_A_MINUTE - left + 1
        self._add((vhost, queue, fingerprint(routing_key, header), ended), tries, 1)

    def looks_left(self, vhost: str, queue: str) -> int:
        """Return how many messages of a queue are still looked at in this minute."""
        minute = self._clock_ms() // MINUTE_MS
        if minute != self._minute:
            self._minute = minute
            self._looks.clear()
        return LOOKS_A_MINUTE - self._looks.get((vhost, queue), 0)

    def unseen(self, vhost: str, queue: str, tries: int, count: int, ended: str) -> None:
        """Count messages that were not looked at."""
        self._add((vhost, queue, "", ended), tries, count)

    def _add(self, key: tuple[str, str, str, str], tries: int, count: int) -> None:
        entry = self._found.get(key)
        if entry is None:
            if len(self._found) >= ROWS_MAX:
                return
            entry = self._found[key] = [0, 0, 0]
        entry[0] += count
        entry[1] = max(entry[1], tries)
        entry[2] += count * max(0, tries - 1)

    def take(self, t0_us: int, t1_us: int) -> list[Row]:
        """Return the rows of an interval, counted since the last take."""
        found, self._found = self._found, {}
        return [
            {
                "k": "redel", "t0": t0_us, "t1": t1_us, "vhost": vhost, "queue": queue,
                "fp": fp, "ended": ended, "n": n, "tries": tries, "redeliveries": redeliveries,
            }
            for (vhost, queue, fp, ended), (n, tries, redeliveries) in found.items()
        ]  # fmt: skip
