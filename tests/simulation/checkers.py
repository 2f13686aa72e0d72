"""What must always hold, checked while the simulation runs (Raft thesis §3.2 figure 3.2, and G1).

Each checker raises Violation; the message says which property, where and what.
"""

from __future__ import annotations

from brokerd.raft.messages import Entry, NodeId
from tests.simulation.disk import FakeDisk


class Violation(AssertionError):
    """A safety or liveness property was broken."""


def require(condition: bool, text: str) -> None:
    """Raise Violation unless the condition holds."""
    if not condition:
        raise Violation(text)


class Checkers:
    """All that was ever observed in one simulated group."""

    def __init__(self) -> None:
        self._leader_of_term: dict[int, NodeId] = {}
        #: (index, term) -> (kind, data, term of the entry before).
        self._entries: dict[tuple[int, int], tuple[int, bytes, int]] = {}
        #: index -> (term of the entry, term in which it was seen committed first).
        self.committed: dict[int, tuple[int, int]] = {}
        self.commit_max = 0
        #: index -> (term, command, hash chain) as applied first.
        self.applied: dict[int, tuple[int, bytes, str]] = {}
        #: (client, sequence) -> index or 0, as acknowledged.
        self.acknowledged: dict[tuple[str, int], int] = {}

    def on_leader(self, node: NodeId, term: int) -> None:
        """Election safety: at most one leader per term."""
        other = self._leader_of_term.setdefault(term, node)
        require(other == node, f"election safety: {other} and {node} both lead term {term}")

    def on_new_leader_log(self, node: NodeId, term: int, log_term: dict[int, int | None]) -> None:
        """Leader completeness: all that was committed in earlier terms is in a new leader's log."""
        for index, own in log_term.items():
            entry_term, commit_term = self.committed[index]
            if commit_term < term:
                require(
                    own == entry_term,
                    f"leader completeness: {node} leads term {term} with term {own} at index "
                    f"{index}, committed was term {entry_term}",
                )

    def on_entries(self, node: NodeId, before_term: int | None, entries: list[Entry]) -> None:
        """Log matching: same index and term, same entry and same predecessor."""
        for entry in entries:
            if before_term is None:
                before_term = entry.term
                continue
            value = (entry.kind, entry.data, before_term)
            known = self._entries.setdefault((entry.index, entry.term), value)
            require(
                known == value,
                f"log matching: {node} has another entry at {entry.index} of term {entry.term}",
            )
            before_term = entry.term

    def on_commit(
        self, node: NodeId, term: int, index: int, entry_term: int | None, disks: list[FakeDisk]
    ) -> None:
        """Committed entries agree everywhere; a majority of disks holds them from the first."""
        require(entry_term is not None, f"{node} committed index {index} that it does not hold")
        assert entry_term is not None
        known = self.committed.get(index)
        if known is not None:
            require(
                known[0] == entry_term,
                f"state machine safety: {node} committed term {entry_term} at index {index}, "
                f"before it was term {known[0]}",
            )
            return
        self.committed[index] = (entry_term, term)
        self.commit_max = max(self.commit_max, index)
        holding = sum(1 for disk in disks if disk.holds(index, entry_term))
        require(
            holding > len(disks) // 2,
            f"durability: index {index} was committed by {node} with {holding} of {len(disks)} "
            "disks holding it",
        )

    def on_applied(self, node: NodeId, index: int, term: int, command: bytes, chain: str) -> None:
        """State machine safety: every member applies the same command at the same index."""
        value = (term, command, chain)
        known = self.applied.setdefault(index, value)
        require(
            known == value,
            f"state machine safety: {node} applied {command[:24]!r} at {index}, before it was "
            f"{known[1][:24]!r} (or the history before differs)",
        )

    def on_restored(self, node: NodeId, index: int, chain: str) -> None:
        """A snapshot's state is the state that others had at that index."""
        known = self.applied.get(index)
        if known is not None:
            require(known[2] == chain, f"snapshot at {index} restored on {node} differs")

    def on_acknowledged(self, client: str, sequence: int, index: int) -> None:
        """An acknowledged command stands where the answer says, already committed."""
        self.acknowledged[client, sequence] = index
        if index:
            known = self.applied.get(index)
            prefix = f"{client}:{sequence}:".encode()
            require(
                known is not None and known[1].startswith(prefix),
                f"{client}:{sequence} was acknowledged at {index}, where something else stands",
            )

    def on_end(self) -> None:
        """No acknowledged command is lost, and none took effect twice."""
        effective: dict[tuple[str, int], int] = {}
        last: dict[str, int] = {}
        for index in sorted(self.applied):
            command = self.applied[index][1]
            if command == b"tick":
                continue
            client, number, _ = command.decode().split(":", 2)
            if int(number) == last.get(client, 0) + 1:
                last[client] = int(number)
                effective[client, int(number)] = index
        for (client, sequence), index in self.acknowledged.items():
            where = effective.get((client, sequence))
            require(where is not None, f"{client}:{sequence} was acknowledged and is lost")
            require(
                index in (0, where), f"{client}:{sequence} acknowledged at {index}, is at {where}"
            )
