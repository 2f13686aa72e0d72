"""Clients that propose numbered commands, in order, and repeat what was not acknowledged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brokerd.raft.actions import Reply
from brokerd.raft.inputs import Propose
from brokerd.raft.messages import NodeId

if TYPE_CHECKING:
    from tests.simulation.world import World

#: A client that heard nothing for so long asks the next member.
PATIENCE_MS = 700


class SimClient:
    """One client with up to `window` commands in flight.

    Invariant: commands up to `done` are acknowledged, the next `len(open)` are in flight.
    """

    def __init__(self, world: World, name: str, window: int, pause_ms: int, padding: int) -> None:
        self._world = world
        self.name = name
        self._window = window
        self._pause_ms = pause_ms
        self._padding = "x" * padding
        self.done = 0
        self.done_at_ms = 0
        #: Tokens of this attempt -> sequence numbers.
        self._open: dict[int, int] = {}
        self._attempt = 0
        self._contact: NodeId = world.rng.choice(world.node_ids)

    def go_on(self, attempt: int) -> None:
        """Propose the next commands, or the same again if they were not acknowledged."""
        if attempt != self._attempt:
            return
        world = self._world
        self._attempt += 1
        self._open = {}
        if not world.is_running:
            return
        commands = []
        for sequence in range(self.done + 1, self.done + 1 + self._window):
            token = world.new_token(self)
            self._open[token] = sequence
            commands.append((token, f"{self.name}:{sequence}:{self._padding}".encode()))
        world.after(PATIENCE_MS, self._give_up, self._attempt)
        world.record("propose", self.name, self.done + 1, self._contact)
        world.nodes[self._contact].handle(
            Propose(world.now_ms, commands, is_lazy=commands[0][0] % 2 == 0)
        )

    def _give_up(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._contact = self._world.rng.choice(self._world.node_ids)
            self.go_on(attempt)

    def on_reply(self, reply: Reply) -> None:
        """An answer came (perhaps to an earlier attempt)."""
        world = self._world
        sequence = self._open.pop(reply.token, None)
        if reply.accepted and not reply.reply.startswith(b"gap"):
            number = sequence
            if number is not None:
                index = int(reply.reply.split(b":")[1])
                world.checkers.on_acknowledged(self.name, number, index)
                self.done = max(self.done, number)
                self.done_at_ms = world.now_ms
        elif not reply.accepted:
            # Nobody known there: somebody else may know.
            self._contact = reply.leader or world.rng.choice(world.node_ids)
        if sequence is not None and not self._open:
            pause_ms = self._pause_ms if reply.accepted else 50
            world.after(1 + world.rng.randrange(pause_ms), self.go_on, self._attempt)
