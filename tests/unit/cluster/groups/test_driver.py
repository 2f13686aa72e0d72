"""What a new leader owes its queue is the first command of its term, whatever waits or happens."""

from __future__ import annotations

import random
from typing import Any

from brokerd.cluster.groups.driver import STAMP_BYTES, Driver, Keeping
from brokerd.cluster.groups.liveness import Liveness
from brokerd.core.machine import Outcome
from brokerd.core.queue import queue_commands
from brokerd.raft import actions, inputs
from brokerd.raft.config import RaftConfig
from brokerd.raft.messages import (
    Configuration,
    Entry,
    GroupUid,
    HardState,
    Message,
    MessageKind,
    NodeId,
    configuration_of,
)
from brokerd.raft.replica import Replica
from brokerd.storage.memory import MemoryLog

HERE, OTHER = NodeId("a"), NodeId("b")
_GRANTS = {
    MessageKind.PRE_VOTE: MessageKind.PRE_VOTE_REPLY,
    MessageKind.VOTE: MessageKind.VOTE_REPLY,
}


class Machine:
    """Takes everything."""

    realise_everywhere = False
    may_lose_last = False

    def apply(self, *_: Any) -> Outcome:
        return Outcome(b"done")

    def became_leader(self, *_: Any) -> list[Any]:
        return []

    def look(self, command: bytes, now_ms: int) -> None:
        """Every command is applied."""
        return

    def factory(self) -> None:
        return None

    def next_deadline_ms(self) -> None:
        return None


class Rig:
    """A replica of two whose other voter grants every vote; listens as QueueLeaders does."""

    def __init__(self, *voters: NodeId) -> None:
        self.log = MemoryLog()
        machine: Any = Machine()
        replica = Replica(
            GroupUid(1),
            HERE,
            Configuration(voters),
            machine,
            self.log,
            RaftConfig(),
            random.Random(1),
        )
        self.driver = Driver(1, replica, self.log, machine, self, is_volatile=True)
        self.votes: list[inputs.Received] = []
        self.answers: dict[str, bool] = {}
        self.liveness = Liveness(1000, 500)
        self.liveness.set_nodes(set(voters) - {HERE}, 0)

    def propose(self, text: str, *, first: bool = False) -> None:
        def done(accepted: bool, *_: Any) -> None:
            self.answers[text] = accepted

        self.driver.propose(text.encode(), done, 1, first=first)

    def commands(self) -> list[str]:
        """Return what is in the log, the term's own entry left out."""
        entries = self.log.entries(1, self.log.last_index() + 1, 1 << 20)
        return [entry.data[STAMP_BYTES:].decode() for entry in entries if entry.data]

    # ---- Ports ------------------------------------------------------------------------------

    def persist(
        self, driver: Driver, token: int, hard_state: HardState | None, entries: list[Entry]
    ) -> None:
        self.log.append(hard_state, entries)
        driver.persisted(token, entries)

    def send(self, uid: int, message: Message) -> None:
        kind = _GRANTS.get(message.kind)
        if kind is not None:
            self.votes.append(inputs.Received(Message(kind, OTHER, HERE, message.term)))

    def role_changed(self, driver: Driver) -> None:
        if driver.is_leader:
            # A client that listens too is told before (GroupClient.leader_changed).
            self.propose("a waiting publish")
            self.propose("options", first=True)

    def realise(self, driver: Driver, term: int, effects: list[Any]) -> None:
        pass

    def save_snapshot(self, driver: Driver, action: actions.SaveSnapshot) -> None:
        raise AssertionError("too few entries for a snapshot")

    def install_snapshot(self, driver: Driver, action: actions.InstallSnapshot) -> None:
        raise AssertionError("nobody sends one")

    @property
    def keeper(self) -> Keeping:
        raise AssertionError("nobody contradicts")


def _run(rig: Rig) -> None:
    while rig.driver.inputs:
        rig.driver.run()


def test_options_go_before_the_publishes_that_waited_for_a_leader() -> None:
    """A message before them would have no limits and no dead letter exchange (R-DLX, R-LEN)."""
    rig = Rig(HERE)
    rig.driver.inputs.append(inputs.TransferLeadership(HERE))
    rig.propose("an early publish")
    _run(rig)
    assert rig.commands()[0] == "options"
    assert rig.answers["options"]


def test_a_leader_that_is_to_hand_over_at_once_has_its_options_in_the_log() -> None:
    """The request waits behind the vote that makes it leader: whoever asks then is refused."""
    rig = Rig(HERE, OTHER)
    rig.driver.inputs.append(inputs.TransferLeadership(HERE))
    while not rig.driver.is_leader:
        _run(rig)
        rig.driver.inputs += [*rig.votes, inputs.TransferLeadership(OTHER)]
        rig.votes.clear()
        _run(rig)
    assert rig.commands() == ["options"]
    assert rig.answers == {"a waiting publish": False}


def test_what_goes_first_is_refused_as_the_rest_where_another_member_leads() -> None:
    rig = Rig(HERE, OTHER)
    rig.propose("late", first=True)
    rig.driver.run()
    assert rig.answers == {"late": False}


def test_a_closed_replica_answers_what_was_to_go_first() -> None:
    rig = Rig(HERE, OTHER)
    rig.propose("late", first=True)
    rig.driver.close()
    rig.driver.run()
    assert rig.answers == {"late": False}


def test_a_look_keeps_its_place_among_the_commands() -> None:
    """Its answer shows what was proposed before it."""
    rig = Rig(HERE)
    rig.driver.inputs.append(inputs.TransferLeadership(HERE))
    _run(rig)
    declared = queue_commands.encode_declared().decode("latin-1")
    for text in ("before", declared, "behind"):
        rig.propose(text)
    kinds = [type(event) for event in rig.driver.inputs]
    assert kinds == [inputs.Propose, inputs.Look, inputs.Propose]
    _run(rig)
    assert rig.commands()[-3:] == ["before", declared, "behind"]
    assert rig.answers[declared]


def test_a_look_is_a_command_where_others_may_lead_by_now() -> None:
    """What an old leader says would not be true."""
    rig = Rig(HERE, OTHER)
    rig.driver.configuration = configuration_of((HERE, OTHER))
    rig.propose(queue_commands.encode_declared().decode())
    assert [type(event) for event in rig.driver.inputs] == [inputs.Propose]
    rig.liveness.heard(OTHER, 1)
    rig.propose(queue_commands.encode_declared().decode())
    assert type(rig.driver.inputs[-1]) is inputs.Look


def test_commands_that_are_joined_have_the_time_of_the_last_one() -> None:
    """By an earlier time a message's delay or TTL would have begun before it came."""
    driver = Rig(HERE).driver
    driver.inputs.clear()
    for now_ms in (100, 700, 650):
        driver.propose(b"publish", lambda *_: None, now_ms)
    [proposal] = driver.inputs
    assert isinstance(proposal, inputs.Propose)
    assert (proposal.now_ms, len(proposal.commands)) == (700, 3)
