"""The table of `brokerctl up`: resources with the columns of `kubectl get broker`.

design/operator.md §7.

Rich on a terminal, plain lines elsewhere. For the command line only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

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
    widths = [max(len(row[index]) for row in rows) for index in range(4)]
    return [
        "  ".join([*(row[index].ljust(widths[index]) for index in range(4)), row[4]]).rstrip()
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


def endpoints(name: str, cluster: LocalCluster) -> list[str]:
    """Where clients and tools find a cluster; everything listens on loopback only."""
    lines = [f"{name}: user {GUEST}, password {GUEST}, from this machine only"]
    for member in cluster.members:
        lines.append(
            f"  {member.name}: amqp://{GUEST}:{GUEST}@{LOOPBACK}:{member.amqp_port}/"
            f"  health and metrics http://{LOOPBACK}:{member.http_port}"
            f"  log {member.log_file}"
        )
    first = cluster.members[0]
    lines.append(f"  brokerctl -n {LOOPBACK}:{first.grpc_port} cluster_status")
    return lines


def shown_name(state: ResourceState) -> str:
    """The name; with its namespace where that is not the usual one."""
    return state.name if state.namespace == "default" else f"{state.namespace}/{state.name}"
