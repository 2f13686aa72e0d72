"""Entry point of brokerctl: finds commands by name and imports only the one that runs.

Commands of other distributions come by entry points of the group `brokerctl.commands`; a missing
dependency of theirs is said in a sentence.  Called as rabbitmqctl (a link of that name) it keeps to
rabbitmqctl's ways at a terminal, too.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from brokerd import __version__, extras, standard_streams
from brokerd.ctl import command_groups, errors, settings
from brokerd.ctl.settings import Settings, options

#: Module of this package, and its commands as rabbitmqctl has them.
_MODULES: dict[str, tuple[str, ...]] = {
    "members": (
        "ping",
        "environment",
        "await_startup",
        "wait",
        "await_online_nodes",
        "node_health_check",
        "list_feature_flags",
        "enable_feature_flag",
    ),
    "lifecycle": (
        "drain",
        "revive",
        "safe_to_stop",
        "forget_cluster_node",
        "add_cluster_node",
    ),
    "reports": ("status", "cluster_status", "report", "memory_breakdown"),
    "runtime": (
        "set_cluster_name",
        "set_vm_memory_high_watermark",
        "set_disk_free_limit",
        "close_connection",
        "close_all_connections",
        "stop_app",
        "start_app",
        "trace_on",
        "trace_off",
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
        "list_user_topic_permissions",
        "list_policies",
        "list_operator_policies",
        "list_parameters",
        "list_unresponsive_queues",
    ),
    "access": (
        "add_user",
        "delete_user",
        "change_password",
        "clear_password",
        "set_user_tags",
        "authenticate_user",
        "add_vhost",
        "delete_vhost",
        "set_permissions",
        "clear_permissions",
        "set_topic_permissions",
        "clear_topic_permissions",
    ),
    "limits": (
        "set_vhost_limits",
        "clear_vhost_limits",
        "list_vhost_limits",
        "set_user_limits",
        "clear_user_limits",
        "list_user_limits",
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
    "browse": ("browse",),
    "messages": ("publish", "get"),
    "declarations": ("declare", "bind", "unbind"),
    "triage": ("triage",),
    "queue_jobs": (
        "redrive",
        "move",
        "delete_messages",
        "list_queue_jobs",
        "stop_queue_job",
    ),
    "federation": ("federation_status", "restart_federation_link"),
    "shovels": ("shovel_status", "restart_shovel", "delete_shovel"),
    "definitions": ("export_definitions", "import_definitions"),
    "quorum": (
        "grow",
        "shrink",
        "add_member",
        "delete_member",
        "rebalance",
        "transfer_leader",
        "quorum_status",
        "check_if_node_is_quorum_critical",
        "check_if_member_is_quorum_critical",
        "check_if_new_quorum_queue_replicas_have_finished_initial_sync",
    ),
    "aside": (
        "list_kept_aside",
        "show_kept_aside",
        "republish_kept_aside",
        "drop_kept_aside",
    ),
    "log": ("wal",),
    "shells": ("completion", "man"),
    "unsupported": ("version",),
}
#: Command name to "module:function".
COMMANDS = {
    name: f"brokerd.ctl.{module}:{name}" for module, names in _MODULES.items() for name in names
} | {"eval": "brokerd.ctl.eval_forms:eval_expression"}
ENTRY_POINTS = "brokerctl.commands"
#: Extras of the distribution that bring a package's dependencies, and one of these modules.
EXTRAS = {
    "brokerd_operator": ("operator", "celpy"),
    "brokerd_telemetry": ("telemetry", "pyspark"),
}
#: Characters of a summary: all of its first sentence.
_WHOLE = 1000


class LazyGroup(click.Group):
    """A group that imports a command when it is used; help lists the names of all."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, but not of what is only said to be elsewhere (unsupported.py)."""
        return sorted({*COMMANDS, *_BUILT_IN, *_foreign()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command of ours or of an entry point."""
        if cmd_name in _BUILT_IN:
            return _BUILT_IN[cmd_name]
        location = COMMANDS.get(cmd_name)
        if location is not None:
            module, _, function = location.partition(":")
            found: click.Command = getattr(importlib.import_module(module), function)
            return found
        from brokerd.ctl import unsupported

        if cmd_name in unsupported.INSTEAD:
            return unsupported.command(cmd_name)
        entry_point = _foreign().get(cmd_name)
        return None if entry_point is None else _load(cmd_name, entry_point)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; the reader of its output may stop early (`| head`)."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Here, since click would end with status 1.
            standard_streams.give_up_output()
            return errors.EXIT_OK

    def summaries(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return (command, what it does) by the title of its group; commands of other parts first,
        which are not imported for it.
        """
        foreign = _foreign()
        known = {name: _foreign_summary(name, foreign[name]) for name in _sorted(foreign)}
        found = {command_groups.OTHER_PARTS_TITLE: list(known.items())} if known else {}
        for title, names in command_groups.GROUPS.items():
            found[title] = [(name, self._summary(ctx, name)) for name in names]
        return found

    def _summary(self, ctx: click.Context, name: str) -> str:
        command = self.get_command(ctx, name)
        return "" if command is None else command.get_short_help_str(_WHOLE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands by groups, each with its whole first sentence."""
        for title, rows in self.summaries(ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return commands that begin so, and options; nothing of other parts is imported."""
        foreign = _foreign()
        found = [
            CompletionItem(
                name,
                help=_foreign_summary(name, foreign[name])
                if name in foreign
                else self._summary(ctx, name),
            )
            for name in self.list_commands(ctx)
            if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest what may have been meant."""
        name = args[0]
        if self.get_command(ctx, name) is not None or name.startswith("-"):
            return super().resolve_command(ctx, args)
        close = difflib.get_close_matches(name, self.list_commands(ctx), 1)
        advice = f"Did you mean '{close[0]}'?" if close else "See 'brokerctl help'."
        raise errors.CtlError(
            f"\nCommand '{name}' not found. \n{advice} \n", errors.EXIT_USAGE, is_bare=True
        )


def _sorted(names: Iterable[str]) -> list[str]:
    """Return commands of other parts: ours in their own order, then those of others."""
    order = list(command_groups.OTHER_PARTS)
    return sorted(names, key=lambda name: (order.index(name) if name in order else 99, name))


def _foreign_summary(name: str, point: importlib.metadata.EntryPoint) -> str:
    """Return what a command of another part does, and what to install for it if that is missing."""
    package = point.module.partition(".")[0]
    text = command_groups.OTHER_PARTS.get(name, f"Of {package}.")
    extra, module = EXTRAS.get(package, ("", ""))
    if module and importlib.util.find_spec(module) is None:
        text += f" Needs: {extras.how_to_install(extra)}"
    return text


def _foreign() -> dict[str, importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=ENTRY_POINTS)
    return {point.name: point for point in found if point.name not in COMMANDS}


def _load(name: str, entry_point: importlib.metadata.EntryPoint) -> click.Command:
    try:
        command: click.Command = entry_point.load()
    except ImportError as error:
        package = entry_point.module.partition(".")[0]
        extra, _ = EXTRAS.get(package, ("", ""))
        advice = f"; install it with: {extras.how_to_install(extra)}" if extra else ""
        raise errors.CtlError(
            f"'{name}' needs the Python module {error.name or package}, which is not installed"
            f"{advice}",
            errors.EXIT_UNAVAILABLE,
        ) from error
    return command


@click.command("help")
@click.argument("command", required=False)
@click.pass_context
def help_command(context: click.Context, command: str | None) -> None:
    """Show this help, or that of a command."""
    root = context.find_root()
    if command is None:
        click.echo(root.get_help())
        return
    assert isinstance(root.command, click.Group)
    _, found, _ = root.command.resolve_command(root, [command])
    if found is not None:
        click.echo(found.get_help(click.Context(found, info_name=command, parent=root)))


@click.command("autocomplete")
@click.argument("prefix", default="")
@click.pass_context
def autocomplete(context: click.Context, prefix: str) -> None:
    """Show the commands that begin so."""
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    for name in root.command.list_commands(root):
        if name.startswith(prefix):
            click.echo(name)


_BUILT_IN = {"help": help_command, "autocomplete": autocomplete}


@click.group(
    cls=LazyGroup,
    params=options(with_environment=True),
    context_settings={"help_option_names": settings.HELP},
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
    standard_streams.open_closed()
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status (errors.py)."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    name = Path(sys.argv[0]).name if settings.is_stand_in() else "brokerctl"
    try:
        status: Any = brokerctl.main(args=list(given), prog_name=name, standalone_mode=False)
    except errors.BadArgument as error:
        return _misused(str(error), given, error.context, error.exit_code)
    except errors.CtlError as error:
        _complain(error)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return errors.EXIT_USAGE
    except click.UsageError as error:
        if error.ctx is not None and error.message == "Missing command.":
            # Options alone: rabbitmqctl shows what there is, and scripts look for verbs in it.
            click.echo(error.ctx.get_help(), err=True)
            return errors.EXIT_USAGE
        return _misused(_usage_text(error), given, error.ctx, _status_of(error))
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except OSError as error:
        standard_streams.give_up_output()
        _complain(errors.CtlError(standard_streams.in_words(error), errors.EXIT_IO))
        return errors.EXIT_IO
    except UnicodeEncodeError as error:
        # Bytes of the command line that are no text of this system's.
        wrong = error.object[error.start : error.end].encode("utf-8", "surrogateescape")
        return _misused(f"{wrong!r} is not UTF-8", given, None, errors.EXIT_USAGE)
    return status if isinstance(status, int) else errors.EXIT_OK


def _complain(error: errors.CtlError) -> None:
    text = str(error)
    if sys.stderr.isatty() and not settings.is_stand_in():
        text = text.removeprefix("Error: ").removeprefix("Error:\n").strip("\n")
        click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
        click.echo(text, err=True)
    else:
        click.echo(text if error.is_bare else f"Error:\n{text}", err=True)


def _status_of(error: click.UsageError) -> int:
    """Return the status of a wrong command line; of a file that cannot be read it is one."""
    if isinstance(error, click.MissingParameter) or not isinstance(error, click.BadParameter):
        return errors.EXIT_USAGE
    is_file = error.param is not None and isinstance(error.param.type, click.Path)
    return errors.EXIT_IO if is_file else errors.EXIT_USAGE


def _usage_text(error: click.UsageError) -> str:
    """Return what is wrong with a command line in rabbitmqctl's words."""
    if isinstance(error, click.MissingParameter):
        if isinstance(error.param, click.Option):
            names = " or ".join(error.param.opts)
            return f"{names} is missing: {error.param.help or 'it is needed'}"
        return "not enough arguments."
    if isinstance(error, click.NoSuchOption):
        meant = f"\nDid you mean {error.possibilities[0]}?" if error.possibilities else ""
        return f"Invalid options for this command:\n{error.option_name} : {meant}"
    if "unexpected extra argument" in error.message:
        return "too many arguments."
    return error.format_message()


def _misused(text: str, given: list[str], context: click.Context | None, status: int) -> int:
    """Show what is wrong and which help to read.

    Called as rabbitmqctl: its lines, the command line (without secrets of options) and the usage.
    """
    lines = [f"Error (argument validation): {text}"]
    if not settings.is_stand_in():
        path = "brokerctl" if context is None else context.command_path
        lines.append(f"See '{path} --help'.")
        click.echo("\n".join(lines), err=True)
        return status
    lines += ["Arguments given:", f"\t{_shown(given)}"]
    if context is not None:
        # click's "Usage: " is a line of its own here, as with rabbitmqctl.
        usage = context.get_usage().partition(": ")[2]
        lines += ["", click.style("Usage", bold=True), "", usage]
    click.echo("\n".join(lines), err=True)
    return status


def _shown(given: list[str]) -> str:
    shown = list(given)
    for position, word in enumerate(given):
        if word == "--password" and position + 1 < len(given):
            shown[position + 1] = "***"
        elif word.startswith("--password="):
            shown[position] = "--password=***"
    return " ".join(shown).encode("utf-8", "backslashreplace").decode()
