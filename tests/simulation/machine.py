"""The machine that simulated groups run: it counts numbered commands and hashes what it sees."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from brokerd.raft.machine import Meta

#: So many of the newest commands count as live: their bodies must stay readable.
LIVE_MAX = 8

Observer = Callable[[int, int, bytes, str], None]


@dataclass(slots=True)
class SimOutcome:
    """What applying brought."""

    reply: bytes = b""
    effects: list[Any] = field(default_factory=list)


class SimMachine:
    """Applies `client:sequence:padding` once each; keeps a hash chain over all it has applied."""

    realise_everywhere = False
    may_lose_last = False

    def __init__(self, observe: Observer) -> None:
        self._observe = observe
        self.chain = ""
        self.index = 0
        self.count = 0
        #: Per client: last sequence number and the index where it took effect.
        self.last: dict[str, tuple[int, int]] = {}
        self.live: list[int] = []
        self.deadline_ms: int | None = None

    def apply(self, meta: Meta, command: bytes) -> SimOutcome:
        """Apply a command: the next one takes effect, an old one is a duplicate, else a gap."""
        assert meta.index > self.index, "an index was applied twice or out of order"
        self.index = meta.index
        text = f"{self.chain}|{meta.index}|{meta.term}|{meta.now_ms}|".encode() + command
        self.chain = hashlib.blake2b(text, digest_size=8).hexdigest()
        self._observe(meta.index, meta.term, command, self.chain)
        if command == b"tick":
            self.deadline_ms = None
            return SimOutcome()
        client, number, _ = command.decode().split(":", 2)
        sequence = int(number)
        last, where = self.last.get(client, (0, 0))
        if sequence <= last:
            return SimOutcome(b"dup:%d" % (where if sequence == last else 0))
        if sequence > last + 1:
            return SimOutcome(b"gap:0")
        self.last[client] = (sequence, meta.index)
        self.count += 1
        if self.count % 16 == 0:
            self.deadline_ms = meta.now_ms + 300
        self.live.append(meta.index)
        del self.live[:-LIVE_MAX]
        return SimOutcome(b"ok:%d" % meta.index, [("deliver", meta.index)])

    def became_leader(self, meta: Meta) -> list[Any]:
        """Deliver what is live again."""
        return [("redeliver", tuple(self.live))]

    def snapshot(self) -> bytes:
        """Return the state as JSON."""
        state = [self.chain, self.index, self.count, sorted(self.last.items()), self.live]
        return json.dumps([*state, self.deadline_ms]).encode()

    def restore(self, data: bytes) -> None:
        """Take a snapshot's state."""
        self.chain, self.index, self.count, last, self.live, self.deadline_ms = json.loads(data)
        self.last = {client: (sequence, where) for client, (sequence, where) in last}

    def live_indexes(self) -> Sequence[tuple[int, int]]:
        """Return the live commands' indexes as ranges."""
        return [(index, index + 1) for index in self.live]

    def factory(self) -> None:
        """See Machine: tests fold it by themselves."""
        return

    def next_deadline_ms(self) -> int | None:
        """Return when a tick command is due."""
        return self.deadline_ms

    def tick_command(self) -> bytes:
        """Return the tick command."""
        return b"tick"

    def overview(self) -> dict[str, Any]:
        """Return the count."""
        return {"count": self.count}

    def check_invariants(self) -> None:
        """Assert what must hold."""
        assert self.live == sorted(set(self.live))
        assert len(self.live) <= LIVE_MAX
