"""Feature flags, and two versions of a codec side by side, as in a cluster that is being upgraded.

What a member of the last release writes must be read by this one, and this one must not write what
the last one cannot read before the flag says that all can (ADR 13).
"""

from __future__ import annotations

import itertools

import pytest

from brokerd.core import annotations
from brokerd.core.annotations import Annotations, Death
from brokerd.core.catalog import catalog_commands, features
from brokerd.core.catalog.catalog_machine import CatalogMachine
from brokerd.core.queue.effects import Deliver
from tests.unit.core.catalog_driver import CatalogDriver
from tests.unit.core.queue_driver import QueueDriver, StepMeta

OLD: tuple[str, ...] = ()
NEW = features.names()


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


# ---- two versions of the codec ------------------------------------------------------------------

OWN = [
    Annotations(ttl_ms=ttl_ms, priority=priority)
    for ttl_ms, priority in itertools.product((None, 0, 1, 60_000, 1 << 40), (None, 0, 9, 255))
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("known", OWN, ids=repr)
def test_both_forms_say_the_same(known: Annotations, packed: bool) -> None:
    assert annotations.decode(annotations.encode(known, packed=packed)) == known


@pytest.mark.parametrize(
    "known",
    [
        Annotations(bcc=["k"], ttl_ms=1),
        Annotations(deaths=[Death("q", "expired", 1, 5, "x", ["k"])], priority=1),
        Annotations(first_death=("expired", "q", "x"), ttl_ms=1),
        Annotations(delivery_count=3, ttl_ms=1),
        Annotations(rerouted=True, ttl_ms=1),
        Annotations(ttl_ms=1 << 64),
        Annotations(priority=256),
    ],
    ids=repr,
)
def test_what_the_packed_form_cannot_hold_stays_json(known: Annotations) -> None:
    raw = annotations.encode(known, packed=True)
    assert raw[:1] == b"{"
    assert annotations.decode(raw) == known


def test_nothing_to_remember_is_nothing_in_either_form() -> None:
    assert (
        annotations.encode(Annotations()) == annotations.encode(Annotations(), packed=True) == b""
    )


def test_a_packed_form_of_the_wrong_size_is_refused() -> None:
    raw = annotations.encode(Annotations(ttl_ms=5), packed=True)
    for wrong in (raw[:-1], raw + b"x"):
        with pytest.raises(ValueError, match="packed annotations"):
            annotations.decode(wrong)


def test_replicas_that_are_written_to_in_both_versions_stay_the_same() -> None:
    """A log with commands of both versions gives what a log of the older one gives."""
    old, mixed = (QueueDriver(queue_type="quorum", max_priority=31) for _ in range(2))
    for number, known in enumerate(OWN):
        plain = (("ex", "rk"), b"\x00\x00", b"%d" % number, annotations.encode(known))
        packed = (*plain[:3], annotations.encode(known, packed=True))
        old.publish(plain)
        mixed.publish(packed if number % 2 else plain)
    orders = []
    for driver in (old, mixed):
        outcome = driver.consume(prefetch=100)
        orders.append([e.runs for e in outcome.effects if isinstance(e, Deliver)])
    assert orders[0] == orders[1] != []
    for driver in (old, mixed):
        driver.now_ms += 30_000
    assert old.machine.next_deadline_ms() == mixed.machine.next_deadline_ms()
