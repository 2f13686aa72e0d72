"""`brokerctl list_…`: rows with the columns one asks for.

Live rows come from the members that --node names; clients are known only to the member they are
connected to, which asks the others.  Which listings there are, and what they show of
the catalog, is in columns.py.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import columns, completing, errors, output, settings, terms, triage
from brokerd.ctl.columns import Listing

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

Row = dict[str, Any]
#: Before the kinds of List that all members answer.
_OF_ALL = "all_"
#: Columns that hold field tables.
_TABLES = ("arguments", "client_properties")


def live_rows(listing: Listing, chosen: settings.Settings) -> list[Row]:
    """Ask every member that was named; one that is down is no error unless all are."""
    from brokerd.ctl.client import AdminClient, connect

    vhost = chosen.vhost if listing.in_vhost else ""
    assert listing.live is not None
    found: list[Row] = []
    failure: errors.CtlError | None = None
    answered = False
    for address in chosen.addresses():
        try:
            with AdminClient(chosen, address) as client:
                found += _rows(client, listing.live, vhost)
                answered = True
        except errors.CtlError as error:
            if error.exit_code != errors.EXIT_UNAVAILABLE:
                raise
            failure = error
    if failure is not None:
        if not answered:
            raise failure
        click.echo(f"Warning: {failure}", err=True)
    if vhost and not found:
        # Nothing in it, or it is not there.
        with connect(chosen) as client:
            client.require_vhost(vhost)
    merged = _merged(found, listing.identity) if listing.identity else found
    for row in merged:
        _shape(row)
    return merged


def _rows(client: AdminClient, kind: str, vhost: str) -> list[Row]:
    """Return a member's rows; of clients, those of all members, if it knows how to ask them."""
    try:
        found = client.live_rows(kind, vhost)
    except errors.CtlError as error:
        if not kind.startswith(_OF_ALL) or "unknown kind" not in str(error):
            raise
        return client.live_rows(kind.removeprefix(_OF_ALL), vhost)
    silent = [row["node"] for row in found if row.get("unanswered")]
    if silent:
        click.echo(
            f"Warning: no answer from {', '.join(silent)}: its clients are missing", err=True
        )
    return [row for row in found if not row.get("unanswered")]


def _shape(row: Row) -> None:
    """Turn what JSON cannot say into what the formatters know."""
    for column in _TABLES:
        value = row.get(column)
        if isinstance(value, dict):
            row[column] = terms.table(value)
        elif isinstance(value, list):
            row[column] = terms.Table(value)
    if "source_name" in row:
        # RabbitMQ keeps the arguments of bindings sorted: they are part of the identity.
        row["arguments"].entries.sort(key=itemgetter("key"))
    for column in ("peer_host", "host"):
        if column in row:
            row[column] = terms.Address(row[column])
    if isinstance(row.get("protocol"), list):
        row["protocol"] = tuple(row["protocol"])
    if "since_ms" in row:
        since = time.gmtime(row["since_ms"] / 1000)
        row["since"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", since) if row["since_ms"] else ""
    if "next_due_ms" in row:
        due_ms = row["next_due_ms"]
        row["next_due"] = "" if due_ms is None else triage.time(due_ms)
    if row.get("backlog", 0) is None:
        # The backlog is not yet known.
        row["backlog"] = ""
    definition = row.get("effective_policy_definition")
    if isinstance(definition, dict):
        row["effective_policy_definition"] = terms.table(definition)


#: What a row was taken from, best first (rows of queues).
_RANK = {"leader": 0, "follower": 1}


def _merged(found: list[Row], identity: tuple[str, ...]) -> list[Row]:
    """Keep one row per thing, the leader's if there is one."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in found:
        key = tuple(json.dumps(row.get(field)) for field in identity)
        rank = _RANK.get(str(row.get("as_of")), 2)
        if key not in best or rank < _RANK.get(str(best[key].get("as_of")), 2):
            best[key] = row
    return list(best.values())


def object_rows(client: AdminClient, kind: str, vhost: str) -> list[Row]:
    """Return the catalog's objects of a kind as rows."""
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


def _fill_user(row: Row) -> None:
    row["user"] = row["name"]


def _fill_topic_permission(row: Row) -> None:
    row["user"], _, row["exchange"] = row["name"].partition("|")


def _fill_parameter(row: Row) -> None:
    row["component"], _, row["name"] = row["name"].partition("/")
    row["value"] = output.compact(row["value"])


def _fill_policy(row: Row) -> None:
    # rabbitmqctl shows the JSON as it was given, as one text.
    row["definition"] = output.compact(row["definition"])


def _fill_vhost(row: Row) -> None:
    row["default_queue_type"] = row["default_queue_type"] or terms.Atom("undefined")


_FILL = {
    "permission": _fill_user,
    "topic_permission": _fill_topic_permission,
    "user": _fill_user,
    "parameter": _fill_parameter,
    "policy": _fill_policy,
    "operator_policy": _fill_policy,
    "vhost": _fill_vhost,
}


def announce(listing: Listing) -> None:
    """Say what is listed."""
    chosen = settings.current()
    if listing.says_timeout:
        chosen.say(f"Timeout: {chosen.timeout_s:.1f} seconds ...")
    chosen.say(listing.banner.format(vhost=chosen.vhost))


def show(
    listing: Listing, asked: tuple[str, ...], order: tuple[str, ...] = (), chosen_by: str = ""
) -> None:
    """Run a listing.

    order: columns to sort by, the first one first; with a `-` before it the greatest comes first.
    chosen_by: a filter of rows (core/filters).
    """
    chosen = settings.current()
    wanted = _wanted(listing, asked)
    _wanted(listing, tuple(name.removeprefix("-") for name in order))
    matches = _matches(listing, chosen_by)
    announce(listing)
    if listing.live is not None:
        found = live_rows(listing, chosen)
    else:
        from brokerd.ctl.client import connect

        with connect(chosen) as client:
            if listing.in_vhost:
                client.require_vhost(chosen.vhost)
            vhost = chosen.vhost if listing.in_vhost else ""
            found = object_rows(client, listing.kind, vhost)
            if listing.kind == "vhost":
                # A filter may ask for any of them.
                _complete_vhosts(client, found, (*listing.more, *wanted) if chosen_by else wanted)
    if matches is not None:
        found = [row for row in found if matches(row)]
    for name in reversed(order):
        column = name.removeprefix("-")
        found.sort(key=functools.partial(_rank, column), reverse=name.startswith("-"))
    output.rows(chosen, wanted, found, streams=listing.live is not None)


def _matches(listing: Listing, text: str) -> Callable[[Row], bool] | None:
    """Return what chooses rows; None: all of them."""
    if not text:
        return None
    from brokerd.core.filters.errors import FilterError
    from brokerd.core.filters.row_filter import RowFilter

    try:
        return RowFilter(text, (*listing.columns, *listing.more)).matches
    except FilterError as error:
        raise errors.CtlError(f"--filter: {error}", errors.EXIT_USAGE) from error


def _rank(column: str, row: Row) -> tuple[int, float, str]:
    """Return a row's place in the order of a column: nothing, numbers, then texts and all else."""
    value = row.get(column)
    if value is None or value == "":
        return (0, 0.0, "")
    if isinstance(value, int | float):
        return (1, float(value), "")
    return (2, 0.0, output.cell(value))


def _wanted(listing: Listing, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns that were asked for, separated by spaces or commas."""
    names = tuple(name for item in asked for name in item.split(",") if name.strip())
    known = (*listing.columns, *listing.more)
    unknown = sorted({name for name in names if name not in known})
    if unknown and not listing.takes_columns:
        raise click.UsageError("too many arguments.")
    if unknown:
        raise click.UsageError(
            f"Info key(s) {','.join(unknown)} are not supported\nThere are: {', '.join(known)}"
        )
    return names or listing.columns


def _complete_vhosts(client: AdminClient, found: list[Row], wanted: tuple[str, ...]) -> None:
    """Add what the members know of vhosts beside their specs."""
    if "tracing" in wanted:
        traced = {row["vhost"] for row in client.live_rows("tracing")}
        for row in found:
            row["tracing"] = row["name"] in traced
    if "cluster_state" in wanted:
        members = [row["name"] for row in client.live_rows("members") if row["running"]]
        state = ", ".join(f"{{{name}, running}}" for name in members)
        for row in found:
            row["cluster_state"] = f"[{state}]"


def _command(name: str, listing: Listing) -> click.Command:
    known = (*listing.columns, *listing.more)

    def run(columns: tuple[str, ...], order: tuple[str, ...], chosen_by: str) -> None:
        show(listing, columns, order, chosen_by)

    def run_online(
        columns: tuple[str, ...],
        order: tuple[str, ...],
        chosen_by: str,
        online: bool,
        offline: bool,
        only_local: bool,
    ) -> None:
        if offline:
            # A queue whose members are all down is on no member that could be asked.
            announce(listing)
            return
        show(listing, columns, order, chosen_by)

    where = " of the vhost given with -p" if listing.in_vhost else ""
    complete = completing.of_words(known)
    argument = click.Argument(["columns"], nargs=-1, metavar="[COLUMN]...", shell_complete=complete)
    choosing = [
        click.Option(
            ["--sort", "order"],
            multiple=True,
            metavar="COLUMN",
            shell_complete=complete,
            help="Sort by it; -COLUMN: the greatest first. May be given several times.",
        ),
        click.Option(
            ["--filter", "chosen_by"],
            default="",
            metavar="EXPR",
            help="Only rows of which this is true: 'messages > 0 && consumers == 0'.",
        ),
    ]
    flags = [
        click.Option(["--online"], is_flag=True, help="Only those that can be reached (all)."),
        click.Option(["--offline"], is_flag=True, help="Only those that cannot: none are known."),
        click.Option(["--local", "only_local"], is_flag=True, help="Those known here (all)."),
    ]
    is_queues = name == "list_queues"
    return settings.Command(
        name,
        callback=run_online if is_queues else run,
        params=[argument, *choosing, *(flags if is_queues else [])],
        short_help=f"List {listing.title}.",
        help=f"List {listing.title}{where}.\n\n"
        f"Columns: {', '.join(known)}.\n\nDefault: {' '.join(listing.columns)}.",
    )


list_queues = _command("list_queues", columns.QUEUES)
list_exchanges = _command("list_exchanges", columns.EXCHANGES)
list_bindings = _command("list_bindings", columns.BINDINGS)
list_connections = _command("list_connections", columns.CONNECTIONS)
list_channels = _command("list_channels", columns.CHANNELS)
list_consumers = _command("list_consumers", columns.CONSUMERS)
list_links = _command("list_links", columns.LINKS)
list_groups = _command("list_groups", columns.GROUPS)
list_users = _command("list_users", columns.USERS)
list_vhosts = _command("list_vhosts", columns.VHOSTS)
list_permissions = _command("list_permissions", columns.PERMISSIONS)
list_topic_permissions = _command("list_topic_permissions", columns.TOPIC_PERMISSIONS)
list_policies = _command("list_policies", columns.POLICIES)
list_operator_policies = _command("list_operator_policies", columns.OPERATOR_POLICIES)
list_parameters = _command("list_parameters", columns.PARAMETERS)


def _of_user(kind: str, username: str, shown: tuple[str, ...]) -> None:
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        found = [row for row in object_rows(client, kind, "") if row["user"] == username]
        if not found and client.find("user", "", username) is None:
            raise errors.CtlError(f'{{:no_such_user, "{username}"}}', errors.EXIT_UNAVAILABLE)
    output.rows(chosen, shown, found, streams=False)


@click.command(cls=settings.Command)
@click.argument("username")
def list_user_permissions(username: str) -> None:
    """List what a user may do, in all vhosts."""
    settings.current().say(f'Listing permissions for user "{username}" ...')
    _of_user("permission", username, ("vhost", "configure", "write", "read"))


@click.command(cls=settings.Command)
@click.argument("username")
def list_user_topic_permissions(username: str) -> None:
    """List the limits on a user's routing keys, in all vhosts."""
    settings.current().say(f'Listing topic permissions for user "{username}" ...')
    # rabbitmqctl shows this listing, alone, without a header.
    settings.current().headers = False
    _of_user("topic_permission", username, ("vhost", "exchange", "write", "read"))


@click.command(cls=settings.Command)
def list_unresponsive_queues() -> None:
    """List queues without a leader: nobody can use them before a majority is back."""
    chosen = settings.current()
    chosen.say(f"Listing unresponsive queues for vhost {chosen.vhost} ...")
    found = [row for row in live_rows(columns.QUEUES, chosen) if row["state"] != "running"]
    output.rows(chosen, ("name",), found)
