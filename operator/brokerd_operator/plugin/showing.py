"""What the plugin's commands print: tables of rich, and JSON for programs.

Names and messages come from elsewhere and may hold anything: what would steer a terminal is shown
in words instead.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Sequence

import rich.console
import rich.table
import rich.text

from brokerd_operator.plugin.figures import COUNTERS, MemberLine, QueueLine, Screen
from brokerd_operator.plugin.health import BOUND, READY, Finding, Health

#: Where there is no terminal, so that lines are not broken at 80.
PLAIN_WIDTH = 200
#: Resources that are not Ready; the rest is counted.
FINDINGS_MAX = 50
_GOOD, _BAD, _NOTE = "green", "red", "yellow"


def console() -> rich.console.Console:
    """Standard output, as wide as it is."""
    found = rich.console.Console(highlight=False, markup=False, emoji=False)
    if not found.is_terminal:
        found.width = PLAIN_WIDTH
    return found


def clean(value: object) -> str:
    """A text of one line without control characters."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode()
        for char in str(value)
    )


def _table(*columns: str) -> rich.table.Table:
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _cell(value: object, style: str = "") -> rich.text.Text:
    return rich.text.Text(clean(value) or "-", style=style)


# ---- status -------------------------------------------------------------------------------------


def to_json(found: Sequence[Health]) -> str:
    """All clusters; the shape is in docs/reference/kubectl.md."""
    bodies = [_camelled(dataclasses.asdict(item)) for item in found]
    return json.dumps({"clusters": bodies}, indent=2, ensure_ascii=False)


def _camelled(value: object) -> object:
    if isinstance(value, dict):
        return {_camel(key): _camelled(item) for key, item in value.items()}
    return [_camelled(item) for item in value] if isinstance(value, list | tuple) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def show_health(out: rich.console.Console, found: Health) -> None:
    """One cluster at a glance."""
    verdict = "hibernated" if found.is_resting else "healthy"
    style = _GOOD if found.is_healthy else _BAD
    title = rich.text.Text(f"BrokerCluster {clean(found.namespace)}/{clean(found.name)}: ")
    title.append(verdict if found.is_healthy else "NOT HEALTHY", style=f"bold {style}")
    out.print(title)
    facts = rich.table.Table.grid(padding=(0, 2))
    for label, value in _facts(found):
        facts.add_row(f"  {label}", _cell(value))
    out.print(facts)
    if found.conditions:
        out.print()
        out.print(_findings(found.conditions, "CONDITION", lambda item: item.type))
    if found.members:
        out.print()
        out.print(_members(found))
    if found.volumes:
        out.print()
        out.print(_volumes(found))
    if found.topology:
        out.print()
        shown = found.topology[:FINDINGS_MAX]
        out.print(_findings(shown, "RESOURCE", lambda item: item.resource))
        if len(found.topology) > len(shown):
            out.print(f"and {len(found.topology) - len(shown)} more")
    for reason in found.unseen:
        out.print(rich.text.Text(f"not looked at: {clean(reason)}", style=_NOTE))


def _facts(found: Health) -> list[tuple[str, str]]:
    bad = len({item.resource for item in found.topology if item.is_bad})
    topology = f"{found.topology_total - bad} of {found.topology_total} ready"
    endpoints = ", ".join(f"{name} {address}" for name, address in found.endpoints.items())
    facts = [
        ("state", f"{found.reason}: {found.message}"),
        ("members", f"{found.ready} of {found.wanted} ready"),
        ("version", found.version),
        ("image", found.image),
        ("endpoints", endpoints),
        ("certificates", found.certificates),
        ("resources", topology if found.topology_total else "none"),
    ]
    return [(label, value) for label, value in facts if value]


def _findings(
    found: Iterable[Finding], title: str, label: Callable[[Finding], str]
) -> rich.table.Table:
    table = _table(title, "STATUS", "REASON", "MESSAGE")
    for item in found:
        style = _BAD if item.is_bad else _NOTE
        status = item.status if title == "CONDITION" else f"{item.type}={item.status}"
        table.add_row(
            _cell(label(item)), _cell(status, style), _cell(item.reason), _cell(item.message)
        )
    return table


def _members(found: Health) -> rich.table.Table:
    table = _table("MEMBER", "STATE", "RESTARTS", "NODE", "NOTE")
    for item in found.members:
        style = _GOOD if item.state == READY else _BAD
        table.add_row(
            _cell(item.name),
            _cell(item.state, style),
            _cell(item.restarts),
            _cell(item.node),
            _cell(item.note),
        )
    return table


def _volumes(found: Health) -> rich.table.Table:
    table = _table("VOLUME", "SIZE", "PHASE", "NOTE")
    for item in found.volumes:
        style = _GOOD if item.phase == BOUND else _BAD
        table.add_row(
            _cell(item.name), _cell(item.size), _cell(item.phase, style), _cell(item.note)
        )
    return table


# ---- top ----------------------------------------------------------------------------------------


def top(title: str, found: Screen, trouble: str = "") -> rich.console.Group:
    """Queues and members; `trouble` says why they are not newer."""
    head = rich.text.Text(clean(title), style="bold")
    head.append(
        f"  {found.queues_total} queues, {found.messages_total} messages; a second: "
        + ", ".join(
            f"{_rate(rate)} {word}"
            for word, rate in zip(("in", "out", "acknowledged"), found.rates_total, strict=True)
        ),
        style="not bold",
    )
    parts: list[rich.console.RenderableType] = [head]
    if trouble:
        parts.append(rich.text.Text(clean(trouble), style=_BAD))
    parts += [rich.text.Text(), _member_lines(found.members), rich.text.Text()]
    parts.append(_queue_lines(found.queues))
    if found.queues_total > len(found.queues):
        parts.append(rich.text.Text(f"and {found.queues_total - len(found.queues)} more"))
    return rich.console.Group(*parts)


def _member_lines(found: Iterable[MemberLine]) -> rich.table.Table:
    table = _table("MEMBER", "STATE", "LEADS", "REPLICAS", "MEMORY", "DISK FREE", "ALARMS")
    for item in found:
        style = _GOOD if item.state == "running" else _BAD
        share = f"{_size(item.memory_used)} of {_size(item.memory_limit)}"
        table.add_row(
            _cell(item.name),
            _cell(item.state, style),
            _cell(item.leaders),
            _cell(item.replicas),
            _cell(share if item.memory_limit else "-"),
            _cell(_size(item.disk_free) if item.disk_free else "-"),
            _cell(", ".join(item.alarms), _BAD),
        )
    return table


def _queue_lines(found: Iterable[QueueLine]) -> rich.table.Table:
    table = _table(
        "VHOST",
        "QUEUE",
        "TYPE",
        "STATE",
        "LEADER",
        "READY",
        "UNACKED",
        "CONSUMERS",
        "IN/S",
        "OUT/S",
        "ACK/S",
    )
    for column in table.columns[-3 - len(COUNTERS) :]:
        column.justify = "right"
    for item in found:
        style = "" if item.state == "running" else _BAD
        figures = (item.ready, item.unacknowledged, item.consumers, *map(_rate, item.rates))
        names = (item.vhost, item.name, item.type)
        table.add_row(
            *map(_cell, names), _cell(item.state, style), _cell(item.leader), *map(_cell, figures)
        )
    return table


def _rate(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
