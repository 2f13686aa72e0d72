"""`brokerctl` on members that come, rest and go: the words of rabbitmqctl and rabbitmq-upgrade.

What is begun here the cluster goes on with by itself; every command may be repeated.
"""

from __future__ import annotations

import click

from brokerd.ctl import errors, members, settings

#: A call may take this much longer than what it waits for.
GRACE_S = 5.0
#: Copying replicas elsewhere takes its time.
FORGET_S = 300.0


@click.command(cls=settings.Command)
def drain() -> None:
    """Put a member into maintenance before it is stopped: others lead, its clients are sent away.

    It ends with `revive`, or when the member has been restarted.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Will put node {chosen.label} into maintenance mode. ...")
    deadline_ms = int(chosen.timeout_s * 1000)
    with connect(chosen) as client:
        answer = client.call(
            "Drain", admin_pb2.DrainRequest(deadline_ms=deadline_ms), chosen.timeout_s + GRACE_S
        )
    chosen.say(
        f"{answer.leaders_moved} leaderships moved, {answer.leaders_left} left, "
        f"{answer.connections_closed} connections closed"
    )
    if answer.leaders_left:
        raise errors.CtlError(
            f"{answer.leaders_left} groups are still led here", errors.EXIT_TEMPORARY
        )


@click.command(cls=settings.Command)
def revive() -> None:
    """End a member's maintenance: it listens again, and may lead."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Will put node {chosen.label} back into regular operating mode. ...")
    with connect(chosen) as client:
        client.call("Revive", admin_pb2.ReviveRequest())


@click.command(cls=settings.Command)
@click.argument("member", required=False)
def safe_to_stop(member: str | None) -> None:
    """Say whether a member can stop without any queue losing its majority; status 70 if not."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    with connect(chosen) as client:
        name = member or members.info(client).node
        answer = client.call("SafeToStop", admin_pb2.SafeToStopRequest(member=name))
    if not answer.safe:
        raise errors.CtlError(f"{name} must not stop now: {'; '.join(answer.reasons)}")
    chosen.say(f"{name} can be stopped")


@click.command(cls=settings.Command)
@click.argument("node")
@click.option("--force", is_flag=True, help="Delete durable queues that are on this node only.")
@click.option("--offline", is_flag=True, hidden=True, help="Accepted for scripts.")
def forget_cluster_node(node: str, force: bool, offline: bool) -> None:
    """Take NODE out of the cluster, running or not; asked of another member.

    Its replicas leave every quorum queue first.  Refused while that would cost a queue or the
    cluster its majority, or the last replica of a durable queue.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Removing node {node} from the cluster")
    timeout_s = FORGET_S if chosen.timeout_s == settings.TIMEOUT_S else chosen.timeout_s
    with connect(chosen) as client:
        if members.info(client).node == node:
            raise errors.CtlError(
                f"{node} is the member that was asked; ask another one (--address)",
                errors.EXIT_USAGE,
            )
        request = admin_pb2.MemberRequest(name=node, force=force, deadline_ms=int(timeout_s * 1000))
        answer = client.call("RemoveMember", request, timeout_s + GRACE_S)
    chosen.say(f"{node} has left; members are {', '.join(answer.members)}")


@click.command(cls=settings.Command)
@click.argument("node")
@click.argument("address")
def add_cluster_node(node: str, address: str) -> None:
    """Add NODE, whose peers reach it at ADDRESS (host:port).

    Needed for a node that was removed and shall come back with its old data; one with an empty
    data directory joins by itself when it starts.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    with connect(chosen) as client:
        request = admin_pb2.MemberRequest(name=node, peer_address=address)
        answer = client.call("AddMember", request)
    chosen.say(f"members are {', '.join(answer.members)}; {node} takes part when it runs")
