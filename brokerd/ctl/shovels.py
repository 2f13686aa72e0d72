"""`brokerctl` on shovels, in the words of rabbitmqctl with its shovel plugin."""

from __future__ import annotations

import time
from typing import Any

import click

from brokerd.ctl import columns, errors, output, settings
from brokerd.ctl.listings import live_rows

#: A shovel that waits for its next try is what RabbitMQ calls terminated.
_STATES = {"error": "terminated", "shutdown": "terminated"}


def _shaped(row: dict[str, Any]) -> dict[str, Any]:
    """Give a link's row RabbitMQ's names."""
    changed = time.gmtime(row["since_ms"] / 1000)
    return row | {
        "name": row["upstream"],
        "type": "dynamic",
        "state": _STATES.get(row["status"], row["status"]),
        "source": row["uri"],
        "source_protocol": columns.SHOVEL_PROTOCOL,
        "destination_protocol": columns.SHOVEL_PROTOCOL,
        "last_changed": time.strftime("%Y-%m-%d %H:%M:%S", changed) if row["since_ms"] else "",
        "termination_reason": row["error"],
        "messages_in": row.get("in", 0),
        "messages_moved": row.get("moved", 0),
        "messages_refused": row.get("refused", 0),
        "messages_in_flight": row.get("in_flight", 0),
        "messages_unroutable": row.get("unrouted", 0),
        "messages_dropped": row.get("unroutable_dropped", 0),
    }


@click.command(cls=settings.Command)
def shovel_status() -> None:
    """Show the shovels of all vhosts and members."""
    chosen = settings.current()
    chosen.say(f"Shovel status on node {chosen.label}")
    found = [_shaped(row) for row in live_rows(columns.SHOVELS, chosen)]
    output.rows(chosen, columns.SHOVELS.columns, found, streams=True)


def _not_found(chosen: settings.Settings) -> errors.CtlError:
    return errors.CtlError(
        f"Shovel with the given name was not found on the target node '{chosen.label}' "
        f"and / or virtual host '{chosen.vhost}'",
        errors.EXIT_UNAVAILABLE,
    )


@click.command(cls=settings.Command)
@click.argument("name")
def restart_shovel(name: str) -> None:
    """Have a shovel connect anew, whichever member runs it (option -p)."""
    from brokerd.ctl.client import connect
    from brokerd.federation import shovel
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(
        f"Restarting dynamic Shovel {name} in virtual host {chosen.vhost} on node {chosen.label}"
    )
    request = admin_pb2.RestartLinkRequest(id=shovel.link_id(chosen.vhost, name))
    with connect(chosen) as client:
        answer = client.call("RestartLink", request)
    if not answer.member:
        raise _not_found(chosen)


@click.command(cls=settings.Command)
@click.argument("name")
def delete_shovel(name: str) -> None:
    """Delete a shovel (option -p); its queues, and what is in them, stay."""
    from brokerd.ctl.client import connect
    from brokerd.federation import shovel

    chosen = settings.current()
    chosen.say(f"Deleting shovel {name} in vhost {chosen.vhost}")
    parameter = f"{shovel.COMPONENT}/{name}"
    with connect(chosen) as client:
        if client.find("parameter", chosen.vhost, parameter) is None:
            raise _not_found(chosen)
        client.delete("parameter", chosen.vhost, parameter)
