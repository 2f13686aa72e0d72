"""Commands that the operator brings to brokerctl: `up`, `plan`, `export` (design/operator.md §14).

Found by the entry points of the distribution; thin shells over `local/`, `reconcile/` and
`sources/`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import click
import rich.console
import rich.live

from brokerd_operator.broker.client import AdminClient, Target
from brokerd_operator.broker.errors import BrokerError
from brokerd_operator.local import dry_run, export_topology, ports, table
from brokerd_operator.local.environment import (
    RUNNING_FILE,
    Environment,
    ResourceState,
    default_data_dir,
)
from brokerd_operator.local.errors import EmbeddedError

#: sysexits.h EX_CONFIG
EXIT_CONFIG = 78
ONCE_TIMEOUT_S = 120.0
PORT_GRPC = 5680
_GUEST = "guest"

_DIRECTORY = click.option(
    "-f",
    "--filename",
    "directory",
    required=True,
    type=click.Path(path_type=Path),
    help="Directory (or file) with resources in YAML or JSON.",
)


#: Of brokerctl, which has it as the default of its own commands, too.
_ADDRESS_VARIABLE = "BROKERD_ADDRESS"
_NODE = click.option(
    "-n",
    "--node",
    "--address",
    metavar="HOST:PORT",
    help=f"A member's gRPC port [default: ${_ADDRESS_VARIABLE}].",
)
_USER = click.option("--user", help="User name [default: guest].")
_PASSWORD = click.option(
    "--password", envvar="BROKERD_PASSWORD", help="Its password [default: guest]."
)


def _chosen() -> Any:
    """What brokerctl's own options say, those before the command; None for another program."""
    return click.get_current_context().find_root().obj


def _named(node: str | None) -> tuple[str, ...]:
    """The members that -n names, behind or before the command, or the variable; () without."""
    chosen = _chosen()
    if chosen is not None:
        if node:
            chosen.node = node
        if chosen.node or os.environ.get(_ADDRESS_VARIABLE):
            return tuple(chosen.addresses())
    node = node or os.environ.get(_ADDRESS_VARIABLE) or ""
    return tuple(_with_port(part.strip()) for part in node.split(",") if part.strip())


def _with_port(address: str) -> str:
    return address if ":" in address else f"{address}:{PORT_GRPC}"


def _target(addresses: tuple[str, ...], user: str | None, password: str | None) -> Target:
    """How a broker is reached: as the options behind the command say, else those before it."""
    chosen = _chosen()
    ca = None
    if chosen is not None and chosen.ca_file:
        ca = Path(chosen.ca_file).read_bytes()
    return Target(
        addresses,
        user or (chosen.user if chosen is not None else _GUEST),
        password or (chosen.password if chosen is not None else _GUEST),
        ca,
        (chosen.server_name or None) if chosen is not None else None,
    )


def _run(work: Callable[[], Coroutine[Any, Any, int]]) -> None:
    try:
        status = asyncio.run(work())
    except (EmbeddedError, BrokerError) as error:
        click.echo(f"brokerctl: {error}", err=True)
        sys.exit(EXIT_CONFIG)
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)


@click.command()
@_DIRECTORY
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where members keep their data.")
@click.option("--once", is_flag=True, help="End when all is ready (status 0) or stalled (1).")
@click.option(
    "--port-offset", type=click.IntRange(0, 16_000), default=0, help="Added to every port."
)
@click.option("-v", "--verbose", is_flag=True, help="Show the log of the operator.")
def up(directory: Path, data_dir: Path | None, once: bool, port_offset: int, verbose: bool) -> None:
    """Run the BrokerClusters of a directory as local processes and apply its other resources.

    Follows changes of the files until SIGINT or SIGTERM; data stays for the next time.
    """
    chosen = _chosen()
    if chosen is not None and chosen.node:
        raise click.UsageError(
            "`up` runs clusters of its own; `plan` compares files with the broker that -n names"
        )
    level = logging.INFO if verbose else logging.ERROR
    logging.basicConfig(level=level, format="%(levelname)s %(name)s %(message)s")
    where = data_dir or default_data_dir(directory)
    _run(lambda: _up(directory, where, once, port_offset))


async def _up(directory: Path, data_dir: Path, once: bool, port_offset: int) -> int:
    console = rich.console.Console()
    say = console.print if console.is_terminal else _echo
    say(f"resources from {directory}, data in {data_dir}")
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    async with Environment(say=say, first_offset=port_offset) as environment:
        await environment.start(directory, data_dir, follow=not once)
        if once:
            work = loop.create_task(_until_settled(environment, console))
        else:
            work = loop.create_task(_follow(environment, console))
        stop = loop.create_task(stopping.wait())
        failed = loop.create_task(environment.failed())
        await asyncio.wait({work, stop, failed}, return_when=asyncio.FIRST_COMPLETED)
        for task in (stop, failed, work):
            if task is not work or not work.done():
                task.cancel()
        if not once or not work.done():
            say("stopping all members")
        await asyncio.gather(work, stop, failed, return_exceptions=True)
        return work.result() if work.done() and not work.cancelled() else 0


def _echo(text: str) -> None:
    click.echo(text)


async def _until_settled(environment: Environment, console: rich.console.Console) -> int:
    status = 0
    try:
        await environment.wait_ready(ONCE_TIMEOUT_S)
    except EmbeddedError as error:
        click.echo(f"brokerctl: {error}", err=True)
        status = 1
    _print(environment, console)
    return status


def _print(environment: Environment, console: rich.console.Console) -> None:
    states = environment.conditions()
    if console.is_terminal:
        console.print(table.render(states))
    else:
        for line in table.plain(states):
            click.echo(line)


async def _follow(environment: Environment, console: rich.console.Console) -> int:
    """Show how it goes: a table in place on a terminal, else a line for each change."""
    endpoints = Endpoints(environment)
    if console.is_terminal:
        with rich.live.Live(console=console, auto_refresh=False) as live:
            async for states in environment.changes():
                progress = _progress(environment, states)
                for line in [] if progress else endpoints.opened():
                    console.print(line, highlight=False, markup=False, soft_wrap=True)
                live.update(_picture(states, progress), refresh=True)
        return 0
    log = Log()
    async for states in environment.changes():
        progress = _progress(environment, states)
        for line in [*log.news(states, progress), *([] if progress else endpoints.opened())]:
            click.echo(line)
        if log.is_complete(states):
            click.echo("all resources are ready; Ctrl-C stops")
    return 0


def _progress(environment: Environment, states: Sequence[ResourceState]) -> str:
    members = {
        name: (len(cluster.ready), len(cluster.members))
        for name, cluster in environment.clusters.items()
    }
    return table.progress(states, members)


def _picture(states: Sequence[ResourceState], progress: str) -> rich.console.RenderableType:
    """The table; while brokers start, what there is to say and one line for all that waits."""
    if not progress:
        return table.render(states)
    told = [state for state in states if not table.is_waiting(state)]
    return rich.console.Group(*([table.render(told)] if told else []), progress)


class Log:
    """What a log has shown of the resources, so that it shows news only."""

    def __init__(self) -> None:
        self._shown: dict[tuple[str, str], str] = {}
        self._progress = ""
        self._was_ready = False

    def news(self, states: Sequence[ResourceState], progress: str) -> list[str]:
        """Lines to write now. While brokers start, what waits is one line and not one each."""
        found = [progress] if progress not in ("", self._progress) else []
        self._progress = progress
        for state in states:
            name, line = (state.kind, table.shown_name(state)), table.line(state)
            if self._shown.get(name) == line or (progress and table.is_waiting(state)):
                continue
            self._shown[name] = line
            found.append(line)
        return found

    def is_complete(self, states: Sequence[ResourceState]) -> bool:
        """Whether all are ready that were not all ready before."""
        was_ready, self._was_ready = self._was_ready, all(state.is_ready for state in states)
        return self._was_ready and not was_ready


class Endpoints:
    """Says where clients connect: when all clusters have started, and again when others have."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._told: tuple[str, ...] = ()

    def opened(self) -> list[str]:
        """The table of addresses, if it is news."""
        meant = {
            name: cluster
            for name, cluster in self._environment.clusters.items()
            if cluster.spec is not None and cluster.spec.members_wanted
        }
        names = tuple(meant)
        is_complete = all(cluster.is_whole for cluster in meant.values())
        if not names or names == self._told or not is_complete:
            return []
        self._told = names
        return table.addresses(meant, lambda port: not ports.is_free(port))


@click.command()
@_DIRECTORY
@click.option("--data-dir", type=click.Path(path_type=Path), help="Data directory of `up`.")
@click.option(
    "--broker",
    "brokers",
    multiple=True,
    metavar="CLUSTER=HOST:PORT",
    help="gRPC address of a running cluster (default: what -n names, else what `up` runs).",
)
@_NODE
@_USER
@_PASSWORD
def plan(
    directory: Path,
    data_dir: Path | None,
    brokers: tuple[str, ...],
    node: str | None,
    user: str | None,
    password: str | None,
) -> None:
    """Show what applying a directory would change in running clusters. Writes nothing.

    Exit status: 0 nothing would change, 2 something would, 1 something is wrong. What it cannot
    tell: rights (RBAC), admission by the API server, pods, storage, network.
    """
    where = data_dir or default_data_dir(directory)
    targets = {
        name: _target((address,), user, password) for name, address in map(_parse_broker, brokers)
    }
    if not targets and (named := _named(node)):
        targets = {dry_run.ONLY_CLUSTER: _target(named, user, password)}
    targets = targets or _running(where)

    async def work() -> int:
        report = await dry_run.run(directory, where, targets)
        for line in report.lines:
            click.echo(line)
        return report.status

    _run(work)


def _parse_broker(text: str) -> tuple[str, str]:
    name, equals, address = text.partition("=")
    if not equals or not address:
        raise click.BadParameter(f"{text}: must be CLUSTER=HOST:PORT", param_hint="--broker")
    return (name if "/" in name else f"default/{name}", _with_port(address))


def _running(data_dir: Path) -> dict[str, Target]:
    """What `brokerctl up` says that it runs."""
    file = data_dir / RUNNING_FILE
    try:
        clusters = json.loads(file.read_text())["clusters"]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError) as error:
        raise click.ClickException(f"{file} cannot be read: {error!r}") from error
    return {
        name: Target(tuple(addresses), "guest", "guest")
        for name, addresses in clusters.items()
        if addresses
    }


@click.command()
@click.option("--broker", metavar="HOST:PORT", help="The same as -n.")
@_NODE
@_USER
@_PASSWORD
@click.option("--cluster", default="broker", show_default=True, help="Name for brokerRef.")
@click.option("--namespace", help="Namespace for the resources (default: none is written).")
@click.option(
    "--definitions",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Read a RabbitMQ definitions file instead of a broker.",
)
def export(
    broker: str | None,
    node: str | None,
    user: str | None,
    password: str | None,
    cluster: str,
    namespace: str | None,
    definitions: Path | None,
) -> None:
    """Write the topology of a broker as resources in YAML.

    Objects that the broker makes itself (amq.* exchanges, exclusive queues), the user that asks and
    secrets are left out; Users refer to a Secret that is to be made.
    """
    named = _named(broker or node) or (f"127.0.0.1:{PORT_GRPC}",)
    target = _target(named, user, password)

    async def work() -> int:
        if definitions is not None:
            objects = export_topology.read_definitions(definitions)
        else:
            client = AdminClient(target)
            try:
                objects, _ = await client.list_topology()
            finally:
                await client.close()
        result = export_topology.to_resources(objects, cluster, namespace, target.username)
        click.echo(result.yaml, nl=False)
        for note in result.notes:
            click.echo(f"note: {note}", err=True)
        return 0

    _run(work)
