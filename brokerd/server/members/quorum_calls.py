"""What members tell each other of quorum queues' groups, and what is made of it: who leads, how far
each replica is, who cannot do without whom; leaders that move.

The answers of single members go by member_calls.py; administration (admin_membership.py) puts them
together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from brokerd.cluster.groups import placement
from brokerd.core.catalog.catalog_objects import Queue
from brokerd.raft.messages import NodeId
from brokerd.server.members import ports
from brokerd.server.members.member_calls import MemberCalls

Json: TypeAlias = dict[str, Any]

#: How often it is looked whether a leader has moved.
POLL_S = 0.1
#: A leader gives a hand-over up after an election time-out: its successor was slow, or the word to
#: it was lost.  It is asked again this often, as long as the caller has patience.
AGAIN_S = 2.0
#: Groups that one question names.
BATCH = 500
#: Leaderships that move at once: a queue takes nothing while its leadership is on its way.
AT_ONCE = 200


def serve(
    calls: MemberCalls, host: ports.Replicas, led_here: Collection[int], reasons: Mapping[int, str]
) -> None:
    """Answer other members' questions.

    led_here: the queues that are led here; reasons: why groups of these cannot go on with a change
    of their members.  Both are looked at with each question.
    """

    async def replicas(question: Json) -> Json:
        return {"rows": [row for uid in question["uids"] if (row := _replica(host, int(uid)))]}

    async def led(question: Json) -> Json:
        uids = list(led_here)
        if "uids" in question:
            uids = [uid for uid in map(int, question["uids"]) if uid in led_here]
        here = [uid for uid in uids if host.has_group(uid)]
        return {"groups": {str(uid): list(host.status_of(uid).members.voters) for uid in here}}

    async def stuck(question: Json) -> Json:
        return {"reasons": {str(uid): reasons[uid] for uid in question["uids"] if uid in reasons}}

    async def transfer(question: Json) -> Json:
        return {"refused": _transfer(host, led_here, question["moves"])}

    for name, handler in (
        ("replicas", replicas),
        ("led", led),
        ("stuck", stuck),
        ("transfer", transfer),
    ):
        calls.serve(name, handler)


def _replica(host: ports.Replicas, uid: int) -> Json | None:
    """Return a replica here, None if there is none."""
    if not host.has_group(uid):
        return None
    status = host.status_of(uid)
    return {
        "uid": uid,
        "leader": status.leader or "",
        "is_leader": status.is_leader,
        "term": status.term,
        "commit": status.commit,
        "applied": status.applied,
        "last": status.last,
        "snapshot": status.snapshot,
        "voters": list(status.members.voters),
        "learners": list(status.members.learners),
        "damaged": status.is_damaged,
        "contradicted": status.is_contradicted,
        "error": status.error,
    }


def _transfer(host: ports.Replicas, led_here: Collection[int], moves: list[list[Any]]) -> Json:
    """Begin to hand over the groups that are led here; say why others cannot be."""
    refused: Json = {}
    alive = host.alive()
    for uid, node in moves:
        if uid not in led_here:
            refused[str(uid)] = "it is led elsewhere by now"
        elif node not in host.status_of(uid).members.voters:
            refused[str(uid)] = f"'{node}' is no voting member of it"
        elif node not in alive:
            refused[str(uid)] = f"member '{node}' is down"
        elif host.is_stalled(NodeId(node)):
            refused[str(uid)] = f"the disk of member '{node}' does not answer"
        else:
            host.transfer_leadership(uid, NodeId(node))
    return refused


# ---- put together -------------------------------------------------------------------------------


async def replica_rows(cluster: ports.Neighbours, queue: Queue) -> dict[str, Json]:
    """Return the replicas of a queue as their own members see them."""
    nodes = dict.fromkeys([*queue.members, *queue.wanted_members])
    answers = await cluster.calls.ask_all(nodes, "replicas", {"uids": [queue.uid]})
    return {node: answer["rows"][0] for node, answer in answers.items() if answer["rows"]}


async def leaders(
    cluster: ports.Neighbours, uids: Collection[int] | None = None
) -> tuple[dict[int, NodeId], dict[int, list[NodeId]]]:
    """Return who leads each quorum queue (None: of all), and its voters, as the leaders say."""
    fields = {} if uids is None else {"uids": list(uids)}
    answers = await cluster.calls.ask_all(cluster.host.alive(), "led", fields)
    led: dict[int, NodeId] = {}
    voters: dict[int, list[NodeId]] = {}
    for node, answer in answers.items():
        for text, names in answer["groups"].items():
            queue = cluster.queue_of(int(text))
            if queue is not None and queue.type == "quorum":
                led[queue.uid] = NodeId(node)
                voters[queue.uid] = [NodeId(name) for name in names]
    return led, voters


async def transfer_leader(
    cluster: ports.Neighbours, queue: Queue, node: str, timeout_s: float
) -> str:
    """Let `node` lead a queue; return why it does not, "" if it does."""
    led, _ = await leaders(cluster)
    leader = led.get(queue.uid)
    if leader is None:
        return "the queue has no leader now: a majority of its members must be up"
    if leader == node:
        return ""
    wanted = {queue.uid: NodeId(node)}
    refused = await _ask_leaders(cluster, led, wanted)
    if refused:
        return refused[queue.uid]
    missing = await _until_led(cluster, wanted, timeout_s)
    return f"'{node}' has not caught up in time; '{leader}' leads on" if missing else ""


async def rebalance(
    cluster: ports.Neighbours,
    queues: Collection[Queue],
    avoid: Collection[NodeId],
    timeout_s: float,
) -> tuple[int, int]:
    """Spread the leaders of these queues evenly; return how many moved, and how many did not."""
    led, voters = await leaders(cluster)
    chosen = {queue.uid for queue in queues}
    moves = placement.balanced_leaders(
        {uid: node for uid, node in led.items() if uid in chosen},
        voters,
        {node for node in cluster.host.alive() - {*avoid} if not cluster.host.is_stalled(node)},
    )
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    late: dict[int, NodeId] = {}
    asked = refused = 0
    while asked < len(moves) and clock() < deadline:
        wanted = dict(moves[asked : asked + AT_ONCE])
        asked += len(wanted)
        for uid in await _ask_leaders(cluster, led, wanted):
            del wanted[uid]
            refused += 1
        # Those that are slow are waited for behind the others.
        late |= await _until_led(cluster, wanted, min(AGAIN_S, deadline - clock()))
    late = await _until_led(cluster, late, deadline - clock())
    missing = len(moves) - asked + refused + len(late)
    return len(moves) - missing, missing


async def _ask_leaders(
    cluster: ports.Neighbours, led: dict[int, NodeId], wanted: dict[int, NodeId]
) -> dict[int, str]:
    """Ask the leaders of these groups to hand over; return who does not, and why."""
    refused: dict[int, str] = {}
    by_leader: dict[NodeId, list[tuple[int, NodeId]]] = {}
    for uid, node in wanted.items():
        by_leader.setdefault(led[uid], []).append((uid, node))
    for leader, moves in by_leader.items():
        refused |= await _ask_to_transfer(cluster, leader, moves)
    return refused


async def _ask_to_transfer(
    cluster: ports.Neighbours, leader: NodeId, moves: list[tuple[int, NodeId]]
) -> dict[int, str]:
    answer = await cluster.calls.ask(leader, "transfer", {"moves": moves})
    if answer is None:
        return {uid: f"member '{leader}' does not answer" for uid, _ in moves}
    return {int(uid): str(reason) for uid, reason in answer["refused"].items()}


async def _until_led(
    cluster: ports.Neighbours, wanted: dict[int, NodeId], timeout_s: float
) -> dict[int, NodeId]:
    """Wait until groups are led by whom they are to be, asking again; return those that are not."""
    clock = asyncio.get_running_loop().time
    deadline, again = clock() + timeout_s, clock() + AGAIN_S
    while wanted:
        led, _ = await leaders(cluster, wanted)
        wanted = {uid: node for uid, node in wanted.items() if led.get(uid) != node}
        if not wanted or clock() >= deadline:
            break
        if clock() >= again:
            again = clock() + AGAIN_S
            await _ask_leaders(cluster, led, {uid: wanted[uid] for uid in wanted if uid in led})
        await asyncio.sleep(POLL_S)
    return wanted
