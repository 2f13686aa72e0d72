"""`brokerctl` on the limits of vhosts and users (R-VH-3, R-CON-12), in rabbitmqctl's words."""

from __future__ import annotations

import json
from typing import Any

import click

from brokerd.ctl import errors, objects, output, settings

#: What a name in clear_user_limits that means every limit is.
ALL = "all"


def _limits(text: str) -> dict[str, Any]:
    value = objects.read_json(text)
    if not isinstance(value, dict):
        raise errors.CtlError("the limits must be a JSON object", errors.EXIT_UNAVAILABLE)
    return value


def _refused(error: errors.CtlError) -> errors.CtlError:
    if error.exit_code != errors.EXIT_UNAVAILABLE or error.is_bare:
        return error
    return errors.CtlError(f"Validation failed\n\n{error}\n", errors.EXIT_UNAVAILABLE)


@click.command(cls=settings.Command)
@click.argument("definition")
def set_vhost_limits(definition: str) -> None:
    """Set a vhost's limits; DEFINITION is JSON: '{"max-connections": 64, "max-queues": 256}'."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Setting vhost limits to "{definition}" for vhost "{chosen.vhost}" ...')
    limits = _limits(definition)
    with connect(chosen) as client:
        client.require_vhost(chosen.vhost)
        try:
            client.modify("vhost", chosen.vhost, lambda spec: spec.update(limits=limits))
        except errors.CtlError as error:
            raise _refused(error) from error


@click.command(cls=settings.Command)
def clear_vhost_limits() -> None:
    """Take a vhost's limits away (option -p)."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Clearing vhost "{chosen.vhost}" limits ...')
    with connect(chosen) as client:
        found = client.find("vhost", "", chosen.vhost)
        if found is None or not json.loads(found.spec)["limits"]:
            raise errors.CtlError("Parameter does not exist", errors.EXIT_UNAVAILABLE)
        client.modify("vhost", chosen.vhost, lambda spec: spec.update(limits={}))


@click.command(cls=settings.Command)
@click.option("--global", "everywhere", is_flag=True, help="Of all vhosts that have any.")
def list_vhost_limits(everywhere: bool) -> None:
    """Show the limits of a vhost (option -p), or of all."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    of = "all vhosts" if everywhere else f'vhost "{chosen.vhost}"'
    chosen.say(f"Listing limits for {of} ...")
    with connect(chosen) as client:
        if everywhere:
            _show_all(chosen, "vhost", client.objects("vhost"))
            return
        _show(chosen, json.loads(client.require_vhost(chosen.vhost).spec)["limits"])


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("definition")
def set_user_limits(username: str, definition: str) -> None:
    """Set a user's limits; DEFINITION is JSON: '{"max-connections": 2, "max-channels": 5}'."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Setting user limits to "{definition}" for user "{username}" ...')
    limits = _limits(definition)
    with connect(chosen) as client:
        _require_user(client, username)
        client.modify("user", username, lambda spec: spec["limits"].update(limits))


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("limit")
def clear_user_limits(username: str, limit: str) -> None:
    """Take one of a user's limits away: max-connections, max-channels, or all."""
    from brokerd.ctl.client import connect

    def clear(spec: dict[str, Any]) -> None:
        limits = spec["limits"]
        spec["limits"] = (
            {} if limit == ALL else {key: value for key, value in limits.items() if key != limit}
        )

    chosen = settings.current()
    what = "all limits" if limit == ALL else f'"{limit}" limit'
    chosen.say(f'Clearing {what} for user "{username}" ...')
    with connect(chosen) as client:
        _require_user(client, username)
        client.modify("user", username, clear)


@click.command(cls=settings.Command)
@click.option("--user", "username", default=None, help="Of this user.")
@click.option("--global", "everywhere", is_flag=True, help="Of all users that have any.")
def list_user_limits(username: str | None, everywhere: bool) -> None:
    """Show the limits of a user, or of all."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    if not everywhere and username is None:
        username = "guest"
    of = "all users" if username is None else f'user "{username}"'
    chosen.say(f"Listing limits for {of} ...")
    with connect(chosen) as client:
        if username is None:
            _show_all(chosen, "user", client.objects("user"))
            return
        _show(chosen, json.loads(_require_user(client, username).spec)["limits"])


def _require_user(client: Any, name: str) -> Any:
    found = client.find("user", "", name)
    if found is None:
        raise errors.CtlError(f'{{:no_such_user, "{name}"}}', errors.EXIT_UNAVAILABLE)
    return found


def _show(chosen: settings.Settings, limits: dict[str, Any]) -> None:
    if chosen.formatter_now() == "json":
        click.echo(output.compact(limits))
    else:
        click.echo(output.compact(limits) if limits else "")


def _show_all(chosen: settings.Settings, kind: str, found: list[Any]) -> None:
    rows = [
        {kind: item.name, "limits": output.compact(limits)}
        for item in found
        if (limits := json.loads(item.spec)["limits"])
    ]
    output.rows(chosen, (kind, "limits"), rows, streams=False)
