"""The reference of the management API, made from its table: a page of its own and Markdown."""

from __future__ import annotations

import html
from collections.abc import Iterable

from brokerd.server.management.call import Answer, Call
from brokerd.server.management.routes import Right, Route

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;"
    "border-bottom:1px solid #8884;vertical-align:top}code{font-size:.9em}"
    ":root{color-scheme:light dark}"
)


def by_path(routes: Iterable[Route]) -> list[Route]:
    """Return the routes in the order of the reference."""
    order = ("GET", "PUT", "POST", "DELETE")
    return sorted(routes, key=lambda route: (route.path, order.index(route.method)))


def markdown(routes: Iterable[Route]) -> str:
    """Return the table of docs/http-api.md."""
    lines = ["| method | path | who | what |", "|---|---|---|---|"]
    for route in by_path(routes):
        cells = (route.method, f"`{route.path}`", route.right.value, route.doc)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page(routes: Iterable[Route]) -> str:
    """Return the page at /api/index.html."""
    rows = "".join(
        f"<tr><td>{route.method}<td><code>{html.escape(route.path)}</code>"
        f"<td>{html.escape(route.right.value)}<td>{html.escape(route.doc)}"
        for route in by_path(routes)
    )
    return (
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>brokerd: HTTP API</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_STYLE}</style><h1>HTTP API</h1>"
        "<p>The API of RabbitMQ's management plugin, as far as brokerd has it.</p>"
        f"<table><tr><th>Method<th>Path<th>Who<th>What{rows}</table></html>"
    )


def routes(endpoints: Iterable[Route]) -> tuple[Route, ...]:
    """Return the routes of the reference of these endpoints."""
    text = page(endpoints)

    async def index(_: Call) -> Answer:
        headers = {
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
            "frame-ancestors 'none'"
        }
        return Answer(text=text, content_type="text/html; charset=utf-8", headers=headers)

    async def redirect(_: Call) -> Answer:
        return Answer(301, text="", headers={"Location": "/api/index.html"})

    return (
        Route("GET", "/api/index.html", Right.ANYONE, index, "This reference"),
        Route("GET", "/api", Right.ANYONE, redirect, "Leads to the reference"),
    )
