"""`python -m brokerd_operator`: the operator on Kubernetes."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator

import click

from brokerd import __version__, extras
from brokerd_operator import settings

#: sysexits.h EX_CONFIG
EXIT_CONFIG = 78
#: Python looks for cycles each time that 700 more objects were made than freed, and looks at all
#: there are each time that they have grown by a quarter: with thousands of resources that was a
#: tenth of the processor's time. There are few cycles.
GC_THRESHOLDS = (25_000, 50, 100)


@contextlib.contextmanager
def _the_extra() -> Iterator[None]:
    """End with a sentence where an import needs what the extra `operator` brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        print(
            f"brokerd-operator: needs the Python module {error.name}, which is not installed; "
            f"install it with: {extras.how_to_install('operator')}",
            file=sys.stderr,
        )
        sys.exit(EXIT_CONFIG)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, invoke_without_command=True)
@click.version_option(__version__, prog_name="brokerd-operator")
@click.pass_context
def main(context: click.Context) -> None:
    """Keep brokerd clusters and their topology as the custom resources ask for.

    Settings come from the environment: BROKERD_OPERATOR_NAMESPACE, _WATCH_NAMESPACES (comma
    separated, * for all), _INSTANCE, _BROKER_IMAGE, _TELEMETRY_IMAGE, _LOG_LEVEL, _LOG_FORMAT,
    _HTTP_PORT. The cluster is the pod's own, or the one of KUBECONFIG.
    """
    if context.invoked_subcommand is not None:
        return
    try:
        found = settings.load()
    except settings.SettingsError as error:
        print(f"brokerd-operator: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    # Imported here: `--help` must not pay for kopf and gRPC. What the imports make stays, and
    # nothing of it is garbage.
    gc.disable()
    with _the_extra():
        from brokerd_operator import app
    gc.freeze()
    gc.enable()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.exit(app.run(found))


@main.command("selftest")
@click.option("--rights", default="[]", help="JSON list of {namespace, rules} that are needed.")
@click.option("--ready-url", default="", help="URL that answers 200 when the operator is ready.")
@click.option("--patience", default=60.0, help="Seconds to wait for what may still come.")
def selftest_command(rights: str, ready_url: str, patience: float) -> None:
    """Is the installation whole: API, kinds, rights, operator? What `helm test` runs."""
    with _the_extra():
        from brokerd_operator import selftest

    try:
        needed = selftest.rights(rights)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--rights") from error
    sys.exit(selftest.run(needed, ready_url, patience))


@main.command("uninstall-hook")
@click.option("--binding", required=True, help="Name of the RoleBinding.")
@click.option("--namespaces", required=True, help="Where it lies, comma separated.")
@click.option("--cluster-role", default="", help="Name of a ClusterRole that goes with them.")
@click.option("--until-stopped", is_flag=True, help="Go on looking until a signal ends it.")
def let_go_command(binding: str, namespaces: str, cluster_role: str, until_stopped: bool) -> None:
    """Let go of RoleBindings that are being deleted: while a release is, and at the end."""
    with _the_extra():
        from brokerd_operator.sources import uninstall_hook

    where = tuple(namespaces.split(","))
    if until_stopped:
        sys.exit(uninstall_hook.until_stopped(binding, where))
    sys.exit(uninstall_hook.run(binding, where, cluster_role))


if __name__ == "__main__":
    main()
