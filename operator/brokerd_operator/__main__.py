"""`python -m brokerd_operator`: the operator on Kubernetes."""

from __future__ import annotations

import sys

import click

from brokerd import __version__
from brokerd_operator import settings

#: sysexits.h EX_CONFIG
EXIT_CONFIG = 78


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="brokerd-operator")
def main() -> None:
    """Keep brokerd clusters and their topology as the custom resources ask for.

    Settings come from the environment: BROKERD_OPERATOR_NAMESPACE, _WATCH_NAMESPACES (comma
    separated, * for all), _INSTANCE, _BROKER_IMAGE, _TELEMETRY_IMAGE, _LOG_LEVEL, _LOG_FORMAT,
    _HTTP_PORT. The cluster is the pod's own, or the one of KUBECONFIG.
    """
    try:
        found = settings.load()
    except settings.SettingsError as error:
        print(f"brokerd-operator: {error}", file=sys.stderr)
        sys.exit(EXIT_CONFIG)
    # Imported here: `--help` must not pay for kopf and gRPC.
    from brokerd_operator import app

    sys.exit(app.run(found))


if __name__ == "__main__":
    main()
