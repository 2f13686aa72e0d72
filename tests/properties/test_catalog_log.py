"""The catalog: same log same state, snapshot and rest of the log too, any bytes are answered."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_machine import CatalogMachine
from tests.unit.core.catalog_driver import OTHER, OWN, StepMeta

NAMES = st.sampled_from(["a", "b", "amq.topic", "x|y", ""])
VHOSTS = st.sampled_from(["/", "v", ""])
KINDS = st.sampled_from(
    ["vhost", "user", "permission", "exchange", "queue", "binding", "policy", "parameter", "member"]
)
SPECS: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [
        {},
        {"type": "topic"},
        {"type": "fanout", "auto_delete": True, "settings": {"alternate-exchange": "a"}},
        {"type": "classic", "durable": False},
        {"type": "quorum", "settings": {"max-length": 1}},
        {"source": "a", "destination": "a", "routing_key": "k"},
        {"source": "amq.topic", "destination": "b", "destination_kind": "exchange"},
        {"source": "a", "destination": "a", "arguments": {"n": [1]}},
        {"pattern": ".*", "definition": {"max-length": 5}},
        {"configure": "", "write": ".*", "read": "("},
        {"tags": ["x"], "password_hash": "h"},
        {"peer_address": "h:1"},
        {"value": {"a": [1, None]}},
        {"type": 5, "spec": None},
    ]
)
PUTS = st.builds(
    lambda kind, vhost, name, spec, cause, declare, owner, uid: catalog_commands.put(
        kind,
        vhost,
        name,
        spec,
        cause=cause,
        declare=declare,
        exclusive_owner=owner,
        uid=uid,
        members=["n1"],
    ),
    KINDS,
    VHOSTS,
    NAMES,
    SPECS,
    st.sampled_from(["admin", "amqp:u"]),
    st.booleans(),
    st.sampled_from([None, OWN, OTHER]),
    st.integers(1, 9),
)
DELETES = st.builds(
    lambda kind, vhost, name, if_unused: catalog_commands.delete(
        kind, vhost, name, cause="admin", if_unused=if_unused
    ),
    KINDS,
    VHOSTS,
    NAMES,
    st.booleans(),
)
OTHERS = st.sampled_from(
    [
        catalog_commands.node_started("n1", 8),
        catalog_commands.connection_closed(OWN),
        catalog_commands.put("vhost", "", "v", {}, cause="admin"),
        catalog_commands.delete("vhost", "", "v", cause="admin"),
        catalog_commands.set_queue_members("/", "a", 1, ["n2"]),
        catalog_commands.set_queue_members("/", "a", 1, ["n1", "n2"], revision=3),
        catalog_commands.put_member("n2", "n2:5690"),
        catalog_commands.remove_member("n2"),
        catalog_commands.want_queue_members("/", "a", 1, add=["n2"]),
        catalog_commands.want_queue_members("/", "a", 1, remove=["n2"]),
        catalog_commands.bootstrap("id-2", "again"),
    ]
)
COMMANDS = st.one_of(
    PUTS.map(catalog_commands.encode),
    DELETES.map(catalog_commands.encode),
    OTHERS.map(catalog_commands.encode),
    st.lists(PUTS | DELETES, max_size=4).map(catalog_commands.encode_batch),
    st.binary(max_size=20),
)
START = catalog_commands.encode(catalog_commands.bootstrap("id", "shop", [{"name": "a"}]))


def run(machine: CatalogMachine, commands: list[bytes], first: int) -> list[Any]:
    outcomes = []
    for index, command in enumerate(commands, first):
        outcome = machine.apply(StepMeta(index), command)
        machine.check_invariants()
        catalog_commands.decode_reply(outcome.reply)
        outcomes.append((outcome.reply, outcome.effects))
    return outcomes


@given(st.lists(COMMANDS, max_size=25), st.integers(0, 25))
@settings(deadline=None)
def test_snapshot_and_rest_of_the_log_give_the_same_as_the_whole_log(
    commands: list[bytes], cut: int
) -> None:
    commands = [START, *commands]
    whole = CatalogMachine()
    outcomes = run(whole, commands, 1)
    first = CatalogMachine()
    run(first, commands[:cut], 1)
    second = CatalogMachine()
    if cut:
        second.restore(first.snapshot())
    assert run(second, commands[cut:], cut + 1) == outcomes[cut:]
    assert second.snapshot() == whole.snapshot()
    assert second.objects() == whole.objects()


@given(st.lists(COMMANDS, max_size=25))
@settings(deadline=None)
def test_effects_tell_what_is_there(commands: list[bytes]) -> None:
    """Whoever follows the effects knows the topology without listing it."""
    machine = CatalogMachine()
    known: set[tuple[str, str, str]] = set()
    for _, effects in run(machine, [START, *commands], 1):
        for effect in effects:
            key = (effect.kind, effect.vhost, effect.name)
            if effect.deleted:
                known.remove(key)
            else:
                known.add(key)
    assert known == {(each["kind"], each["vhost"], each["name"]) for each in machine.objects()}
    changes = machine.changes_since(0)
    assert changes is not None
    assert len(changes) == sum(
        len(effects) for _, effects in run(CatalogMachine(), [START, *commands], 1)
    )
