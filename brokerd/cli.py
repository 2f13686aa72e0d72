"""Command line of the broker: `brokerd serve`, `brokerd health`.

Turns flags, environment and a TOML file into a BrokerConfig and hands it to server/app.py.
"""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import click

from brokerd import __version__, compiled, config, standard_streams

#: sysexits.h: EX_CONFIG, what the user can mend.
EXIT_CONFIG = 78
#: Less than a container's health check may take.
HEALTH_TIMEOUT_S = 4.0
REASON_BYTES_MAX = 4096


def _form() -> str:
    """Say what runs, why that is not the compiled form that lies here, and how to get one."""
    why_python, advice = compiled.why_python(), compiled.advice()
    form = f"{compiled.form()}: {why_python}" if why_python else compiled.form()
    return f"{form}\n{advice}" if advice else form


class CommandLine(click.Group):
    """Says in a sentence that what it prints has no room, or what it was named cannot be read."""

    def main(self, *args: Any, **settings: Any) -> Any:
        """Run a command and end the process with its status."""
        standard_streams.open_closed()
        try:
            return super().main(*args, **settings)
        except OSError as error:
            standard_streams.give_up_output()
            click.echo(f"brokerd: {standard_streams.in_words(error)}", err=True)
            sys.exit(standard_streams.EXIT_IO)


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(
    __version__, prog_name="brokerd", message=f"%(prog)s, version %(version)s, {_form()}"
)
def main() -> None:
    """The brokerd message broker (AMQP 0-9-1 and gRPC)."""


@main.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--data-dir", help="Where the log lies (default: said at start).")
@click.option("--node-name", help="Name of this member (default: brokerd@<host>).")
@click.option("--bind", help="Address of the listeners (default: all, IPv4 and IPv6).")
@click.option("--port-offset", type=int, help="Added to 5672, 5671, 5680, 5690, 15672 and 15692.")
@click.option(
    "--load-definitions",
    metavar="PATH",
    help="Definitions (RabbitMQ's JSON) that are to be there: a file, or a folder of *.json.",
)
@click.option(
    "--skip-unsupported",
    is_flag=True,
    help="Leave out definitions of what is not here (streams, exchanges of plug-ins), log each.",
)
def serve(
    config_file: Path | None,
    data_dir: str | None,
    node_name: str | None,
    bind: str | None,
    port_offset: int | None,
    load_definitions: str | None,
    skip_unsupported: bool,
) -> None:
    """Run one member until SIGTERM or SIGINT.

    Every setting can also be given in the environment as BROKERD_<SECTION>_<KEY>, for example
    BROKERD_COMPAT_PROFILE=rabbitmq-3.10.
    """
    flags: dict[str, dict[str, Any]] = {
        "node": {
            "data_dir": data_dir,
            "name": node_name,
            "bind": bind,
            "port_offset": port_offset,
        },
        "definitions": {
            "path": load_definitions,
            "skip_unsupported": skip_unsupported or None,
        },
    }
    settings = _settings(config_file, flags)
    for name in config.unknown(os.environ):
        click.echo(f"brokerd: {name}: not known to this release, left out", err=True)
    # gRPC writes lines of its own to stderr otherwise, about streams that we handle.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # Imported here: `brokerd --help` must not pay for gRPC.  Nothing of it becomes garbage, and to
    # look for some is a tenth of what the imports cost.
    gc.disable()
    from brokerd.server import app

    gc.freeze()
    gc.enable()
    sys.exit(app.run(settings))


@main.command()
@click.option("--config", "config_file", type=click.Path(path_type=Path), help="TOML file.")
@click.option("--bind", help="As of serve.")
@click.option("--port-offset", type=int, help="As of serve.")
def health(config_file: Path | None, bind: str | None, port_offset: int | None) -> None:
    """Ask the member that these settings are of whether clients are let in.

    Exit status 0 if they are, 1 if not, with the reason: for HEALTHCHECK of a container.
    """
    import http.client

    settings = _settings(config_file, {"node": {"bind": bind, "port_offset": port_offset}})
    host = settings.node.bind
    if host in ("", "0.0.0.0", "::"):
        host = "127.0.0.1"
    # By itself, not by way of a proxy that the environment may name.
    connection = http.client.HTTPConnection(host, settings.port("http"), timeout=HEALTH_TIMEOUT_S)
    try:
        connection.request("GET", "/health/ready")
        answer = connection.getresponse()
        click.echo(answer.read(REASON_BYTES_MAX).decode(errors="replace").strip())
    except (OSError, http.client.HTTPException) as error:
        click.echo(f"{host}, port {settings.port('http')}: {error}")
        sys.exit(1)
    sys.exit(answer.status != http.HTTPStatus.OK)


def _settings(config_file: Path | None, flags: dict[str, dict[str, Any]]) -> config.BrokerConfig:
    try:
        return config.load(config_file, os.environ, flags)
    except config.ConfigError as error:
        click.echo(f"brokerd: {error}", err=True)
        sys.exit(EXIT_CONFIG)
