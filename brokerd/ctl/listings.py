"""`brokerctl list_…`: rows with the columns one asks for.

Live rows come from the members that --address names; clients are known only to the member they are
connected to, so name all members for all clients.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import errors, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

Row = dict[str, Any]


@dataclass(slots=True, frozen=True)
class Listing:
    """One listing: where its rows come from and what they have."""

    #: What is listed, in words.
    title: str
    #: Of List; None: objects of the catalog.
    live: str | None
    #: Of ListTopology.
    kind: str
    #: Shown when no columns are asked for.
    columns: tuple[str, ...]
    #: Further columns.
    more: tuple[str, ...] = ()
    #: True: the rows of one vhost (option -p).
    in_vhost: bool = False
    #: Rows of several members that describe the same thing: the fields that identify it.
    identity: tuple[str, ...] = ()


def _live_rows(listing: Listing, chosen: settings.Settings) -> list[Row]:
    """Ask every member that was named; one that is down is no error unless all are."""
    from brokerd.ctl.client import AdminClient

    vhost = chosen.vhost if listing.in_vhost else ""
    assert listing.live is not None
    found: list[Row] = []
    failure: errors.CtlError | None = None
    answered = False
    for address in chosen.addresses():
        try:
            with AdminClient(chosen, address) as client:
                found += client.live_rows(listing.live, vhost)
                answered = True
        except errors.CtlError as error:
            if error.exit_code != errors.EXIT_UNAVAILABLE:
                raise
            failure = error
    if failure is not None:
        if not answered:
            raise failure
        click.echo(f"Warning: {failure}", err=True)
    return _merged(found, listing.identity) if listing.identity else found


#: What a row was taken from, best first (rows of queues).
_RANK = {"leader": 0, "follower": 1}


def _merged(found: list[Row], identity: tuple[str, ...]) -> list[Row]:
    """Keep one row per thing, the leader's if there is one."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in found:
        key = tuple(row.get(field) for field in identity)
        rank = _RANK.get(str(row.get("as_of")), 2)
        if key not in best or rank < _RANK.get(str(best[key].get("as_of")), 2):
            best[key] = row
    return list(best.values())


def _object_rows(client: AdminClient, kind: str, vhost: str) -> list[Row]:
    rows = []
    for item in client.objects(kind, vhost):
        row: Row = {"vhost": item.vhost, "name": item.name, **json.loads(item.spec)}
        row["managed_by"] = item.owner.resource or item.owner.managed_by
        row["hash"] = item.hash
        fill = _FILL.get(kind)
        if fill is not None:
            fill(row)
        rows.append(row)
    return rows


def _fill_permission(row: Row) -> None:
    row["user"] = row["name"]


def _fill_topic_permission(row: Row) -> None:
    row["user"], _, row["exchange"] = row["name"].partition("|")


def _fill_user(row: Row) -> None:
    row["user"] = row["name"]


def _fill_parameter(row: Row) -> None:
    row["component"], _, row["name"] = row["name"].partition("/")


_FILL: dict[str, Callable[[Row], None]] = {
    "permission": _fill_permission,
    "topic_permission": _fill_topic_permission,
    "user": _fill_user,
    "parameter": _fill_parameter,
}


def _show(listing: Listing, columns: tuple[str, ...]) -> None:
    chosen = settings.current()
    known = (*listing.columns, *listing.more)
    for column in columns:
        if column not in known:
            raise click.UsageError(f"unknown column '{column}'; there are: {', '.join(known)}")
    where = f" of vhost {chosen.vhost}" if listing.in_vhost else ""
    chosen.say(f"Listing {listing.title}{where} ...")
    if listing.live is not None:
        found = _live_rows(listing, chosen)
    else:
        from brokerd.ctl.client import connect

        with connect(chosen) as client:
            found = _object_rows(client, listing.kind, chosen.vhost if listing.in_vhost else "")
    output.rows(chosen, columns or listing.columns, found)


def _command(name: str, listing: Listing) -> click.Command:
    known = (*listing.columns, *listing.more)

    def run(columns: tuple[str, ...]) -> None:
        _show(listing, columns)

    where = " of the vhost given with -p" if listing.in_vhost else ""
    return settings.Command(
        name,
        callback=run,
        params=[click.Argument(["columns"], nargs=-1, metavar="[COLUMN]...")],
        short_help=f"List {listing.title}.",
        help=f"List {listing.title}{where}.\n\n"
        f"Columns: {', '.join(known)}.\n\nDefault: {' '.join(listing.columns)}.",
    )


list_queues = _command(
    "list_queues",
    Listing(
        "queues",
        "queues",
        "queue",
        ("name", "messages"),
        (
            "vhost",
            "type",
            "durable",
            "auto_delete",
            "exclusive",
            "arguments",
            "policy",
            "operator_policy",
            "messages_ready",
            "messages_unacknowledged",
            "messages_dlx",
            "message_bytes",
            "consumers",
            "state",
            "leader",
            "members",
            "online",
            "counters",
            "as_of",
            "uid",
        ),
        in_vhost=True,
        identity=("vhost", "name"),
    ),
)
list_exchanges = _command(
    "list_exchanges",
    Listing(
        "exchanges",
        "exchanges",
        "exchange",
        ("name", "type"),
        (
            "vhost",
            "durable",
            "auto_delete",
            "internal",
            "arguments",
            "policy",
            "alternate_exchange",
        ),
        in_vhost=True,
        identity=("vhost", "name"),
    ),
)
list_bindings = _command(
    "list_bindings",
    Listing(
        "bindings",
        "bindings",
        "binding",
        (
            "source_name",
            "source_kind",
            "destination_name",
            "destination_kind",
            "routing_key",
            "arguments",
        ),
        ("vhost",),
        in_vhost=True,
        identity=("vhost", "source_name", "destination_kind", "destination_name", "routing_key"),
    ),
)
list_connections = _command(
    "list_connections",
    Listing(
        "connections",
        "connections",
        "",
        ("user", "peer_host", "peer_port", "state"),
        (
            "pid",
            "name",
            "node",
            "vhost",
            "host",
            "port",
            "ssl",
            "channels",
            "frame_max",
            "channel_max",
            "timeout",
            "connected_at",
            "recv_oct",
            "send_oct",
            "client_properties",
        ),
    ),
)
list_channels = _command(
    "list_channels",
    Listing(
        "channels",
        "channels",
        "",
        ("pid", "user", "consumer_count", "messages_unacknowledged"),
        (
            "connection",
            "name",
            "number",
            "node",
            "vhost",
            "confirm",
            "messages_unconfirmed",
            "prefetch_count",
        ),
    ),
)
list_consumers = _command(
    "list_consumers",
    Listing(
        "consumers",
        "consumers",
        "",
        ("queue_name", "node", "consumer_tag", "ack_required", "prefetch_count"),
        ("vhost", "priority", "exclusive", "user"),
        in_vhost=True,
    ),
)
list_links = _command(
    "list_links",
    Listing(
        "federation links",
        "links",
        "",
        ("vhost", "exchange", "upstream", "status", "error"),
        (
            "id",
            "node",
            "type",
            "upstream_exchange",
            "uri",
            "since_ms",
            "local_connection",
            "bindings",
            "in",
            "in_bytes",
            "in_flight",
            "refused",
            "reconnects",
        ),
        in_vhost=True,
    ),
)
list_groups = _command(
    "list_groups",
    Listing(
        "Raft groups",
        "groups",
        "",
        ("name", "leader", "term", "commit", "applied", "members"),
        ("uid", "last", "snapshot", "lag", "damaged", "error"),
        identity=("uid",),
    ),
)
list_users = _command(
    "list_users",
    Listing("users", None, "user", ("user", "tags"), ("limits", "managed_by", "hash")),
)
list_vhosts = _command(
    "list_vhosts",
    Listing(
        "vhosts",
        None,
        "vhost",
        ("name",),
        ("description", "tags", "default_queue_type", "limits", "managed_by", "hash"),
    ),
)
list_permissions = _command(
    "list_permissions",
    Listing(
        "permissions",
        None,
        "permission",
        ("user", "configure", "write", "read"),
        ("vhost", "managed_by", "hash"),
        in_vhost=True,
    ),
)
list_topic_permissions = _command(
    "list_topic_permissions",
    Listing(
        "topic permissions",
        None,
        "topic_permission",
        ("user", "exchange", "write", "read"),
        ("vhost", "managed_by", "hash"),
        in_vhost=True,
    ),
)
_POLICY_COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
list_policies = _command(
    "list_policies",
    Listing("policies", None, "policy", _POLICY_COLUMNS, ("managed_by", "hash"), in_vhost=True),
)
list_operator_policies = _command(
    "list_operator_policies",
    Listing(
        "operator policies",
        None,
        "operator_policy",
        _POLICY_COLUMNS,
        ("managed_by", "hash"),
        in_vhost=True,
    ),
)
list_parameters = _command(
    "list_parameters",
    Listing(
        "run-time parameters",
        None,
        "parameter",
        ("component", "name", "value"),
        ("vhost", "managed_by", "hash"),
        in_vhost=True,
    ),
)


@click.command(cls=settings.Command)
@click.argument("username")
def list_user_permissions(username: str) -> None:
    """List what a user may do, in all vhosts."""
    from brokerd.ctl.client import connect, missing

    chosen = settings.current()
    chosen.say(f'Listing permissions of user "{username}" ...')
    with connect(chosen) as client:
        found = [row for row in _object_rows(client, "permission", "") if row["user"] == username]
        if not found and client.find("user", "", username) is None:
            raise missing("user", username)
    output.rows(chosen, ("vhost", "configure", "write", "read"), found)
