"""`brokerctl` on what replicas kept aside: their leader lacks what they know to be committed.

The member that is asked answers for all and passes words on to the member that keeps it
(server/members/kept_aside.py); what it does not finish in time it goes on with.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import errors, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

Row = dict[str, Any]

#: How often it is looked how far a republish is.
POLL_S = 0.2
_COLUMNS = (
    *("id", "member", "kind", "vhost", "name", "first", "last", "entries", "messages"),
    *("time", "state", "remarks"),
)
_SHOWN = ("index", "term", "what")
EVERYTHING = "all"


def rows(client: AdminClient, action: str = "", id_: str = "") -> list[Row]:
    """Return what is kept aside, or what comes of a word about one of it."""
    from brokerd.rpc.v1 import admin_pb2

    answer = client.call("KeptAside", admin_pb2.KeptAsideRequest(action=action, id=id_))
    return [json.loads(row) for row in answer.rows]


def listing(client: AdminClient) -> tuple[list[Row], list[str]]:
    """Return what is kept aside, and the members that did not say what they keep."""
    from brokerd.rpc.v1 import admin_pb2

    answer = client.call("KeptAside", admin_pb2.KeptAsideRequest())
    return [json.loads(row) for row in answer.rows], list(answer.unanswered)


def alarms(client: AdminClient) -> list[Row]:
    """Return what somebody must look at; nothing of members that know no such call."""
    try:
        found = rows(client)
    except errors.CtlError as error:
        if error.exit_code not in (errors.EXIT_UNAVAILABLE, errors.EXIT_SOFTWARE):
            raise
        return []
    return [row for row in found if row["state"] != "done"]


def in_words(row: Row) -> str:
    """Return a line about something that is kept aside."""
    where = f" in vhost '{row['vhost']}'" if row["vhost"] else ""
    what = "the catalog" if row["kind"] == "catalog" else f"queue '{row['name']}'{where}"
    return (
        f"{what}: member {row['member']} keeps {row['messages']} messages aside that its leader "
        f"{row['leader']} lacks ({row['state']})"
    )


def _listed(row: Row) -> Row:
    made = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(row["time"] / 1000))
    remarks = "; ".join(row["remarks"])
    return row | {"time": made if row["time"] else "", "remarks": remarks}


@click.command(cls=settings.Command)
def list_kept_aside() -> None:
    """List what replicas have kept aside, since their leader lacks what they know is committed."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say("Listing what is kept aside ...")
    with connect(chosen) as client:
        found, unanswered = listing(client)
    output.rows(chosen, _COLUMNS, [_listed(row) for row in found], streams=False)
    for member in unanswered:
        click.echo(f"{member} did not answer: what it keeps aside is not listed", err=True)


@click.command(cls=settings.Command)
@click.argument("id_", metavar="ID")
def show_kept_aside(id_: str) -> None:
    """Show the entries of what is kept aside as ID, of the catalog in words."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        found = rows(client, "show", id_)
    output.rows(chosen, _SHOWN, found, streams=False)


@click.command(cls=settings.Command)
@click.argument("id_", metavar="ID|all")
def republish_kept_aside(id_: str) -> None:
    """Publish messages that are kept aside to their queue again, in order and with confirms.

    What consumers had settled before the loss, and the cluster has forgotten, comes again. After
    it the replica goes on with the others. Of the catalog: the member ends; start it again, and
    what the cluster lacks is declared again.
    """
    _say("republish", id_)


@click.command(cls=settings.Command)
@click.argument("id_", metavar="ID|all")
@click.option("--yes", is_flag=True, help="Do not ask.")
def drop_kept_aside(id_: str, yes: bool) -> None:
    """Declare what is kept aside not wanted; the replica goes on with what its leader has."""
    if not yes:
        question = f"What is kept aside as {id_} will be lost for good. Go on?"
        settings.ask(question, "nothing was dropped")
    _say("drop", id_)


def _say(action: str, id_: str) -> None:
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        if id_ == EVERYTHING:
            # The catalog last: its member ends.
            known = [row for row in rows(client) if row["id"] and row["state"] != "done"]
            chosen_rows = sorted(known, key=lambda row: row["kind"] == "catalog")
        else:
            known, unanswered = listing(client)
            chosen_rows = [row for row in known if row["id"] == id_]
            if not chosen_rows and unanswered:
                raise errors.CtlError(
                    f"nobody who answers keeps '{id_}' aside; {', '.join(unanswered)} did not "
                    f"answer",
                    errors.EXIT_TEMPORARY,
                )
            if not chosen_rows:
                raise errors.CtlError(f"nothing is kept aside as '{id_}'", errors.EXIT_DATA)
        for row in chosen_rows:
            rows(client, action, row["id"])
            problem = _wait(client, row, chosen.timeout_s)
            if problem:
                raise errors.CtlError(f"{row['id']}: {problem}", errors.EXIT_TEMPORARY)
            chosen.say(f"{action} of {row['id']}: done")


def _wait(client: AdminClient, before: Row, timeout_s: float) -> str:
    """Wait until a word is carried out; return what is wrong, "" if it is done."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            known, unanswered = listing(client)
        except errors.CtlError:
            if before["kind"] != "catalog":
                raise
            # The member that was asked is the one that ends for its catalog.
            return ""
        found = next((row for row in known if row["id"] == before["id"]), None)
        # The progress of a member that is down is not known; for the catalog it ends by itself.
        is_known = before["kind"] == "catalog" or before["member"] not in unanswered
        if is_known and (found is None or found["state"] in ("released", "begun", "done")):
            return ""
        if (
            found is not None
            and found["state"] == "kept"
            and found["remarks"]
            and found["remarks"] != before["remarks"]
        ):
            return "; ".join(found["remarks"])
        if time.monotonic() > deadline:
            return "it goes on (see list_kept_aside)"
        time.sleep(POLL_S)
