"""The table of `brokerctl up`: resources with the columns of `kubectl get broker`.

design/operator.md §7.

Rich on a terminal, plain lines elsewhere. For the command line only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import rich.console
import rich.markup
import rich.table

from brokerd_operator.local.cluster import GUEST, LocalCluster
from brokerd_operator.local.environment import ResourceState
from brokerd_operator.local.ports import LOOPBACK

#: Reasons of a BrokerCluster whose members are on their way.
_STARTING = ("", "WaitingForMembers", "WaitingForBroker")
_STYLES = {"True": "green", "False": "red", "Unknown": "yellow"}


def render(states: Sequence[ResourceState]) -> rich.table.Table:
    """The table for a terminal."""
    table = rich.table.Table(box=None, pad_edge=False, header_style="bold")
    for column in ("KIND", "NAME", "READY", "REASON", "MESSAGE"):
        table.add_column(column, overflow="fold" if column == "MESSAGE" else "ellipsis")
    for state in states:
        style = _STYLES.get(state.ready, "dim")
        table.add_row(
            state.kind,
            rich.markup.escape(shown_name(state)),
            f"[{style}]{state.ready or '-'}[/]",
            state.reason or "-",
            rich.markup.escape(state.message.partition("\n")[0]),
        )
    return table


def plain(states: Iterable[ResourceState]) -> list[str]:
    """The table as lines of text."""
    rows = [("KIND", "NAME", "READY", "REASON", "MESSAGE")]
    rows += [
        (
            state.kind,
            shown_name(state),
            state.ready or "-",
            state.reason or "-",
            state.message.partition("\n")[0],
        )
        for state in states
    ]
    return _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side; the last one is as long as it is."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]]
        ).rstrip()
        for row in rows
    ]


def is_waiting(state: ResourceState) -> bool:
    """Whether a resource is not ready only because something else is not."""
    waits = not state.reason or state.reason.startswith("Waiting")
    return waits and not state.is_ready and not state.is_stalled


def progress(states: Iterable[ResourceState], members: Mapping[str, tuple[int, int]]) -> str:
    """One line while BrokerClusters start, in the place of all that waits for them; else empty.

    `members` says of each cluster how many members are ready, and how many there are.
    """
    found = []
    for state in states:
        name = shown_name(state)
        if state.kind != "BrokerCluster" or state.is_ready or state.reason not in _STARTING:
            continue
        ready, count = members.get(name, (0, 0))
        found.append(f"{name} ({ready} of {count} members)" if count else name)
    return f"waiting for {', '.join(found)}" if found else ""


def line(state: ResourceState) -> str:
    """One resource as a line of a log."""
    message = state.message.partition("\n")[0]
    verdict = "ready" if state.is_ready else state.reason or "Pending"
    return f"{state.kind} {shown_name(state)}: {verdict}{': ' if message else ''}{message}"


def addresses(clusters: Mapping[str, LocalCluster], is_open: Callable[[int], bool]) -> list[str]:
    """Where clients and tools find what runs, a row for each cluster, and what to copy.

    Everything listens on loopback only. `is_open` tells whether somebody listens at a port: what
    is switched off is not named.
    """
    rows = [("CLUSTER", "AMQP", "PAGE, HTTP API", "HEALTH, METRICS", "USER", "PASSWORD")]
    rows += [_row(name, cluster, is_open) for name, cluster in clusters.items()]
    lines = _aligned(rows)
    for name, cluster in clusters.items():
        first = cluster.members[0]
        of = f" of {name}" if len(clusters) > 1 else ""
        lines += [
            "",
            f"for clients{of}:",
            f"  export AMQP_URL=amqp://{GUEST}:{GUEST}@{LOOPBACK}:{first.amqp_port}/",
            f"for brokerctl{of} (logs: {cluster.data_dir}/*/{first.log_file.name}):",
            f"  export BROKERD_ADDRESS={LOOPBACK}:{first.grpc_port}",
        ]
    return lines


def _row(
    name: str, cluster: LocalCluster, is_open: Callable[[int], bool]
) -> tuple[str, str, str, str, str, str]:
    """The first member's addresses, and the ports of the others."""
    first, *others = cluster.members
    amqp = ", ".join([f"{LOOPBACK}:{first.amqp_port}", *(f":{m.amqp_port}" for m in others)])
    page = first.ports.management
    return (
        name,
        amqp,
        f"http://{LOOPBACK}:{page}/" if is_open(page) else "-",
        f"http://{LOOPBACK}:{first.http_port}/metrics",
        GUEST,
        GUEST,
    )


def shown_name(state: ResourceState) -> str:
    """The name; with its namespace where that is not the usual one."""
    return state.name if state.namespace == "default" else f"{state.namespace}/{state.name}"
