"""/metrics/detailed: figures by queue, for those who name the families that they want; all of them
by /metrics/per-object, under the names of /metrics.

As the plugin rabbitmq_prometheus has it: `?family=queue_coarse_metrics&family=queue_consumer_count&
vhost=v`, prefix `rabbitmq_detailed_`; without a family nothing but who the member is.  A queue is
reported by the member that leads it, a Raft group by each member that has a replica, a connection
by the member it is open at.  With 10,000 queues this is megabytes: the lines of some queues at a
time are made between the clients' turns, and joined by metric at the end.
docs/reference/metrics.md lists the families.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from brokerd.server.listings.delayed_exchanges import Waiting
from brokerd.server.loop.chunks import in_chunks
from brokerd.server.observe import metrics_rabbitmq
from brokerd.server.observe.figures import CHUNK, Figures, Sources, led_delayed
from brokerd.server.queues.table import AT

if TYPE_CHECKING:
    from brokerd.core.catalog.catalog_objects import Exchange
    from brokerd.server.amqp.connection import ClientConnection
    from brokerd.server.amqp.session import Session

T = TypeVar("T")
R = TypeVar("R")
C = TypeVar("C", bound=tuple[Any, ...])
PREFIX, PER_OBJECT_PREFIX = "rabbitmq_detailed_", "rabbitmq_"
#: Most families, and most vhosts, of a request: a longer answer has no reader.
ASKED_MAX = 64

#: Name after PREFIX (or whole, if it begins with that of the product), type, help, and the value.
Column: TypeAlias = tuple[str, str, str, Callable[[R], float]]
#: The same of a queue: its value is the sum of these of queues/table.py.
_Figure: TypeAlias = tuple[str, str, str, tuple[str, ...]]

_CONSUMERS: _Figure = ("queue_consumers", "gauge", "Consumers.", ("consumers",))
_REDELIVERED: _Figure = (
    "queue_messages_redelivered_total",
    "counter",
    "Messages handed out that had been before.",
    ("redlv",),
)
#: By family; what stands in two that were asked for comes once.
_QUEUES: dict[str, tuple[_Figure, ...]] = {
    "queue_coarse_metrics": (
        ("queue_messages_ready", "gauge", "Ready messages.", ("ready",)),
        ("queue_messages_unacked", "gauge", "Not settled.", ("unacked",)),
        ("queue_messages", "gauge", "Both.", ("ready", "unacked")),
    ),
    "queue_consumer_count": (_CONSUMERS,),
    "queue_metrics": (
        _CONSUMERS,
        (
            "queue_messages_bytes",
            "gauge",
            "Bytes of all messages.",
            ("ready_bytes", "unacked_bytes"),
        ),
        ("queue_messages_ready_bytes", "gauge", "Of ready ones.", ("ready_bytes",)),
        ("queue_messages_unacked_bytes", "gauge", "Bytes of unsettled ones.", ("unacked_bytes",)),
    ),
    # Since the queue was made: it takes them along to its next leader.
    "queue_delivery_metrics": (
        _REDELIVERED,
        ("queue_get_empty_total", "counter", "basic.get that found nothing.", ("get_empty",)),
    ),
    # Not of RabbitMQ, which counts these by channel and not by queue.
    "queue_traffic_metrics": (
        ("queue_messages_published_total", "counter", "Messages that came.", ("enq",)),
        (
            "queue_messages_handed_out_total",
            "counter",
            "Deliveries to consumers, and messages of basic.get.",
            ("dlv",),
        ),
        _REDELIVERED,
        ("queue_messages_acked_total", "counter", "Messages acknowledged.", ("ack",)),
        (
            "queue_messages_dead_lettered_total",
            "counter",
            "Messages that went to the dead letter exchange.",
            ("dl_out",),
        ),
    ),
}
#: Of each replica here, in these families as in RabbitMQ 4.3.
_INFO = frozenset({"queue_metrics", "queue_coarse_metrics"})
_QUEUE_INFO: tuple[Column[int], ...] = (
    ("queue_info", "gauge", "1 for each replica: type, leader or follower.", lambda _: 1),
)
_GROUPS: tuple[_Figure, ...] = (
    ("raft_term_total", "counter", "Raft term.", ("term",)),
    ("raft_log_snapshot_index", "gauge", "Snapshot.", ("snapshot",)),
    ("raft_log_last_applied_index", "gauge", "Last applied.", ("applied",)),
    ("raft_log_commit_index", "gauge", "Commit index.", ("commit",)),
    ("raft_log_last_written_index", "gauge", "Last of the log.", ("last",)),
)
_CONNECTIONS: dict[str, tuple[Column[ClientConnection], ...]] = {
    "connection_coarse_metrics": (
        (
            "connection_incoming_bytes_total",
            "counter",
            "Bytes received.",
            lambda connection: connection.received_bytes,
        ),
        (
            "connection_outgoing_bytes_total",
            "counter",
            "Bytes sent.",
            lambda connection: connection.sent_bytes,
        ),
    ),
    "connection_metrics": (
        (
            "connection_channels",
            "gauge",
            "Open channels.",
            lambda connection: len(connection.sessions),
        ),
    ),
}
_CHANNELS: tuple[Column[Session], ...] = (
    ("channel_consumers", "gauge", "Consumers.", lambda session: len(session.consumers)),
    ("channel_messages_unacked", "gauge", "Not settled.", lambda session: len(session.unacked)),
    (
        "channel_messages_unconfirmed",
        "gauge",
        "Published and not confirmed.",
        lambda session: 0 if session.confirms is None else session.confirms.outstanding,
    ),
    ("consumer_prefetch", "gauge", "Of its next consumer.", lambda session: session.prefetch),
)
_VHOSTS: tuple[Column[str], ...] = (
    ("rabbitmq_cluster_vhost_status", "gauge", "1 for each vhost, all are open.", lambda _: 1),
)
_EXCHANGES: tuple[Column[Exchange], ...] = (
    ("rabbitmq_cluster_exchange_name", "gauge", "1 for each exchange.", lambda _: 1),
)
#: Of those of type x-delayed-message whose queues are led here.
_DELAYED: tuple[Column[Waiting], ...] = (
    (
        "exchange_messages_delayed",
        "gauge",
        "Messages that wait, those that are due and not handed on included.",
        lambda found: found.messages,
    ),
    (
        "exchange_delayed_next_due_timestamp_seconds",
        "gauge",
        "When the first of them is due, or was, in seconds since 1970; 0: none waits.",
        lambda found: (found.due_ms or 0) / 1000,
    ),
)
#: The same, by what keeps it.
_LATE: tuple[Column[Waiting], ...] = (
    (
        "exchange_delayed_late_seconds",
        "gauge",
        "How long the first of them has been due.",
        lambda found: found.late_ms / 1000,
    ),
)
#: By their degree; the default exchange has none.
_BINDINGS: tuple[Column[int], ...] = (
    (
        "rabbitmq_cluster_exchange_bindings",
        "gauge",
        "Bindings of which an exchange is the source.",
        lambda count: count,
    ),
)
#: Without labels for objects: made as on /metrics.
_SMALL = {
    "connection_churn_metrics": metrics_rabbitmq.Families.churn,
    "auth_attempt_metrics": metrics_rabbitmq.Families.logins,
    "node_coarse_metrics": metrics_rabbitmq.Families.node,
    "node_metrics": metrics_rabbitmq.Families.limits,
}
#: What else /metrics/per-object has of them.
_OF_PER_OBJECT = (
    metrics_rabbitmq.Families.messages,
    metrics_rabbitmq.Families.alarms,
    metrics_rabbitmq.Families.peers,
)
_OF_CLUSTER = frozenset({"vhost_status", "exchange_names", "exchange_bindings"})
#: All that mean something here.
FAMILIES = frozenset(
    {*_QUEUES, *_CONNECTIONS, *_SMALL}
    | {"ra_metrics", "channel_metrics", "exchange_delayed_metrics"}
    | _OF_CLUSTER
)


@dataclass(slots=True, frozen=True)
class Asked:
    """What a request wants; two that are equal share one rendering."""

    families: frozenset[str]
    #: Empty: all.
    vhosts: frozenset[str]
    #: Under the names of /metrics, with the figures there that are of no object.
    is_per_object: bool = False

    @property
    def prefix(self) -> str:
        """Return what the names begin with."""
        return PER_OBJECT_PREFIX if self.is_per_object else PREFIX

    def has(self, vhost: str) -> bool:
        """Tell whether the objects of a vhost are wanted."""
        return not self.vhosts or vhost in self.vhosts


def asked(families: Collection[str], vhosts: Collection[str]) -> Asked | None:
    """Return what is asked for, without families unknown here; None: more than anybody needs."""
    if len(families) > ASKED_MAX or len(vhosts) > ASKED_MAX:
        return None
    return Asked(FAMILIES.intersection(families), frozenset(vhosts))


#: All there is by object, but for what is of the cluster, as RabbitMQ has it.
PER_OBJECT = Asked(FAMILIES - _OF_CLUSTER, frozenset(), is_per_object=True)


async def render(sources: Sources, wanted: Asked) -> bytes:
    """Return the exposition text (format 0.0.4)."""
    parts = await _of_queues(sources, wanted)
    parts += await _of_clients(sources, wanted)
    if "vhost_status" in wanted.families:
        vhosts = [name for name in sources.view.vhosts if wanted.has(name)]
        parts += await _table(
            wanted, _VHOSTS, vhosts, lambda some: [(labels(vhost=v), v) for v in some]
        )
    parts += await _of_exchanges(sources, wanted)
    if "exchange_delayed_metrics" in wanted.families:
        parts += await _of_delayed(sources, wanted)
    figures = Figures(sources)
    if wanted.families & {"node_coarse_metrics", "node_metrics"}:
        await figures.add_process()
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Small(figures, wanted))
    parts.append(generate_latest(registry))
    return b"".join(parts)


class _Small(Collector):
    """Families without a line for each object."""

    def __init__(self, figures: Figures, wanted: Asked) -> None:
        self._figures = figures
        self._wanted = wanted

    def collect(self) -> Iterable[Metric]:
        """Return them, each once."""
        wanted = self._wanted
        families = metrics_rabbitmq.Families(self._figures, wanted.prefix)
        for name, make in _SMALL.items():
            if name in wanted.families:
                yield from make(families)
        for make in _OF_PER_OBJECT if wanted.is_per_object else ():
            yield from make(families)
        endpoint = "per-object" if wanted.is_per_object else "detailed"
        yield from metrics_rabbitmq.identity(self._figures.sources, endpoint)


async def _of_queues(sources: Sources, wanted: Asked) -> list[bytes]:
    queues = sources.queues
    table = queues.table
    table.take()

    def here(uids: Sequence[int]) -> Iterable[tuple[str, array[int]]]:
        for uid in filter(sources.host.has_group, uids):
            queue, row = queues.queue_of(uid), table.row_of(uid)
            if queue is not None and row is not None and wanted.has(queue.vhost):
                yield labels(vhost=queue.vhost, queue=queue.name), row

    def led(uids: Sequence[int]) -> Iterable[tuple[str, array[int]]]:
        return here(list(filter(queues.leads, uids)))

    def infos(uids: Sequence[int]) -> Iterable[tuple[str, int]]:
        for uid in filter(sources.host.has_group, uids):
            queue = queues.queue_of(uid)
            if queue is not None and wanted.has(queue.vhost):
                membership = "leader" if queues.leads(uid) else "follower"
                names = {"vhost": queue.vhost, "queue": queue.name}
                kind = f"rabbit_{queue.type}_queue"
                yield labels(**names, queue_type=kind, membership=membership), uid

    figures = _columns(_QUEUES, wanted)
    parts = await _table(wanted, _values(figures), list(queues.led), led) if figures else []
    if _INFO & wanted.families:
        parts += await _table(wanted, _QUEUE_INFO, queues.queue_uids(), infos)
    if "ra_metrics" in wanted.families:
        parts += await _table(wanted, _values(_GROUPS), queues.queue_uids(), here)
    return parts


def _values(figures: Iterable[_Figure]) -> list[Column[array[int]]]:
    """Return columns of a table whose rows are those of queues/table.py."""

    def value_of(names: tuple[str, ...]) -> Callable[[array[int]], float]:
        places = [AT[name] for name in names]
        return lambda row: sum([row[at] for at in places])

    return [(name, kind, text, value_of(names)) for name, kind, text, names in figures]


async def _of_clients(sources: Sources, wanted: Asked) -> list[bytes]:
    def connections(some: Sequence[ClientConnection]) -> Iterable[tuple[str, ClientConnection]]:
        for connection in some:
            if wanted.has(connection.vhost):
                yield labels(channel=connection.name), connection

    def channels(some: Sequence[ClientConnection]) -> Iterable[tuple[str, Session]]:
        for connection in some:
            if wanted.has(connection.vhost):
                for number, session in connection.sessions.items():
                    yield labels(channel=f"{connection.name} ({number})"), session

    columns, opened = _columns(_CONNECTIONS, wanted), sources.connections.all()
    parts = await _table(wanted, columns, opened, connections) if columns else []
    if "channel_metrics" in wanted.families:
        parts += await _table(wanted, _CHANNELS, opened, channels)
    return parts


async def _of_exchanges(sources: Sources, wanted: Asked) -> list[bytes]:
    view = sources.view

    def named(some: Sequence[Exchange]) -> Iterable[tuple[str, Exchange]]:
        for item in some:
            if item.name and wanted.has(item.vhost):
                yield labels(vhost=item.vhost, exchange=item.name, type=item.type), item

    def bound(some: Sequence[Exchange]) -> Iterable[tuple[str, int]]:
        for label, item in named(some):
            vhost = view.vhosts.get(item.vhost)
            if vhost is not None:
                yield label, vhost.bindings.degree(item.name)[0]

    if not {"exchange_names", "exchange_bindings"} & wanted.families:
        return []
    exchanges = [
        exchange for vhost in view.vhosts.values() for exchange in vhost.exchanges.values()
    ]
    parts: list[bytes] = []
    if "exchange_bindings" in wanted.families:
        parts += await _table(wanted, _BINDINGS, exchanges, bound)
    if "exchange_names" in wanted.families:
        parts += await _table(wanted, _EXCHANGES, exchanges, named)
    return parts


async def _of_delayed(sources: Sources, wanted: Asked) -> list[bytes]:
    rows: list[tuple[str, Waiting]] = []
    late: list[tuple[str, Waiting]] = []
    async for some in led_delayed(sources):
        for exchange, found in some:
            if wanted.has(exchange.vhost):
                names = {"vhost": exchange.vhost, "exchange": exchange.name}
                rows.append((labels(**names), found))
                late.append((labels(**names, reason=found.reason or "none"), found))
    parts = await _table(wanted, _DELAYED, rows, lambda some: some)
    return parts + await _table(wanted, _LATE, late, lambda some: some)


def _columns(families: Mapping[str, tuple[C, ...]], wanted: Asked) -> list[C]:
    """Return the columns of the families that are wanted, each once."""
    found = {
        column[0]: column
        for family, columns in families.items()
        if family in wanted.families
        for column in columns
    }
    return list(found.values())


async def _table(
    wanted: Asked,
    columns: Sequence[Column[R]],
    items: Sequence[T],
    describe: Callable[[Sequence[T]], Iterable[tuple[str, R]]],
) -> list[bytes]:
    """Return the text of these metrics, metric by metric; describe: labels and row of some items,
    fewer than there are if some are gone meanwhile.
    """
    names = [name if name.startswith("rabbitmq_") else wanted.prefix + name for name, *_ in columns]
    blocks = [
        [f"# HELP {name} {text}\n# TYPE {name} {kind}\n".encode()]
        for name, (_, kind, text, _) in zip(names, columns, strict=True)
    ]
    async for some in in_chunks(items, CHUNK):
        rows = list(describe(some))
        for name, column, block in zip(names, columns, blocks, strict=True):
            value = column[3]
            lines = [f"{name}{{{label}}} {value(row)}\n" for label, row in rows]
            block.append("".join(lines).encode())
    return [part for block in blocks for part in block]


def labels(**pairs: str) -> str:
    """Return labels as they stand between the braces; names come from outside."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(value: str) -> str:
    if not value.isascii():
        # A name that is no UTF-8 stays apart from others.
        value = value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if '"' in value or "\\" in value or "\n" in value:
        value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return value
