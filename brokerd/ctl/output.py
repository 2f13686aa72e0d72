"""Rows on the screen: a table for people, tab-separated values, JSON or CSV for programs."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from brokerd.ctl.settings import Settings

Row = dict[str, Any]


def rows(settings: Settings, columns: Sequence[str], found: Sequence[Row]) -> None:
    """Print rows with these columns."""
    formatter = _formatter(settings)
    if formatter == "json":
        chosen = [{column: row.get(column) for column in columns} for row in found]
        click.echo(json.dumps(chosen, indent=2 if sys.stdout.isatty() else None))
        return
    cells = [[cell(row.get(column)) for column in columns] for row in found]
    if formatter == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerows(([list(columns)] if settings.headers else []) + cells)
    elif formatter == "tsv":
        lines = ([list(columns)] if settings.headers else []) + cells
        for line in lines:
            click.echo("\t".join(_tab_free(text) for text in line))
    else:
        _table(settings, columns, cells)


def record(settings: Settings, fields: Row) -> None:
    """Print one thing with many properties."""
    formatter = _formatter(settings)
    if formatter == "json":
        click.echo(json.dumps(fields, indent=2 if sys.stdout.isatty() else None))
        return
    width = max(map(len, fields), default=0) if formatter == "table" else 0
    for name, value in fields.items():
        separator = "  " if formatter == "table" else "\t"
        click.echo(f"{name.ljust(width)}{separator}{_tab_free(cell(value))}")


def _formatter(settings: Settings) -> str:
    if settings.formatter == "pretty_table":
        return "table"
    return settings.formatter or ("table" if sys.stdout.isatty() else "tsv")


def cell(value: Any) -> str:
    """Return a value as one word or text; nested ones as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return f"[{', '.join(value)}]"
    if isinstance(value, list | dict):
        return json.dumps(value, sort_keys=True)
    return str(value)


def _tab_free(text: str) -> str:
    """Return text that neither breaks a line nor steers the terminal: names may be anything."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _table(settings: Settings, columns: Sequence[str], cells: list[list[str]]) -> None:
    # Imported here: programs that read our output do not wait for it.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=settings.headers, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in cells:
        table.add_row(*(Text(_tab_free(text)) for text in line))
    Console(highlight=False).print(table)
