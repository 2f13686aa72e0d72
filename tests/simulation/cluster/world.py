"""The whole cluster simulated: members that find each other, and the rooms that keep them together.

As ../broker/world.py, with the real catalog and all that follows it.  Three members found the
cluster, clients declare, and then members come and go, lose their disks, rest; replicas move.
After everything is healed the cluster must come to what the catalog says, and what was acknowledged
must be in it.
"""

from __future__ import annotations

import random
from asyncio import Task
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from brokerd.core import profiles
from brokerd.core.catalog import catalog_commands
from brokerd.core.queue_options import QueueOptions
from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.raft.quorum import majority
from brokerd.server.catalog.catalog_writer import SYNC_S
from brokerd.server.members.joining import LEADERLESS_S, VOTERS_MAX
from tests.simulation.broker.clients import SimConsumer, SimPublisher
from tests.simulation.broker.oracle import Ledger
from tests.simulation.broker.queues import SimQueue
from tests.simulation.broker.world import RESUME_MS, BrokerWorld
from tests.simulation.checkers import Violation
from tests.simulation.cluster import administration, examination, rest
from tests.simulation.cluster.member import ClusterMember
from tests.simulation.cluster.places import Places
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.questions import TIMEOUT_MS, Questions
from tests.simulation.cluster.scenario import ClusterScenario

VHOST = "/"
DEAD_UID = 100
#: Is emptied at the end only, so that what was lost of it on a disk is missed.
KEPT_UID = 200
CLASSIC_UID = 300
#: Of queues that come and go; no client uses them.
PASSING_UID = 1_000
#: How often what is to be done by somebody is tried again.
AGAIN_MS = 300
#: So long may it take until a member that was cut off hears that it was removed.
HEARS_MS = round(1000 * LEADERLESS_S) + 2 * TIMEOUT_MS
#: So long may it take until a member is out of a group, or the wish has failed.
TAKES_OUT_MS = 25_000


class ClusterWorld(BrokerWorld):
    """One simulated cluster from its founding on."""

    scenario: ClusterScenario
    members: dict[NodeId, ClusterMember]

    def __init__(
        self, seed: int, trace: Callable[[str], None] | None = None, profile: str | None = None
    ) -> None:
        super().__init__(seed, trace, profile)
        manners = random.Random(f"cluster {seed}")
        if self.scenario.classic:
            # What a queue of one member says is refused while so many of its commands are under
            # way; and its disk is the only one.
            raft = replace(self.host_config.raft, proposals_max=4)
            self.host_config = replace(self.host_config, raft=raft)
            self.lies.is_on = False
        if self.scenario.joins or self.scenario.leaves or self.scenario.disk_stalls:
            self.lies.is_on = False
        self.profile = profiles.profile()
        self.founders = self._names[: self.scenario.founders]
        # The others on the list join what these found (ADR 44).
        self.victim = manners.choice(sorted(self.founders)[:VOTERS_MAX])
        self.places = Places(
            self._names, manners, hosts=self.scenario.hosts, zones=self.scenario.zones
        )
        #: Log -> group.
        self.logs: dict[int, int] = {}
        self.questions = Questions(self)
        self.uid_of_next_queue = 0
        #: Those that clients use.
        self.first_queues = list(self.queues)
        self._next_passing = PASSING_UID
        self.oracle.ledgers[CATALOG_GROUP] = Ledger()
        #: Settings that somebody was told are in the catalog.
        self.acknowledged: dict[str, int] = {}
        self._written = 0
        #: Whom somebody takes out of the cluster now; it is tried again until it is done.
        self.leaving: set[NodeId] = set()
        self._resting: NodeId | None = None
        self._is_wiped = False
        #: By queue, whom somebody takes out of it, and since when.
        self._taken_out: dict[int, tuple[str, int]] = {}
        #: The queue that was kept is emptied now.
        self._is_emptying = False
        self._cluster_ids: set[str] = set()
        #: What clients of members were served that only learn the catalog.
        self.at_learners: Counter[str] = Counter()

    def _new_scenario(self, profile: str | None) -> ClusterScenario:
        return ClusterScenario.of_seed(self.rng, profile)

    def _new_queues(self, names: list[NodeId], _: bool) -> dict[int, SimQueue]:
        scenario = self.scenario
        queues = {}
        for number in range(scenario.queue_count):
            is_dying = scenario.dead_letters and number == 0
            uid = number + 10
            options = QueueOptions(queue_type="quorum")
            targets = (DEAD_UID,) if is_dying else ()
            queues[uid] = SimQueue(uid, f"q{uid}", [], options, targets)
        if scenario.keeps:
            queues[KEPT_UID] = SimQueue(KEPT_UID, "kept", [], QueueOptions(queue_type="quorum"))
        if scenario.classic:
            queues[CLASSIC_UID] = SimQueue(CLASSIC_UID, "classic", [], QueueOptions())
        if scenario.dead_letters:
            queues[DEAD_UID] = SimQueue(DEAD_UID, "dead", [], QueueOptions(queue_type="quorum"))
        return queues

    def size_of(self, uid: int) -> int:
        """Return how many replicas a queue is declared with; 0: as many as brokerd thinks fit."""
        sizes = self.scenario.sizes
        return sizes[uid % len(sizes)] if sizes else 0

    def may_consume(self, uid: int) -> bool:
        """See BrokerWorld."""
        return uid != KEPT_UID or self._is_emptying

    # ---- services for members -------------------------------------------------------------------

    def group_of(self, log_uid: int) -> int:
        """See BrokerWorld."""
        return self.logs.get(log_uid, log_uid)

    def process_ended(self, member: ClusterMember, removed: Exception | None) -> None:
        """A process has ended by itself: it is no member, as it was told."""
        # Not what it says: there is the path of a directory in it.
        self.record("ended", member.id, type(removed).__name__)
        self.kernel.after(0, self._removed, member, member.incarnation, removed)

    def _removed(self, member: ClusterMember, incarnation: int, removed: Exception | None) -> None:
        if member.incarnation != incarnation or not member.is_up:
            return
        was_to = member.id in self.leaving or member.was_removed
        self.oracle.require(was_to, f"{member.id} ends, and nobody has removed it: {removed}")
        # Whoever took it out may see so later than it comes back as a new member.
        self.leaving.discard(member.id)
        member.was_removed = True
        member.crash(cuts_power=False)
        member.leave()
        member.empty_disk()
        self.start_later(member, 500)

    def on_written(self, process: Process, reply: dict[str, Any], took_ms: int) -> None:
        """A change of the catalog was answered: whoever asked sees it, and so do all others, but
        for one with a slow disk for which all the time that there is was waited."""
        revision = reply.get("revision") or 0
        self.oracle.require(
            process.view.revision >= revision,
            f"{process.node} was answered with revision {revision} and sees "
            f"{process.view.revision}",
        )
        is_given_up = self.scenario.slow_disks and took_ms >= 1000 * SYNC_S
        if is_given_up or not self._is_fair:
            return
        for node in sorted(process.host.alive()):
            other = self.members[node].broker
            if other is not None and other.is_serving and other.host.is_peer(process.node):
                self.oracle.require(
                    other.view.revision >= revision,
                    f"{process.node} was answered with revision {revision}, {node} is up and sees "
                    f"{other.view.revision}",
                )

    @property
    def _is_fair(self) -> bool:
        scenario = self.scenario
        # For a member whose disk does not answer nobody waits.
        is_whole = not (scenario.crashes or scenario.disk_stalls)
        return is_whole and not (scenario.partitions or scenario.mutes or scenario.breaks)

    # ---- who is there ---------------------------------------------------------------------------

    def serving(self) -> list[Process]:
        """Return the processes that let clients in."""
        found = [member.broker for member in self.members.values() if member.is_up]
        return [process for process in found if process.is_serving]

    def leader_of(self, uid: int) -> ClusterMember | None:
        """Return who leads a group."""
        return self._leader(uid)

    def voters(self) -> list[NodeId]:
        """Return who votes in the catalog, as its leader knows; without one, who founded it."""
        leader = self._leader(CATALOG_GROUP)
        if leader is None:
            return sorted(self.founders)[:VOTERS_MAX]
        return list(leader.host.driver_of(CATALOG_GROUP).replica.configuration.voters)

    def learners(self) -> list[NodeId]:
        """Return the members that let clients in and have no vote in the catalog."""
        voters = self.voters()
        return [process.node for process in self.serving() if process.node not in voters]

    def _count_learner(self, what: str, process: Process) -> None:
        driver = process.host.driver_of(CATALOG_GROUP)
        if driver is not None and process.node in driver.replica.configuration.learners:
            self.at_learners[what] += 1

    def on_confirmed(self, publisher: SimPublisher, uid: int, body: bytes) -> None:
        """See BrokerWorld."""
        self._count_learner("confirmed", publisher.broker)
        super().on_confirmed(publisher, uid, body)

    def on_delivered(self, consumer: SimConsumer, numbers: list[int]) -> None:
        """See BrokerWorld."""
        self._count_learner("delivered", consumer.broker)
        super().on_delivered(consumer, numbers)

    def somebody(self) -> Process | None:
        """Return one of them."""
        found = self.serving()
        return self.rng.choice(found) if found else None

    def run_on(
        self, process: Process, work: Coroutine[Any, Any, None], what: str = ""
    ) -> Task[None]:
        """Have a member do something; it dies with the process."""
        self.record("ask", process.node, what)
        with process.member.loop.entered():
            return process.spawn(work)

    # ---- what goes wrong, and what people do ----------------------------------------------------

    def on_started(self, member: Any) -> None:
        """See BrokerWorld.  Which disks must hold what depends on the members of the moment."""

    def _faults(self) -> list[Callable[[], None]]:
        scenario = self.scenario
        self._follow()
        choices = super()._faults()
        if scenario.joins:
            choices.append(self._join)
        if scenario.leaves:
            choices.append(self._leave)
        if scenario.wipes:
            choices += [self._wipe] * 2
        if scenario.moves:
            choices += [self._move] * 2
        if scenario.declares:
            choices.append(self._declare_or_delete)
        if scenario.unbinds and scenario.dead_letters:
            choices.append(self._unbind)
        if scenario.rests:
            choices += [self._rest, self._spread]
        choices.append(self._write)
        return choices

    def _follow(self) -> None:
        """Queues' members, as the newest view has them."""
        process = max(self.serving(), key=lambda each: each.view.revision, default=None)
        for queue in self.queues.values():
            record = None if process is None else process.queue_of(queue.uid)
            if record is not None:
                queue.members = list(record.members)

    def _crash(self, member: ClusterMember, down_ms: int | None = None) -> None:
        classic = self.queues.get(CLASSIC_UID)
        if classic is None or member.id not in classic.members:
            # What a queue of one member has only just heard may be lost with its process (ADR 23).
            super()._crash(member, down_ms)

    def _transfer(self) -> None:
        if all(queue.members for queue in self.queues.values()):
            super()._transfer()

    def _join(self) -> None:
        outside = [member for member in self.members.values() if member.is_out]
        if self.scenario.grows:
            self._let_in(self.rng.sample(outside, min(len(outside), self.rng.choice((1, 4, 12)))))
        elif outside:
            self._let_in([self.rng.choice(outside)])

    def _let_in(self, members: Sequence[ClusterMember]) -> None:
        for member in members:
            self.record("join", member.id)
            member.is_out = False
            member.start()

    def _heal(self) -> None:
        super()._heal()
        if any(member.is_up and member.was_removed for member in self.members.values()):
            self.resume_ms = RESUME_MS + HEARS_MS
        if self.scenario.grows:
            outside = [member for member in self.members.values() if member.is_out]
            self._let_in([member for member in outside if member.id not in self.leaving])

    def _leave(self) -> None:
        process = self.somebody()
        if process is None or self.leaving:
            return
        members = sorted(process.view.members())
        # Whoever is asked may not have heard yet that somebody has left.
        staying = [node for node in members if not self.members[NodeId(node)].is_out]
        if len(staying) <= rest.VOTERS_MIN:
            return
        self.take_out(NodeId(self.rng.choice(members)))

    def take_out(self, node: NodeId) -> None:
        """Have somebody take a member out of the cluster."""
        self.leaving.add(node)
        self.record("leave", node)
        self._go_on_leaving(node)

    def _go_on_leaving(self, node: NodeId) -> None:
        """Have somebody take a member out, again and again until it is done."""
        if node not in self.leaving:
            return
        others = [process for process in self.serving() if process.node != node]
        if others:
            process = self.rng.choice(others)
            self.run_on(process, administration.remove_member(process, node), f"remove {node}")
        self.kernel.after(2_500, self._go_on_leaving, node)

    def on_left(self, node: NodeId) -> None:
        """A member is off the list."""
        if node not in self.leaving:
            return
        self.record("left", node)
        self.leaving.discard(node)
        member = self.members[node]
        member.was_removed = True
        is_back = self.rng.random() < 0.5
        if is_back and self.rng.random() < 0.5:
            # It hears of its removal, and begins anew: it asks when it hears nobody.  Its clients
            # stay until then.
            if self.kernel.now_ms >= self.scenario.chaos_ms:
                self.resume_ms = RESUME_MS + HEARS_MS
            return
        member.crash(cuts_power=False)
        member.leave()
        member.empty_disk()
        member.is_out = not is_back
        self.start_later(member, self.rng.choice((50, 1_000)))

    def _wipe(self) -> None:
        """The victim's disk is lost, where nobody else is needed to make up for it."""
        member = self.members[self.victim]
        if self._is_wiped or member.is_out or member.id in self.leaving:
            return
        if not (self._is_strong() and self.may_damage()):
            return
        self._is_wiped = True
        member.crash()
        member.lose_disk()
        self.record("wipe", member.id)
        if self.scenario.leaves and not self.leaving and self.rng.random() < 0.5:
            # The machine is lost as well: others take its place.
            member.is_out = True
            self.take_out(member.id)
        else:
            self.start_later(member, self.rng.choice((50, 500, 2_000)))

    def may_damage(self) -> bool:
        """See BrokerWorld.  A founder that came when the others had founded has a disk that is as
        new as one that was lost, and no vote until it is filled: with the victim's it would be more
        than a minority of what is promised (G8), of the catalog or of a queue.
        """
        self._follow()
        groups = [self.voters(), *(queue.members for queue in self.queues.values())]
        return all(self._are_enough_filled(names) for names in groups if self.victim in names)

    def _are_enough_filled(self, names: Sequence[str]) -> bool:
        others = [self.members[NodeId(name)] for name in names if name != self.victim]
        return sum(member.is_filled for member in others) >= majority(len(names))

    def _is_strong(self) -> bool:
        """Tell whether each group has three voters, so that two others know what one knows."""
        for uid in [CATALOG_GROUP, *self.queues]:
            leader = self._leader(uid)
            if leader is None:
                return False
            if len(leader.host.driver_of(uid).replica.configuration.voters) < rest.VOTERS_MIN:
                return False
        return True

    def _move(self) -> None:
        process = self.somebody()
        if process is not None:
            queues = [each for each in process.view.queues() if each.uid in self.queues]
            if queues:
                queue = self.rng.choice(queues)
                work = administration.move_replica(process, queue, self.rng)
                self.run_on(process, work, f"move {queue.name}")

    def may_take_out(self, uid: int, node: str) -> bool:
        """Tell whether a member may be taken out of a queue's group now: two people who each see
        four members and take out one would leave two.
        """
        now_ms = self.kernel.now_ms
        taken, since_ms = self._taken_out.get(uid, (node, now_ms))
        if taken != node and now_ms - since_ms < TAKES_OUT_MS:
            return False
        self._taken_out[uid] = node, now_ms
        return True

    def _declare_or_delete(self) -> None:
        process = self.somebody()
        passing = [uid for uid in self.queues if uid >= PASSING_UID]
        if process is None:
            return
        if len(passing) < 3 and self.rng.random() < 0.7:
            uid = self.new_passing()
            work = administration.declare_passing(process, uid)
            self.run_on(process, work, f"declare {uid}")
        elif passing:
            uid = self.rng.choice(passing)
            self.run_on(process, administration.delete_passing(process, uid), f"delete {uid}")

    def new_passing(self) -> int:
        """Return the uid that the next queue gets, which no client uses."""
        uid = self.uid_of_next_queue = self._next_passing
        self._next_passing += 1
        self.oracle.ledgers[uid] = Ledger()
        return uid

    def on_serving(self, member: ClusterMember) -> None:
        """A member lets clients in: one with a new disk may end before it has filled all of it."""
        member.has_served = True
        if self.is_chaotic and member.has_lost_something and self.strikes(0.5):
            self.kernel.after(self.rng.random() * 40, self._crash, member, 50)

    def on_declared(self, process: Process, uid: int) -> None:
        """A queue that no client uses is there."""
        self._count_learner("declared", process)
        self.queues[uid] = SimQueue(uid, f"passing{uid}", [], QueueOptions(queue_type="quorum"))

    def on_deleted(self, uid: int) -> None:
        """It is there no more."""
        self.queues.pop(uid, None)

    def _rest(self) -> None:
        process = self.somebody()
        if process is None:
            return
        node = self._resting
        self._resting = None if node else NodeId(self.rng.choice(sorted(process.view.members())))
        about = node or self._resting
        work = administration.set_maintenance(process, about, is_on=node is None)
        self.run_on(process, work, f"maintenance {about} {node is None}")

    def _spread(self) -> None:
        process = self.somebody()
        if process is not None:
            self.run_on(process, administration.rebalance(process), "rebalance")

    def _unbind(self) -> None:
        process = self.somebody()
        if process is not None:
            self.run_on(process, administration.unbind(process), "unbind")
        self.kernel.after(700, self._bind_again)

    def _bind_again(self) -> None:
        """The way is there again as soon as somebody can say so."""
        process = self.somebody()
        if process is not None and administration.is_bound(process):
            return
        if process is not None:
            self.run_on(process, administration.quietly(administration.bind(process)), "bind")
        self.kernel.after(AGAIN_MS, self._bind_again)

    def _write(self) -> None:
        process = self.somebody()
        if process is not None:
            self._written += 1
            self.run_on(process, self._write_one(process, self._written), f"write {self._written}")

    async def _write_one(self, process: Process, number: int) -> None:
        name = f"sim{number}"
        reply = await administration.quietly(
            process.write(catalog_commands.set_setting(name, number))
        )
        if reply is None:
            return
        # Sent twice, since an answer was lost, it changes nothing the second time.
        is_done = reply["code"] in (catalog_commands.OK, catalog_commands.UNCHANGED)
        self.oracle.require(is_done, f"setting: {reply}")
        self.record("written", process.node, number)
        self.acknowledged[name] = number
        self.oracle.require(
            process.view.setting(name) == number, f"{process.node} does not see its own {name}"
        )

    # ---- running --------------------------------------------------------------------------------

    def _populate(self, root: Path) -> None:
        for node in self._names:
            self.members[node] = ClusterMember(self, node, root)
            self.wires.add(node, self.members[node])
        for node, member in self.members.items():
            member.is_out = node not in self.founders
            self.kernel.after(self.rng.randrange(300), member.start)
        for client in [*self.publishers, *self.consumers]:
            self.kernel.after(100 + self.rng.randrange(500), client.attach)
        self.kernel.after(AGAIN_MS, self._declare_first)

    def _first_fault_ms(self) -> int:
        return self.scenario.calm_ms

    def _declare_first(self) -> None:
        process = self.somebody()
        if process is not None:
            missing = [uid for uid in self.first_queues if process.queue_of(uid) is None]
            if not missing:
                return
            self.run_on(process, administration.declare_first(process), "declare")
        self.kernel.after(AGAIN_MS, self._declare_first)

    def _run_until(self, end_ms: int) -> None:
        super()._run_until(end_ms)
        ids = {member.broker.view.cluster_id for member in self.members.values() if member.is_up}
        self._cluster_ids |= ids - {""}
        self.oracle.require(len(self._cluster_ids) <= 1, f"two clusters: {self._cluster_ids}")
        self._look_for_voters()

    def _look_at_live_entries(self) -> None:
        super()._look_at_live_entries()
        self._look_for_voters()

    def _look_for_voters(self) -> None:
        for member in self.members.values():
            driver = member.host.driver_of(CATALOG_GROUP) if member.is_up else None
            if driver is not None:
                self._look_at_voters(member, driver.replica.configuration.voters)

    def _look_at_voters(self, member: ClusterMember, voters: Sequence[NodeId]) -> None:
        """Seven vote in the catalog at most; who leaves gives its place away first (ADR 44)."""
        staying = [
            name
            for name in voters
            if name not in self.leaving and not self.members[name].was_removed
        ]
        self.oracle.require(
            len(staying) <= VOTERS_MAX and len(voters) <= VOTERS_MAX + 1,
            f"in the catalog at {member.id} vote {voters}, of whom {staying} stay (ADR 44)",
        )

    def _obstacle(self) -> str | None:
        self._follow()
        return self._obstacle_of_cluster() or super()._obstacle()

    def _obstacle_of_cluster(self) -> str | None:
        """Return what is not yet as the catalog says; None: all is."""
        if self.leaving:
            return f"{sorted(self.leaving)} still leave"
        process = self.somebody()
        obstacle = None if process is None else rest.put_right(self, process)
        if obstacle is not None:
            return obstacle
        inside = sorted(node for node, member in self.members.items() if not member.is_out)
        for node in inside:
            process = self.members[node].broker
            if process is None or not process.is_serving:
                return f"{node} does not serve"
        for node in inside:
            process = self.members[node].broker
            obstacle = rest.obstacle_at(self, process, inside)
            if obstacle is not None:
                return obstacle
        return None

    # ---- the examination ------------------------------------------------------------------------

    def _examine(self) -> None:
        """All is at rest: see what members do that are asked now."""
        # Nobody takes anybody out of a queue any more.
        self._taken_out.clear()
        if self.scenario.keeps:
            self._is_emptying = True
            self._drain()
        examination.look_at_all(self)

    def advance(self, for_ms: int) -> None:
        """Let time pass."""
        self._run_until(self.kernel.now_ms + for_ms)

    def come_to_rest(self) -> None:
        """Let time pass until all is as the catalog says."""
        self._drain()

    def write_setting(self, process: Process) -> Coroutine[Any, Any, None]:
        """Have a member write a setting that must not get lost."""
        self._written += 1
        return self._write_one(process, self._written)


__all__ = ["ClusterWorld", "Violation"]
