"""Endpoints about the caller, the cluster's name and what this release can do."""

from __future__ import annotations

from brokerd.core.catalog import catalog_commands, features
from brokerd.server.access import compatibility
from brokerd.server.catalog import cluster_name
from brokerd.server.management.call import (
    Answer,
    Call,
    Json,
    bad_request,
    no_content,
    not_authorised,
)
from brokerd.server.management.routes import Right, Route

#: RabbitMQ's flags that clients look for: NServiceBus does not start without stream_queue, though
#: it uses no streams.
RABBITMQ_FLAGS = (
    ("classic_mirrored_queue_version", "Support setting version for classic mirrored queues"),
    ("drop_unroutable_metric", "Count unroutable publishes to be dropped in stats"),
    ("empty_basic_get_metric", "Count AMQP `basic.get` on empty queues in stats"),
    ("implicit_default_bindings", "Default bindings are now implicit"),
    ("maintenance_mode_status", "Maintenance mode status"),
    ("quorum_queue", "Support queues of type `quorum`"),
    ("stream_queue", "No streams here: enabled since NServiceBus does not start without it"),
    ("user_limits", "Configure connection and channel limits for a user"),
    ("virtual_host_metadata", "Virtual host metadata (description, tags, etc)"),
)


async def _whoami(call: Call) -> Answer:
    caller = call.caller
    value: Json = {"name": caller.user, "tags": list(caller.identity.tags)}
    if call.as_4_3:
        value["is_internal_user"] = caller.is_user_of(call.services.catalog.view)
    return Answer(value=value)


async def _cluster_name(call: Call) -> Answer:
    return Answer(value={"name": name_of(call)})


def name_of(call: Call) -> str:
    """Return the cluster's name as other clusters know it."""
    services = call.services
    return cluster_name.of(services.config.cluster.name, services.catalog.view)


async def _set_cluster_name(call: Call) -> Answer:
    name = (await call.needed("name"))["name"]
    problem = cluster_name.problem(name) if isinstance(name, str) else "name: must be a text"
    if problem is not None:
        raise bad_request(problem)
    await call.objects.write(catalog_commands.set_setting(cluster_name.SETTING, name))
    return no_content()


async def _version(call: Call) -> Answer:
    return Answer(value=compatibility.compatible_version(call.services.profile))


async def _extensions(_: Call) -> Answer:
    return Answer(value=[])


async def _feature_flags(call: Call) -> Answer:
    if not (call.as_4_3 or call.caller.is_administrator):
        raise not_authorised("Not administrator user")
    enabled = call.services.catalog.view.enabled_features
    rows = [_flag(name, description, "enabled", "rabbit") for name, description in RABBITMQ_FLAGS]
    rows += [
        _flag(
            feature.name,
            feature.description,
            "enabled" if feature.name in enabled else "disabled",
            "brokerd",
        )
        for feature in features.FEATURES
    ]
    return Answer(value=sorted(rows, key=lambda row: row["name"]))


async def _enable(call: Call) -> Answer:
    """RabbitMQ's are enabled; one of brokerd's stays so once all members know it."""
    name = call.parts["name"]
    if name in features.names():
        reply = await call.objects.write(catalog_commands.enable_features([name]))
        if reply["code"] == catalog_commands.REFUSED:
            raise bad_request(reply["text"])
    elif name not in features.OF_RABBITMQ:
        raise bad_request(f"the feature flag {name} is unknown")
    return no_content()


def _flag(name: str, description: str, state: str, provider: str) -> dict[str, str]:
    return {
        "name": name,
        "desc": description,
        "doc_url": "",
        "provided_by": provider,
        "stability": "stable",
        "state": state,
    }


#: What RabbitMQ 4.3 lists, and whether it is here.
_DEPRECATED = {
    "amqp_address_v1": ("denied", "denied_by_default"),
    "amqp_filter_set_bug": ("denied", "denied_by_default"),
    "classic_queue_mirroring": ("denied", "removed"),
    "global_qos": ("denied", "denied_by_default"),
    "management_metrics_collection": ("permitted", "permitted_by_default"),
    "queue_master_locator": ("denied", "denied_by_default"),
    "ram_node_type": ("denied", "removed"),
    "transient_nonexcl_queues": ("permitted", "permitted_by_default"),
}


_PROVIDERS = {"management_metrics_collection": "rabbitmq_management_agent"}


async def _deprecated(call: Call) -> Answer:
    """This broker drops nothing of RabbitMQ's that it has: none of them is used to be dropped."""
    profile = call.services.profile
    here = {
        "global_qos": profile.qos_global == "allow",
        "transient_nonexcl_queues": profile.queues_transient_nonexclusive != "deny",
    }
    rows = [
        {
            "name": name,
            "desc": "",
            "doc_url": "",
            "provided_by": _PROVIDERS.get(name, "rabbit"),
            "state": "permitted" if here.get(name, state == "permitted") else "denied",
            "deprecation_phase": phase,
        }
        for name, (state, phase) in _DEPRECATED.items()
    ]
    return Answer(value=rows)


async def _deprecated_used(_: Call) -> Answer:
    """None: nothing will be dropped."""
    return Answer(value=[])


ROUTES = (
    Route("GET", "/api/whoami", Right.MANAGEMENT, _whoami, "Name and tags of the caller"),
    Route("GET", "/api/version", Right.MANAGEMENT, _version, "The version of RabbitMQ followed"),
    Route("GET", "/api/cluster-name", Right.MANAGEMENT, _cluster_name, "Name of the cluster"),
    Route("PUT", "/api/cluster-name", Right.ADMINISTRATOR, _set_cluster_name, "Rename the cluster"),
    Route("GET", "/api/extensions", Right.MANAGEMENT, _extensions, "Extensions; there are none"),
    Route(
        "GET",
        "/api/feature-flags",
        Right.MANAGEMENT,
        _feature_flags,
        "Feature flags: RabbitMQ's, all enabled, and brokerd's own",
    ),
    Route(
        "PUT",
        "/api/feature-flags/{name}/enable",
        Right.ADMINISTRATOR,
        _enable,
        "Enable one, for good",
    ),
    Route(
        "GET",
        "/api/deprecated-features",
        Right.MANAGEMENT,
        _deprecated,
        "Deprecated features (4.x), and which are permitted",
    ),
    Route(
        "GET",
        "/api/deprecated-features/used",
        Right.MANAGEMENT,
        _deprecated_used,
        "Deprecated features in use (4.x); there are none",
    ),
)
