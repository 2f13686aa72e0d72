"""Entry point of brokerctl: finds commands by name and imports only the one that runs.

Commands of other distributions come by entry points of the group `brokerctl.commands`; a missing
dependency of theirs is said in a sentence.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Any

import click

from brokerd import __version__
from brokerd.ctl import errors
from brokerd.ctl.settings import Settings, options

#: Command name (as rabbitmqctl has it) to "module:function" in this package.
COMMANDS = {
    name: f"brokerd.ctl.{module}:{function}"
    for module, commands in {
        "members": (
            "status",
            "ping",
            "cluster_status",
            "environment",
            "await_startup",
            "drain",
            "safe_to_stop",
            "set_vm_memory_high_watermark",
            "set_disk_free_limit",
            "close_connection",
        ),
        "listings": (
            "list_queues",
            "list_exchanges",
            "list_bindings",
            "list_connections",
            "list_channels",
            "list_consumers",
            "list_links",
            "list_groups",
            "list_users",
            "list_vhosts",
            "list_permissions",
            "list_user_permissions",
            "list_topic_permissions",
            "list_policies",
            "list_operator_policies",
            "list_parameters",
        ),
        "access": (
            "add_user",
            "delete_user",
            "change_password",
            "set_user_tags",
            "authenticate_user",
            "add_vhost",
            "delete_vhost",
            "set_permissions",
            "clear_permissions",
            "set_topic_permissions",
            "clear_topic_permissions",
        ),
        "objects": (
            "set_policy",
            "clear_policy",
            "set_operator_policy",
            "clear_operator_policy",
            "set_parameter",
            "clear_parameter",
            "delete_queue",
            "purge_queue",
        ),
        "log": ("wal",),
    }.items()
    for name in commands
    for function in [name]
}
ENTRY_POINTS = "brokerctl.commands"
#: Extras of the distribution that bring a package's dependencies.
EXTRAS = {"brokerd_operator": "operator", "brokerd_telemetry": "telemetry"}


class LazyGroup(click.Group):
    """A group that imports a command when it is used; help lists the names of all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names."""
        return sorted({*COMMANDS, *_foreign()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command of ours or of an entry point."""
        location = COMMANDS.get(cmd_name)
        if location is not None:
            module, _, function = location.partition(":")
            found: click.Command = getattr(importlib.import_module(module), function)
            return found
        entry_point = _foreign().get(cmd_name)
        return None if entry_point is None else _load(cmd_name, entry_point)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List ours with their help, those of others by name only: they may be slow to import."""
        ours = []
        for name in sorted(COMMANDS):
            command = self.get_command(ctx, name)
            if command is not None:
                ours.append((name, command.get_short_help_str(formatter.width - 6 - 30)))
        with formatter.section("Commands"):
            formatter.write_dl(ours)
        foreign = _foreign()
        if foreign:
            with formatter.section("Commands of other parts (brokerctl COMMAND --help)"):
                formatter.write_dl(
                    [(name, f"from {point.module}") for name, point in sorted(foreign.items())]
                )

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest what may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), 3)
            if not close:
                raise
            text = f"{error.message} Did you mean {' or '.join(close)}?"
            raise click.UsageError(text, ctx) from error


def _foreign() -> dict[str, importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in found if point.name not in COMMANDS}


def _load(name: str, entry_point: importlib.metadata.EntryPoint) -> click.Command:
    try:
        command: click.Command = entry_point.load()
    except ImportError as error:
        package = entry_point.module.partition(".")[0]
        extra = EXTRAS.get(package)
        advice = f"; install it with: pip install 'brokerd[{extra}]'" if extra else ""
        raise errors.CtlError(
            f"'{name}' needs the Python module {error.name or package}, which is not installed"
            f"{advice}",
            errors.EXIT_UNAVAILABLE,
        ) from error
    return command


@click.group(
    cls=LazyGroup,
    params=options(with_environment=True),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="brokerctl")
@click.pass_context
def brokerctl(context: click.Context) -> None:
    """Administer brokerd: the verbs and output of rabbitmqctl where the meaning is the same.

    Options may stand before or behind the command.
    """
    context.ensure_object(Settings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and end the process with its status."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status (errors.py)."""
    try:
        status: Any = brokerctl.main(
            args=None if arguments is None else list(arguments),
            prog_name="brokerctl",
            standalone_mode=False,
        )
    except errors.CtlError as error:
        click.echo(f"Error: {error}", err=True)
        return error.exit_code
    except click.UsageError as error:
        error.show()
        return errors.EXIT_USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        # Whoever read our output has enough.
        sys.stderr.close()
        return errors.EXIT_OK
    return status if isinstance(status, int) else errors.EXIT_OK
