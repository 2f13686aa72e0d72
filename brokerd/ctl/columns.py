"""Which listings brokerctl has, what they are called, and which columns they have.

The first columns and their order are rabbitmqctl's; `more` holds its other ones and ours.  A column
of rabbitmqctl that has no meaning here is listed and stays empty, so that scripts find it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Listing:
    """One listing: where its rows come from and what they have."""

    #: What is listed, in words.
    title: str
    #: Said first, as rabbitmqctl says it.
    banner: str
    #: Of List; None: objects of the catalog.
    live: str | None
    #: Of ListTopology.
    kind: str
    #: Shown when no columns are asked for.
    columns: tuple[str, ...]
    #: Further columns.
    more: tuple[str, ...] = ()
    #: True: the rows of one vhost (option -p).
    in_vhost: bool = False
    #: Rows of several members that describe the same thing: the fields that identify it.
    identity: tuple[str, ...] = ()
    #: False: rabbitmqctl takes no names of columns; ours are taken all the same.
    takes_columns: bool = True
    says_timeout: bool = False


_OWN = ("managed_by", "hash")

QUEUES = Listing(
    "queues",
    "Listing queues for vhost {vhost} ...",
    "queues",
    "queue",
    ("name", "messages"),
    (
        "durable",
        "auto_delete",
        "arguments",
        "policy",
        "operator_policy",
        "effective_policy_definition",
        "pid",
        "owner_pid",
        "exclusive",
        "exclusive_consumer_pid",
        "exclusive_consumer_tag",
        "single_active_consumer_pid",
        "single_active_consumer_tag",
        "messages_ready",
        "messages_unacknowledged",
        "messages_ready_ram",
        "messages_unacknowledged_ram",
        "messages_ram",
        "messages_persistent",
        "messages_dlx",
        "messages_dlx_old_terms",
        "messages_delayed",
        "message_bytes",
        "message_bytes_ready",
        "message_bytes_unacknowledged",
        "message_bytes_ram",
        "message_bytes_persistent",
        "head_message_timestamp",
        "disk_reads",
        "disk_writes",
        "consumers",
        "consumer_utilisation",
        "consumer_capacity",
        "memory",
        "slave_pids",
        "synchronised_slave_pids",
        "state",
        "type",
        "leader",
        "members",
        "placement",
        "online",
        "vhost",
        "counters",
        "as_of",
        "uid",
    ),
    in_vhost=True,
    identity=("vhost", "name"),
    says_timeout=True,
)
EXCHANGES = Listing(
    "exchanges",
    "Listing exchanges for vhost {vhost} ...",
    "exchanges",
    "exchange",
    ("name", "type"),
    (
        "durable",
        "auto_delete",
        "internal",
        "arguments",
        "policy",
        "vhost",
        "alternate_exchange",
        "messages_delayed",
        "next_due",
        "next_due_ms",
        "late_ms",
        "late_reason",
    ),
    in_vhost=True,
    identity=("vhost", "name"),
)
BINDINGS = Listing(
    "bindings",
    "Listing bindings for vhost {vhost}...",
    "bindings",
    "binding",
    (
        "source_name",
        "source_kind",
        "destination_name",
        "destination_kind",
        "routing_key",
        "arguments",
    ),
    ("vhost",),
    in_vhost=True,
    identity=(
        "vhost",
        "source_name",
        "destination_kind",
        "destination_name",
        "routing_key",
        "arguments",
    ),
)
CONNECTIONS = Listing(
    "connections",
    "Listing connections ...",
    "all_connections",
    "",
    ("user", "peer_host", "peer_port", "state"),
    (
        "pid",
        "name",
        "port",
        "host",
        "ssl",
        "ssl_protocol",
        "ssl_key_exchange",
        "ssl_cipher",
        "ssl_hash",
        "peer_cert_subject",
        "peer_cert_issuer",
        "peer_cert_validity",
        "channels",
        "protocol",
        "auth_mechanism",
        "vhost",
        "timeout",
        "frame_max",
        "channel_max",
        "client_properties",
        "connected_at",
        "recv_oct",
        "recv_cnt",
        "send_oct",
        "send_cnt",
        "send_pend",
        "user_provided_name",
        "node",
        "blocked_since",
        "blocked_reason",
        "blocked_by",
    ),
    identity=("pid",),
)
CHANNELS = Listing(
    "channels",
    "Listing channels ...",
    "all_channels",
    "",
    ("pid", "user", "consumer_count", "messages_unacknowledged"),
    (
        "connection",
        "name",
        "number",
        "vhost",
        "transactional",
        "confirm",
        "messages_uncommitted",
        "acks_uncommitted",
        "messages_unconfirmed",
        "prefetch_count",
        "global_prefetch_count",
        "state",
        "node",
    ),
    identity=("pid",),
)
CONSUMERS = Listing(
    "consumers",
    "Listing consumers in vhost {vhost} ...",
    "all_consumers",
    "",
    (
        "queue_name",
        "channel_pid",
        "consumer_tag",
        "ack_required",
        "prefetch_count",
        "active",
        "arguments",
    ),
    ("activity_status", "vhost", "node", "priority", "exclusive", "user"),
    in_vhost=True,
    identity=("vhost", "queue_name", "channel_pid", "consumer_tag"),
)
LINKS = Listing(
    "federation links",
    "Listing federation links of vhost {vhost} ...",
    "all_links",
    "",
    (
        *("vhost", "type", "exchange", "queue", "upstream", "status", "uri", "since"),
        *("backlog", "last_error"),
    ),
    (
        "id",
        "node",
        "upstream_exchange",
        "upstream_queue",
        "error",
        "since_ms",
        "local_connection",
        "bindings",
        "in",
        "in_bytes",
        "in_flight",
        "refused",
        "reconnects",
    ),
    in_vhost=True,
    identity=("id", "node"),
)
FEDERATION_STATUS = Listing(
    "federation links",
    "",
    "all_links",
    "",
    (
        *("exchange", "upstream_exchange", "queue", "upstream_queue", "type", "vhost"),
        *("upstream", "id", "status"),
        *("local_connection", "uri", "since", "backlog", "last_error"),
    ),
    identity=("id", "node"),
)
#: The only one there is.
SHOVEL_PROTOCOL = "amqp091"
SHOVELS = Listing(
    "shovels",
    "",
    "all_shovels",
    "",
    (
        *("name", "vhost", "type", "state", "source", "source_protocol", "source_queue"),
        *("source_exchange", "source_exchange_key", "destination", "destination_protocol"),
        *("destination_queue", "destination_exchange", "destination_exchange_key"),
        *("last_changed", "termination_reason", "node", "messages_moved", "messages_refused"),
        *("messages_in_flight", "messages_unroutable", "messages_dropped"),
    ),
    identity=("id", "node"),
)
GROUPS = Listing(
    "Raft groups",
    "Listing Raft groups ...",
    "groups",
    "",
    ("name", "leader", "term", "commit", "applied", "members"),
    ("uid", "last", "snapshot", "lag", "damaged", "contradicted", "error"),
    identity=("uid",),
)
USERS = Listing(
    "users",
    "Listing users ...",
    None,
    "user",
    ("user", "tags"),
    ("limits", *_OWN),
    takes_columns=False,
)
VHOSTS = Listing(
    "vhosts",
    "Listing vhosts ...",
    None,
    "vhost",
    ("name",),
    ("description", "tags", "default_queue_type", "tracing", "cluster_state", "limits", *_OWN),
)
PERMISSIONS = Listing(
    "permissions",
    'Listing permissions for vhost "{vhost}" ...',
    None,
    "permission",
    ("user", "configure", "write", "read"),
    ("vhost", *_OWN),
    in_vhost=True,
    takes_columns=False,
)
TOPIC_PERMISSIONS = Listing(
    "topic permissions",
    'Listing topic permissions for vhost "{vhost}" ...',
    None,
    "topic_permission",
    ("user", "exchange", "write", "read"),
    ("vhost", *_OWN),
    in_vhost=True,
    takes_columns=False,
)
_POLICY_COLUMNS = ("vhost", "name", "pattern", "apply-to", "definition", "priority")
POLICIES = Listing(
    "policies",
    'Listing policies for vhost "{vhost}" ...',
    None,
    "policy",
    _POLICY_COLUMNS,
    _OWN,
    in_vhost=True,
    takes_columns=False,
)
OPERATOR_POLICIES = Listing(
    "operator policies",
    'Listing operator policy overrides for vhost "{vhost}" ...',
    None,
    "operator_policy",
    _POLICY_COLUMNS,
    _OWN,
    in_vhost=True,
    takes_columns=False,
)
PARAMETERS = Listing(
    "run-time parameters",
    'Listing runtime parameters for vhost "{vhost}" ...',
    None,
    "parameter",
    ("component", "name", "value"),
    ("vhost", *_OWN),
    in_vhost=True,
    takes_columns=False,
)
