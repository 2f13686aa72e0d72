"""`brokerctl` on quorum queues: their members and leaders, in the language of rabbitmq-queues.

The member that is asked does the work or has it done (server/grpc/admin_membership.py); what it did
not finish in time the cluster goes on with.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brokerd.ctl import errors, members, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

F = TypeVar("F", bound=Callable[..., Any])

#: A call may take this much longer than what it waits for.
GRACE_S = 10.0
_COLUMNS = ("vhost", "name", "size", "result")
_STATUS_COLUMNS = (
    "Node Name",
    "Raft State",
    "Membership",
    "Last Log Index",
    "Last Applied",
    "Commit Index",
    "Snapshot Index",
    "Term",
    "Host",
    "Zone",
    "Problem",
)
_MEMBERSHIPS = click.Choice(["voter", "promotable"])
_membership = click.option(
    "--membership",
    type=_MEMBERSHIPS,
    default="voter",
    help="Accepted for scripts: a new member always learns first and votes when it has caught up.",
)
_errors_only = click.option("--errors-only", is_flag=True, help="Show only queues that failed.")


def _member(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    """Return a member's name; of a node as Erlang names it (name@host) that is the host."""
    return None if value is None else value.rpartition("@")[2]


def _patterns(command: F) -> F:
    vhost = click.option(
        "--vhost-pattern", default="", metavar="REGEX", help="Only vhosts that match."
    )
    queue = click.option(
        "--queue-pattern", default="", metavar="REGEX", help="Only queues that match."
    )
    return vhost(queue(command))


@click.command(cls=settings.Command)
@click.argument("node", callback=_member)
@click.argument("strategy", type=click.Choice(["all", "even"]))
@_patterns
@_membership
@_errors_only
def grow(
    node: str,
    strategy: str,
    vhost_pattern: str,
    queue_pattern: str,
    membership: str,
    errors_only: bool,
) -> None:
    """Give NODE a replica of all quorum queues, or of those with an even number of members, and
    wait until it has caught up.
    """
    from brokerd.rpc.v1 import admin_pb2

    settings.current().say(f"Growing {strategy} quorum queues on {node}...")
    request = admin_pb2.ChangeQueueMembersRequest(
        change=admin_pb2.ChangeQueueMembersRequest.GROW,
        member=node,
        strategy=strategy,
        queues=admin_pb2.QueueSelection(vhost_pattern=vhost_pattern, queue_pattern=queue_pattern),
    )
    _change(request, errors_only=errors_only)


@click.command(cls=settings.Command)
@click.argument("node", callback=_member)
@_patterns
@_errors_only
def shrink(node: str, vhost_pattern: str, queue_pattern: str, errors_only: bool) -> None:
    """Take NODE, which may be down, out of all quorum queues."""
    from brokerd.rpc.v1 import admin_pb2

    settings.current().say(f"Shrinking quorum queues on {node}...")
    request = admin_pb2.ChangeQueueMembersRequest(
        change=admin_pb2.ChangeQueueMembersRequest.SHRINK,
        member=node,
        queues=admin_pb2.QueueSelection(vhost_pattern=vhost_pattern, queue_pattern=queue_pattern),
    )
    _change(request, errors_only=errors_only)


@click.command(cls=settings.Command)
@click.argument("queue")
@click.argument("node", callback=_member)
@_membership
def add_member(queue: str, node: str, membership: str) -> None:
    """Give NODE a replica of one quorum queue."""
    from brokerd.rpc.v1 import admin_pb2

    settings.current().say(f"Adding a replica for queue {queue} on node {node}...")
    _change_one(admin_pb2.ChangeQueueMembersRequest.GROW, queue, node)


@click.command(cls=settings.Command)
@click.argument("queue")
@click.argument("node", callback=_member)
def delete_member(queue: str, node: str) -> None:
    """Take NODE, which may be down, out of one quorum queue."""
    from brokerd.rpc.v1 import admin_pb2

    settings.current().say(f"Removing a replica of queue {queue} on node {node}...")
    _change_one(admin_pb2.ChangeQueueMembersRequest.SHRINK, queue, node)


def _results(request: Any) -> list[dict[str, Any]]:
    """Ask for a change; return its results, showing a person how far it is meanwhile."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    request.deadline_ms = int(chosen.timeout_s * 1000)
    is_watched = sys.stderr.isatty() and not (chosen.quiet or chosen.stands_in)
    found = []
    with connect(chosen) as client:
        answers = client.stream("ChangeQueueMembers", request, chosen.timeout_s + GRACE_S)
        for number, item in enumerate(answers, 1):
            if is_watched:
                click.echo(f"\r{number} queues done", nl=False, err=True)
            result = f"error: {item.error}" if item.error else "ok"
            found.append(
                {"vhost": item.vhost, "name": item.name, "size": item.size, "result": result}
            )
    if is_watched and found:
        click.echo("\r\033[K", nl=False, err=True)
    return found


def _change(request: Any, *, errors_only: bool) -> None:
    chosen = settings.current()
    found = _results(request)
    failed = [row for row in found if row["result"] != "ok"]
    output.rows(chosen, _COLUMNS, failed if errors_only else found, streams=False)
    if failed:
        raise errors.CtlError(f"{len(failed)} of {len(found)} queues were not changed")


def _change_one(change: Any, queue: str, node: str) -> None:
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    request = admin_pb2.ChangeQueueMembersRequest(
        change=change,
        member=node,
        strategy="all",
        queues=admin_pb2.QueueSelection(vhost=chosen.vhost, name=queue),
    )
    is_growing = change == admin_pb2.ChangeQueueMembersRequest.GROW
    found = _results(request)
    if not found:
        has = "holds a replica already" if is_growing else "holds no replica"
        chosen.say(f"{node} {has}")
    for row in found:
        if row["result"] != "ok":
            raise errors.CtlError(row["result"].removeprefix("error: "))


@click.command(cls=settings.Command)
@click.argument("queue")
@click.argument("node", callback=_member)
def transfer_leader(queue: str, node: str) -> None:
    """Let NODE, which holds a replica of it, lead a quorum queue."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Transferring leadership of queue {queue} to node {node}...")
    request = admin_pb2.TransferLeaderRequest(
        vhost=chosen.vhost, name=queue, member=node, deadline_ms=int(chosen.timeout_s * 1000)
    )
    with connect(chosen) as client:
        client.call("TransferLeader", request, chosen.timeout_s + GRACE_S)


@click.command(cls=settings.Command)
@click.argument("type_", metavar="TYPE", type=click.Choice(["all", "classic", "quorum", "stream"]))
@_patterns
def rebalance(type_: str, vhost_pattern: str, queue_pattern: str) -> None:
    """Spread the leaders of quorum queues evenly over the members; other queues have one member."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Rebalancing leaders for queues of type {type_} ...")
    if type_ in ("classic", "stream"):
        chosen.say("Nothing to do: classic queues are not replicated, streams are not offered")
        return
    request = admin_pb2.RebalanceLeadersRequest(
        queues=admin_pb2.QueueSelection(vhost_pattern=vhost_pattern, queue_pattern=queue_pattern),
        deadline_ms=int(chosen.timeout_s * 1000),
    )
    with connect(chosen) as client:
        answer = client.call("RebalanceLeaders", request, chosen.timeout_s + GRACE_S)
    rows = [
        {"Node name": item.member, "Number of quorum queues": item.leaders}
        for item in answer.counts
    ]
    output.rows(chosen, ("Node name", "Number of quorum queues"), rows, streams=False)
    if answer.left:
        raise errors.CtlError(
            f"{answer.left} leaders have not moved in time: run it again", errors.EXIT_TEMPORARY
        )


@click.command(cls=settings.Command)
@click.argument("queue")
def quorum_status(queue: str) -> None:
    """Show each member of a quorum queue: its role, how far its log is, whether it votes."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Status of quorum queue {queue} on node {chosen.label} ...")
    request = admin_pb2.QuorumStatusRequest(vhost=chosen.vhost, name=queue)
    with connect(chosen) as client:
        answer = client.call("QuorumStatus", request)
    rows = []
    for item in answer.members:
        is_there = item.state != "noproc"
        rows.append(
            {
                "Node Name": item.member,
                "Raft State": item.state,
                "Membership": item.membership,
                "Last Log Index": item.last_index if is_there else None,
                "Last Applied": item.applied_index if is_there else None,
                "Commit Index": item.commit_index if is_there else None,
                "Snapshot Index": item.snapshot_index if is_there else None,
                "Term": item.term if is_there else None,
                "Host": item.host,
                "Zone": item.zone,
                "Problem": item.problem,
            }
        )
    output.rows(chosen, _STATUS_COLUMNS, rows, streams=False)
    if answer.warning:
        click.echo(f"Warning: {answer.warning}", err=True)


def _checked(client: AdminClient, node: str | None) -> tuple[str, Any]:
    from brokerd.rpc.v1 import admin_pb2

    name = node or str(members.info(client).node)
    return name, client.call("CheckQuorum", admin_pb2.CheckQuorumRequest(member=name))


def _readable(queue: Any) -> str:
    reason = f": {queue.reason}" if queue.reason else ""
    return f"queue '{queue.name}' in vhost '{queue.vhost}'{reason}"


def _verdict(found: list[str], bad: str, good: str) -> None:
    """End with status 69 and what was found, or say that all is well."""
    chosen = settings.current()
    if chosen.formatter_now() == "json":
        if not found:
            output.record(chosen, {"result": "ok"})
            return
        output.record(chosen, {"message": bad, "queues": found, "result": "error"})
    if found:
        lines = "\n".join(found)
        raise errors.CtlError(f"{bad}:\n{lines}", errors.EXIT_UNAVAILABLE)
    chosen.say(good)


@click.command(cls=settings.Command)
@click.argument("node", required=False, callback=_member)
def check_if_node_is_quorum_critical(node: str | None) -> None:
    """Check whether a quorum queue would lose its majority if NODE stopped; status 69 if so."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(
        f"Checking if node {node or chosen.label} is critical for quorum of any quorum queues ..."
    )
    with connect(chosen) as client:
        name, answer = _checked(client, node)
    _verdict(
        [_readable(queue) for queue in answer.critical],
        f"Node {name} reported queues that would lose their quorum without it",
        f"Node {name} reported no queues with minimum quorum",
    )


#: What later releases call it.
check_if_member_is_quorum_critical = check_if_node_is_quorum_critical


@click.command(cls=settings.Command)
def check_if_new_quorum_queue_replicas_have_finished_initial_sync() -> None:
    """Check whether new members of quorum queues still have to catch up; status 69 if so."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say("Checking if all new quorum queue replicas have finished their initial sync ...")
    with connect(chosen) as client:
        _, answer = _checked(client, None)
    _verdict(
        [_readable(queue) for queue in answer.syncing],
        "New replicas have not finished their initial sync",
        "All new quorum queue replicas have finished their initial sync",
    )
