"""Verbs of rabbitmqctl that have no meaning here: what to do instead, status 64.

Small verbs about brokerctl itself stand here, too.
"""

from __future__ import annotations

import click

from brokerd import __version__
from brokerd.ctl import errors, settings

_CLUSTER = (
    "start the new member with the others in cluster.members and an empty data directory: it joins "
    "by itself; forget_cluster_node takes one out; see docs/operations.md"
)
_MIRRORS = "there are no mirrored queues; quorum queues keep their members in step by themselves"
_FRESH = (
    "stop the member and delete its data directory; to empty a running broker, delete its vhosts "
    "(brokerctl delete_vhost) and make them again"
)
#: What to do in place of each.
INSTEAD = {
    "join_cluster": _CLUSTER,
    "rename_cluster_node": "a data directory belongs to one member for good; add a new member",
    "update_cluster_nodes": _CLUSTER,
    "change_cluster_node_type": "every member keeps everything on disk",
    "force_boot": "a majority of the members must be back; as the last resort: "
    "brokerctl wal accept-loss",
    "reset": _FRESH,
    "force_reset": _FRESH,
    "sync_queue": _MIRRORS,
    "cancel_sync_queue": _MIRRORS,
    "set_ha_policy": _MIRRORS,
    "rotate_logs": "logs go to stderr; whoever takes them from there rotates them",
    "set_log_level": "set BROKERD_LOG_LEVEL and restart the member",
    "force_gc": "Python gives memory back by itself",
    "restart_vhost": "a vhost has no processes that could fail by themselves",
    "stop": "end the process (SIGTERM, systemctl stop, kubectl delete pod); brokerctl drain first",
    "shutdown": "end the process (SIGTERM, systemctl stop, kubectl delete pod); "
    "brokerctl drain first",
    "encode": "configuration values are not encrypted; files hold secrets (…_file settings)",
    "decode": "configuration values are not encrypted; files hold secrets (…_file settings)",
    "list_ciphers": "configuration values are not encrypted",
    "list_hashes": "passwords are kept as scrypt hashes; rabbitmq-sha256 and -sha512 are accepted",
    "set_global_parameter": "the HTTP API has them: PUT /api/global-parameters/NAME; "
    "set_parameter sets a vhost's",
    "clear_global_parameter": "the HTTP API has them: DELETE /api/global-parameters/NAME",
    "list_global_parameters": "the HTTP API has them: GET /api/global-parameters; "
    "list_parameters lists a vhost's",
    "exec": "there is no Erlang; brokerctl eval knows the forms that scripts use",
    "hipe_compile": "there is no Erlang",
    "schema_info": "brokerctl list_groups shows what is replicated",
    "list_node_auth_attempt_stats": "refused logins are in the log and in /metrics",
    "clear_auth_backend_cache": "rights hold at once, there is no such cache",
    "add_super_stream": "streams are not offered",
    "delete_super_stream": "streams are not offered",
}
_SHORT = dict.fromkeys(INSTEAD, "Not offered; says what to do instead.")


def command(name: str) -> click.Command:
    """Return the command that says what to do instead."""

    def run(arguments: tuple[str, ...]) -> None:
        raise errors.CtlError(
            f"'{name}' is not offered by brokerd: {INSTEAD[name]}", errors.EXIT_USAGE
        )

    return settings.Command(
        name,
        callback=run,
        params=[click.Argument(["arguments"], nargs=-1)],
        short_help=_SHORT[name],
        help=f"Not offered by brokerd: {INSTEAD[name]}.",
        context_settings={"ignore_unknown_options": True, "help_option_names": settings.HELP},
    )


@click.command(cls=settings.Command)
def version() -> None:
    """Show the version; called as rabbitmqctl: of the rabbitmqctl that is spoken."""
    from brokerd.core.catalog.definitions_json import SPOKEN

    click.echo(SPOKEN if settings.current().stands_in else __version__)
