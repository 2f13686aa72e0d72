"""Manual pages, in the macros of man(7), from the help texts of click's commands.

Pure: a command in, the text of its page and of those below it out.  For shells.py.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click

from brokerd import __version__
from brokerd.ctl import errors

#: Those that have pages.
PROGRAMS = ("brokerctl", "brokerd")
#: What a sub-command has of the program itself stands on the program's page.
_COMMON = "common_"


def pages(root: click.Group, program: str) -> dict[str, str]:
    """Return the text of the program's page and of each command's, by the page's name.

    Commands that cannot be imported, because their part is not installed, have none.
    """
    context = click.Context(root, info_name=program)
    found = {program: _page(root, context, program)}
    for name in root.list_commands(context):
        try:
            command = root.get_command(context, name)
        except errors.CtlError:
            continue
        if command is not None and not command.hidden:
            page = f"{program}-{name}"
            below = click.Context(command, info_name=name, parent=context)
            found[page] = _page(command, below, page)
    return found


def _page(command: click.Command, context: click.Context, page: str) -> str:
    summary = command.get_short_help_str(1000).rstrip(".")
    program = context.find_root().info_name or ""
    lines = [
        f'.TH "{page.upper()}" "1" "" "brokerd {__version__}" "brokerd"',
        ".ad l",
        ".SH NAME",
        f"{_escaped(page)} \\- {_escaped(summary)}",
        ".SH SYNOPSIS",
        *_synopsis(command, context),
        ".SH DESCRIPTION",
        *_paragraphs(command.help or ""),
        *_options(command, context),
    ]
    if isinstance(command, click.Group):
        lines += _commands(command, context, program if page == program else "")
    others = [program] if page != program else [name for name in PROGRAMS if name != page]
    lines += [".SH SEE ALSO", *(f".BR {_escaped(name)} (1)" for name in others)]
    return "\n".join(lines) + "\n"


def _synopsis(command: click.Command, context: click.Context) -> list[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    return [f".B {_escaped(context.command_path)}", _line(pieces)]


def _paragraphs(text: str) -> Iterator[str]:
    r"""Yield a help text: paragraphs are filled, but those that begin with \b."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        first, *rest = paragraph.split("\n")
        if first.strip() == "\b":
            yield ".nf"
            yield from map(_line, rest)
            yield ".fi"
        else:
            yield from map(_line, filter(None, map(str.strip, (first, *rest))))


def _options(command: click.Command, context: click.Context) -> list[str]:
    is_root = context.parent is None
    lines = []
    takes_common = False
    for option in command.get_params(context):
        if not is_root and (option.name or "").startswith(_COMMON):
            takes_common = True
            continue
        record = option.get_help_record(context)
        if record is not None and record[1]:
            lines += [".TP", f".B {_escaped(record[0])}", _line(record[1])]
    if takes_common:
        root = context.find_root().info_name or ""
        lines += [".PP", "Those of the program may stand here, too:", f".BR {_escaped(root)} (1)."]
    return [".SH OPTIONS", *lines] if lines else []


def _commands(command: click.Group, context: click.Context, program: str) -> list[str]:
    """Return the list of what is below; a program's commands have pages of their own."""
    lines = [".SH COMMANDS"]
    for title, rows in _summaries(command, context).items():
        lines += [f'.SS "{_escaped(title)}"'] if title else []
        for name, summary in rows:
            page = f".BR {_escaped(f'{program}-{name}')} (1)" if program else f".B {_escaped(name)}"
            lines += [".TP", page, _line(summary)]
    return lines


def _summaries(command: click.Group, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    grouped = getattr(command, "summaries", None)
    if grouped is not None:
        found: dict[str, list[tuple[str, str]]] = grouped(context)
        return found
    rows = []
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        rows.append((name, below.get_short_help_str(1000) if below is not None else ""))
    return {"": rows}


def _escaped(text: str) -> str:
    r"""Return a text in which nothing is a request or an escape of roff's."""
    return text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")


def _line(text: str) -> str:
    """Return a line of running text; one that begins with a dot or a quote is no request."""
    return re.sub(r"^(?=[.'])", r"\\&", _escaped(text))
