"""The options that every command of brokerctl has, wherever they stand on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

DEFAULT_PORT = 5680
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
FORMATTERS = ("table", "tsv", "json", "csv")
#: rabbitmqctl's default for a command that lists.
TIMEOUT_S = 60.0


@dataclass(slots=True)
class Settings:
    """What the options say; the defaults are those of a member on this machine."""

    address: str = DEFAULT_ADDRESS
    user: str = "guest"
    password: str = "guest"
    vhost: str = "/"
    quiet: bool = False
    silent: bool = False
    headers: bool = True
    formatter: str | None = None
    timeout_s: float = TIMEOUT_S
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"Settings(address={self.address!r}, user={self.user!r}, password=***)"

    def addresses(self) -> list[str]:
        """Return host:port of each member that was named."""
        return [_target(part) for part in self.address.split(",") if part.strip()]

    def say(self, text: str) -> None:
        """Say what is being done, unless -q was given; scripts read only results."""
        if not self.quiet and self.formatter in (None, "table"):
            click.echo(text)


def _target(text: str) -> str:
    """Return host:port; rabbitmqctl's name@host names the host."""
    host = text.strip().rpartition("@")[2]
    if host.startswith("["):
        return host if re.search(r"\]:\d+$", host) else f"{host}:{DEFAULT_PORT}"
    if host.count(":") > 1:
        return f"[{host}]:{DEFAULT_PORT}"
    return host if ":" in host else f"{host}:{DEFAULT_PORT}"


def current() -> Settings:
    """Return the settings of this run."""
    found: Settings = click.get_current_context().ensure_object(Settings)
    return found


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(context: click.Context, _: click.Parameter, value: Any) -> None:
        if value is not None:
            setattr(context.ensure_object(Settings), name, value)

    return callback


def _store_password(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is None:
        return
    try:
        text = value.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"cannot read the password file {value}: {error}") from error
    context.ensure_object(Settings).password = text.rstrip("\n")


def _no_headers(context: click.Context, _: click.Parameter, value: bool | None) -> None:
    if value:
        context.ensure_object(Settings).headers = False


def _silent(context: click.Context, _: click.Parameter, value: bool | None) -> None:
    if value:
        settings = context.ensure_object(Settings)
        settings.quiet = settings.silent = True
        settings.headers = False


def options(*, with_environment: bool) -> list[click.Parameter]:
    """Return the options; only the outermost command reads the environment."""
    return [*_login_options(with_environment), *_other_options()]


def _option(*names: str, **settings: Any) -> click.Option:
    # A parameter name of its own: a command may have an argument of the same name.
    parameter = "common_" + names[-1].strip("-").replace("-", "_")
    return click.Option([*names, parameter], expose_value=False, **settings)


def _login_options(with_environment: bool) -> list[click.Parameter]:
    """Return the options that say which member is asked, and as whom."""

    def variable(name: str) -> str | None:
        return name if with_environment else None

    return [
        _option(
            "-n",
            "--node",
            "--address",
            metavar="HOST:PORT",
            envvar=variable("BROKERD_ADDRESS"),
            show_envvar=with_environment,
            callback=_store("address"),
            help=f"The member's gRPC port; several, comma-separated, are asked together "
            f"[default: {DEFAULT_ADDRESS}].",
        ),
        _option(
            "--user",
            envvar=variable("BROKERD_USER"),
            show_envvar=with_environment,
            callback=_store("user"),
            help="User name [default: guest].",
        ),
        _option(
            "--password",
            envvar=variable("BROKERD_PASSWORD"),
            show_envvar=with_environment,
            callback=_store("password"),
            help="Its password [default: guest].",
        ),
        _option(
            "--password-file",
            type=click.Path(path_type=Path),
            callback=_store_password,
            help="File that holds the password.",
        ),
        _option(
            "--ca-file",
            callback=_store("ca_file"),
            help="Talk TLS and trust the authority in this PEM file.",
        ),
    ]


def _other_options() -> list[click.Parameter]:
    """Return the options that say what is meant, and how the answer is shown."""
    return [
        _option(
            "-p",
            "--vhost",
            metavar="VHOST",
            callback=_store("vhost"),
            help="Virtual host [default: /].",
        ),
        _option(
            "-t",
            "--timeout",
            type=click.FloatRange(min=0.1, max=86_400),
            metavar="SECONDS",
            callback=_store("timeout_s"),
            help=f"Give up after this time [default: {TIMEOUT_S:g}].",
        ),
        _option(
            "--formatter",
            type=click.Choice([*FORMATTERS, "pretty_table"]),
            callback=_store("formatter"),
            help="Default: table on a terminal, tsv elsewhere.",
        ),
        _option(
            "-q",
            "--quiet",
            is_flag=True,
            default=None,
            callback=_store("quiet"),
            help="Print only results.",
        ),
        _option(
            "-s",
            "--silent",
            is_flag=True,
            default=None,
            callback=_silent,
            help="Print only results, without a header line.",
        ),
        _option(
            "--no-table-headers",
            is_flag=True,
            default=None,
            callback=_no_headers,
            help="No header line.",
        ),
    ]


class Command(click.Command):
    """A command that takes the common options behind its name, too."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params = [*self.params, *options(with_environment=False)]
