"""`brokerctl redrive|move|delete_messages`: jobs that take messages out of a queue, by filter or
group, and what became of them; their dry runs.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from brokerd.ctl import completing, errors, output, settings, triage

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient
    from brokerd.ctl.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])
Row = dict[str, Any]

PREVIEW_COLUMNS = (
    *("fingerprint", "messages", "bytes", "target", "leader", "consumers", "ready"),
    *("free_messages", "free_bytes", "overflow", "stays", "reason", "first_queue"),
)
_PREVIEW_SHORT = ("fingerprint", "messages", "becomes", "consumers", "free_messages", "free_bytes")
_PREVIEW_ALWAYS = ("fingerprint", "messages", "becomes")
JOB_COLUMNS = (
    *("queue", "id", "kind", "to", "target", "state", "why", "looked_at", "held"),
    *("sent", "acknowledged", "died_again", "waiting", "removed", "duplicates", "unknown"),
    *("stayed", "user", "started", "ended"),
)
_JOB_SHORT = (
    *("queue", "kind", "state", "why", "sent", "acknowledged", "died_again", "waiting"),
    *("removed", "duplicates", "unknown", "stayed", "started"),
)
_JOB_ALWAYS = ("queue", "kind", "state", "sent", "stayed", "started")
RECEIPT_COLUMNS = (
    *("fingerprint", "sent", "acknowledged", "died_again", "waiting"),
    *("removed", "duplicates", "unknown", "stayed"),
)
_ENDED = ("done", "stopped")
#: Seconds between two looks at a job that is waited for.
_POLL_S = 1.0


def _options(*made: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(made):
            command = option(command)
        return command

    return add


_WHICH = (
    click.argument("name", metavar="QUEUE", shell_complete=completing.queue_names),
    click.option("--filter", "chosen_by", default="", help="Only messages of which this is true."),
    click.option(
        "--group", default="", metavar="FINGERPRINT", help="Only those of a group of `triage`."
    ),
    click.option(
        "--max", "most", type=click.IntRange(1), default=None, metavar="N", help="At most so many."
    ),
    click.option(
        "--rate",
        type=click.IntRange(1, 1_000_000),
        default=None,
        metavar="N",
        help="So many a second at most [default: as fast as the targets confirm].",
    ),
    click.option("--dry-run", is_flag=True, help="Only show what would be done."),
    click.option("--wait", is_flag=True, help="Show how far it is until it has ended."),
)
_TARGETS = (
    click.option(
        "--to-queue",
        default=None,
        metavar="NAME",
        help="To this queue.",
        shell_complete=completing.queue_names,
    ),
    click.option(
        "--to-exchange",
        default=None,
        metavar="NAME",
        help="To this exchange.",
        shell_complete=completing.exchange_names,
    ),
    click.option(
        "--routing-key",
        default=None,
        metavar="KEY",
        help="With --to-exchange: with this key [default: the message's own].",
    ),
)


@click.command(cls=settings.Command)
@_options(*_WHICH, *_TARGETS)
@click.option(
    "--to",
    type=click.Choice(("origin", "republish")),
    default=None,
    help="origin: the queue in which each died first; republish: the exchange and keys with which "
    "it was published first [default: origin].",
)
@click.option(
    "--canary",
    type=click.IntRange(1, 10_000),
    default=None,
    metavar="N",
    help="Of each group so many first; the group goes on when consumers have acknowledged them, "
    "and stops if one dies again.",
)
@click.option(
    "--stop-after-deaths",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    help="A group stops when so many of those sent have died again.",
)
@click.option(
    "--keep-history",
    is_flag=True,
    help="x-death stays [default: it becomes x-redrive-history, and counts begin anew].",
)
@click.option("--restore-expiration", is_flag=True, help="With the original expiration.")
@click.option(
    "--trust-headers",
    is_flag=True,
    help="Also to where only headers say that it died: a client may have written them.",
)
def redrive(
    name: str,
    to: str | None,
    canary: int | None,
    stop_after_deaths: int | None,
    keep_history: bool,
    restore_expiration: bool,
    trust_headers: bool,
    **common: Any,
) -> None:
    """Send a queue's messages back, with a receipt of what became of them (option -p).

    A job of the broker does it: it goes on when this command ends, and when members do.  It covers
    what is in the queue now.  --dry-run shows where everything would go.
    """
    order = _order("redrive", name, common, to)
    order |= {
        "canary": canary or 0,
        "stop_after_deaths": stop_after_deaths or 0,
        "keeps_history": keep_history,
        "restores_expiration": restore_expiration,
        "trusts_headers": trust_headers,
    }
    _run(order, common)


@click.command(cls=settings.Command)
@_options(*_WHICH, *_TARGETS)
def move(name: str, **common: Any) -> None:
    """Send messages of a queue to another queue or an exchange, as they are (option -p)."""
    _run(_order("move", name, common, None), common)


@click.command(cls=settings.Command)
@_options(*_WHICH)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete_messages(name: str, yes: bool, **common: Any) -> None:
    """Delete messages of a queue by filter or group; shows them first and asks (option -p)."""
    order = _order("delete", name, common, None)
    if not yes and not common["dry_run"] and not _is_person():
        raise errors.CtlError(
            "delete_messages asks, and there is no terminal: add --yes, or --dry-run to see "
            "what would go",
            errors.EXIT_USAGE,
        )
    _run(order, common, asks=not yes)


@click.command(cls=settings.Command)
@click.argument("name", metavar="[QUEUE]", default="", shell_complete=completing.queue_names)
def list_queue_jobs(name: str) -> None:
    """List redrives, moves and deletions of messages: under way, and the last of each queue
    (option -p).

    With a queue: what became of each group.  What redrives sent is counted where it went, also
    after their end: acknowledged by consumers, died again, waiting.
    """
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        found = _jobs(client, chosen, name)
    chosen.say(f"Jobs of queues in vhost '{chosen.vhost}' ...")
    _show_jobs(chosen, found)
    if name and found:
        _show_receipt(chosen, found[0])


@click.command(cls=settings.Command)
@click.argument("name", metavar="QUEUE", shell_complete=completing.queue_names)
def stop_queue_job(name: str) -> None:
    """Stop a queue's redrive, move or deletion: nothing more is taken out of it (option -p).

    What is on its way to a target is waited for; what was sent stays there.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    chosen.say(f"Stopping the job of queue '{name}' in vhost '{chosen.vhost}' ...")
    with connect(chosen) as client:
        request = admin_pb2.StopQueueJobRequest(vhost=chosen.vhost, name=name)
        job = json.loads(client.call("StopQueueJob", request).job)
    _show_jobs(chosen, [job])
    _show_receipt(chosen, job)


def _is_person() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


# ---- orders -------------------------------------------------------------------------------------


def _order(kind: str, name: str, common: Row, to: str | None) -> Row:
    queue, exchange = common.get("to_queue"), common.get("to_exchange")
    named = [each for each in (to, queue, exchange) if each is not None]
    if len(named) > 1:
        raise click.UsageError("one of --to, --to-queue and --to-exchange")
    if kind == "move" and not named:
        raise click.UsageError("where to?  --to-queue NAME or --to-exchange NAME")
    if common.get("routing_key") is not None and exchange is None:
        raise click.UsageError("--routing-key is for --to-exchange")
    order: Row = {
        "kind": kind,
        "vhost": settings.current().vhost,
        "queue": name,
        "filter": common["chosen_by"],
        "group": common["group"],
        "rate": common["rate"] or 0,
        "max": common["most"] or 0,
    }
    if queue is not None:
        return order | {"to": "queue", "target": queue}
    if exchange is not None:
        key = common["routing_key"]
        return order | {"to": "exchange", "target": exchange, "routing_key": key}
    return order if kind == "delete" else order | {"to": to or "origin"}


def _run(order: Row, common: Row, *, asks: bool = False) -> None:
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    with connect(chosen) as client:
        if common["dry_run"] or asks:
            count = _preview(client, chosen, order)
            if common["dry_run"]:
                return
            if not count:
                chosen.say("There is nothing to delete.")
                return
            question = f"Delete {count:,} messages of queue '{order['queue']}'?"
            settings.ask(question, "nothing was deleted")
        request = admin_pb2.StartQueueJobRequest(order=json.dumps(order))
        job = json.loads(client.call("StartQueueJob", request).job)
        if common["wait"]:
            job = _wait(client, chosen, job)
    _show_jobs(chosen, [job])
    if job["state"] in _ENDED:
        _show_receipt(chosen, job)
    else:
        shown = shlex.quote(order["queue"])
        chosen.say(f"How far it is: brokerctl list_queue_jobs {shown}")
        chosen.say(f"To stop it: brokerctl stop_queue_job {shown}")


# ---- dry runs -----------------------------------------------------------------------------------


def _preview(client: AdminClient, chosen: Settings, order: Row) -> int:
    """Show what an order would do; return how many messages would go."""
    from brokerd.rpc.v1 import admin_pb2

    groups, progress = triage.Groups(), triage.Progress()
    rows: dict[tuple[str, tuple[str, ...], str], Row] = {}
    targets: dict[str, Row] = {}
    most = order["max"]
    left = most

    def request(token: str) -> Any:
        asked = json.dumps(order | {"max": left})
        return admin_pb2.PreviewQueueJobRequest(order=asked, page_token=token)

    chosen.say(f"What would become of messages in queue '{order['queue']}' (nothing changes) ...")
    try:
        for page in triage.pages(client, "PreviewQueueJob", request):
            for group in map(json.loads, page.groups):
                groups.add(group)
            for name, room in page.targets.items():
                targets[name] = json.loads(room)
            for row in map(json.loads, page.rows):
                key = (row["fingerprint"], tuple(row["targets"]), row["stays"])
                known = rows.setdefault(key, row | {"messages": 0, "bytes": 0})
                known["messages"] += row["messages"]
                known["bytes"] += row["bytes"]
                left -= row["messages"] if most and not row["stays"] else 0
            progress.add(page.looked_at, dict(page.counts), "ready")
            if most and left <= 0:
                break
    finally:
        progress.end()
    found = sorted(rows.values(), key=lambda row: -row["messages"])
    lines = [line for row in found for line in _lines(row, groups.get(row["fingerprint"]), targets)]
    always = _PREVIEW_ALWAYS if order["kind"] == "delete" else (*_PREVIEW_ALWAYS, "consumers")
    columns = triage.columns_of(chosen, PREVIEW_COLUMNS, _PREVIEW_SHORT, always, lines)
    output.rows(chosen, columns, lines)
    return _summary(chosen, order, found, targets)


def _lines(row: Row, group: Row, targets: dict[str, Row]) -> list[Row]:
    """Return a line for each target of a row; one without for those that stay or are deleted."""
    line = {
        **row,
        "fingerprint": row["fingerprint"] or None,
        "reason": group.get("reason"),
        "first_queue": group.get("first_queue"),
    }
    if not row["targets"]:
        return [line | {"becomes": f"stays: {row['stays']}" if row["stays"] else "deleted"}]
    return [
        line | {"target": name, "becomes": f"to {name}"} | targets.get(name, {})
        for name in row["targets"]
    ]


def _summary(chosen: Settings, order: Row, rows: list[Row], targets: dict[str, Row]) -> int:
    going: int = sum(row["messages"] for row in rows if not row["stays"])
    staying = sum(row["messages"] for row in rows if row["stays"])
    verb = {"redrive": "go back", "move": "move", "delete": "be deleted"}[order["kind"]]
    text = f"{going:,} messages would {verb}, {staying:,} stay"
    if order["rate"] and going:
        text += f"; {-(-going // order['rate']):,} seconds at {order['rate']:,} a second"
    chosen.say(f"{text}.")
    for line in _steps(order):
        chosen.say(line)
    coming: dict[str, Row] = {}
    for row in rows:
        for name in row["targets"]:
            known = coming.setdefault(name, {"messages": 0, "bytes": 0})
            known["messages"] += row["messages"]
            known["bytes"] += row["bytes"]
    for name, each in sorted(coming.items()):
        for warning in _warnings(each, targets.get(name)):
            click.echo(f"Queue {name!r}: {warning}", err=True)
    return going


def _steps(order: Row) -> list[str]:
    """Say what a redrive does beside sending: what it waits for, and what stops a group."""
    canary, deaths = order.get("canary", 0), order.get("stop_after_deaths", 0)
    lines = []
    if canary:
        lines.append(
            f"Of each group {canary:,} go first; the others follow when consumers have "
            "acknowledged those."
        )
        deaths = deaths or 1
    if deaths:
        again = "one of those sent has" if deaths == 1 else f"{deaths:,} of those sent have"
        lines.append(f"A group stops when {again} died again: what is left of it stays.")
    return lines


def _warnings(coming: Row, room: Row | None) -> list[str]:
    if room is None:
        return ["it was deleted meanwhile"]
    if not room["leader"]:
        return ["no leader answers, so that its messages would wait where they are"]
    found = []
    if not room["consumers"]:
        found.append("no consumers are there now")
    for key, unit in (("messages", "messages"), ("bytes", "bytes")):
        free = room[f"free_{key}"]
        if free is not None and free < coming[key]:
            text = f"{coming[key]:,} {unit} would come, and {free:,} fit ({room['overflow']})"
            found.append(text)
    return found


# ---- jobs ---------------------------------------------------------------------------------------


def _jobs(client: AdminClient, chosen: Settings, name: str) -> list[Row]:
    from brokerd.rpc.v1 import admin_pb2

    request = admin_pb2.ListQueueJobsRequest(vhost=chosen.vhost, name=name)
    return list(map(json.loads, client.call("ListQueueJobs", request).jobs))


def _wait(client: AdminClient, chosen: Settings, job: Row) -> Row:
    """Return the job as it ended; at a terminal a line says how far it is."""
    is_shown = sys.stderr.isatty()
    try:
        while job["state"] not in _ENDED:
            if is_shown:
                total = job["total"]
                text = (
                    f"{job['state']}: looked at {job['looked_at']:,}, sent {total['sent']:,}, "
                    f"acknowledged {total['acknowledged']:,}, died again {total['died_again']:,}, "
                    f"waiting {total['waiting']:,}"
                )
                why = f" ({job['why']})" if job["why"] else ""
                line = output.printable(f"{text}{why}")
                click.echo(f"\r\x1b[K{line}", err=True, nl=False)
            time.sleep(_POLL_S)
            found = [
                each for each in _jobs(client, chosen, job["queue"]) if each["id"] == job["id"]
            ]
            if not found:
                raise errors.CtlError(
                    f"Job {job['id']} of queue '{job['queue']}' is not known any more",
                    errors.EXIT_UNAVAILABLE,
                )
            job = found[0]
    finally:
        if is_shown:
            click.echo("\r\x1b[K", err=True, nl=False)
    return job


def _show_jobs(chosen: Settings, found: list[Row]) -> None:
    rows = [_job_row(job) for job in found]
    columns = triage.columns_of(chosen, JOB_COLUMNS, _JOB_SHORT, _JOB_ALWAYS, rows)
    output.rows(chosen, columns, rows)


def _job_row(job: Row) -> Row:
    total = job["total"]
    return {
        **job,
        **total,
        "stayed": sum(total["stayed"].values()),
        "started": triage.time(job["started_ms"]),
        "ended": triage.time(job["ended_ms"]),
    }


def _show_receipt(chosen: Settings, job: Row) -> None:
    """Show what became of each group, and why messages stayed; a program has all in the job."""
    if chosen.formatter_now() not in ("pretty", "table"):
        return
    if job["groups"]:
        chosen.say(f"Groups of job {job['id']} of queue '{job['queue']}' ...")
        rows = [
            {**group, "fingerprint": name, "stayed": sum(group["stayed"].values())}
            for name, group in sorted(job["groups"].items())
        ]
        always = ("fingerprint", "sent", "stayed")
        columns = triage.columns_of(chosen, RECEIPT_COLUMNS, RECEIPT_COLUMNS, always, rows)
        output.rows(chosen, columns, rows)
    for reason, count in sorted(job["total"]["stayed"].items()):
        chosen.say(output.printable(f"{count:,} stayed: {reason}"))
