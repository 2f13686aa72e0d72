"""`brokerctl` on policies, run-time parameters and queues, in rabbitmqctl's words."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import completing, errors, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

#: Whose parameters mean something here.
COMPONENTS = ("federation-upstream", "federation-upstream-set", "shovel")
APPLY_TO = ("queues", "classic_queues", "quorum_queues", "exchanges", "all")


def read_json(text: str) -> Any:
    """Read JSON that a person typed."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.CtlError(
            f"JSON decoding error. Reason: {error}", errors.EXIT_UNAVAILABLE
        ) from error


def _put(kind: str, name: str, spec: dict[str, Any], *, confirmed: bool = False) -> None:
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        client.require_vhost(chosen.vhost)
        try:
            client.put(kind, chosen.vhost, name, spec, confirmed=confirmed)
        except errors.CtlError as error:
            if error.exit_code != errors.EXIT_UNAVAILABLE or error.is_bare:
                raise
            raise errors.CtlError(
                f"Validation failed\n\n{error}\n", errors.EXIT_UNAVAILABLE
            ) from error


def _clear(kind: str, name: str) -> None:
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        client.delete(kind, chosen.vhost, name)


def _set(
    kind: str, words: str, name: str, pattern: str, definition: str, priority: int, apply_to: str
) -> None:
    chosen = settings.current()
    chosen.say(
        f'Setting {words} "{name}" for pattern "{pattern}" to "{definition}" with priority '
        f'"{priority}" for vhost "{chosen.vhost}" ...'
    )
    if apply_to not in APPLY_TO:
        known = ", ".join(f"'{choice}'" for choice in APPLY_TO)
        raise errors.CtlError(
            f"Validation failed\n\napply-to '{apply_to}' unrecognised; should be one of {known}\n",
            errors.EXIT_UNAVAILABLE,
        )
    spec = {
        "pattern": pattern,
        "definition": read_json(definition),
        "priority": priority,
        "apply-to": apply_to,
    }
    _put(kind, name, spec)


_PRIORITY = click.option("--priority", type=int, default=0, show_default=True)
_APPLY = f"What it applies to: {', '.join(APPLY_TO)}."


@click.command(cls=settings.Command)
@_PRIORITY
@click.option("--apply-to", default="all", show_default=True, help=_APPLY)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
def set_policy(priority: int, apply_to: str, name: str, pattern: str, definition: str) -> None:
    """Set a policy; DEFINITION is JSON: '{"max-length": 1000}' (option -p)."""
    _set("policy", "policy", name, pattern, definition, priority, apply_to)


@click.command(cls=settings.Command)
@click.argument("name")
def clear_policy(name: str) -> None:
    """Delete a policy (option -p)."""
    chosen = settings.current()
    chosen.say(f'Clearing policy "{name}" on vhost "{chosen.vhost}" ...')
    _clear("policy", name)


@click.command(cls=settings.Command)
@_PRIORITY
@click.option("--apply-to", default="queues", show_default=True, help=_APPLY)
@click.argument("name")
@click.argument("pattern")
@click.argument("definition")
def set_operator_policy(
    priority: int, apply_to: str, name: str, pattern: str, definition: str
) -> None:
    """Set an operator policy, which limits what users' policies may say (option -p)."""
    # RabbitMQ stores "all", which can only mean queues.
    apply_to = "queues" if apply_to == "all" else apply_to
    words = "operator policy override"
    _set("operator_policy", words, name, pattern, definition, priority, apply_to)


@click.command(cls=settings.Command)
@click.argument("name")
def clear_operator_policy(name: str) -> None:
    """Delete an operator policy (option -p)."""
    chosen = settings.current()
    chosen.say(f'Clearing operator policy "{name}" on vhost "{chosen.vhost}" ...')
    _clear("operator_policy", name)


@click.command(cls=settings.Command)
@click.option("--force", is_flag=True, help="Even if messages that wait upstream are lost by it.")
@click.argument("component")
@click.argument("name")
@click.argument("value")
def set_parameter(force: bool, component: str, name: str, value: str) -> None:
    """Set a run-time parameter; VALUE is JSON (option -p)."""
    chosen = settings.current()
    chosen.say(
        f'Setting runtime parameter "{name}" for component "{component}" to "{value}" '
        f'in vhost "{chosen.vhost}" ...'
    )
    if component not in COMPONENTS:
        raise errors.CtlError(
            f"Validation failed\n\ncomponent {component} not found\n", errors.EXIT_UNAVAILABLE
        )
    _put("parameter", f"{component}/{name}", {"value": read_json(value)}, confirmed=force)


@click.command(cls=settings.Command)
@click.argument("component")
@click.argument("name")
def clear_parameter(component: str, name: str) -> None:
    """Delete a run-time parameter (option -p)."""
    chosen = settings.current()
    chosen.say(
        f'Clearing runtime parameter "{name}" for component "{component}" '
        f'on vhost "{chosen.vhost}" ...'
    )
    _clear("parameter", f"{component}/{name}")


_YES = click.option("-y", "--yes", is_flag=True, help="Do not ask, at a terminal either.")


def _ask(
    client: AdminClient, chosen: settings.Settings, name: str, verb: str, what: tuple[str, str]
) -> None:
    """Ask the user at a terminal if messages would be lost; ends the command for a "no".

    Scripts are not asked, and rabbitmqctl's users neither.
    """
    if chosen.stands_in or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    field, words = what
    rows = client.live_rows("queues", chosen.vhost)
    count = max((int(row.get(field) or 0) for row in rows if row["name"] == name), default=0)
    if count:
        question = f"{verb} '{name}' in vhost '{chosen.vhost}' with its {count:,} {words}?"
        settings.ask(question, f"nothing was {verb.lower()}d")


@click.command(cls=settings.Command)
@click.argument("name", shell_complete=completing.queue_names)
@click.option("-e", "--if-empty", is_flag=True, help="Only if it holds no messages.")
@click.option("-u", "--if-unused", is_flag=True, help="Only if it has no consumers.")
@_YES
def delete_queue(name: str, if_empty: bool, if_unused: bool, yes: bool) -> None:
    """Delete a queue (option -p); its own log decides the conditions.

    At a terminal it asks first where messages would go.
    """
    from brokerd.ctl.client import connect

    chosen = settings.current()
    conditions = [
        words
        for words, is_set in (("queue is empty", if_empty), ("queue is unused", if_unused))
        if is_set
    ]
    condition = f"if {' and if '.join(conditions)} " if conditions else ""
    chosen.say(f"Deleting queue '{name}' on vhost '{chosen.vhost}' {condition}...")
    with connect(chosen) as client:
        if not yes and not if_empty:
            _ask(client, chosen, name, "Delete", ("messages", "messages"))
        try:
            result = client.delete(
                "queue", chosen.vhost, name, if_empty=if_empty, if_unused=if_unused
            )
        except errors.CtlError as error:
            raise _undeleted(error, if_empty, if_unused) from error
    if result.message:
        why = f"how many messages it had is not known: {result.message}"
        chosen.say(f"Queue was successfully deleted; {why}")
    else:
        chosen.say(f"Queue was successfully deleted with {result.messages} ready messages")


def _undeleted(error: errors.CtlError, if_empty: bool, if_unused: bool) -> errors.CtlError:
    text = str(error)
    if if_unused and " and 0 consumers" not in text and "consumers" in text:
        return errors.CtlError(f"Queue is in use\n{text}", errors.EXIT_USAGE)
    if if_empty and "consumers" in text:
        return errors.CtlError(f"Queue is not empty\n{text}", errors.EXIT_USAGE)
    return error


@click.command(cls=settings.Command)
@click.argument("name", shell_complete=completing.queue_names)
@click.option(
    "--dead-letters", is_flag=True, help="Give up nothing but dead letters that wait in it."
)
@_YES
def purge_queue(name: str, dead_letters: bool, yes: bool) -> None:
    """Remove a queue's ready messages (option -p), and dead letters that wait in it; at a terminal
    it asks first.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    what = "dead letters of queue" if dead_letters else "queue"
    chosen.say(f"Purging {what} '{name}' in vhost '{chosen.vhost}' ...")
    request = admin_pb2.PurgeQueueRequest(vhost=chosen.vhost, name=name, dead_letters=dead_letters)
    with connect(chosen) as client:
        if not yes:
            column = "messages_dlx" if dead_letters else "messages_ready"
            words = "dead letters" if dead_letters else "ready messages"
            _ask(client, chosen, name, "Purge", (column, words))
        try:
            client.call("PurgeQueue", request)
        except errors.CtlError as error:
            if error.exit_code == errors.EXIT_DATA:
                raise errors.CtlError(
                    f"not_found: there is no queue '{name}' in vhost '{chosen.vhost}'",
                    errors.EXIT_UNAVAILABLE,
                ) from error
            raise
