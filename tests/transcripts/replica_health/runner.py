"""Runs transcripts of a damaged replica: a line per event, what is to be done indented below.

    > opened [damaged]   > forgotten   > suspected   > contradicted   > released
    > behind [leads] [settled]   (a peer remembers more than the log holds)
    > log SNAPSHOT@TERM LOW-HIGH@TERM …   (what the log of the replica is from here on)
    > leader TERM commit=N | snapshot=N   > applied N [term=T of who sent last]   > term T (own)
    > compared [lacking]   > installed [damaged]   > recorded   > suspicion-over [damaged]
    > message KIND

Below each event stand the action, if there is one, and what the replica is afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from brokerd.cluster.groups import replica_health
from brokerd.cluster.groups.replica_health import Action, ReplicaHealth
from brokerd.raft.messages import MessageKind
from tests.transcripts.scenarios import Runner

Words: TypeAlias = list[str]
Values: TypeAlias = dict[str, int]


class Log:
    """Terms of entries, and of the snapshot below them."""

    def __init__(self) -> None:
        self.snapshot = 0
        self.terms: dict[int, int] = {}

    def first_index(self) -> int:
        return self.snapshot + 1

    def term(self, index: int) -> int | None:
        return self.terms.get(index)


class Transcript(Runner):
    """One replica, driven by lines."""

    def __init__(self) -> None:
        self.health = ReplicaHealth()
        self.log = Log()
        self.term = 1
        self.applied = 0

    def check(self) -> None:
        """See Runner."""
        self.health.check_invariants()

    def step(self, line: str) -> Words:
        """Handle one line."""
        command, *words = line.split()
        if command == "log":
            self._set_log(words)
            return []
        if command == "term":
            self.term = int(words[0])
            return []
        if command == "message":
            kind = MessageKind[words[0].upper()]
            return ["passes" if self.health.admits(kind) else "is kept from the replica"]
        plain = [word for word in words if "=" not in word]
        values = {key: int(text) for key, text in (w.split("=") for w in words if "=" in w)}
        action = self.health.handle(_EVENTS[command](self, plain, values))
        return [*_shown(action), self._state()]

    def _set_log(self, words: Words) -> None:
        self.log = Log()
        for word in words:
            span, _, term = word.partition("@")
            low, _, high = span.partition("-")
            if not high:
                self.log.snapshot = int(low)
            self.log.terms |= dict.fromkeys(range(int(low), int(high or low) + 1), int(term))

    def leader(self, words: Words, values: Values) -> replica_health.Event:
        is_snapshot = "snapshot" in values
        (committed,) = values.values()
        return replica_health.LeaderSaid(int(words[0]), self.term, committed, is_snapshot)

    def progressed(self, words: Words, values: Values) -> replica_health.Event:
        self.applied = int(words[0])
        sender = values.get("term", self.term)
        return replica_health.Progressed(sender, self.term, self.applied, self.log)

    def _state(self) -> str:
        trusted = self.health
        if trusted.may_vote:
            return "votes"
        lost = ", ".join(sorted(str(each.name).lower() for each in trusted.losses))
        refill = f"; must hold {trusted.target}, heard of {trusted.heard}" if trusted.heard else ""
        return f"no vote: {lost}{refill}{'; needs repair' * trusted.needs_repair}"


def _shown(action: Action | None) -> Words:
    return [] if action is None else [f"-> {action.name.lower().replace('_', ' ')}"]


_EVENTS: dict[str, Callable[[Transcript, Words, Values], replica_health.Event]] = {
    "opened": lambda _, words, __: replica_health.LogOpened("damaged" in words),
    "forgotten": lambda _, __, ___: replica_health.LogForgotten(),
    "suspected": lambda _, __, ___: replica_health.RegressionSuspected(),
    "contradicted": lambda _, __, ___: replica_health.Contradicted(),
    "released": lambda _, __, ___: replica_health.Released(),
    "behind": lambda _, words, __: replica_health.FellBehind("leads" in words, "settled" in words),
    "leader": Transcript.leader,
    "applied": Transcript.progressed,
    "compared": lambda _, words, __: replica_health.LiveCompared("lacking" not in words),
    "installed": lambda _, words, __: replica_health.SnapshotInstalled("damaged" in words),
    "recorded": lambda _, __, ___: replica_health.RefillRecorded(),
    "suspicion-over": lambda _, words, __: replica_health.SuspicionEnded("damaged" in words),
}
