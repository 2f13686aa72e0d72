"""Where members run, as the catalog has it."""

from __future__ import annotations

from typing import Any

import pytest

from brokerd.cluster.groups.failure_domains import Domain
from brokerd.core.catalog import catalog_commands
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.raft.messages import NodeId
from brokerd.server.catalog import member_states
from tests.unit.core.catalog_driver import StepMeta


def machine_with(value: Any) -> CatalogMachine:
    machine = CatalogMachine()
    operations = [
        catalog_commands.put_member("n1", "localhost:1"),
        catalog_commands.put_member("n2", "localhost:2"),
        catalog_commands.set_setting(catalog_commands.member_domain("n1"), value),
    ]
    machine.apply(StepMeta(1), catalog_commands.encode_batch(operations))
    return machine


def test_domain_is_read_from_the_catalog_and_outlives_a_snapshot() -> None:
    machine = machine_with({"host": "h", "zone": "z"})
    restored = CatalogMachine()
    restored.restore(machine.snapshot())
    for view in (machine.state, restored.state):
        assert member_states.domain_of(view, "n1") == Domain("h", "z")
        assert member_states.domain_of(view, "n2") == Domain()
        domains = member_states.domains(view)
        assert domains.zone(NodeId("n1")) == ("zone", "z")
        assert domains.host(NodeId("n2")) == ("member", "n2")


@pytest.mark.parametrize("value", ["h", 7, [], {}, {"host": 7, "zone": None}, {"a": "b"}])
def test_what_is_no_domain_counts_as_unknown(value: Any) -> None:
    view = machine_with(value).state
    assert member_states.domain_of(view, "n1") == Domain()
