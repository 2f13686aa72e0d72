"""What commands print: for a script the bytes of rabbitmqctl, for a person at a terminal tables.

rabbitmqctl's formatters `table` (values between tabs), `json`, `csv`, `erlang` and `pretty_table`;
`tsv` is `table` without the banner, `yaml` is ours.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from brokerd.ctl import terms
from brokerd.ctl.settings import Settings

Row = dict[str, Any]


def rows(
    settings: Settings, columns: Sequence[str], found: Sequence[Row], *, streams: bool = True
) -> None:
    """Print rows with these columns.

    streams: what rabbitmqctl prints as it comes has no header when there is nothing; of what it
    collects first, "nothing" is an empty line.
    """
    formatter = settings.formatter_now()
    if formatter == "pretty":
        _pretty(settings, columns, found)
    elif formatter == "json":
        _json_rows(columns, found, streams)
    elif formatter == "csv":
        _csv_rows(columns, found, streams)
    elif formatter == "yaml":
        _yaml([{column: plain(row.get(column)) for column in columns} for row in found])
    elif formatter == "erlang":
        _erlang_rows(columns, found)
    elif found:
        if settings.headers:
            click.echo("\t".join(columns))
        for row in found:
            click.echo("\t".join(printable(cell(row.get(column))) for column in columns))
    elif not streams:
        click.echo()


def _json_rows(columns: Sequence[str], found: Sequence[Row], streams: bool) -> None:
    if not found:
        click.echo("[\n]" if streams else "[]")
        return
    click.echo("[")
    for number, row in enumerate(found):
        # rabbitmqctl writes "" for what is not known.
        chosen = {column: row.get(column, "") for column in columns}
        chosen = {column: "" if value is None else value for column, value in chosen.items()}
        click.echo(("," if number else "") + compact(chosen))
    click.echo("]")


def _csv_rows(columns: Sequence[str], found: Sequence[Row], streams: bool) -> None:
    if not found:
        click.echo("" if streams else "\n\n", nl=not streams)
        return
    writer = csv.writer(sys.stdout, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(list(columns))
    writer.writerows([cell(row.get(column)) for column in columns] for row in found)


def _erlang_rows(columns: Sequence[str], found: Sequence[Row]) -> None:
    listed = (
        "[" + ",".join(f"{{{column},{terms.term(row.get(column))}}}" for column in columns) + "]"
        for row in found
    )
    click.echo("[" + ",\n ".join(listed) + "]")


def _yaml(value: Any) -> None:
    # Imported here, as rich is.
    import yaml

    click.echo(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), nl=False)


def compact(value: Any) -> str:
    """Return JSON on one line, as rabbitmqctl prints it."""
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=False)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; field tables as lists of [key, type, value]."""
    if isinstance(value, terms.Table):
        return terms.json_table(value.entries)
    if isinstance(value, terms.Address):
        return value.numbers()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.name if isinstance(value, terms.Atom) else value


def record(settings: Settings, fields: Row) -> None:
    """Print one thing with many properties, one per line."""
    formatter = settings.formatter_now()
    if formatter == "json":
        click.echo(compact(fields))
        return
    if formatter == "yaml":
        _yaml(plain(fields))
        return
    width = max(map(len, fields), default=0) if formatter == "pretty" else 0
    for name, value in fields.items():
        separator = "  " if formatter == "pretty" else "\t"
        click.echo(f"{name.ljust(width)}{separator}{printable(cell(value))}")


def section(title: str, lines: Sequence[str]) -> None:
    """Print a part of a report, as rabbitmqctl's status has them; scripts get no escape codes."""
    click.secho(title, bold=True)
    click.echo()
    for line in lines or ["(none)"]:
        click.echo(printable(line))
    click.echo()


def cell(value: Any) -> str:
    """Return a value as one word or text; field tables as terms, other objects as JSON."""
    if value is None:
        return ""
    if isinstance(value, terms.Table):
        return terms.field_table(value.entries)
    if isinstance(value, terms.Atom):
        return value.name
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(value)}]"
    if isinstance(value, tuple):
        return terms.term(value)
    if isinstance(value, list | dict):
        return compact(value)
    return str(value)


def printable(text: str) -> str:
    """Return text that neither breaks a line nor steers the terminal: names may be anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _pretty(settings: Settings, columns: Sequence[str], found: Sequence[Row]) -> None:
    # Imported here: programs that read our output do not wait for it.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD,
        show_header=settings.headers,
        pad_edge=False,
        header_style="bold cyan",
    )
    for column in columns:
        widths = [len(cell(row.get(column))) for row in found]
        is_short = max(widths, default=0) <= _UNBROKEN_CHARACTERS
        table.add_column(column, overflow="fold", justify=_justify(column, found), no_wrap=is_short)
    for row in found:
        table.add_row(
            *(Text(printable(cell(row.get(c))), style=_style(row.get(c))) for c in columns)
        )
    Console(highlight=False).print(table)


def _justify(column: str, found: Sequence[Row]) -> Any:
    values = [row.get(column) for row in found if row.get(column) is not None]
    is_number = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    return "right" if values and is_number else "left"


#: Values of a column that stand on one line each even where the table is too wide: numbers,
#: fingerprints.
_UNBROKEN_CHARACTERS = 12
#: What a person should see first.
_STYLES = {
    "running": "green",
    "up": "green",
    "blocked": "yellow",
    "blocking": "yellow",
    "waiting for a majority": "red",
    "error": "red",
    "down": "red",
}


def _style(value: Any) -> str:
    if isinstance(value, bool):
        return "green" if value else "dim"
    return _STYLES.get(value, "") if isinstance(value, str) else ""
