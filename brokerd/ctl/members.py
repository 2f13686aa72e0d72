"""`brokerctl` on members: their state, their limits, their coming and going."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import errors, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

#: How often await_startup asks.
POLL_S = 0.2
MEMORY_SETTING = "vm_memory_high_watermark"
DISK_SETTING = "disk_free_limit"


def _info(client: AdminClient) -> Any:
    from brokerd.rpc.v1 import admin_pb2

    return client.call("GetInfo", admin_pb2.GetInfoRequest())


def _member_status(client: AdminClient) -> Any:
    from brokerd.rpc.v1 import admin_pb2

    return client.call("MemberStatus", admin_pb2.MemberStatusRequest())


def _member_row(member: Any) -> dict[str, Any]:
    return {
        "name": member.name,
        "running": member.running,
        "version": member.version,
        "peer_address": member.peer_address,
        "leaders": member.leaders,
        "replicas": member.replicas,
        "memory_used": member.memory_used,
        "memory_limit": member.memory_limit,
        "disk_free": member.disk_free,
        "alarms": list(member.alarms),
    }


@click.command(cls=settings.Command)
def status() -> None:
    """Show the state of a member."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        info = _info(client)
        members = _member_status(client)
        own = next((m for m in members.members if m.name == info.node), None)
        groups = client.live_rows("groups")
        fields: dict[str, Any] = {
            "node": info.node,
            "version": info.version,
            "cluster_name": info.cluster_name,
            "cluster_id": info.cluster_id,
            "catalog_leader": members.catalog_leader,
            "catalog_revision": info.revision,
            "features": list(info.features),
        }
        if own is not None:
            fields |= {
                "caught_up": own.caught_up,
                "alarms": list(own.alarms),
                "memory_used": own.memory_used,
                "memory_limit": own.memory_limit,
                "disk_free": own.disk_free,
                "queues_led": own.leaders,
                "queue_replicas": own.replicas,
            }
        fields |= {
            "raft_groups": len(groups),
            "damaged_groups": [row["name"] for row in groups if row["damaged"] or row["error"]],
            "connections": len(client.live_rows("connections")),
            "channels": len(client.live_rows("channels")),
            "consumers": len(client.live_rows("consumers")),
            "queues": len(client.live_rows("queues")),
        }
    chosen.say(f"Status of node {fields['node']} ...")
    output.record(chosen, fields)


@click.command(cls=settings.Command)
def ping() -> None:
    """Ask a member whether it answers; status 69 if not."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        node = _info(client).node
    chosen.say(f"Ping succeeded: {node} answers")


@click.command(cls=settings.Command)
def cluster_status() -> None:
    """Show the members of the cluster as the asked one sees them."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        info = _info(client)
        answer = _member_status(client)
    chosen.say(f"Cluster {info.cluster_name} ({info.cluster_id}) as {info.node} sees it")
    chosen.say(f"Leader of the catalog: {answer.catalog_leader or 'none'}")
    found = [_member_row(member) for member in answer.members]
    output.rows(chosen, list(_member_row(answer.members[0])) if found else [], found)


@click.command(cls=settings.Command)
def environment() -> None:
    """Show the configuration a member runs with; secrets are not shown."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        found = client.live_rows("configuration")
    output.record(chosen, {row["name"]: row["value"] for row in found})


@click.command(cls=settings.Command)
def await_startup() -> None:
    """Wait until a member serves clients, at most as long as --timeout says (status 75)."""
    from brokerd.ctl.client import AdminClient

    chosen = settings.current()
    deadline = time.monotonic() + chosen.timeout_s
    address = chosen.addresses()[0]
    problem = "it does not answer"
    while True:
        try:
            with AdminClient(chosen, address) as client:
                node = _info(client).node
                answer = _member_status(client)
            own = next((m for m in answer.members if m.name == node), None)
            if own is not None and answer.catalog_leader and own.caught_up:
                chosen.say(f"{node} is ready")
                return
            problem = "it has not caught up with the cluster yet"
        except errors.CtlError as error:
            if error.exit_code not in (errors.EXIT_UNAVAILABLE, errors.EXIT_TEMPORARY):
                raise
            problem = str(error)
        if time.monotonic() >= deadline:
            raise errors.CtlError(
                f"not ready within {chosen.timeout_s:g} s: {problem}", errors.EXIT_TEMPORARY
            )
        time.sleep(min(POLL_S, max(0.0, deadline - time.monotonic())))


@click.command(cls=settings.Command)
def drain() -> None:
    """Let other members lead what this one leads, before it is stopped."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    deadline_ms = int(chosen.timeout_s * 1000)
    with connect(chosen) as client:
        answer = client.call(
            "Drain", admin_pb2.DrainRequest(deadline_ms=deadline_ms), chosen.timeout_s + 5
        )
    chosen.say(f"{answer.leaders_moved} leaderships moved, {answer.leaders_left} left")
    if answer.leaders_left:
        raise errors.CtlError(
            f"{answer.leaders_left} groups are still led here", errors.EXIT_TEMPORARY
        )


@click.command(cls=settings.Command)
@click.argument("member", required=False)
def safe_to_stop(member: str | None) -> None:
    """Say whether a member can stop without any queue losing its majority; status 70 if not."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    with connect(chosen) as client:
        name = member or _info(client).node
        answer = client.call("SafeToStop", admin_pb2.SafeToStopRequest(member=name))
    if not answer.safe:
        raise errors.CtlError(f"{name} must not stop now: {'; '.join(answer.reasons)}")
    chosen.say(f"{name} can be stopped")


def _set(name: str, value: str, all_members: bool) -> None:
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    where = "all members" if all_members else chosen.addresses()[0]
    chosen.say(f"Setting {name} on {where} to {value} ...")
    request = admin_pb2.SetSettingsRequest(settings={name: value}, all_members=all_members)
    with connect(chosen) as client:
        client.call("SetSettings", request)


_ALL = click.option("--all-members", is_flag=True, help="On all members, not only on this one.")


@click.command(cls=settings.Command)
@click.argument("value", nargs=-1, required=True, metavar="FRACTION | absolute BYTES")
@_ALL
def set_vm_memory_high_watermark(value: tuple[str, ...], all_members: bool) -> None:
    """Set how much memory may be used before publishers are blocked: 0.6, or absolute 2GiB."""
    if len(value) == 2 and value[0] == "absolute":
        number = value[1]
        if number.replace(".", "", 1).isdigit() and not number.isdigit():
            raise click.UsageError(f"'{number}' is not a number of bytes")
        # Else a number below ten would be taken for a fraction.
        number = f"{number}B" if number.isdigit() else number
    elif len(value) == 1:
        number = value[0]
    else:
        raise click.UsageError("expected a fraction, or 'absolute' and a number of bytes")
    _set(MEMORY_SETTING, number, all_members)


@click.command(cls=settings.Command)
@click.argument("value", nargs=-1, required=True, metavar="BYTES | mem_relative FRACTION")
@_ALL
def set_disk_free_limit(value: tuple[str, ...], all_members: bool) -> None:
    """Set the free space below which publishers are blocked: 2GB, or mem_relative 1.0."""
    if len(value) == 2 and value[0] == "mem_relative":
        number = value[1] if "." in value[1] else f"{value[1]}.0"
    elif len(value) == 1:
        number = value[0]
    else:
        raise click.UsageError("expected a number of bytes, or 'mem_relative' and a fraction")
    _set(DISK_SETTING, number, all_members)


@click.command(cls=settings.Command)
@click.argument("connection")
@click.argument("explanation", required=False, default="closed by an administrator")
def close_connection(connection: str, explanation: str) -> None:
    """Close an AMQP connection, named by its pid or name as list_connections shows it."""
    from brokerd.ctl.client import AdminClient
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Closing connection {connection}, reason: {explanation} ...")
    request = admin_pb2.CloseConnectionRequest(id=connection, reason=explanation)
    for address in chosen.addresses():
        with AdminClient(chosen, address) as client:
            if client.call("CloseConnection", request).found:
                return
    raise errors.CtlError(f"no connection {connection} here", errors.EXIT_DATA)
