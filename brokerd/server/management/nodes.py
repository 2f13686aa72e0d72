"""Endpoints about the members and the cluster as a whole: overview, nodes, memory.

What Erlang alone has (its processes, garbage collections, plugins) is 0 or empty where clients read
the field, and left out where they do not.
"""

from __future__ import annotations

import os
import platform
import resource
import ssl
from collections.abc import Iterable
from typing import TYPE_CHECKING

from brokerd import __version__
from brokerd.core.alarms import DISK_STALLED
from brokerd.core.catalog import exchange_types
from brokerd.raft.messages import NodeId
from brokerd.server.access import compatibility
from brokerd.server.catalog import member_states
from brokerd.server.listings import memory_breakdown
from brokerd.server.listings import rows as listings
from brokerd.server.management import clients, identity, listing, member_figures, queue_figures
from brokerd.server.management.call import Answer, Call, Json, not_found
from brokerd.server.management.queue_figures import rate
from brokerd.server.management.routes import Right, Route

if TYPE_CHECKING:
    from brokerd.server.management.ports import ManagementServices

NODE, MEMORY = "node", "memory"
_DESCRIPTORS = "/proc/self/fd"
#: Of a member's row, what is for the overview only.
_OF_OVERVIEW = ("listeners", "message_stats")
MECHANISMS = (
    ("AMQPLAIN", "QPid AMQPLAIN mechanism"),
    ("PLAIN", "SASL PLAIN authentication mechanism"),
)
ANONYMOUS = ("ANONYMOUS", "SASL ANONYMOUS authentication mechanism")


def register(services: ManagementServices) -> None:
    """Answer other members what only this one knows."""

    def node() -> list[Json]:
        # A member that is asked for its row may be asked again, and has rates then.
        services.rates.want()
        return [_own_row(services)]

    services.figures.register(NODE, node)

    async def memory() -> list[Json]:
        monitor = services.listed.runtime.monitor
        return [] if monitor is None else [await monitor.breakdown.take()]

    services.figures.register(MEMORY, memory)


# ---- nodes --------------------------------------------------------------------------------------


def _descriptors() -> int:
    """Return how many descriptors are open, 0 where /proc does not tell."""
    try:
        # Since Linux 6.2 its size is their number, which spares a list of thousands of names.
        return os.stat(_DESCRIPTORS).st_size or len(os.listdir(_DESCRIPTORS))
    except OSError:
        return 0


def _own_row(services: ManagementServices) -> Json:
    """Return this member as RabbitMQ shows a node."""
    listed, config = services.listed, services.config
    status = listings.own(listed)
    monitor = listed.runtime.monitor
    clients, alarms = listed.clients, set(status["alarms"])
    descriptors = _descriptors()
    descriptors_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    connections = len(clients)
    row: Json = {
        "name": services.node,
        "running": True,
        "type": "disc",
        "being_drained": member_states.state_of(services.catalog.view, services.node)
        == member_states.MAINTENANCE,
        "os_pid": str(status["pid"]),
        "uptime": status["uptime"] * 1000,
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "mem_used": status["memory_used"],
        "mem_used_details": rate(0.0),
        "mem_limit": status["vm_memory_high_watermark_limit"],
        "mem_alarm": "memory" in alarms,
        "mem_calculation_strategy": "rss",
        "disk_free": status["disk_free"],
        "disk_free_details": rate(0.0),
        "disk_free_limit": status["disk_free_limit"],
        "disk_free_alarm": "disk" in alarms,
        "disk_stalled_alarm": DISK_STALLED in alarms,
        "fd_used": descriptors,
        "fd_used_details": rate(0.0),
        "fd_total": descriptors_max,
        "sockets_used": connections,
        "sockets_used_details": rate(0.0),
        "sockets_total": config.limits.connections,
        "proc_used": connections + status["totals"]["channel_count"],
        "proc_used_details": rate(0.0),
        "proc_total": 1 << 20,
        **_settings(services, status),
    }
    if monitor is None:
        row["running"] = listed.runtime.endpoints is not None
    churn, messages = member_figures.own(services)
    return row | churn | {"message_stats": messages}


def _settings(services: ManagementServices, status: Json) -> Json:
    """Return what of a node does not change while it runs."""
    has_anonymous = bool(services.config.auth.anonymous_login_user)
    mechanisms = (*MECHANISMS, ANONYMOUS) if has_anonymous else MECHANISMS
    return {
        "rates_mode": "basic",
        "net_ticktime": max(1, services.config.cluster.suspect_after_ms // 1000),
        "partitions": [],
        "cluster_links": [],
        "enabled_plugins": ["rabbitmq_management"],
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": description, "enabled": True}
            for name, description in mechanisms
        ],
        "applications": [
            {"name": "brokerd", "description": "brokerd", "version": __version__},
            {
                "name": "rabbit",
                "description": "compatible with RabbitMQ",
                "version": status["rabbitmq_version"],
            },
        ],
        "contexts": [_context(listener) for listener in _http(status["listeners"])],
        "config_files": [],
        "log_files": ["<stderr>"],
        "db_dir": status["data_directory"],
        "listeners": [_listener(each) for each in status["listeners"]],
        "python_version": platform.python_version(),
        "rabbitmq_version": status["rabbitmq_version"],
        **_runtime(),
        "crypto_lib_version": ssl.OPENSSL_VERSION,
    }


def _runtime() -> Json:
    """Return the fields of a runtime that is not Erlang, which clients expect to be there."""
    return {
        "erlang_version": "",
        "erlang_full_version": f"Python {platform.python_version()}",
    }


def _exchange_types() -> list[Json]:
    return [
        {"name": name, "description": f"AMQP {name} exchange", "enabled": True}
        for name in sorted(exchange_types.TYPES)
    ]


def _http(listeners: Iterable[Json]) -> list[Json]:
    return [each for each in listeners if each["protocol"] in ("http", "https")]


def _context(listener: Json) -> Json:
    return {
        "description": "RabbitMQ Management",
        "path": "/",
        "ip": listener["interface"],
        "port": str(listener["port"]),
    }


def _listener(row: Json) -> Json:
    return {
        "node": row["node"],
        "protocol": row["protocol"],
        "ip_address": row["interface"].strip("[]"),
        "port": row["port"],
        "socket_opts": [],
    }


async def _all_nodes(call: Call) -> list[Json]:
    """Return a row for each member of the catalog; of those that are down RabbitMQ says as much.

    One that is heard and did not say more in time is up, without figures.
    """
    services = call.services
    found = (await services.figures.everywhere(NODE)).rows
    alive = services.listed.groups.alive()
    rows = []
    for name in sorted(services.catalog.view.members() or {services.node: ""}):
        if name in found:
            rows += [
                {key: value for key, value in row.items() if key not in _OF_OVERVIEW}
                for row in found[name]
            ]
        else:
            is_up = NodeId(name) in alive
            rows.append({"name": name, "running": is_up, "type": "disc", "partitions": []})
    return rows


async def _nodes(call: Call) -> Answer:
    return Answer(value=await listing.answer(await _all_nodes(call), call.query))


async def _node(call: Call) -> Answer:
    """3.10.8 fails with a 500 where there is no such node."""
    for row in await _all_nodes(call):
        if row["name"] == call.parts["name"]:
            return Answer(value=listing.chosen(row, listing.columns_of(call.query)))
    raise not_found()


#: Parts of RabbitMQ 4.3's memory; clients refuse an answer that lacks one.
_MEMORY_OF_RABBITMQ = (
    *("connection_readers", "connection_writers", "connection_channels", "connection_other"),
    *("stream_queue_procs", "stream_queue_replica_reader_procs", "stream_queue_coordinator_procs"),
    *("queue_procs", "quorum_queue_procs", "quorum_queue_dlx_procs", "plugins", "metadata_store"),
    *("other_proc", "metrics", "mgmt_db", "quorum_ets", "mnesia", "metadata_store_ets"),
    *("other_ets", "binary", "msg_index", "code", "atom", "other_system", "allocated_unused"),
    "reserved_unallocated",
)


async def _memory(call: Call) -> Answer:
    """Parts of a member's memory, in our names with RabbitMQ's `total` and `strategy`."""
    name = call.parts["name"]
    if name not in call.services.catalog.view.members():
        raise not_found()
    rows = (await call.services.figures.everywhere(MEMORY)).rows.get(name)
    if not rows:
        return Answer(value={"memory": "not_available"})
    parts = {part: int(rows[0].get(part, 0)) for part in memory_breakdown.PARTS}
    total = sum(parts.values())
    value = {
        **dict.fromkeys(_MEMORY_OF_RABBITMQ, 0),
        **parts,
        "other_system": parts["other"],
        "mgmt_db": parts["telemetry"],
        "metadata_store": parts["catalog"],
        "connection_channels": parts["channels"],
        "connection_other": parts["connections"],
        "queue_procs": parts["classic_queues"],
        "quorum_queue_procs": parts["quorum_queues"],
        "strategy": "rss",
        "total": {"rss": total, "allocated": total, "erlang": total},
    }
    return Answer(value={"memory": value})


# ---- overview -----------------------------------------------------------------------------------


async def _overview(call: Call) -> Answer:
    services, caller = call.services, call.caller
    version = compatibility.compatible_version(services.profile)
    value: Json = {
        "management_version": version,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [600], "basic": [600], "detailed": [600]},
        "exchange_types": _exchange_types(),
        "product_version": version,
        "product_name": compatibility.compatible_product(services.profile),
        "rabbitmq_version": version,
        "brokerd_version": __version__,
        "cluster_name": identity.name_of(call),
        "release_series_support_status": "supported",
        "cluster_tags": {},
        "node_tags": {},
        "crypto_lib_version": ssl.OPENSSL_VERSION,
        "require_definition_json_extension": False,
        **_runtime(),
        "disable_stats": call.is_on("disable_stats"),
        "enable_queue_totals": call.is_on("enable_queue_totals"),
        "default_queue_type": services.config.queues.default_type,
        "is_op_policy_updating_enabled": True,
        "node": services.node,
        "statistics_db_event_queue": 0,
    }
    nodes = (await services.figures.everywhere(NODE)).all()
    if caller.is_monitor:
        value["listeners"] = [each for node in nodes for each in node.get("listeners", [])]
        value["contexts"] = [
            {"node": node["name"], **each} for node in nodes for each in node["contexts"]
        ]
    value["churn_rates"] = member_figures.added(nodes, member_figures.CHURN)
    value |= await _totals(call)
    if caller.is_monitor:
        counted = [node["message_stats"] for node in nodes]
        value["message_stats"] |= member_figures.added(counted, member_figures.MESSAGES)
    return Answer(value=listing.chosen(value, listing.columns_of(call.query)))


async def _totals(call: Call) -> Json:
    """Return sums over the queues of the vhosts that the caller may see, and how much there is."""
    services = call.services
    view, visible = services.catalog.view, set(call.visible_vhosts())
    count = len(queue_figures.GAUGES) + len(queue_figures.COUNTERS)
    sums, rates, consumers = [0] * count, [0.0] * count, 0
    for row in (await services.figures.everywhere(queue_figures.TOTALS)).all():
        if row["vhost"] in visible:
            sums = [a + b for a, b in zip(sums, row["sums"], strict=True)]
            # Of a member that has begun to sample just now there are none.
            rates = [a + b for a, b in zip(rates, row["rates"], strict=True)]
            consumers += row["consumers"]
    stats = queue_figures.stats(tuple(sums), rates)
    # A queue does not count these; who sees all vhosts sees those of the members (_overview).
    for name in ("confirm", "return_unroutable", "drop_unroutable", "disk_reads", "disk_writes"):
        stats |= {name: 0, f"{name}_details": rate(0.0)}
    connections, channels = await _clients(call, visible)
    return {
        "queue_totals": queue_figures.gauges(tuple(sums), rates),
        "message_stats": stats,
        "object_totals": {
            "channels": channels,
            "connections": connections,
            "consumers": consumers,
            "exchanges": sum(len(view.vhosts[vhost].exchanges) for vhost in visible),
            "queues": sum(len(view.vhosts[vhost].queues) for vhost in visible),
        },
    }


async def _clients(call: Call, visible: set[str]) -> tuple[int, int]:
    """Return how many connections and channels the caller may see."""
    rows = [
        row
        for row in (await call.services.figures.everywhere(clients.COUNTS)).all()
        if row["vhost"] in visible and clients.may_see(call, row)
    ]
    return sum(row["connections"] for row in rows), sum(row["channels"] for row in rows)


ROUTES = (
    Route("GET", "/api/overview", Right.MANAGEMENT, _overview, "The cluster as a whole"),
    Route("GET", "/api/nodes", Right.MONITORING, _nodes, "The members"),
    Route("GET", "/api/nodes/{name}", Right.MONITORING, _node, "One member"),
    Route("GET", "/api/nodes/{name}/memory", Right.MONITORING, _memory, "Where its memory goes"),
)
