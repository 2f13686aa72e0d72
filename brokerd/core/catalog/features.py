"""What a version of brokerd can do that an earlier one could not read.  PURE.

A cluster is upgraded member by member, so for a while two versions apply the same log.  Whatever
one of them could not apply waits for its feature flag: the catalog knows which flags each member
understands (it says so when it starts) and which are enabled; only when all members understand one
may it be enabled, and from then on no member without it may join (ADR 13).
A new cluster has all flags of its founder.  A flag is never disabled again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Feature:
    """One flag."""

    name: str
    #: The first version that understands it.
    since: str
    description: str


#: All that this version understands, in the order in which they came: none before the second
#: release.  Tests of upgrades add one (tests/integration/next_release.py).
FEATURES: tuple[Feature, ...] = ()


#: Flags of RabbitMQ 4.3.6 and earlier that scripts enable by name before an upgrade: there is
#: nothing to do for them.
OF_RABBITMQ = frozenset(
    (
        *("classic_mirrored_queue_version", "classic_queue_type_delivery_support"),
        *("detailed_queues_endpoint", "direct_exchange_routing_v2", "drop_unroutable_metric"),
        *("empty_basic_get_metric", "feature_flags_v2", "implicit_default_bindings", "khepri_db"),
        *("listener_records_in_ets", "maintenance_mode_status", "message_containers"),
        *("message_containers_deaths_v2", "quorum_queue", "quorum_queue_non_voters"),
        *("rabbit_exchange_type_local_random", "rabbitmq_4.0.0", "rabbitmq_4.1.0"),
        *("rabbitmq_4.2.0", "rabbitmq_4.3.0", "restart_streams", "stream_filtering"),
        *("stream_queue", "stream_sac_coordinator_unblock_group"),
        *("stream_single_active_consumer", "stream_update_config_command"),
        *("tie_binding_to_dest_with_keep_while_cond", "topic_binding_projection_v4"),
        *("topic_binding_projection_v5", "track_qq_members_uids", "tracking_records_in_ets"),
        *("user_limits", "virtual_host_metadata"),
    )
)


def names() -> tuple[str, ...]:
    """Return the names of all flags of this version."""
    return tuple(feature.name for feature in FEATURES)


def lacking(
    name: str, members: Iterable[str], understood: Mapping[str, Collection[str]]
) -> list[str]:
    """Return the members that do not understand a flag (or have never said so), in order."""
    return sorted(member for member in members if name not in understood.get(member, ()))


def fault_of_enabling(
    wanted: Sequence[str], members: Collection[str], understood: Mapping[str, Collection[str]]
) -> str | None:
    """Return why these flags may not be enabled, or None."""
    for name in wanted:
        missing = lacking(name, members, understood)
        if missing and len(missing) == len(members):
            return f"no member knows a feature flag '{name}'"
        if missing:
            return (
                f"feature flag '{name}' is not understood by {', '.join(missing)}: "
                "upgrade all members first, then enable it"
            )
    return None


def fault_of_member(node: str, understood: Collection[str], enabled: Iterable[str]) -> str | None:
    """Return why a member may not take part in a cluster with these flags, or None."""
    unknown = sorted(set(enabled) - set(understood))
    if not unknown:
        return None
    return (
        f"{node} does not understand the enabled feature flag {', '.join(unknown)}: "
        "its version is too old for this cluster"
    )
