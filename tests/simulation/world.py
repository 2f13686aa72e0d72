"""The simulated world: one thread, one seeded generator, a virtual clock, and what goes wrong.

A seed decides everything: how many members, how bad network and disks are, what is cut, crashed and
changed when.  After `chaos_ms` everything is healed, and service must resume within 5 s (G9).
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from brokerd.raft.actions import Reply
from brokerd.raft.config import RaftConfig
from brokerd.raft.inputs import ChangeMembers, NodeGone, PeerUnreachable, TransferLeadership
from brokerd.raft.messages import Configuration, Message, NodeId
from tests.simulation.checkers import Checkers, Violation, require
from tests.simulation.clients import SimClient
from tests.simulation.network import PARTITIONS, FakeNetwork, NetworkFaults
from tests.simulation.node import SimNode

#: Service must be back so soon after everything has healed.
RESUME_MS = 5_000
#: With clients silent, all members must come to rest so soon after that.
CONVERGE_MS = 20_000
#: More events than this, and than these for each committed entry, is a message storm.  An entry of
#: five members takes some tens; more where messages overtake each other, with one entry in each,
#: since each gap has the leader send again what is on its way.
EVENTS_MAX = 20_000
EVENTS_PER_COMMIT_MAX = 200


@dataclass(slots=True)
class Scenario:
    """What a seed stands for."""

    node_count: int
    chaos_ms: int
    faults: NetworkFaults
    sync_ms_max: int
    partitions: bool
    crashes: bool
    slow_disks: bool
    transfers: bool
    membership: bool
    snapshots: bool
    is_quiescing: bool
    #: Crash points that matter: chances of dying just after having voted, having committed, and of
    #: a new leader being cut off (it can hear but not speak) and dying.
    crash_after_vote: float
    crash_after_commit: float
    mute_after_election: float
    tick_ms: int
    election_ticks_max: int
    gone_leader_ticks_max: int
    client_count: int
    window: int
    append_entries_max: int

    @classmethod
    def of_seed(cls, rng: random.Random, profile: str | None) -> Scenario:
        """Draw a scenario; `profile` names one of PROFILES instead of the drawn one."""
        is_quiescing = rng.random() < 0.25
        scenario = cls(
            node_count=rng.choice((3, 3, 5)),
            chaos_ms=rng.randrange(2_000, 7_000),
            faults=NetworkFaults(
                loss=rng.choice((0.0, 0.0, 0.05, 0.15, 0.3)),
                duplication=rng.choice((0.0, 0.05, 0.2)),
                straggling=rng.choice((0.0, 0.0, 0.1)),
                delay_ms_max=rng.choice((3, 10, 60)),
                is_ordered=rng.random() < 0.4,
            ),
            sync_ms_max=rng.choice((2, 10, 60)),
            partitions=rng.random() < 0.7,
            crashes=rng.random() < 0.8,
            slow_disks=rng.random() < 0.4,
            transfers=rng.random() < 0.3,
            membership=rng.random() < 0.3,
            snapshots=rng.random() < 0.4,
            is_quiescing=is_quiescing,
            crash_after_vote=rng.choice((0.0, 0.0, 0.2, 0.5)),
            crash_after_commit=rng.choice((0.0, 0.0, 0.0, 0.01)),
            mute_after_election=rng.choice((0.0, 0.0, 0.2)),
            tick_ms=100,
            election_ticks_max=20,
            gone_leader_ticks_max=4,
            client_count=rng.randrange(1, 4),
            window=rng.choice((1, 1, 4)),
            append_entries_max=rng.choice((1, 2, 1024)),
        )
        drawn = rng.choice(_DRAWN_PROFILES)
        return replace(scenario, **PROFILES[profile or drawn])


_MANY_ELECTIONS: dict[str, Any] = {
    "node_count": 3,
    "chaos_ms": 4_000,
    "tick_ms": 20,
    "partitions": False,
    "membership": False,
    "slow_disks": False,
    "is_quiescing": False,
    "client_count": 1,
    "window": 1,
}
#: Most seeds take what they drew.  The others aim at two corners that chance alone rarely reaches:
#: old entries that a majority holds and that are overwritten all the same (figure 8 of the Raft
#: paper), and members that vote, crash, and are asked again in the same term.
PROFILES: dict[str, dict[str, Any]] = {
    "mixed": {},
    "figure-8": _MANY_ELECTIONS
    | {
        "faults": NetworkFaults(delay_ms_max=3),
        "sync_ms_max": 2,
        "append_entries_max": 1,
        "crash_after_commit": 0.5,
        "mute_after_election": 0.5,
        "crash_after_vote": 0.0,
    },
    "duels": _MANY_ELECTIONS
    | {
        "faults": NetworkFaults(delay_ms_max=60),
        "sync_ms_max": 60,
        "election_ticks_max": 11,
        # Rivals stay rivals.
        "gone_leader_ticks_max": 200,
        "crash_after_vote": 0.5,
        "crash_after_commit": 0.01,
    },
}
_DRAWN_PROFILES = ("mixed",) * 6 + ("figure-8", "duels")


class World:
    """One simulated group and its surroundings."""

    def __init__(
        self,
        seed: int,
        trace: Callable[[str], None] | None = None,
        profile: str | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.scenario = scenario = Scenario.of_seed(self.rng, profile)
        self.now_ms = 0
        self.is_running = True
        # Drawn apart, so that seeds stand for the same worlds as before.
        manners = random.Random(f"manners {seed}")
        #: How often a replica was folded.
        self.folds = 0
        #: Followers apply at once, as the catalog's do, or with the tick (RaftNode.is_prompt).
        self.is_prompt = manners.random() < 0.3
        self.checkers = Checkers()
        self.network = FakeNetwork(self.rng, replace(scenario.faults))
        self.config = RaftConfig(
            tick_ms=scenario.tick_ms,
            election_ticks_max=scenario.election_ticks_max,
            gone_leader_ticks_max=scenario.gone_leader_ticks_max,
            append_entries_max=scenario.append_entries_max,
            # One small message per round trip is too little for the clients at slow disks.
            inflight_max=self.rng.choice((4, 64) if scenario.append_entries_max == 1 else (1, 64)),
            snapshot_entries=self.rng.choice((5, 20)) if scenario.snapshots else 4096,
            snapshot_resend_ticks=20,
            proposals_max=self.rng.choice((3, 1000)),
            apply_entries_min=manners.choice((1, 4, 32)),
        )
        founders = [NodeId(f"n{i}") for i in range(scenario.node_count)]
        self.node_ids = list(founders)
        if scenario.membership:
            self.node_ids.append(NodeId("x"))
        bootstrap = Configuration(tuple(founders))
        self.nodes = {
            node: SimNode(self, node, bootstrap if node in founders else None)
            for node in self.node_ids
        }
        self._trace = trace
        self._digest = hashlib.blake2b(digest_size=16)
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self.event_count = 0
        self._tokens: dict[int, SimClient] = {}
        self._token = 0
        self.clients = [
            SimClient(
                self,
                f"c{i}",
                scenario.window,
                self.rng.choice((5, 60, 300)),
                self.rng.choice((0, 100)),
            )
            for i in range(scenario.client_count)
        ]

    # ---- time and record ------------------------------------------------------------------------

    def after(self, delay_ms: int, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function later."""
        self._sequence += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._sequence, function, arguments))

    def record(self, what: str, *details: object) -> None:
        """Add to the hash that two runs must share, and to the trace."""
        line = f"{self.now_ms} {what} {details}"
        self._digest.update(line.encode())
        if self._trace is not None:
            self._trace(line)

    @property
    def digest(self) -> str:
        """Hash of everything recorded."""
        return self._digest.hexdigest()

    # ---- services for nodes and clients ---------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message over the fake network."""
        arrivals = self.network.arrivals(message.sender, message.to, self.now_ms)
        self.record(
            "send",
            message.kind.name,
            message.sender,
            message.to,
            message.term,
            message.index,
            message.log_term,
            message.commit,
            message.reject,
            len(message.entries),
            arrivals,
        )
        for at_ms in arrivals:
            self.after(at_ms - self.now_ms, self._deliver, message)
        if not arrivals and self.scenario.is_quiescing:
            # What breaks a stream is noticed by the sender, a little later.
            self.after(50, self._report_loss, message.sender, message.to)

    def _deliver(self, message: Message) -> None:
        if not self.network.is_blocked(message.sender, message.to):
            self.nodes[message.to].deliver(message)
        elif self.scenario.is_quiescing:
            self._report_loss(message.sender, message.to)

    def _report_loss(self, sender: NodeId, to: NodeId) -> None:
        self.nodes[sender].handle(PeerUnreachable(to))
        # True after a crash, wrong after a partition: either must be harmless.
        if self.rng.random() < 0.3:
            self.nodes[sender].handle(NodeGone(to))

    def send_ping(self, sender: NodeId, to: NodeId) -> None:
        """Send a node-level heartbeat."""
        for at_ms in self.network.arrivals(sender, to, self.now_ms):
            self.after(at_ms - self.now_ms, self._deliver_ping, sender, to)

    def _deliver_ping(self, sender: NodeId, to: NodeId) -> None:
        self.nodes[to].on_ping(sender)

    def sync_ms(self, node: SimNode) -> int:
        """Return how long a sync takes."""
        return 1 + self.rng.randrange(self.scenario.sync_ms_max) + (150 if node.is_slow else 0)

    def new_token(self, client: SimClient) -> int:
        """Return a token for a proposal."""
        self._token += 1
        self._tokens[self._token] = client
        return self._token

    def on_reply(self, node: NodeId, reply: Reply) -> None:
        """A replica answers; each token is answered at most once."""
        self.record("reply", node, reply.token, reply.accepted, reply.reply, reply.leader)
        client = self._tokens.pop(reply.token, None)
        require(client is not None or reply.token <= 0, f"token {reply.token} answered twice")
        if client is not None:
            self.after(1, client.on_reply, reply)

    # ---- what goes wrong ------------------------------------------------------------------------

    def restart(self, node: NodeId) -> None:
        """Start a member that is down."""
        if self.nodes[node].replica is None:
            self.nodes[node].start()

    def strikes(self, chance: float) -> bool:
        """Draw whether a fault with this chance happens now."""
        return chance > 0.0 and self.rng.random() < chance

    def crash_for(self, node: NodeId, down_ms: int) -> None:
        """Crash a member and start it again later."""
        self.nodes[node].crash()
        self.after(down_ms, self.restart, node)

    def mute(self, node: NodeId) -> None:
        """Let a member hear but not speak, and die after a while."""
        self.record("mute", node)
        for peer in self.node_ids:
            if peer != node:
                self.network.blocked.add((node, peer))
        self.after(self.rng.choice((30, 300)), self._unmute, node)

    def _unmute(self, node: NodeId) -> None:
        if self.now_ms < self.scenario.chaos_ms:
            self.crash_for(node, self.rng.choice((20, 300, 1500)))
        for peer in self.node_ids:
            self.network.blocked.discard((node, peer))

    def _nemesis(self) -> None:
        if self.now_ms >= self.scenario.chaos_ms:
            return
        rng = self.rng
        scenario = self.scenario
        choices: list[Callable[[], None]] = []
        if scenario.partitions:
            choices += [self._partition, self._partition, self.network.blocked.clear]
        if scenario.crashes:
            choices += [self._crash, self._crash]
        if scenario.slow_disks:
            choices.append(self._toggle_disk)
        if scenario.transfers:
            choices.append(self._transfer)
        if scenario.membership:
            choices += [self._change_members] * 2
        if choices:
            rng.choice(choices)()
        self.after(rng.randrange(50, 900), self._nemesis)

    def _partition(self) -> None:
        kind = self.rng.choice(sorted(PARTITIONS))
        self.network.partition(self.node_ids, kind)
        self.record("partition", kind, sorted(self.network.blocked))

    def _crash(self) -> None:
        victims = list(self.node_ids)
        leaders = [n for n in victims if (r := self.nodes[n].replica) is not None and r.is_leader]
        # Leaders are where crashes hurt.
        victim = self.rng.choice(leaders if leaders and self.rng.random() < 0.5 else victims)
        self.crash_for(victim, self.rng.choice((20, 200, 1500)))

    def _toggle_disk(self) -> None:
        node = self.nodes[self.rng.choice(self.node_ids)]
        node.is_slow = not node.is_slow

    def _leader(self) -> SimNode | None:
        leading = [
            (replica.term, node.id)
            for node in self.nodes.values()
            if (replica := node.replica) is not None and replica.is_leader
        ]
        return self.nodes[max(leading)[1]] if leading else None

    def _transfer(self) -> None:
        node = self._leader()
        if node is not None:
            to = self.rng.choice(self.node_ids)
            self.record("transfer", node.id, to)
            node.handle(TransferLeadership(to))

    def _change_members(self) -> None:
        node = self._leader()
        if node is None or node.replica is None:
            return
        current = node.replica.configuration
        member = self.rng.choice(self.node_ids)
        voters = set(current.voters) - {member}
        learners = set(current.learners) - {member}
        role = self.rng.choice(("voter", "learner", "none"))
        if role == "voter":
            voters.add(member)
        elif role == "learner":
            learners.add(member)
        if len(voters) < 2:
            return
        wanted = Configuration(tuple(sorted(voters)), tuple(sorted(learners)))
        self.record("change", node.id, wanted)
        self._token += 1
        node.handle(ChangeMembers(-self._token, wanted))

    def _heal(self) -> None:
        self.record("heal")
        self.network.heal()
        self.scenario.crash_after_vote = 0.0
        self.scenario.crash_after_commit = 0.0
        self.scenario.mute_after_election = 0.0
        for node in self.nodes.values():
            node.is_slow = False
            if node.replica is None:
                node.start()

    # ---- running --------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the whole scenario; raise Violation if a property breaks."""
        for node in self.nodes.values():
            node.start()
        for client in self.clients:
            self.after(self.rng.randrange(500), client.go_on, 0)
        self.after(500, self._nemesis)
        heal_ms = self.scenario.chaos_ms
        self.after(heal_ms, self._heal)
        self._run_until(heal_ms + RESUME_MS)
        obstacle: str | None = None
        for client in self.clients:
            require(
                client.done_at_ms > heal_ms,
                f"liveness: {client.name} got no acknowledgement within {RESUME_MS} ms after heal",
            )
        self.is_running = False
        for waited_ms in range(500, CONVERGE_MS + 1, 500):
            self._run_until(heal_ms + RESUME_MS + waited_ms)
            obstacle = self._obstacle()
            if obstacle is None:
                break
        require(obstacle is None, f"liveness: {obstacle}")
        self.checkers.on_end()

    def _run_until(self, end_ms: int) -> None:
        events = self._events
        while events and events[0][0] <= end_ms:
            self.now_ms, _, function, arguments = heapq.heappop(events)
            function(*arguments)
            self.event_count += 1
            if self.event_count > EVENTS_MAX + EVENTS_PER_COMMIT_MAX * self.checkers.commit_max:
                raise Violation("message storm: too many events")
        self.now_ms = end_ms

    def _obstacle(self) -> str | None:
        """Return why the group has not come to rest, or None."""
        leader = self._leader()
        if leader is None or leader.replica is None:
            return "no leader at the end"
        configuration = leader.replica.configuration
        want = leader.replica.applied_index
        for member in configuration.voters + configuration.learners:
            replica = self.nodes[member].replica
            if replica is None or replica.applied_index != want:
                return f"{member} has not applied {want} as the leader {leader.id} has"
            has_deadline = replica.next_deadline_ms is not None
            if self.scenario.is_quiescing and not replica.is_quiet and not has_deadline:
                return f"{member} does not become quiet"
        return None
