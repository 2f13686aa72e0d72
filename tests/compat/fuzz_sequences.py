"""Random but legal AMQP sequences for the differential fuzzer: one seed, one sequence.

A sequence is data: it can be printed, shortened and played again.  Names begin with `~`, which the
player replaces by a prefix of its own run.  Few names on purpose, so that operations meet: most
sequences redeclare, bind in circles, overflow and dead-letter.  What RabbitMQ leaves open (which of
two queues delivers first on one channel, an expiry between two operations) is not generated.
Used by `fuzz.py` only.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from brokerd.amqp import methods
from brokerd.amqp.methods import Method
from brokerd.amqp.properties import BasicProperties
from brokerd.amqp.values import Decimal, Table, Timestamp, Value

CONNECTIONS_MAX = 2
CHANNELS_MAX = 3
OPERATIONS_MIN, OPERATIONS_MAX = 10, 60
QUEUES = tuple(f"~q{i}" for i in range(1, 5))
EXCHANGES = tuple(f"~e{i}" for i in range(1, 4))
BUILT_IN = ("amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match", "")
KEYS = ("a", "b", "a.b", "a.b.c", "", "é", "*", "#")
PATTERNS = ("a", "a.*", "#", "*.b", "a.#", "#.c", "", "a.#.c", "*", "b")
LONG_MS = 600_000
#: Something that expires on its own is given this long at once, before anything else is done.
SHORT_TTL_MS, PAUSE_MS = 30, 120


@dataclass(slots=True)
class Step:
    """One operation: a method, what goes with it, and where."""

    connection: int
    channel: int
    method: Method
    properties: BasicProperties | None = None
    body: bytes = b""
    #: Publishes written in one piece.
    count: int = 1
    #: Which outstanding delivery the tag means: oldest 0, newest -1; None takes the tag as it is.
    pick: int | None = None
    #: Milliseconds that pass before the outcome is looked at.
    pause_ms: int = 0
    #: The client drops the socket instead of sending the method.
    drop: bool = False

    def __str__(self) -> str:
        where = f"c{self.connection}.{self.channel}"
        if self.drop:
            return f"{where} drop the socket"
        fields = ", ".join(
            f"{name}={value!r}"
            for name in self.method.FIELDS
            if (value := getattr(self.method, name)) or name == "queue"
        )
        text = f"{where} {self.method.NAME}({fields})"
        if self.pick is not None:
            text += f" tag of outstanding delivery {self.pick}"
        if isinstance(self.method, methods.BasicPublish):
            given = {
                name: value
                for name in BasicProperties.__slots__
                if (value := getattr(self.properties, name)) is not None
            }
            text += f" {given} body={self.body!r}" + (f" x{self.count}" if self.count > 1 else "")
        return text + (f" then {self.pause_ms} ms" if self.pause_ms else "")


@dataclass(slots=True)
class Plan:
    """What the generator remembers, so that most operations mean something."""

    rng: random.Random
    #: Name to the method that declared it last.
    queues: dict[str, methods.QueueDeclare] = field(default_factory=dict)
    exchanges: dict[str, methods.ExchangeDeclare] = field(default_factory=dict)
    bindings: list[Method] = field(default_factory=list)
    #: (connection, channel) to the one queue it consumes from and its tags.
    consumed: dict[tuple[int, int], str] = field(default_factory=dict)
    tags: list[tuple[int, int, str]] = field(default_factory=list)
    bodies: int = 0
    with_tx: bool = True

    def queue(self) -> str:
        """A queue's name, of one that was declared as a rule."""
        if self.queues and self.rng.random() < 0.93:
            return self.rng.choice(list(self.queues))
        return self.rng.choice((*QUEUES, "~none", ""))

    def exchange(self) -> str:
        """An exchange's name, of one that exists as a rule."""
        if self.exchanges and self.rng.random() < 0.7:
            return self.rng.choice(list(self.exchanges))
        return self.rng.choice(
            (*BUILT_IN, *EXCHANGES, "~none") if self.rng.random() < 0.3 else BUILT_IN
        )


Made = tuple[Method, dict[str, Any]]
Maker = Callable[[Plan, int, int], Made]


def _some(rng: random.Random, choices: dict[str, tuple[Value, ...]], chance: float) -> Table:
    """A table with a few of the offered arguments."""
    return {name: rng.choice(values) for name, values in choices.items() if rng.random() < chance}


#: Values that are good, at the edge, and wrong, in about that weight.
_TTL: tuple[Value, ...] = (LONG_MS, LONG_MS, LONG_MS, 0, 0, -1, "60", 1.5)
_QUEUE_ARGUMENTS: dict[str, tuple[Value, ...]] = {
    "x-message-ttl": _TTL,
    "x-expires": (LONG_MS, LONG_MS, LONG_MS, 0, -1, "1"),
    "x-max-length": (1, 2, 2, 3, 3, 0, -1, "2"),
    "x-max-length-bytes": (4, 9, 9, 20, 0, -1, True),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx", "reject-publish", "no", 1),
    "x-dead-letter-exchange": (*EXCHANGES, *EXCHANGES, "", "", "amq.fanout", "~none", 1),
    "x-dead-letter-routing-key": (*QUEUES, "a", "a.b", 1),
    "x-max-priority": (5, 5, 2, 1, 255, 0, 256, -1, "5"),
    "x-single-active-consumer": (True, False, True, "true"),
    "x-queue-mode": ("lazy", "default", "odd"),
    "x-queue-version": (2, 2, 2, 3),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once", "never"),
    "x-delivery-limit": (2, 0),
    "x-foo": ("bar", 1, None),
}
_QUORUM_ARGUMENTS: dict[str, tuple[Value, ...]] = {
    "x-max-length": (1, 2, 3, 3, -1),
    "x-overflow": ("drop-head", "drop-head", "reject-publish-dlx"),
    "x-dead-letter-exchange": (*EXCHANGES, "", "", "amq.fanout"),
    "x-dead-letter-routing-key": (*QUEUES, "a"),
    "x-delivery-limit": (0, 1, 2, 2, 3, "2"),
    "x-single-active-consumer": (True, False),
    "x-max-priority": (5,),
    "x-message-ttl": (LONG_MS, LONG_MS, -1),
    "x-quorum-initial-group-size": (1, 1, 0, "1"),
    "x-foo": ("bar",),
}
#: How likely each of the arguments is, so that most declares are of a queue that works.
_SPARSE = {
    "x-queue-mode": 0.3,
    "x-queue-version": 0.3,
    "x-delivery-limit": 0.2,
    "x-dead-letter-strategy": 0.2,
    "x-expires": 0.5,
    "x-dead-letter-exchange": 3.0,
}


def _queue_arguments(rng: random.Random, is_quorum: bool) -> Table:
    offered = _QUORUM_ARGUMENTS if is_quorum else _QUEUE_ARGUMENTS
    table: Table = {}
    if is_quorum:
        table["x-queue-type"] = "quorum"
    elif rng.random() < 0.06:
        table["x-queue-type"] = rng.choice(("classic", "classic", "zz"))
    for name, values in offered.items():
        if rng.random() < 0.11 * (1.0 if is_quorum else _SPARSE.get(name, 1.0)):
            table[name] = rng.choice(values if rng.random() < 0.3 else values[:2])
    if "x-dead-letter-exchange" not in table and rng.random() < 0.9:
        table.pop("x-dead-letter-routing-key", None)
    return table


def _declare_queue(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    if plan.queues and rng.random() < 0.3:
        return _redeclare_queue(plan)
    is_quorum = rng.random() < 0.2
    method = methods.QueueDeclare(
        queue=rng.choice(QUEUES) if is_quorum or rng.random() < 0.92 else "",
        durable=is_quorum or rng.random() < 0.6,
        exclusive=rng.random() < 0.08,
        auto_delete=rng.random() < (0.02 if is_quorum else 0.15),
        nowait=rng.random() < 0.1,
        arguments=_queue_arguments(rng, is_quorum),
    )
    if rng.random() < 0.02:
        method.queue = rng.choice(("amq.own", "~q\u00e9"))
    if method.queue and not method.queue.startswith("amq."):
        plan.queues.setdefault(method.queue, method)
    return method, {}


def _redeclare_queue(plan: Plan) -> Made:
    """The same again, passively, or with one thing changed."""
    rng = plan.rng
    name = plan.queue()
    before = plan.queues.get(name, methods.QueueDeclare(queue=name))
    method = methods.QueueDeclare(
        queue=name,
        passive=rng.random() < 0.3,
        durable=before.durable,
        exclusive=before.exclusive,
        auto_delete=before.auto_delete,
        arguments=dict(before.arguments),
    )
    change = rng.random()
    if change < 0.1:
        method.durable = not method.durable
    elif change < 0.2:
        method.auto_delete = not method.auto_delete
    elif change < 0.25:
        method.exclusive = not method.exclusive
    elif change < 0.4:
        method.arguments |= _some(rng, _QUEUE_ARGUMENTS, 0.12)
    elif change < 0.5 and method.arguments:
        method.arguments.pop(rng.choice(list(method.arguments)))
    return method, {}


def _declare_exchange(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    name = rng.choice(EXCHANGES)
    before = plan.exchanges.get(name)
    if before is not None and rng.random() < 0.6:
        method = methods.ExchangeDeclare(
            exchange=name,
            type=before.type,
            durable=before.durable,
            auto_delete=before.auto_delete,
            internal=before.internal,
            passive=rng.random() < 0.3,
            arguments=dict(before.arguments),
        )
        attribute = rng.choice(("durable", "auto_delete", "internal", "type", "", "", ""))
        if attribute == "type":
            method.type = rng.choice(("direct", "topic", "fanout", "headers"))
        elif attribute:
            setattr(method, attribute, not getattr(method, attribute))
        return method, {}
    method = methods.ExchangeDeclare(
        exchange=name,
        type=rng.choice(("direct", "topic", "fanout", "headers")),
        durable=rng.random() < 0.5,
        auto_delete=rng.random() < 0.15,
        internal=rng.random() < 0.07,
        nowait=rng.random() < 0.1,
    )
    if rng.random() < 0.35:
        method.arguments["alternate-exchange"] = rng.choice(
            (*EXCHANGES, *EXCHANGES, "amq.fanout", "~none", "", 1)
        )
    if rng.random() < 0.05:
        method.arguments["x-foo"] = 1
    if rng.random() < 0.04:
        method.exchange = rng.choice(("amq.own", "amq.direct", "~none", ""))
    else:
        plan.exchanges.setdefault(name, method)
    return method, {}


_MATCHES: tuple[Value, ...] = ("all", "any", "all", "any", "all-with-x", "any-with-x", "odd", 1)


def _binding_arguments(rng: random.Random) -> Table:
    if rng.random() < 0.6:
        return {}
    table = _some(rng, {"h": (1, "1", True), "g": ("x", None, 1.0), "x-h": (1,)}, 0.5)
    if rng.random() < 0.6:
        table["x-match"] = rng.choice(_MATCHES if rng.random() < 0.2 else _MATCHES[:4])
    return table


def _bind(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    key = rng.choice(PATTERNS)
    nowait = rng.random() < 0.05
    method: Method
    if rng.random() < 0.25:
        method = methods.ExchangeBind(
            destination=plan.exchange(),
            source=plan.exchange(),
            routing_key=key,
            nowait=nowait,
            arguments=_binding_arguments(rng),
        )
    else:
        method = methods.QueueBind(
            queue=plan.queue(),
            exchange=plan.exchange(),
            routing_key=key,
            nowait=nowait,
            arguments=_binding_arguments(rng),
        )
    plan.bindings.append(method)
    return method, {}


def _unbind(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    bound = rng.choice(plan.bindings) if plan.bindings else methods.QueueBind(queue=plan.queue())
    key = rng.choice(PATTERNS) if rng.random() < 0.1 else None
    if isinstance(bound, methods.ExchangeBind):
        return methods.ExchangeUnbind(
            destination=bound.destination,
            source=bound.source,
            routing_key=bound.routing_key if key is None else key,
            arguments=dict(bound.arguments),
        ), {}
    assert isinstance(bound, methods.QueueBind)
    return methods.QueueUnbind(
        queue=bound.queue,
        exchange=bound.exchange,
        routing_key=bound.routing_key if key is None else key,
        arguments=dict(bound.arguments),
    ), {}


def _headers(rng: random.Random) -> Table:
    values: dict[str, tuple[Value, ...]] = {
        "h": (1, "1", True, 1.0),
        "g": ("x", None, 1, 2.5),
        "x-h": (1, 2),
        "deep": ({"t": [1, "a", None, {"u": b"\x00"}]}, [], {}),
        "time": (Timestamp(1_700_000_000), Decimal(2, 314)),
        "wide": (2**40, -(2**31), 255, -1),
    }
    table = _some(rng, values, 0.25)
    if rng.random() < 0.1:
        table["CC"] = rng.choice(([*QUEUES[:2]], ["a", "b"], [], "a", [1]))
    if rng.random() < 0.1:
        table["BCC"] = rng.choice(([QUEUES[1]], ["b", "a.b"], "a"))
    return table


_EXPIRATIONS = ("600000", "600000", "0", "0", "", "-1", "abc", "1.5", "6 ", "99999999999999")


def _properties(rng: random.Random) -> BasicProperties:
    made = BasicProperties()
    if rng.random() < 0.3:
        made.headers = _headers(rng)
    if rng.random() < 0.4:
        made.delivery_mode = rng.choice((1, 2, 2))
    if rng.random() < 0.2:
        made.priority = rng.choice((0, 1, 3, 5, 9, 255))
    if rng.random() < 0.08:
        made.expiration = rng.choice(_EXPIRATIONS if rng.random() < 0.2 else _EXPIRATIONS[:4])
    if rng.random() < 0.06:
        made.user_id = rng.choice(("guest", "guest", "guest", "nobody"))
    for name in ("content_type", "correlation_id", "reply_to", "message_id", "type", "app_id"):
        if rng.random() < 0.06:
            setattr(made, name, rng.choice(("", "text/plain", "ä")))
    if rng.random() < 0.06:
        made.timestamp = rng.choice((0, 1_700_000_000, 2**63))
    if rng.random() < 0.03:
        made.content_encoding, made.cluster_id = "gzip", "c"
    return made


def _publish(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    to_queue = rng.random() < 0.45
    method = methods.BasicPublish(
        exchange="" if to_queue else plan.exchange(),
        routing_key=plan.queue() if to_queue else rng.choice(KEYS),
        mandatory=rng.random() < 0.25,
        immediate=rng.random() < 0.004,
    )
    plan.bodies += 1
    extra: dict[str, Any] = {
        "properties": _properties(rng),
        "body": f"m{plan.bodies}".encode() + b"." * rng.choice((0, 0, 0, 3, 7)),
        "count": rng.choice((1, 1, 1, 1, 2, 3, 6)),
    }
    shared = list(plan.consumed.values())
    if len(set(shared)) < len(shared) or len(plan.tags) > len(shared):
        # D-63: what comes together is shared out in runs.
        extra["count"] = 1
    if rng.random() < 0.03:
        extra["properties"].expiration = str(SHORT_TTL_MS)
        extra["pause_ms"] = PAUSE_MS
    if rng.random() < 0.01:
        extra["body"] = b"" if rng.random() < 0.5 else extra["body"] * 40_000
    return method, extra


def _get(plan: Plan, connection: int, channel: int) -> Made:
    return methods.BasicGet(queue=plan.queue(), no_ack=plan.rng.random() < 0.25), {}


def _consume(plan: Plan, connection: int, channel: int) -> Made:
    """One queue for each channel: two would race for the order on it."""
    rng = plan.rng
    at = (connection, channel)
    queue = plan.consumed.setdefault(at, plan.queue())
    tag = rng.choice(("t1", "t2", "t3", "t3"))
    if rng.random() < 0.97:
        # A tag that is in use costs the connection (R-CS-1).
        tag = f"t{channel}-{len(plan.tags)}"
    method = methods.BasicConsume(
        queue=queue,
        consumer_tag=tag if rng.random() < 0.95 else "",
        no_local=rng.random() < 0.05,
        no_ack=rng.random() < 0.3,
        exclusive=rng.random() < 0.08,
        nowait=rng.random() < 0.05,
    )
    if rng.random() < 0.12:
        method.arguments["x-priority"] = rng.choice((1, 5, -1, 1, "1"))
    if rng.random() < 0.03:
        method.arguments["x-cancel-on-ha-failover"] = True
    plan.tags.append((connection, channel, method.consumer_tag))
    return method, {}


def _cancel(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    own = [tag for at, ch, tag in plan.tags if (at, ch) == (connection, channel) and tag]
    tag = rng.choice(own) if own and rng.random() < 0.9 else "nobody"
    return methods.BasicCancel(consumer_tag=tag, nowait=rng.random() < 0.1), {}


def _settle(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    multiple = rng.random() < 0.3
    requeue = rng.random() < 0.5
    method: Method = rng.choice(
        (
            methods.BasicAck(0, multiple),
            methods.BasicNack(0, multiple, requeue),
            methods.BasicNack(0, multiple, requeue),
            methods.BasicReject(0, requeue),
        )
    )
    chance = rng.random()
    if chance < 0.04:
        return method, {}
    if chance < 0.06:
        setattr(method, "delivery_tag", rng.choice((1, 7, 99)))  # noqa: B010
        return method, {}
    return method, {"pick": rng.choice((0, 0, 0, -1, -1, 1, 2))}


def _recover(plan: Plan, connection: int, channel: int) -> Made:
    kind = plan.rng.choice((methods.BasicRecover, methods.BasicRecover, methods.BasicRecoverAsync))
    return kind(plan.rng.random() < 0.97), {}


def _qos(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    size = 1 if rng.random() < 0.01 else 0
    return methods.BasicQos(size, rng.choice((0, 1, 1, 2, 3, 10)), rng.random() < 0.1), {}


def _purge(plan: Plan, connection: int, channel: int) -> Made:
    return methods.QueuePurge(queue=plan.queue(), nowait=plan.rng.random() < 0.1), {}


def _delete_queue(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    return methods.QueueDelete(
        queue=plan.queue(),
        if_unused=rng.random() < 0.25,
        if_empty=rng.random() < 0.25,
        nowait=rng.random() < 0.1,
    ), {}


def _delete_exchange(plan: Plan, connection: int, channel: int) -> Made:
    rng = plan.rng
    name = rng.choice(EXCHANGES) if rng.random() < 0.95 else rng.choice(BUILT_IN)
    return methods.ExchangeDelete(
        exchange=name, if_unused=rng.random() < 0.35, nowait=rng.random() < 0.1
    ), {}


def _confirm(plan: Plan, connection: int, channel: int) -> Made:
    return methods.ConfirmSelect(nowait=plan.rng.random() < 0.1), {}


def _transaction(plan: Plan, connection: int, channel: int) -> Made:
    if not plan.with_tx:
        return _confirm(plan, connection, channel)
    kind = plan.rng.choice(
        (methods.TxSelect, methods.TxCommit, methods.TxCommit, methods.TxRollback)
    )
    return kind(), {}


def _close_channel(plan: Plan, connection: int, channel: int) -> Made:
    plan.consumed.pop((connection, channel), None)
    return methods.ChannelClose(200, "bye", 0, 0), {}


def _close_connection(plan: Plan, connection: int, channel: int) -> Made:
    for at in [at for at in plan.consumed if at[0] == connection]:
        del plan.consumed[at]
    return methods.ConnectionClose(200, "bye", 0, 0), {
        "drop": plan.rng.random() < 0.4,
        # What a connection held goes back to its queues a moment later.
        "pause_ms": PAUSE_MS // 4,
    }


#: What is done, and how often.
MAKERS: tuple[tuple[Maker, int], ...] = (
    (_declare_queue, 14),
    (_declare_exchange, 8),
    (_bind, 14),
    (_unbind, 4),
    (_publish, 26),
    (_get, 9),
    (_consume, 7),
    (_cancel, 3),
    (_settle, 14),
    (_recover, 2),
    (_qos, 4),
    (_purge, 2),
    (_delete_queue, 3),
    (_delete_exchange, 2),
    (_confirm, 3),
    (_transaction, 2),
    (_close_channel, 2),
    (_close_connection, 1),
)


def sequence(seed: int, with_tx: bool = True) -> list[Step]:
    """The sequence of a seed; the same one for ever, while this file stays as it is."""
    rng = random.Random(seed)
    plan = Plan(rng, with_tx=with_tx)
    connections = rng.randint(1, CONNECTIONS_MAX)
    channels = rng.randint(1, CHANNELS_MAX)
    makers = [maker for maker, _ in MAKERS]
    weights = [weight for _, weight in MAKERS]
    steps = []
    for number in range(rng.randint(OPERATIONS_MIN, OPERATIONS_MAX)):
        connection, channel = rng.randrange(connections), rng.randint(1, channels)
        # Something to work with first.
        chosen = _declare_queue if number < 2 else rng.choices(makers, weights)[0]
        method, extra = chosen(plan, connection, channel)
        steps.append(Step(connection, channel, method, **extra))
    return steps
