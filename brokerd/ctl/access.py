"""`brokerctl` on users, vhosts and permissions."""

from __future__ import annotations

import sys
from typing import Any

import click

from brokerd.ctl import errors, settings


def _password(given: str | None) -> str:
    """Return a password: as given, typed without echo, or the first line of stdin."""
    if given is not None:
        return given
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return typed
    return sys.stdin.readline().rstrip("\n")


def _not_empty(password: str) -> str:
    if not password:
        raise errors.CtlError("password cannot be an empty string", errors.EXIT_DATA)
    return password


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("password", required=False)
@click.option(
    "--pre-hashed-password",
    metavar="HASH",
    help="Store this hash (scrypt$…, rabbitmq-sha256$…, rabbitmq-sha512$…) instead.",
)
def add_user(username: str, password: str | None, pre_hashed_password: str | None) -> None:
    """Create a user; without PASSWORD it is read from stdin.  It has no permissions at first."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    if pre_hashed_password is not None:
        spec: dict[str, Any] = {"password_hash": pre_hashed_password}
    else:
        spec = {"password": _not_empty(_password(password))}
    chosen.say(f'Adding user "{username}" ...')
    with connect(chosen) as client:
        client.put("user", "", username, spec, only_new=True)
    chosen.say("Done. Don't forget to grant the user permissions: brokerctl set_permissions")


@click.command(cls=settings.Command)
@click.argument("username")
def delete_user(username: str) -> None:
    """Delete a user and its permissions."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Deleting user "{username}" ...')
    with connect(chosen) as client:
        client.delete("user", "", username)


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("password", required=False)
def change_password(username: str, password: str | None) -> None:
    """Change a user's password; without PASSWORD it is read from stdin."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    new = _not_empty(_password(password))
    chosen.say(f'Changing password of user "{username}" ...')
    with connect(chosen) as client:
        client.modify("user", username, lambda spec: spec.update(password=new))


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("tags", nargs=-1)
def set_user_tags(username: str, tags: tuple[str, ...]) -> None:
    """Set a user's tags: administrator, monitoring, management, policymaker, impersonator."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Setting tags of user "{username}" to [{", ".join(tags)}] ...')
    with connect(chosen) as client:
        client.modify("user", username, lambda spec: spec.update(tags=sorted(set(tags))))


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("password", required=False)
def authenticate_user(username: str, password: str | None) -> None:
    """Try a user's password; status 65 when it is wrong."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f'Authenticating user "{username}" ...')
    request = admin_pb2.AuthenticateRequest(user=username, password=_password(password))
    with connect(chosen) as client:
        if not client.call("Authenticate", request).ok:
            raise errors.CtlError(f"failed to authenticate user {username}", errors.EXIT_DATA)
    chosen.say("Success")


@click.command(cls=settings.Command)
@click.argument("vhost")
@click.option("--description", default="", help="For people.")
@click.option("--tags", default="", help="Comma-separated.")
@click.option(
    "--default-queue-type",
    type=click.Choice(["classic", "quorum"]),
    help="Type of queues declared without one.",
)
def add_vhost(vhost: str, description: str, tags: str, default_queue_type: str | None) -> None:
    """Create a virtual host."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Adding vhost "{vhost}" ...')
    spec = {
        "description": description,
        "tags": sorted({tag.strip() for tag in tags.split(",") if tag.strip()}),
        "default_queue_type": default_queue_type or "",
    }
    with connect(chosen) as client:
        client.put("vhost", "", vhost, spec, only_new=True)


@click.command(cls=settings.Command)
@click.argument("vhost")
def delete_vhost(vhost: str) -> None:
    """Delete a virtual host with all that is in it."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Deleting vhost "{vhost}" ...')
    with connect(chosen) as client:
        client.delete("vhost", "", vhost)


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
def set_permissions(username: str, configure: str, write: str, read: str) -> None:
    """Let a user configure, write and read what these regular expressions match (option -p)."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Setting permissions for user "{username}" in vhost "{chosen.vhost}" ...')
    spec = {"configure": configure, "write": write, "read": read}
    with connect(chosen) as client:
        client.put("permission", chosen.vhost, username, spec)


@click.command(cls=settings.Command)
@click.argument("username")
def clear_permissions(username: str) -> None:
    """Take a user's permissions in a vhost away (option -p)."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Clearing permissions for user "{username}" in vhost "{chosen.vhost}" ...')
    with connect(chosen) as client:
        client.delete("permission", chosen.vhost, username)


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("exchange")
@click.argument("write")
@click.argument("read")
def set_topic_permissions(username: str, exchange: str, write: str, read: str) -> None:
    """Limit the routing keys a user may use with a topic exchange (option -p)."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Setting topic permissions on "{exchange}" for user "{username}" ...')
    with connect(chosen) as client:
        client.put(
            "topic_permission",
            chosen.vhost,
            f"{username}|{exchange}",
            {"write": write, "read": read},
        )


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("exchange")
def clear_topic_permissions(username: str, exchange: str) -> None:
    """Take the limit on routing keys away (option -p)."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Clearing topic permissions on "{exchange}" for user "{username}" ...')
    with connect(chosen) as client:
        client.delete("topic_permission", chosen.vhost, f"{username}|{exchange}")
