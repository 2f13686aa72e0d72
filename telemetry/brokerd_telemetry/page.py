"""What the pages of the telemetry are made of: the document, tables, badges.

One file without scripts or addresses of elsewhere; everything that came from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

#: Rows of a table that are shown; of the rest, only the number.
ROWS_SHOWN = 25
_STYLE = Path(__file__).with_name("report.css")


def document(title: str, head: str, sections: Iterable[tuple[str, str, str]], run_id: str) -> bytes:
    """Return a page of sections (key, heading, content) below a header."""
    sections = list(sections)
    links = "".join(f'<a href="#{key}">{escape(name)}</a>' for key, name, _ in sections)
    body = "".join(
        f'<section id="{key}"><h2>{escape(name)}</h2>{content}</section>'
        for key, name, content in sections
    )
    whole = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>brokerd telemetry: {escape(title)}</title>"
        f"<style>{_STYLE.read_text()}</style></head><body>{head}<nav>{links}</nav>"
        f"<main>{body}</main><footer>run {escape(run_id)}, made by the brokerd telemetry "
        "job; the same figures are in the Parquet tables that ledger/CURRENT names.</footer>"
        "</body></html>"
    )
    return whole.encode()


def table(
    heads: Sequence[str],
    lines: Sequence[Sequence[str]],
    raw: Sequence[int] = (),
    right: Sequence[int] = (),
    shown: int = ROWS_SHOWN,
    of: int | None = None,
) -> str:
    """Return a table; raw: columns that are HTML of ours; right: columns of numbers; of: how many
    lines there are in all, None: these.
    """

    def cell(index: int, text: str, tag: str) -> str:
        kind = ' class="n"' if index in right else ""
        is_ours = tag == "td" and index in raw
        # Where there is little room, each cell bears its column's name (report.css).
        name = f' data-h="{escape(heads[index])}"' if tag == "td" else ""
        return f"<{tag}{kind}{name}>{text if is_ours else escape(text)}</{tag}>"

    top = "".join(cell(index, text, "th") for index, text in enumerate(heads))
    body = "".join(
        "<tr>" + "".join(cell(index, text, "td") for index, text in enumerate(line)) + "</tr>"
        for line in lines[:shown]
    )
    more = (len(lines) if of is None else of) - shown
    note = f'<p class="more">and {more:,} more in the table</p>' if more > 0 else ""
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead>{body}</table></div>{note}'


def badge(text: str, kind: str) -> str:
    """Return a word in a colour that means something: good, bad, dim."""
    return f'<span class="badge {kind}">{escape(text)}</span>'


def nothing(text: str) -> str:
    """Return the calm line of a section in which nothing is wrong."""
    return f'<p class="calm">{escape(text)}</p>'


def empty(text: str) -> str:
    """Return the line of a section without data, which says nothing good or bad."""
    return f'<p class="empty">{escape(text)}</p>'
