"""What is fuzzed of the replicated state: commands and snapshots of queues and of the catalog.

A committed command is the same on every member, so one that makes a machine raise stops the group
everywhere: machines answer whatever bytes come (design/replication.md).  Used by `tests.fuzz` only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from brokerd.core import annotations
from brokerd.core.catalog import catalog_commands, catalog_specs, names
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.catalog.catalog_specs import SpecError
from brokerd.core.queue import (
    client_sessions,
    enqueue_commands,
    joined_settlements,
    queue_commands,
    settling_gets,
)
from brokerd.core.queue import queue_decoders as decoders
from brokerd.core.queue.client_shapes import Checkout
from brokerd.core.queue.queue_commands import ReturnCause
from brokerd.core.queue.queue_machine import QueueMachine
from brokerd.core.queue_options import QueueOptions
from tests.fuzz.target import Target
from tests.unit.core.catalog_driver import VHOST, CatalogDriver
from tests.unit.core.queue_driver import QueueDriver, consumer, content

COMMANDS_MAX = 50


@dataclass(slots=True)
class Meta:
    """A command's circumstances."""

    index: int
    term: int = 1
    now_ms: int = 1_000


def pieces(data: bytes) -> list[bytes]:
    """The commands in an input: each behind its length in two bytes."""
    found = []
    at = 0
    while at + 2 <= len(data) and len(found) < COMMANDS_MAX:
        size = int.from_bytes(data[at : at + 2], "big")
        found.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return found


def joined(commands: list[bytes]) -> bytes:
    """An input made of commands."""
    return b"".join(len(command).to_bytes(2, "big") + command for command in commands)


def queue_commands_target(data: bytes) -> None:
    """Commands of a queue: answered, and the state stays sound (SEC-44, R-QQ-9)."""
    kind = "quorum" if data[:1] > b"\x7f" else "classic"
    machine = QueueMachine(QueueOptions(queue_type=kind))
    for number, command in enumerate(pieces(data[1:]), 1):
        machine.apply(Meta(number, now_ms=1_000 * number), command)
        machine.check_invariants()
    machine.overview()
    again = QueueMachine(QueueOptions())
    again.restore(machine.snapshot())
    assert again.snapshot() == machine.snapshot()


def queue_snapshot_target(data: bytes) -> None:
    """A queue's snapshot, which comes from the disk or from a leader."""
    machine = QueueMachine(QueueOptions())
    try:
        machine.restore(data)
    except (*decoders.MALFORMED, AssertionError, AttributeError, OverflowError):
        return
    machine.overview()


def catalog_commands_target(data: bytes) -> None:
    """Commands of the catalog: answered, and the state stays sound."""
    machine = CatalogMachine()
    for number, command in enumerate(pieces(data), 1):
        outcome = machine.apply(Meta(number), command)
        json.loads(outcome.reply)
        machine.check_invariants()
    again = CatalogMachine()
    again.restore(machine.snapshot())
    assert again.snapshot() == machine.snapshot()


def annotations_target(data: bytes) -> None:
    """What the broker keeps beside a message."""
    try:
        found = annotations.decode(data)
    except decoders.MALFORMED:
        return
    annotations.encode(found)


def specs_target(data: bytes) -> None:
    """What an operator, brokerctl or a definitions file says of an object."""
    try:
        given = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(given, dict):
        return
    for kind in names.KINDS:
        try:
            stored = catalog_specs.normalise(kind, "v", "n", given)
        except SpecError:
            continue
        # An equal spec means an equal object.
        assert catalog_specs.normalise(kind, "v", "n", stored) == stored


def _queue_log(**options: object) -> tuple[list[bytes], QueueMachine]:
    q = QueueDriver(**options)
    q.consume(prefetch=2)
    q.fill(5)
    q.requeue((0, 1))
    sent = (
        enqueue_commands.encode_enqueue(
            "n1", 7, 1, 90, [content(b"x" * n, priority=n, ttl_ms=5) for n in range(3)]
        ),
        queue_commands.encode_ranges(
            queue_commands.Kind.SETTLE, consumer(), [(1, 2)], ReturnCause.NACK
        ),
        joined_settlements.encode(
            [
                queue_commands.encode_ranges(queue_commands.Kind.SETTLE, consumer(), [(2, 3)]),
                queue_commands.encode_ranges(queue_commands.Kind.SETTLE, consumer("g"), [(1, 4)]),
            ]
        ),
        queue_commands.encode_get(consumer("g"), False),
        settling_gets.encode(queue_commands.encode_get(consumer(), True), [(1, 2), (3, 5)]),
        queue_commands.encode_resume(consumer(), [(1, 3)]),
        queue_commands.encode_cancel(consumer()),
        queue_commands.encode_checkout(Checkout(consumer("g"), 3, False, False, 0, "u", credit=2)),
        queue_commands.encode_ranges(
            queue_commands.Kind.RETURN, consumer("g"), [(1, 2)], ReturnCause.UNWRITTEN
        ),
        queue_commands.encode_channel_down("n1", 7, 1, {"g": [(0, 2)], "": [(3, 4)]}),
        enqueue_commands.encode_joined(
            "n1", 7, [(60, 1, 2), (61, 1, 1)], [content(b"x" * n, ttl_ms=5) for n in range(3)]
        ),
        queue_commands.encode_publishers_ended("n1", 7, [60, 61]),
        queue_commands.encode_node_down("n1"),
        queue_commands.encode_node_up("n1", 8),
        queue_commands.encode_update_options(q.options),
        queue_commands.encode_tick(),
        queue_commands.encode_declared(),
        queue_commands.encode_dead_letters_checkout(3),
        queue_commands.encode_dead_letters_settle([(0, 2)]),
        queue_commands.encode_purge(),
        queue_commands.encode_delete(False, False, "test"),
    )
    for command in sent[:-1]:
        q.send(command)
    return [command for _, command in q.log] + [sent[-1]], q.machine


def _queue_histories() -> list[tuple[list[bytes], QueueMachine]]:
    return [
        _queue_log(),
        _queue_log(queue_type="quorum", delivery_limit=2, dead_letter_exchange="x"),
        _queue_log(max_length=2, overflow="reject-publish", max_priority=5),
    ]


def _enveloped(commands: list[bytes]) -> list[bytes]:
    """The same commands as a member sends them."""
    sent = []
    number = 0
    for command in commands:
        if client_sessions.is_once(command):
            number += 1
            command = client_sessions.encode("n1", 7, number, number - 1, 1, command)
        sent.append(command)
    return sent


def queue_command_seeds() -> list[bytes]:
    """Histories of three queues, whole and command by command."""
    found = []
    for commands, _ in _queue_histories():
        found += [b"\x00" + joined(commands), b"\xff" + joined(commands)]
        found.append(b"\xff" + joined(_enveloped(commands)))
        found += [b"\xff" + joined([command]) for command in commands]
    return found


def queue_snapshot_seeds() -> list[bytes]:
    """Snapshots of three queues."""
    return [machine.snapshot() for _, machine in _queue_histories()]


def catalog_command_seeds() -> list[bytes]:
    """The history of a small catalog."""
    driver = CatalogDriver()
    for kind, name, spec in (
        ("exchange", "e", {"type": "topic"}),
        ("queue", "q", {"type": "classic", "arguments": {"x-max-length": 5}}),
        ("policy", "p", {"pattern": "^q", "definition": {"max-length": 3}}),
        ("user", "u", {"password_hash": "h", "tags": ["monitoring"]}),
    ):
        driver.do(catalog_commands.put(kind, VHOST, name, spec, cause="test"))
    log = [command for _, command in driver.log]
    return [joined(log), *(joined([command]) for command in log)]


def annotation_seeds() -> list[bytes]:
    """Histories of dead letters."""
    death = annotations.Death(
        queue="q", reason="rejected", count=1, time_s=1, exchange="x", routing_keys=["k"]
    )
    full = annotations.Annotations(
        ttl_ms=0, priority=3, bcc=["b"], deaths=[death], first_death=("r", "q", "x")
    )
    return [annotations.encode(full), annotations.encode(annotations.Annotations(ttl_ms=5))]


def spec_seeds() -> list[bytes]:
    """A spec of each kind."""
    specs = (
        {"type": "topic", "durable": True, "arguments": {"alternate-exchange": "a"}},
        {"type": "quorum", "replicas": 3, "arguments": {"x-delivery-limit": 5}},
        {"source": "e", "destination": "q", "destination_kind": "queue", "routing_key": "#"},
        {"pattern": "^q", "definition": {"message-ttl": 5}, "apply-to": "queues", "priority": 1},
        {"configure": ".*", "write": "", "read": "^a"},
        {"password_hash": "h", "tags": ["administrator"], "limits": {"max-connections": 3}},
    )
    return [json.dumps(spec).encode() for spec in specs] + [b'{"a":' * 70 + b"1" + b"}" * 70]


TARGETS: dict[str, Target] = {
    "queue-commands": Target(queue_commands_target, queue_command_seeds),
    "queue-snapshots": Target(queue_snapshot_target, queue_snapshot_seeds),
    "catalog-commands": Target(catalog_commands_target, catalog_command_seeds),
    "annotations": Target(annotations_target, annotation_seeds, 1024),
    "specs": Target(specs_target, spec_seeds, 1024),
}
