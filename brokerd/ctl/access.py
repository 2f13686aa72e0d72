"""`brokerctl` on users, vhosts and permissions, in rabbitmqctl's words."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import errors, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

_GRANT = (
    "Done. Don't forget to grant the user permissions to some virtual hosts! "
    "See '{program} help set_permissions' to learn more."
)


def _password(given: str | None) -> str:
    """Return a password: as given, typed without echo, or the first line of stdin."""
    if given is not None:
        return given
    chosen = settings.current()
    if sys.stdin.isatty():
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return typed
    chosen.say("Password: ")
    line = sys.stdin.readline().rstrip("\n")
    if not line:
        raise errors.CtlError("Password is not provided via argument or stdin", errors.EXIT_DATA)
    return line


def _name(what: str, name: str) -> str:
    if not name:
        raise errors.BadArgument(f"{what} cannot be an empty string")
    return name


def _password_spec(password: str) -> dict[str, Any]:
    """Return what is stored; an empty password allows no login, as with RabbitMQ."""
    return {"password": password} if password else {"password_hash": ""}


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("password", required=False)
@click.option(
    "--pre-hashed-password",
    metavar="HASH",
    help="Store this hash (scrypt$…, rabbitmq-sha256$…, rabbitmq-sha512$…, or RabbitMQ's base64).",
)
def add_user(username: str, password: str | None, pre_hashed_password: str | None) -> None:
    """Create a user; without PASSWORD it is read from stdin.  It has no permissions at first."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    _name("user", username)
    chosen.say(f'Adding user "{username}" ...')
    if pre_hashed_password is not None:
        stored = pre_hashed_password
        # hash_password of RabbitMQ gives the bare base64 of its default algorithm.
        spec = {"password_hash": stored if "$" in stored else f"rabbitmq-sha256${stored}"}
    else:
        spec = _password_spec(_password(password))
    with connect(chosen) as client:
        client.put("user", "", username, spec, only_new=True)
    chosen.say(_GRANT.format(program="rabbitmqctl" if chosen.stands_in else "brokerctl"))


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
    chosen.say(f'Changing password for user "{username}" ...')
    new = _password_spec(_password(password))
    with connect(chosen) as client:
        client.modify("user", username, lambda spec: spec.update(new))


@click.command(cls=settings.Command)
@click.argument("username")
def clear_password(username: str) -> None:
    """Take a user's password away: nobody can log in with one any more."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Clearing password for user "{username}" ...')
    with connect(chosen) as client:
        client.modify("user", username, lambda spec: spec.update(password_hash=""))


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("tags", nargs=-1)
def set_user_tags(username: str, tags: tuple[str, ...]) -> None:
    """Set a user's tags: administrator, monitoring, management, policymaker, impersonator."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Setting tags for user "{username}" to [{", ".join(tags)}] ...')
    with connect(chosen) as client:
        client.modify("user", username, lambda spec: spec.update(tags=list(tags)))


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
            raise errors.CtlError(
                f'Error: failed to authenticate user "{username}"\n'
                f"user '{username}' - invalid credentials",
                errors.EXIT_DATA,
            )
    chosen.say("Success")


@click.command(cls=settings.Command)
@click.argument("vhost")
@click.option("--description", default="", help="For people.")
@click.option("--tags", default="", help="Comma-separated.")
@click.option(
    "--default-queue-type",
    type=click.Choice(["classic", "quorum", "undefined"]),
    help="Type of queues declared without one.",
)
def add_vhost(vhost: str, description: str, tags: str, default_queue_type: str | None) -> None:
    """Create a virtual host; one that is there already stays as it is."""
    from brokerd.ctl.client import Result, checked, connect
    from brokerd.ctl.client import operation as make

    chosen = settings.current()
    chosen.say(f'Adding vhost "{vhost}" ...')
    queue_type = "" if default_queue_type in (None, "undefined") else default_queue_type
    spec = {
        "description": description,
        "tags": [tag.strip() for tag in tags.split(",") if tag.strip()],
        "default_queue_type": queue_type,
    }
    with connect(chosen) as client:
        (result,) = client.apply([make("vhost", "", vhost, spec, only_new=True)])
        if result.code != Result.PRECONDITION:
            checked(result)


@click.command(cls=settings.Command)
@click.argument("vhost")
def delete_vhost(vhost: str) -> None:
    """Delete a virtual host with all that is in it."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f'Deleting vhost "{vhost}" ...')
    with connect(chosen) as client:
        client.delete("vhost", "", vhost)


# ---- permissions --------------------------------------------------------------------------------


def _explained(client: AdminClient, vhost: str, user: str) -> None:
    """Raise with what is missing, in the words of these commands; nothing may be missing."""
    if client.find("user", "", user) is None:
        raise errors.CtlError(f"User {user} does not exist", errors.EXIT_NO_USER)
    if client.find("vhost", "", vhost) is None:
        raise errors.CtlError(f"Virtual host {vhost} does not exist", errors.EXIT_UNAVAILABLE)


def _grant(kind: str, vhost: str, user: str, name: str, spec: dict[str, str]) -> None:
    from brokerd.ctl.client import connect

    with connect(settings.current()) as client:
        try:
            client.put(kind, vhost, name, spec)
        except errors.CtlError:
            _explained(client, vhost, user)
            raise


def _revoke(kind: str, vhost: str, user: str, names: list[str] | None, prefix: str = "") -> None:
    """Delete these objects, or all whose name begins so; none being there is no mistake."""
    from brokerd.ctl.client import Result, checked, connect
    from brokerd.ctl.client import removal as make

    with connect(settings.current()) as client:
        _explained(client, vhost, user)
        if names is None:
            found = client.objects(kind, vhost)
            names = [item.name for item in found if item.name.startswith(prefix)]
        for result in client.apply([make(kind, vhost, name) for name in names]) if names else []:
            if result.code != Result.NOT_FOUND:
                checked(result)


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("configure")
@click.argument("write")
@click.argument("read")
def set_permissions(username: str, configure: str, write: str, read: str) -> None:
    """Let a user configure, write and read what these regular expressions match (option -p)."""
    chosen = settings.current()
    chosen.say(f'Setting permissions for user "{username}" in vhost "{chosen.vhost}" ...')
    spec = {"configure": configure, "write": write, "read": read}
    _grant("permission", chosen.vhost, username, username, spec)


@click.command(cls=settings.Command)
@click.argument("username")
def clear_permissions(username: str) -> None:
    """Take a user's permissions in a vhost away (option -p)."""
    chosen = settings.current()
    chosen.say(f'Clearing permissions for user "{username}" in vhost "{chosen.vhost}" ...')
    _revoke("permission", chosen.vhost, username, [username])


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("exchange")
@click.argument("write")
@click.argument("read")
def set_topic_permissions(username: str, exchange: str, write: str, read: str) -> None:
    """Limit the routing keys a user may use with a topic exchange (option -p)."""
    chosen = settings.current()
    chosen.say(
        f'Setting topic permissions on "{exchange}" for user "{username}" '
        f'in vhost "{chosen.vhost}" ...'
    )
    spec = {"write": write, "read": read}
    _grant("topic_permission", chosen.vhost, username, f"{username}|{exchange}", spec)


@click.command(cls=settings.Command)
@click.argument("username")
@click.argument("exchange", required=False)
def clear_topic_permissions(username: str, exchange: str | None) -> None:
    """Take the limit on routing keys away, of one exchange or of all (option -p)."""
    chosen = settings.current()
    on = f'on "{exchange}" ' if exchange is not None else ""
    chosen.say(
        f'Clearing topic permissions {on}for user "{username}" in vhost "{chosen.vhost}" ...'
    )
    prefix = f"{username}|"
    names = None if exchange is None else [f"{prefix}{exchange}"]
    _revoke("topic_permission", chosen.vhost, username, names, prefix)
