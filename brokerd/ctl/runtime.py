"""`brokerctl` on what a member does now: its limits, its clients, its listeners, its firehose."""

from __future__ import annotations

import re

import click

from brokerd.ctl import errors, settings

MEMORY_SETTING = "vm_memory_high_watermark"
DISK_SETTING = "disk_free_limit"
CLUSTER_NAME_SETTING = "cluster_name"
_FRACTION = re.compile(r"\d{1,6}(\.\d{1,9})?")
_SIZE = re.compile(r"\d{1,18}\s*([kmgt]i?b?|b)?", re.IGNORECASE)
#: `<node.creation.number.0>`, as list_connections shows it.
_PID = re.compile(r"<[^<>]+\.\d+\.\d+\.\d+>")
#: Connections are also known by name: 127.0.0.1:5000 -> 127.0.0.1:5672.
_NAME = re.compile(r".+ -> .+")
_ALL = click.option("--all-members", is_flag=True, help="On all members, not only on this one.")


def _set(name: str, value: str, all_members: bool) -> None:
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    request = admin_pb2.SetSettingsRequest(settings={name: value}, all_members=all_members)
    with connect(settings.current()) as client:
        client.call("SetSettings", request)


def _where(all_members: bool) -> str:
    return "all members" if all_members else settings.current().label


@click.command(cls=settings.Command)
@click.argument("value", nargs=-1, required=True, metavar="FRACTION | absolute BYTES")
@_ALL
def set_vm_memory_high_watermark(value: tuple[str, ...], all_members: bool) -> None:
    """Set how much memory may be used before publishers are blocked: 0.6, or absolute 2GiB."""
    where = _where(all_members)
    if value[0] == "absolute":
        _count(value, 2)
        size = value[1]
        if not _SIZE.fullmatch(size):
            raise errors.BadArgument(f"'{size}' is no number of bytes (2GiB)")
        settings.current().say(f"Setting memory threshold on {where} to {size} bytes ...")
        # Else a number below ten would be taken for a fraction.
        _set(MEMORY_SETTING, f"{size}B" if size.isdigit() else size, all_members)
        return
    _count(value, 1)
    fraction = value[0]
    if not _FRACTION.fullmatch(fraction):
        raise errors.BadArgument(
            f"'{fraction}' is no fraction (0.6); a number of bytes stands behind 'absolute'"
        )
    if float(fraction) > 1:
        raise errors.BadArgument("The threshold should be a fraction between 0.0 and 1.0")
    settings.current().say(f"Setting memory threshold on {where} to {fraction} ...")
    _set(MEMORY_SETTING, fraction, all_members)


@click.command(cls=settings.Command)
@click.argument("value", nargs=-1, required=True, metavar="BYTES | mem_relative FRACTION")
@_ALL
def set_disk_free_limit(value: tuple[str, ...], all_members: bool) -> None:
    """Set the free space below which publishers are blocked: 2GB, or mem_relative 1.0."""
    where = _where(all_members)
    if value[0] == "mem_relative":
        _count(value, 2)
        fraction = value[1]
        if not _FRACTION.fullmatch(fraction):
            raise errors.BadArgument(f"'{fraction}' is no fraction (1.5)")
        settings.current().say(
            f"Setting disk free limit on {where} to {fraction} times the total RAM ..."
        )
        _set(DISK_SETTING, fraction if "." in fraction else f"{fraction}.0", all_members)
        return
    _count(value, 1)
    if not _SIZE.fullmatch(value[0]):
        raise errors.BadArgument(f"'{value[0]}' is no number of bytes (2GB)")
    settings.current().say(f"Setting disk free limit on {where} to {value[0]} bytes ...")
    _set(DISK_SETTING, f"{value[0]}B" if value[0].isdigit() else value[0], all_members)


@click.command(cls=settings.Command)
@click.argument("name")
def set_cluster_name(name: str) -> None:
    """Set the name by which other clusters know this one, for federation.

    Links restart under it.  Their upstream queues of the old name stay there with what waits in
    them: delete those that no other cluster uses.
    """
    if not name.strip():
        raise errors.BadArgument
    settings.current().say(f"Setting cluster name to {name} ...")
    _set(CLUSTER_NAME_SETTING, name, all_members=True)


def _count(value: tuple[str, ...], count: int) -> None:
    if len(value) != count:
        few = "not enough" if len(value) < count else "too many"
        raise click.UsageError(f"{few} arguments.")


# ---- clients ------------------------------------------------------------------------------------


@click.command(cls=settings.Command)
@click.argument("connection")
@click.argument("explanation", required=False, default="closed by an administrator")
def close_connection(connection: str, explanation: str) -> None:
    """Close an AMQP connection of any member, by pid or name as list_connections has them."""
    from brokerd.ctl.client import AdminClient
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Closing connection {connection}, reason: {explanation}...")
    if not _PID.fullmatch(connection) and not _NAME.fullmatch(connection):
        raise errors.CtlError(
            f'Error:\n{{:invalid_pid_syntax, "{connection}"}}', errors.EXIT_UNAVAILABLE
        )
    request = admin_pb2.CloseConnectionRequest(id=connection, reason=explanation)
    # One that is gone is as good as closed; scripts close what they listed a moment ago.
    for address in chosen.addresses():
        with AdminClient(chosen, address) as client:
            if client.call("CloseConnection", request).found:
                return


@click.command(cls=settings.Command)
@click.argument("explanation")
@click.option("--limit", type=click.IntRange(min=0), default=0, help="At most so many [all].")
@click.option(
    "--per-connection-delay", type=click.IntRange(min=0), default=0, help="Milliseconds between."
)
@click.option("--global", "everywhere", is_flag=True, help="Of all vhosts of --node.")
def close_all_connections(
    explanation: str, limit: int, per_connection_delay: int, everywhere: bool
) -> None:
    """Close the AMQP connections of a vhost on all members.

    With --global of all vhosts, on the members that --node names only.
    """
    from brokerd.ctl.client import AdminClient
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    where = f"in vhost {chosen.vhost}"
    if everywhere:
        where = f"to node {chosen.label} (across all vhosts)"
    chosen.say(f"Closing all connections {where}, reason: {explanation}...")
    closed = 0
    for address in chosen.addresses():
        if limit and closed == limit:
            break
        request = admin_pb2.CloseConnectionsRequest(
            vhost="" if everywhere else chosen.vhost,
            reason=explanation,
            limit=limit and limit - closed,
            delay_ms=per_connection_delay,
            all_members=not everywhere,
        )
        with AdminClient(chosen, address) as client:
            answer = client.call("CloseConnections", request)
        closed += answer.closed
        if answer.unanswered:
            silent = ", ".join(answer.unanswered)
            click.echo(f"Warning: no answer from {silent}: its clients stay", err=True)
    chosen.say(f"Closed {closed} connections")


# ---- the member's listeners ---------------------------------------------------------------------


@click.command(cls=settings.Command)
def stop_app() -> None:
    """Send AMQP clients away and close the listeners; durable objects and messages stay."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Stopping rabbit application on node {chosen.label} ...")
    with connect(chosen) as client:
        client.call("StopApp", admin_pb2.StopAppRequest())


@click.command(cls=settings.Command)
def start_app() -> None:
    """Open the listeners again."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Starting node {chosen.label} ...")
    with connect(chosen) as client:
        client.call("StartApp", admin_pb2.StartAppRequest())


# ---- the firehose -------------------------------------------------------------------------------


def _trace(on: bool) -> None:
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    with connect(chosen) as client:
        client.call("SetTracing", admin_pb2.SetTracingRequest(vhost=chosen.vhost, on=on))
    # rabbitmqctl says this with -q, too.
    click.echo(f"Trace {'enabled' if on else 'disabled'} for vhost {chosen.vhost}")


@click.command(cls=settings.Command)
def trace_on() -> None:
    """Copy what is published and delivered in a vhost (-p) to its exchange amq.rabbitmq.trace."""
    chosen = settings.current()
    chosen.say(f'Starting tracing for vhost "{chosen.vhost}" ...')
    _trace(True)


@click.command(cls=settings.Command)
def trace_off() -> None:
    """Stop copying."""
    chosen = settings.current()
    chosen.say(f'Stopping tracing for vhost "{chosen.vhost}" ...')
    _trace(False)
