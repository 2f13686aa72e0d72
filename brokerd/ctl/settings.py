"""The options that every command of brokerctl has, wherever they stand on the command line."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from brokerd import secret_files
from brokerd.ctl import errors

DEFAULT_PORT = 5680
DEFAULT_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
GUEST = "guest"
FORMATTERS = ("table", "tsv", "json", "csv", "erlang", "pretty_table", "yaml")
#: Those that -o knows, as kubectl has it.
OUTPUTS = ("table", "json", "yaml")
#: With these a program reads the output: no banner.
_FOR_PROGRAMS = ("tsv", "json", "csv", "yaml")
#: rabbitmqctl's default for a command that lists.
TIMEOUT_S = 60.0
#: A day; what "infinity" means.
TIMEOUT_S_MAX = 86_400.0
#: name@host=HOST:PORT of each member, comma-separated: for scripts that name Erlang nodes.
NODES_VARIABLE = "BROKERD_NODES"
SERVER_NAME_VARIABLE = "BROKERD_SERVER_NAME"
#: Names of links to this program that scripts know it by.
STAND_INS = ("rabbitmqctl", "rabbitmq-queues")
HELP = ["-h", "--help", "-?"]


def is_stand_in() -> bool:
    """Tell whether this program was called as rabbitmqctl or its like, by a link of that name."""
    return Path(sys.argv[0]).name in STAND_INS


# Beside a member, in its container, its own environment says where it is and how to log in: what
# Kubernetes' users type, `kubectl exec POD -- brokerctl status`, works as rabbitmqctl does there.


def _address() -> str:
    """Return the address of BROKERD_ADDRESS, else of the member here."""
    # Certificates name no addresses of a loopback.
    host = "localhost" if _authority() else "127.0.0.1"
    return os.environ.get("BROKERD_ADDRESS") or f"{host}:{DEFAULT_PORT}"


def _user() -> str:
    return os.environ.get("BROKERD_AUTH_ADMIN_USER") or GUEST


def _password() -> str:
    """Return the administrator's password; guest's where there is none, or it is not for us."""
    try:
        return secret_files.read(Path(os.environ["BROKERD_AUTH_ADMIN_PASSWORD_FILE"]))
    except (KeyError, secret_files.SecretFileError):
        return GUEST


def _authority() -> str:
    """Return the file of the authority of a member that serves TLS."""
    is_served = os.environ.get("BROKERD_TLS_CERT_FILE")
    return os.environ.get("BROKERD_TLS_CA_FILE", "") if is_served else ""


@dataclass(slots=True)
class Settings:
    """What the options say; the defaults are those of a member on this machine."""

    address: str = field(default_factory=_address)
    #: What -n says, behind or before the command; "" if it does not.
    node: str = ""
    user: str = field(default_factory=_user)
    password: str = field(default_factory=_password)
    vhost: str = "/"
    quiet: bool = False
    silent: bool = False
    headers: bool = True
    formatter: str | None = None
    timeout_s: float = TIMEOUT_S
    ca_file: str = field(default_factory=_authority)
    #: Whom the certificate must name, where that is not the address: at a forwarded port.
    server_name: str = field(default_factory=lambda: os.environ.get(SERVER_NAME_VARIABLE, ""))
    #: Called as rabbitmqctl: a terminal gets what scripts get.
    stands_in: bool = field(default_factory=is_stand_in)

    def __repr__(self) -> str:
        return f"Settings(address={self.address!r}, user={self.user!r}, password=***)"

    def addresses(self) -> list[str]:
        """Return host:port of each member that was named."""
        named = self.node or self.address
        port = self.address.rpartition(":")[2]
        nodes = _nodes()
        return [
            nodes.get(part.strip()) or _target(part, port if port.isdigit() else "")
            for part in named.split(",")
            if part.strip()
        ]

    @property
    def label(self) -> str:
        """Return what messages call the member."""
        return self.node or self.address

    def formatter_now(self) -> str:
        """Return "pretty" for a person's table, else table, json, csv, erlang or yaml."""
        if self.formatter == "pretty_table":
            return "pretty"
        if self.formatter in (None, "table"):
            return "pretty" if sys.stdout.isatty() and not self.stands_in else "table"
        return "table" if self.formatter == "tsv" else str(self.formatter)

    def say(self, text: str) -> None:
        """Say what is being done, unless -q was given or a program reads the output."""
        if not self.quiet and self.formatter not in _FOR_PROGRAMS:
            click.echo(text)


def _nodes() -> dict[str, str]:
    """Return the addresses of nodes by name, of BROKERD_NODES."""
    pairs = os.environ.get(NODES_VARIABLE, "").split(",")
    found = (pair.partition("=") for pair in pairs if "=" in pair)
    return {name.strip(): address.strip() for name, _, address in found}


def _target(text: str, port: str = "") -> str:
    """Return host:port; rabbitmqctl's name@host names the host, the port is that of the default."""
    _, at, host = text.strip().rpartition("@")
    wanted = port if at and port else str(DEFAULT_PORT)
    if host.startswith("["):
        return host if re.search(r"\]:\d+$", host) else f"{host}:{wanted}"
    if host.count(":") > 1:
        return f"[{host}]:{wanted}"
    return host if ":" in host else f"{host}:{wanted}"


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
    context.ensure_object(Settings).password = password_in(value)


def ask(question: str, declined: str) -> None:
    """Ask at the terminal; a "no" ends the command, which says what did not happen."""
    if not click.confirm(question, err=True):
        click.echo(declined, err=True)
        raise click.Abort


def password_in(file: Path) -> str:
    """Return the password that a file holds ("-": standard input); raises CtlError."""
    try:
        return secret_files.read(Path("/dev/stdin") if str(file) == "-" else file)
    except secret_files.SecretFileError as error:
        raise errors.CtlError(f"--password-file: {error}", errors.EXIT_IO) from error


def _store_timeout(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    try:
        seconds = TIMEOUT_S_MAX if value == "infinity" else float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= TIMEOUT_S_MAX:
        raise click.UsageError(f"Invalid options for this command:\n{option.opts[0]} : {value}")
    context.ensure_object(Settings).timeout_s = seconds


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
            callback=_store("node"),
            help="The member's gRPC port; several, comma-separated, are asked together; "
            f"name@host is a node of {NODES_VARIABLE}, else the host "
            f"[default: $BROKERD_ADDRESS, {DEFAULT_ADDRESS}].",
        ),
        _option(
            "--user",
            envvar=variable("BROKERD_USER"),
            show_envvar=with_environment,
            callback=_store("user"),
            help="User name [default: guest; in a member's container its administrator].",
        ),
        _option(
            "--password",
            envvar=variable("BROKERD_PASSWORD"),
            show_envvar=with_environment,
            callback=_store("password"),
            help="Its password [default: guest; in a member's container the administrator's].",
        ),
        _option(
            "--password-file",
            type=click.Path(path_type=Path),
            callback=_store_password,
            help="File that holds the password; - is standard input.",
        ),
        _option(
            "--ca-file",
            callback=_store("ca_file"),
            help="Talk TLS and trust the authority in this PEM file [default in the container of a "
            "member that serves TLS: its own].",
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
            metavar="SECONDS",
            callback=_store_timeout,
            help=f"Give up after this time [default: {TIMEOUT_S:g}].",
        ),
        _option(
            "--formatter",
            type=click.Choice(FORMATTERS),
            callback=_store("formatter"),
            help="How results are shown [default: table: pretty at a terminal, else tabs].",
        ),
        _option(
            "-o",
            "--output",
            type=click.Choice(OUTPUTS),
            callback=_store("formatter"),
            help="The same, for short.",
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
        _option("-l", "--longnames", is_flag=True, hidden=True),
        _option("--erlang-cookie", hidden=True),
    ]


class Command(click.Command):
    """A command that takes the common options behind its name, too."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("context_settings", {"help_option_names": HELP})
        super().__init__(*args, **settings)
        own = {name for option in self.params for name in option.opts}
        # An option of the command's own hides a common one (list_user_limits --user).
        common = options(with_environment=False)
        self.params = [*self.params, *(item for item in common if not own & set(item.opts))]

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; a bad argument is shown with where the usage is."""
        try:
            return super().invoke(ctx)
        except errors.BadArgument as error:
            error.context = ctx
            raise
