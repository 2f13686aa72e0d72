"""`kubectl brokerd …`: the commands, their options and their help (docs/reference/kubectl.md).

Thin: what is decided is in health.py and figures.py. kubectl runs `kubectl-brokerd` of the PATH.
"""

from __future__ import annotations

import contextlib
import functools
import subprocess
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from brokerd import __version__
from brokerd_operator.plugin import connecting, health, member_access, showing
from brokerd_operator.plugin.kubectl import CLUSTERS, Body, Kubectl, KubectlError
from brokerd_operator.plugin.member_access import Access
from brokerd_operator.specs.registry import PLURALS, TOPOLOGY_KINDS

HELP = {"help_option_names": ["-h", "--help"]}
EXIT_NOT_HEALTHY = 1
INTERVAL_S = 2.0
#: What changes something at one member: which one must be said if there are several.
OF_ONE_MEMBER = frozenset(
    {"drain", "revive", "stop_app", "start_app", "eval"}
    | {"set_vm_memory_high_watermark", "set_disk_free_limit"}
)
_NAMES_A_MEMBER = ("-n", "--node", "--address", "--all-members")
BROKERCTL = "from brokerd.ctl.main import main; main()"
_QUEUE_COLUMNS = (
    *("name", "type", "messages_ready", "messages_unacknowledged", "consumers", "state", "leader"),
)

_WHERE = ("kubeconfig", "context", "namespace")


def _common(command: Callable[..., Any]) -> Callable[..., Any]:
    """kubectl's own options, before or behind the command; the command gets a Kubectl."""

    @click.option("--kubeconfig", metavar="FILE", help="As of kubectl.")
    @click.option("--context", metavar="NAME", help="As of kubectl.")
    @click.option("-n", "--namespace", metavar="NAME", help="As of kubectl.")
    @functools.wraps(command)
    def wrapped(*args: Any, **given: Any) -> Any:
        before = click.get_current_context().ensure_object(dict)
        where = {name: given.pop(name) or before.get(name, "") for name in _WHERE}
        return command(Kubectl.find(**where), *args, **given)

    return wrapped


@click.group(name="kubectl brokerd", context_settings=HELP)
@click.option("--kubeconfig", metavar="FILE", help="As of kubectl.")
@click.option("--context", metavar="NAME", help="As of kubectl.")
@click.option("-n", "--namespace", metavar="NAME", help="As of kubectl.")
@click.version_option(__version__, prog_name="kubectl-brokerd")
def brokerd(**where: str | None) -> None:
    """See and administer the BrokerClusters of a Kubernetes, with the rights that kubectl has.

    The options that say which cluster and namespace are meant may stand behind the command, too.
    """
    click.get_current_context().obj = {name: value or "" for name, value in where.items()}


# ---- status and connect -------------------------------------------------------------------------


@brokerd.command()
@click.argument("cluster", required=False)
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="Of all namespaces.")
@click.option("-o", "--output", type=click.Choice(["json"]), help="For programs.")
@_common
def status(kubectl: Kubectl, cluster: str | None, everywhere: bool, output: str | None) -> None:
    """Show how BrokerClusters are: members, volumes, conditions, and resources that are not ready.

    Without CLUSTER: all of the namespace, or of all namespaces (-A). With -A resources of other
    namespaces that use a cluster are shown, too. Ends with status 1 if something is not healthy.
    """
    if cluster is not None:
        found = [kubectl.cluster(cluster)]
    else:
        found = kubectl.items(CLUSTERS, *(["--all-namespaces"] if everywhere else []))
    if not found:
        raise KubectlError("there is no BrokerCluster here (-n names a namespace, -A means all)")
    shown = _looked_at(kubectl, found, everywhere)
    if output == "json":
        click.echo(showing.to_json(shown))
    else:
        out = showing.console()
        for number, item in enumerate(shown):
            if number:
                out.print()
            showing.show_health(out, item)
    if not all(item.is_healthy for item in shown):
        sys.exit(EXIT_NOT_HEALTHY)


def _looked_at(kubectl: Kubectl, clusters: Sequence[Body], everywhere: bool) -> list[health.Health]:
    """What belongs to the clusters is listed once per namespace."""
    kinds = [f"{PLURALS[kind]}.brokerd.io" for kind in TOPOLOGY_KINDS]
    listed: dict[str, Any] = {}
    found = []
    for cluster in clusters:
        namespace = health.text(health.part(cluster, "metadata"), "namespace")
        where = "" if everywhere else namespace
        if where not in listed:
            flags = ["--all-namespaces"] if everywhere else []
            listed[where] = kubectl.items_seen(kinds, *flags, namespace=where)
        labels = ("-l", member_access.selector(cluster))
        pods = kubectl.items_seen(["pods"], *labels, namespace=namespace)
        claims = kubectl.items_seen(["persistentvolumeclaims"], *labels, namespace=namespace)
        resources = listed[where]
        unseen = (*pods.unseen, *claims.unseen, *resources.unseen)
        found.append(
            health.of(
                cluster,
                pods.items,
                claims.items,
                resources.items,
                unseen,
                are_pods_seen=not pods.unseen,
            )
        )
    return found


@brokerd.command()
@click.argument("cluster")
@click.option("--show-password", is_flag=True, help="Print the administrator's password.")
@_common
def connect(kubectl: Kubectl, cluster: str, show_password: bool) -> None:
    """Say how clients reach a BrokerCluster, and where the password is."""
    body = kubectl.cluster(cluster)
    click.echo("\n".join(connecting.lines(body, *_login(kubectl, body, show_password))))


@brokerd.command()
@click.argument("cluster")
@click.option("--member", "-m", metavar="MEMBER", help="Name or ordinal [default: one of those].")
@click.option(
    "--port",
    "local_port",
    type=click.IntRange(1, 65_535),
    metavar="PORT",
    help="On this machine [default: a free one].",
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser.")
@click.option("--show-password", is_flag=True, help="Print the administrator's password.")
@_common
def manage(
    kubectl: Kubectl,
    cluster: str,
    member: str | None,
    local_port: int | None,
    is_opened: bool,
    show_password: bool,
) -> None:
    """Lead to the page for people, and to the HTTP API, until Ctrl-C.

    Any member shows the whole cluster. Ends with status 69 when the member is gone.
    """
    body = kubectl.cluster(cluster)
    namespace = health.text(health.part(body, "metadata"), "namespace")
    wanted = () if member is None else (member,)
    name = member_access.chosen(body, member_access.members(kubectl, body), wanted)[0]
    user, password = _login(kubectl, body, show_password)
    scheme, port = connecting.way_to_page(body)
    line = member_access.forward_command(kubectl, namespace, name, port, local_port)
    ended = threading.Event()
    with member_access.forwarded(line, ended=ended) as local:
        url = f"{scheme}://{member_access.LOOPBACK}:{local}/"
        click.echo("\n".join(connecting.page_lines(body, name, url, user, password)))
        if is_opened and not webbrowser.open(url):
            click.echo("no browser was found (the variable BROWSER can name one)", err=True)
        ended.wait()


def _login(kubectl: Kubectl, cluster: Body, is_wanted: bool) -> tuple[str, str]:
    """User and password of the administrator; empty if they are not to be shown."""
    if not is_wanted:
        return "", ""
    namespace = health.text(health.part(cluster, "metadata"), "namespace")
    login = member_access.secret(kubectl, namespace, member_access.admin_secret(cluster))
    return login.get("username", b"").decode(), login.get("password", b"").decode()


# ---- brokerctl ----------------------------------------------------------------------------------


@brokerd.command()
@click.argument("cluster")
@click.option(
    "--member",
    "-m",
    "members",
    multiple=True,
    metavar="MEMBER",
    help="Name or ordinal; may be repeated [default: all that are ready].",
)
@click.argument("args", nargs=-1, required=True, metavar="-- ARGS...")
@_common
def ctl(kubectl: Kubectl, cluster: str, members: tuple[str, ...], args: tuple[str, ...]) -> None:
    """Run brokerctl against a BrokerCluster, as its administrator.

    Example: kubectl brokerd ctl orders -- list_connections name state

    What acts on one member (drain, stop_app, …) needs --member where there are several.
    """
    sys.exit(run_ctl(kubectl, cluster, members, args))


@brokerd.command()
@click.argument("cluster")
@click.argument("columns", nargs=-1)
@click.option("-p", "--vhost", default="/", show_default=True)
@click.option("--formatter", help="As of brokerctl.")
@_common
def queues(
    kubectl: Kubectl, cluster: str, columns: tuple[str, ...], vhost: str, formatter: str | None
) -> None:
    """List the queues of a vhost: brokerctl list_queues."""
    how = ["--formatter", formatter] if formatter else []
    args = ["list_queues", "--vhost", vhost, *how, "--", *(columns or _QUEUE_COLUMNS)]
    sys.exit(run_ctl(kubectl, cluster, (), args))


@brokerd.command()
@click.argument("cluster")
@click.argument("member")
@_common
def drain(kubectl: Kubectl, cluster: str, member: str) -> None:
    """Put a member (name or ordinal) into maintenance: others lead, its clients are sent away."""
    sys.exit(run_ctl(kubectl, cluster, (member,), ("drain",)))


@brokerd.command()
@click.argument("cluster")
@click.argument("member")
@_common
def revive(kubectl: Kubectl, cluster: str, member: str) -> None:
    """End the maintenance of a member (name or ordinal)."""
    sys.exit(run_ctl(kubectl, cluster, (member,), ("revive",)))


def run_ctl(
    kubectl: Kubectl,
    cluster: str,
    wanted: Sequence[str],
    args: Sequence[str],
    forward: member_access.Forward | None = None,
) -> int:
    """Run brokerctl as a process of its own, so that the way to the members outlives it."""
    with _reached(kubectl, cluster, wanted, forward, args) as access:
        line = [sys.executable, "-c", BROKERCTL, "--ca-file", access.ca_file, *args]
        return subprocess.call(line, env=access.environment())


@contextlib.contextmanager
def _reached(
    kubectl: Kubectl,
    cluster: str,
    wanted: Sequence[str],
    forward: member_access.Forward | None = None,
    args: Sequence[str] = (),
) -> Iterator[Access]:
    body = kubectl.cluster(cluster)
    found = member_access.members(kubectl, body)
    names = member_access.chosen(body, found, wanted)
    verb = next((word for word in args if not word.startswith("-")), "")
    if len(names) > 1 and verb in OF_ONE_MEMBER and not set(args) & set(_NAMES_A_MEMBER):
        raise click.UsageError(
            f"{verb} acts on one member: --member says which ({', '.join(names)})"
        )
    with member_access.opened(kubectl, body, names, forward) as access:
        yield access


# ---- the live view ------------------------------------------------------------------------------


@brokerd.command()
@click.argument("cluster")
@click.option("--once", is_flag=True, help="Two looks, one table.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=INTERVAL_S,
    show_default=True,
    metavar="SECONDS",
)
@click.option("--rows", type=click.IntRange(1, 200), default=20, show_default=True)
@_common
def top(kubectl: Kubectl, cluster: str, once: bool, interval: float, rows: int) -> None:
    """Watch the fullest queues, with rates, and the members, with memory and alarms.

    In place on a terminal; elsewhere one table per interval. Ctrl-C ends it.
    """
    # Imported here: the other commands need no gRPC.
    from brokerd_operator.plugin import watching

    # What cannot be mended by waiting is said at once.
    member_access.chosen(body := kubectl.cluster(cluster), member_access.members(kubectl, body), ())
    show = watching.once if once else watching.follow
    show(cluster, lambda: _reached(kubectl, cluster, ()), showing.console(), interval, rows)
