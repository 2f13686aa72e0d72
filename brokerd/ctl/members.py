"""`brokerctl` on members: their state, their health, their coming and going."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from brokerd.core.catalog import features
from brokerd.ctl import aside, errors, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

#: How often await_startup and wait ask.
POLL_S = 0.2
#: rabbitmqctl's, where -t is not given.
WAIT_S = 10.0
AWAIT_S = 300.0


def info(client: AdminClient) -> Any:
    """Return who answers."""
    from brokerd.rpc.v1 import admin_pb2

    return client.call("GetInfo", admin_pb2.GetInfoRequest())


def member_status(client: AdminClient) -> Any:
    """Return the members as the asked one sees them."""
    from brokerd.rpc.v1 import admin_pb2

    return client.call("MemberStatus", admin_pb2.MemberStatusRequest())


@click.command(cls=settings.Command)
def ping() -> None:
    """Ask a member whether it answers; status 69 if not."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(
        f"Will ping {chosen.label}. This only checks that the member answers. "
        f"Timeout: {chosen.timeout_s * 1000:.0f} ms."
    )
    with connect(chosen) as client:
        info(client)
    chosen.say("Ping succeeded")


@click.command(cls=settings.Command)
def environment() -> None:
    """Show the configuration a member runs with; secrets are not shown."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f"Application environment of node {chosen.label} ...")
    with connect(chosen) as client:
        found = client.live_rows("configuration")
    output.record(chosen, {row["name"]: row["value"] for row in found})


def _readiness(client: AdminClient) -> str:
    """Return why a member does not serve clients yet, "" if it does."""
    node = info(client).node
    answer = member_status(client)
    own = next((m for m in answer.members if m.name == node), None)
    if own is None or not answer.catalog_leader or not own.caught_up:
        return "it has not caught up with the cluster yet"
    row = client.live_rows("status")[0]
    return "" if row["is_listening"] else "its listeners are closed (start_app opens them)"


def _until_ready(chosen: settings.Settings, timeout_s: float) -> None:
    from brokerd.ctl.client import AdminClient

    problem = ""

    def is_ready() -> bool:
        nonlocal problem
        try:
            with AdminClient(chosen, chosen.addresses()[0]) as client:
                problem = _readiness(client)
        except errors.CtlError as error:
            if error.exit_code not in (errors.EXIT_UNAVAILABLE, errors.EXIT_TEMPORARY):
                raise
            problem = "it does not answer"
        return not problem

    if not _poll(is_ready, timeout_s):
        raise errors.CtlError(
            f"Error: operation await_startup on node {chosen.label} timed out. "
            f"Timeout value used: {timeout_s * 1000:.0f}\n{problem}",
            errors.EXIT_TEMPORARY,
            is_bare=True,
        )


def _poll(is_done: Callable[[], bool], timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while not is_done():
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(POLL_S, left))
    return True


def _given_timeout(chosen: settings.Settings, default_s: float) -> float:
    return default_s if chosen.timeout_s == settings.TIMEOUT_S else chosen.timeout_s


@click.command(cls=settings.Command)
def await_startup() -> None:
    """Wait until a member serves clients, at most as long as --timeout says (status 75)."""
    chosen = settings.current()
    _until_ready(chosen, _given_timeout(chosen, AWAIT_S))


@click.command(cls=settings.Command)
@click.argument("pidfile", required=False)
@click.option("-P", "--pid", type=int, help="Wait for this process.")
def wait(pidfile: str | None, pid: int | None) -> None:
    """Wait until the member whose process id is given, or stands in PIDFILE, serves clients."""
    chosen = settings.current()
    timeout_s = _given_timeout(chosen, WAIT_S)
    if pidfile is None and pid is None:
        raise click.UsageError("No pid or pidfile specified")
    if pid is None:
        assert pidfile is not None
        chosen.say(f"Waiting for pid file '{pidfile}' to appear")
        pid = _pid_of(chosen, Path(pidfile), timeout_s)
        chosen.say(f"pid is {pid}")
    chosen.say(f"Waiting for node '{chosen.label}' while OS process '{pid}' is running")
    if not _is_running(pid):
        raise errors.CtlError("process_not_running", errors.EXIT_UNAVAILABLE)
    _until_ready(chosen, timeout_s)
    chosen.say(f"Applications 'rabbit_and_plugins' are running on node '{chosen.label}'")


def _pid_of(chosen: settings.Settings, file: Path, timeout_s: float) -> int:
    found = 0

    def is_there() -> bool:
        nonlocal found
        try:
            found = int(file.read_text().strip() or "0")
        except (OSError, ValueError):
            return False
        return found > 0

    if not _poll(is_there, timeout_s):
        raise errors.CtlError(
            f"Error: operation wait on node {chosen.label} timed out. "
            f"Timeout value used: {timeout_s * 1000:.0f}",
            errors.EXIT_TEMPORARY,
            is_bare=True,
        )
    return found


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@click.command(cls=settings.Command)
@click.argument("count", type=click.IntRange(min=1))
def await_online_nodes(count: int) -> None:
    """Wait until so many members are up."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    timeout_s = _given_timeout(chosen, AWAIT_S)
    chosen.say(f"Will wait for at least {count} nodes to join the cluster of {chosen.label} ...")
    with connect(chosen) as client:

        def are_up() -> bool:
            running = [member for member in member_status(client).members if member.running]
            return len(running) >= count

        if not _poll(are_up, timeout_s):
            raise errors.CtlError(f"timed out waiting for {count} members", errors.EXIT_TEMPORARY)


@click.command(cls=settings.Command)
def node_health_check() -> None:
    """Check that a member serves clients, has no alarms and no damaged replicas."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say(f"Timeout: {chosen.timeout_s:g} seconds ...")
    chosen.say(f"Checking health of node {chosen.label} ...")
    with connect(chosen) as client:
        problem = _readiness(client)
        alarms = client.live_rows("status")[0]["alarms"]
        damaged = [
            row["name"] for row in client.live_rows("groups") if row["damaged"] or row["error"]
        ]
        kept = [aside.in_words(row) for row in aside.alarms(client)]
    if not problem and alarms:
        problem = f"resource alarm(s) in effect: {', '.join(alarms)}"
    if not problem and damaged:
        problem = f"damaged: {', '.join(damaged)}"
    if kept:
        problem = "; ".join(filter(None, (problem, *kept)))
    if problem:
        raise errors.CtlError(f"health check failed. {problem}", errors.EXIT_SOFTWARE)
    chosen.say("Health check passed")


@click.command(cls=settings.Command)
def list_feature_flags() -> None:
    """List what the members can do, in the form of RabbitMQ's feature flags."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    chosen.say("Listing feature flags ...")
    with connect(chosen) as client:
        who = info(client)
    states = {name.replace("-", "_"): "enabled" for name in who.features}
    states |= {flag.name: "enabled" if flag.enabled else "disabled" for flag in who.feature_flags}
    rows = [{"name": name, "state": state} for name, state in sorted(states.items())]
    output.rows(chosen, ("name", "state"), rows, streams=False)


@click.command(cls=settings.Command)
@click.argument("flag")
def enable_feature_flag(flag: str) -> None:
    """Enable FLAG, or all, once every member has been upgraded; it stays enabled for good.

    What RabbitMQ calls a feature flag and brokerd always does is accepted; others, of streams say,
    are refused with status 64, as RabbitMQ refuses what it does not know.
    """
    from brokerd.ctl.client import connect
    from brokerd.rpc.v1 import admin_pb2

    chosen = settings.current()
    if not flag:
        raise errors.BadArgument("feature_flag cannot be an empty string.")
    chosen.say(
        "Enabling all feature flags ..." if flag == "all" else f'Enabling feature flag "{flag}" ...'
    )
    with connect(chosen) as client:
        ours = [known.name for known in info(client).feature_flags]
        if flag == "all" or flag in ours:
            names = ours if flag == "all" else [flag]
            client.call("EnableFeatures", admin_pb2.EnableFeaturesRequest(names=names))
        elif flag not in features.OF_RABBITMQ:
            raise errors.CtlError(
                f"This feature flag is not supported by node {chosen.label}", errors.EXIT_USAGE
            )
