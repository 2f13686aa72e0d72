"""What is asked of a simulated cluster that has come to rest: members rest, leaders spread, and
where members run on hosts in zones, queues and voters of the catalog are apart.  For world.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from brokerd.raft.messages import CATALOG_GROUP, NodeId
from brokerd.server.catalog.topology import Placement
from brokerd.server.members import quorum_calls
from tests.simulation.cluster import administration, rest

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Queue
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.world import ClusterWorld

#: What people ask for at rest takes at most so long.
EXAM_MS = 20_000
#: A queue that is not made.
NEW = administration.SPEC | {"arguments": {}}
#: A queue has at most so many replicas that lie badly.
ADVICE_MAX = 8


def wait(world: ClusterWorld, is_so: Callable[[], bool], text: str) -> None:
    """Let time pass until something is so."""
    end_ms = world.kernel.now_ms + EXAM_MS
    while not is_so():
        world.oracle.require(world.kernel.now_ms < end_ms, text)
        world.advance(100)


def do(world: ClusterWorld, process: Process, work: Coroutine[Any, Any, Any]) -> Any:
    """Have a member do something; return what comes of it."""
    found: list[Any] = []

    async def run() -> None:
        found.append(await work)

    world.run_on(process, run(), "examine")
    wait(world, lambda: bool(found), "somebody waits for an answer at rest")
    return found[0]


def declare(world: ClusterWorld, process: Process) -> Queue:
    """Declare another queue at a member."""
    uid = world.new_passing()
    do(world, process, administration.declare_passing(process, uid))
    queue = process.queue_of(uid)
    world.oracle.require(queue is not None, f"{process.node} declared queue {uid}, it is not there")
    assert queue is not None
    return queue


def look_at_all(world: ClusterWorld) -> None:
    """Ask all that the scenario gives reason for."""
    scenario = world.scenario
    if scenario.rests:
        rest_and_spread(world)
    # One disk that is not to be relied upon is enough: without two of three nothing can be led.
    if scenario.disk_stalls and not (scenario.wipes or scenario.bit_flips):
        stall_and_lead(world)
    if scenario.zones:
        look_at_places(world)


# ---- members that rest, leaders that spread -----------------------------------------------------


def rest_and_spread(world: ClusterWorld) -> None:
    """A member that rests leads nothing, and leaders spread when they are told to."""
    process = world.serving()[0]
    node = NodeId(world.rng.choice(sorted(process.view.members())))
    do(world, process, administration.set_maintenance(process, node, is_on=True))
    wait(world, lambda: _leads_nothing(world, node), f"{node} rests and still leads")
    members = declare(world, process).members
    world.oracle.require(members[0] != node, f"a new queue is for {node} to lead, which rests")
    world.oracle.require(len(members) >= rest.VOTERS_MIN, f"a new queue has only {members}")
    do(world, process, administration.set_maintenance(process, node, is_on=False))
    # What it was told to give away it may still be giving.
    world.advance(1_500)
    moved, left = do(world, process, _rebalanced(process))
    world.oracle.require(left == 0, f"{left} leaders did not move, {moved} did")
    _look_at_leaders(world, process)


async def _rebalanced(process: Process) -> tuple[int, int]:
    return await quorum_calls.rebalance(process.cluster, list(process.view.queues()), set(), 10.0)


def _leads_nothing(world: ClusterWorld, node: NodeId) -> bool:
    host = world.members[node].host
    return not any(host.leader_of(uid) == node for uid in host.groups())


def _look_at_leaders(world: ClusterWorld, process: Process) -> None:
    counts = dict.fromkeys(sorted(process.view.members()), 0)
    # Also of queues whose declaration nobody was answered.
    for queue in process.view.queues():
        leader = world.leader_of(queue.uid)
        world.oracle.require(leader is not None, f"{queue.name} has no leader after that")
        assert leader is not None
        counts[leader.id] += 1
    members = {queue.uid: queue.members for queue in process.view.queues()}
    can_lead = {name for names in members.values() for name in names}
    spread = [count for name, count in counts.items() if name in can_lead]
    if all(set(names) == can_lead for names in members.values()):
        world.oracle.require(max(spread) - min(spread) <= 1, f"leaders are spread so: {counts}")
    world.oracle.require(
        not _can_be_led(members, max(spread) - 1),
        f"leaders are spread so: {counts}, and nobody need lead as many as {max(spread)}",
    )


def _can_be_led(members: Mapping[int, Collection[str]], most: int) -> bool:
    """Tell whether each queue can have a leader of its own members of whom none leads more."""
    led: dict[str, list[int]] = {}

    def finds(uid: int, tried: set[str]) -> bool:
        for name in members[uid]:
            if name in tried:
                continue
            tried.add(name)
            here = led.setdefault(name, [])
            if len(here) < most:
                here.append(uid)
                return True
            for number, other in enumerate(here):
                if finds(other, tried):
                    here[number] = uid
                    return True
        return False

    return most > 0 and all(finds(uid, set()) for uid in members)


# ---- disks that do not answer -------------------------------------------------------------------


def stall_and_lead(world: ClusterWorld) -> None:
    """A member whose disk does not answer leads nothing that others can lead and gets no new
    leader; another one may rest meanwhile (ADR 68).
    """
    processes = world.serving()
    process = next((each for each in processes if _led(world, each.node)), processes[0])
    node, member = process.node, world.members[process.node]
    asked = world.rng.choice([each for each in processes if each is not process])
    # Writes wait for the disk from the first one on.
    member.stall(True)
    do(world, asked, world.write_setting(asked))
    wait(world, lambda: _is_known(world, node), f"{node} stalls, and not all know")
    wait(world, lambda: not _led(world, node), f"{node} stalls and leads {_led(world, node)}")
    first = Placement(process.objects).choose(administration.VHOST, "new", NEW)[0]
    world.oracle.require(first != node, f"a new queue is for {node} to lead, which stalls")
    declare(world, asked)
    other = NodeId(asked.node)
    do(world, asked, administration.set_maintenance(asked, other, is_on=True))
    wait(world, lambda: not _led(world, other), f"{other} rests and leads {_led(world, other)}")
    do(world, asked, administration.set_maintenance(asked, other, is_on=False))
    world.oracle.require(not _led(world, node), f"{node} stalls and leads {_led(world, node)}")
    member.stall(False)
    wait(world, lambda: not _is_known(world, node), f"{node} stalls for some that does not")
    world.come_to_rest()


def _is_known(world: ClusterWorld, node: NodeId) -> bool:
    return all(process.host.is_stalled(node) for process in world.serving())


def _led(world: ClusterWorld, node: NodeId) -> list[int]:
    """Return the groups that a member leads and another one could."""
    host = world.members[node].host
    led = [uid for uid in host.groups() if host.leader_of(uid) == node]
    return [uid for uid in led if len(host.status_of(uid).members.voters) > 1]


# ---- hosts and zones ----------------------------------------------------------------------------


def look_at_places(world: ClusterWorld) -> None:
    """Queues and the catalog are apart, as brokerd places them and as it advises people to."""
    learners = world.learners()
    world.oracle.require(learners, "nobody learns the catalog")
    _follow_advice(world)
    for _ in world.scenario.sizes:
        process = world.members[world.rng.choice(learners)].broker
        assert process is not None
        queue = declare(world, process)
        size = world.size_of(queue.uid)
        difference, sharing = world.places.unevenness(queue.members)
        world.oracle.require(
            len(queue.members) == size and difference <= 1 and not sharing,
            f"{process.node} declared {queue.name} with {size} replicas on {queue.members}",
        )
    _replace_voter(world)
    _lose_zone(world)


def _follow_advice(world: ClusterWorld) -> None:
    """What people have moved by hand lies as it may; what quorum_status advises mends it."""
    process = world.serving()[0]
    for queue in list(process.view.queues()):
        for _ in range(ADVICE_MAX):
            current = process.queue_of(queue.uid)
            assert current is not None
            if world.places.fault(current.members) is None:
                break
            do(world, process, administration.follow_advice(process, current))
        current = process.queue_of(queue.uid)
        assert current is not None
        fault = world.places.fault(current.members)
        world.oracle.require(fault is None, f"{queue.name} as it was advised: {fault}")


def _replace_voter(world: ClusterWorld) -> None:
    """Who votes in the catalog and leaves gives its place to the member that spreads the voters
    most evenly.
    """
    voters = world.voters()
    node = world.rng.choice(voters)
    world.take_out(node)
    wait(world, lambda: node not in world.leaving, f"{node} still leaves")
    left = [name for name in voters if name != node]
    wait(world, lambda: len(world.voters()) == len(voters), f"{node} is not replaced")
    found = world.voters()
    world.oracle.require(set(left) <= set(found), f"voters were {voters}, are {found}")
    inside = world.serving()[0].view.members()
    least = min(
        world.places.unevenness([*left, other])
        for other in inside
        if other not in left and world.members[NodeId(other)].is_up
    )
    world.oracle.require(
        world.places.unevenness(found) <= least,
        f"voters are {found} after {node} has left, which is worse than {least}",
    )
    world.come_to_rest()


def _lose_zone(world: ClusterWorld) -> None:
    """Without a zone whatever has more than half of its members elsewhere goes on."""
    voters = world.voters()
    zones = [zone for zone in world.places.zones() if _is_enough_outside(zone, voters)]
    zone = world.rng.choice(zones)
    lost = [world.members[node] for node in zone if world.members[node].is_up]
    world.record("zone", *(member.id for member in lost))
    for member in lost:
        member.crash()
    groups = {CATALOG_GROUP: [str(name) for name in voters]}
    groups |= {queue.uid: queue.members for queue in world.serving()[0].view.queues()}
    needed = [uid for uid, members in groups.items() if _is_enough_outside(zone, members)]
    wait(
        world,
        lambda: all(world.leader_of(uid) is not None for uid in needed),
        f"without {zone} not all of {needed} are led",
    )
    learner = next(process for process in world.serving() if process.node not in voters)
    do(world, learner, world.write_setting(learner))
    for member in lost:
        member.start()
    world.come_to_rest()


def _is_enough_outside(zone: Collection[str], members: Collection[str]) -> bool:
    # Of four replicas in three zones two are in one: then half of them is not enough.
    return 2 * len({*zone} & {*members}) < len(members)
