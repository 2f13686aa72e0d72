"""`brokerctl export_definitions` and `import_definitions`: RabbitMQ's JSON, both ways.

What the JSON means is core/catalog/definitions_json.py's; here it is read, written and applied.
An import can be repeated: what is there already stays as it is, and what differs and cannot change
is reported.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brokerd.core.catalog import definitions_json, unsupported
from brokerd.ctl import errors, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

#: Of a file; definitions of 100,000 queues have about 20 MiB.
FILE_BYTES_MAX = 512 * 1024 * 1024
#: Operations per request.
BATCH = 256
#: Mistakes that are shown; the rest is counted.
SHOWN_MAX = 20
STDIO = "-"
_FORMAT = click.option(
    "--format",
    "file_format",
    default="json",
    help="json; RabbitMQ's other one, erlang, is not offered.",
)


def _check_format(file_format: str) -> None:
    if file_format.lower() != "json":
        raise errors.BadArgument("Formatter should be either json; erlang is not offered")


@click.command(cls=settings.Command)
@click.argument("file")
@_FORMAT
@click.option(
    "--with-passwords", is_flag=True, help="With the URIs of federation upstreams that hold one."
)
def export_definitions(file: str, file_format: str, with_passwords: bool) -> None:
    """Write all users, vhosts, rights, policies, queues, exchanges and bindings as JSON.

    FILE - is standard output.  Password hashes are in it: keep it as you keep passwords.  URIs of
    upstreams with a password are left out; where it is imported, one that is there stays.
    """
    from brokerd.ctl.client import connect

    _check_format(file_format)
    chosen = settings.current()
    if file != STDIO:
        chosen.say(f'Exporting definitions in JSON to a file at "{file}" ...')
    with connect(chosen) as client:
        found = client.definitions(with_passwords)
        version = client.live_rows("status")[0]["rabbitmq_version"]
    text = output.compact(definitions_json.exported(found, version))
    if file == STDIO:
        click.echo(text, nl=False)
        return
    try:
        # Only the owner may read the hashes, in a file that existed before, too.
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as stream:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                os.fchmod(descriptor, 0o600)
            stream.write(text)
    except OSError as error:
        raise errors.CtlError(f"cannot write {file}: {error.strerror}", errors.EXIT_DATA) from error


@click.command(cls=settings.Command)
@click.argument("file", required=False)
@_FORMAT
@click.option("--skip-if-unchanged", is_flag=True, help="Always so: what is there already is left.")
@click.option(
    "--skip-unsupported",
    is_flag=True,
    help="Leave out what is not here (streams, exchanges of plug-ins), and list it.",
)
def import_definitions(
    file: str | None, file_format: str, skip_if_unchanged: bool, skip_unsupported: bool
) -> None:
    """Create what a definitions file of RabbitMQ or brokerd describes; without FILE: stdin.

    Definitions of one vhost, which name none, go into the vhost given with -p.
    """
    from brokerd.ctl.client import connect

    _check_format(file_format)
    chosen = settings.current()
    everything = _wanted(_read(chosen, file), chosen.vhost)
    wanted, left_out = unsupported.taken(everything, skips=skip_unsupported)
    with connect(chosen) as client:
        mistakes = _apply(chosen, client, wanted)
    for line in left_out:
        click.echo(f"left out: {line}", err=True)
    if mistakes:
        shown = mistakes[:SHOWN_MAX]
        if len(mistakes) > SHOWN_MAX:
            shown.append(f"and {len(mistakes) - SHOWN_MAX} more")
        raise errors.CtlError(
            f"{len(mistakes)} of {len(wanted)} objects could not be imported:\n" + "\n".join(shown),
            errors.EXIT_UNAVAILABLE,
        )
    chosen.say(f"Successfully imported {len(wanted)} definitions.")


def _read(chosen: settings.Settings, file: str | None) -> str:
    if file is None or file == STDIO:
        chosen.say("Importing definitions in JSON from standard input ...")
        text = sys.stdin.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise errors.CtlError("the input is too large", errors.EXIT_DATA)
        return text
    path = Path(file)
    if not path.exists():
        raise errors.BadArgument(f"File {file} does not exist")
    if path.is_dir():
        raise errors.BadArgument(f"Path {file} is a directory")
    chosen.say(f'Importing definitions in JSON from a file at "{file}" ...')
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise errors.CtlError(f"{file} is too large", errors.EXIT_DATA)
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise errors.CtlError(f"cannot read {file}: {error}", errors.EXIT_DATA) from error


def _wanted(text: str, vhost: str) -> list[definitions_json.Wanted]:
    try:
        parsed: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.CtlError(
            f"Failed to deserialise input (format: JSON) (error: {error})", errors.EXIT_DATA
        ) from error
    try:
        return definitions_json.operations(parsed, vhost)
    except definitions_json.BadDefinitions as error:
        raise errors.CtlError(str(error), errors.EXIT_DATA) from error


def _apply(
    chosen: settings.Settings, client: AdminClient, wanted: list[definitions_json.Wanted]
) -> list[str]:
    """Apply all; return what went wrong, a line each.  A terminal sees how far it is."""
    from brokerd.ctl.client import Result, operation

    mistakes = []
    is_watched = sys.stderr.isatty() and not chosen.quiet
    batches = [wanted[start : start + BATCH] for start in range(0, len(wanted), BATCH)]
    with click.progressbar(
        batches, label="importing", file=sys.stderr, hidden=not is_watched
    ) as shown:
        for batch in shown:
            results = client.apply([operation(*item) for item in batch])
            for (kind, vhost, name, _), result in zip(batch, results, strict=True):
                if result.code not in (Result.OK, Result.UNCHANGED):
                    where = f" in vhost '{vhost}'" if vhost else ""
                    mistakes.append(f"{kind} '{name}'{where}: {result.message}")
    return mistakes
