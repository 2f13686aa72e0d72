"""`brokerctl browse`: the messages of a queue, which stay as they are."""

from __future__ import annotations

import base64
import json
import sys
from datetime import UTC, datetime
from typing import Any

import click

from brokerd.ctl import completing, output, settings, triage

_STATES = ("ready", "unacked", "delayed", "all")
_FORMATS = ("table", "json", "raw")
_COLUMNS = (
    *("number", "state", "deliveries", "enqueued", "expires", "due", "bytes"),
    *("exchange", "routing_key", "died", "consumer", "payload"),
)
#: Messages of one call; there are as many calls as it takes.
_CALL_COUNT_MAX = 10_000
#: Of messages as JSON, behind which a table goes no further: it is made as a whole.
_TABLE_BYTES_MAX = 256 * 1024 * 1024
#: Of a payload in a table; --formatter json has all that was asked for.
_SHOWN_CHARACTERS = 60


@click.command(cls=settings.Command)
@click.argument("name", metavar="QUEUE", shell_complete=completing.queue_names)
@click.option(
    "--from",
    "start",
    default="head",
    show_default=True,
    metavar="head|tail|NUMBER|TIME",
    help="Where to begin: the next to be delivered, the last ones, a number, a time of arrival.",
)
@click.option("--count", type=click.IntRange(1, 1_000_000), default=20, show_default=True)
@click.option("--state", type=click.Choice(_STATES), default=None, help="Default: ready.")
@click.option(
    "--body-bytes",
    type=click.IntRange(0, 1024 * 1024),
    default=1024,
    show_default=True,
    help="So much of each body.",
)
@click.option("--filter", "chosen_by", default="", help="Only messages of which this is true.")
@click.option("--page-token", default="", help="Go on behind a page, as it said.")
@click.option(
    "--formatter",
    type=click.Choice(_FORMATS),
    default=None,
    help="json: a message a line; raw: bodies as they are, one after the other [default: table].",
)
def browse(
    name: str,
    start: str,
    count: int,
    state: str | None,
    body_bytes: int,
    chosen_by: str,
    page_token: str,
    formatter: str | None,
) -> None:
    """Show messages of a queue in delivery order; nothing of the queue changes (option -p)."""
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    vhost = chosen.vhost
    # Its own option hides the common one, which has no raw.
    if formatter is not None:
        chosen.formatter = formatter
    is_raw = chosen.formatter == "raw"
    is_program = chosen.formatter in ("raw", "json")
    rows: list[dict[str, Any]] = []
    progress = triage.Progress()
    left, size, counts = count, 0, {}

    def request(token: str) -> Any:
        return admin_pb2.BrowseQueueRequest(
            vhost=vhost,
            name=name,
            count=min(left, _CALL_COUNT_MAX),
            state=state or "",
            body_bytes=body_bytes,
            page_token=token,
            filter=chosen_by,
            base64=is_raw,
            # What a token goes on with it knows.
            **{"from": "" if token else start},
        )

    token = page_token
    with connect(chosen) as client:
        try:
            for page in triage.pages(client, "BrowseQueue", request, page_token):
                found = list(map(json.loads, page.messages))
                left -= len(found)
                token, counts = page.next_page_token, dict(page.counts)
                progress.add(page.looked_at, counts, state or "")
                if is_program:
                    progress.end()
                    _print(found, is_raw=is_raw)
                else:
                    rows += found
                    size += sum(len(message) for message in page.messages)
                if left <= 0 or size >= _TABLE_BYTES_MAX:
                    break
        finally:
            progress.end()
    if not is_program:
        chosen.say(f"Messages of queue '{name}' in vhost '{vhost}' ...")
        waits = any("due_ms" in row for row in rows)
        columns = [column for column in _COLUMNS if column != "due" or waits]
        output.rows(chosen, columns, [_shown(row) for row in rows])
        held = ", ".join(f"{value:,} {key}" for key, value in sorted(counts.items()))
        looked_at = progress.looked_at
        chosen.say(f"Shown {len(rows):,} of {looked_at:,} looked at; the queue has {held}.")
    if token:
        click.echo(f"There is more: --page-token {token}", err=True)


def _print(rows: list[dict[str, Any]], *, is_raw: bool) -> None:
    """Print messages as they come."""
    if is_raw:
        for row in rows:
            sys.stdout.buffer.write(_body(row))
        sys.stdout.buffer.flush()
        return
    for row in rows:
        # ASCII, so that no payload steers a terminal.
        click.echo(json.dumps(row, separators=(",", ":")))


def _body(row: dict[str, Any]) -> bytes:
    payload: str = row["payload"]
    return base64.b64decode(payload) if row["payload_encoding"] == "base64" else payload.encode()


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """Return a line of the table; output.py escapes what would steer the terminal."""
    payload = row["payload"]
    if row["payload_encoding"] != "string":
        payload = f"base64:{payload}"
    if len(payload) > _SHOWN_CHARACTERS:
        payload = f"{payload[: _SHOWN_CHARACTERS - 1]}…"
    holder = row.get("consumer")
    return {
        **row,
        "deliveries": row["acquired_count"] or row["delivery_count"],
        "enqueued": _time(row["enqueued_ms"]),
        "expires": _time(row["expires_ms"]),
        "due": _time(row.get("due_ms")),
        "died": _death(row["properties"]),
        "consumer": f"{holder['consumer_tag'] or '(get)'} at {holder['node']}" if holder else None,
        "payload": payload,
    }


def _death(properties: Any) -> str | None:
    """Return why and in which queue a message died last, as its header x-death has it."""
    headers = properties.get("headers") if isinstance(properties, dict) else None
    deaths = headers.get("x-death") if isinstance(headers, dict) else None
    last = deaths[0] if isinstance(deaths, list) and deaths else None
    if not isinstance(last, dict):
        return None
    return f"{last.get('reason')} in {last.get('queue')}"


def _time(at_ms: int | None) -> str | None:
    if at_ms is None:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        # An expiry beyond the calendar.
        return str(at_ms)
