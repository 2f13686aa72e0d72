"""`brokerctl triage`: the messages of a queue in groups, by what became of them."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import completing, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient
    from brokerd.ctl.settings import Settings

Row = dict[str, Any]

COLUMNS = (
    *("fingerprint", "messages", "sent_back", "reason", "first_queue", "last_queue"),
    *("exchange", "routing_key", "type", "exception", "client", "client_reason"),
    *("framework", "told_by"),
    *("first_seen", "last_seen", "example", "bytes"),
)
#: A person's table, which has to fit into a terminal.
_SHORT = (
    *("fingerprint", "messages", "sent_back", "why", "published_to", "what", "client"),
    *("client_reason", "last", "example"),
)
#: What it leaves out where the terminal has fewer columns than this.
_WIDE_COLUMNS, _WIDE_ONLY = 100, frozenset(("last", "example"))
#: Columns of it that are there even where all groups have nothing in them.
_ALWAYS = frozenset(("fingerprint", "messages", "why", "last", "example"))
#: Groups that are told apart; the members tell as many apart in one look.
GROUPS_MAX = 1_000
_STATES = ("ready", "unacked", "delayed", "all")
_SUMS = ("messages", "bytes", "sent_back")


class Groups:
    """Groups of several pages.  Invariant: at most GROUPS_MAX; all else is in one more, ""."""

    def __init__(self) -> None:
        self._found: dict[str, Row] = {}

    def add(self, row: Row) -> None:
        """Add a page's group to those of the pages before."""
        name = row["fingerprint"]
        if name and name not in self._found and len(self._found) >= GROUPS_MAX:
            name, row = "", {**_bare(row), "fingerprint": ""}
        known = self._found.get(name)
        if known is None:
            self._found[name] = dict(row)
            return
        for key in _SUMS:
            known[key] += row[key]
        for key, better in (("first_seen_ms", min), ("last_seen_ms", max)):
            times = [each for each in (known[key], row[key]) if each is not None]
            known[key] = better(times, default=None)

    def rows(self) -> list[Row]:
        """Return the groups, the largest first, those that are not told apart last."""
        return sorted(
            self._found.values(), key=lambda row: (not row["fingerprint"], -row["messages"])
        )

    def get(self, name: str) -> Row:
        """Return a group's row, an empty one for what is not known."""
        return self._found.get(name, {})


def _bare(row: Row) -> Row:
    return {key: row[key] for key in (*_SUMS, "first_seen_ms", "last_seen_ms", "example")}


class Progress:
    """Says at a terminal how far a long look is."""

    def __init__(self) -> None:
        self.looked_at = 0
        self._is_shown = False

    def add(self, looked_at: int, counts: dict[str, int], state: str) -> None:
        """Show it after one more page."""
        self.looked_at += looked_at
        if sys.stderr.isatty():
            total = sum(counts.values()) if state == "all" else counts.get(state or "ready", 0)
            click.echo(f"\rLooked at {self.looked_at:,} of {total:,} ...", err=True, nl=False)
            self._is_shown = True

    def end(self) -> None:
        """Take the line away."""
        if self._is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)


def pages(
    client: AdminClient, name: str, request_for: Callable[[str], Any], page_token: str = ""
) -> Iterator[Any]:
    """Yield the pages of a call that ends after a while, and of those that go on behind it."""
    token = page_token
    while True:
        before = token
        token = ""
        for page in client.stream(name, request_for(before)):
            token = page.next_page_token
            yield page
        if not token or token == before:
            return


@click.command(cls=settings.Command)
@click.argument("name", metavar="QUEUE", shell_complete=completing.queue_names)
@click.option("--state", type=click.Choice(_STATES), default=None, help="Default: ready.")
@click.option("--filter", "chosen_by", default="", help="Only messages of which this is true.")
def triage(name: str, state: str | None, chosen_by: str) -> None:
    """Show a queue's messages in groups: why they are there, how many, an example of each (option
    -p).

    Nothing of the queue changes.  `brokerctl redrive QUEUE --group FINGERPRINT` sends a group back.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    groups, progress = Groups(), Progress()

    def request(token: str) -> Any:
        return admin_pb2.TriageQueueRequest(
            vhost=chosen.vhost,
            name=name,
            state=state or "",
            filter=chosen_by,
            page_token=token,
        )

    chosen.say(f"Groups of messages in queue '{name}' in vhost '{chosen.vhost}' ...")
    with connect(chosen) as client:
        try:
            for page in pages(client, "TriageQueue", request):
                for row in map(json.loads, page.groups):
                    groups.add(row)
                progress.add(page.looked_at, dict(page.counts), state or "")
        finally:
            progress.end()
    found = [shown(row) for row in groups.rows()]
    is_narrow = shutil.get_terminal_size().columns < _WIDE_COLUMNS
    short = tuple(each for each in _SHORT if not (is_narrow and each in _WIDE_ONLY))
    output.rows(chosen, columns_of(chosen, COLUMNS, short, _ALWAYS, found), found)
    total = sum(row["messages"] for row in found)
    chosen.say(f"{total:,} messages in {len(found):,} groups; looked at {progress.looked_at:,}.")
    first = next((row["fingerprint"] for row in found if row["fingerprint"]), None)
    if first is not None:
        shown_name, example = shlex.quote(name), found[0]["example"]
        chosen.say(f"An example: brokerctl browse {shown_name} --from {example} --count 1")
        chosen.say(f"What would go back: brokerctl redrive {shown_name} --group {first} --dry-run")


def shown(row: Row) -> Row:
    """Return a group as a line of the table."""
    fingerprint = row["fingerprint"] or None
    return {
        **row,
        "fingerprint": fingerprint,
        "why": _why(row) if fingerprint else f"(all beyond the first {GROUPS_MAX:,} groups)",
        "published_to": _joined(row, "exchange", "routing_key"),
        "what": _joined(row, "type", "exception"),
        "last": time(row["last_seen_ms"], "%m-%d %H:%M"),
        "first_seen": time(row["first_seen_ms"]),
        "last_seen": time(row["last_seen_ms"]),
    }


def _why(row: Row) -> str:
    """Return why and where a group's messages died, in a few words."""
    first, last = row.get("first_queue"), row.get("last_queue")
    if not row.get("reason") and not first:
        return "nothing says why"
    text = f"{row.get('reason') or 'failed'} in {last or '?'}"
    if first != last:
        text += f", first in {first or '?'}"
    by = row.get("framework") if row.get("told_by") == "framework" else ""
    return f"{text} ({by})" if by else text


def _joined(row: Row, *names: str) -> str:
    return " ".join(row[name] for name in names if row.get(name))


def columns_of(
    chosen: Settings,
    columns: tuple[str, ...],
    short: tuple[str, ...],
    always: Collection[str],
    found: list[Row],
) -> list[str]:
    """Return the columns: for a program all, for a person the short ones that are not empty."""
    if chosen.formatter_now() != "pretty":
        return list(columns)
    return [name for name in short if name in always or any(row.get(name) for row in found)]


def time(at_ms: int | None, form: str = "%Y-%m-%dT%H:%M:%S+00:00") -> str | None:
    """Return a time as people read it, in UTC; None for what is not known."""
    if at_ms is None:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime(form)
    except (ValueError, OverflowError, OSError):
        return str(at_ms)
