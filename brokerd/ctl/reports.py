"""`brokerctl status`, `cluster_status`, `report`: what a person reads first, and scripts grep.

The sections and the keys of the JSON are rabbitmqctl's where the meaning is the same; what only
brokerd has stands beside them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from brokerd.ctl import aside, columns, listings, members, output, settings

if TYPE_CHECKING:
    from brokerd.ctl.client import AdminClient

Fields = dict[str, Any]


def _gb(size: int) -> str:
    return f"{size / 1_000_000_000:.4f} gb"


def _status(client: AdminClient) -> Fields:
    fields: Fields = client.live_rows("status")[0]
    answer = members.member_status(client)
    who = members.info(client)
    groups = client.live_rows("groups")
    own = next((m for m in answer.members if m.name == who.node), None)
    return fields | {
        "cluster_name": who.cluster_name,
        "cluster_id": who.cluster_id,
        "catalog_leader": answer.catalog_leader,
        "catalog_revision": who.revision,
        "features": list(who.features),
        "queues_led": own.leaders if own else 0,
        "queue_replicas": own.replicas if own else 0,
        "is_under_maintenance": bool(own and own.state == "maintenance"),
        "damaged_groups": [row["name"] for row in groups if row["damaged"] or row["error"]],
    }


def _show_status(fields: Fields) -> None:
    totals = fields["totals"]
    output.section(
        "Runtime",
        [
            f"OS PID: {fields['pid']}",
            f"OS: {fields['os']}",
            f"Uptime (seconds): {fields['uptime']}",
            f"Is under maintenance?: {'true' if fields['is_under_maintenance'] else 'false'}",
            f"Is listening for AMQP?: {'true' if fields['is_listening'] else 'false'}",
            f"brokerd version: {fields['brokerd_version']}",
            f"RabbitMQ version: {fields['rabbitmq_version']}",
            f"Compatibility profile: {fields['profile']}",
            f"Node name: {fields['node']}",
            f"Python: {fields['python_version']}",
            # Older members do not tell it.
            f"Form: {fields.get('form', 'unknown')}",
        ],
    )
    output.section("Data directory", [f"Node data directory: {fields['data_directory']}"])
    output.section("Alarms", [f"{alarm} on node {fields['node']}" for alarm in fields["alarms"]])
    output.section(
        "Memory",
        [
            f"Total memory used: {_gb(fields['memory_used'])}",
            f"Memory high watermark: {_gb(fields['vm_memory_high_watermark_limit'])}",
        ],
    )
    output.section(
        "Free Disk Space",
        [
            f"Low free disk space watermark: {_gb(fields['disk_free_limit'])}",
            f"Free disk space: {_gb(fields['disk_free'])}",
        ],
    )
    output.section(
        "Totals",
        [
            f"Connection count: {totals['connection_count']}",
            f"Channel count: {totals['channel_count']}",
            f"Consumer count: {totals['consumer_count']}",
            f"Queue count: {totals['queue_count']}",
            f"Virtual host count: {totals['virtual_host_count']}",
        ],
    )
    output.section(
        "Replication",
        [
            f"Cluster: {fields['cluster_name']} ({fields['cluster_id']})",
            f"Leader of the catalog: {fields['catalog_leader'] or 'none'}",
            f"Catalog revision: {fields['catalog_revision']}",
            f"Caught up: {'true' if fields['caught_up'] else 'false'}",
            f"Raft groups: {totals['raft_group_count']}, queues led: {fields['queues_led']}, "
            f"replicas: {fields['queue_replicas']}",
            f"Damaged groups: {', '.join(fields['damaged_groups']) or 'none'}",
        ],
    )
    output.section("Listeners", [_listener(row) for row in fields["listeners"]])


def _listener(row: Fields, node: str = "") -> str:
    return (
        f"{node}{'i' if node else 'I'}nterface: {row['interface']}, port: {row['port']}, "
        f"protocol: {row['protocol']}, purpose: {row['purpose']}"
    )


@click.command(cls=settings.Command)
@click.option("--unit", hidden=True)
def status(unit: str | None) -> None:
    """Show the state of a member."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        fields = _status(client)
    chosen.say(f"Status of node {fields['node']} ...")
    if chosen.formatter_now() == "json":
        click.echo(output.compact(fields))
    else:
        _show_status(fields)


# ---- the cluster --------------------------------------------------------------------------------


#: rabbitmqctl's words for a member's state.
_MAINTENANCE = {"": "not under maintenance", "maintenance": "marked for maintenance"}


def _cluster(client: AdminClient) -> Fields:
    who = members.info(client)
    answer = members.member_status(client)
    own = client.live_rows("status")[0]
    rows = [_member_row(member) for member in answer.members]
    running = [row["name"] for row in rows if row["running"]]
    return {
        "cluster_name": who.cluster_name,
        "cluster_id": who.cluster_id,
        "catalog_leader": answer.catalog_leader,
        "disk_nodes": [row["name"] for row in rows],
        "ram_nodes": [],
        "running_nodes": running,
        "alarms": [
            {"node": row["name"], "alarm": alarm} for row in rows for alarm in row["alarms"]
        ],
        "kept_aside": aside.alarms(client),
        "partitions": {},
        "versions": {who.node: {"brokerd_version": who.version}},
        "maintenance_status": {
            row["name"]: _MAINTENANCE.get(row["state"], row["state"])
            for row in rows
            if row["running"]
        },
        "listeners": {who.node: own["listeners"]},
        "feature_flags": [
            {"name": name.replace("-", "_"), "state": "enabled"} for name in sorted(who.features)
        ],
        "members": rows,
    }


def _member_row(member: Any) -> Fields:
    return {
        "name": member.name,
        "running": member.running,
        "version": member.version,
        "peer_address": member.peer_address,
        "leaders": member.leaders,
        "replicas": member.replicas,
        "memory_used": member.memory_used,
        "memory_limit": member.memory_limit,
        "disk_free": member.disk_free,
        "alarms": list(member.alarms),
        "state": member.state,
        "host": member.host,
        "zone": member.zone,
    }


def _show_cluster(chosen: settings.Settings, fields: Fields) -> None:
    output.section(
        "Basics",
        [
            f"Cluster name: {fields['cluster_name']}",
            f"Cluster id: {fields['cluster_id']}",
            f"Leader of the catalog: {fields['catalog_leader'] or 'none'}",
        ],
    )
    output.section("Disk Nodes", fields["disk_nodes"])
    output.section("Running Nodes", fields["running_nodes"])
    output.section(
        "Versions",
        [f"{node}: brokerd {row['brokerd_version']}" for node, row in fields["versions"].items()],
    )
    output.section(
        "Maintenance status",
        [f"Node: {node}, status: {text}" for node, text in fields["maintenance_status"].items()],
    )
    domains = [
        f"Node: {row['name']}, host: {row['host'] or 'unknown'}, zone: {row['zone'] or 'unknown'}"
        for row in fields["members"]
    ]
    if any(row["host"] or row["zone"] for row in fields["members"]):
        output.section("Failure domains", domains)
    output.section("Alarms", [f"{row['alarm']} on node {row['node']}" for row in fields["alarms"]])
    if fields["kept_aside"]:
        lines = [*map(aside.in_words, fields["kept_aside"]), "See list_kept_aside."]
        output.section("Kept aside", lines)
    output.section("Network Partitions", [])
    output.section(
        "Listeners",
        [
            _listener(row, f"Node: {node}, ")
            for node, found in fields["listeners"].items()
            for row in found
        ],
    )
    output.section(
        "Feature flags",
        [f"Flag: {flag['name']}, state: {flag['state']}" for flag in fields["feature_flags"]],
    )
    click.secho("Members\n", bold=True)
    rows = fields["members"]
    output.rows(chosen, list(rows[0]) if rows else [], rows)


@click.command(cls=settings.Command)
def cluster_status() -> None:
    """Show the members of the cluster as the asked one sees them."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        fields = _cluster(client)
        node = members.info(client).node
    chosen.say(f"Cluster status of node {node} ...")
    if chosen.formatter_now() == "json":
        click.echo(output.compact(fields))
    else:
        _show_cluster(chosen, fields)


#: Bytes of each unit, and the digits behind its point, as rabbitmq-diagnostics has them.
_UNITS = {
    "bytes": (1, 0),
    "kb": (1_000, 4),
    "mb": (1_000_000, 4),
    "gb": (1_000_000_000, 4),
}


@click.command(cls=settings.Command)
@click.option("--unit", type=click.Choice(list(_UNITS)), default="gb", help="Of amounts [gb].")
def memory_breakdown(unit: str) -> None:
    """Show where the memory of a member goes, largest part first."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        found = {row["part"]: row["bytes"] for row in client.live_rows("memory")}
        node = members.info(client).node
    total = sum(found.values())
    chosen.say(f"Reporting memory breakdown on node {node}...")
    parts = sorted(found.items(), key=lambda part: -part[1])
    if chosen.formatter_now() == "json":
        shares = {
            name: {"bytes": size, "percentage": round(100 * size / total, 2)}
            for name, size in parts
        }
        click.echo(output.compact(shares))
        return
    factor, digits = _UNITS[unit]
    for name, size in parts:
        amount = f"{size / factor:.{digits}f}"
        click.echo(f"{name}: {amount} {unit} ({100 * size / total:.2f}%)")


#: What a report lists, each with all its columns.
_LISTED = (
    columns.CONNECTIONS,
    columns.CHANNELS,
    columns.QUEUES,
    columns.EXCHANGES,
    columns.BINDINGS,
    columns.CONSUMERS,
    columns.LINKS,
    columns.GROUPS,
)


@click.command(cls=settings.Command)
def report() -> None:
    """Show all there is to know of a member, for a request for help; secrets are left out."""
    from brokerd.ctl.client import connect

    chosen = settings.current()
    with connect(chosen) as client:
        fields, cluster = _status(client), _cluster(client)
        configuration = client.live_rows("configuration")
        vhosts = [item.name for item in client.objects("vhost")]
    chosen.say(f"Reporting server status of node {fields['node']} ...\n")
    _show_status(fields)
    _show_cluster(chosen, cluster)
    click.echo()
    output.section(
        "Configuration", [f"{row['name']}\t{output.cell(row['value'])}" for row in configuration]
    )
    for listing in _LISTED:
        for vhost in vhosts if listing.in_vhost else [""]:
            chosen.vhost = vhost
            click.echo(f"{listing.title.capitalize()}{f' on {vhost}' if vhost else ''}:")
            found = listings.live_rows(listing, chosen)
            output.rows(chosen, (*listing.columns, *listing.more), found)
            click.echo()
