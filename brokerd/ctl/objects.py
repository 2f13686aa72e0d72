"""`brokerctl` on policies, run-time parameters and queues."""

from __future__ import annotations

import json
from typing import Any

import click

from brokerd.ctl import errors, settings


def _json(what: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.CtlError(f"{what} is not JSON: {error}", errors.EXIT_DATA) from error


def _set(kind: str, name: str, pattern: str, definition: str, priority: int, apply_to: str) -> None:
    from brokerd.ctl.client import connect

    chosen = settings.current()
    words = kind.replace("_", " ")
    chosen.say(
        f'Setting {words} "{name}" for pattern "{pattern}" to "{definition}" with priority '
        f'"{priority}" for vhost "{chosen.vhost}" ...'
    )
    spec = {
        "pattern": pattern,
        "definition": _json("the definition", definition),
        "priority": priority,
        "apply-to": apply_to,
    }
    with connect(chosen) as client:
        client.put(kind, chosen.vhost, name, spec)


def _clear(kind: str, name: str) -> None:
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Clearing {kind.replace("_", " ")} "{name}" of vhost "{chosen.vhost}" ...')
    with connect(chosen) as client:
        client.delete(kind, chosen.vhost, name)


_PRIORITY = click.option("--priority", type=int, default=0, show_default=True)


@click.command(cls=settings.Command)
@_PRIORITY
@click.option(
    "--apply-to",
    type=click.Choice(["queues", "classic_queues", "quorum_queues", "exchanges", "all"]),
    default="all",
    show_default=True,
)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
def set_policy(priority: int, apply_to: str, name: str, pattern: str, definition: str) -> None:
    """Set a policy; DEFINITION is JSON: '{"max-length": 1000}' (option -p)."""
    _set("policy", name, pattern, definition, priority, apply_to)


@click.command(cls=settings.Command)
@click.argument("name")
def clear_policy(name: str) -> None:
    """Delete a policy (option -p)."""
    _clear("policy", name)


@click.command(cls=settings.Command)
@_PRIORITY
@click.option(
    "--apply-to",
    type=click.Choice(["queues", "classic_queues", "quorum_queues"]),
    default="queues",
    show_default=True,
)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
def set_operator_policy(
    priority: int, apply_to: str, name: str, pattern: str, definition: str
) -> None:
    """Set an operator policy, which limits what users' policies may say (option -p)."""
    _set("operator_policy", name, pattern, definition, priority, apply_to)


@click.command(cls=settings.Command)
@click.argument("name")
def clear_operator_policy(name: str) -> None:
    """Delete an operator policy (option -p)."""
    _clear("operator_policy", name)


@click.command(cls=settings.Command)
@click.argument("component")
@click.argument("name")
@click.argument("value")
def set_parameter(component: str, name: str, value: str) -> None:
    """Set a run-time parameter; VALUE is JSON (option -p)."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(
        f'Setting runtime parameter "{name}" for component "{component}" '
        f'in vhost "{chosen.vhost}" ...'
    )
    spec = {"value": _json("the value", value)}
    with connect(chosen) as client:
        client.put("parameter", chosen.vhost, f"{component}/{name}", spec)


@click.command(cls=settings.Command)
@click.argument("component")
@click.argument("name")
def clear_parameter(component: str, name: str) -> None:
    """Delete a run-time parameter (option -p)."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Clearing runtime parameter "{name}" for component "{component}" ...')
    with connect(chosen) as client:
        client.delete("parameter", chosen.vhost, f"{component}/{name}")


@click.command(cls=settings.Command)
@click.argument("name")
@click.option("-e", "--if-empty", is_flag=True, help="Only if it holds no messages.")
@click.option("-u", "--if-unused", is_flag=True, help="Only if it has no consumers.")
def delete_queue(name: str, if_empty: bool, if_unused: bool) -> None:
    """Delete a queue (option -p); its own log decides the conditions."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f"Deleting queue '{name}' on vhost '{chosen.vhost}' ...")
    with connect(chosen) as client:
        result = client.delete("queue", chosen.vhost, name, if_empty=if_empty, if_unused=if_unused)
    chosen.say(f"Queue was successfully deleted with {result.messages} ready messages")


@click.command(cls=settings.Command)
@click.argument("name")
def purge_queue(name: str) -> None:
    """Remove a queue's ready messages (option -p)."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Purging queue '{name}' in vhost '{chosen.vhost}' ...")
    request = admin_pb2.PurgeQueueRequest(vhost=chosen.vhost, name=name)
    with connect(chosen) as client:
        count = client.call("PurgeQueue", request).messages
    chosen.say(f"{count} messages removed")
