"""Templates to HTML: everything is escaped, nothing comes from elsewhere, no script runs.

The folder `templates` holds one file for each page, `base.html` around all of them, `tables.html`
in those that show tables, and the style sheet.  For the modules of this folder only.
"""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from brokerd.server.loop.chunks import in_turns
from brokerd.server.management.call import Answer

#: Pieces of a template in one part: each is a word or a line and takes some microseconds.
PIECES = 20
TEMPLATES = Path(__file__).with_name("templates")
#: No inline style and no script, ours or another's; forms ask this member.
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"segment": segment, "bytes": as_bytes, "count": as_count, "rate": as_rate}
    return made


#: Templates by name, compiled.
_loaded: dict[str, jinja2.Template] = {}


def _load(template: str) -> None:
    _loaded[template] = _environment().get_template(template)


async def page(template: str, **values: Any) -> Answer:
    """Return a page, made in turns of the loop; values are what its template names."""
    if template not in _loaded:
        # It is compiled, for 10 ms.
        await asyncio.to_thread(_load, template)
    made = _loaded[template].stream(values)
    made.enable_buffering(PIECES)
    parts = [part async for part in in_turns(made)]
    return Answer(
        text=_readable("".join(parts)),
        content_type="text/html; charset=utf-8",
        headers={"Content-Security-Policy": _POLICY},
    )


def _readable(text: str) -> str:
    """Names of AMQP need not be UTF-8; what is shown must be."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def segment(name: str) -> str:
    """Return a name as it stands in a path."""
    return quote(name.encode("utf-8", "surrogateescape"), safe="")


def as_bytes(size: float | None) -> str:
    """Return a size in a unit that is easy to read."""
    if size is None:
        return "–"
    for unit in _UNITS:
        if size < 1024 or unit == _UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def as_count(value: float | None) -> str:
    """Return a number with its thousands apart, – for none."""
    return "–" if value is None else f"{value:,.0f}".replace(",", "\u202f")


def as_rate(value: float | None) -> str:
    """Return a rate per second."""
    return "–" if value is None else f"{value:,.1f}/s".replace(",", "\u202f")
