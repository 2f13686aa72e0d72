"""Endpoints about members and leaders of quorum queues (R-QQ-23), for administrators."""

from __future__ import annotations

import logging
from typing import Any

from brokerd.core.catalog.catalog_objects import Queue
from brokerd.server.catalog import member_states
from brokerd.server.management.call import (
    Answer,
    Call,
    Json,
    bad_request,
    no_content,
    not_found,
    unavailable,
)
from brokerd.server.management.routes import Right, Route
from brokerd.server.members import quorum_calls, replica_changes
from brokerd.server.members.replica_changes import EVERYTHING, MembershipError

log = logging.getLogger(__name__)

#: How long an answer may take; a change that is slower goes on.
CHANGE_S, TRANSFER_S = 60.0, 10.0
#: Mistakes in one answer.
SHOWN_MAX = 20


def _queue(call: Call) -> Queue:
    queue = call.services.catalog.view.queue(call.vhost, call.parts["name"])
    if queue is None:
        raise not_found()
    if queue.type != "quorum":
        raise bad_request(f"queue '{queue.name}' is a {queue.type} queue: it has one member")
    return queue


def _text(body: Json, name: str, default: str | None = None) -> str:
    value: Any = body.get(name, default)
    if not isinstance(value, str):
        raise bad_request(f"{name}: expected a text")
    return value


async def _add(call: Call) -> Answer:
    """Also an answer for a member that has one already."""
    queue, node = _queue(call), _text(await call.needed("node"), "node")
    await _change(call, True, node, [queue])
    return no_content()


async def _delete(call: Call) -> Answer:
    queue, node = _queue(call), _text(await call.needed("node"), "node")
    if node not in queue.wanted_members:
        raise bad_request(f"'{node}' holds no replica of the queue")
    await _change(call, False, node, [queue])
    return no_content()


async def _change(
    call: Call, is_growing: bool, node: str, queues: list[Queue], strategy: str = "all"
) -> None:
    services = call.services
    what = "grow" if is_growing else "shrink"
    log.warning("%s of member '%s' by user '%s'", what, node, call.caller.user)
    try:
        if is_growing:
            outcomes = await replica_changes.grow_member(
                services.members, node, strategy, queues=queues, timeout_s=CHANGE_S
            )
        else:
            outcomes = await replica_changes.shrink_member(
                services.members, node, queues=queues, timeout_s=CHANGE_S
            )
    except MembershipError as error:
        raise bad_request(str(error)) from error
    faults = [f"queue '{each.name}': {each.error}" for each in outcomes if each.error]
    if faults:
        raise bad_request("; ".join(faults[:SHOWN_MAX]))


async def _grow(call: Call) -> Answer:
    body = await call.body()
    strategy = _text(body, "strategy", "all")
    await _change(call, True, call.parts["node"], _matching(call, body), strategy)
    return no_content()


async def _shrink(call: Call) -> Answer:
    body = await call.body()
    await _change(call, False, call.parts["node"], _matching(call, body))
    return no_content()


def _matching(call: Call, body: Json) -> list[Queue]:
    try:
        return replica_changes.matching_queues(
            call.services.members,
            _text(body, "vhost_pattern", EVERYTHING),
            _text(body, "queue_pattern", EVERYTHING),
        )
    except MembershipError as error:
        raise bad_request(str(error)) from error


async def _status(call: Call) -> Answer:
    queue = _queue(call)
    rows = await quorum_calls.replica_rows(call.services.members, queue)
    leader = max(
        (row["term"] for row in rows.values() if row["is_leader"]),
        default=None,
    )
    found = []
    for node in dict.fromkeys([*queue.members, *queue.wanted_members]):
        row = rows.get(node)
        if row is None:
            found.append({"Node Name": node, "Raft State": "noproc"})
            continue
        is_leader = row["is_leader"] and row["term"] == leader
        state = "leader" if is_leader else "follower" if row["leader"] else "candidate"
        found.append(
            {
                "Node Name": node,
                "Raft State": state,
                "Log Index": row["last"],
                "Commit Index": row["commit"],
                "Last Applied": row["applied"],
                "Snapshot Index": row["snapshot"],
                "Term": row["term"],
            }
        )
    return Answer(value=found)


async def _rebalance(call: Call) -> Answer:
    services = call.services
    log.warning("leaders are rebalanced by user '%s'", call.caller.user)
    _, left = await quorum_calls.rebalance(
        services.members,
        replica_changes.matching_queues(services.members),
        member_states.resting(services.catalog.view),
        TRANSFER_S,
    )
    if left:
        raise unavailable(f"{left} leaders have not moved in time")
    return no_content()


_QUORUM = "/api/queues/quorum"
_QUEUE = f"{_QUORUM}/{{vhost}}/{{name}}"
_NODE = f"{_QUORUM}/replicas/on/{{node}}"
_RIGHT = Right.ADMINISTRATOR

ROUTES = (
    Route("GET", f"{_QUEUE}/status", Right.VHOST_VISIBLE, _status, "How far each replica is (4.x)"),
    Route("POST", f"{_QUEUE}/replicas/add", _RIGHT, _add, "Give a member a replica: `node` (4.x)"),
    Route("DELETE", f"{_QUEUE}/replicas/delete", _RIGHT, _delete, "Take it away: `node` (4.x)"),
    Route(
        "POST",
        f"{_NODE}/grow",
        _RIGHT,
        _grow,
        "Give a member replicas of many: `vhost_pattern`, `queue_pattern`, `strategy` (4.x)",
    ),
    Route("DELETE", f"{_NODE}/shrink", _RIGHT, _shrink, "Take all replicas from a member (4.x)"),
    Route("POST", "/api/rebalance/queues", _RIGHT, _rebalance, "Spread leaders evenly"),
)
