"""`brokerctl wal`: a member's write-ahead log, read offline.

Works on files, talks to no member.  Statuses of `verify`: 0 intact, 1 damaged, 2 unusable.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from brokerd.ctl import errors, output, settings

_DIRECTORY = click.argument(
    "directory", type=click.Path(path_type=Path, exists=True, file_okay=False)
)


def _log_directory(directory: Path) -> Path:
    """Accept a member's data directory as well as the log in it."""
    return directory / "wal" if (directory / "wal").is_dir() else directory


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def wal() -> None:
    """Look into a write-ahead log (DIR: the data directory or the folder 'wal' in it)."""


@wal.command(cls=settings.Command)
@_DIRECTORY
@click.option("--records", is_flag=True, help="Every record, one per line.")
def inspect(directory: Path, records: bool) -> None:
    """Show the groups of a log, or its records; changes nothing."""
    from brokerd.storage import inspect as reader
    from brokerd.storage.errors import StorageError

    chosen = settings.current()
    path = _log_directory(directory)
    try:
        if not records:
            found = [dataclasses.asdict(group) for group in reader.summary(path)]
            columns = [field.name for field in dataclasses.fields(reader.GroupView)]
            output.rows(chosen, columns, found)
            return
        # One line each as they are read: a log may be large.
        for row in reader.iterate(path):
            if chosen.formatter == "json":
                click.echo(json.dumps(dataclasses.asdict(row)))
            else:
                click.echo("\t".join(output.cell(value) for value in dataclasses.astuple(row)))
    except StorageError as error:
        raise errors.CtlError(str(error), errors.EXIT_DATA) from error


@wal.command(cls=settings.Command)
@_DIRECTORY
def verify(directory: Path) -> int:
    """Read everything as a start would and judge it; changes nothing."""
    from brokerd.storage import inspect as reader

    chosen = settings.current()
    path = _log_directory(directory)
    verdict = reader.verify(path)
    snapshots = reader.snapshot_files(path)
    if chosen.formatter == "json":
        fields = dataclasses.asdict(verdict) | {"snapshots": dict(snapshots)}
        click.echo(json.dumps(fields))
        return verdict.exit_code
    word = {reader.EXIT_INTACT: "intact", reader.EXIT_DAMAGED: "damaged"}
    entries = sum(group.entries for group in verdict.groups)
    click.echo(
        f"{word.get(verdict.exit_code, 'unusable')}: {len(verdict.segments)} segments, "
        f"{len(verdict.groups)} groups, {entries} entries, {len(snapshots)} snapshots"
    )
    for note in verdict.notes:
        click.echo(f"  {note}")
    for group in verdict.groups:
        if group.is_damaged:
            click.echo(f"  group {group.uid:x} is damaged (entries up to {group.last_index})")
    for name, state in snapshots:
        if state != "intact":
            click.echo(f"  {name}: {state}")
    return verdict.exit_code


@wal.command(cls=settings.Command)
@_DIRECTORY
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_loss(directory: Path, yes: bool) -> None:
    """Declare what cannot be read lost, so that the rest can be used again.

    The last resort, when no healthy majority is left that could refill this member. The member must
    be stopped.
    """
    from brokerd.storage import inspect as reader
    from brokerd.storage import repair
    from brokerd.storage.config import WalConfig
    from brokerd.storage.errors import StorageError

    path = _log_directory(directory)
    verdict = reader.verify(path)
    if verdict.exit_code == reader.EXIT_INTACT:
        click.echo("the log is intact: nothing is lost, nothing was changed")
        return
    if not verdict.segments:
        raise errors.CtlError("; ".join(verdict.notes) or "no log is here", errors.EXIT_DATA)
    if not yes:
        question = f"Entries in {path} that cannot be read will be lost for good. Go on?"
        settings.ask(question, "nothing was changed")
    segment = verdict.segments[-1]
    config = WalConfig(node_id=segment.node_id, segment_bytes=segment.size_bytes)
    try:
        lost = repair.accept_loss(path, config, click.echo)
    except (StorageError, ValueError) as error:
        raise errors.CtlError(str(error), errors.EXIT_DATA) from error
    groups = ", ".join(f"{uid:x}" for uid in lost) or "none"
    click.echo(f"groups that lost entries: {groups}")
