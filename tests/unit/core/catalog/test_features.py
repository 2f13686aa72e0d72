"""Feature flags in a cluster that is being upgraded: nothing is written that a member cannot read
before the flag says that all can (ADR 13).
"""

from __future__ import annotations

import pytest

from brokerd.core.catalog import catalog_commands, features
from brokerd.core.catalog.catalog_machine import CatalogMachine
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.core.queue_driver import StepMeta

OLD: tuple[str, ...] = ()
NEW = ("next", "another")


@pytest.fixture
def catalog() -> CatalogDriver:
    """Two members; the cluster was founded by an older version."""
    driver = CatalogDriver()
    for name in ("n1", "n2"):
        address = {"peer_address": f"{name}:5690"}
        driver.do(catalog_commands.put("member", "", name, address, cause="admin"))
    return driver


def start(catalog: CatalogDriver, node: str, incarnation: int, known: tuple[str, ...]) -> str:
    code = catalog.do(catalog_commands.node_started(node, incarnation, known))["code"]
    return str(code)


def enable(catalog: CatalogDriver, *names: str) -> tuple[str, str]:
    reply = catalog.do(catalog_commands.enable_features(names))
    return reply["code"], reply.get("text", "")


# ---- the flags ----------------------------------------------------------------------------------


def test_the_names_are_those_of_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is none before the second release."""
    assert features.names() == ()
    monkeypatch.setattr(features, "FEATURES", (features.Feature("next", "0.2.0", "something"),))
    assert features.names() == ("next",)


def test_a_flag_waits_until_every_member_understands_it(catalog: CatalogDriver) -> None:
    start(catalog, "n1", 1, NEW)
    start(catalog, "n2", 1, OLD)
    code, text = enable(catalog, *NEW)
    assert code == "REFUSED"
    assert "not understood by n2: upgrade all members first" in text
    assert catalog.view.enabled_features == frozenset()
    start(catalog, "n2", 2, NEW)
    assert enable(catalog, *NEW) == ("OK", "")
    assert catalog.view.enabled_features == frozenset(NEW)
    assert enable(catalog, *NEW)[0] == "UNCHANGED"


def test_a_flag_that_nobody_knows_is_a_mistake(catalog: CatalogDriver) -> None:
    start(catalog, "n1", 1, NEW)
    assert enable(catalog, "warp") == ("REFUSED", "no member knows a feature flag 'warp'")


def test_a_member_that_left_is_not_asked(catalog: CatalogDriver) -> None:
    start(catalog, "n1", 1, NEW)
    start(catalog, "n2", 1, OLD)
    catalog.do(catalog_commands.delete("member", "", "n2", cause="admin"))
    assert enable(catalog, *NEW)[0] == "OK"
    assert "n2" not in catalog.view.understood_features


def test_an_older_version_may_not_join_once_a_flag_is_enabled(catalog: CatalogDriver) -> None:
    start(catalog, "n1", 1, NEW)
    start(catalog, "n2", 1, NEW)
    enable(catalog, *NEW)
    reply = catalog.do(catalog_commands.node_started("n3", 1, OLD))
    assert reply["code"] == "REFUSED"
    assert "its version is too old for this cluster" in reply["text"]
    # It was not let in by halves either.
    assert "n3" not in catalog.view.incarnations


def test_a_new_cluster_has_the_flags_of_its_founder_and_a_snapshot_keeps_them() -> None:
    machine = CatalogMachine()
    command = catalog_commands.encode(catalog_commands.bootstrap("id", "shop", features=NEW))
    machine.apply(StepMeta(1, 1, 1_000), command)
    started = catalog_commands.encode(catalog_commands.node_started("n1", 5, NEW))
    machine.apply(StepMeta(2, 1, 1_000), started)
    again = CatalogMachine()
    again.restore(machine.snapshot())
    assert again.state.enabled_features == frozenset(NEW)
    assert again.state.understood_features == {"n1": list(NEW)}
