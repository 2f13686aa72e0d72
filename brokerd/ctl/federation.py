"""`brokerctl` on federation links: their status, and one that is restarted."""

from __future__ import annotations

import click

from brokerd.ctl import columns, errors, output, settings
from brokerd.ctl.listings import live_rows

#: What rabbitmqctl counts as up.
_UP = ("running", "starting")


@click.command(cls=settings.Command)
@click.option("--only-down", is_flag=True, help="Only links that do not run.")
def federation_status(only_down: bool) -> None:
    """Show the federation links of all vhosts and members."""
    chosen = settings.current()
    chosen.say(f"Listing federation links on node {chosen.label}...")
    listing = columns.FEDERATION_STATUS
    found = live_rows(listing, chosen)
    if only_down:
        found = [row for row in found if row["status"] not in _UP]
    output.rows(chosen, listing.columns, found, streams=True)


@click.command(cls=settings.Command)
@click.argument("link_id", metavar="ID")
def restart_federation_link(link_id: str) -> None:
    """Have a link connect anew, whichever member runs it; ID as federation_status shows it.

    What waits in its upstream queue stays there.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Restarting federation link {link_id} on node {chosen.label}")
    with connect(chosen) as client:
        answer = client.call("RestartLink", admin_pb2.RestartLinkRequest(id=link_id))
    if not answer.member:
        raise errors.CtlError(
            "Link with the given ID was not found: federation_status shows those there are",
            errors.EXIT_UNAVAILABLE,
        )
